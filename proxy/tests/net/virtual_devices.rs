//! Devices that are made of several.

use std::sync::Arc;

use ferroccl_proxy::net::{FaultNet, Faults, LocalNet, Net, TraceNet};

use crate::socket::{V4, net};
use crate::support::{Random, connect, exchange};

#[test]
fn each_member_carries_its_part() {
    let local = LocalNet::with_devices(3);
    let shared: Arc<dyn Net> = Arc::new(local.clone());
    // Through what is put around a network, too.
    let net: Arc<dyn Net> = Arc::new(TraceNet::new(Arc::new(FaultNet::new(
        shared,
        "seed=1,delay=2".parse::<Faults>().unwrap(),
    ))));
    assert_eq!((net.devices(), net.max_devices_per_nic()), (3, 4));
    let both = net.make_virtual_device(&[0, 2]).unwrap();
    assert_eq!((both, net.make_virtual_device(&[0, 2]).unwrap(), net.devices()), (3, 3, 4));
    let properties = net.properties(both).unwrap();
    assert_eq!(properties.name, "local+local2");
    assert_eq!((properties.speed, properties.members), (200_000, vec![0, 2]));
    assert!(net.properties(0).unwrap().members.is_empty() && net.properties(4).is_err());
    let mut seed = Random::new("each_member_carries_its_part");
    let mut total = 0;
    let mut ends = connect(&net, both);
    for size in [0, 1, 127, 4096, 100_001] {
        let mut data = vec![0; size];
        seed.fill(&mut data);
        exchange(&mut ends, &data, size, [0, 0]);
        total += size as u64;
    }
    let sent = local.sent();
    assert_eq!((sent.len(), sent[0] + sent[2], sent[1]), (3, total, 0));
    assert!(sent[0].abs_diff(sent[2]) <= 5, "{sent:?}");
    let wrong = |members: &[usize]| net.make_virtual_device(members).unwrap_err().to_string();
    assert!(wrong(&[0, 3]).ends_with("device 3 is none of the 3 real ones"), "no virtual ones");
    assert!(wrong(&[0, 0]).ends_with("a device is there twice: [0, 0]"));
    assert!(wrong(&[1]).ends_with("1 devices, where a virtual one has 2 to 4"));
}

#[test]
fn sockets_make_none() {
    let sockets = net(&[V4, V4], 0, 1);
    assert_eq!(sockets.max_devices_per_nic(), 1);
    let error = sockets.make_virtual_device(&[0, 1]).unwrap_err().to_string();
    assert_eq!(
        error,
        "Socket: make_virtual_device: it makes no virtual devices, not of [0, 1] either"
    );
}
