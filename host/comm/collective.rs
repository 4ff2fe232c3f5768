//! From a checked call of a collective to its kernels.
//!
//! ```text
//! CollTask ─► choose ─┬─► one kernel over all ranks                                      ─┐
//!                     ├─► hierarchical: a kernel in the node, among leaders, in the node ─┼─► plan ─► launch
//!                     └─► collnet: kernels in the node, before and after the network     ─┘
//! ```
//!
//! All ranks choose the same, because the choice depends only on the call and on what the ranks have agreed on.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ferroccl_device::abi::{Algorithm, Collective, ReduceOp};
use ferroccl_device::kernels::Kernel;

use super::collnet;
use super::custom::CustomKernel;
use super::last_choices::ChosenPlan;
use super::launch::{KeepAlive, KernelOperands, launch_kernel};
use super::preload;
use super::recorder::RecordId;
use super::shared::SharedComm;
use super::state::{CallOrder, CommState};
use super::window::WindowPlaces;
use crate::buffer::Stream;
use crate::enqueue::{self, AlgoChoice, CollectiveCall, Registration};
use crate::error::Result;
use crate::profiler::{Happened, Parents, ProfilerEvent};
use crate::registry::Registry;

/// Threads of a warp.
const WARP: u32 = 32;

/// A call of a collective whose arguments have been checked (NCCL's `ncclTaskColl`).
pub(super) struct CollTask {
    pub call: CollectiveCall,
    /// Address of the buffer that is read.
    pub input: u64,
    /// Address of the buffer that is written.
    pub output: u64,
    /// The operator's scalar, and whether it is the scalar's address instead.
    pub scalar: (u64, bool),
    /// A kernel of the caller's.
    pub custom: Option<Box<CustomKernel>>,
    /// The memory at the addresses.
    pub keep: KeepAlive,
    /// The events that it belongs to.
    pub parents: Parents,
    /// How a tuner's plugin wants it done, for buffers that are registered so.
    pub chosen: OnceCell<Box<(Registration, Arc<ChosenPlan>)>>,
}

/// The ranks that a kernel runs over; the value is the index of their tables in the control block.
#[derive(Clone, Copy)]
pub(super) enum Subgroup {
    /// All ranks, in the orders of the channels' rings.
    World = 0,
    /// All ranks, in their own order.
    InRankOrder = 1,
    Node = 2,
    Leaders = 3,
}

impl CollTask {
    /// Puts the kernels of the call into the stream, as the communicator's next call: once. The caller has locked the order.
    pub(super) fn launch(
        &mut self,
        comm: &SharedComm,
        order: &mut CallOrder,
        stream: &Stream,
    ) -> Result<()> {
        if !self.is_done(comm) {
            self.preload(comm);
        }
        comm.note_caller(order);
        let (chosen, places) =
            self.choose_by(comm, |call, buffers| comm.choose_in_order(order, call, buffers))?;
        let (choice, seq) = (chosen.choice, comm.last_seq() + 1);
        // It ends when all is launched.
        let event = comm.tell(|| self.happened(seq, choice), self.parents);
        self.parents.api = event.as_ref().map(ProfilerEvent::parent).unwrap_or_default();
        let mut signature = chosen.signature(&self.call, seq);
        if let Some(custom) = &self.custom {
            signature.set_tag(custom.tag);
        }
        let record = comm.recorder.enter(&signature, stream.identity());
        let id = (seq, record);
        let launched = match (choice.algorithm, &comm.collnet) {
            _ if self.is_done(comm) => {
                // Calls before it in the stream may not have ended: those are the last to be known.
                comm.recorder.end(record, None);
                Ok(())
            }
            (Algorithm::CollnetDirect, Some(heads)) => {
                collnet::all_reduce(heads, comm, id, self, choice, stream)
            }
            (Algorithm::Hierarchical, _) => self.hierarchical(comm, id, choice, stream),
            _ => self.flat(comm, id, (&chosen, places), stream),
        };
        match launched {
            Ok(()) => comm.seq.store(seq, Ordering::Relaxed), // as `last_seq`
            Err(_) => comm.recorder.cancel(record),
        }
        launched
    }

    /// The algorithm, protocol, channels and threads of the call, with its plan; and for a direct one, where its buffers are.
    fn choose(&self, comm: &CommState) -> Result<(Arc<ChosenPlan>, Option<WindowPlaces>)> {
        self.choose_by(comm, |call, buffers| comm.choose(call, buffers))
    }

