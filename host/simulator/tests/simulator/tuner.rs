//! Beside the tuner, whose figures of steps are the simulator's: where calls consist of steps alone both have to agree.

use ferroccl::{Algorithm, ProtocolId};
use ferroccl_simulator::{TunerRow, tuner_file};

use crate::support::{all_reduce, cluster, host, run};

#[test]
fn calls_of_few_bytes_take_what_the_tuner_says() {
    for file in ["dgx-a100.xml", "hgx-h100.xml"] {
        for hosts in [1u32, 2, 4, 16] {
            let cluster = cluster(&host(file), hosts, "rail", &[], &[]);
            for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::Hierarchical] {
                if hosts == 1 && algorithm == Algorithm::Hierarchical {
                    continue;
                }
                let outcome = run(&cluster, &all_reduce(8, algorithm, ProtocolId::Ll));
                let tuner = outcome.predicted_us.unwrap();
                println!(
                    "{file}, {hosts} hosts, {algorithm}: {:.2} us, the tuner {tuner:.2}",
                    outcome.time_us
                );
                assert!(
                    (outcome.time_us / tuner - 1.0).abs() < 0.2,
                    "{file} {hosts} {algorithm}: {outcome:?}"
                );
            }
        }
    }
}

#[test]
fn the_fastest_ways_make_a_file_for_a_tuner() {
    let cluster = cluster(&host("dgx-a100.xml"), 2, "rail", &[], &[]);
    let small = run(&cluster, &all_reduce(8, Algorithm::Tree, ProtocolId::Ll));
    let large = run(&cluster, &all_reduce(1 << 20, Algorithm::Ring, ProtocolId::Simple));
    let rows = [&small, &large].map(|outcome| TunerRow { hosts: 2, outcome });
    let text = tuner_file(&rows);
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(lines[0].starts_with("allreduce,0,1048575,tree,ll,"), "{text}");
    assert!(lines[1].starts_with("allreduce,1048576,4294967295,ring,simple,"), "{text}");
    assert!(lines[1].ends_with(",2,16"), "{text}");
}
