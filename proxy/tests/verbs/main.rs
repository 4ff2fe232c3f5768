//! The verbs network, over soft-RoCE devices in a virtual machine.
//!
//! All cases but one are ignored: they need a device. `in_a_vm` runs them where there are three, `rxe0`, and `rxa` and `rxb`
//! on the two ends of a cable.

#[path = "../net/conformance.rs"]
mod conformance;
mod ends;
mod messages;
#[path = "../../../tests/support/rdma.rs"]
mod rdma;
#[path = "../../../tests/support/skip.rs"]
mod skip;
#[path = "../net/support.rs"]
mod support;
#[path = "../../../tests/support/tier.rs"]
mod tier;
mod virtual_devices;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use ferroccl_proxy::NetError;
use ferroccl_proxy::net::verbs::{Interface, VerbsConfig, VerbsNet};
use ferroccl_proxy::net::{Connecting, Listener, Net, Properties};

use crate::support::Random;

#[test]
fn in_a_vm() {
    if let Err(lack) = rdma::in_a_vm(&[]) {
        skip::skip(&lack);
    }
}

/// Of these devices; with what they are to be agreed on over the loopback interface.
pub(crate) fn config(hca: &str) -> VerbsConfig {
    let address = Ipv4Addr::LOCALHOST.into();
    let interface = Interface { name: "lo".to_owned(), address, scope_id: 0 };
    let mut config = VerbsConfig::new(interface, [42; 32]);
    config.connect_timeout = Duration::from_secs(20);
    config.hca = hca.parse().unwrap();
    config
}

pub(crate) fn net(hca: &str) -> Arc<dyn Net> {
    Arc::new(VerbsNet::new(config(hca)).unwrap())
}

/// A network whose connections go from its first device to its second.
#[derive(Debug)]
pub(crate) struct Cable(pub(crate) Arc<dyn Net>);

impl Net for Cable {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn devices(&self) -> usize {
        1
    }

    fn properties(&self, device: usize) -> Result<Properties, NetError> {
        self.0.properties(if device == 0 { 0 } else { 9 })
    }

    fn listen(&self, device: usize) -> Result<Box<dyn Listener>, NetError> {
        self.0.listen(if device == 0 { 1 } else { 9 })
    }

    fn connect(&self, device: usize, handle: &[u8]) -> Result<Box<dyn Connecting>, NetError> {
        self.0.connect(if device == 0 { 0 } else { 9 }, handle)
    }
}

/// Over the cable between `rxa` and `rxb`, with changes to what is set.
pub(crate) fn cable(change: impl FnOnce(&mut VerbsConfig)) -> Arc<dyn Net> {
    let mut config = config("=rxa,rxb");
    change(&mut config);
    Arc::new(Cable(Arc::new(VerbsNet::new(config).unwrap())))
}

#[test]
fn limits_name_their_variables() {
    let error = |change: fn(&mut VerbsConfig)| {
        let mut config = config("none");
        change(&mut config);
        assert!(!format!("{config:?}").contains("42"), "a secret is not shown");
        VerbsNet::new(config).unwrap_err().to_string()
    };
    assert_eq!(error(|c| c.service_level = 16), "IB: init: NCCL_IB_SL=16: it is 0 to 15");
    assert_eq!(error(|c| c.timeout = 0), "IB: init: NCCL_IB_TIMEOUT=0: it is 1 to 31");
    assert_eq!(error(|c| c.retry_cnt = 8), "IB: init: NCCL_IB_RETRY_CNT=8: it is 0 to 7");
    let pairs = error(|c| c.qps_per_connection = 129);
    assert_eq!(pairs, "IB: init: NCCL_IB_QPS_PER_CONNECTION=129: it is 1 to 128");
    // Without a library, or without such a device, that is said.
    let none = error(|_| ());
    let lacks = ["no verbs library", "no RDMA support", "NCCL_IB_HCA"];
    assert!(lacks.iter().any(|lack| none.contains(lack)), "{none}");
}

#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn on_one_device() {
    let mut seed = Random::new("on_one_device");
    conformance::all(&net("=rxe0"), 0, &mut seed);
}

#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn over_a_cable() {
    let mut seed = Random::new("over_a_cable");
    conformance::all(&cable(|_| ()), 0, &mut seed);
}

#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn devices_are_those_of_the_filter() {
    let names = |hca: &str| {
        let net = net(hca);
        let mut names: Vec<_> =
            (0..net.devices()).map(|i| net.properties(i).unwrap().name).collect();
        names.sort();
        names
    };
    assert_eq!(names("rx"), ["rxa", "rxb", "rxe0"]);
    assert_eq!(names("rxa:1,rxe"), ["rxa", "rxe0"]);
    assert_eq!(names("^rxa:2,rxe"), ["rxa", "rxb"]);
    assert_eq!(names("^=rx,rxb"), ["rxa", "rxe0"]);
    for none in ["=rx", "rxa:2", "^r"] {
        let error = VerbsNet::new(config(none)).unwrap_err();
        assert!(error.reason.contains("NCCL_IB_HCA"), "{none}: {error}");
    }
    let properties = net("rxa").properties(0).unwrap();
    assert_eq!((properties.port, properties.max_receives), (1, 8));
    assert!(properties.guid != 0 && !properties.dma_buf && !properties.cuda, "{properties:?}");
    assert_ne!(properties.guid, net("rxb").properties(0).unwrap().guid);
}