    /// The same by this function, where the call's buffers matter.
    fn choose_by(
        &self,
        comm: &CommState,
        choose: impl FnOnce(&CollectiveCall, Registration) -> Result<Arc<ChosenPlan>>,
    ) -> Result<(Arc<ChosenPlan>, Option<WindowPlaces>)> {
        if let Some(custom) = &self.custom {
            return Ok((Arc::new(ChosenPlan::of_custom(custom.choice)), None));
        }
        let places = comm.windows.places(&self.call, (self.input, self.output));
        let registration = places.as_ref().map_or(Registration::None, WindowPlaces::registration);
        let chosen = match self.chosen.get().map(Box::as_ref) {
            Some((before, chosen)) if *before == registration => Arc::clone(chosen),
            _ => choose(&self.call, registration)?,
        };
        if comm.tuner_plugin.is_some() {
            // It is asked once for a call.
            let _ = self.chosen.set(Box::new((registration, Arc::clone(&chosen))));
        }
        let is_on_windows = chosen.choice.algorithm.is_on_windows();
        Ok((chosen, places.filter(|_| is_on_windows)))
    }

    /// What the tuning model predicts.
    pub(super) fn time(&self, comm: &CommState) -> Result<Duration> {
        if self.is_done(comm) {
            return Ok(Duration::ZERO);
        }
        let choice = self.choose(comm)?.0.choice;
        Ok(comm.predict(&self.call, (choice.algorithm, choice.protocol)))
    }

    /// What a profiler is told of the launch.
    fn happened(&self, seq: u64, choice: AlgoChoice) -> Happened {
        let CollectiveCall { collective, count, data_type, root, .. } = self.call;
        let AlgoChoice { algorithm, protocol, channels, threads } = choice;
        Happened::Coll {
            seq,
            collective,
            send: self.input,
            recv: self.output,
            count,
            root,
            data_type,
            channels,
            warps: threads.div_ceil(WARP),
            algorithm,
            protocol,
        }
    }

    /// Whether a kernel does the call; an all-to-all is a group of sends and receives otherwise.
    pub(super) fn has_kernel(&self, comm: &CommState) -> bool {
        self.choose(comm).is_ok()
    }

    /// Whether the result is there before the call: one rank's, in place, or of nothing. Nothing is launched then, as with NCCL.
    fn is_done(&self, comm: &CommState) -> bool {
        let multiplies = self.call.op == ReduceOp::PreMulSum && self.call.count > 0;
        let in_place = self.input == self.output || self.call.count == 0;
        comm.nranks == 1 && in_place && !multiplies && self.custom.is_none()
    }

    /// Loads the call's kernels where that is to be done before any call of a group is launched.
    ///
    /// # Errors
    /// The errors of the call that are known before its launch.
    pub(super) fn prepare(&self, comm: &CommState) -> Result<()> {
        let runtime = comm.device.runtime();
        if !runtime.loads_kernels() || self.is_done(comm) {
            return Ok(());
        }
        self.preload(comm);
        let choice = self.choose(comm)?.0.choice;
        let kernels = match &self.custom {
            Some(custom) => vec![custom.kernel],
            None => kernels_of(&comm.plan_context.registry, &self.call, choice)?,
        };
        kernels.iter().try_for_each(|kernel| runtime.prepare(kernel, choice.threads))
    }

    /// Loads what calls like this one may take.
    fn preload(&self, comm: &CommState) {
        if self.custom.is_none() {
            preload::preload(comm, &self.call);
        }
    }

