//! Waiting without the GIL, so that other threads go on and Ctrl-C is heard.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;

use crate::errors::exception;

/// How long a wait lasts before Python looks for signals. Ctrl-C is heard within it.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// What `body` gives, which waits for other ranks. When a signal's handler raises, `stop` ends `body`, whose result is dropped.
pub(crate) fn in_background<T: Send + 'static>(
    py: Python<'_>,
    stop: impl FnOnce(),
    body: impl FnOnce() -> ferroccl::Result<T> + Send + 'static,
) -> PyResult<T> {
    let (tell, told) = mpsc::channel();
    let thread = thread::Builder::new().name("ferroccl-python".to_owned());
    // Nobody listens after a signal.
    let started = thread.spawn(move || tell.send(body()).unwrap_or(()));
    started
        .map_err(|e| exception(py, &ferroccl::Error::system("thread of a call that waits", e)))?;
    let mut told = told;
    loop {
        let (result, back) = py.detach(move || (told.recv_timeout(SLICE), told));
        told = back;
        match result {
            Ok(result) => return result.map_err(|error| exception(py, &error)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let error = ferroccl::Error::Panicked {
                    kernel: "none, a call that waits".to_owned(),
                    message: "its thread has ended".to_owned(),
                };
                return Err(exception(py, &error));
            }
        }
        if let Err(raised) = py.check_signals() {
            stop();
            return Err(raised);
        }
    }
}
