//! Calls that have been started.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ferroccl::Stream;
use ferroccl::runtime::Event;
use pyo3::prelude::*;

use crate::communicator::Made;
use crate::errors::{argument, blaming};
use crate::waiting::SLICE;

/// A call that has been started, or that starts with its group.
#[pyclass(frozen, module = "ferroccl._ferroccl")]
pub(crate) struct Call {
    made: Arc<Made>,
    /// Its end; unset while the group of the call is open.
    end: Arc<OnceLock<Event>>,
}

impl Call {
    pub(crate) fn new(made: Arc<Made>, end: Arc<OnceLock<Event>>) -> Self {
        Call { made, end }
    }

    fn end(&self) -> PyResult<&Event> {
        self.end.get().ok_or_else(|| {
            argument("self", "the call is part of a group that has not ended, or that was given up")
        })
    }

    fn outcome(&self, py: Python<'_>, result: ferroccl::Result<()>) -> PyResult<()> {
        result.map_err(|error| {
            // A stream that is stopped for another's failure says less than the communicator does.
            let first = self.made.comm.async_error().err();
            let ranks = first.as_ref().unwrap_or(&error).blamed_ranks();
            blaming(py, &error, ranks)
        })
    }
}

#[pymethods]
impl Call {
    /// Waits until the call has ended. `timeout` is in seconds; `False` when the call has not ended within it, and goes on.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let end = self.end()?;
        let limit = timeout
            .map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX));
        // A limit that no clock reaches is none.
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let stream: &Stream = &self.made.stream;
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let slice = left.map_or(SLICE, |left| left.min(SLICE));
            let result = match end.result() {
                None => py.detach(|| stream.wait_for(end, slice)),
                known => known,
            };
            if let Some(result) = result {
                return self.outcome(py, result).map(|()| true);
            }
            py.check_signals()?;
            if deadline.is_some_and(|at| Instant::now() >= at) {
                return Ok(false);
            }
        }
    }

    /// Whether the call has ended, well or not. Never waits.
    fn is_over(&self) -> PyResult<bool> {
        Ok(self.end()?.result().is_some())
    }

    /// Raises what the call has failed with; nothing while it runs.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.end()?.result().map_or(Ok(()), |result| self.outcome(py, result))
    }
}
