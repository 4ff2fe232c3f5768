//! Several ports that are one device. Both ends of the cable are one on either side, crosswise, so that each port talks to the other.

use std::sync::Arc;

use ferroccl_proxy::NetError;
use ferroccl_proxy::net::verbs::{VerbsConfig, VerbsNet};
use ferroccl_proxy::net::{Connecting, Listener, Net, Properties};

use crate::support::{Random, connect, exchange};
use crate::{config, conformance, tier};

/// A network whose connections go from a device to another one.
#[derive(Debug)]
struct Between {
    net: VerbsNet,
    from: usize,
    to: usize,
}

impl Net for Between {
    fn name(&self) -> &str {
        self.net.name()
    }

    fn devices(&self) -> usize {
        1
    }

    fn properties(&self, device: usize) -> Result<Properties, NetError> {
        self.net.properties(if device == 0 { self.from } else { 99 })
    }

    fn listen(&self, device: usize) -> Result<Box<dyn Listener>, NetError> {
        self.net.listen(if device == 0 { self.to } else { 99 })
    }

    fn connect(&self, device: usize, handle: &[u8]) -> Result<Box<dyn Connecting>, NetError> {
        self.net.connect(if device == 0 { self.from } else { 99 }, handle)
    }
}

/// From these ports to those; `rxa` is 0, `rxb` 1.
fn between(from: &[usize], to: &[usize], change: impl FnOnce(&mut VerbsConfig)) -> Arc<dyn Net> {
    let mut config = config("=rxa,rxb");
    change(&mut config);
    let net = VerbsNet::new(config).unwrap();
    let device = |members: &[usize]| match members {
        [one] => *one,
        several => net.make_virtual_device(several).unwrap(),
    };
    let (from, to) = (device(from), device(to));
    Arc::new(Between { net, from, to })
}

#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn a_device_of_two_ports_is_a_device() {
    let mut seed = Random::new("a_device_of_two_ports_is_a_device");
    conformance::all(&between(&[0, 1], &[1, 0], |_| ()), 0, &mut seed);
    for split in [true, false] {
        if !tier::takes(split.into(), 1) {
            continue;
        }
        let net = between(&[0, 1], &[1, 0], |config| {
            (config.qps_per_connection, config.split_data_on_qps) = (3, split);
            config.adaptive_routing = Some(split);
        });
        conformance::sizes(&net, 0, &mut seed);
        conformance::many_small(&net, 0, &mut seed);
        conformance::streams(&net, 0, &mut seed);
    }
}

/// Hosts may have their cards merged or not.
#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn ends_may_have_different_ports() {
    let mut seed = Random::new("ends_may_have_different_ports");
    let ports = [(&[0, 1][..], &[1][..]), (&[0], &[1, 0]), (&[0], &[0, 1])];
    for (case, (from, to)) in ports.into_iter().enumerate() {
        for pairs in [1, 3].into_iter().filter(|pairs| tier::takes(case, pairs / 2)) {
            let net = between(from, to, |config| config.qps_per_connection = pairs);
            conformance::sizes(&net, 0, &mut seed);
            conformance::streams(&net, 0, &mut seed);
            conformance::several_connections(&net, 0, &mut seed);
        }
    }
}

/// Packets that a port has sent.
fn packets(device: &str) -> u64 {
    let path = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.trim().parse().unwrap()
}

#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn each_port_carries_half() {
    let both = between(&[0, 1], &[1, 0], |_| ());
    let one = between(&[0], &[1], |_| ());
    let sent = |net: &Arc<dyn Net>| {
        let before = ["rxa", "rxb"].map(packets);
        let mut ends = connect(net, 0);
        exchange(&mut ends, &vec![1; 8 << 20], 8 << 20, [0, 0]);
        [packets("rxa") - before[0], packets("rxb") - before[1]]
    };
    let ([a, b], [all, answers]) = (sent(&both), sent(&one));
    assert!(all > 3 * answers, "{all} {answers}: what one port sends, the other answers");
    assert!(a.abs_diff(b) < all / 10 && a > all / 2, "{a} {b} of {all}");
}

#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn what_a_device_of_two_ports_is() {
    let net = VerbsNet::new(config("=rxa,rxb")).unwrap();
    let (a, b) = (net.properties(0).unwrap(), net.properties(1).unwrap());
    assert_eq!((net.devices(), net.max_devices_per_nic()), (2, 4));
    let both = net.make_virtual_device(&[0, 1]).unwrap();
    assert_eq!((both, net.make_virtual_device(&[0, 1]).unwrap(), net.devices()), (2, 2, 3));
    let properties = net.properties(both).unwrap();
    assert_eq!((&*properties.name, properties.speed), ("rxa+rxb", a.speed + b.speed));
    assert_eq!((properties.guid, properties.members), (a.guid, vec![0, 1]));
    let wrong = |members: &[usize]| net.make_virtual_device(members).unwrap_err().reason;
    assert_eq!(wrong(&[0, 2]), "device 2 is none of the 2 real ones");
    assert_eq!(wrong(&[0]), "1 devices, where a virtual one has 2 to 4");
    let mut config = config("=rxa,rxb");
    config.merge_nics = false;
    let net = VerbsNet::new(config).unwrap();
    assert_eq!(net.max_devices_per_nic(), 1);
    assert_eq!(net.make_virtual_device(&[0, 1]).unwrap_err().reason, "NCCL_IB_MERGE_NICS is 0");
}
