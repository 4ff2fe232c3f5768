//! What a profiler is told of the proxy's work for this rank: an operation for the steps that a call has on a connection, and each of
//! the steps.
//!
//! A connection takes the operations that it was given in their order, and the steps of each. What another rank sends for this one
//! (PXN) is not told.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferroccl_device::abi::ProtocolId;
use ferroccl_proxy::connection::{ConnectionId, StepEvent, StepObserver, Steps};

use crate::profiler::{Happened, Parent, Profiler, ProfilerEvent, State};

/// The events of all connections.
#[derive(Debug)]
pub(super) struct ProxyEvents {
    profiler: Profiler,
    channels: u32,
    slot_bytes: [u32; ProtocolId::MOST],
    connections: Shared,
}

type Shared = Arc<Mutex<BTreeMap<(ConnectionId, bool), Operations>>>;

/// Of a connection, the operations that have not ended.
#[derive(Debug, Default)]
struct Operations(VecDeque<Operation>);

/// The steps of a call. Without an event where the plugin does not want it.
#[derive(Debug)]
struct Operation {
    event: Option<ProfilerEvent>,
    steps: u64,
    begun: u64,
    arrived: u64,
    ended: u64,
    /// The next step to send, which waits for the kernel.
    next: Option<ProfilerEvent>,
    /// The steps from `ended` to `begun`.
    open: VecDeque<Option<ProfilerEvent>>,
}

impl ProxyEvents {
    pub(super) fn new(
        profiler: &Profiler,
        channels: u32,
        slot_bytes: [u32; ProtocolId::MOST],
    ) -> Self {
        let profiler = profiler.clone();
        ProxyEvents { profiler, channels, slot_bytes, connections: Shared::default() }
    }

    /// Is told by the proxy.
    pub(super) fn observer(&self) -> Box<dyn StepObserver> {
        Box::new(Observer(self.profiler.clone(), Arc::clone(&self.connections)))
    }

    /// The proxy is given the steps of a call whose event is `parent`.
    pub(super) fn add(&self, connection: (ConnectionId, bool), steps: Steps, parent: Parent) {
        // Ranks on other hosts compare calls also where they have no data for each other.
        if steps.steps == 0 {
            return;
        }
        let (ConnectionId { peer, index }, sending) = connection;
        let op = Happened::ProxyOp {
            channel: index % self.channels.max(1),
            peer,
            steps: steps.steps,
            chunk_bytes: self.slot_bytes[steps.protocol.index()],
            sending,
        };
        let event = self.profiler.start(op, parent.into());
        event.iter().for_each(|event| event.record(State::InProgress, 0));
        let mut connections = lock(&self.connections);
        let operations = connections.entry(connection).or_default();
        let (next, open) = (None, VecDeque::new());
        let (steps, begun, arrived, ended) = (steps.steps, 0, 0, 0);
        operations.0.push_back(Operation { event, steps, begun, arrived, ended, next, open });
        if sending {
            operations.await_next(&self.profiler);
        }
    }
}

struct Observer(Profiler, Shared);

impl StepObserver for Observer {
    fn on_steps(&mut self, key: ConnectionId, sending: bool, events: &[StepEvent]) {
        let Observer(profiler, connections) = self;
        let mut connections = lock(connections);
        let Some(operations) = connections.get_mut(&(key, sending)) else { return };
        for event in events {
            match event {
                StepEvent::Begun(bytes) => operations.begun(profiler, sending, *bytes as u64),
                StepEvent::Arrived(bytes) => operations.arrived(*bytes as u64),
                StepEvent::Ended => operations.ended(sending),
            }
        }
    }
}

impl Operations {
    /// The first operation that is not so far.
    fn first(&mut self, so_far: impl Fn(&Operation) -> u64) -> Option<&mut Operation> {
        self.0.iter_mut().find(|operation| so_far(operation) < operation.steps)
    }

    /// The next step to send waits for its data.
    fn await_next(&mut self, profiler: &Profiler) {
        if let Some(operation) = self.first(|operation| operation.begun)
            && operation.next.is_none()
        {
            operation.next = operation.step(profiler);
            operation.next.iter().for_each(|step| step.record(State::SendGpuWait, 0));
        }
    }

    fn begun(&mut self, profiler: &Profiler, sending: bool, bytes: u64) {
        let Some(operation) = self.first(|operation| operation.begun) else { return };
        let step = if sending { operation.next.take() } else { operation.step(profiler) };
        let state = if sending { State::SendWait } else { State::RecvWait };
        step.iter().for_each(|step| step.record(state, bytes));
        operation.open.push_back(step);
        operation.begun += 1;
        if sending {
            self.await_next(profiler);
        }
    }

    fn arrived(&mut self, bytes: u64) {
        let Some(operation) = self.first(|operation| operation.arrived) else { return };
        let at = (operation.arrived - operation.ended) as usize;
        if let Some(Some(step)) = operation.open.get(at) {
            step.record(State::RecvFlushWait, bytes);
        }
        operation.arrived += 1;
    }

    fn ended(&mut self, sending: bool) {
        let Some(operation) = self.first(|operation| operation.ended) else { return };
        if let Some(Some(step)) = operation.open.pop_front()
            && !sending
        {
            step.record(State::RecvGpuWait, 0);
        }
        operation.ended += 1;
        // Operations end in their order.
        let is_last = operation.ended == operation.steps;
        if is_last {
            self.0.pop_front();
        }
    }
}

impl Operation {
    /// The next step begins.
    fn step(&self, profiler: &Profiler) -> Option<ProfilerEvent> {
        let parent = self.event.as_ref()?.parent();
        profiler.start(Happened::ProxyStep { step: self.begun }, parent.into())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
