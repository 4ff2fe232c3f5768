//! From a request to kernels on a stream.

use std::sync::{Arc, MutexGuard, PoisonError};

use ferroccl_device::abi::{Algorithm, Collective, NO_RANK, ProtocolId, ReduceOp};
use ferroccl_device::kernels::Kernel;
use tracing::debug;

use super::net::Cargo;
use super::{Inner, Order};
use crate::buffer::Stream;
use crate::enqueue::{self, Call, Plan, Way};
use crate::log;
use crate::runtime::{Event, Launch, Memory};
use crate::{Error, Result};

/// A call of a collective, checked.
pub(super) struct Request {
    pub call: Call,
    /// Addresses.
    pub input: u64,
    pub output: u64,
    /// Its scalar, and whether that is an address.
    pub scalar: (u64, bool),
    /// A kernel of the caller's, and the protocol it runs.
    pub own: Option<(Kernel, ProtocolId)>,
    /// The memory of the addresses.
    pub keep: [Option<Arc<dyn Memory>>; 3],
}

/// The ring that a kernel goes around.
#[derive(Clone, Copy)]
pub(super) enum View {
    World = 0,
    Node = 1,
    Leaders = 2,
}

/// One kernel of a call.
pub(super) struct Part {
    pub view: View,
    pub input: u64,
    pub output: u64,
    pub scalar: (u64, bool),
}

impl Inner {
    /// The order of calls, or why there can be no more.
    pub(super) fn lock_order(&self) -> Result<MutexGuard<'_, Order>> {
        let order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        match self.failure() {
            Some(cause) => Err(Error::Aborted { rank: self.rank, cause: cause.to_string() }),
            None if order.finalized => Err(Error::argument(
                "self",
                "the communicator is finalized: it makes no more calls",
            )),
            None => Ok(order),
        }
    }

    /// Launches a collective in stream order.
    pub(super) fn call(self: &Arc<Self>, request: Request, stream: &Stream) -> Result<()> {
        let mut order = self.lock_order()?;
        order.go_on_with(stream);
        self.launch(&mut order, request, stream)
    }

    /// Launches a collective.
    pub(super) fn launch(
        self: &Arc<Self>,
        order: &mut Order,
        request: Request,
        stream: &Stream,
    ) -> Result<()> {
        let call = request.call;
        let mut way = self.way(&request)?;
        let seq = order.seq + 1;
        if let (Algorithm::CollnetDirect, Some(heads)) = (way.algorithm, &self.heads) {
            self.collnet(seq, &request, way, heads, stream)?;
        } else if way.algorithm == Algorithm::Hierarchical && self.nodes.count() > 1 {
            self.hierarchical(seq, &request, way, stream)?;
        } else {
            if way.algorithm == Algorithm::Hierarchical {
                way.algorithm = Algorithm::Ring;
            }
            let mut plan = enqueue::plan(&call, way, seq)?;
            if let Some((kernel, _)) = request.own {
                plan.kernel = kernel;
            }
            let Request { input, output, scalar, keep, .. } = request;
            let part = Part { view: View::World, input, output, scalar };
            self.put(&plan, &call, part, keep, stream)?;
        }
        order.seq = seq;
        Ok(())
    }

    /// How a call is done.
    fn way(&self, request: &Request) -> Result<Way> {
        let Some((_, protocol)) = request.own else {
            return Ok(enqueue::choose(&request.call, &self.shape)?);
        };
        let tuner = self.shape.tuner.only(protocol);
        let shape =
            enqueue::Shape { tuner, algorithm: Some(Algorithm::Ring), ..self.shape.clone() };
        Ok(enqueue::choose(&request.call, &shape)?)
    }

    /// Has the device make ready what a call will launch, where that is to be done before other calls wait for it.
    ///
    /// # Errors
    /// Those of the call that are known before it is launched.
    pub(super) fn prepare(&self, request: &Request) -> Result<()> {
        let runtime = self.device.runtime();
        if !runtime.loads_kernels() {
            return Ok(());
        }
        let call = request.call;
        let way = self.way(request)?;
        if way.algorithm != Algorithm::Hierarchical {
            let plan = enqueue::plan(&call, way, 0)?;
            let kernel = request.own.map_or(plan.kernel, |(kernel, _)| kernel);
            return runtime.prepare(&kernel, way.threads);
        }
        for (collective, _, op, root) in hierarchy(&call) {
            let step = Call { collective, op, root, ..call };
            let plan = enqueue::plan(&step, Way { algorithm: Algorithm::Ring, ..way }, 0)?;
            runtime.prepare(&plan.kernel, way.threads)?;
        }
        Ok(())
    }

    /// Within each node to its leader, among the leaders around a ring, and within each node to all.
    fn hierarchical(
        self: &Arc<Self>,
        seq: u64,
        request: &Request,
        way: Way,
        stream: &Stream,
    ) -> Result<()> {
        let Request { call, input, output, scalar, .. } = request;
        let ring = Way { algorithm: Algorithm::Ring, ..way };
        let steps = hierarchy(call)
            .into_iter()
            .filter(|(_, view, ..)| !matches!(view, View::Leaders) || self.nodes.is_leader());
        for (i, (collective, view, op, root)) in steps.enumerate() {
            // From then on in place.
            let input = if i == 0 { *input } else { *output };
            let step = Call { collective, op, root, ..*call };
            let plan = enqueue::plan(&step, ring, seq)?;
            let part = Part { view, input, output: *output, scalar: *scalar };
            self.put(&plan, call, part, request.keep.clone(), stream)?;
        }
        Ok(())
    }

    /// Puts one kernel into a stream.
    pub(super) fn put(
        self: &Arc<Self>,
        plan: &Plan,
        call: &Call,
        part: Part,
        keep: [Option<Arc<dyn Memory>>; 3],
        stream: &Stream,
    ) -> Result<()> {
        debug!(target: log::COLL, rank = self.rank, seq = plan.signature.seq, kernel = plan.kernel.name,
               count = call.count, channels = plan.way.channels, "{}", call.collective);
        let comm = self.control.comm_address(part.view as usize);
        let mut work = plan.work(comm, part.input, part.output, part.scalar);
        let mut table: Option<Arc<dyn Memory>> = None;
        if plan.tree {
            let links = self.trees.table(call.root.unwrap_or(NO_RANK), &**self.device.runtime())?;
            work.extra = links.address();
            table = Some(links);
        }
        // SAFETY: the kernel takes this argument, below.
        let cargo = unsafe {
            let how = (plan.blocks, plan.way.protocol);
            self.cargo(part.view as usize, &plan.kernel, &work, how, plan.tree)?
        };
        let done = Arc::clone(self);
        let launch = Launch {
            kernel: plan.kernel,
            blocks: plan.blocks,
            threads: plan.way.threads.min(plan.kernel.threads),
            sharing: self.sharing,
            work: Box::new(work),
            keep: Vec::new(),
            bytes: call.bytes() as u64,
            // Holds the buffers too: one allocation instead of three, which is felt at 8 bytes.
            done: Box::new(move |failure| {
                drop((keep, table));
                done.ended(failure)
            }),
        };
        // SAFETY: the kernel is of the table, or the caller vouches for it (`all_reduce_with`); the buffers
        // hold the call's elements, and buffers and communicator are kept until the launch has ended.
        unsafe { self.start(launch, cargo, stream) }
    }

    /// Launches a kernel with what it has for the proxies. A launch that the device refuses leaves the other ranks waiting
    /// for a call that never comes: they are told.
    ///
    /// # Safety
    /// As [`StreamOps::launch`](crate::runtime::StreamOps::launch).
    pub(super) unsafe fn start(
        self: &Arc<Self>,
        launch: Launch,
        cargo: Cargo,
        stream: &Stream,
    ) -> Result<()> {
        let ops = stream.ops();
        let captured = ops.capture_id().is_some();
        if captured {
            // A graph comes by here each time it runs.
            let inner = Arc::clone(self);
            ops.check_replays(Arc::new(move |failure| inner.ended(failure)));
            if !cargo.is_empty() {
                let (inner, cargo) = (Arc::clone(self), cargo.clone());
                ops.repeat(Arc::new(move || {
                    if let Err(error) = inner.carry(cargo.clone()) {
                        inner.broken(&error);
                    }
                }))?;
            }
        }
        // SAFETY: the caller's.
        let launched = unsafe { ops.launch(launch) };
        #[cfg(feature = "cuda")]
        if let Err(error @ Error::Cuda(_)) = &launched {
            self.broken(error);
        }
        launched?;
        if captured { Ok(()) } else { self.carry(cargo) }
    }

    /// A launch has ended; an error of this becomes its stream's.
    pub(super) fn ended(&self, failure: Option<&Error>) -> Result<()> {
        if let Some(error) = failure {
            self.broken(error);
        }
        self.find_cause();
        self.failure().map_or(Ok(()), |failure| {
            self.tell_peers();
            Err(failure)
        })
    }
}

