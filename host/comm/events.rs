//! What a profiler is told of a communicator's calls ([`crate::profiler`]): from the call of the API to its kernels. What the proxy does
//! for them is in `net/events`.

use std::sync::{Arc, Mutex, PoisonError};

use super::group::AnyTask;
use super::recorder::FlightRecorder;
use super::shared::SharedComm;
use super::state::CommState;
use crate::buffer::Stream;
use crate::profiler::{Happened, Parent, Parents, Profiler, ProfilerEvent, State, now, wanted};
use crate::runtime::LaunchObserver;

impl CommState {
    /// Tells a profiler of something, if there is one that wants to know it.
    pub(super) fn tell(
        &self,
        happened: impl FnOnce() -> Happened,
        parents: Parents,
    ) -> Option<ProfilerEvent> {
        self.profiler.as_ref()?.start(happened(), parents)
    }

    /// A group begins with this communicator's call. `depth` is 1 for the group that a call by itself is.
    pub(super) fn tell_group(&self, depth: i32, stream: &Stream) -> Option<ProfilerEvent> {
        let captured = || stream.ops().capture_id().is_some();
        let event =
            self.tell(|| Happened::GroupApi { captured: captured(), depth }, Parents::default())?;
        event.record(State::GroupStartStop, 0);
        Some(event)
    }

    /// A call is made in a group.
    pub(super) fn tell_call(
        &self,
        task: &mut AnyTask,
        group: Option<&ProfilerEvent>,
        stream: &Stream,
    ) {
        let Some(profiler) = &self.profiler else { return };
        let captured = stream.ops().capture_id().is_some();
        let group_api = group.map(ProfilerEvent::parent).unwrap_or_default();
        let stream = stream.identity();
        let (happened, parents) = match task {
            AnyTask::Coll(task) => {
                let call = &task.call;
                let (collective, count) = (call.collective, call.count);
                let (data_type, root) = (call.data_type, call.root);
                let happened =
                    Happened::CollApi { collective, count, data_type, root, stream, captured };
                (happened, &mut task.parents)
            }
            AnyTask::P2p(task) => {
                let (sending, data_type) = (task.sending, task.data_type);
                let count = task.bytes / data_type.size();
                let happened = Happened::P2pApi { sending, count, data_type, stream, captured };
                (happened, &mut task.parents)
            }
        };
        parents.group_api = group_api;
        // It ends here: the call is taken.
        let event = profiler.start(happened, *parents);
        parents.api = event.as_ref().map(ProfilerEvent::parent).unwrap_or_default();
    }
}

/// The events of a kernel, one for each channel. All begin and end with the launch: kernels do not tell when a block of theirs does.
pub(super) struct KernelEvents {
    profiler: Profiler,
    recorder: Arc<FlightRecorder>,
    /// The channels, each with the event of its call.
    channels: Vec<(u32, Parent)>,
    /// When it was launched.
    launched: u64,
    begun: Mutex<Vec<ProfilerEvent>>,
}

impl KernelEvents {
    /// Of a launch, if a profiler wants them.
    pub(super) fn new(
        comm: &SharedComm,
        channels: impl Iterator<Item = (u32, Parent)>,
    ) -> Option<Arc<Self>> {
        let profiler = comm.profiler.clone().filter(|profiler| profiler.wants(wanted::KERNEL))?;
        Some(Arc::new(KernelEvents {
            profiler,
            recorder: Arc::clone(&comm.recorder),
            channels: channels.collect(),
            launched: now(),
            begun: Mutex::default(),
        }))
    }

    /// Who is told when the launch begins.
    pub(super) fn observer(
        events: Option<&Arc<Self>>,
        comm: &SharedComm,
    ) -> Arc<dyn LaunchObserver> {
        match events {
            Some(events) => Arc::clone(events) as Arc<dyn LaunchObserver>,
            None => Arc::clone(&comm.recorder) as Arc<dyn LaunchObserver>,
        }
    }

    fn begin(&self, timer: u64) -> Vec<ProfilerEvent> {
        let begin = |&(channel, parent): &(u32, Parent)| {
            self.profiler.start(Happened::Kernel { channel, timer }, parent.into())
        };
        self.channels.iter().filter_map(begin).collect()
    }

    /// The launch has ended. Where nobody has told when it began, as on GPUs, that is when it was launched.
    pub(super) fn end(&self) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let mut events = std::mem::take(&mut *begun);
        drop(begun);
        if events.is_empty() {
            events = self.begin(self.launched);
        }
        let timer = now();
        events.iter().for_each(|event| event.record(State::KernelStop, timer));
    }
}

impl LaunchObserver for KernelEvents {
    fn on_started(&self, launch: u64, at_once: bool) {
        self.recorder.on_started(launch, at_once);
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = self.begin(now());
    }
}
