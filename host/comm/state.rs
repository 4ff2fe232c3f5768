//! What one rank of a communicator has, and the order of its calls.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::abort::AbortHandle;
use super::affinity::ProxyCores;
use super::calling_threads::CallingThreads;
use super::collnet_heads::CollnetHeads;
use super::config::CommConfig;
use super::control::ControlBlock;
use super::device_memory::MemoryCount;
use super::grow::Growth;
use super::last_choices::{ChosenPlan, LastChoices};
use super::mesh::MeshTables;
use super::net::NetConnections;
use super::nodes::Nodes;
use super::out_of_band::OutOfBand;
use super::preload::Preloaded;
use super::recorder::FlightRecorder;
use super::shared::SharedComm;
use super::stall::Reports;
use super::trees::Trees;
use super::window::Windows;
use crate::buffer::{Device, Stream};
use crate::channel::{ConnLayout, Edges};
use crate::enqueue::{self, CollectiveCall, PlanContext, Registration};
use crate::error::{Error, Result};
use crate::flight_recorder::DumpFile;
use crate::fork::Maker;
use crate::log;
use crate::profiler::Profiler;
use crate::runtime::{Event, Keep, Memory};
use crate::tuner_plugin::TunerPlugin;
use ferroccl_bootstrap::MeetingPlace;
use ferroccl_device::abi::{Algorithm, ProtocolId};
use tracing::debug;

/// One rank of a group. Calls may be made from any thread. They are numbered in the order in which they are made, and every
/// rank must make the same calls in the same order.
///
/// Dropping it leaves the group, once its calls have ended. A peer that then makes another call gets an error.
///
/// A process that forks has a copy in its child, where every call is an error, and dropping it does nothing. The child has
/// none of its parent's threads either: it makes a [`Device`] of its own, or runs another program.
#[derive(Debug)]
pub struct Communicator(pub(super) SharedComm);

/// One rank of a communicator (NCCL's `ncclComm`). Launches keep it alive until their kernels have ended.
#[derive(Debug)]
pub(super) struct CommState {
    /// The process that it is of. A fork has a copy, which it must leave alone.
    pub maker: Maker,
    /// Keeps the proxy thread near the GPU.
    pub _proxy_cores: ProxyCores,
    /// A random number that all ranks of the communicator have, and no other communicator has.
    pub group: u64,
    pub rank: u32,
    pub nranks: u32,
    pub device: Device,
    /// Counts what the communicator has allocated on it.
    pub memory: MemoryCount,
    /// The settings, which communicators that are split off take over.
    pub config: CommConfig,
    pub plan_context: PlanContext,
    /// Who calls for the ranks, where that matters to the choice.
    pub calling_threads: Option<Arc<CallingThreads>>,
    pub nodes: Nodes,
    pub trees: Trees,
    /// The mesh, where all ranks reach each other's memory.
    pub mesh: Option<MeshTables>,
    /// The buffers that are registered.
    pub windows: Windows,
    /// The connections with ranks on other hosts.
    pub net: Option<Arc<NetConnections>>,
    /// The connection with a network that reduces.
    pub collnet: Option<CollnetHeads>,
    /// The registrations of `edges` and `control` with the runtime. Declared before them, to be dropped first.
    pub _registered: Vec<Keep>,
    pub _scratch: Arc<dyn Memory>,
    /// Address of the element that barriers reduce.
    pub barrier_buffer: u64,
    /// Of each connection.
    pub layout: ConnLayout,
    /// The edges with every other rank.
    pub edges: Vec<Edges>,
    pub control: ControlBlock,
    pub order: Mutex<CallOrder>,
    /// The number of the last collective call. Written with `order` locked, and read without it by what reports failures: a
    /// launch may hold the lock for as long as kernels wait for a rank that is gone.
    pub seq: AtomicU64,
    /// The error behind a fault that says only that a peer is lost or that this rank has stopped.
    pub cause: OnceLock<Error>,
    /// Whether the communicator has failed or was aborted: ends waits of the host.
    pub failed: Arc<AtomicBool>,
    /// Whether the other ranks have been told out of band that the communicator has failed.
    pub peers_told: AtomicBool,
    /// Where the last calls are written when the communicator fails.
    pub dump: Option<DumpFile>,
    /// The last calls.
    pub recorder: Arc<FlightRecorder>,
    /// How far other ranks are, as they have said.
    pub reports: Reports,
    /// The handle that can abort this communicator.
    pub abort: AbortHandle,
    /// The connection with the other ranks beside the kernels' data; empty where there are no other ranks.
    pub out_of_band: OnceLock<OutOfBand>,
    /// Where the ranks that are left meet after a failure; empty after `init_all` and in a group of one.
    pub meeting_place: OnceLock<Arc<MeetingPlace>>,
    /// What this rank has made an id of for new ranks.
    pub growth: Mutex<Option<Growth>>,
    /// Held during a split, a shrink, a growth and a registration.
    pub split_lock: Mutex<()>,
    /// How many ranks have this rank's device, itself among them.
    pub ranks_on_device: u32,
    /// The most blocks of a launch of sends and receives.
    pub p2p_blocks: u32,
    /// The kinds of calls whose kernels are loaded.
    pub preloaded: Preloaded,
    /// The plugin that chooses how calls are done, and the one that is told of them.
    pub tuner_plugin: Option<TunerPlugin>,
    pub profiler: Option<Profiler>,
}

/// The order of a communicator's calls. The lock on it is held while a call is launched, so that calls are numbered in
/// stream order.
#[derive(Debug, Default)]
pub(super) struct CallOrder {
    /// The stream of the last call.
    pub stream: Option<Stream>,
    /// The communicator's own streams, for calls of a group that run beside the user's stream.
    side_streams: Vec<Stream>,
    /// How the last calls were done.
    choices: LastChoices,
    /// How calls are planned now that the ranks are called by threads of their own.
    apart: Option<Box<PlanContext>>,
    /// Whether there can be no more calls.
    pub finalized: bool,
}

