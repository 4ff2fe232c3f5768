//! Ports for listeners that are started later, in another process.

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// A port that nobody uses, and that the system gives to nobody who asks for any port: it is below
/// `net.ipv4.ip_local_port_range`, which begins at 32768 (Linux, `ip-sysctl.rst`). A port that was free a moment
/// ago may be the local end of somebody's connection a moment later, and for a minute after that.
pub(crate) fn free_port() -> u16 {
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 20_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Programs that run at the same time begin at different ports.
    let begin = (std::process::id() % u32::from(COUNT / 16)) as u16 * 16;
    (0..COUNT)
        .map(|_| FIRST + begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT)
        .find(|&port| {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
                && TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
                    .map_or_else(|e| e.kind() != std::io::ErrorKind::AddrInUse, |_| true)
        })
        .expect("a port that nobody uses")
}
