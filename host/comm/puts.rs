//! Puts of users' kernels to ranks on other nodes: what a device communicator has for the network.
//!
//! ```text
//! Communicator::device_comm ─► PutsMemory: the words that kernels and the proxy talk by
//!                              all-gather of the listeners' handles ─► Puts (ferroccl_proxy)
//! PutsOp, on the proxy's thread ─► Puts::progress ─► a failure: CommState::on_net_broken (faults)
//! DeviceCommunicator dropped ─► close: tells the others that this rank sends nothing more
//! ```
//!
//! The operation is there for as long as the device communicator. It does not keep that, nor the communicator. A runtime that is not
//! driven drops operations when its kernels have ended, so each launch starts it again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ferroccl_device::abi::{DeviceComm, ProtocolId};
use ferroccl_proxy::net::{Listener, MemoryKind, Net};
use ferroccl_proxy::puts::{
    FindWindow, PutAccess, PutFailure, PutWindow, Puts, PutsConfig, StagedMemory,
};
use ferroccl_proxy::{Operation, Progress};
use tracing::debug;

use super::shared::{CommVisit, SharedComm, WeakComm};
use super::split::all_gather;
use super::state::CommState;
use super::window::WindowState;
use crate::buffer::Stream;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::log;
use crate::runtime::Keep;
use crate::transport::HostRegion;
use ferroccl_bootstrap::{Limit, Stop};

/// How long a broken connection waits before it is reported, so that the peer's own failure, or that it leaves, can arrive first.
const FAILURE_GRACE: Duration = Duration::from_millis(500);
/// How long dropping a device communicator takes at most, to tell the others: the process may end next.
const CLOSING_LIMIT: Duration = Duration::from_secs(1);
/// How long it sleeps when the others have to do something first.
const CLOSING_PAUSE: Duration = Duration::from_micros(50);
/// Steps that it takes at most where the others do nothing meanwhile.
const CLOSING_STEPS: u32 = 64;
/// Bytes of a piece of data at least, whatever the slots are.
const LEAST_PIECE: usize = 64;

/// The words that kernels and the proxy talk by.
#[derive(Debug)]
struct PutsMemory {
    /// Declared before the memory, to be dropped first.
    _registered: Keep,
    _region: HostRegion,
}

impl PutsMemory {
    /// The words of `value`, whose address it sets.
    fn new(comm: &SharedComm, value: &mut DeviceComm) -> Result<Self> {
        let bytes = value.network_words() * size_of::<u64>();
        let region = HostRegion::anonymous(bytes.next_multiple_of(4096))?;
        value.network = region.address();
        let (address, len) = (region.address(), region.len());
        let what = "the words of a device communicator's network";
        // SAFETY: the memory is kept for longer than what is returned, and touched by atomics.
        let registered = unsafe { comm.device.runtime().register(address, len, what)? };
        Ok(PutsMemory { _registered: registered, _region: region })
    }
}

/// The puts of a device communicator.
#[derive(Debug)]
pub(super) struct NetPuts {
    /// The network in errors, as `NET/Socket`.
    name: String,
    /// Declared before the memory, to be dropped first.
    state: Mutex<PutsState>,
    _memory: PutsMemory,
}

#[derive(Debug)]
struct PutsState {
    /// `None` when it is closed.
    puts: Option<Puts>,
    /// Whether there is an operation.
    running: bool,
    /// The first failure, and since when.
    failed: Option<Instant>,
}

/// What a rank's listener is.
struct Listening {
    net: Arc<dyn Net>,
    device: usize,
    listener: Box<dyn Listener>,
}

impl NetPuts {
    /// Makes the words of `value`, whose address it sets, and what moves data. All ranks call it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the reason where there is no network; as an all-gather; when the device does not reach the words.
    pub(super) fn new(comm: &SharedComm, value: &mut DeviceComm) -> Result<Arc<Self>> {
        // What fails here, all are told.
        let memory = PutsMemory::new(comm, value);
        let why_not = memory.as_ref().err().map(|e| format!("rank {}: {e}", comm.rank));
        let (Listening { net, device, listener }, routes) = exchange(comm, why_not)?;
        let memory = memory?;
        let simple = comm.layout.slot_bytes[ProtocolId::Simple.index()] as usize;
        let name = format!("NET/{}", net.name());
        let config = PutsConfig {
            net,
            group: comm.group,
            listener,
            device,
            routes,
            comm: *value,
            piece: simple.max(LEAST_PIECE),
            find: find_windows(comm)?,
            gone: Arc::clone(&comm.windows.gone),
        };
        // SAFETY: the words are new, and `NetPuts` keeps them; windows are as `find_windows` says.
        let puts = unsafe { Puts::new(config) };
        let state = PutsState { puts: Some(puts), running: false, failed: None };
        let puts = Arc::new(NetPuts { name, state: Mutex::new(state), _memory: memory });
        // Elsewhere who puts first decides the order of operations, so that runs replay.
        if comm.device.runtime().is_driven() {
            puts.start(comm)?;
        }
        Ok(puts)
    }

