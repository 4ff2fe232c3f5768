//! NET: ranks of different hosts. Nothing is shared: each has memory of its own, and the proxies carry what is in it over a
//! [network](ferroccl_proxy::net) (see [`ferroccl_proxy::connection`]).
//!
//! The receiver's part is in its inbox as with every transport. The sender's is made here, and its handle says nothing
//! but that both use this transport: where the receiver listens goes beside it.

use super::{Inbox, PeerInfo, Region, Transport};
use crate::Result;

/// The transport.
#[derive(Debug)]
pub(super) struct Net;

impl Transport for Net {
    fn name(&self) -> &'static str {
        "NET"
    }

    fn reaches(&self, _: &PeerInfo, _: &PeerInfo) -> Result<(), String> {
        Ok(())
    }

    fn direct(&self, _: &PeerInfo, _: &PeerInfo) -> bool {
        false
    }

    fn shares(&self) -> bool {
        false
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn offer(&self, _: &Inbox) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn accept(&self, _: &[u8], _: usize, _: usize, bytes: usize) -> Result<Region> {
        Region::anonymous(bytes)
    }
}
