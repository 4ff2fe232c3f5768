//! Jobs: what waits for other ranks, in a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use crate::answer::{Failure, words};

/// What a job does.
pub(crate) type Run = Box<dyn FnOnce() -> Result<(), Failure> + Send>;

/// A job that has been started.
#[derive(Debug, Default)]
pub(crate) struct Job {
    result: OnceLock<Result<(), Failure>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Job {
    /// Starts it in a thread.
    pub(crate) fn start(run: Run) -> Result<Arc<Job>, Failure> {
        let job = Arc::new(Job::default());
        let own = Arc::clone(&job);
        let thread = std::thread::Builder::new().name("ferroccl-init".to_owned());
        let thread = thread.spawn(move || drop(own.result.set(caught(run))));
        let thread =
            thread.map_err(|e| ferroccl::Error::system("thread of a call in progress", e))?;
        *job.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(job)
    }

    /// Whether it has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.result.get().is_some()
    }

    /// Waits for its end.
    pub(crate) fn wait(&self) -> Result<(), Failure> {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // What it panics with has been caught.
            let _ = thread.join();
        }
        self.result.wait().clone()
    }
}

/// Runs a job on this thread.
pub(crate) fn caught(run: Run) -> Result<(), Failure> {
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|panic| Err(Failure::internal(format!("panicked: {}", words(&*panic)))))
}
