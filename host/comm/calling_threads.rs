//! Whether ranks of one process are called by threads of their own. It is found out while they call, and all of them find the same.
//!
//! With a thread a rank, each wait of one rank for another is a switch of threads, and a call with few waits is the fastest, as between
//! processes. One thread that calls for all ranks runs their blocks in turns, and waits for nobody. The tuner has a model for each
//! ([`Situation::with_threads`](ferroccl_topology::graph::tuning::Situation::with_threads)).
//!
//! All ranks of a communicator have to choose the same for a call, and may be calls apart. So the ranks of a process, where a communicator
//! has no others, share the number of the call from which on they count as apart: one that none of them had begun when it was set.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError, Weak};

use ferroccl_topology::graph::tuning::Tuner;

/// [`CallingThreads::apart_from`] while one thread calls for all ranks, as far as is known.
const NEVER: u64 = u64::MAX;
/// The same while somebody sets it.
const BEING_SET: u64 = u64::MAX - 1;

/// The threads that call for the ranks of a communicator that is within a process.
#[derive(Debug)]
pub(super) struct CallingThreads {
    ranks: Box<[CalledRank]>,
    /// The first call of ranks that are called by threads of their own.
    apart_from: AtomicU64,
    setting: Mutex<()>,
    tuner: OnceLock<Tuner>,
}

/// A rank's last call. On cache lines of its own, which its caller writes with each call.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CalledRank {
    /// Its number; 0 before the first.
    call: AtomicU64,
    /// The thread that makes it.
    thread: AtomicU64,
}

/// Those of the communicators of this process, by their groups.
static GROUPS: LazyLock<Mutex<HashMap<u64, Weak<CallingThreads>>>> = LazyLock::new(Mutex::default);

thread_local! {
    /// A number that no other thread has, nor has had.
    static THREAD: u64 = {
        static LAST: AtomicU64 = AtomicU64::new(0);
        LAST.fetch_add(1, Ordering::Relaxed) + 1
    };
}

impl CallingThreads {
    fn new(nranks: u32) -> Self {
        CallingThreads {
            ranks: (0..nranks).map(|_| CalledRank::default()).collect(),
            apart_from: AtomicU64::new(NEVER),
            setting: Mutex::new(()),
            tuner: OnceLock::new(),
        }
    }

    /// The calling threads of a group of `nranks` ranks, the same for each of them.
    pub(super) fn of_group(group: u64, nranks: u32) -> Arc<Self> {
        let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(threads) = groups.get(&group).and_then(Weak::upgrade) {
            return threads;
        }
        groups.retain(|_, threads| threads.strong_count() > 0);
        let threads = Arc::new(CallingThreads::new(nranks));
        groups.insert(group, Arc::downgrade(&threads));
        threads
    }

    /// Gives it the tuner of ranks that are apart, by `make` the first time. It is the same whoever makes it.
    pub(super) fn with_tuner(self: Arc<Self>, make: impl FnOnce() -> Tuner) -> Arc<Self> {
        self.tuner.get_or_init(make);
        self
    }

    /// That tuner.
    pub(super) fn tuner(&self) -> Option<&Tuner> {
        self.tuner.get()
    }

    /// A rank begins call `seq`, the first of which is 1: whether the ranks are called by threads of their own. All ranks get the same
    /// answer for a call, however often they ask.
    #[inline]
    pub(super) fn are_apart(&self, rank: u32, seq: u64) -> bool {
        let Some(mine) = self.ranks.get(rank as usize) else { return false };
        // SeqCst, as all loads and stores of the two: either this sees that the number is being set, or who sets it sees this call.
        mine.call.store(seq, Ordering::SeqCst);
        match self.apart_from.load(Ordering::SeqCst) {
            NEVER => {
                let thread = THREAD.try_with(|thread| *thread).unwrap_or(0);
                if mine.thread.load(Ordering::Relaxed) != thread {
                    mine.thread.store(thread, Ordering::Relaxed);
                    return self.look(seq);
                }
                false
            }
            BEING_SET => {
                drop(self.setting.lock().unwrap_or_else(PoisonError::into_inner));
                seq >= self.apart_from.load(Ordering::SeqCst)
            }
            from => seq >= from,
        }
    }

