//! Who is still there: the ring as a life line.
//!
//! A thread sleeps on the two connections of the ring. A process that ends, however it ends, has its
//! connections closed by the system, and its neighbours see that at once. A rank that means to leave says
//! goodbye first; without that it is lost. Neighbours pass the news on, so that every rank learns of the
//! same first cause; each rank is reported once. A rank whose communicator fails can tell all others why, the same way:
//! news of a few bytes, which mean nothing here. Of each rank only the first news count. A status is passed on in the same
//! way as often as a rank has one.
//!
//! A host that disappears without closing anything is found by its silence, where the neighbours have agreed on a
//! [`Heartbeat`], and else by TCP's keep-alive, in half a minute.

use std::collections::{HashSet, VecDeque};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferroccl_handshake::Key;
use nix::poll::{PollFd, PollFlags};

use super::departure::Departure;
use super::gather::Gathers;
use super::limit::{Deadline, Limit};
use super::link::{Link, LinkError, is_ready, wait};
use super::ring::{Ring, next_of, prev_of};
use super::wire::Message;
use crate::error::{BootstrapError, Result};
use crate::settings::LOG_TARGET;

/// How long a leaving rank tries to say goodbye to a neighbour that does not read.
const FAREWELL: Duration = Duration::from_secs(1);

/// The tag of a heartbeat: nothing else is in it.
const BEAT: u64 = u64::from_be_bytes(*b"\0\0\0\0beat");
/// The tag of news: 4 bytes of the rank that they are of, and they.
const NEWS: u64 = u64::from_be_bytes(*b"\0\0\0\0news");
/// The tag of what a rank says in an all-gather: 4 bytes of the call's number, 4 of the rank, and that.
const GATHER: u64 = u64::from_be_bytes(*b"\0\0gather");
/// The tag of a status: 4 bytes of the rank that it is of, and it.
const STATUS: u64 = u64::from_be_bytes(*b"\0\0status");
/// Bytes of news at most, of a status, and of what a rank says in an all-gather.
pub(super) const MAX_NEWS: usize = 4096;

/// How neighbours show that they are there. All ranks need the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// They say something at least so often.
    pub every: Duration,
    /// Who says nothing for so long is lost; several times `every`.
    pub limit: Duration,
}

impl Heartbeat {
    /// For ranks that wait for each other at most so long: who is silent for half of that is lost, before anybody's time is
    /// up; but not before a second, which a busy machine may take, and after half a minute in any case.
    #[must_use]
    pub fn within(timeout: Duration) -> Self {
        Self::of_limit((timeout / 2).clamp(Duration::from_secs(1), Duration::from_secs(30)))
    }

    /// Who is silent for so long is lost. Neighbours say something eight times as often.
    #[must_use]
    pub fn of_limit(limit: Duration) -> Self {
        Heartbeat { every: limit / 8, limit }
    }
}