    fn lock(&self) -> MutexGuard<'_, PutsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A kernel is about to run: has an operation move its puts on, and the proxy's thread look at once.
    ///
    /// # Errors
    /// When there can be no proxy thread.
    pub(super) fn start(self: &Arc<Self>, comm: &SharedComm) -> Result<()> {
        let runtime = comm.device.runtime();
        let mut state = self.lock();
        if std::mem::replace(&mut state.running, true) {
            drop(state);
            return if runtime.is_driven() { runtime.operate(Box::new(Wake)) } else { Ok(()) };
        }
        drop(state);
        let op = PutsOp { puts: Arc::downgrade(self), comm: comm.downgrade(), ended: false };
        runtime.operate(Box::new(op))
    }

    fn step(&self, comm: &CommVisit) -> Progress {
        let mut state = self.lock();
        let PutsState { puts: Some(puts), running, failed } = &mut *state else {
            return Progress::Done;
        };
        if comm.control.fault().is_some() {
            *running = false;
            return Progress::Done;
        }
        match puts.progress() {
            Ok(progress) => {
                *failed = None;
                if progress == Progress::Done { Progress::Idle } else { progress }
            }
            Err(failure) => {
                let since = failed.get_or_insert_with(Instant::now);
                // A schedule that replays must not depend on time.
                if comm.device.runtime().is_driven() && since.elapsed() < FAILURE_GRACE {
                    return Progress::Idle;
                }
                *running = false;
                drop(state);
                self.report(comm, &failure);
                Progress::Done
            }
        }
    }

    fn report(&self, comm: &CommState, failure: &PutFailure) {
        let rank = comm.rank;
        match failure {
            PutFailure::Peer(peer, error) => {
                let reason = format!("{}: puts of kernels: {error}", self.name);
                let error = Error::PeerLost { rank, peer: *peer, reason };
                comm.on_net_broken(*peer, &error);
            }
            PutFailure::Request(reason) => {
                comm.on_launch_failed(&Error::argument("kernel", reason.clone()));
            }
            PutFailure::Listener(error) => {
                let what = format!("{}: puts of kernels", self.name);
                comm.on_launch_failed(&Error::Unavailable { what, reason: error.to_string() });
            }
        }
    }

    /// The device communicator is dropped: tells the other ranks.
    pub(super) fn close(&self, comm: &CommState) {
        if comm.check_maker().is_err() {
            return; // the connections are the parent's
        }
        let Some(mut puts) = self.lock().puts.take() else { return };
        if comm.control.fault().is_some() {
            return; // they know
        }
        puts.close();
        let driven = comm.device.runtime().is_driven();
        let until = Instant::now() + CLOSING_LIMIT;
        let mut steps = 0;
        // A schedule that replays must not depend on time.
        while if driven { Instant::now() < until } else { steps < CLOSING_STEPS } {
            steps += 1;
            match puts.progress() {
                Ok(Progress::Done) => return,
                Ok(Progress::Idle) if driven => std::thread::sleep(CLOSING_PAUSE),
                _ => {}
            }
        }
        // Whoever has not heard of it sees a connection that ends.
        debug!(target: log::NET, rank = comm.rank, "left without telling all others that it puts nothing more");
    }
}

