//! The root: where ranks that know only an id find each other.
//!
//! Each rank says who it is and where it listens, and keeps its connection. When all are there the root
//! tells each where those listen that it is to connect to (`links`), and ends; it knows nothing of what they do then. A rank whose
//! connection breaks before that was never there and may come again; when all have left, the root stays for as
//! long as the last of them would have waited. The first rank's size of the group counts. When one rank's time is
//! up, the group cannot become complete: all that wait are told who is missing, and the root ends.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferroccl_handshake::{Key, nonce};

use super::acceptor::{Arrival, MemberAcceptor};
use super::limit::Deadline;
use super::link::Link;
use super::links;
use super::wire::{MAX_NAMED, MAX_RANKS, Message, MissingRanks, Refusal};
use crate::error::{BootstrapError, Result};
use crate::settings::LOG_TARGET;

/// A rank that waits for the group.
struct Waiting {
    link: Link,
    listener: SocketAddr,
    until: Instant,
}

struct Root {
    acceptor: MemberAcceptor,
    world_size: Option<u32>,
    /// By rank.
    waiting: BTreeMap<u32, Waiting>,
    /// All ranks that came have left; until then the last of them would have waited.
    abandoned: Option<Instant>,
}

/// A root that runs. Dropping this ends it and waits until its port is free again: the next group may meet
/// at the same place.
#[derive(Debug)]
pub(super) struct RootThread {
    /// Closed to end the root, which has the other end.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for RootThread {
    fn drop(&mut self) {
        self.stop = None;
        // A root never panics; if it does all the same, its port is free too.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Starts a root on `listener`. It ends when its group is complete or has failed, and when `stop` is closed.
fn spawn(
    listener: TcpListener,
    key: Key,
    patience: Duration,
    stop: Option<UnixStream>,
) -> Result<JoinHandle<()>> {
    let address = listener
        .local_addr()
        .map_err(|e| BootstrapError::system("address of the root's socket", e))?;
    let acceptor = MemberAcceptor::new(listener, key, patience, format!("root {address}"));
    let root = Root { acceptor, world_size: None, waiting: BTreeMap::new(), abandoned: None };
    std::thread::Builder::new()
        .name("ferroccl-root".to_owned())
        .spawn(move || root.run(stop.as_ref(), address))
        .map_err(|e| BootstrapError::system("thread of the root", e))
}

/// Starts a root that lives until its group is complete or has failed.
pub(super) fn spawn_detached(listener: TcpListener, key: Key, patience: Duration) -> Result<()> {
    spawn(listener, key, patience, None).map(drop)
}

/// Starts a root that also ends when the handle is dropped.
pub(super) fn spawn_held(
    listener: TcpListener,
    key: Key,
    patience: Duration,
) -> Result<RootThread> {
    let (ours, theirs) =
        UnixStream::pair().map_err(|e| BootstrapError::system("socket pair of the root", e))?;
    let thread = spawn(listener, key, patience, Some(theirs))?;
    Ok(RootThread { stop: Some(ours), thread: Some(thread) })
}

impl Root {
    fn run(mut self, stop: Option<&UnixStream>, address: SocketAddr) {
        tracing::info!(target: LOG_TARGET, "root listens on {address}");
        // Nobody hears this thread's result; every rank that waits sees its connection close.
        match self.gather(stop) {
            Ok(true) => tracing::info!(target: LOG_TARGET, "root {address}: all ranks are there"),
            Ok(false) => tracing::info!(target: LOG_TARGET, "root {address}: ends unfinished"),
            Err(e) => tracing::warn!(target: LOG_TARGET, "root {address}: {e}"),
        }
    }

    /// Serves until the group is complete: `true`, or cannot become it.
    fn gather(&mut self, stop: Option<&UnixStream>) -> Result<bool> {
        loop {
            let first = self.waiting.values().map(|w| w.until).min();
            let deadline = first.or(self.abandoned).map(Deadline::at);
            let ranks: Vec<u32> = self.waiting.keys().copied().collect();
            let (arrivals, ready) = {
                let links = self.waiting.values().map(|w| w.link.as_fd());
                let others: Vec<_> = links.chain(stop.map(AsFd::as_fd)).collect();
                self.acceptor
                    .serve(&others, deadline.as_ref())
                    .map_err(|e| BootstrapError::system("sockets of the root", e))?
            };
            if stop.is_some() && ready.last() == Some(&true) {
                return Ok(false);
            }
            // First who left: its place is free for who has come since.
            for rank in ranks.iter().zip(&ready).filter_map(|(rank, ready)| ready.then_some(rank)) {
                self.heard(*rank);
            }
            for arrival in arrivals {
                self.admit(arrival);
            }
            if self.is_complete() {
                return self.complete().map(|()| true);
            }
            if self.abandoned.is_some_and(|until| until <= Instant::now()) {
                return Ok(false);
            }
            if self.waiting.values().any(|w| w.until <= Instant::now()) {
                self.give_up();
                return Ok(false);
            }
        }
    }

    /// Whether all ranks are there. Who said so may have left before it was heard.
    fn is_complete(&mut self) -> bool {
        let all_came = |root: &Self| root.world_size == u32::try_from(root.waiting.len()).ok();
        if all_came(self) {
            let ranks: Vec<u32> = self.waiting.keys().copied().collect();
            ranks.into_iter().for_each(|rank| self.heard(rank));
        }
        all_came(self)
    }

    /// Looks whether a waiting rank is still there: it says nothing, so if its connection has anything it is gone or confused.
    fn heard(&mut self, rank: u32) {
        let Some(waiting) = self.waiting.get_mut(&rank) else { return };
        let reason = match waiting.link.read_some() {
            Ok(None) => return,
            Ok(Some(_)) => "it spoke out of turn".to_owned(),
            Err(e) => e.to_string(),
        };
        let address = waiting.link.address;
        self.acceptor.log(address, &format_args!("rank {rank} is no longer waiting: {reason}"));
        let left = self.waiting.remove(&rank);
        if self.waiting.is_empty() {
            self.abandoned = left.map(|rank| rank.until);
            self.world_size = None; // nobody is bound to it any more
        }
    }

    fn admit(&mut self, arrival: Arrival) {
        let Arrival { mut link, message } = arrival;
        let Message::Hello { rank, world_size, wait_ms, listener } = message else {
            return self.acceptor.refuse(&mut link, Refusal::NotExpected);
        };
        // Its place is free if who had it has left by now.
        self.heard(rank);
        let ours = self.world_size.unwrap_or(world_size);
        let refusal = if rank >= world_size || world_size > MAX_RANKS {
            Refusal::RankOutOfRange { rank, world_size }
        } else if world_size != ours {
            Refusal::OtherWorldSize { theirs: world_size, ours }
        } else if self.waiting.contains_key(&rank) {
            Refusal::RankTwice { rank }
        } else {
            self.world_size = Some(world_size);
            self.abandoned = None;
            let until = Instant::now() + Duration::from_millis(wait_ms.into());
            self.waiting.insert(rank, Waiting { link, listener, until });
            return;
        };
        self.acceptor.refuse(&mut link, refusal);
    }

    /// Tells every rank where those listen that it is to connect to.
    fn complete(&mut self) -> Result<()> {
        let session = nonce().map_err(|e| BootstrapError::system("random nonce", e))?;
        // All are there: a rank's place is its number.
        let listeners: Vec<SocketAddr> = self.waiting.values().map(|w| w.listener).collect();
        let nranks = self.waiting.len() as u32;
        for (rank, waiting) in &mut self.waiting {
            let called = links::called_by(*rank, nranks).map(|to| listeners[to as usize]).collect();
            // A rank that is gone by now is missed by its neighbours.
            waiting.link.send_last(&Message::Welcome { session, called });
        }
        Ok(())
    }

    /// Tells all who wait that others did not come.
    fn give_up(&mut self) {
        let world_size = self.world_size.unwrap_or(0);
        let missing = (0..world_size).filter(|rank| !self.waiting.contains_key(rank));
        let missing = MissingRanks {
            world_size,
            count: world_size - u32::try_from(self.waiting.len()).unwrap_or(world_size),
            named: missing.take(MAX_NAMED).collect(),
        };
        tracing::warn!(target: LOG_TARGET, "root gives up: {missing}");
        for waiting in self.waiting.values_mut() {
            waiting.link.send_last(&Message::Refused(Refusal::MissingRanks(missing.clone())));
        }
    }
}

/// The first free port of those the root may have, taken.
pub(super) fn listen_on_first_free(addresses: &[SocketAddr]) -> io::Result<TcpListener> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match super::acceptor::listen(*address) {
            Ok(listener) => return Ok(listener),
            Err(e) => last = e,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;
    use ferroccl_handshake::wire::REJECT;

    use crate::acceptor::listen;
    use crate::link::tests::ends;

    fn key() -> Key {
        Key::derive(&[1; 32], "test", &[0; 16])
    }

    /// What a stranger hears until the root hangs up, while it is silent or says a hello byte by byte.
    fn heard(root: SocketAddr, speaks: bool) -> Vec<u8> {
        let mut stream = TcpStream::connect(root).unwrap();
        let mut speaker = stream.try_clone().unwrap();
        let trickle = std::thread::spawn(move || {
            // A legal beginning, slowly: it is never clear that it is nonsense.
            let hello = b"FerroHsC\x03\0\0\0";
            for byte in hello.iter().chain(&[0; 40]).take(if speaks { 52 } else { 0 }) {
                if speaker.write_all(&[*byte]).is_err() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let mut heard = Vec::new();
        // Reset or closed: either is the end.
        let _ = stream.read_to_end(&mut heard);
        trickle.join().unwrap();
        heard
    }

    #[test]
    fn who_is_silent_or_slow_is_shown_out() {
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let patience = Duration::from_millis(150);
        let root = spawn_held(listener, key(), patience).unwrap();
        for speaks in [false, true] {
            let heard = heard(address, speaks);
            assert_eq!(heard, b"FerroHsR\x03\0\0\0\x04\0\0\0", "too slow; speaks: {speaks}");
            assert_eq!(heard.len(), REJECT);
        }
        drop(root);
        assert!(TcpStream::connect(address).is_err(), "the port is free");
    }

    #[test]
    fn who_left_before_it_was_heard_keeps_no_place_and_completes_no_group() {
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let patience = Duration::from_secs(30);
        let acceptor = MemberAcceptor::new(listener, key(), patience, "root".to_owned());
        let mut root =
            Root { acceptor, world_size: None, waiting: BTreeMap::new(), abandoned: None };
        let listener = SocketAddr::from(([127, 0, 0, 1], 9));
        let come = |root: &mut Root, rank, stays: bool| {
            let (theirs, link) = ends();
            let (address, theirs) = (link.address, stays.then_some(theirs));
            let message = Message::Hello { rank, world_size: 2, wait_ms: 60_000, listener };
            root.admit(Arrival { link, message });
            (address, theirs)
        };
        let _zero = come(&mut root, 0, true);
        come(&mut root, 1, false);
        assert!(!root.is_complete(), "rank 1 has left");
        come(&mut root, 1, false);
        let (address, _one) = come(&mut root, 1, true);
        assert_eq!(root.waiting[&1].link.address, address);
        assert!(root.is_complete());
        // Who is there keeps its place.
        come(&mut root, 1, true);
        assert_eq!(root.waiting[&1].link.address, address);
    }

    #[test]
    fn a_port_is_free_when_its_root_is_dropped() {
        let mut listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        for _ in 0..500 {
            drop(spawn_held(listener, key(), Duration::from_secs(1)).unwrap());
            listener = listen(address).unwrap();
        }
    }
}