/// What a rank has told all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News<'a> {
    /// By [`Watch::tell`]: the first of that rank.
    First(&'a [u8]),
    /// By [`Watch::publish`].
    Status(&'a [u8]),
}

/// Watches over the group while it lives; dropping it says goodbye to the neighbours.
#[derive(Debug)]
pub struct Watch {
    /// What only the ranks of this group have.
    key: Key,
    /// `None` in a group of one.
    thread: Option<Thread>,
}

#[derive(Debug)]
struct Thread {
    /// Written to wake the thread, closed to wake it for the last time.
    wake: UnixStream,
    handle: JoinHandle<()>,
    /// What is to be told.
    outbox: Outbox,
    gathers: Arc<Gathers>,
    rank: u32,
    address: SocketAddr,
}

/// Tags and bytes.
type Outbox = Arc<Mutex<VecDeque<(u64, Vec<u8>)>>>;

impl Watch {
    /// Of a group of one: nobody can go.
    pub(super) fn alone(key: Key) -> Self {
        Watch { key, thread: None }
    }

    /// What only the ranks of this group have.
    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    pub(super) fn start(
        ring: Ring,
        address: SocketAddr,
        key: Key,
        heartbeat: Option<Heartbeat>,
        on_gone: impl FnMut(Departure) + Send + 'static,
        on_news: impl FnMut(u32, News<'_>) + Send + 'static,
    ) -> Result<Self> {
        let (ours, theirs) = UnixStream::pair()
            .map_err(|e| BootstrapError::system("socket pair of the watch", e))?;
        for end in [&ours, &theirs] {
            end.set_nonblocking(true)
                .map_err(|e| BootstrapError::system("socket pair of the watch", e))?;
        }
        let outbox = Outbox::default();
        let (rank, nranks) = (ring.rank, ring.nranks);
        let gathers = Arc::new(Gathers::new(rank, nranks));
        let sides = [
            Side::new(ring.next, next_of(rank, nranks)),
            Side::new(ring.prev, prev_of(rank, nranks)),
        ];
        let watcher = Watcher {
            rank,
            nranks,
            wake: theirs,
            outbox: Arc::clone(&outbox),
            gathers: Arc::clone(&gathers),
            sides,
            heartbeat,
            known: HashSet::from([rank]),
            heard: HashSet::from([rank]),
            on_gone,
            on_news,
        };
        let handle = std::thread::Builder::new()
            .name("ferroccl-watch".to_owned())
            .spawn(move || watcher.run())
            .map_err(|e| BootstrapError::system("thread of the watch", e))?;
        let thread = Thread { wake: ours, handle, outbox, gathers, rank, address };
        Ok(Watch { key, thread: Some(thread) })
    }

    /// Tells all ranks something, once: of each rank they hear the first news only. What is longer than [`MAX_NEWS`] is not
    /// told.
    pub fn tell(&self, news: &[u8]) {
        if let Some(thread) = self.thread.as_ref().filter(|_| news.len() <= MAX_NEWS) {
            let news = [&thread.rank.to_le_bytes(), news].concat();
            thread.put(NEWS, news);
        }
    }

    /// Tells all ranks something, any number of times. What is longer than [`MAX_NEWS`] is not told.
    pub fn publish(&self, status: &[u8]) {
        if let Some(thread) = self.thread.as_ref().filter(|_| status.len() <= MAX_NEWS) {
            thread.put(STATUS, [&thread.rank.to_le_bytes(), status].concat());
        }
    }

    /// Gives every rank's bytes, at most [`MAX_NEWS`], to every rank, in the order of ranks. Collective. Not from the
    /// callbacks.
    ///
    /// # Errors
    /// [`BootstrapError::InvalidArgument`] when there are more; else as [`Gathers::all_gather`].
    pub fn all_gather(&self, mine: &[u8], limit: &Limit) -> Result<Vec<Vec<u8>>> {
        if mine.len() > MAX_NEWS {
            let reason = format!("{} bytes are more than {MAX_NEWS}", mine.len());
            return Err(BootstrapError::argument("mine", reason));
        }
        let Some(thread) = &self.thread else { return Ok(vec![mine.to_vec()]) };
        thread.gathers.all_gather(mine, limit, |call| {
            let bytes = [&call.to_le_bytes(), &thread.rank.to_le_bytes(), mine].concat();
            thread.put(GATHER, bytes);
        })
    }

    /// Where other ranks have reached this one; of a group of one, loopback.
    pub fn address(&self) -> SocketAddr {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        self.thread.as_ref().map_or(loopback, |thread| thread.address)
    }

    /// Leaves the group: tells the neighbours, and returns when they have been told. The same as dropping.
    pub fn goodbye(self) {}
}

impl Thread {
    /// Has the thread tell something.
    fn put(&self, tag: u64, bytes: Vec<u8>) {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner).push_back((tag, bytes));
        // It is either woken by this or, where the socket is full of wake-ups, by one of those.
        let _ = (&self.wake).write(&[0]);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(Thread { wake, handle, .. }) = self.thread.take() else { return };
        drop(wake);
        // The callback itself may drop the watch; its thread then ends by itself.
        if handle.thread().id() != std::thread::current().id() {
            // A callback that panicked has said so already.
            let _ = handle.join();
        }
    }
}

/// One neighbour.
struct Side {
    peer: u32,
    /// `None` once it is gone.
    link: Option<Link>,
    /// What it must still be told.
    unsent: Vec<u8>,
    /// When it was last heard, and told something.
    heard: Instant,
    told: Instant,
}

impl Side {
    fn new(link: Link, peer: u32) -> Self {
        let now = Instant::now();
        Side { peer, link: Some(link), unsent: Vec::new(), heard: now, told: now }
    }

    fn tell(&mut self, message: &Message) {
        if let Some(link) = &mut self.link {
            self.unsent.extend(link.seal(message));
            self.told = Instant::now();
            self.flush();
        }
    }

    /// Writes what can be written. A broken connection shows when it is read.
    fn flush(&mut self) {
        if let Some(link) = &mut self.link {
            match link.write_some(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(_) => self.unsent.clear(),
            }
        }
    }
}

struct Watcher<F, N> {
    rank: u32,
    nranks: u32,
    wake: UnixStream,
    outbox: Outbox,
    gathers: Arc<Gathers>,
    /// Next and previous; in a group of two the same rank.
    sides: [Side; 2],
    heartbeat: Option<Heartbeat>,
    /// Who has been reported; ourselves from the start, we know better.
    known: HashSet<u32>,
    /// Whose news have been passed on.
    heard: HashSet<u32>,
    on_gone: F,
    on_news: N,
}

impl<F: FnMut(Departure), N: FnMut(u32, News<'_>)> Watcher<F, N> {
    fn run(mut self) {
        loop {
            let ready = match self.sleep() {
                Ok(ready) => ready,
                Err(e) => {
                    let reason = format!("rank {} can no longer watch it: {e}", self.rank);
                    for side in 0..2 {
                        let peer = self.sides[side].peer;
                        self.report(Departure::Lost { peer, reason: reason.clone() }, side);
                    }
                    return;
                }
            };
            if ready[0] {
                let over = self.is_over();
                self.tell();
                if over {
                    return self.leave();
                }
            }
            for side in 0..2 {
                self.sides[side].flush();
                if ready[1 + side] {
                    self.sides[side].heard = Instant::now();
                    self.listen(side);
                }
                if let Some(heartbeat) = self.heartbeat {
                    self.keep_in_touch(side, heartbeat);
                }
            }
        }
    }

    /// Says something to a neighbour that has not heard from us, and gives up one that says nothing.
    fn keep_in_touch(&mut self, side: usize, heartbeat: Heartbeat) {
        let Side { peer, link, heard, told, .. } = &self.sides[side];
        if link.is_none() {
            return;
        }
        let (peer, silent, quiet) = (*peer, heard.elapsed(), told.elapsed());
        if quiet >= heartbeat.every {
            self.sides[side].tell(&Message::Data { tag: BEAT, bytes: Vec::new() });
        }
        if silent >= heartbeat.limit {
            self.sides[side].link = None;
            let why = format!(
                "it has said nothing for {:.1} s: it is stopped, or its host or the way to it is down",
                silent.as_secs_f64()
            );
            self.report(lost(peer, &why), side);
        }
    }

    /// Sleeps until the wake-up or a side moves, or it is time to say something.
    fn sleep(&self) -> std::io::Result<[bool; 3]> {
        let mut fds = vec![PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        let mut place = [None; 2];
        for (side, place) in self.sides.iter().zip(&mut place) {
            if let Some(link) = &side.link {
                let out =
                    if side.unsent.is_empty() { PollFlags::empty() } else { PollFlags::POLLOUT };
                *place = Some(fds.len());
                fds.push(PollFd::new(link.as_fd(), PollFlags::POLLIN | out));
            }
        }
        let until = self.heartbeat.map(|heartbeat| Deadline::within(heartbeat.every));
        wait(&mut fds, until.as_ref())?;
        let ready = |place: Option<usize>| place.is_some_and(|i| is_ready(&fds[i]));
        Ok([is_ready(&fds[0]), ready(place[0]), ready(place[1])])
    }

    /// Takes all wake-ups; whether the other end is closed.
    fn is_over(&mut self) -> bool {
        use std::io::ErrorKind::{Interrupted, WouldBlock};
        loop {
            match self.wake.read(&mut [0; 64]) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) => return !matches!(e.kind(), Interrupted | WouldBlock),
            }
        }
    }

    /// Tells both sides our news, and the next our status and what we say in all-gathers.
    fn tell(&mut self) {
        let all = std::mem::take(&mut *self.outbox.lock().unwrap_or_else(PoisonError::into_inner));
        for (tag, bytes) in all {
            if tag == NEWS {
                self.sides[1].tell(&Message::Data { tag, bytes: bytes.clone() });
            }
            self.sides[0].tell(&Message::Data { tag, bytes });
        }
    }

    /// What a rank says in an all-gather; `None` when it is nothing.
    fn gather(&mut self, bytes: &[u8], from: usize) -> Option<()> {
        let (call, rest) = bytes.split_first_chunk::<4>()?;
        let (rank, said) = rest.split_first_chunk::<4>()?;
        let (call, rank) = (u32::from_le_bytes(*call), u32::from_le_bytes(*rank));
        // It comes from the rank before, and never again.
        if from != 1 || rank == self.rank || rank >= self.nranks || said.len() > MAX_NEWS {
            return None;
        }
        if rank != self.sides[0].peer {
            self.sides[0].tell(&Message::Data { tag: GATHER, bytes: bytes.to_vec() });
        }
        self.gathers.heard(call, rank, said.to_vec());
        Some(())
    }

    /// The status of a rank; `None` when it is none.
    fn status(&mut self, bytes: &[u8], from: usize) -> Option<()> {
        let (rank, status) = bytes.split_first_chunk::<4>()?;
        let rank = u32::from_le_bytes(*rank);
        // It comes from the rank before, and goes around once.
        if from != 1 || rank == self.rank || rank >= self.nranks || status.len() > MAX_NEWS {
            return None;
        }
        if rank != self.sides[0].peer {
            self.sides[0].tell(&Message::Data { tag: STATUS, bytes: bytes.to_vec() });
        }
        (self.on_news)(rank, News::Status(status));
        Some(())
    }

    /// News of a rank, which another one has passed on; `None` when they are none.
    fn hear(&mut self, tag: u64, bytes: &[u8], from: usize) -> Option<()> {
        let (rank, news) = bytes.split_first_chunk::<4>()?;
        let rank = u32::from_le_bytes(*rank);
        if tag != NEWS || rank >= self.nranks || news.len() > MAX_NEWS {
            return None;
        }
        if self.heard.insert(rank) {
            self.sides[1 - from].tell(&Message::Data { tag, bytes: bytes.to_vec() });
            (self.on_news)(rank, News::First(news));
        }
        Some(())
    }

    /// Reads all that a neighbour said.
    fn listen(&mut self, side: usize) {
        loop {
            let peer = self.sides[side].peer;
            let Some(link) = &mut self.sides[side].link else { return };
            let departure = match link.read_some() {
                Ok(None) => return,
                Ok(Some(frame)) => match frame.message() {
                    Ok(Message::Goodbye) => Departure::Left { peer },
                    Ok(Message::Gone { peer, reason }) if peer < self.nranks => {
                        let departure = match reason {
                            None => Departure::Left { peer },
                            Some(reason) => Departure::Lost { peer, reason },
                        };
                        self.report(departure, side);
                        continue;
                    }
                    Ok(Message::Data { tag: BEAT, bytes }) if bytes.is_empty() => continue,
                    Ok(Message::Data { tag: GATHER, bytes }) => match self.gather(&bytes, side) {
                        Some(()) => continue,
                        None => lost(peer, "it sent what has no place here"),
                    },
                    Ok(Message::Data { tag: STATUS, bytes }) => match self.status(&bytes, side) {
                        Some(()) => continue,
                        None => lost(peer, "it sent what has no place here"),
                    },
                    Ok(Message::Data { tag, bytes }) => match self.hear(tag, &bytes, side) {
                        Some(()) => continue,
                        None => lost(peer, "it sent what has no place here"),
                    },
                    Ok(_) => lost(peer, "it sent what has no place here"),
                    Err(e) => lost(peer, &e.to_string()),
                },
                Err(LinkError::Closed { .. }) => {
                    lost(peer, "its connection closed without a goodbye: its process has ended")
                }
                Err(e) => lost(peer, &e.to_string()),
            };
            self.sides[side].link = None;
            self.report(departure, side);
            return;
        }
    }

    /// Tells the caller and the other side, once for each rank.
    fn report(&mut self, departure: Departure, from: usize) {
        if !self.known.insert(departure.peer()) {
            return;
        }
        let (peer, reason) = match departure.clone() {
            Departure::Lost { peer, reason } => (peer, Some(reason)),
            Departure::Left { peer } => (peer, None),
        };
        tracing::info!(target: LOG_TARGET, "rank {}: rank {peer} is gone: {}", self.rank,
            reason.as_deref().unwrap_or("it has left"));
        self.sides[1 - from].tell(&Message::Gone { peer, reason });
        self.gathers.gone(&departure);
        (self.on_gone)(departure);
    }

    fn leave(mut self) {
        let until = &Deadline::within(FAREWELL);
        for side in &mut self.sides {
            side.tell(&Message::Goodbye);
        }
        for side in &mut self.sides {
            if let Some(link) = &mut side.link {
                let _ = link.write_all(&side.unsent, until);
            }
        }
        // Who hears a goodbye hangs up, and who leaves, too, has said goodbye. Before that the connection stays: if the neighbour sent
        // something to a closed one, or what it has sent were unread, the system would reset it, and a goodbye that is lost on the
        // way would not be sent again.
        for link in self.sides.iter_mut().filter_map(|side| side.link.as_mut()) {
            while let Ok(frame) = link.read(until) {
                if matches!(frame.message(), Ok(Message::Goodbye)) {
                    break;
                }
            }
        }
    }
}

fn lost(peer: u32, reason: &str) -> Departure {
    Departure::Lost { peer, reason: reason.to_owned() }
}

#[cfg(test)]
#[path = "watch/tests.rs"]
mod tests;