/// The kernels of a hierarchical all-reduce, each a ring of its view.
fn hierarchy(call: &Call) -> [(Collective, View, ReduceOp, Option<u32>); 3] {
    // What scales a rank's own value has done so once it has been reduced; what divides does so at the end.
    let divides = call.op == ReduceOp::Avg && !call.data_type.is_float();
    let (first, then) = match call.op {
        ReduceOp::Avg if divides => (ReduceOp::Sum, ReduceOp::Avg),
        op if op.scales() => (op, ReduceOp::Sum),
        op => (op, op),
    };
    [
        (Collective::Reduce, View::Node, first, Some(0)),
        (Collective::AllReduce, View::Leaders, then, None),
        (Collective::Broadcast, View::Node, ReduceOp::Sum, Some(0)),
    ]
}

impl Order {
    /// A stream of our own, for what runs beside the user's.
    pub(super) fn beside(&mut self, which: usize, inner: &Inner) -> Result<Stream> {
        while self.beside.len() <= which {
            self.beside.push(inner.device.stream()?);
        }
        Ok(self.beside[which].clone())
    }

    /// What is launched next goes into `stream`, behind what was launched before, whatever stream that was.
    pub(super) fn go_on_with(&mut self, stream: &Stream) {
        // What is captured in a graph runs when that does, which is for its launch to order.
        if let Some(last) = &self.stream
            && !last.is(stream)
            && last.ops().capture_id() == stream.ops().capture_id()
        {
            let event = Event::new();
            last.ops().record(&event, false);
            stream.ops().wait(&event);
        }
        if self.stream.as_ref().is_none_or(|last| !last.is(stream)) {
            self.stream = Some(stream.clone());
        }
    }
}
