//! Windows: buffers of which every rank maps the others', so that kernels work on them directly.
//!
//! ```text
//! register_window   1. all-gather: bytes, and by what the others find the buffer
//!                   2. map the buffers of all others
//!                   3. all-gather: whether that went well          ─► Window: direct, or why not
//! a call            CollTask ─► Windows::places: are its buffers in windows? ─► the tuner may choose Direct
//! ```
//!
//! The all-gathers go [out of band](super::out_of_band), as those of a split. A window that cannot be direct is no error: its
//! calls are made as those on any memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferroccl_device::abi::{Collective, ReduceOp, WindowPeers};
use serde::{Deserialize, Serialize};
use tracing::info;

use super::Communicator;
use super::preload;
use super::shared::{SharedComm, WeakComm};
use super::split::{all_gather, at_once};
use super::state::CommState;
use crate::buffer::{DeviceBuffer, Element};
use crate::config::Config;
use crate::enqueue::CollectiveCall;
use crate::error::{Error, Result};
use crate::log;
use crate::runtime::{self, Memory};
use crate::transport::device::{self, DeviceMemoryHandle};
use crate::transport::exported::{Exported, Importer};
use crate::transport::{AllowedTransports, OfferedRegion, PeerInfo, select};
use ferroccl_bootstrap::{Limit, Stop};

/// Bytes of a rank's part of the words by which those who map a buffer say so. Parts are mapped each by itself, so they begin at a
/// page; Linux's largest base page has so many bytes.
const WORD_BYTES: usize = 64 << 10;

/// A buffer that is registered with a communicator, on all of its ranks (NCCL's `ncclWindow_t`).
///
/// Calls on parts of registered buffers may read and write the buffers of all ranks directly, without slots in between
/// ([`Algorithm::Direct`](crate::Algorithm::Direct)): an all-reduce whose two buffers are in windows, an all-gather whose
/// receive buffer is, a reduce-scatter whose send buffer is. All ranks must then make the call with buffers at the same offset of the
/// same window. If they do not, every rank's stream gets an error that says so.
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
    number: u64,
    /// Of this rank's buffer.
    address: u64,
    bytes: u64,
    /// The table of the others', for kernels; or why there is none.
    table: Result<Arc<dyn Memory>, String>,
    /// The buffers of all, which are not to be freed before.
    _mapped: Vec<Arc<dyn Memory>>,
}

/// The windows of a communicator, and whether there can be direct ones.
#[derive(Debug)]
pub(super) struct Windows {
    all: Mutex<Vec<Arc<WindowState>>>,
    /// How many have ever been registered.
    registered: AtomicU64,
    /// Whether each rank's kernels may reach the memory of every other; why not.
    possible: Result<(), String>,
    peers: Vec<PeerInfo>,
    allowed: (bool, bool),
}

/// Where the buffers of a call are in windows.
#[derive(Debug)]
pub(super) struct WindowPlaces {
    /// The windows of input and output, as far as the call needs them.
    windows: [Option<Arc<WindowState>>; 2],
    /// What tells these places from others.
    digest: u64,
}

/// What a rank tells the others of a buffer that it registers.
#[derive(Debug, Serialize, Deserialize)]
struct Offer {
    bytes: u64,
    /// Where it is in its allocation, and how large that is.
    offset: usize,
    allocation: usize,
    /// How others find the allocation; why they cannot.
    memory: Result<DeviceMemoryHandle, String>,
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
        }
    }
}

