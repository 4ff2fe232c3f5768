//! Beside the tuner, whose figures of steps are the simulator's: where calls consist of steps alone both have to agree.

use ferroccl::{Algorithm, ProtocolId};
use ferroccl_simulator::{Call, Cluster, Options, Outcome, TunerRow, tuner_file};

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

/// All of a chain's channels leave a host from its last rank, by that rank's port: the plan does, and the tuner reckons with it.
#[test]
fn a_chain_over_hosts_has_one_port_in_the_plan_and_in_the_model() {
    // So few hosts are simulated step by step.
    for (file, hosts) in
        [("dgx-a100.xml", 2), ("dgx-a100.xml", 4), ("hgx-h100.xml", 2), ("hgx-h100.xml", 4)]
    {
        let cluster = cluster(&host(file), hosts, "rail", &[], &[]);
        for bytes in [256 << 20, 1 << 30] {
            let outcome = run(&cluster, &all_reduce(bytes, Algorithm::Chain, ProtocolId::Simple));
            let (us, tuner) = (outcome.time_us, outcome.predicted_us.unwrap());
            println!("{file}, {hosts} hosts, {bytes} bytes: {us:.0} us, the tuner {tuner:.0}");
            assert!((us / tuner - 1.0).abs() < 0.2, "{file} {hosts} {bytes}: {us} {tuner}");
        }
    }
}

/// At sizes between those that were simulated for it, a tuner with the fitted file chooses what the simulation finds fastest.
#[test]
fn with_fitted_times_the_simulations_fastest_is_chosen() {
    let text = {
        let cluster = cluster(&host("dgx-a100.xml"), 2, "rail", &[], &[]);
        let sizes = (3..=26).flat_map(|i| [2, 3].map(|factor| factor << (i - 1)));
        let outcomes: Vec<Outcome> = sizes.flat_map(|bytes| all_ways(&cluster, bytes)).collect();
        serde_json::to_string(&cluster.fit(&outcomes)).unwrap()
    };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("times.json");
    std::fs::write(&path, text).unwrap();
    let settings = [("FERROCCL_TUNER_FILE", path.to_str().unwrap())];
    let with_file = cluster(&host("dgx-a100.xml"), 2, "rail", &settings, &[]);
    let without = cluster(&host("dgx-a100.xml"), 2, "rail", &[], &[]);
    let (mut right, mut right_without, mut all) = (0, 0, 0);
    for bytes in
        (3..26).flat_map(|i| [5, 7].map(|factor| factor << (i - 2))).map(|b: u64| b.max(4) / 4 * 4)
    {
        let simulated = all_ways(&without, bytes);
        let best = simulated.iter().min_by(|a, b| a.time_us.total_cmp(&b.time_us)).unwrap();
        // Nothing is asked for: the tuner chooses.
        let is_best = |cluster: &Cluster| {
            let call = Call { algorithm: None, protocol: None, ..best.call };
            let chosen = run(cluster, &call);
            // Lines of the file are within 2 % of what was simulated.
            let same = chosen.time_us <= best.time_us * 1.02;
            if !same {
                println!(
                    "{bytes}: {:?} {:.2} us, not {:?} {:.2}",
                    chosen.choice, chosen.time_us, best.choice, best.time_us
                );
            }
            same
        };
        all += 1;
        right += u32::from(is_best(&with_file));
        right_without += u32::from(is_best(&without));
    }
    println!("{right} of {all} sizes, without the file {right_without}");
    assert!(f64::from(right) >= 0.95 * f64::from(all), "{right} of {all}");
    assert!(right_without < right, "the file changes nothing");
}

/// Runs of all algorithms in all protocols that can do an all-reduce.
fn all_ways(cluster: &Cluster, bytes: u64) -> Vec<Outcome> {
    let algorithms = [
        Algorithm::Tree,
        Algorithm::Ring,
        Algorithm::Hierarchical,
        Algorithm::Chain,
        Algorithm::Doubling,
    ];
    let calls =
        algorithms.iter().flat_map(|a| ProtocolId::ALL.iter().map(|p| all_reduce(bytes, *a, *p)));
    calls.filter_map(|call| cluster.simulate(&call, &Options::default()).ok()).collect()
}
