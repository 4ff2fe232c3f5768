//! Who has a rank's state: its owners, which keep it, and visitors, which look in from threads of their own.
//!
//! ```text
//! Communicator, launches, proxy operations  ─► SharedComm   owner: the last one drops the state, in its own thread
//! watch, warnings, dumps, abort handles     ─► WeakComm ─► CommVisit   never the last one
//! ```
//!
//! Dropping the state tells the other ranks that this one leaves. A program may end as soon as its communicators are
//! dropped, and its threads end with it: if a visitor's thread were to drop the state, the others would not be told.

use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;
use std::time::Duration;

use tracing::warn;

use super::state::CommState;
use crate::log;

/// How long the last owner waits for visitors. They stay for two seconds at most, to ask other ranks; only code of the user's,
/// such as a subscriber of log messages, may take longer.
const LONGEST_VISIT: Duration = Duration::from_secs(10);

/// Owns the state of a rank, with its clones. The last one waits until nobody visits the state, and drops it.
#[derive(Clone, Debug)]
pub(super) struct SharedComm(Arc<Owned>);

#[derive(Debug)]
struct Owned {
    state: Arc<CommState>,
    door: Arc<Door>,
}

/// Where visitors come in while the state has an owner.
#[derive(Debug)]
struct Door {
    state: Weak<CommState>,
    visitors: Mutex<Visitors>,
    /// A visitor has left.
    left: Condvar,
}

#[derive(Debug)]
struct Visitors {
    /// Whether there is an owner.
    open: bool,
    /// The threads of those inside.
    inside: Vec<ThreadId>,
}

/// Does not keep the state.
#[derive(Clone, Debug)]
pub(super) struct WeakComm(Arc<Door>);

/// Has the state for a moment.
#[derive(Debug)]
pub(super) struct CommVisit {
    state: Arc<CommState>,
    /// Declared behind `state`, to be dropped after it.
    _inside: Inside,
}

/// Is among those inside.
#[derive(Debug)]
struct Inside {
    door: Arc<Door>,
    thread: ThreadId,
}

impl SharedComm {
    /// The first owner.
    pub(super) fn new(state: CommState) -> Self {
        let state = Arc::new(state);
        let visitors = Mutex::new(Visitors { open: true, inside: Vec::new() });
        let door = Door { state: Arc::downgrade(&state), visitors, left: Condvar::new() };
        SharedComm(Arc::new(Owned { state, door: Arc::new(door) }))
    }

    /// For visitors.
    pub(super) fn downgrade(&self) -> WeakComm {
        WeakComm(Arc::clone(&self.0.door))
    }

    /// How many own the state, this one among them.
    pub(super) fn owners(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Whether both own the same state.
    pub(super) fn is(&self, other: &SharedComm) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Deref for SharedComm {
    type Target = CommState;

    fn deref(&self) -> &CommState {
        &self.0.state
    }
}

impl Drop for Owned {
    /// The last owner goes. The state is dropped behind this.
    fn drop(&mut self) {
        if !self.door.close() {
            warn!(target: log::INIT, "rank {}: somebody still looks at the communicator after {} s: the other ranks may not \
                  hear that it leaves", self.state.rank, LONGEST_VISIT.as_secs());
        }
    }
}

impl Door {
    fn visitors(&self) -> MutexGuard<'_, Visitors> {
        self.visitors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets nobody in any more, and waits for those inside, but not for this thread if it is one of them; whether they have
    /// left.
    fn close(&self) -> bool {
        let me = std::thread::current().id();
        let mut visitors = self.visitors();
        visitors.open = false;
        let waited = self.left.wait_timeout_while(visitors, LONGEST_VISIT, |visitors| {
            visitors.inside.iter().any(|thread| *thread != me)
        });
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl WeakComm {
    /// The state, if it has an owner.
    pub(super) fn visit(&self) -> Option<CommVisit> {
        let mut visitors = self.0.visitors();
        if !visitors.open {
            return None;
        }
        // The last owner closes the door before it lets go.
        let state = self.0.state.upgrade()?;
        let thread = std::thread::current().id();
        visitors.inside.push(thread);
        Some(CommVisit { state, _inside: Inside { door: Arc::clone(&self.0), thread } })
    }

    /// Whether the state has an owner.
    pub(super) fn has_owner(&self) -> bool {
        self.0.visitors().open
    }
}

impl Deref for CommVisit {
    type Target = CommState;

    fn deref(&self) -> &CommState {
        &self.state
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut visitors = self.door.visitors();
        if let Some(index) = visitors.inside.iter().position(|thread| *thread == self.thread) {
            visitors.inside.swap_remove(index);
        }
        drop(visitors);
        self.door.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::LONGEST_VISIT;
    use crate::Device;
    use crate::comm::Communicator;

    fn alone() -> Communicator {
        Communicator::init_all(&Device::cpu(), 1).unwrap().remove(0)
    }

    #[test]
    fn the_last_owner_waits_for_a_visitor_and_drops_the_state() {
        let comm = alone();
        let state = Arc::downgrade(&comm.0.0.state);
        let (weak, left) = (comm.0.downgrade(), Arc::new(AtomicBool::new(false)));
        let (inside, entered) = mpsc::channel();
        let visitor = thread::spawn({
            let (weak, left) = (weak.clone(), Arc::clone(&left));
            move || {
                let visit = weak.visit().expect("the state has an owner");
                inside.send(()).unwrap();
                thread::sleep(Duration::from_millis(200));
                // Relaxed: who reads it has taken the door's lock after this thread.
                left.store(true, Ordering::Relaxed);
                drop(visit);
            }
        });
        entered.recv().unwrap();
        drop(comm);
        assert!(left.load(Ordering::Relaxed), "the owner did not wait");
        assert_eq!(state.strong_count(), 0, "the state is still there");
        assert!(!weak.has_owner() && weak.visit().is_none());
        visitor.join().unwrap();
    }

    #[test]
    fn an_owner_that_visits_does_not_wait_for_itself() {
        let comm = alone();
        let visit = comm.0.downgrade().visit().unwrap();
        let begin = Instant::now();
        drop(comm);
        // Not a timing: the owner would wait for as long as it ever does.
        assert!(begin.elapsed() < LONGEST_VISIT);
        assert_eq!(visit.rank, 0);
    }

    #[test]
    fn one_of_several_owners_waits_for_nobody() {
        let comm = alone();
        let another = comm.0.clone();
        let visit = another.downgrade().visit().unwrap();
        let dropped = thread::spawn(move || drop(comm));
        dropped.join().unwrap();
        assert!(another.is(&another.clone()) && visit.nranks == 1);
        drop(visit);
        assert!(another.downgrade().has_owner());
    }
}
