//! The socket network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use ferroccl_proxy::net::Net;
use ferroccl_proxy::net::socket::{SocketConfig, SocketInterface, SocketNet};

use crate::conformance;
use crate::support::Random;

/// A network over these addresses of the loopback interface.
fn config(addresses: &[IpAddr], threads: usize, sockets: usize) -> SocketConfig {
    let interface = |&address| SocketInterface { name: "lo".to_owned(), address, scope_id: 0 };
    SocketConfig {
        interfaces: addresses.iter().map(interface).collect(),
        threads: Some(threads),
        sockets_per_thread: Some(sockets),
        secret: [42; 32],
        connect_timeout: Duration::from_secs(20),
    }
}

fn net(addresses: &[IpAddr], threads: usize, sockets: usize) -> Arc<dyn Net> {
    Arc::new(SocketNet::new(config(addresses, threads, sockets)).unwrap())
}

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

#[test]
fn by_threads() {
    let mut seed = Random::new("by_threads");
    for (threads, sockets) in [(1, 1), (1, 2), (2, 1), (2, 4)] {
        conformance::all(&net(&[V4], threads, sockets), 0, &mut seed);
    }
}

#[test]
fn by_the_caller() {
    let mut seed = Random::new("by_the_caller");
    for sockets in [1, 2, 4] {
        conformance::all(&net(&[V4], 0, sockets), 0, &mut seed);
    }
}
