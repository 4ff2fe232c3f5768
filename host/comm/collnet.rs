//! All-reduce through a network that reduces.
//!
//! With `k` ranks on every node, rank `i` of each is the head of part `i` of the data:
//!
//! ```text
//! node 0:  reduce part i to its head ──┐                    ┌─► broadcast part i from its head
//! node 1:  reduce part i to its head ──┴─► the network ─────┴─► broadcast part i from its head
//! ```
//!
//! so that every rank sends to the network what is its share. Kernels do what is within a node; the proxy has the network
//! do the rest, and the stream waits for it. Source: NCCL's CollNetDirect, whose kernels hand over chunk by chunk; here it
//! is part by part.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ferroccl_device::abi::{Algorithm, Collective, DataType, ReduceOp};
use ferroccl_proxy::collnet::{CollNet, CollNetComm, CollNetListener, CollNetRequest};
use ferroccl_proxy::{NetError, Operation, Progress};
use tracing::info;

use super::Inner;
use super::launch::{Part, Request, View};
use super::nodes::Nodes;
use crate::Result;
use crate::buffer::Stream;
use crate::enqueue::{self, Call, NetworkOps, Way};
use crate::log;
use crate::runtime::{Event, Memory};

/// A rank's way to a network that reduces; `exchange` tells all ranks a handle, and returns theirs. `None` for nodes
/// that go without.
pub(super) fn join(
    net: Option<&Arc<dyn CollNet>>,
    nodes: &Nodes,
    exchange: impl FnOnce(&Vec<u8>) -> Result<Vec<Vec<u8>>>,
) -> Result<Option<Heads>> {
    let Some(ready) = Ready::new(net, nodes)? else { return Ok(None) };
    let handles = exchange(&ready.listener.handle())?;
    ready.connect(nodes, &handles).map(Some)
}

/// [`join`] for all ranks of a process, in their order: each in a thread, as connecting may wait for the others.
pub(super) fn join_all(
    net: Option<&Arc<dyn CollNet>>,
    all: Vec<Nodes>,
) -> Result<Vec<Option<Heads>>> {
    let ready: Vec<Option<Ready>> =
        all.iter().map(|nodes| Ready::new(net, nodes)).collect::<Result<_>>()?;
    let handle = |ready: &Option<Ready>| ready.as_ref().map_or(vec![], |r| r.listener.handle());
    let handles: Vec<Vec<u8>> = ready.iter().map(handle).collect();
    let handles = &handles;
    std::thread::scope(|threads| {
        let threads: Vec<_> = ready
            .into_iter()
            .zip(&all)
            .map(|(ready, nodes)| {
                ready.map(|ready| threads.spawn(move || ready.connect(nodes, handles)))
            })
            .collect();
        let panicked = |_| Err(NetError::new("CollNet", "connect", "it panicked").into());
        let end = |thread: std::thread::ScopedJoinHandle<'_, Result<Heads>>| {
            thread.join().unwrap_or_else(panicked)
        };
        threads.into_iter().map(|thread| thread.map(end).transpose()).collect()
    })
}

/// A rank that is ready to join the heads of its part.
struct Ready {
    net: Arc<dyn CollNet>,
    listener: Box<dyn CollNetListener>,
}

/// A rank's way to the heads of its part on the other nodes.
pub(super) struct Heads {
    net: Arc<dyn CollNet>,
    comm: Arc<Mutex<Box<dyn CollNetComm>>>,
}

impl fmt::Debug for Heads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heads").field("net", &self.net).finish_non_exhaustive()
    }
}

impl Ready {
    /// For a communicator on several nodes that are alike; `None` for others.
    fn new(net: Option<&Arc<dyn CollNet>>, nodes: &Nodes) -> Result<Option<Self>> {
        let Some(net) = net.filter(|_| nodes.count() > 1 && nodes.alike()) else { return Ok(None) };
        let listener = net.listen()?;
        Ok(Some(Ready { net: Arc::clone(net), listener }))
    }

    /// Joins the other heads; `handles` are those of all ranks.
    fn connect(self, nodes: &Nodes, handles: &[Vec<u8>]) -> Result<Heads> {
        let heads = nodes.heads();
        let handles: Vec<Vec<u8>> =
            heads.iter().map(|rank| handles[*rank as usize].clone()).collect();
        let comm = self.listener.connect(&handles, nodes.node())?;
        info!(target: log::INIT, "CollNet {} : {} heads", self.net.name(), heads.len());
        Ok(Heads { net: self.net, comm: Arc::new(Mutex::new(comm)) })
    }
}

/// What the network does for an operator, after the ranks of a node have done theirs; `None` where that leaves something
/// to do.
fn on_the_network(data_type: DataType, op: ReduceOp) -> Option<(ReduceOp, ReduceOp)> {
    match op {
        // What divides does so at the very end.
        ReduceOp::Avg if !data_type.is_float() => None,
        op if op.scales() => Some((op, ReduceOp::Sum)),
        op => Some((op, op)),
    }
}

