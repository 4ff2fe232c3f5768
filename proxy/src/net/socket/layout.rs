//! How many threads and sockets a connection has.

use std::path::Path;

use super::error;
use crate::NetError;

/// Threads of a connection at most: NCCL's `MAX_THREADS` (`net_socket.cc`).
pub(super) const MAX_THREADS: usize = 16;
/// Data sockets of a connection at most: NCCL's `MAX_SOCKETS` (`net_socket.cc`).
pub(super) const MAX_SOCKETS: usize = 64;

/// Threads, and data sockets in all, of the connections of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) threads: usize,
    pub(super) sockets: usize,
}

/// Threads, and sockets of each, that suit a card of this PCI vendor: NCCL's (`net_socket.cc`). Clouds limit what a TCP
/// connection may carry, so that it takes several; elsewhere the calling thread alone is quickest.
fn suits(vendor: &str) -> (usize, usize) {
    match vendor {
        "0x1d0f" => (2, 8), // Amazon
        "0x1ae0" => (4, 1), // Google
        _ => (0, 1),
    }
}

impl Layout {
    /// What is wished for, and where nothing is, what suits the interface.
    pub(super) fn new(
        interface: &str,
        threads: Option<usize>,
        sockets_per_thread: Option<usize>,
    ) -> Result<Layout, NetError> {
        let path = Path::new("/sys/class/net").join(interface).join("device/vendor");
        let vendor = std::fs::read_to_string(path).unwrap_or_default();
        Layout::of(suits(vendor.trim()), threads, sockets_per_thread)
    }

    fn of(
        suits: (usize, usize),
        threads: Option<usize>,
        sockets_per_thread: Option<usize>,
    ) -> Result<Layout, NetError> {
        let limit = |name, value, least, most| {
            if (least..=most).contains(&value) {
                return Ok(value);
            }
            Err(error("init", format!("{name}={value}: it is {least} to {most}")))
        };
        let n = limit("NCCL_SOCKET_NTHREADS", threads.unwrap_or(suits.0), 0, MAX_THREADS)?;
        let each = match sockets_per_thread {
            Some(each) => limit("NCCL_NSOCKS_PERTHREAD", each, 1, MAX_SOCKETS)?,
            None => suits.1.min(MAX_SOCKETS / n.max(1)),
        };
        // Without threads, the caller's stands for one.
        let sockets = n.max(1) * each;
        if sockets > MAX_SOCKETS {
            let reason = format!(
                "NCCL_SOCKET_NTHREADS={n} times NCCL_NSOCKS_PERTHREAD={each} is {sockets} sockets: {MAX_SOCKETS} at most"
            );
            return Err(error("init", reason));
        }
        Ok(Layout { threads: n, sockets })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_nccls_and_named() {
        let of = |threads, each| {
            Layout::of(suits("0x1d0f"), threads, each)
                .map(|layout| (layout.threads, layout.sockets))
                .map_err(|error| error.reason)
        };
        assert_eq!(of(None, None), Ok((2, 16)));
        assert_eq!(of(Some(0), None), Ok((0, 8)));
        assert_eq!(of(Some(16), None), Ok((16, 64)), "what is not wished for makes room");
        assert_eq!(of(Some(16), Some(4)), Ok((16, 64)));
        assert_eq!(of(Some(17), None), Err("NCCL_SOCKET_NTHREADS=17: it is 0 to 16".to_owned()));
        assert_eq!(of(None, Some(0)), Err("NCCL_NSOCKS_PERTHREAD=0: it is 1 to 64".to_owned()));
        assert_eq!(of(None, Some(65)), Err("NCCL_NSOCKS_PERTHREAD=65: it is 1 to 64".to_owned()));
        let both = of(Some(16), Some(5)).unwrap_err();
        assert_eq!(
            both,
            "NCCL_SOCKET_NTHREADS=16 times NCCL_NSOCKS_PERTHREAD=5 is 80 sockets: 64 at most"
        );
        assert_eq!(
            Layout::of(suits("0x8086"), None, None).map(|l| (l.threads, l.sockets)),
            Ok((0, 1))
        );
    }
}
