//! What a thread does that has nothing to run: it spins, then gives its core away with `sched_yield`, then sleeps.
//!
//! To give a core away is the right thing where the others on it are ranks as well: they bring what is waited for. But a process of
//! somebody else's that never waits keeps the core for its whole time slice, some milliseconds, in each wait of each call. A thread
//! that sleeps instead has not used its share of the core when it wakes, and gets it at once. So a thread notes how long its yields
//! take, and where they take time slices it sleeps (`benches/records/2026-11-29-beside-a-busy-process.md`).

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

/// What a thread that cannot go on does about it: each call is one more rung down.
#[derive(Default)]
pub(super) struct Backoff {
    looks: u32,
    since: Option<Instant>,
    nap: Duration,
}

impl Backoff {
    /// Looks before the first yield, while another thread drives. They are few: with more threads than cores the driver may be the
    /// thread that needs this core. With 64 of them 4 threads on 2 cores took 6 to 20 us for 8 bytes, with 4 of them 6 to 14
    /// (`benches/records/2026-11-26-processes.md`).
    const IDLE_SPINS: u32 = 4;
    /// For how long a thread yields whose work others do.
    const IDLE_YIELDS: Duration = Duration::from_micros(100);
    /// For how long it then sleeps at most; it is woken when its stream is done or has no driver.
    const IDLE_NAP: Duration = Duration::from_millis(20);
    /// For how long the driver of a stuck queue yields. 16 processes on 2 cores, each with a chunk to
    /// reduce (some 50 us), come round in 400 us; a wait that outlives this is not about load.
    const STUCK_YIELDS: Duration = Duration::from_millis(2);
    /// Its first and its longest nap.
    const STUCK_NAPS: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(1));

    /// Something moved.
    #[inline]
    pub(super) fn reset(&mut self) {
        *self = Backoff::default();
    }

    /// All is done by other threads. `Some` time to sleep, or `None` to look again at once. `a_core` is how many ranks share a core.
    pub(super) fn idle(&mut self, a_core: impl Fn() -> usize) -> Option<Duration> {
        self.looks += 1;
        if self.looks <= Self::IDLE_SPINS {
            std::hint::spin_loop();
            return None;
        }
        self.yield_for(Self::IDLE_YIELDS, a_core).then_some(Self::IDLE_NAP)
    }

    /// The blocks this thread drives do not move (it has spun already).
    pub(super) fn stuck(&mut self, a_core: impl Fn() -> usize) -> Option<Duration> {
        if !self.yield_for(Self::STUCK_YIELDS, a_core) {
            return None;
        }
        let (first, longest) = Self::STUCK_NAPS;
        self.nap = (self.nap * 2).clamp(first, longest);
        Some(self.nap)
    }

    /// Yields, unless it has for `time` or yields are slow; then it says so.
    fn yield_for(&mut self, time: Duration, a_core: impl Fn() -> usize) -> bool {
        let now = Instant::now();
        if now.duration_since(*self.since.get_or_insert(now)) >= time || YIELDS.get().slow(now) {
            return true;
        }
        thread::yield_now();
        let end = Instant::now();
        if end.duration_since(now) >= Yields::SLICE && a_core() <= Yields::CROWD {
            YIELDS.set(YIELDS.get().after_slice(now, end));
        }
        false
    }
}

thread_local! {
    static YIELDS: Cell<Yields> = const { Cell::new(Yields::NONE) };
}

/// What a thread knows of its yields.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Yields {
    /// When the last one ended that took a time slice, or until when this thread sleeps where it would yield.
    last: Option<Instant>,
    /// For how long it does, from the end of such a yield on.
    sleeps: Duration,
}

