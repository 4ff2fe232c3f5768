//! Connections in device memory: a sender whose kernels reach the receiver's GPU writes there.
//!
//! The header of an edge stays in the host's memory, which P2P or SHM shares. Within a process the receiver's memory is
//! found by a number, as an offer of P2P's; another process opens it by CUDA IPC. Both ends know of all ranks what they
//! reach, so both know where in the receiver's memory each sender has its part.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use serde::{Deserialize, Serialize};

use super::{Allowed, PeerInfo};
use crate::runtime::{Memory, Runtime};
use crate::{Error, Result};

/// What a sender needs to find the receiver's memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Handle {
    /// Its number in the receiver's process.
    key: u64,
    /// For other processes.
    ipc: Option<Vec<u8>>,
}

type Offers = Mutex<HashMap<u64, Weak<dyn Memory>>>;

/// What has been offered in this process.
fn offers() -> &'static Offers {
    static OFFERS: OnceLock<Offers> = OnceLock::new();
    OFFERS.get_or_init(Mutex::default)
}

/// Whether the sender's kernels reach memory of the receiver's device.
pub(crate) fn reaches(sender: &PeerInfo, receiver: &PeerInfo, allowed: Allowed) -> bool {
    let (Some(from), Some(to)) = (&sender.device, &receiver.device) else { return false };
    allowed.p2p
        && sender.rank != receiver.rank
        && sender.host == receiver.host
        && from.reach.contains(&to.id)
}

/// The place of a sender's part among those in the receiver's memory; how many there are where no sender is given.
pub(crate) fn place(
    sender: Option<u32>,
    receiver: &PeerInfo,
    peers: &[PeerInfo],
    allowed: Allowed,
) -> usize {
    let before = peers.iter().filter(|peer| sender.is_none_or(|sender| peer.rank < sender));
    before.filter(|peer| reaches(peer, receiver, allowed)).count()
}

/// The receiver's part: what senders need to find `memory`, those in other processes among them if there are any.
pub(crate) fn offer(
    memory: &Arc<dyn Memory>,
    other: bool,
    runtime: &dyn Runtime,
) -> Result<Handle> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let ipc = other.then(|| runtime.export(memory)).transpose()?;
    let key = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut offers = offers().lock().unwrap_or_else(PoisonError::into_inner);
    offers.retain(|_, offer| offer.strong_count() > 0);
    offers.insert(key, Arc::downgrade(memory));
    Ok(Handle { key, ipc })
}

/// The sender's part: the receiver's memory, of `bytes` bytes.
pub(crate) fn accept(
    handle: &Handle,
    same_process: bool,
    bytes: usize,
    runtime: &dyn Runtime,
) -> Result<Arc<dyn Memory>> {
    let broken = |why: &str| Error::malformed(format!("device memory of a peer: {why}"));
    if !same_process {
        let ipc = handle.ipc.as_deref().ok_or_else(|| broken("no handle for other processes"))?;
        return runtime.import(ipc, bytes);
    }
    let offers = offers().lock().unwrap_or_else(PoisonError::into_inner);
    let memory = offers.get(&handle.key).and_then(Weak::upgrade);
    drop(offers);
    let memory = memory.ok_or_else(|| broken("names nothing in this process"))?;
    if memory.len() != bytes {
        return Err(broken("another size than ours"));
    }
    runtime.reach(&memory)?;
    Ok(memory)
}
