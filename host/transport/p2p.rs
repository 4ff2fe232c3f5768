//! P2P: ranks of one process, which share its address space, as far as they count as being on one host.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, Weak};

use super::region::HostMapping;
use super::{HostRegion, OfferedRegion, PeerInfo, Transport};
use crate::error::{Error, Result};
use crate::fork::Maker;

/// The transport.
#[derive(Debug)]
pub(super) struct P2pTransport;

/// The mappings that have been offered in this process, by handle.
fn offers() -> &'static Mutex<HashMap<u64, Weak<HostMapping>>> {
    static OFFERS: OnceLock<Mutex<HashMap<u64, Weak<HostMapping>>>> = OnceLock::new();
    OFFERS.get_or_init(Mutex::default)
}

/// A random number of this process. A process id would not do, because it repeats across containers. A fork has another
/// number than its parent, with which it shares no address space.
pub(crate) fn process_token() -> Result<u64> {
    static TOKEN: Mutex<Option<(Maker, u64)>> = Mutex::new(None);
    let mut known = TOKEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, token)) = known.filter(|(maker, _)| maker.is_here()) {
        return Ok(token);
    }
    let token = getrandom::u64().map_err(|e| {
        Error::system("cannot get random bytes", std::io::Error::other(e.to_string()))
    })?;
    *known = Some((Maker::this()?, token));
    Ok(token)
}

impl Transport for P2pTransport {
    fn name(&self) -> &'static str {
        "P2P"
    }

    fn reaches(&self, sender: &PeerInfo, receiver: &PeerInfo) -> Result<(), String> {
        match (sender.process == receiver.process, sender.host == receiver.host) {
            (true, true) => Ok(()),
            (true, false) => Err("not one host (NCCL_HOSTID)".to_owned()),
            (false, _) => Err("not one process".to_owned()),
        }
    }

    fn direct(&self, sender: &PeerInfo, receiver: &PeerInfo) -> bool {
        sender.space == receiver.space
    }

    fn needs_shared_memory(&self) -> bool {
        false
    }

    fn offer(&self, recv_region: &OfferedRegion) -> Result<Vec<u8>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let key = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut offers = offers().lock().unwrap_or_else(PoisonError::into_inner);
        offers.retain(|_, offer| offer.strong_count() > 0);
        offers.insert(key, std::sync::Arc::downgrade(recv_region.region.mapping()));
        Ok(key.to_le_bytes().to_vec())
    }

    fn accept(&self, handle: &[u8], len: usize, offset: usize, bytes: usize) -> Result<HostRegion> {
        let broken = |why: &str| Error::malformed(format!("P2P handle of a peer: {why}"));
        let key = handle.try_into().map(u64::from_le_bytes).map_err(|_| broken("not 8 bytes"))?;
        let offers = offers().lock().unwrap_or_else(PoisonError::into_inner);
        let offer = offers.get(&key).and_then(Weak::upgrade);
        drop(offers);
        // Its rank has dropped it meanwhile.
        let mapping = offer.ok_or_else(|| {
            let gone = std::io::Error::new(ErrorKind::NotFound, "nothing of this process");
            Error::system("P2P handle", gone)
        })?;
        let region = HostRegion::of_mapping(mapping);
        if region.len() != len {
            return Err(broken("another size than ours"));
        }
        Ok(region.part(offset, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank that has given up takes its memory along: whoever comes later blames it, not its words.
    #[test]
    fn memory_that_is_gone_is_not_found() {
        let gone = P2pTransport.accept(&u64::MAX.to_le_bytes(), 64, 0, 64).unwrap_err();
        match gone {
            Error::System { source, .. } => assert_eq!(source.kind(), ErrorKind::NotFound),
            other => panic!("{other}"),
        }
    }
}
