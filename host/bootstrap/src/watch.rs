//! Who is still there: the ring as a life line.
//!
//! A thread sleeps on the two connections of the ring. A process that ends, however it ends, has its
//! connections closed by the system, and its neighbours see that at once. A rank that means to leave says
//! goodbye first; without that it is lost. Neighbours pass the news on, so that every rank learns of the
//! same first cause; each rank is reported once. A rank whose communicator fails can tell all others why, the same way:
//! news of a few bytes, which mean nothing here. Of each rank only the first news count. A status is passed on in the same
//! way as often as a rank has one.
//!
//! Ranks that have left are passed on together ([`farewells`]).
//!
//! A host that disappears without closing anything is found by its silence, where the neighbours have agreed on a
//! [`Heartbeat`], and else by TCP's keep-alive, in half a minute.

mod farewells;

use std::collections::{HashSet, VecDeque};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farewells::Farewells;
use ferroccl_handshake::Key;
use nix::poll::{PollFd, PollFlags};

use super::departure::Departure;
use super::doubling::AllGathers;
use super::gather::{Gathers, Told};
use super::limit::{Deadline, Limit};
use super::link::{LinkError, is_ready, wait};
use super::links::{GATHER, Links, NEXT, PREV};
use super::side::Side;
use super::wire::Message;
use crate::error::{BootstrapError, Result};
use crate::settings::LOG_TARGET;

/// How long a leaving rank tries to say goodbye to a neighbour that does not read.
const FAREWELL: Duration = Duration::from_secs(1);

