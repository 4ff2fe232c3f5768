//! What faults do to calls.

use ferroccl::config::Config;
use ferroccl::{Algorithm, ProtocolId};
use ferroccl_simulator::{Cluster, FabricSpec, Fault};

use crate::support::{all_reduce, cluster, host, run};

#[test]
fn a_slow_link_slows_a_ring_as_far_as_it_is_slower() {
    let system = host("dgx-a100.xml");
    let call = all_reduce(256 << 20, Algorithm::Ring, ProtocolId::Simple);
    let healthy = run(&cluster(&system, 4, "rail", &[], &[]), &call);
    let slow = Fault::SlowLink { host: 2, port: 1, part: 0.5 };
    let slow = run(&cluster(&system, 4, "rail", &[], &[slow]), &call);
    let factor = slow.time_us / healthy.time_us;
    assert!((1.9..2.1).contains(&factor), "{factor}");
    assert!(slow.links[0].name.contains("host 2, port 1"), "{:?}", slow.links[0]);
}

#[test]
fn a_dead_port_leaves_a_host_fewer_channels() {
    let system = host("dgx-a100.xml");
    let call = all_reduce(256 << 20, Algorithm::Ring, ProtocolId::Simple);
    let healthy = run(&cluster(&system, 4, "rail", &[], &[]), &call);
    let dead = Fault::DeadPort { host: 2, port: 1 };
    let broken = cluster(&system, 4, "rail", &[], &[dead]);
    let broken = run(&broken, &call);
    assert!(broken.time_us > 1.05 * healthy.time_us, "{} {}", broken.time_us, healthy.time_us);
    assert!(broken.links.iter().all(|link| !link.name.contains("host 2, port 1")));
}

#[test]
fn a_straggler_is_waited_for() {
    let system = host("dgx-a100.xml");
    for algorithm in [Algorithm::Ring, Algorithm::Tree] {
        let call = all_reduce(8, algorithm, ProtocolId::Ll);
        let healthy = run(&cluster(&system, 4, "rail", &[], &[]), &call);
        let late = Fault::Straggler { rank: 17, late_us: 1000.0 };
        let late = run(&cluster(&system, 4, "rail", &[], &[late]), &call);
        let more = late.time_us - healthy.time_us;
        assert!((900.0..1000.1).contains(&more), "{algorithm}: {more}");
    }
}

#[test]
fn other_traffic_and_narrow_trees_cost_time() {
    let system = host("dgx-a100.xml");
    let call = all_reduce(256 << 20, Algorithm::Tree, ProtocolId::Simple);
    let time = |fabric: &str, faults: &[Fault]| {
        run(&cluster(&system, 16, fabric, &[], faults), &call).time_us
    };
    let wide = time("fat-tree", &[]);
    let narrow = time("fat-tree:oversubscription=8", &[]);
    assert!(narrow > 1.5 * wide, "{narrow} {wide}");
    let busy = time("fat-tree", &[Fault::Background { links: 1.0, load: 0.75 }]);
    assert!(busy > 2.0 * wide, "{busy} {wide}");
}

#[test]
fn faults_of_what_is_not_there_are_refused() {
    let (system, config) = (host("dgx-a100.xml"), Config::from_lookup(|_| None).unwrap());
    let make =
        |hosts, fault| Cluster::new(&system, hosts, &config, &FabricSpec::default(), &[fault]);
    for (hosts, fault) in [
        (4, Fault::SlowLink { host: 4, port: 0, part: 0.5 }),
        (4, Fault::DeadPort { host: 0, port: 99 }),
        (1, Fault::DeadPort { host: 0, port: 0 }),
        (4, Fault::Straggler { rank: 32, late_us: 1.0 }),
    ] {
        let error = make(hosts, fault).unwrap_err().to_string();
        assert!(error.contains("there are"), "{fault}: {error}");
    }
    let cpus =
        host("dgx-a100.xml").filtered(|id, _| !system.gpus().iter().any(|(gpu, _)| *gpu == id));
    let error = Cluster::new(&cpus, 2, &config, &FabricSpec::default(), &[]).unwrap_err();
    assert!(error.to_string().contains("no GPUs"), "{error}");
}
