//! A host that dies: the parts of the time until the others have called again.

use std::time::Duration;

use ferroccl::bootstrap::Heartbeat;
use ferroccl::{Algorithm, CommConfig, Communicator, Device, ProtocolId, UniqueId};
use ferroccl_simulator::{Fault, Options, SOCKET_US, SimulateError};

use crate::support::{all_reduce, cluster, host, run};

#[test]
fn the_parts_are_the_watchs_the_bootstraps_and_the_calls() {
    let system = host("dgx-a100.xml");
    let dead = [Fault::DeadNode { host: 2 }];
    for (setting, seconds) in [(None, 30.0), (Some("4"), 4.0), (Some("0"), 30.0)] {
        let settings: Vec<_> =
            setting.iter().map(|limit| ("FERROCCL_HEARTBEAT_TIMEOUT", *limit)).collect();
        let left = cluster(&system, 4, "rail", &settings, &dead);
        assert_eq!((left.hosts(), left.ranks()), (3, 24));
        let call = all_reduce(1 << 20, Algorithm::Ring, ProtocolId::Simple);
        let recovery = left.recovery(&call, &Options::default()).unwrap();
        let parts: Vec<_> = recovery.parts.iter().map(|part| (part.name, part.us)).collect();
        let message = recovery.parts[1].us / 12.0; // 24 ranks hear it from both ends
        assert!((SOCKET_US..SOCKET_US + 5.0).contains(&message), "{message}");
        let agreed = f64::from(4 * 6) * message;
        let near = |us: f64, want: f64| (us - want).abs() < 1e-6;
        assert_eq!(parts[0], ("noticed", seconds * 1e6));
        assert!(parts[1].0 == "told" && parts[2].0 == "connected" && parts[3].0 == "agreed");
        assert!(near(parts[2].1, 12.0 * message) && near(parts[3].1, agreed), "{parts:?}");
        // The call is that of a cluster of three.
        let three = cluster(&system, 3, "rail", &[], &[]);
        assert_eq!(recovery.call.time_us, run(&three, &call).time_us);
        let sum: f64 = parts.iter().map(|part| part.1).sum();
        assert!(near(recovery.total_us(), sum + recovery.call.time_us));
    }
    assert_eq!(Heartbeat::within(Duration::from_secs(600)).limit, Duration::from_secs(30));
}

#[test]
fn hosts_that_are_not_there_cannot_die() {
    let system = host("dgx-a100.xml");
    let config = ferroccl::config::Config::from_lookup(|_| None).unwrap();
    let with = |hosts, faults: &[Fault]| {
        let fabric = Default::default();
        ferroccl_simulator::Cluster::new(&system, hosts, &config, &fabric, faults)
    };
    for (hosts, faults, why) in [
        (2, vec![Fault::DeadNode { host: 2 }], "there are 2 hosts"),
        (2, vec![Fault::DeadNode { host: 0 }, Fault::DeadNode { host: 1 }], "no host is left"),
    ] {
        let error = with(hosts, &faults).unwrap_err();
        assert!(
            matches!(error, SimulateError::Fault(_)) && error.to_string().contains(why),
            "{error}"
        );
    }
    let twice = [Fault::DeadNode { host: 1 }; 2];
    assert_eq!(with(3, &twice).unwrap().hosts(), 2);
}

/// The number of all-gathers is compared with what ranks take, where debug assertions are: here.
#[test]
fn an_init_takes_as_many_all_gathers_as_it_says() {
    let id = UniqueId::listening_at(([127, 0, 0, 1], 0).into()).unwrap();
    let device = Device::cpu();
    std::thread::scope(|scope| {
        for rank in 0..3 {
            let (id, device) = (&id, &device);
            scope.spawn(move || {
                Communicator::init_rank_with(device, 3, id, rank, &CommConfig::default()).unwrap();
            });
        }
    });
}