/// The tag of a heartbeat: nothing else is in it.
const BEAT: u64 = u64::from_be_bytes(*b"\0\0\0\0beat");
/// The tag of news: 4 bytes of the rank that they are of, and they.
const NEWS: u64 = u64::from_be_bytes(*b"\0\0\0\0news");
/// The tag of what a rank says that has waited for long in an all-gather: 4 bytes of the call's number, 4 of the rank.
const WAITING: u64 = u64::from_be_bytes(*b"\0waiting");
/// The tag of a status: 4 bytes of the rank that it is of, and it.
const STATUS: u64 = u64::from_be_bytes(*b"\0\0status");
/// Bytes of news at most, of a status, and of a rank's block of an all-gather.
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
        links: Links,
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
        let Links { rank, nranks, mut sides, places, gathers: rounds, .. } = links;
        sides.iter_mut().for_each(Side::now);
        // The ring tells who is gone.
        for link in sides.iter().skip(PREV + 1).filter_map(|side| side.link.as_ref()) {
            link.no_keep_alive()
                .map_err(|e| BootstrapError::system("keep-alive of a connection", e))?;
        }
        let rounds = rounds.limited(MAX_NEWS);
        let gathers = Arc::new(Gathers::beginning(rank, nranks, rounds.call()));
        let watcher = Watcher {
            rank,
            nranks,
            wake: theirs,
            outbox: Arc::clone(&outbox),
            gathers: Arc::clone(&gathers),
            rounds,
            sides,
            places,
            heartbeat,
            known: HashSet::from([rank]),
            farewells: Default::default(),
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
        thread.gathers.all_gather(mine, limit, |what, call| match what {
            Told::Block => thread.put(GATHER, mine.to_vec()),
            Told::Waiting => {
                let bytes = [call.to_le_bytes(), thread.rank.to_le_bytes()].concat();
                thread.put(WAITING, bytes);
            }
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

struct Watcher<F, N> {
    rank: u32,
    nranks: u32,
    wake: UnixStream,
    outbox: Outbox,
    gathers: Arc<Gathers>,
    /// What the all-gathers have come to.
    rounds: AllGathers,
    /// The ring's, which in a group of two are the same rank's, and those of all-gathers, on which nothing else travels.
    sides: Vec<Side>,
    /// The side of each partner in all-gathers.
    places: Vec<usize>,
    heartbeat: Option<Heartbeat>,
    /// Who has been reported; ourselves from the start, we know better.
    known: HashSet<u32>,
    /// Who has left and is still to be passed on, to each of the ring's sides.
    farewells: [Farewells; 2],
    /// Whose news have been passed on.
    heard: HashSet<u32>,
    on_gone: F,
    on_news: N,
}

impl<F: FnMut(Departure), N: FnMut(u32, News<'_>)> Watcher<F, N> {
    fn run(mut self) {
        // What was read along with the end of set-up wakes nobody.
        (0..self.sides.len()).for_each(|side| self.listen(side));
        loop {
            let ready = match self.sleep() {
                Ok(ready) => ready,
                Err(e) => {
                    let reason = format!("rank {} can no longer watch it: {e}", self.rank);
                    for side in RING {
                        let peer = self.sides[side].peer;
                        self.report(Departure::Lost { peer, reason: reason.clone() }, side);
                    }
                    return;
                }
            };
            if ready.wake {
                let over = self.is_over();
                self.tell();
                if over {
                    return self.leave();
                }
            }
            for side in ready.sides {
                self.sides[side].flush();
                self.sides[side].heard = Instant::now();
                self.listen(side);
            }
            if let Some(heartbeat) = self.heartbeat {
                RING.for_each(|side| self.keep_in_touch(side, heartbeat));
            }
            for side in RING {
                if self.farewells[side].due().is_some_and(|due| due <= Instant::now()) {
                    self.say_farewells(side);
                }
            }
        }
    }

    /// Tells a side something, behind the farewells that it is still to hear.
    fn say(&mut self, side: usize, message: &Message) {
        if RING.contains(&side) {
            self.say_farewells(side);
        }
        self.sides[side].tell(message);
    }

    fn say_farewells(&mut self, side: usize) {
        for message in self.farewells[side].take() {
            self.sides[side].tell(&message);
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
            self.say(side, &Message::Data { tag: BEAT, bytes: Vec::new() });
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
    fn sleep(&self) -> std::io::Result<Ready> {
        let mut fds = vec![PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        let mut sides = Vec::with_capacity(self.sides.len());
        for (side, one) in self.sides.iter().enumerate() {
            if let Some(fd) = one.interest(true) {
                sides.push(side);
                fds.push(fd);
            }
        }
        let beat = self.heartbeat.map(|heartbeat| Instant::now() + heartbeat.every);
        let farewells = self.farewells.iter().filter_map(Farewells::due);
        let until = beat.into_iter().chain(farewells).min().map(Deadline::at);
        wait(&mut fds, until.as_ref())?;
        let sides = sides.into_iter().zip(&fds[1..]).filter(|(_, fd)| is_ready(fd));
        Ok(Ready { wake: is_ready(&fds[0]), sides: sides.map(|(side, _)| side).collect() })
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

    /// Tells the ring's sides our news, and the next our status; begins all-gathers.
    fn tell(&mut self) {
        let all = std::mem::take(&mut *self.outbox.lock().unwrap_or_else(PoisonError::into_inner));
        for (tag, bytes) in all {
            if tag == GATHER {
                self.rounds.begin(bytes);
                self.gather();
                continue;
            }
            if tag == NEWS {
                self.say(PREV, &Message::Data { tag, bytes: bytes.clone() });
            }
            self.say(NEXT, &Message::Data { tag, bytes });
        }
    }

    /// Takes the all-gather as far as it goes.
    fn gather(&mut self) {
        while let Some((place, pieces)) = self.rounds.advance() {
            for bytes in pieces {
                self.say(self.places[place], &Message::Data { tag: GATHER, bytes });
            }
        }
        let Some(place) = self.rounds.waits_for() else {
            let call = self.rounds.call();
            if let Some(blocks) = self.rounds.finish() {
                self.gathers.finished(call, &blocks);
            }
            return;
        };
        let Side { peer, link, .. } = &self.sides[self.places[place]];
        self.gathers.waits_for(*peer, link.is_none());
    }

    /// What a partner says in an all-gather; `None` when it is nothing.
    fn hear_blocks(&mut self, piece: &[u8], from: usize) -> Option<()> {
        let place = self.places.iter().position(|side| *side == from)?;
        self.rounds.hear(place, piece).ok()?;
        self.gather();
        Some(())
    }

    /// A rank has waited for long in an all-gather; `None` when none has.
    fn hear_waiting(&mut self, bytes: &[u8], from: usize) -> Option<()> {
        let (call, rank) = bytes.split_first_chunk::<4>()?;
        let (call, rank) = (u32::from_le_bytes(*call), u32::from_le_bytes(rank.try_into().ok()?));
        // It comes from the rank before, and goes around once.
        if from != PREV || rank == self.rank || rank >= self.nranks {
            return None;
        }
        if rank != self.sides[NEXT].peer {
            self.say(NEXT, &Message::Data { tag: WAITING, bytes: bytes.to_vec() });
        }
        self.gathers.is_waiting(call, rank);
        Some(())
    }

    /// The status of a rank; `None` when it is none.
    fn status(&mut self, bytes: &[u8], from: usize) -> Option<()> {
        let (rank, status) = bytes.split_first_chunk::<4>()?;
        let rank = u32::from_le_bytes(*rank);
        // It comes from the rank before, and goes around once.
        if from != PREV || rank == self.rank || rank >= self.nranks || status.len() > MAX_NEWS {
            return None;
        }
        if rank != self.sides[NEXT].peer {
            self.say(NEXT, &Message::Data { tag: STATUS, bytes: bytes.to_vec() });
        }
        (self.on_news)(rank, News::Status(status));
        Some(())
    }

    /// News of a rank, which another one has passed on; `None` when they are none.
    fn hear(&mut self, tag: u64, bytes: &[u8], from: usize) -> Option<()> {
        let (rank, news) = bytes.split_first_chunk::<4>()?;
        let rank = u32::from_le_bytes(*rank);
        if tag != NEWS || !RING.contains(&from) || rank >= self.nranks || news.len() > MAX_NEWS {
            return None;
        }
        if self.heard.insert(rank) {
            let on = if from == NEXT { PREV } else { NEXT };
            self.say(on, &Message::Data { tag, bytes: bytes.to_vec() });
            (self.on_news)(rank, News::First(news));
        }
        Some(())
    }

    /// Reads all that a neighbour said.
    fn listen(&mut self, side: usize) {
        loop {
            let peer = self.sides[side].peer;
            let Some(link) = &mut self.sides[side].link else { return };
            // News of who has gone come around the ring, behind what it has told before; only what makes no sense is told at once.
            let mut is_end = false;
            let departure = match link.read_some() {
                Ok(None) => return,
                Ok(Some(frame)) => match frame.message() {
                    Ok(Message::Goodbye) => {
                        is_end = true;
                        Departure::Left { peer }
                    }
                    Ok(Message::Gone { peer, reason }) if peer < self.nranks => {
                        self.report(Departure::Lost { peer, reason }, side);
                        continue;
                    }
                    Ok(Message::Left { peers })
                        if RING.contains(&side) && peers.iter().all(|peer| *peer < self.nranks) =>
                    {
                        for peer in peers {
                            self.report(Departure::Left { peer }, side);
                        }
                        continue;
                    }
                    Ok(Message::Data { tag: BEAT, bytes }) if bytes.is_empty() => continue,
                    Ok(Message::Data { tag, bytes }) => {
                        let heard = match tag {
                            GATHER => self.hear_blocks(&bytes, side),
                            WAITING => self.hear_waiting(&bytes, side),
                            STATUS => self.status(&bytes, side),
                            _ => self.hear(tag, &bytes, side),
                        };
                        match heard {
                            Some(()) => continue,
                            None => lost(peer, "it sent what has no place here"),
                        }
                    }
                    Ok(_) => lost(peer, "it sent what has no place here"),
                    Err(e) => lost(peer, &e.to_string()),
                },
                Err(LinkError::Closed { .. } | LinkError::Io(_)) if !RING.contains(&side) => {
                    is_end = true;
                    lost(peer, "its connection closed")
                }
                Err(LinkError::Closed { .. }) => {
                    lost(peer, "its connection closed without a goodbye: its process has ended")
                }
                Err(e) => lost(peer, &e.to_string()),
            };
            self.sides[side].link = None;
            if RING.contains(&side) || !is_end {
                self.report(departure, side);
            }
            // An all-gather may wait for it.
            self.gather();
            return;
        }
    }

    /// Tells the caller and the other side, once for each rank.
    fn report(&mut self, departure: Departure, from: usize) {
        if !self.known.insert(departure.peer()) {
            return;
        }
        let others = RING.filter(|side| *side != from);
        match departure.clone() {
            Departure::Left { peer } => {
                tracing::info!(target: LOG_TARGET, "rank {}: rank {peer} has left", self.rank);
                others.for_each(|side| self.farewells[side].add(peer));
            }
            Departure::Lost { peer, reason } => {
                tracing::info!(target: LOG_TARGET, "rank {}: rank {peer} is gone: {reason}", self.rank);
                let gone = Message::Gone { peer, reason };
                others.for_each(|side| self.say(side, &gone));
            }
        }
        self.gathers.gone(&departure);
        (self.on_gone)(departure);
    }

    fn leave(mut self) {
        let until = &Deadline::within(FAREWELL);
        for side in 0..self.sides.len() {
            self.say(side, &Message::Goodbye);
        }
        for side in &mut self.sides {
            side.write_all(until);
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

/// The ring's sides.
const RING: std::ops::RangeInclusive<usize> = NEXT..=PREV;

/// What has moved.
struct Ready {
    wake: bool,
    sides: Vec<usize>,
}

fn lost(peer: u32, reason: &str) -> Departure {
    Departure::Lost { peer, reason: reason.to_owned() }
}

#[cfg(test)]
#[path = "watch/tests.rs"]
mod tests;
