//! All-reduce through a network that reduces.
//!
//! With `k` ranks on every node, rank `i` of each is the head of part `i` of the data:
//!
//! ```text
//! node 0:  reduce part i to its head ──┐                    ┌─► broadcast part i from its head
//! node 1:  reduce part i to its head ──┴─► the network ─────┴─► broadcast part i from its head
//! ```
//!
//! Every rank exchanges one part with the network. Kernels reduce and broadcast within a node. The proxy has the network
//! reduce between nodes, and the stream waits for that. Source: NCCL's CollNetDirect, whose kernels hand over chunk by
//! chunk; here a whole part is handed over at once.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ferroccl_device::abi::{Algorithm, Collective, DataType, ReduceOp};
use ferroccl_proxy::collnet::{CollNetComm, CollNetRequest};
use ferroccl_proxy::{NetError, Operation, Progress};

use super::collective::{CollTask, Subgroup};
use super::collnet_heads::{CollnetHeads, on_the_network};
use super::launch::{KeepAlive, KernelOperands, launch_kernel};
use super::recorder::RecordId;
use super::shared::SharedComm;
use crate::buffer::Stream;
use crate::enqueue::{self, AlgoChoice, CollectiveCall};
use crate::error::Result;
use crate::runtime::Event;

/// Puts an all-reduce into the stream: in each node part by part to its head, through the network, and back to all.
pub(super) fn all_reduce(
    heads: &CollnetHeads,
    comm: &SharedComm,
    (seq, record): (u64, RecordId),
    task: &CollTask,
    choice: AlgoChoice,
    stream: &Stream,
) -> Result<()> {
    let CollTask { call, input, output, scalar, .. } = task;
    let ring = AlgoChoice { algorithm: Algorithm::Ring, ..choice };
    let (within, between) = on_the_network(call.data_type, call.op).unwrap_or((call.op, call.op));
    let parts = parts(call.count, comm.nodes.local_ranks());
    let at = |address: u64, from: usize| address + (from * call.data_type.size()) as u64;
    let kernel = |collective, op, root: usize, from: u64, last: bool| {
        let (first, count) = parts[root];
        let step = CollectiveCall { collective, op, count, root: Some(root as u32), ..*call };
        let plan = enqueue::plan(&comm.plan_context.registry, &step, ring, seq)?;
        let (input, output) = (at(from, first), at(*output, first));
        let (group, scalar) = (Subgroup::Node, *scalar);
        let (places, scratch) = (None, None);
        let operands = KernelOperands {
            group,
            input,
            output,
            scalar,
            places,
            scratch,
            record,
            last,
            parents: task.parents,
        };
        launch_kernel(comm, (&plan, seq), &step, operands, task.keep.clone(), stream)
    };
    for root in 0..parts.len() {
        kernel(Collective::Reduce, within, root, *input, false)?;
    }
    if let Some((first, count)) = parts.get(comm.nodes.local_rank() as usize) {
        let event = Event::new();
        let operation = CollnetReduceOp {
            comm: comm.clone(),
            conn: heads.conn(),
            address: at(*output, *first),
            count: *count,
            data_type: call.data_type,
            op: between,
            request: None,
            deadline: None,
            event: Some(event.clone()),
            _keep: task.keep.clone(),
        };
        // In stream order, so that the kernels have reduced the part.
        stream.ops().host_function(Box::new(move || operation.start()));
        stream.ops().wait(&event);
    }
    for root in 0..parts.len() {
        let last = root + 1 == parts.len();
        kernel(Collective::Broadcast, ReduceOp::Sum, root, *output, last)?;
    }
    if parts.is_empty() {
        comm.recorder.end(record, Some(seq));
    }
    Ok(())
}

/// For each head the first element of its part, and the number of elements. The last heads may have no part.
fn parts(count: usize, heads: u32) -> Vec<(usize, usize)> {
    let each = count.div_ceil(heads.max(1) as usize).max(1);
    (0..count).step_by(each).map(|first| (first, each.min(count - first))).collect()
}

/// A part's reduction by the network.
struct CollnetReduceOp {
    comm: SharedComm,
    conn: Arc<Mutex<Box<dyn CollNetComm>>>,
    address: u64,
    count: usize,
    data_type: DataType,
    op: ReduceOp,
    /// Before `_keep`, to be dropped first.
    request: Option<Box<dyn CollNetRequest>>,
    /// When it fails for having taken too long.
    deadline: Option<Instant>,
    /// The event that the stream waits for; `None` once it is complete.
    event: Option<Event>,
    _keep: KeepAlive,
}

impl CollnetReduceOp {
    fn start(mut self) {
        self.deadline = self.comm.control.timeout().and_then(|t| Instant::now().checked_add(t));
        let comm = self.comm.clone();
        if let Err(error) = comm.device.runtime().operate(Box::new(self)) {
            comm.on_launch_failed(&error);
        }
    }

    /// Does what can be done now.
    fn step(&mut self) -> Result<Progress> {
        // Looks at the edges itself, because none of our kernels may be running to see a peer's fault.
        if let Some(failure) = self.comm.failure().or_else(|| self.comm.peer_failure()) {
            return Err(failure);
        }
        match &mut self.request {
            Some(request) => {
                if request.test()? {
                    return Ok(Progress::Done);
                }
            }
            None => {
                let at: *mut u8 = std::ptr::with_exposed_provenance_mut(self.address as usize);
                let mut conn = self.conn.lock().unwrap_or_else(PoisonError::into_inner);
                // SAFETY: `count` elements of the call's output, which is kept. Our stream waits for the event and
                // other streams' kernels come after it, and no other rank's kernel writes here before our broadcasts
                // have begun.
                self.request =
                    unsafe { conn.iallreduce(at, at, self.count, self.data_type, self.op)? };
                if self.request.is_some() {
                    return Ok(Progress::Moved);
                }
            }
        }
        if self.deadline.is_some_and(|deadline| Instant::now() > deadline) {
            let reason = "the other nodes have not come within FERROCCL_TIMEOUT";
            return Err(NetError::new("CollNet", "iallreduce", reason).into());
        }
        Ok(Progress::Idle)
    }

    fn end(&mut self, result: Result<()>) {
        self.request = None;
        if let Some(event) = self.event.take() {
            event.complete(result);
        }
    }
}

impl Operation for CollnetReduceOp {
    fn progress(&mut self) -> Progress {
        let progress = match self.step() {
            Ok(Progress::Done) => {
                self.end(Ok(()));
                Progress::Done
            }
            Ok(progress) => progress,
            Err(error) => {
                self.comm.on_launch_failed(&error);
                self.end(Err(error));
                Progress::Done
            }
        };
        debug_assert!(progress != Progress::Done || self.event.is_none());
        progress
    }
}

impl Drop for CollnetReduceOp {
    /// An operation that is dropped before its end has panicked, or nobody runs it any more. The stream must not wait for it.
    fn drop(&mut self) {
        if self.event.is_some() {
            let error = self.comm.failure().unwrap_or_else(|| {
                NetError::new("CollNet", "iallreduce", "the operation was dropped before its end")
                    .into()
            });
            self.comm.on_launch_failed(&error);
            self.end(Err(error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::parts;

    #[test]
    fn parts_cover_all_elements() {
        for count in 0..40 {
            for heads in 1..9 {
                let parts = parts(count, heads);
                assert!(parts.len() <= heads as usize);
                let mut next = 0;
                for (first, n) in parts {
                    assert!(first == next && n > 0, "{count} elements, {heads} heads");
                    next += n;
                }
                assert_eq!(next, count);
            }
        }
    }
}