impl Heads {
    /// The types and operators that go through the network.
    pub(super) fn ops(&self) -> NetworkOps {
        NetworkOps::new(|data_type, op| {
            on_the_network(data_type, op)
                .is_some_and(|(_, op)| self.net.reduce_support(data_type, op))
        })
    }
}

impl Inner {
    /// Part by part to its head, through the network, and back to all.
    pub(super) fn collnet(
        self: &Arc<Self>,
        seq: u64,
        request: &Request,
        way: Way,
        heads: &Heads,
        stream: &Stream,
    ) -> Result<()> {
        let Request { call, input, output, scalar, .. } = request;
        let ring = Way { algorithm: Algorithm::Ring, ..way };
        let (within, between) =
            on_the_network(call.data_type, call.op).unwrap_or((call.op, call.op));
        let parts = parts(call.count, self.nodes.locals());
        let at = |address: u64, from: usize| address + (from * call.data_type.size()) as u64;
        let kernel = |collective, op, root: usize, from: u64| {
            let (first, count) = parts[root];
            let step = Call { collective, op, count, root: Some(root as u32), ..*call };
            let plan = enqueue::plan(&step, ring, seq)?;
            let (input, output) = (at(from, first), at(*output, first));
            let part = Part { view: View::Node, input, output, scalar: *scalar };
            self.put(&plan, &step, part, request.keep.clone(), stream)
        };
        for root in 0..parts.len() {
            kernel(Collective::Reduce, within, root, *input)?;
        }
        if let Some((first, count)) = parts.get(self.nodes.local() as usize) {
            let event = Event::new();
            let operation = NetworkReduce {
                inner: Arc::clone(self),
                comm: Arc::clone(&heads.comm),
                address: at(*output, *first),
                count: *count,
                data_type: call.data_type,
                op: between,
                request: None,
                deadline: None,
                event: Some(event.clone()),
                _keep: request.keep.clone(),
            };
            // In stream order: what the kernels have reduced is there.
            stream.ops().host_function(Box::new(move || operation.start()));
            stream.ops().wait(&event);
        }
        for root in 0..parts.len() {
            kernel(Collective::Broadcast, ReduceOp::Sum, root, *output)?;
        }
        Ok(())
    }
}

/// Where the part of each head begins, and its elements; heads for which nothing is left have none.
fn parts(count: usize, heads: u32) -> Vec<(usize, usize)> {
    let each = count.div_ceil(heads.max(1) as usize).max(1);
    (0..count).step_by(each).map(|first| (first, each.min(count - first))).collect()
}

/// A part's way through the network.
struct NetworkReduce {
    inner: Arc<Inner>,
    comm: Arc<Mutex<Box<dyn CollNetComm>>>,
    address: u64,
    count: usize,
    data_type: DataType,
    op: ReduceOp,
    /// Before `_keep`, to be dropped first.
    request: Option<Box<dyn CollNetRequest>>,
    /// When it has taken too long.
    deadline: Option<Instant>,
    /// What the stream waits for, until it has happened.
    event: Option<Event>,
    _keep: [Option<Arc<dyn Memory>>; 3],
}

impl NetworkReduce {
    fn start(mut self) {
        self.deadline = self.inner.control.timeout().and_then(|t| Instant::now().checked_add(t));
        let inner = Arc::clone(&self.inner);
        if let Err(error) = inner.device.runtime().operate(Box::new(self)) {
            inner.broken(&error);
        }
    }

    /// As far as it can be done now.
    fn step(&mut self) -> Result<Progress> {
        // No kernel of ours may be running that would see what a peer has left.
        if let Some(failure) = self.inner.failure().or_else(|| self.inner.left()) {
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
                let mut comm = self.comm.lock().unwrap_or_else(PoisonError::into_inner);
                // SAFETY: `count` elements of the call's output, which is kept. Our stream waits for the event and
                // other streams' kernels come after it, and no other rank's kernel writes here before our broadcasts
                // have begun.
                self.request =
                    unsafe { comm.iallreduce(at, at, self.count, self.data_type, self.op)? };
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

impl Operation for NetworkReduce {
    fn progress(&mut self) -> Progress {
        let progress = match self.step() {
            Ok(Progress::Done) => {
                self.end(Ok(()));
                Progress::Done
            }
            Ok(progress) => progress,
            Err(error) => {
                self.inner.broken(&error);
                self.end(Err(error));
                Progress::Done
            }
        };
        debug_assert!(progress != Progress::Done || self.event.is_none());
        progress
    }
}

impl Drop for NetworkReduce {
    /// Where it is not over, it panicked or cannot go on: nobody may wait for ever.
    fn drop(&mut self) {
        if self.event.is_some() {
            let error = self.inner.failure().unwrap_or_else(|| {
                NetError::new("CollNet", "iallreduce", "given up before its end").into()
            });
            self.inner.broken(&error);
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
