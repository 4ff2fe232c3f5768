//! Windows: buffers of which every rank maps the others', so that kernels work on them directly.
//!
//! ```text
//! register_window   1. all-gather: bytes, and by what the others find the buffer
//!                   2. map the buffers of all others
//!                   3. all-gather: whether that went well          ─► Window: direct, or why not
//!                   4. a multicast object of the buffers (multicast.rs)
//! a call            CollTask ─► Windows::places: are its buffers in windows? ─► the tuner may choose Direct, or NVLS
//! ```
//!
//! The all-gathers go [out of band](super::out_of_band), as those of a split. A window that cannot be direct is no error: its
//! calls are made as those on any memory. For kernels of the user's it is enough that some ranks reach each other: the tables name those,
//! and what goes to the others goes over a network ([`puts`](super::puts)).

mod multicast;
mod places;
mod words;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferroccl_device::abi::{DeviceWindow, WindowPeers};
use serde::{Deserialize, Serialize};
use tracing::info;

use super::Communicator;
use super::device_comm::DeviceChannels;
use super::device_memory::MemoryFor;
use super::preload;
use super::reach::{self, ReachTeams};
use super::shared::{SharedComm, WeakComm};
use super::split::{all_gather, at_once};
use super::state::CommState;
use crate::buffer::{DeviceBuffer, Element};
use crate::config::Config;
use crate::enqueue::Registration;
use crate::error::{Error, Result};
use crate::log;
use crate::runtime::{self, Memory};
use crate::transport::device::{self, DeviceMemoryHandle};
use crate::transport::exported::{Exported, Importer};
use crate::transport::{AllowedTransports, OfferedRegion, PeerInfo};
use ferroccl_bootstrap::{Limit, Stop};

pub(super) use self::places::WindowPlaces;
use self::words::MappingWords;

/// A buffer that is registered with a communicator, on all of its ranks (NCCL's `ncclWindow_t`).
///
/// Calls on parts of registered buffers may read and write the buffers of all ranks directly, without slots in between
/// ([`Algorithm::Direct`](crate::Algorithm::Direct)): an all-reduce whose two buffers are in windows, an all-gather or all-to-all
/// whose receive buffer is, a reduce-scatter whose send buffer is. Where a switch joins the ranks' GPUs and has multicast objects, it
/// sums and spreads for them ([`Algorithm::Nvls`](crate::Algorithm::Nvls)), but for an all-to-all. All ranks must then make the call
/// with buffers at the same offset of the same window. If they do not, every rank's stream gets an error that says so. One
/// exception: an all-to-all that only some ranks make in a window is sends and receives on the others, and waits until it is
/// aborted.
///
/// Dropping it ends the registration; calls that are under way keep what they need. All ranks must drop it between the same
/// two calls of the communicator. A communicator that is split off, shrunk or grown has windows of its own.
#[derive(Debug)]
pub struct Window {
    state: Arc<WindowState>,
    comm: WeakComm,
}

/// A registered buffer, as this rank has it.
#[derive(Debug)]
pub(super) struct WindowState {
    /// Counted from 1, on all ranks the same.
    pub(super) number: u64,
    /// Of this rank's buffer.
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// The table of the others', for kernels; or why there is none.
    table: Result<Arc<dyn Memory>, String>,
    /// The same for kernels of the user's: of a rank alone, too, and where only some ranks are reached, by memory.
    users_table: Result<Arc<dyn Memory>, String>,
    /// The bytes from this rank's buffer to each rank's, as the tables have them; empty where there are none.
    pub(super) distances: Vec<u64>,
    /// Its multicast object; or why there is none.
    multicast: Result<Arc<dyn Memory>, String>,
    /// The allocation that this rank's buffer is in.
    pub(super) memory: Arc<dyn Memory>,
    /// The buffers of all, which are not to be freed before.
    _mapped: Vec<Arc<dyn Memory>>,
}

/// The windows of a communicator, and whether there can be direct ones.
#[derive(Debug)]
pub(super) struct Windows {
    all: Mutex<Vec<Arc<WindowState>>>,
    /// How many have ever been registered.
    registered: AtomicU64,
    /// Whether there may be tables of the others' buffers at all; why not.
    enabled: Result<(), String>,
    /// Whether each rank's kernels may reach the memory of every other; why not.
    possible: Result<(), String>,
    /// Whether windows may have multicast objects; why not.
    multicast: Result<(), String>,
    /// Whose memory users' kernels reach.
    pub(super) teams: ReachTeams,
    /// How many are gone.
    pub(super) gone: Arc<AtomicU64>,
    peers: Arc<[PeerInfo]>,
    allowed: (bool, bool),
}