/// Listens, and exchanges the listeners' handles: by rank, for those that are reached by the network alone. `why_not` is what this rank
/// cannot go on for.
fn exchange(
    comm: &SharedComm,
    why_not: Option<String>,
) -> Result<(Listening, Vec<Option<Vec<u8>>>)> {
    // The all-gather must not be mixed with those of a split.
    let _one = comm.split_lock.lock();
    let stop = Stop::any([Arc::clone(&comm.failed)]);
    let limit = Limit { time: Config::from_env()?.bootstrap_timeout, stop: stop.clone() };
    let listening = match (&comm.net, why_not) {
        (_, Some(why)) => Err(why),
        (Some(net), None) => net.listen().map_err(|e| format!("rank {}: {e}", comm.rank)),
        (None, None) => Err(format!("rank {} has no network", comm.rank)),
    };
    let told = listening.as_ref().map(|one| one.2.handle().to_vec()).map_err(Clone::clone);
    let all: Vec<std::result::Result<Vec<u8>, String>> =
        all_gather(comm, &told, &limit).map_err(|error| {
            if !stop.is_set() {
                return error;
            }
            let cause = comm.failure().unwrap_or(error).to_string();
            let cause = format!("while a device communicator was made: {cause}");
            Error::Aborted { rank: comm.rank, cause }
        })?;
    let unavailable = |reason: String| Error::Unavailable {
        what: "a device communicator over a network".to_owned(),
        reason,
    };
    let handles: Vec<Vec<u8>> =
        all.into_iter().collect::<std::result::Result<_, _>>().map_err(unavailable)?;
    let (net, device, listener) = listening.map_err(unavailable)?;
    let teams = &comm.windows.teams;
    let route = |(rank, handle): (u32, Vec<u8>)| (!teams.reaches(rank)).then_some(handle);
    let routes = (0..).zip(handles).map(route).collect();
    Ok((Listening { net, device, listener }, routes))
}

/// Finds the windows of a communicator for its proxy. Each keeps its memory.
fn find_windows(comm: &SharedComm) -> Result<FindWindow> {
    let weak = comm.downgrade();
    let copies =
        if comm.device.runtime().has_host_memory() { None } else { Some(comm.device.stream()?) };
    Ok(Box::new(move |number| {
        let comm = weak.visit()?;
        let window = comm.windows.numbered(number)?;
        let (address, bytes) = (window.address, window.bytes);
        let access = match &copies {
            None => PutAccess::Direct {
                memory: (address, bytes as usize),
                kind: MemoryKind::Host,
                flush: false,
            },
            Some(stream) => PutAccess::Staged(Arc::new(CopiedMemory {
                window: Arc::clone(&window),
                stream: stream.clone(),
            })),
        };
        Some(PutWindow { address, bytes, access, keep: window })
    }))
}

/// A window in a device's own memory, which the host copies.
struct CopiedMemory {
    window: Arc<WindowState>,
    stream: Stream,
}

impl CopiedMemory {
    /// Where byte `offset` of the window is in its allocation.
    fn at(&self, offset: u64) -> usize {
        (self.window.address - self.window.memory.address() + offset) as usize
    }
}

impl StagedMemory for CopiedMemory {
    fn read(&self, offset: u64, to: &mut [u8]) -> std::result::Result<(), String> {
        let copied = self.stream.ops().copy_out(&self.window.memory, self.at(offset), to);
        copied.map_err(|e| e.to_string())
    }

    fn write(&self, offset: u64, from: &[u8]) -> std::result::Result<(), String> {
        let ops = self.stream.ops();
        let copied = ops.copy_in(&self.window.memory, self.at(offset), from);
        copied.and_then(|()| ops.synchronize()).map_err(|e| e.to_string())
    }
}

/// Moves a device communicator's puts on.
struct PutsOp {
    puts: Weak<NetPuts>,
    comm: WeakComm,
    ended: bool,
}

impl Operation for PutsOp {
    fn progress(&mut self) -> Progress {
        let progress = match (self.puts.upgrade(), self.comm.visit()) {
            (Some(puts), Some(comm)) => puts.step(&comm),
            _ => Progress::Done,
        };
        self.ended = progress == Progress::Done;
        progress
    }
}

impl Drop for PutsOp {
    /// An operation that is dropped before its end has panicked, or nobody runs it any more. Where kernels may run, they must not wait
    /// for it.
    fn drop(&mut self) {
        let (false, Some(puts)) = (self.ended, self.puts.upgrade()) else { return };
        puts.lock().running = false;
        if let Some(comm) = self.comm.visit().filter(|comm| comm.device.runtime().is_driven()) {
            let reason = "the proxy has ended".to_owned();
            let what = format!("{}: puts of kernels", puts.name);
            comm.on_launch_failed(&Error::Unavailable { what, reason });
        }
    }
}

/// Has the proxy's thread look at once.
struct Wake;

impl Operation for Wake {
    fn progress(&mut self) -> Progress {
        Progress::Done
    }
}
