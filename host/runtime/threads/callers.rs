//! The threads of the user that launch and wait. Each has a number, by which an executor has a queue for it and knows whether it goes on.

use std::cell::OnceCell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::runtime::sync::lock;

/// Queues for callers. Of more threads some share one.
pub(super) const CALLERS: usize = 64;

/// A thread that launches or waits, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallerId(usize);

/// Which numbers threads of this process have.
static TAKEN: Mutex<Vec<bool>> = Mutex::new(Vec::new());

/// The lowest number that no other thread has. It is free again when its thread ends.
struct TakenNumber(usize);

impl TakenNumber {
    fn take() -> Self {
        let mut taken = lock(&TAKEN);
        let free = taken.iter().position(|taken| !taken).unwrap_or(taken.len());
        match taken.get_mut(free) {
            Some(taken) => *taken = true,
            None => taken.push(true),
        }
        TakenNumber(free)
    }
}

impl Drop for TakenNumber {
    fn drop(&mut self) {
        if let Some(taken) = lock(&TAKEN).get_mut(self.0) {
            *taken = false;
        }
    }
}

thread_local! {
    static NUMBER: OnceCell<TakenNumber> = const { OnceCell::new() };
}

impl CallerId {
    /// This thread.
    #[inline]
    pub(super) fn current() -> CallerId {
        // A thread whose locals are gone has none: it shares that of another, as one of too many does.
        let number = NUMBER.try_with(|number| number.get_or_init(TakenNumber::take).0);
        CallerId(number.unwrap_or(0) % CALLERS)
    }

    /// Below [`CALLERS`].
    #[inline]
    pub(super) fn index(self) -> usize {
        self.0
    }

    /// What [`CallerId::index`] gave.
    #[inline]
    pub(super) fn of_index(index: usize) -> CallerId {
        CallerId(index % CALLERS)
    }
}

/// What the callers of an executor do.
pub(super) struct Callers {
    states: [CallerState; CALLERS],
    /// Callers up to the last that has had a queue, or has waited.
    used: AtomicUsize,
}

/// On a cache line of its own, which its caller writes with each pass.
#[derive(Default)]
#[repr(align(128))]
struct CallerState {
    /// Threads in `Executor::wait` that do not sleep: one, if no two have this number.
    attending: AtomicUsize,
    /// Their passes over the queues so far: whether they go on. One may be in a host function of the user's that waits for something.
    passes: AtomicU64,
}

impl Default for Callers {
    fn default() -> Self {
        Callers {
            states: std::array::from_fn(|_| CallerState::default()),
            used: AtomicUsize::new(0),
        }
    }
}

impl Callers {
    /// How many may have something in their queues: those of higher numbers have not come yet.
    #[inline]
    pub(super) fn count(&self) -> usize {
        // SeqCst, as the queues' loads: a worker that goes to sleep either sees the queue, or the launch sees that it sleeps.
        self.used.load(Ordering::SeqCst)
    }

    /// Those.
    pub(super) fn used(&self) -> impl Iterator<Item = CallerId> + use<> {
        (0..self.count()).map(CallerId)
    }

    /// Called before a caller waits, and before something is put into its queue.
    #[inline]
    pub(super) fn mark_used(&self, caller: CallerId) {
        if self.count() <= caller.0 {
            self.used.fetch_max(caller.0 + 1, Ordering::SeqCst);
        }
    }

    /// A caller begins a pass.
    #[inline]
    pub(super) fn count_pass(&self, caller: CallerId) {
        // Whether it changes is what counts: of two threads at the same time one may be lost.
        let passes = &self.states[caller.0].passes;
        passes.store(passes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// A thread is among those that attend to the queues, until this is dropped.
    #[inline]
    pub(super) fn attend(&self, caller: CallerId) -> Attends<'_> {
        let state = &self.states[caller.0];
        state.attending.fetch_add(1, Ordering::Relaxed);
        Attends(state)
    }

    /// Whether a thread of this number attends.
    pub(super) fn attends(&self, caller: CallerId) -> bool {
        self.states[caller.0].attending.load(Ordering::Relaxed) > 0
    }

    /// Whether it does, and has made passes since this was asked last, with the same `seen`.
    pub(super) fn goes_on(&self, caller: CallerId, seen: &mut SeenPasses) -> bool {
        let now = self.states[caller.0].passes.load(Ordering::Relaxed);
        std::mem::replace(&mut seen.0[caller.0], now) != now && self.attends(caller)
    }
}

/// The passes of each caller at some time.
pub(super) struct SeenPasses([u64; CALLERS]);

impl Default for SeenPasses {
    fn default() -> Self {
        SeenPasses([0; CALLERS])
    }
}

/// A thread among those that attend to the queues.
pub(super) struct Attends<'a>(&'a CallerState);

impl Drop for Attends<'_> {
    fn drop(&mut self) {
        self.0.attending.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_threads_own_until_it_ends() {
        let here = CallerId::current();
        assert_eq!(here, CallerId::current());
        let other = std::thread::spawn(CallerId::current).join().unwrap();
        assert_ne!(here, other);
        // Other tests take numbers too: that some of many threads, one after the other, get one again is what can be said.
        let numbers: Vec<usize> = (0..1000)
            .map(|_| std::thread::spawn(|| TakenNumber::take().0).join().unwrap())
            .collect();
        assert!(numbers.iter().all(|number| *number < 1000), "{numbers:?}");
    }
}