/// What memory is registered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum RegisteredFor {
    /// The user's buffer: for calls, and for kernels of the user's.
    Calls,
    /// The words of a device communicator: for kernels of the user's.
    Kernels { barriers: u32, signals: u32, requests: u32, channels: DeviceChannels },
}

impl std::fmt::Display for RegisteredFor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RegisteredFor::Calls => f.write_str("a window"),
            RegisteredFor::Kernels { barriers, signals, requests, channels } => {
                write!(
                    f,
                    "a device communicator of {barriers} barriers, {signals} signals and {requests} requests"
                )?;
                if channels.count > 0 { write!(f, " with {channels}") } else { Ok(()) }
            }
        }
    }
}

/// What a rank tells the others of a buffer that it registers.
#[derive(Debug, Serialize, Deserialize)]
struct Offer {
    purpose: RegisteredFor,
    bytes: u64,
    /// Where it is in its allocation, and how large that is.
    offset: usize,
    allocation: usize,
    /// How others find the allocation; why they cannot.
    memory: Result<DeviceMemoryHandle, String>,
    /// Whether it may be bound to a multicast object; why not.
    multicast: Result<(), String>,
    /// How other processes find the words by which they say that they map it.
    words: Option<Vec<u8>>,
}

impl Window {
    /// Whether calls may be direct.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.state.table.is_ok()
    }

    /// Why calls cannot be direct, if they cannot: the same on all ranks.
    #[must_use]
    pub fn why_not_direct(&self) -> Option<&str> {
        self.state.table.as_ref().err().map(String::as_str)
    }

    /// Whether a switch may sum and spread ([`Algorithm::Nvls`](crate::Algorithm::Nvls)).
    #[must_use]
    pub fn is_multicast(&self) -> bool {
        self.state.multicast.is_ok()
    }

    /// Why no switch sums and spreads, if none does: the same on all ranks.
    #[must_use]
    pub fn why_not_multicast(&self) -> Option<&str> {
        self.state.multicast.as_ref().err().map(String::as_str)
    }

    pub(super) fn state(&self) -> &WindowState {
        &self.state
    }

    /// Bytes of the buffer.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state.bytes as usize
    }

    /// Whether the buffer has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.state.bytes == 0
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(comm) = self.comm.visit() {
            comm.windows.lock().retain(|window| !Arc::ptr_eq(window, &self.state));
            // Relaxed: a hint to look at those that are there.
            comm.windows.gone.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Communicator {
    /// Registers `buffer` as a [`Window`] (`ncclCommWindowRegister` with `NCCL_WIN_COLL_SYMMETRIC`). Collective: all ranks must take
    /// part, each from a thread of its own, with buffers of the same size. [`Communicator::register_windows`] is for several ranks of
    /// one thread.
    ///
    /// A buffer that other GPUs or processes are to reach is of [`Device::alloc_shared`](crate::Device::alloc_shared), or, on GPUs, of
    /// the caller's `cuMemAlloc`.
    /// Where ranks do not reach each other's memory, as over a network, the window is there and is not
    /// [direct](Window::is_direct); [device communicators](Communicator::device_comm) put to it all the same.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the buffer is of another device than the communicator, or the ranks' buffers differ in size;
    /// [`Error::Bootstrap`] when not all ranks take part within `FERROCCL_BOOTSTRAP_TIMEOUT`; [`Error::PeerLost`] when one is gone;
    /// [`Error::Aborted`] when this communicator fails or is aborted, or was before.
    pub fn register_window<T: Element>(&self, buffer: &DeviceBuffer<T>) -> Result<Window> {
        let space = self.device().runtime().address_space();
        if buffer.memory().address_space() != space {
            let reason = "its memory is of another device than the communicator";
            return Err(Error::argument("buffer", reason));
        }
        let range = (buffer.address(), buffer.len() as u64 * size_of::<T>() as u64);
        let state = register(&self.0, buffer.memory(), range, RegisteredFor::Calls)?;
        Ok(Window { state, comm: self.0.downgrade() })
    }

    /// [`Communicator::register_window`] of several ranks of this process at once, each with its buffer. The result has their
    /// order.
    ///
    /// # Errors
    /// As there: the first error.
    ///
    /// ```
    /// use ferroccl::{Communicator, Device, ReduceOp};
    ///
    /// let device = Device::cpu();
    /// let ranks = Communicator::init_all(&device, 2)?;
    /// let buffers = [device.alloc_shared::<f32>(1000)?, device.alloc_shared(1000)?];
    /// let windows = Communicator::register_windows(ranks.iter().zip(&buffers))?;
    /// assert!(windows[0].is_direct());
    ///
    /// let streams = [device.stream()?, device.stream()?];
    /// for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
    ///     buffer.copy_from(&[1.0; 1000], stream)?;
    ///     rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream)?;
    /// }
    /// assert_eq!(buffers[1].to_vec(&streams[1])?, [2.0; 1000]);
    /// # streams[0].synchronize()?;
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    pub fn register_windows<'a, T: Element>(
        ranks: impl IntoIterator<Item = (&'a Communicator, &'a DeviceBuffer<T>)>,
    ) -> Result<Vec<Window>> {
        at_once(ranks, |(rank, buffer): (&Communicator, &DeviceBuffer<T>)| {
            rank.register_window(buffer)
        })
    }
}

