//! A way to the root that is cut, silent, slow, or changes a byte.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::plan::Fault;

/// Relays connections to `root`, for as long as this process lives; its threads sleep when the run is over.
pub(super) fn relay(root: SocketAddr, fault: Fault) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        // Of all connections: who tries again after the damage gets through.
        let seen = Arc::new(AtomicUsize::new(0));
        for near in listener.incoming() {
            let Ok(near) = near else { return };
            // No root yet: the caller sees its connection end, and tries again.
            let Ok(far) = TcpStream::connect(root) else { continue };
            for (from, to) in [(&near, &far), (&far, &near)] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let seen = Arc::clone(&seen);
                thread::spawn(move || pass(from, to, fault, &seen));
            }
        }
    });
    address
}

fn pass(mut from: TcpStream, mut to: TcpStream, fault: Fault, seen: &AtomicUsize) {
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        // Relaxed: only a count.
        let before = seen.fetch_add(n, Ordering::Relaxed);
        let mut end = n;
        match fault {
            Fault::RootCut(bytes) if before + n > bytes && before <= bytes => end = bytes - before,
            Fault::RootSilent(bytes) => end = bytes.saturating_sub(before).min(n),
            Fault::RootCorrupt(at) if (before..before + n).contains(&at) => {
                buffer[at - before] ^= 0x10;
            }
            Fault::RootSlow(time) => thread::sleep(time),
            _ => {}
        }
        if to.write_all(&buffer[..end]).is_err() {
            break;
        }
        if end < n && matches!(fault, Fault::RootCut(_)) {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
