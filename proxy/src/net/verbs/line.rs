//! What both ends of a connection have.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ibverbs_sys as sys;

use super::config::VerbsConfig;
use super::context::Of;
use super::control::{Control, Introduction, Said};
use super::device::{Address, Link, Port};
use super::memory::{self, Region};
use super::pair::{Completions, Done, Pair, Work};
use super::{NAME, error};
use crate::NetError;
use crate::net::end::End;
use crate::net::memory::Memory;
use crate::net::{MemoryHandle, MemoryKind};

/// How often one that waits looks whether the other end is still there: a system call, which takes as long as some looks
/// for completions. Not measured; a part of what people notice.
const LOOK: Duration = Duration::from_millis(1);

/// How long what the other end says to be done may take to be done here: it is in the device by then, or on its way back.
const GRACE: Duration = Duration::from_secs(1);

/// Bytes of one write at most, whatever the device would take: half of what a length of 32 bits allows.
const MAX_WRITE: u32 = 1 << 31;

/// What a connection that is being made has of a port.
pub(super) struct Half {
    pub(super) port: Arc<Port>,
    pub(super) config: Arc<VerbsConfig>,
    address: Address,
    psn: u32,
    completions: Arc<Completions>,
    pairs: Vec<Pair>,
}

impl Half {
    /// With so many queue pairs to connect, and room for completions of `spare` more.
    pub(super) fn new(
        port: &Arc<Port>,
        config: &Arc<VerbsConfig>,
        pairs: usize,
        spare: usize,
    ) -> Result<Half, String> {
        let name = port.name();
        let address = port.address(config.gid_index)?;
        let psn = getrandom::u32().map_err(|e| e.to_string())? & 0xff_ffff;
        let completions = Completions::new(&port.context, pairs + spare)
            .map_err(|e| format!("{name}: no completion queue: {e}"))?;
        let pairs = (0..pairs)
            .map(|_| Pair::new(port, &completions, config))
            .collect::<io::Result<_>>()
            .map_err(|e| format!("{name}: no queue pair: {e}"))?;
        let (port, config) = (Arc::clone(port), Arc::clone(config));
        Ok(Half { port, config, address, psn, completions, pairs })
    }

    /// What the other end needs to know; it may write to `memory`.
    pub(super) fn introduction(&self, split: bool, memory: (u64, u32)) -> Introduction {
        Introduction {
            link: self.port.link,
            address: self.address,
            psn: self.psn,
            split,
            memory,
            pairs: self.pairs.iter().map(|pair| pair.number).collect(),
        }
    }

    /// Connects the queue pairs with those of the other end.
    pub(super) fn connect(&self, theirs: &Introduction) -> Result<(), String> {
        let (name, ours) = (self.port.name(), (&*self.port, &self.address));
        if theirs.link != self.port.link {
            let (a, b) = (self.port.link, theirs.link);
            return Err(format!("{name} is of {a:?}, the other port of {b:?}"));
        }
        if theirs.pairs.len() != self.pairs.len() {
            let (a, b) = (self.pairs.len(), theirs.pairs.len());
            return Err(format!("{a} queue pairs are to meet {b}"));
        }
        for (pair, &number) in self.pairs.iter().zip(&theirs.pairs) {
            let psns = (self.psn, theirs.psn);
            pair.connect(ours, (&theirs.address, number), psns, &self.config).map_err(|e| {
                format!("{name}: queue pair {} cannot be connected: {e}", pair.number)
            })?;
        }
        Ok(())
    }

    /// A queue pair that is connected with itself.
    pub(super) fn own(
        port: &Port,
        config: &VerbsConfig,
        completions: &Arc<Completions>,
    ) -> Result<Pair, String> {
        let address = port.address(config.gid_index)?;
        let name = port.name();
        let fails = |e: io::Error| format!("{name}: no queue pair to flush with: {e}");
        let pair = Pair::new(port, completions, config).map_err(fails)?;
        pair.connect((port, &address), (&address, pair.number), (0, 0), config).map_err(fails)?;
        Ok(pair)
    }