impl Windows {
    /// Of a communicator: nothing is registered yet.
    pub(super) fn new(
        rank: u32,
        peers: &Arc<[PeerInfo]>,
        allowed: AllowedTransports<'_>,
        (has_mesh, direct, nvls): (bool, bool, bool),
    ) -> Self {
        let off = || "NCCL_WIN_ENABLE is 0".to_owned();
        let enabled = if direct || peers.len() < 2 { Ok(()) } else { Err(off()) };
        let possible = enabled.clone().and_then(|()| reach::all(peers, allowed, has_mesh));
        Windows {
            all: Mutex::default(),
            registered: AtomicU64::new(0),
            enabled,
            possible,
            multicast: multicast::possible(peers, nvls),
            teams: ReachTeams::new(rank, peers, allowed),
            gone: Arc::default(),
            peers: Arc::clone(peers),
            allowed: (allowed.p2p, allowed.shm),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<WindowState>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The window of this number, as long as it is registered for calls.
    pub(super) fn numbered(&self, number: u64) -> Option<Arc<WindowState>> {
        self.lock().iter().find(|window| window.number == number).cloned()
    }

    /// The other ranks whose memory users' kernels reach.
    fn neighbours(&self, rank: u32) -> impl Iterator<Item = &PeerInfo> {
        self.peers.iter().filter(move |peer| peer.rank != rank && self.teams.reaches(peer.rank))
    }

    /// The most that kernels may do with buffers in windows.
    pub(super) fn best(&self) -> Registration {
        self.lock().iter().map(|window| window.registration()).max().unwrap_or_default()
    }

    /// How many windows there are.
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    /// The same; before there are windows, what they are expected to be.
    pub(super) fn expected(&self) -> Registration {
        if !self.lock().is_empty() {
            return self.best();
        }
        match (&self.possible, &self.multicast) {
            (Err(_), _) => Registration::None,
            (Ok(()), Err(_)) => Registration::Window,
            (Ok(()), Ok(())) => Registration::Multicast,
        }
    }
}

impl WindowState {
    /// For kernels of the user's; why not.
    pub(super) fn value(&self) -> Result<DeviceWindow, &str> {
        let table = self.users_table.as_ref().map_err(String::as_str)?;
        let WindowState { number, address, bytes, .. } = *self;
        Ok(DeviceWindow { address, bytes, peers: table.address(), number })
    }

    /// What kernels may do with it.
    fn registration(&self) -> Registration {
        match (&self.table, &self.multicast) {
            (Err(_), _) => Registration::None,
            (Ok(_), Err(_)) => Registration::Window,
            (Ok(_), Ok(_)) => Registration::Multicast,
        }
    }
}

/// Registers the range of `bytes` bytes at `address`, of `memory`.
pub(super) fn register(
    comm: &SharedComm,
    memory: &Arc<dyn Memory>,
    (address, bytes): (u64, u64),
    purpose: RegisteredFor,
) -> Result<Arc<WindowState>> {
    // The all-gathers must not be mixed with those of a split, or of another window.
    let _one = comm.split_lock.lock();
    drop(comm.lock_order()?);
    let stop = Stop::any([Arc::clone(&comm.failed)]);
    register_locked(comm, memory, (address, bytes), purpose, &stop).map_err(|error| {
        if !stop.is_set() {
            return error;
        }
        let cause = comm.failure().unwrap_or(error).to_string();
        Error::Aborted { rank: comm.rank, cause: format!("during a registration: {cause}") }
    })
}

fn register_locked(
    comm: &SharedComm,
    memory: &Arc<dyn Memory>,
    (address, bytes): (u64, u64),
    purpose: RegisteredFor,
    stop: &Stop,
) -> Result<Arc<WindowState>> {
    let limit = Limit { time: Config::from_env()?.bootstrap_timeout, stop: stop.clone() };
    let words = MappingWords::new(comm)?;
    let whole = allocation(comm, memory);
    let memory = whole.as_ref().unwrap_or(memory);
    let offset = (address - memory.address()) as usize;
    let offered = whole.clone().and_then(|whole| offer(comm, &whole, &words));
    let (exported, handle) = match offered {
        Ok((exported, handle)) => (Some(exported), Ok(handle)),
        Err(why) => (None, Err(why)),
    };
    let words_handle = words.as_ref().map(|words| words.offer(comm)).transpose()?;
    let possible = comm.windows.possible.clone();
    let multicast = possible
        .and(handle.as_ref().map_err(Clone::clone))
        .and_then(|_| multicast::offer(comm, memory));
    let mine = Offer {
        purpose,
        bytes,
        offset,
        allocation: memory.len(),
        memory: handle,
        multicast,
        words: words_handle,
    };
    let all: Vec<Offer> = all_gather(comm, &mine, &limit)?;
    if let Some((rank, other)) = (0..).zip(&all).find(|(_, other)| other.purpose != purpose) {
        let reason = format!("rank {} makes {purpose}, rank {rank} {}", comm.rank, other.purpose);
        return Err(Error::argument("config", reason));
    }
    if let Some((rank, other)) = (0..).zip(&all).find(|(_, other)| other.bytes != bytes) {
        let reason = format!("has {bytes} bytes, rank {rank} registers {}", other.bytes);
        return Err(Error::argument("buffer", reason));
    }
    let opened = open(comm, &all, (address, exported));
    let told = opened.as_ref().map(drop).map_err(Clone::clone);
    let verdicts: Vec<Result<(), String>> = all_gather(comm, &told, &limit)?;
    let refused = (0..).zip(&verdicts).find_map(|(rank, verdict): (u32, _)| {
        verdict.as_ref().err().map(|why| (rank, why.clone()))
    });
    let opened = match (opened, refused) {
        (Ok(mapped), None) => Ok(mapped),
        (_, Some((_, why))) | (Err(why), None) => Err(why),
    };
    let possible = comm.windows.possible.clone();
    let multicast = match (&opened, &possible) {
        (Ok(mapped), Ok(())) => multicast::bind(comm, &all, (memory, address), mapped, &limit)?,
        (_, Err(why)) | (Err(why), Ok(())) => Err(why.clone()),
    };
    let (users_table, distances, mapped) = match opened {
        Ok(Mapped { table, distances, memory }) => (Ok(table), distances, memory),
        Err(why) => (Err(why), Vec::new(), Vec::new()),
    };
    let table = possible.and_then(|()| users_table.clone());
    // Relaxed: the lock on splits is held.
    let number = comm.windows.registered.fetch_add(1, Ordering::Relaxed) + 1;
    let how = match (&table, &multicast) {
        (Err(why), _) => format!("not direct: {why}"),
        (Ok(_), Err(why)) => format!("direct, without a multicast object: {why}"),
        (Ok(_), Ok(_)) => "direct, with a multicast object".to_owned(),
    };
    info!(target: log::REG, rank = comm.rank, "window {number}: {bytes} bytes at {address:#x}, {how}");
    let state = WindowState {
        number,
        address,
        bytes,
        table,
        users_table,
        distances,
        multicast,
        memory: Arc::clone(memory),
        _mapped: mapped,
    };
    let state = Arc::new(state);
    if purpose == RegisteredFor::Calls {
        comm.windows.lock().push(Arc::clone(&state));
        preload::preload_direct(comm);
    }
    Ok(state)
}

/// The allocation that a buffer is in, as far as the others reach it; why they do not.
fn allocation(comm: &CommState, memory: &Arc<dyn Memory>) -> Result<Arc<dyn Memory>, String> {
    comm.windows.enabled.clone()?;
    let me = &comm.windows.peers[comm.rank as usize];
    let of_us = |peer: &PeerInfo| peer.space == me.space && peer.process == me.process;
    if comm.windows.neighbours(comm.rank).all(of_us) {
        return Ok(Arc::clone(memory));
    }
    let whole = comm.device.runtime().shared_allocation(memory);
    whole.map_err(|e| format!("the buffer of rank {}: {e}", comm.rank))
}

/// By what the others find an allocation, and what keeps it until they have let go.
fn offer(
    comm: &CommState,
    memory: &Arc<dyn Memory>,
    words: &Option<MappingWords>,
) -> Result<(Arc<dyn Memory>, DeviceMemoryHandle), String> {
    let me = &comm.windows.peers[comm.rank as usize];
    let Some(words) = words else {
        return Ok((Arc::clone(memory), device::offer(memory, None)));
    };
    let ipc =
        comm.device.runtime().export(memory).map_err(|e| format!("rank {}: {e}", comm.rank))?;
    let others = comm.windows.neighbours(comm.rank).filter(|peer| peer.process != me.process);
    let importers = others.map(|peer| Importer::new(words.of(peer.rank), peer, me)).collect();
    let exported: Arc<dyn Memory> = Arc::new(Exported::new(Arc::clone(memory), importers));
    let handle = device::offer(&exported, Some(ipc));
    Ok((exported, handle))
}

/// The buffers of all others.
struct Mapped {
    /// From this rank's buffer to each rank's.
    distances: Vec<u64>,
    /// For kernels.
    table: Arc<dyn Memory>,
    memory: Vec<Arc<dyn Memory>>,
}

/// Maps the buffers of all others.
fn open(
    comm: &CommState,
    all: &[Offer],
    (address, own): (u64, Option<Arc<dyn Memory>>),
) -> Result<Mapped, String> {
    let me = &comm.windows.peers[comm.rank as usize];
    let runtime = &**comm.device.runtime();
    let (mut distances, mut mapped) =
        (Vec::with_capacity(all.len()), Vec::with_capacity(all.len()));
    for (peer, offer) in comm.windows.peers.iter().zip(all) {
        if !comm.windows.teams.reaches(peer.rank) {
            distances.push(WindowPeers::UNREACHED);
            continue;
        }
        let handle = offer.memory.as_ref().map_err(Clone::clone)?;
        if peer.rank == me.rank {
            distances.push(0);
            mapped.extend(own.clone());
            continue;
        }
        let failed = |e: Error| format!("rank {}: the buffer of rank {}: {e}", me.rank, peer.rank);
        let same_process = peer.process == me.process;
        let word = match &offer.words {
            Some(handle) if !same_process => {
                MappingWords::accept(comm, peer, handle).map_err(failed)?
            }
            _ => OfferedRegion::new(size_of::<u64>(), false)
                .map_err(failed)?
                .part(0, size_of::<u64>()),
        };
        let memory = device::accept(handle, same_process, offer.allocation, &word, runtime);
        let memory = memory.map_err(failed)?;
        distances.push((memory.address() + offer.offset as u64).wrapping_sub(address));
        mapped.push(memory);
    }
    let reached: Vec<u64> =
        distances.iter().copied().filter(|distance| *distance != WindowPeers::UNREACHED).collect();
    let bits = reached.iter().fold(0, |bits, distance| bits | distance);
    let peers = WindowPeers { bits, ..WindowPeers::default() };
    let table =
        |distances: &[u64]| [bytemuck::bytes_of(&peers), bytemuck::cast_slice(distances)].concat();
    let mut image = table(&distances);
    if reached.len() < distances.len() {
        image.extend(table(&reached));
    }
    let table = runtime::place(runtime, &image).map_err(|e| format!("rank {}: {e}", me.rank))?;
    let table = comm.memory.counted(MemoryFor::Registrations, table);
    Ok(Mapped { distances, table, memory: mapped })
}