    /// One kernel over all ranks.
    fn flat(
        &mut self,
        comm: &SharedComm,
        (seq, record): (u64, RecordId),
        (chosen, places): (&ChosenPlan, Option<WindowPlaces>),
        stream: &Stream,
    ) -> Result<()> {
        let choice = chosen.choice;
        let CollTask { ref call, input, output, scalar, parents, .. } = *self;
        let (mut planned, mut scratch) = (None, None);
        let plan = match (self.custom.take(), &chosen.kernel) {
            (Some(custom), _) => {
                let mut plan = enqueue::plan_of(custom.kernel, call, choice, seq);
                plan.signature.set_tag(custom.tag);
                plan.tree &= custom.word.is_none() && custom.scratch.is_none();
                plan.mode = custom.word.unwrap_or(plan.mode);
                scratch = custom.scratch.map(|memory| (custom.scratch_address, memory));
                &*planned.insert(plan)
            }
            (None, Some(plan)) => plan,
            // The reason why there is none.
            (None, None) => {
                planned.insert(enqueue::plan(&comm.plan_context.registry, call, choice, seq)?)
            }
        };
        // A chain combines the ranks' values in their order. What goes over the mesh, or is direct, does so by itself. It compares calls with
        // the same neighbours as what else may run: which of them does depends on the size, in which calls may differ by
        // mistake.
        let ordered = match choice.algorithm {
            algorithm if algorithm.is_over_mesh() => {
                comm.mesh.as_ref().is_some_and(|mesh| mesh.in_rank_order)
            }
            algorithm => algorithm == Algorithm::Chain,
        };
        let (group, last) = (if ordered { Subgroup::InRankOrder } else { Subgroup::World }, true);
        let operands =
            KernelOperands { group, input, output, scalar, places, scratch, record, last, parents };
        let keep = std::mem::take(&mut self.keep);
        launch_kernel(comm, (plan, seq), call, operands, keep, stream)
    }

    /// Three kernels, each a ring: in each node to its leader, among the leaders, in each node to all.
    fn hierarchical(
        &self,
        comm: &SharedComm,
        (seq, record): (u64, RecordId),
        choice: AlgoChoice,
        stream: &Stream,
    ) -> Result<()> {
        let &CollTask { ref call, input, output, scalar, ref keep, .. } = self;
        let ring = AlgoChoice { algorithm: Algorithm::Ring, ..choice };
        let registry = &comm.plan_context.registry;
        // All are planned before the first is launched: the others would wait for the rest of a call that was begun.
        let stages = hierarchical_stages(call)
            .into_iter()
            .filter(|(group, _)| !matches!(group, Subgroup::Leaders) || comm.nodes.is_leader())
            .map(|(group, step)| Ok((group, enqueue::plan(registry, &step, ring, seq)?)))
            .collect::<Result<Vec<_>>>()?;
        let last = stages.len() - 1;
        for (i, (group, plan)) in stages.into_iter().enumerate() {
            // The first stage reads the input, the others work in place.
            let input = if i == 0 { input } else { output };
            let last = i == last;
            let operands = KernelOperands {
                group,
                input,
                output,
                scalar,
                places: None,
                scratch: None,
                record,
                last,
                parents: self.parents,
            };
            launch_kernel(comm, (&plan, seq), call, operands, keep.clone(), stream)?;
        }
        Ok(())
    }
}

/// The kernels of a call.
pub(super) fn kernels_of(
    registry: &Registry,
    call: &CollectiveCall,
    choice: AlgoChoice,
) -> Result<Vec<Kernel>> {
    if choice.algorithm != Algorithm::Hierarchical {
        return Ok(vec![enqueue::plan(registry, call, choice, 0)?.kernel]);
    }
    let ring = AlgoChoice { algorithm: Algorithm::Ring, ..choice };
    let stages = hierarchical_stages(call).into_iter();
    stages.map(|(_, step)| Ok(enqueue::plan(registry, &step, ring, 0)?.kernel)).collect()
}

/// The stages of a hierarchical all-reduce: the ranks of each, and what they do.
fn hierarchical_stages(call: &CollectiveCall) -> [(Subgroup, CollectiveCall); 3] {
    // An operator that scales each rank's value has done so after the first stage. An average of integers divides in the
    // second stage, once.
    let divides = call.op == ReduceOp::Avg && !call.data_type.is_float();
    let (in_node, among_leaders) = match call.op {
        ReduceOp::Avg if divides => (ReduceOp::Sum, ReduceOp::Avg),
        op if op.scales() => (op, ReduceOp::Sum),
        op => (op, op),
    };
    let step = |collective, op, root| CollectiveCall { collective, op, root, ..*call };
    [
        (Subgroup::Node, step(Collective::Reduce, in_node, Some(0))),
        (Subgroup::Leaders, step(Collective::AllReduce, among_leaders, None)),
        (Subgroup::Node, step(Collective::Broadcast, ReduceOp::Sum, Some(0))),
    ]
}