    pub(super) fn line(self, control: Control, peer: SocketAddr, theirs: &Introduction) -> Line {
        let Half { port, config, address, completions, pairs, .. } = self;
        let max_write = address.max_message.min(theirs.address.max_message).clamp(1, MAX_WRITE);
        Line {
            pairs,
            completions,
            memory: Memory::new(NAME),
            port,
            config,
            control,
            end: End::new(NAME, peer),
            theirs: theirs.memory,
            max_write,
            filled: 0,
            ending: None,
            done: VecDeque::new(),
            look: Instant::now(),
        }
    }
}

/// Why the other end has ended.
#[derive(Debug)]
struct Ending {
    /// Requests that are filled, as far as it knew.
    filled: u64,
    reason: String,
    since: Instant,
}

/// An end of a connection.
#[derive(Debug)]
pub(super) struct Line {
    /// Dropped first, so that no memory is touched any more; gone when it is broken.
    pub(super) pairs: Vec<Pair>,
    pub(super) completions: Arc<Completions>,
    /// What is empty is not registered.
    pub(super) memory: Memory<Option<Arc<Region>>>,
    pub(super) port: Arc<Port>,
    pub(super) config: Arc<VerbsConfig>,
    control: Control,
    pub(super) end: End,
    /// What we write to at the other end besides its buffers.
    pub(super) theirs: (u64, u32),
    /// Bytes of a write at most.
    pub(super) max_write: u32,
    /// Requests of the receiver that are filled, as far as this end knows.
    pub(super) filled: u64,
    ending: Option<Ending>,
    /// Completions that have been fetched.
    done: VecDeque<Done>,
    /// When to look after the other end again.
    look: Instant,
}

