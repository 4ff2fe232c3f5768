//! A connection with one rank, as one thread serves many: what is to be said waits where the system has no room.

use std::os::fd::AsFd as _;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags};

use super::limit::Deadline;
use super::link::Link;
use super::wire::Message;

/// A rank on the other side of a connection.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) peer: u32,
    /// `None` before it has come, and once it is gone.
    pub(super) link: Option<Link>,
    /// What it must still be told.
    unsent: Vec<u8>,
    /// When it was last heard, and told something.
    pub(super) heard: Instant,
    pub(super) told: Instant,
}

impl Side {
    pub(super) fn new(peer: u32, link: Option<Link>) -> Self {
        let now = Instant::now();
        Side { peer, link, unsent: Vec::new(), heard: now, told: now }
    }

    pub(super) fn tell(&mut self, message: &Message) {
        if let Some(link) = &mut self.link {
            let frame = link.seal(message);
            self.told = Instant::now();
            if self.unsent.is_empty() {
                self.unsent = frame;
            } else {
                self.unsent.extend(frame);
            }
            self.flush();
        }
    }

    /// Writes what can be written. A broken connection shows when it is read.
    pub(super) fn flush(&mut self) {
        if let Some(link) = self.link.as_mut().filter(|_| !self.unsent.is_empty()) {
            match link.write_some(&self.unsent) {
                Ok(sent) if sent == self.unsent.len() => self.unsent = Vec::new(),
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(_) => self.unsent.clear(),
            }
        }
    }

    /// Writes all, as far as that can be done until then.
    pub(super) fn write_all(&mut self, until: &Deadline) {
        if let Some(link) = &mut self.link {
            // A broken connection has nobody to tell.
            let _ = link.write_all(&self.unsent, until);
            self.unsent.clear();
        }
    }

    /// It counts from now on when the rank was last heard and told something.
    pub(super) fn now(&mut self) {
        (self.heard, self.told) = (Instant::now(), Instant::now());
    }

    /// Whether all has been written.
    pub(super) fn is_flushed(&self) -> bool {
        self.unsent.is_empty()
    }

    /// What to wait for; `None` for nothing.
    pub(super) fn interest(&self, read: bool) -> Option<PollFd<'_>> {
        let link = self.link.as_ref()?;
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::POLLIN, read);
        flags.set(PollFlags::POLLOUT, !self.unsent.is_empty());
        (!flags.is_empty()).then(|| PollFd::new(link.as_fd(), flags))
    }
}
