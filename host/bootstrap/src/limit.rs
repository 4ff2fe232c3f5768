//! How long something may take, and what ends it before.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a wait that somebody may end looks whether somebody has.
const LOOK: Duration = Duration::from_millis(20);

/// Wishes that something end before its time: any of several flags.
#[derive(Clone, Debug, Default)]
pub struct Stop(Vec<Arc<AtomicBool>>);

impl Stop {
    /// That of each of `flags`.
    pub fn any(flags: impl IntoIterator<Item = Arc<AtomicBool>>) -> Self {
        Stop(flags.into_iter().collect())
    }

    /// Whether somebody wants it to end.
    pub fn is_set(&self) -> bool {
        // Nothing is published by the flag: it ends a wait.
        self.0.iter().any(|flag| flag.load(Ordering::Relaxed))
    }
}

/// How long each call may take, and what ends it before.
#[derive(Clone, Debug)]
pub struct Limit {
    /// The time.
    pub time: Duration,
    /// What ends it before.
    pub stop: Stop,
}

impl Limit {
    /// A call begins. A limit beyond the clock's end is no limit anybody would notice.
    pub(super) fn start(&self) -> Deadline {
        let now = Instant::now();
        let at = now.checked_add(self.time).unwrap_or(now + Duration::from_secs(1 << 30));
        Deadline { at, stop: self.stop.clone() }
    }
}

/// When something must be over, and what ends it before.
#[derive(Clone, Debug)]
pub(super) struct Deadline {
    at: Instant,
    stop: Stop,
}

impl Deadline {
    /// Then.
    pub(super) fn at(at: Instant) -> Self {
        Deadline { at, stop: Stop::default() }
    }

    /// So long from now on.
    pub(super) fn within(time: Duration) -> Self {
        Limit { time, stop: Stop::default() }.start()
    }

    /// This, or so long from now on if that is sooner.
    pub(super) fn or_within(&self, time: Duration) -> Self {
        self.or_at(Instant::now() + time)
    }

    /// This, or then if that is sooner.
    pub(super) fn or_at(&self, at: Instant) -> Self {
        Deadline { at: self.at.min(at), stop: self.stop.clone() }
    }

    /// So much later.
    pub(super) fn extended(&self, by: Duration) -> Self {
        Deadline { at: self.at + by, stop: self.stop.clone() }
    }

    /// How long there is still.
    pub(super) fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Whether the time is up.
    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.at
    }

    /// Whether somebody wants it to end now.
    ///
    /// # Errors
    /// If so.
    pub(super) fn look(&self) -> io::Result<()> {
        if self.stop.is_set() {
            return Err(io::Error::other("it was aborted"));
        }
        Ok(())
    }

    /// How long to sleep until the next look: to the end, where nobody can end it before.
    pub(super) fn nap(&self) -> Duration {
        let left = self.left();
        if self.stop.0.is_empty() { left } else { left.min(LOOK) }
    }

    /// Sleeps for `time`, or until somebody ends it.
    ///
    /// # Errors
    /// When somebody did.
    pub(super) fn pause(&self, time: Duration) -> io::Result<()> {
        let pause = self.or_within(time);
        while !pause.is_over() {
            pause.look()?;
            std::thread::sleep(pause.nap());
        }
        pause.look()
    }
}
