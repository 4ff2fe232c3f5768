//! Jobs: what waits for other ranks, in a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use crate::answer::{Failure, words};

/// What a job does.
pub(crate) type Run = Box<dyn FnOnce() -> Result<(), Failure> + Send>;

/// A job that has been started.
#[derive(Debug, Default)]
pub(crate) struct Job {
    result: OnceLock<Result<(), Failure>>,
}

impl Job {
    /// Starts several, one after the other, in a thread.
    pub(crate) fn start(runs: Vec<Run>) -> Result<Vec<Arc<Job>>, Failure> {
        let jobs: Vec<Arc<Job>> = runs.iter().map(|_| Arc::default()).collect();
        let own = jobs.clone();
        let thread = std::thread::Builder::new().name("ferroccl-init".to_owned());
        let thread = thread.spawn(move || {
            for (job, run) in own.iter().zip(runs) {
                // Nobody else sets it.
                let _ = job.result.set(caught(run));
            }
        });
        thread.map_err(|e| ferroccl::Error::system("thread of a call in progress", e))?;
        Ok(jobs)
    }

    /// Whether it has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.result.get().is_some()
    }

    /// Waits for its end.
    pub(crate) fn wait(&self) -> Result<(), Failure> {
        self.result.wait().clone()
    }
}

/// Runs a job on this thread.
pub(crate) fn caught(run: Run) -> Result<(), Failure> {
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|panic| Err(Failure::internal(format!("panicked: {}", words(&*panic)))))
}
