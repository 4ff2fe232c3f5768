//! The steps that a launch has on each connection over the network.
//!
//! The proxies of both ends must know them before the data comes. For a collective they are counted, by a run of the
//! kernel without data (`step_count`), and the counts are kept for later calls of the same kind. For a message they follow
//! from its size.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use ferroccl_device::abi::{ProtocolId, Transfer, TransferKind, TreeLinks, Work};
use ferroccl_device::kernels::Kernel;
use ferroccl_device::prims::{Ll, Ll128, Protocol, Simple};
use ferroccl_proxy::connection::{ConnectionId, Steps};

use super::step_count::{StepCount, count};
use crate::comm::control::ControlBlock;
use crate::error::Result;
use crate::profiler::Parent;

/// The calls whose counts are kept, at most.
const STEP_CACHE_CALLS: usize = 256;

/// What a launch has for the proxies.
#[derive(Clone, Debug, Default)]
pub(in crate::comm) struct ProxyWork {
    /// For each connection whether this rank sends on it, and the steps.
    pub(super) steps: Vec<(ConnectionId, bool, Steps)>,
    /// The event that they belong to; or one for each.
    event: Parent,
    events: Vec<Parent>,
}

impl ProxyWork {
    /// The same as part of this event.
    pub(in crate::comm) fn of(mut self, event: Parent) -> Self {
        self.event = event;
        self
    }

    pub(in crate::comm) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The event that entry `index` of the steps belongs to.
    pub(super) fn parent(&self, index: usize) -> Parent {
        self.events.get(index).copied().unwrap_or(self.event)
    }
}

/// Counts the steps of launches on connections with ranks on other hosts.
#[derive(Debug)]
pub(in crate::comm) struct StepCounter {
    channels: u32,
    slot_bytes: [u32; ProtocolId::MOST],
    /// By rank, whether it is on another host.
    is_remote: Vec<bool>,
    cache: Mutex<HashMap<StepCacheKey, Arc<[StepCount]>>>,
}

/// Calls with an equal key have the same steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct StepCacheKey {
    group: usize,
    kernel: &'static str,
    call: u64,
    count: u64,
    root: u32,
    mode: u64,
}

impl StepCounter {
    pub(super) fn new(
        channels: u32,
        slot_bytes: [u32; ProtocolId::MOST],
        is_remote: Vec<bool>,
    ) -> Self {
        StepCounter { channels, slot_bytes, is_remote, cache: Mutex::default() }
    }

    fn is_remote(&self, rank: u32) -> bool {
        self.is_remote.get(rank as usize).copied().unwrap_or(false)
    }

    /// The work of a collective's kernel, which runs over a `group` of the communicator's ranks. `tree` is the host's copy of the
    /// table that the kernel of a tree takes.
    ///
    /// # Errors
    /// When the kernel does not count its steps.
    ///
    /// # Safety
    /// As [`count`].
    pub(in crate::comm) unsafe fn collective(
        &self,
        control: &ControlBlock,
        group: usize,
        kernel: &Kernel,
        work: &Work,
        (blocks, protocol): (u32, ProtocolId),
        tree: Option<&[TreeLinks]>,
    ) -> Result<ProxyWork> {
        let key = StepCacheKey {
            group,
            kernel: kernel.name,
            call: work.signature.call,
            count: work.count,
            root: work.root,
            // Of a tree it is an address, and the tree follows from the root.
            mode: if tree.is_some() { 0 } else { work.extra },
        };
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = match cache.get(&key) {
            Some(counts) => Arc::clone(counts),
            None => {
                let is_remote = |rank| self.is_remote(rank);
                // The kernel's table is in the device's memory.
                let links = tree.map(|links| links.as_ptr().expose_provenance() as u64);
                let work = &Work { extra: links.unwrap_or(work.extra), ..*work };
                // SAFETY: the caller's.
                let counts =
                    unsafe { count(control, group, kernel.steps, work, blocks, is_remote)? };
                let counts: Arc<[StepCount]> = counts.into();
                if cache.len() >= STEP_CACHE_CALLS {
                    cache.clear();
                }
                cache.insert(key, Arc::clone(&counts));
                counts
            }
        };
        drop(cache);
        let seq = work.signature.seq;
        let work = counts.iter().map(|count| {
            let StepCount { channel, peer, sending, signatures, steps } = *count;
            // The connections of collectives come first, and those of messages follow.
            let id = ConnectionId { peer, index: channel };
            (id, sending, Steps { seq, signatures, protocol, steps })
        });
        Ok(ProxyWork { steps: work.collect(), ..ProxyWork::default() })
    }

    /// The work of sends and receives; `seq` is the number of the last collective. `parents` are the events of the transfers'
    /// messages, or none.
    pub(in crate::comm) fn p2p(
        &self,
        control: &ControlBlock,
        transfers: &[Transfer],
        parents: &[Parent],
        seq: u64,
    ) -> ProxyWork {
        let work = transfers.iter().enumerate().filter_map(|(i, transfer)| {
            let sending = transfer.kind == TransferKind::Send as u32;
            let (channel, peer) = control.p2p_of(transfer.conn)?;
            if !self.is_remote(peer) {
                return None;
            }
            let protocol = protocol_of(transfer.protocol);
            let slot = self.slot_bytes[protocol.index()] as usize;
            let capacity = match protocol {
                ProtocolId::Simple => <Simple as Protocol>::capacity(slot),
                ProtocolId::Ll => <Ll as Protocol>::capacity(slot),
                ProtocolId::Ll128 => <Ll128 as Protocol>::capacity(slot),
                // The kernel of sends and receives knows none of another crate.
                ProtocolId::Own(_) => return None,
            };
            let steps = transfer.bytes.div_ceil(capacity.max(1) as u64);
            let id = ConnectionId { peer, index: self.channels + channel };
            let steps = Steps { seq, signatures: 1, protocol, steps };
            Some(((id, sending, steps), parents.get(i).copied().unwrap_or_default()))
        });
        let (steps, events) = work.unzip();
        ProxyWork { steps, events, ..ProxyWork::default() }
    }
}

fn protocol_of(raw: u32) -> ProtocolId {
    ProtocolId::from_index(raw.into()).unwrap_or(ProtocolId::Simple)
}
