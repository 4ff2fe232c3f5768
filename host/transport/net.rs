//! NET: ranks on different hosts. They share no memory: each has its own, and the proxies move the data over a
//! [network](ferroccl_proxy::net) (see [`ferroccl_proxy::connection`]).
//!
//! The receiver's memory is in its receive region, as with every transport. The sender's memory is allocated here. The
//! handle is empty, because the address of the receiver's listener is exchanged beside it.

use super::{HostRegion, OfferedRegion, PeerInfo, Transport};
use crate::error::Result;

/// The transport.
#[derive(Debug)]
pub(super) struct NetTransport;

impl Transport for NetTransport {
    fn name(&self) -> &'static str {
        "NET"
    }

    fn reaches(&self, _: &PeerInfo, _: &PeerInfo) -> Result<(), String> {
        Ok(())
    }

    fn direct(&self, _: &PeerInfo, _: &PeerInfo) -> bool {
        false
    }

    fn needs_shared_memory(&self) -> bool {
        false
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn offer(&self, _: &OfferedRegion) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn accept(&self, _: &[u8], _: usize, _: usize, bytes: usize) -> Result<HostRegion> {
        HostRegion::anonymous(bytes)
    }
}