    /// Looks whether ranks have made call `seq` by several threads. The lock has each caller see those that have looked before it.
    #[cold]
    fn look(&self, seq: u64) -> bool {
        let _guard = self.setting.lock().unwrap_or_else(PoisonError::into_inner);
        let from = self.apart_from.load(Ordering::SeqCst);
        if from != NEVER {
            return seq >= from;
        }
        // Not of ranks that are behind: a thread that has taken over from another comes to them yet.
        let there = self.ranks.iter().filter(|rank| rank.call.load(Ordering::SeqCst) >= seq);
        let mut threads = there.map(|rank| rank.thread.load(Ordering::Relaxed));
        let first = threads.next();
        if threads.any(|thread| Some(thread) != first && thread != 0) {
            self.apart_from.store(BEING_SET, Ordering::SeqCst);
            let calls = self.ranks.iter().map(|rank| rank.call.load(Ordering::SeqCst));
            self.apart_from.store(calls.max().unwrap_or(seq) + 1, Ordering::SeqCst);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn one_thread_calls_for_all_ranks_whichever_it_is() {
        let threads = CallingThreads::new(3);
        let call = |seq| (0..3).any(|rank| threads.are_apart(rank, seq));
        assert!(!call(1) && !call(2));
        thread::scope(|scope| assert!(!scope.spawn(|| call(3) || call(4)).join().unwrap()));
        assert!(!call(5));
        assert_eq!(threads.apart_from.load(Ordering::SeqCst), NEVER);
    }

    #[test]
    fn a_thread_a_rank_is_noticed_with_the_first_call_of_all() {
        let threads = CallingThreads::new(2);
        assert!(!threads.are_apart(0, 1));
        // The other is behind, by three calls.
        assert!(!threads.are_apart(0, 4));
        thread::scope(|scope| {
            let answers = || [1, 2, 3, 4, 5].map(|seq| threads.are_apart(1, seq));
            assert_eq!(scope.spawn(answers).join().unwrap(), [false, false, false, false, true]);
        });
        // The same again, as after a call that could not be made.
        assert!(!threads.are_apart(0, 4));
        assert!(threads.are_apart(0, 5) && threads.are_apart(0, 6));
    }

    #[test]
    fn all_ranks_get_the_same_answer_for_a_call() {
        const CALLS: u64 = 300;
        for _ in 0..200 {
            let threads = &CallingThreads::new(4);
            let answers: Vec<Vec<bool>> = thread::scope(|scope| {
                let rank = |rank| {
                    scope.spawn(move || {
                        (1..=CALLS).map(|seq| threads.are_apart(rank, seq)).collect()
                    })
                };
                let ranks: Vec<_> = (0..4).map(rank).collect();
                ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
            });
            assert!(answers.iter().all(|rank| *rank == answers[0]), "{answers:?}");
            assert!(answers[0].is_sorted(), "{answers:?}");
        }
    }

    #[test]
    fn ranks_of_a_group_share_their_calling_threads() {
        let (group, other) = (u64::MAX - 7, u64::MAX - 8);
        let threads = CallingThreads::of_group(group, 2);
        assert!(Arc::ptr_eq(&threads, &CallingThreads::of_group(group, 2)));
        assert!(!Arc::ptr_eq(&threads, &CallingThreads::of_group(other, 2)));
        // What nobody has any more is forgotten.
        let before = Arc::downgrade(&threads);
        drop(threads);
        assert!(before.upgrade().is_none());
        assert_eq!(CallingThreads::of_group(group, 5).ranks.len(), 5);
    }
}