impl CommState {
    /// The order of calls, for the next one.
    ///
    /// # Errors
    /// [`Error::Aborted`] after a failure, [`Error::Revoked`] when it was revoked, [`Error::InvalidArgument`] after [`CommState::finalize`] and in a fork.
    pub(super) fn lock_order(&self) -> Result<MutexGuard<'_, CallOrder>> {
        self.check_maker()?;
        let order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        match self.failure() {
            Some(revoked @ Error::Revoked { .. }) => Err(revoked),
            Some(cause) => Err(Error::Aborted { rank: self.rank, cause: cause.to_string() }),
            None if order.finalized => Err(Error::argument(
                "self",
                "the communicator is finalized: it makes no more calls",
            )),
            None => Ok(order),
        }
    }

    /// That this is the process that has made the communicator.
    pub(super) fn check_maker(&self) -> Result<()> {
        if self.maker.is_here() { Ok(()) } else { Err(self.maker.elsewhere()) }
    }

    /// The number of the last collective call.
    pub(super) fn last_seq(&self) -> u64 {
        // Relaxed: it publishes nothing. Who launches holds the lock on the order.
        self.seq.load(Ordering::Relaxed)
    }

    /// How a call is done: by the tuner's plugin, where there is one.
    pub(super) fn choose(
        &self,
        call: &CollectiveCall,
        buffers: Registration,
    ) -> Result<Arc<ChosenPlan>> {
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        self.choose_in_order(&mut order, call, buffers)
    }

    /// The same by who has locked the order.
    pub(super) fn choose_in_order(
        &self,
        order: &mut CallOrder,
        call: &CollectiveCall,
        buffers: Registration,
    ) -> Result<Arc<ChosenPlan>> {
        let CallOrder { choices, apart, .. } = order;
        let context = apart.as_deref().unwrap_or(&self.plan_context);
        let planned = |choice| ChosenPlan::new(&context.registry, call, choice);
        match &self.tuner_plugin {
            // One rank copies, and there is nothing to choose.
            Some(plugin) if self.nranks > 1 => {
                plugin.choose(call, context, buffers).map(planned).map(Arc::new)
            }
            _ => {
                choices.get(call, buffers, || Ok(planned(enqueue::choose(call, context, buffers)?)))
            }
        }
    }

    /// What the tuning model says that a call takes, done so.
    pub(super) fn predict(&self, call: &CollectiveCall, done: (Algorithm, ProtocolId)) -> Duration {
        let order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let context = order.apart.as_deref().unwrap_or(&self.plan_context);
        context.tuner.time(call.collective, call.largest_bytes(self.nranks), done)
    }

    /// Notes who calls, before the choice for the communicator's next call.
    #[inline]
    pub(super) fn note_caller(&self, order: &mut CallOrder) {
        let Some(threads) = &self.calling_threads else { return };
        if threads.are_apart(self.rank, self.last_seq() + 1) && order.apart.is_none() {
            self.plan_for_threads(order, threads);
        }
    }

    #[cold]
    fn plan_for_threads(&self, order: &mut CallOrder, threads: &CallingThreads) {
        let Some(tuner) = threads.tuner() else { return };
        debug!(target: log::TUNING, rank = self.rank, from = self.last_seq() + 1,
               "the ranks are called by threads of their own");
        let tuner = tuner.clone().with_messages_of(&self.plan_context.tuner);
        let context = PlanContext { tuner, ..self.plan_context.clone() };
        (order.apart, order.choices) = (Some(Box::new(context)), LastChoices::default());
    }

    /// See [`Communicator::finalize`](super::Communicator::finalize).
    pub(super) fn finalize(&self) -> Result<()> {
        self.check_maker()?;
        self.order.lock().unwrap_or_else(PoisonError::into_inner).finalized = true;
        self.wait_for_calls()?;
        if let Some(net) = &self.net {
            net.drain(self, None);
        }
        self.failure().map_or(Ok(()), Err)
    }

    /// Waits until the calls that this rank has made have ended.
    ///
    /// # Errors
    /// What has gone wrong in the last of them.
    pub(super) fn wait_for_calls(&self) -> Result<()> {
        let last = self.order.lock().unwrap_or_else(PoisonError::into_inner).stream.clone();
        if let Some(last) = last {
            // Waits in a stream of its own: an error of the user's stream stays there.
            let (end, own) = (Event::new(), self.device.stream()?);
            last.ops().record(&end, false);
            own.ops().wait(&end);
            own.synchronize()?;
        }
        Ok(())
    }
}

impl CallOrder {
    /// The communicator's own stream number `index`, made when it is first needed.
    pub(super) fn side_stream(&mut self, index: usize, device: &Device) -> Result<Stream> {
        while self.side_streams.len() <= index {
            self.side_streams.push(device.stream()?);
        }
        Ok(self.side_streams[index].clone())
    }

    /// Has `stream` wait for the call before, if that went into another stream.
    pub(super) fn continue_on(&mut self, stream: &Stream) {
        // Calls that are captured in a graph run at the graph's launch, which the user orders.
        if let Some(last) = &self.stream
            && !last.is(stream)
            && last.is_captured_with(stream)
        {
            let event = Event::new();
            last.ops().record(&event, false);
            stream.ops().wait(&event);
        }
        self.set_last(stream);
    }

    /// Notes `stream` as the stream of the last call.
    pub(super) fn set_last(&mut self, stream: &Stream) {
        if self.stream.as_ref().is_none_or(|last| !last.is(stream)) {
            self.stream = Some(stream.clone());
        }
    }
}
