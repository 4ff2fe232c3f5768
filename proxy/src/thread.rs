//! The progress loop.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, thread};

use tracing::error;

/// Something that goes on in steps, none of which waits.
///
/// It is dropped when it is done, when it panics, and when the proxy ends before it is done: who waits for it must learn
/// of that by its `Drop`.
pub trait Operation: Send {
    /// Does what can be done at once.
    fn progress(&mut self) -> Progress;
}

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing could be done.
    Idle,
    /// Something was done, and more is to do.
    Moved,
    /// All is done.
    Done,
}

/// Moves each operation a step on and drops those that are done, or panic; whether anything moved.
pub fn round(operations: &mut Vec<Box<dyn Operation>>) -> bool {
    let mut moved = false;
    operations.retain_mut(|operation| {
        let step = AssertUnwindSafe(|| operation.progress());
        let progress = catch_unwind(step).unwrap_or_else(|_| {
            error!("an operation of the proxy panicked");
            Progress::Done
        });
        moved |= progress != Progress::Idle;
        progress != Progress::Done
    });
    moved
}

/// A thread that moves operations on, one after the other, round and round. It starts with the first operation and sleeps
/// while there is none.
///
/// ```
/// use std::sync::mpsc;
///
/// use ferroccl_proxy::{Operation, Progress, Proxy};
///
/// struct Countdown(u32, mpsc::Sender<&'static str>);
/// impl Operation for Countdown {
///     fn progress(&mut self) -> Progress {
///         self.0 -= 1;
///         if self.0 > 0 {
///             return Progress::Moved;
///         }
///         let _ = self.1.send("done");
///         Progress::Done
///     }
/// }
///
/// let (done, was_done) = mpsc::channel();
/// let proxy = Proxy::new("example");
/// proxy.append(Box::new(Countdown(3, done)))?;
/// assert_eq!(was_done.recv(), Ok("done"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Proxy {
    name: &'static str,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Something is in the queue, or it is closed.
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    new: Vec<Box<dyn Operation>>,
    running: bool,
    closed: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("new", &self.new.len()).field("closed", &self.closed).finish()
    }
}

/// Rounds in which nothing moved before the thread sleeps between them.
const IDLE_ROUNDS: u32 = 64;
/// How long it sleeps then: a small part of what a step over a network takes.
const PAUSE: Duration = Duration::from_micros(20);
/// How long after a long time of nothing.
const LONG_PAUSE: Duration = Duration::from_millis(1);
/// Rounds after which that is so: some 20 ms.
const LONG_IDLE: u32 = 1000;

impl Proxy {
    /// A proxy without operations, whose thread will have this name.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Proxy { name, shared: Arc::default() }
    }

    /// Gives it an operation.
    ///
    /// # Errors
    /// When there is no thread and none can be started; the operation is dropped then.
    pub fn append(&self, operation: Box<dyn Operation>) -> io::Result<()> {
        let mut queue = self.shared.lock();
        if !queue.running {
            let shared = Arc::clone(&self.shared);
            thread::Builder::new().name(self.name.to_owned()).spawn(move || shared.run())?;
            queue.running = true;
        }
        queue.new.push(operation);
        drop(queue);
        self.shared.changed.notify_one();
        Ok(())
    }
}

impl Drop for Proxy {
    /// The thread ends, and drops what is not done.
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut operations: Vec<Box<dyn Operation>> = Vec::new();
        let mut idle = 0u32;
        loop {
            let mut queue = self.lock();
            while operations.is_empty() && queue.new.is_empty() && !queue.closed {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                idle = 0;
            }
            if queue.closed {
                let left = std::mem::take(&mut queue.new);
                drop(queue); // an operation's drop may use this proxy
                drop((operations, left));
                return;
            }
            operations.append(&mut queue.new);
            drop(queue);

            idle = if round(&mut operations) { 0 } else { idle.saturating_add(1) };
            if idle >= IDLE_ROUNDS {
                let queue = self.lock();
                let pause = if idle < LONG_IDLE { PAUSE } else { LONG_PAUSE };
                // Woken by a new operation; whether it was that or the time does not matter.
                let _ = self.changed.wait_timeout(queue, pause);
            } else if idle > 0 {
                thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    struct Told<F>(F, mpsc::Sender<&'static str>);

    impl<F: FnMut() -> Progress + Send> Operation for Told<F> {
        fn progress(&mut self) -> Progress {
            (self.0)()
        }
    }

    impl<F> Drop for Told<F> {
        fn drop(&mut self) {
            let _ = self.1.send("dropped");
        }
    }

    #[test]
    fn one_that_waits_holds_nobody_up() {
        let (tell, told) = mpsc::channel();
        let proxy = Proxy::new("test");
        let (open, gate) = mpsc::channel();
        let waits = move || if gate.try_recv().is_ok() { Progress::Done } else { Progress::Idle };
        proxy.append(Box::new(Told(waits, tell.clone()))).unwrap();
        proxy.append(Box::new(Told(|| Progress::Done, tell.clone()))).unwrap();
        assert_eq!(told.recv(), Ok("dropped"));
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "the first is not done");
        open.send(()).unwrap();
        assert_eq!(told.recv(), Ok("dropped"));
        // It sleeps, and goes on.
        proxy.append(Box::new(Told(|| Progress::Done, tell))).unwrap();
        assert_eq!(told.recv(), Ok("dropped"));
    }

    #[test]
    fn a_panic_and_an_end_drop_what_is_left() {
        let (tell, told) = mpsc::channel();
        let proxy = Proxy::new("test");
        proxy.append(Box::new(Told(|| panic!("on purpose"), tell.clone()))).unwrap();
        assert_eq!(told.recv(), Ok("dropped"));
        proxy.append(Box::new(Told(|| Progress::Idle, tell))).unwrap();
        drop(proxy);
        assert_eq!(told.recv(), Ok("dropped"));
    }
}