impl Yields {
    const NONE: Yields = Yields { last: None, sleeps: Duration::ZERO };
    /// A yield that took as long was a time slice of somebody who did not wait: 3 ms, with Linux's defaults on 2 cores.
    const SLICE: Duration = Duration::from_millis(2);
    /// With more ranks than that on a core it may have been the turns of ranks as well. Of 16 ranks on 2 cores with 16 MiB each a
    /// yield takes 2 to 7 ms, and with sleeps instead a call takes a tenth longer.
    const CROWD: usize = 4;
    /// One follows another within this time beside a process that is always busy. While ranks set themselves up they have such yields
    /// too, but 20 ms apart.
    const TOGETHER: Duration = Duration::from_millis(10);
    /// For how long a thread sleeps where it would yield, at first and at most. Each time it then yields again: if that takes a
    /// time slice, nothing has changed.
    const SLEEPS: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(256));

    /// Whether a thread that waits sleeps now.
    #[inline]
    fn slow(self, now: Instant) -> bool {
        !self.sleeps.is_zero() && self.last.is_some_and(|until| now < until)
    }

    /// After a yield of at least [`SLICE`](Self::SLICE).
    #[cold]
    fn after_slice(self, start: Instant, end: Instant) -> Yields {
        if self.last.is_none_or(|last| start.duration_since(last) > Self::TOGETHER) {
            return Yields { last: Some(end), sleeps: Duration::ZERO };
        }
        let (first, longest) = Self::SLEEPS;
        let sleeps = (self.sleeps * 2).clamp(first, longest);
        Yields { last: Some(end + sleeps), sleeps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Yields of a thread, each of 3 ms, that follow each other after `gap`; it sleeps where it would.
    fn beside_a_busy_process(yields: &mut Yields, now: &mut Instant, gap: Duration) {
        while yields.slow(*now) {
            *now += MS;
        }
        *now += gap;
        *yields = yields.after_slice(*now, *now + 3 * MS);
        *now += 3 * MS;
    }

    #[test]
    fn beside_a_busy_process_a_thread_sleeps_for_longer_and_longer() {
        let (mut yields, mut now, start) = (Yields::NONE, Instant::now(), Instant::now());
        beside_a_busy_process(&mut yields, &mut now, MS);
        assert!(!yields.slow(now), "one may be by chance");
        for sleeps in [4, 8, 16, 32, 64, 128, 256, 256] {
            beside_a_busy_process(&mut yields, &mut now, MS);
            assert_eq!(yields.sleeps, sleeps * MS);
            assert!(yields.slow(now) && yields.slow(now + (yields.sleeps - MS)));
            assert!(!yields.slow(now + yields.sleeps));
        }
        assert!(now - start < 600 * MS);
    }

    #[test]
    fn time_slices_that_are_far_apart_change_nothing() {
        let (mut yields, mut now) = (Yields::NONE, Instant::now());
        for _ in 0..20 {
            beside_a_busy_process(&mut yields, &mut now, 11 * MS);
            assert!(!yields.slow(now));
        }
    }

    #[test]
    fn when_the_busy_process_has_gone_a_thread_yields_again_and_begins_anew() {
        let (mut yields, mut now) = (Yields::NONE, Instant::now());
        for _ in 0..6 {
            beside_a_busy_process(&mut yields, &mut now, MS);
        }
        assert!(yields.slow(now));
        // It sleeps to the end, and its yields are short then. Much later one is long again.
        now += yields.sleeps;
        assert!(!yields.slow(now));
        beside_a_busy_process(&mut yields, &mut now, 1000 * MS);
        assert!(!yields.slow(now));
        beside_a_busy_process(&mut yields, &mut now, MS);
        assert_eq!(yields.sleeps, Yields::SLEEPS.0);
    }

    /// The time that a thread sleeps at once for is the first of its naps; those of one wait grow.
    #[test]
    fn a_thread_that_sleeps_does_so_at_its_first_wait() {
        YIELDS.set(Yields { last: Some(Instant::now() + Duration::from_secs(3600)), sleeps: MS });
        let mut backoff = Backoff::default();
        let nap = backoff.stuck(|| 1);
        assert_eq!(nap, Some(Backoff::STUCK_NAPS.0));
        assert!(backoff.stuck(|| 1) > nap);
        backoff.reset();
        assert_eq!(backoff.stuck(|| 1), nap);
        YIELDS.set(Yields::NONE);
        assert_eq!(Backoff::default().stuck(|| 1), None);
    }
}