impl Communicator {
    /// Registers `buffer` as a [`Window`] (`ncclCommWindowRegister` with `NCCL_WIN_COLL_SYMMETRIC`). Collective: all ranks must take
    /// part, each from a thread of its own, with buffers of the same size. [`Communicator::register_windows`] is for several ranks of
    /// one thread.
    ///
    /// A buffer that other GPUs or processes are to reach is of [`Device::alloc_shared`](crate::Device::alloc_shared).
    /// Where ranks do not reach each other's memory, as over a network, the window is there and is not
    /// [direct](Window::is_direct).
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
        let state = register(&self.0, buffer.memory(), range)?;
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
        peers: &[PeerInfo],
        allowed: AllowedTransports<'_>,
        (has_mesh, enabled): (bool, bool),
    ) -> Self {
        let possible = if enabled {
            possible(peers, allowed, has_mesh)
        } else {
            Err("NCCL_WIN_ENABLE is 0".to_owned())
        };
        Windows {
            all: Mutex::default(),
            registered: AtomicU64::new(0),
            possible,
            peers: peers.to_vec(),
            allowed: (allowed.p2p, allowed.shm),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<WindowState>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a window may be direct.
    pub(super) fn may_be_direct(&self) -> bool {
        self.possible.is_ok()
    }

    /// Whether there is one that is.
    pub(super) fn has_direct(&self) -> bool {
        self.lock().iter().any(|window| window.table.is_ok())
    }

    /// Where the buffers of a call are in windows; `None` where the call cannot be direct.
    pub(super) fn places(
        &self,
        call: &CollectiveCall,
        (input, output): (u64, u64),
    ) -> Option<WindowPlaces> {
        let ranks = self.peers.len() as u32;
        let [reads, writes] = match call.collective {
            Collective::AllReduce => [true, true],
            Collective::AllGather => [false, true],
            Collective::ReduceScatter => [true, false],
            _ => return None,
        };
        // Each rank multiplies its own values by a factor of its own, of which the others do not know.
        if call.op == ReduceOp::PreMulSum {
            return None;
        }
        let all = self.lock();
        if all.is_empty() {
            return None;
        }
        let bytes = call.largest_bytes(ranks);
        let find = |address: u64| {
            let fits = |window: &&Arc<WindowState>| {
                let offset = address.checked_sub(window.address);
                let end = offset.and_then(|offset| offset.checked_add(bytes));
                window.table.is_ok() && end.is_some_and(|end| end <= window.bytes)
            };
            all.iter().find(fits).map(|window| (Arc::clone(window), address - window.address))
        };
        let input = if reads { Some(find(input)?) } else { None };
        let output = if writes { Some(find(output)?) } else { None };
        let words = [&input, &output].map(|place| {
            place.as_ref().map_or((0, 0), |(window, offset)| (window.number, *offset))
        });
        // As `Signature::digest` has it: odd factors lose nothing.
        let digest = words.into_iter().fold(0_u64, |digest, (number, offset)| {
            let digest = (digest ^ number).wrapping_mul(0x0000_0100_0000_01b3);
            (digest ^ offset).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let windows = [input, output].map(|place| place.map(|(window, _)| window));
        Some(WindowPlaces { windows, digest })
    }
}

impl WindowPlaces {
    /// Addresses of the tables of input and output, for kernels; 0 for none.
    pub(super) fn tables(&self) -> [u64; 2] {
        self.windows.each_ref().map(|window| {
            let table = window.as_ref().and_then(|window| window.table.as_ref().ok());
            table.map_or(0, |table| table.address())
        })
    }

    /// What tells these places from others.
    pub(super) fn digest(&self) -> u64 {
        self.digest
    }
}

/// Whether each rank's kernels may reach the memory of every other. The error is the reason why not. All ranks find the same.
fn possible(
    peers: &[PeerInfo],
    allowed: AllowedTransports<'_>,
    has_mesh: bool,
) -> Result<(), String> {
    if peers.len() < 2 {
        return Err("there are no other ranks".to_owned());
    }
    for from in peers {
        for to in peers.iter().filter(|to| to.rank != from.rank) {
            let reached = if from.host != to.host {
                Err("they are on two hosts".to_owned())
            } else if from.device.is_some() || to.device.is_some() {
                allowed.p2p(from, to).and_then(|()| {
                    let reaches = device::reaches(from, to, allowed);
                    reaches
                        .then_some(())
                        .ok_or_else(|| "the devices do not reach each other".to_owned())
                })
            } else if from.process == to.process {
                let same = from.space == to.space;
                same.then_some(()).ok_or_else(|| "they are in two address spaces".to_owned())
            } else if from.pid_namespace == to.pid_namespace {
                allowed.shm(from, to)
            } else {
                Err("they are in two PID namespaces".to_owned())
            };
            reached.map_err(|why| format!("ranks {} and {}: {why}", from.rank, to.rank))?;
        }
    }
    if has_mesh { Ok(()) } else { Err("the ranks have no mesh".to_owned()) }
}

/// Registers the range of `bytes` bytes at `address`, of `memory`.
fn register(
    comm: &SharedComm,
    memory: &Arc<dyn Memory>,
    (address, bytes): (u64, u64),
) -> Result<Arc<WindowState>> {
    // The all-gathers must not be mixed with those of a split, or of another window.
    let _one = comm.split_lock.lock();
    drop(comm.lock_order()?);
    let stop = Stop::any([Arc::clone(&comm.failed)]);
    register_locked(comm, memory, (address, bytes), &stop).map_err(|error| {
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
    stop: &Stop,
) -> Result<Arc<WindowState>> {
    let limit = Limit { time: Config::from_env()?.bootstrap_timeout, stop: stop.clone() };
    let words = MappingWords::new(comm)?;
    let offset = (address - memory.address()) as usize;
    let offered = offer(comm, memory, &words);
    let (exported, handle) = match offered {
        Ok((exported, handle)) => (Some(exported), Ok(handle)),
        Err(why) => (None, Err(why)),
    };
    let words_handle = words.as_ref().map(|words| words.offer(comm)).transpose()?;
    let mine =
        Offer { bytes, offset, allocation: memory.len(), memory: handle, words: words_handle };
    let all: Vec<Offer> = all_gather(comm, &mine, &limit)?;
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
    let (table, mapped) = match (opened, refused) {
        (Ok(Mapped { table, memory }), None) => (Ok(table), memory),
        (_, Some((_, why))) | (Err(why), None) => (Err(why), Vec::new()),
    };
    // Relaxed: the lock on splits is held.
    let number = comm.windows.registered.fetch_add(1, Ordering::Relaxed) + 1;
    let how = table.as_ref().map_or_else(|why| format!("not direct: {why}"), |_| "direct".into());
    info!(target: log::REG, rank = comm.rank, "window {number}: {bytes} bytes at {address:#x}, {how}");
    let state = Arc::new(WindowState { number, address, bytes, table, _mapped: mapped });
    comm.windows.lock().push(Arc::clone(&state));
    preload::preload_direct(comm);
    Ok(state)
}

/// By what the others find an allocation, and what keeps it until they have let go.
fn offer(
    comm: &CommState,
    memory: &Arc<dyn Memory>,
    words: &Option<MappingWords>,
) -> Result<(Arc<dyn Memory>, DeviceMemoryHandle), String> {
    comm.windows.possible.clone()?;
    let me = &comm.windows.peers[comm.rank as usize];
    let alone =
        comm.windows.peers.iter().all(|peer| peer.space == me.space && peer.process == me.process);
    if !alone && !memory.is_shared() {
        return Err(format!("the buffer of rank {} is not of Device::alloc_shared", comm.rank));
    }
    let Some(words) = words else {
        return Ok((Arc::clone(memory), device::offer(memory, None)));
    };
    let ipc =
        comm.device.runtime().export(memory).map_err(|e| format!("rank {}: {e}", comm.rank))?;
    let others = comm.windows.peers.iter().filter(|peer| peer.process != me.process);
    let importers = others.map(|peer| Importer::new(words.of(peer.rank), peer, me)).collect();
    let exported: Arc<dyn Memory> = Arc::new(Exported::new(Arc::clone(memory), importers));
    let handle = device::offer(&exported, Some(ipc));
    Ok((exported, handle))
}

/// The buffers of all others.
struct Mapped {
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
    let bits = distances.iter().fold(0, |bits, distance| bits | distance);
    let peers = WindowPeers { bits, ..WindowPeers::default() };
    let image = [bytemuck::bytes_of(&peers), bytemuck::cast_slice(&distances)].concat();
    let table = runtime::place(runtime, &image).map_err(|e| format!("rank {}: {e}", me.rank))?;
    Ok(Mapped { table, memory: mapped })
}

/// Words by which ranks of other processes say that they have a buffer mapped, a part for each rank.
struct MappingWords(OfferedRegion);

impl MappingWords {
    /// `None` where all ranks are of this process, or do not reach each other's memory.
    fn new(comm: &CommState) -> Result<Option<MappingWords>> {
        let peers = &comm.windows.peers;
        let one_process = peers.iter().all(|peer| peer.process == peers[0].process);
        if one_process || comm.windows.possible.is_err() {
            return Ok(None);
        }
        Ok(Some(MappingWords(OfferedRegion::new(peers.len() * WORD_BYTES, true)?)))
    }

    /// That of a rank.
    fn of(&self, rank: u32) -> crate::transport::HostRegion {
        self.0.part(rank as usize * WORD_BYTES, WORD_BYTES)
    }

    /// By what ranks of other processes find them.
    fn offer(&self, comm: &CommState) -> Result<Vec<u8>> {
        let windows = &comm.windows;
        let me = &windows.peers[comm.rank as usize];
        let other = windows.peers.iter().find(|peer| peer.process != me.process).unwrap_or(me);
        select(other, me, windows.allowed())?.offer(&self.0)
    }

    /// This rank's word of a peer.
    fn accept(
        comm: &CommState,
        peer: &PeerInfo,
        handle: &[u8],
    ) -> Result<crate::transport::HostRegion> {
        let windows = &comm.windows;
        let me = &windows.peers[comm.rank as usize];
        let len = windows.peers.len() * WORD_BYTES;
        let transport = select(me, peer, windows.allowed())?;
        transport.accept(handle, len, comm.rank as usize * WORD_BYTES, WORD_BYTES)
    }
}

impl Windows {
    /// The transports by which ranks share words.
    fn allowed(&self) -> AllowedTransports<'_> {
        let (p2p, shm) = self.allowed;
        AllowedTransports { p2p, shm, net: false, too_far: None }
    }
}