impl Line {
    /// Registers memory.
    ///
    /// # Safety
    /// As [`SendComm::register`](crate::net::SendComm::register).
    pub(super) unsafe fn register(
        &mut self,
        address: *mut u8,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError> {
        let region = match (bytes, kind) {
            (0, MemoryKind::Host) => None,
            _ => {
                let place = (address as usize, bytes);
                let relaxed = self.config.relaxed_ordering;
                // SAFETY: the caller's.
                Some(unsafe { memory::register(&self.port.context, place, kind, relaxed)? })
            }
        };
        Ok(self.memory.add(address, bytes, region))
    }

    /// Ends it: the other end learns of it and why, and no buffer is touched any more.
    pub(super) fn fail(&mut self, reason: String) {
        if !self.end.is_broken() {
            self.control.end(self.filled, &reason);
            self.end.breaks(reason);
            self.pairs.clear();
            self.done.clear();
        }
    }

    /// Whether packets may take several ways, so that what is notified should not be part of what may.
    pub(super) fn adapts(&self) -> bool {
        self.config.adaptive_routing.unwrap_or(self.port.link == Link::InfiniBand)
    }

    /// The queue pairs that a request's messages go over: all, or one in turn.
    pub(super) fn pairs_of(&mut self, sequence: u64, split: bool) -> &mut [Pair] {
        match self.pairs.len() {
            0 => &mut [],
            _ if split => &mut self.pairs,
            n => {
                let one = (sequence % n as u64) as usize;
                &mut self.pairs[one..=one]
            }
        }
    }

    /// Gives the device what it has room for.
    pub(super) fn pump(&mut self) {
        // SAFETY: what is posted is of messages and buffers that are under way, which nobody else touches, or words.
        let failed = self.pairs.iter_mut().find_map(|pair| unsafe { pair.pump() }.err());
        if let Some(failed) = failed {
            self.fail(format!("{}: a work request is refused: {failed}", self.port.name()));
        }
    }

    /// The next completion. One that failed ends the connection.
    pub(super) fn next(&mut self) -> Option<Done> {
        if self.done.is_empty()
            && let Err(failed) = self.completions.poll(&mut self.done)
        {
            self.fail(format!("{}: completions cannot be polled: {failed}", self.port.name()));
        }
        let done = self.done.pop_front()?;
        if done.failed.is_some() {
            let cause = self.cause(done);
            let mut reason = self.explain(&cause);
            // The other end may know more.
            self.hear();
            if let (true, Some(ending)) = (is_flushed(&cause), &self.ending) {
                reason += &format!("; {}", ending.reason);
            }
            self.fail(reason);
            return None;
        }
        if !matches!(done.work, Work::Arrived(_)) {
            let pair = self.pairs.iter_mut().find(|pair| pair.number == done.pair);
            pair.into_iter().for_each(Pair::completed);
        }
        Some(done)
    }

    /// Of a failed completion and those behind it, the one that says why: what was under way beside it is only flushed.
    fn cause(&mut self, failed: Done) -> Done {
        if !is_flushed(&failed) {
            return failed;
        }
        // It ends in any case: that this fails, too, says nothing new.
        let _ = self.completions.poll(&mut self.done);
        let behind = self.done.iter().find(|done| done.failed.is_some() && !is_flushed(done));
        behind.copied().unwrap_or(failed)
    }

    fn explain(&self, done: &Done) -> String {
        let (name, what) = (self.port.name(), done.work.what());
        let (status, vendor) = done.failed.unwrap_or_default();
        let text = self.port.context.library.status(status);
        let mut reason = format!(
            "{name}, queue pair {}: {what} failed: {text} (status {status}, vendor error {vendor:#x})",
            done.pair
        );
        if let Some(event) = self.event() {
            reason += &format!("; {event}");
        }
        if self.port.context.events.is_down(self.port.number) {
            reason += "; the port is down";
        }
        reason
    }

    /// What has happened to the device that this connection cannot go on after.
    fn event(&self) -> Option<String> {
        self.port.context.events.fatal(|of| match of {
            Of::Device => true,
            Of::Pair(number) => self.pairs.iter().any(|pair| pair.number == number),
            Of::Completions(address) => self.completions.address() == address,
        })
    }

    /// Ends when the other end has, once what it knows to be done is done here, too: so what has arrived can be had, and what
    /// was sent counts as sent. To be called when completions have been looked for; `moved` is whether there were any.
    pub(super) fn settle(&mut self, moved: bool) {
        if let Some(ending) = &mut self.ending {
            if self.filled >= ending.filled || ending.since.elapsed() > GRACE {
                let reason = std::mem::take(&mut ending.reason);
                self.fail(reason);
            }
        } else if !moved {
            self.look();
        }
    }

    /// Looks, now and then, whether the other end has ended, or is gone.
    fn look(&mut self) {
        let now = Instant::now();
        if now < self.look || self.end.is_broken() {
            return;
        }
        self.look = now + LOOK;
        if let Some(event) = self.event() {
            return self.fail(format!("{}: {event}", self.port.name()));
        }
        self.hear();
    }

    /// Takes what the other end says, if it has not ended.
    fn hear(&mut self) {
        if self.ending.is_some() {
            return;
        }
        let (filled, reason) = match self.control.hear() {
            Ok(None) => return,
            Ok(Some(Said::Farewell { filled, reason })) if reason.is_empty() => {
                (filled, "it closed the connection".to_owned())
            }
            Ok(Some(Said::Farewell { filled, reason })) => {
                (filled, format!("it ended the connection: {reason}"))
            }
            Ok(Some(said)) => {
                return self.fail(format!("it says {said:?}, where it is to be silent"));
            }
            Err(reason) => (0, reason),
        };
        self.ending = Some(Ending { filled, reason, since: Instant::now() });
    }

    /// An error of an operation that leaves the connection as it is.
    pub(super) fn error(&self, operation: &'static str, reason: impl Into<String>) -> NetError {
        error(operation, reason)
    }
}

/// Whether it failed for no reason of its own: the queue pair was in the error state.
fn is_flushed(done: &Done) -> bool {
    done.failed.is_some_and(|(status, _)| status == sys::ibv_wc_status::IBV_WC_WR_FLUSH_ERR)
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.end.is_broken() {
            self.control.end(self.filled, "");
        }
    }
}
