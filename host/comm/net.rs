//! Ranks on other hosts: what a call has for the proxies.
//!
//! ```text
//! launch ─► Counts of its kernels (steps) ─► Connections (proxy) ◄─ progress ─ Carrier, an operation of the runtime
//!                                                 │ broken                            │
//!                                                 └─► after a moment: PeerLost ◄──────┘
//! ```
//!
//! The communicator has one [`Connections`] for all its peers on other hosts. Every launch adds what it has for each; an
//! operation moves them on as long as there is something to do, keeps the communicator alive meanwhile, and ends.
//! A kernel waits as long as it may (`FERROCCL_TIMEOUT`), so the proxy itself has no budget but when everybody has left.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferroccl_device::abi::{Fault, FaultKind, ProtocolId, Transfer, TransferKind, Work};
use ferroccl_device::kernels::Kernel;
use ferroccl_device::prims::{Ll, Ll128, Protocol, Simple};
use ferroccl_proxy::connection::{Connections, Failed, Key, Steps};
use ferroccl_proxy::net::{Listener, Net};
use ferroccl_proxy::{Operation, Progress};
use tracing::{info, warn};

use super::Inner;
use super::steps::{Count, count};
use crate::channel::{ConnLayout, Edges};
use crate::{Error, Result};

/// This rank on the network, before its peers know of it.
pub(super) struct Listening {
    pub net: Arc<dyn Net>,
    pub device: usize,
    pub listener: Box<dyn Listener>,
}

/// How long a broken connection waits for a better reason than that it is closed: that of the peer whose end it was.
const GRACE: Duration = Duration::from_millis(500);
/// For how long after the last step an operation stays for the next call's: a new one has to wake the proxy's thread first.
const LINGER: Duration = Duration::from_millis(1);
/// How long a process should wait that wants to end.
pub(super) const FAREWELL: Duration = Duration::from_secs(10);
/// Bytes of a failure's text that other hosts are told.
const MAX_TEXT: usize = 1024;
/// Calls whose counts are kept.
const KEPT: usize = 256;

/// The connections of a communicator with other hosts.
#[derive(Debug)]
pub(super) struct Remote {
    name: String,
    channels: usize,
    /// By rank, whether it is on another host.
    is_remote: Vec<bool>,
    slot_bytes: [u32; 3],
    state: Mutex<State>,
    counts: Mutex<HashMap<Alike, Arc<[Count]>>>,
    /// Whether other hosts have been told of our failure.
    told: AtomicBool,
    /// Operations that keep the communicator alive.
    carriers: AtomicUsize,
}

#[derive(Debug)]
struct State {
    connections: Connections,
    /// Whether an operation moves them on.
    carried: bool,
    /// Broken, and when.
    failed: Option<(Failed, Instant)>,
    /// When the user has let go of the communicator.
    left: Option<Instant>,
}

/// Calls for which the steps are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Alike {
    view: usize,
    kernel: &'static str,
    call: u64,
    count: u64,
    root: u32,
    mode: u64,
}

