//! Connections in the receiver's device memory, for senders whose kernels reach it.
//!
//! The header of an edge stays in the host's memory, which P2P or SHM shares. Within a process the sender finds the
//! receiver's allocation by a number, as with P2P. Another process opens it by CUDA IPC. Both ends know which ranks reach
//! which devices, so both compute the same offset of each sender's part.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use serde::{Deserialize, Serialize};

use super::exported::Imported;
use super::{AllowedTransports, HostRegion, PeerInfo};
use crate::error::{Error, Result};
use crate::runtime::{Memory, Runtime};

/// A handle by which senders find the receiver's memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DeviceMemoryHandle {
    /// Its number in the receiver's process.
    key: u64,
    /// The IPC handle for other processes.
    ipc: Option<Vec<u8>>,
}

type Offers = Mutex<HashMap<u64, Weak<dyn Memory>>>;

/// The allocations that have been offered in this process.
fn offers() -> &'static Offers {
    static OFFERS: OnceLock<Offers> = OnceLock::new();
    OFFERS.get_or_init(Mutex::default)
}

/// Whether the sender's kernels reach memory of the receiver's device.
pub(crate) fn reaches(
    sender: &PeerInfo,
    receiver: &PeerInfo,
    allowed: AllowedTransports<'_>,
) -> bool {
    let (Some(from), Some(to)) = (&sender.device, &receiver.device) else { return false };
    sender.rank != receiver.rank
        && sender.host == receiver.host
        && allowed.p2p(sender, receiver).is_ok()
        && from.reach.contains(&to.id)
}

/// The index of a sender's part in the receiver's memory; with `None` the number of parts.
pub(crate) fn sender_index(
    sender: Option<u32>,
    receiver: &PeerInfo,
    peers: &[PeerInfo],
    allowed: AllowedTransports<'_>,
) -> usize {
    let before = peers.iter().filter(|peer| sender.is_none_or(|sender| peer.rank < sender));
    before.filter(|peer| reaches(peer, receiver, allowed)).count()
}

/// The receiver's side: a handle by which senders find `memory`; with the IPC handle if some are in other processes.
pub(crate) fn offer(memory: &Arc<dyn Memory>, ipc: Option<Vec<u8>>) -> DeviceMemoryHandle {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let key = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut offers = offers().lock().unwrap_or_else(PoisonError::into_inner);
    offers.retain(|_, offer| offer.strong_count() > 0);
    offers.insert(key, Arc::downgrade(memory));
    DeviceMemoryHandle { key, ipc }
}

/// The sender's side: opens the receiver's memory of `bytes` bytes. It says by a `word` that it has the memory mapped
/// ([`exported`](super::exported)).
pub(crate) fn accept(
    handle: &DeviceMemoryHandle,
    same_process: bool,
    bytes: usize,
    word: &HostRegion,
    runtime: &dyn Runtime,
) -> Result<Arc<dyn Memory>> {
    let broken = |why: &str| Error::malformed(format!("device memory of a peer: {why}"));
    if !same_process {
        let ipc = handle.ipc.as_deref().ok_or_else(|| broken("no handle for other processes"))?;
        let import = || runtime.import(ipc, bytes);
        return Ok(Arc::new(Imported::open(word.clone(), import)?));
    }
    let offers = offers().lock().unwrap_or_else(PoisonError::into_inner);
    let memory = offers.get(&handle.key).and_then(Weak::upgrade);
    drop(offers);
    // Its rank has dropped it meanwhile.
    let memory = memory.ok_or_else(|| {
        let gone = std::io::Error::new(ErrorKind::NotFound, "nothing of this process");
        Error::system("handle of device memory", gone)
    })?;
    if memory.len() != bytes {
        return Err(broken("another size than ours"));
    }
    runtime.reach(&memory)?;
    Ok(memory)
}