impl Remote {
    /// For the `edges` of a rank, by peer, some of which are remote; `handles` are the listeners' of all ranks.
    pub(super) fn new(
        Listening { net, device, listener }: Listening,
        (group, rank): (u64, u32),
        edges: &[Option<Edges>],
        (layout, channels): (ConnLayout, usize),
        first_step: u64,
        mut handles: Vec<Vec<u8>>,
    ) -> Self {
        let remote = |edges: &Option<Edges>| edges.as_ref().is_some_and(|e| e.send.remote);
        let is_remote: Vec<bool> = edges.iter().map(remote).collect();
        for (handle, remote) in handles.iter_mut().zip(&is_remote) {
            if !remote {
                handle.clear();
            }
        }
        let name = format!("NET/{}", net.name());
        let ends: Vec<Option<Edges>> = edges.to_vec();
        let find = move |key: Key, sending: bool| {
            let edges = ends.get(key.peer as usize)?.as_ref().filter(|e| e.send.remote)?;
            let end = if sending { &edges.send } else { &edges.recv };
            end.ends(&layout, channels, key.index as usize, first_step)
        };
        // SAFETY: the edges' memory is laid out so, and the closure keeps it as long as it lives.
        let connections = unsafe {
            Connections::new(
                (net, device),
                (group, rank),
                first_step,
                listener,
                handles,
                Box::new(find),
            )
        };
        let state = State { connections, carried: false, failed: None, left: None };
        Remote {
            name,
            channels,
            is_remote,
            slot_bytes: layout.slot_bytes,
            state: Mutex::new(state),
            counts: Mutex::default(),
            told: AtomicBool::new(false),
            carriers: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_remote(&self, rank: u32) -> bool {
        self.is_remote.get(rank as usize).copied().unwrap_or(false)
    }

    /// The number of a collective's connection on a channel, or of the roll.
    fn index(&self, channel: Option<u32>) -> u32 {
        channel.unwrap_or(2 * self.channels as u32)
    }

    /// What a connection is, in words.
    fn describe(&self, index: u32) -> String {
        let channels = self.channels as u32;
        match index {
            i if i < channels => format!("channel {i:02}"),
            i if i < 2 * channels => format!("channel {:02} of sends and receives", i - channels),
            _ => "the comparison of calls".to_owned(),
        }
    }

    /// A broken connection as an error of this rank.
    fn error(&self, rank: u32, failed: &Failed) -> Error {
        let Failed { key, sending, seq, error } = failed;
        let to = if *sending { "to" } else { "from" };
        let mut reason = format!("{}: {} {to} it: {error}", self.name, self.describe(key.index));
        if *seq > 0 {
            reason += &format!(" (call {seq})");
        }
        Error::PeerLost { rank, peer: key.peer, reason }
    }
}

/// What a launch has for the proxies.
pub(super) type Cargo = Vec<(Key, bool, Steps)>;

impl Inner {
    /// What a kernel of a collective has for the proxies.
    ///
    /// # Errors
    /// When the kernel does not count its steps.
    ///
    /// # Safety
    /// As [`count`].
    pub(super) unsafe fn cargo(
        &self,
        view: usize,
        kernel: &Kernel,
        work: &Work,
        (blocks, protocol): (u32, ProtocolId),
        tree: bool,
    ) -> Result<Cargo> {
        let Some(remote) = &self.remote else { return Ok(Cargo::new()) };
        let alike = Alike {
            view,
            kernel: kernel.name,
            call: work.signature.call,
            count: work.count,
            root: work.root,
            // The trees follow from the root.
            mode: if tree { 0 } else { work.extra },
        };
        let mut kept = remote.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = match kept.get(&alike) {
            Some(counts) => Arc::clone(counts),
            None => {
                // SAFETY: the caller's.
                let counts = unsafe {
                    count(&self.control, view, kernel.steps, work, blocks, |rank| {
                        remote.is_remote(rank)
                    })?
                };
                let counts: Arc<[Count]> = counts.into();
                if kept.len() >= KEPT {
                    kept.clear();
                }
                kept.insert(alike, Arc::clone(&counts));
                counts
            }
        };
        drop(kept);
        let seq = work.signature.seq;
        let cargo = counts.iter().map(|count| {
            let key = Key { peer: count.peer, index: remote.index(count.channel) };
            let Count { sending, signatures, steps, .. } = *count;
            (key, sending, Steps { seq, signatures, protocol, steps })
        });
        Ok(cargo.collect())
    }

    /// What sends and receives have for the proxies; `seq` is the number of the last collective.
    pub(super) fn cargo_of(&self, transfers: &[Transfer], seq: u64) -> Cargo {
        let Some(remote) = &self.remote else { return Cargo::new() };
        let cargo = transfers.iter().filter_map(|transfer| {
            let sending = transfer.kind == TransferKind::Send as u32;
            let (channel, peer) = self.control.p2p_of(transfer.conn)?;
            if !remote.is_remote(peer) {
                return None;
            }
            let protocol = protocol_of(transfer.protocol);
            let slot = remote.slot_bytes[protocol as usize] as usize;
            let capacity = match protocol {
                ProtocolId::Simple => <Simple as Protocol>::capacity(slot),
                ProtocolId::Ll => <Ll as Protocol>::capacity(slot),
                ProtocolId::Ll128 => <Ll128 as Protocol>::capacity(slot),
            };
            let steps = transfer.bytes.div_ceil(capacity.max(1) as u64);
            let key = Key { peer, index: remote.channels as u32 + channel };
            Some((key, sending, Steps { seq, signatures: 1, protocol, steps }))
        });
        cargo.collect()
    }

    /// Gives the proxies what a launch has for them. That a peer cannot be reached is the launch's failure some time later:
    /// there may be a better reason by then, news of whom its host has lost.
    ///
    /// # Errors
    /// When there can be no proxy.
    pub(super) fn carry(self: &Arc<Self>, cargo: Cargo) -> Result<()> {
        let Some(remote) = self.remote.as_ref().filter(|_| !cargo.is_empty()) else {
            return Ok(());
        };
        let mut state = remote.lock();
        for (key, sending, steps) in cargo {
            if !sending {
                state.connections.recv(key, steps);
            } else if let Err(failed) = state.connections.send(key, steps) {
                state.failed.get_or_insert((failed, Instant::now()));
            }
        }
        let idle = !std::mem::replace(&mut state.carried, true);
        drop(state);
        if idle {
            remote.carriers.fetch_add(1, Ordering::Relaxed);
            let held = Held(Arc::clone(remote));
            let carrier =
                Carrier { inner: Arc::clone(self), ended: false, done_since: None, _held: held };
            self.device.runtime().operate(Box::new(carrier))?;
        }
        Ok(())
    }

    /// A rank on another host has left as it should.
    pub(super) fn has_left(&self, rank: u32) {
        let Some(remote) = &self.remote else { return };
        let mut state = remote.lock();
        if let Err(failed) = state.connections.left(rank) {
            state.failed.get_or_insert((failed, Instant::now()));
        }
    }

    /// Tells ranks on other hosts of our failure: their kernels do not see what we leave at our edges.
    pub(super) fn tell_hosts(&self, fault: &Fault) {
        let Some(remote) = &self.remote else { return };
        if remote.told.swap(true, Ordering::Relaxed) {
            return;
        }
        let text = self.failure().map_or_else(String::new, |error| error.to_string());
        let end = (0..=text.len().min(MAX_TEXT)).rev().find(|i| text.is_char_boundary(*i));
        let text = &text.as_bytes()[..end.unwrap_or(0)];
        let news = [bytemuck::bytes_of(fault), text].concat();
        if let Some(oob) = self.oob.get() {
            oob.tell(&news);
        }
    }

    /// A rank has told of its failure.
    pub(super) fn heard(&self, teller: u32, news: &[u8]) {
        let Some((fault, text)) = news.split_at_checked(size_of::<Fault>()) else { return };
        let Ok(fault) = bytemuck::try_pod_read_unaligned::<Fault>(fault) else { return };
        let text = String::from_utf8_lossy(text);
        info!(target: crate::log::NET, "rank {}: rank {teller} has failed: {text}", self.rank);
        let Some(remote) = &self.remote else { return };
        if teller == self.rank || self.control.fault().is_some() {
            return;
        }
        // All others hear of it as we do, and of the cause.
        remote.told.store(true, Ordering::Relaxed);
        // Our neighbours see at their edges what we know: a reason that says no more than that we have stopped might be the
        // first that they hear.
        match FaultKind::from_raw(fault.kind) {
            FaultKind::PeerLost => {
                // It may be us whom it has lost.
                let peer = if fault.peer == self.rank { teller } else { fault.peer };
                let reason = format!("rank {teller} says: {text}");
                let _ = self.cause.set(Error::PeerLost { rank: self.rank, peer, reason });
                let (kind, rank) = (FaultKind::PeerLost as u32, self.rank);
                self.fail(&Fault { kind, rank, peer, seq: fault.seq, ..Fault::default() });
            }
            FaultKind::Aborted => {
                let _ =
                    self.cause.set(Error::Aborted { rank: self.rank, cause: text.into_owned() });
                self.fail(&fault);
            }
            _ => self.fail(&fault),
        }
    }

    /// A peer cannot be reached any more.
    fn cut_off(&self, peer: u32, error: &Error) {
        warn!(target: crate::log::NET, "{error}");
        if self.control.fault().is_none() {
            let _ = self.cause.set(error.clone());
        }
        let (kind, rank) = (FaultKind::PeerLost as u32, self.rank);
        self.fail(&Fault { kind, rank, peer, ..Fault::default() });
    }

    /// The user needs the communicator no more: what its kernels have sent goes out first, as the process may end next.
    /// Waits for it until it is over or given up, or as long as `longest`.
    pub(super) fn drain(&self, longest: Option<Duration>) {
        let Some(remote) = &self.remote else { return };
        let begun = Instant::now();
        remote.lock().left = Some(begun);
        if !self.device.runtime().is_driven() {
            return; // nobody else would move anything meanwhile
        }
        // Pairs with the release in `Held`: the operation has let go of the communicator.
        while remote.carriers.load(Ordering::Acquire) > 0 {
            if longest.is_some_and(|longest| begun.elapsed() > longest) {
                warn!(target: crate::log::NET, "rank {}: left with data still to be sent", self.rank);
                return;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

fn protocol_of(raw: u32) -> ProtocolId {
    let all = ProtocolId::ALL.iter().copied();
    all.into_iter().find(|p| *p as u32 == raw).unwrap_or(ProtocolId::Simple)
}

/// Moves a communicator's connections on.
struct Carrier {
    inner: Arc<Inner>,
    ended: bool,
    /// Since when all is carried.
    done_since: Option<Instant>,
    /// Behind `inner`, to be dropped after it.
    _held: Held,
}

/// Counts a [`Carrier`].
struct Held(Arc<Remote>);

impl Drop for Held {
    fn drop(&mut self) {
        // Pairs with the acquire in `drain`.
        self.0.carriers.fetch_sub(1, Ordering::Release);
    }
}

impl Carrier {
    fn step(&mut self, remote: &Remote) -> Progress {
        let inner = &self.inner;
        let mut state = remote.lock();
        if inner.control.fault().is_some() {
            state.carried = false;
            return Progress::Done;
        }
        if let Some((failed, since)) = &state.failed {
            if since.elapsed() < GRACE {
                return Progress::Idle;
            }
            let (error, peer) = (remote.error(inner.rank, failed), failed.key.peer);
            state.carried = false;
            drop(state);
            inner.cut_off(peer, &error);
            return Progress::Done;
        }
        let progress = state.connections.progress();
        if !matches!(progress, Ok(Progress::Done)) {
            self.done_since = None;
        }
        match progress {
            Ok(Progress::Done) => {
                let since = self.done_since.get_or_insert_with(Instant::now);
                // A schedule that replays knows no time.
                let lingers = state.left.is_none() && inner.device.runtime().is_driven();
                if lingers && since.elapsed() < LINGER {
                    return Progress::Idle;
                }
                state.carried = false;
                Progress::Done
            }
            Ok(Progress::Moved) => {
                state.left = state.left.map(|_| Instant::now());
                Progress::Moved
            }
            Ok(Progress::Idle) => {
                // With nobody left who could wait for it, this is the one to give up.
                let limit = inner.control.timeout();
                if let (Some(left), Some(limit)) = (state.left, limit)
                    && left.elapsed() > limit
                {
                    warn!(target: crate::log::NET, "rank {}: gave up sending", inner.rank);
                    state.carried = false;
                    return Progress::Done;
                }
                Progress::Idle
            }
            Err(failed) => {
                state.failed = Some((failed, Instant::now()));
                Progress::Idle
            }
        }
    }
}

impl Operation for Carrier {
    fn progress(&mut self) -> Progress {
        let inner = Arc::clone(&self.inner);
        let Some(remote) = &inner.remote else { return Progress::Done };
        let progress = self.step(remote);
        self.ended = progress == Progress::Done;
        progress
    }
}

impl Drop for Carrier {
    /// Where it is not over, it panicked or cannot go on: kernels may not wait for it.
    fn drop(&mut self) {
        if let Some(remote) = self.inner.remote.as_ref().filter(|_| !self.ended) {
            remote.lock().carried = false;
            let reason = "the proxy has given up before all was carried".to_owned();
            let error = Error::Unavailable { what: remote.name.clone(), reason };
            self.inner.broken(&error);
        }
    }
}
