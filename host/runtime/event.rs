//! Events: how streams wait for each other, and for the host.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use super::sync::lock;
use crate::error::Result;

/// Something that happens once: a place in a stream ([`StreamOps::record`](super::StreamOps::record)) is reached, or
/// the host says so ([`Event::complete`]). Streams wait for it by [`StreamOps::wait`](super::StreamOps::wait). Clones
/// are the same event.
#[derive(Clone, Default)]
pub struct Event(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    /// The device's own event, where it was recorded on one.
    #[cfg_attr(
        not(feature = "cuda"),
        allow(dead_code, reason = "only a driver has events of its own")
    )]
    native: OnceLock<Native>,
}

/// A device's own event.
pub(super) type Native = Arc<dyn Any + Send + Sync>;

type Waiter = Box<dyn FnOnce(Result<()>) + Send>;

enum State {
    Pending(Vec<Waiter>),
    Complete(Result<()>),
}

impl Default for State {
    fn default() -> Self {
        State::Pending(Vec::new())
    }
}

impl Event {
    /// An event that has not happened.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// It happens; an error becomes that of the streams that wait. Only the first time counts.
    pub fn complete(&self, result: Result<()>) {
        let mut state = lock(&self.0.state);
        if let State::Pending(waiters) = &mut *state {
            let waiters = std::mem::take(waiters);
            *state = State::Complete(result.clone());
            drop(state); // waiters go on with their streams, which may use this event
            waiters.into_iter().for_each(|waiter| waiter(result.clone()));
        }
    }

    /// What came of it; `None` while it has not happened. Never blocks.
    #[must_use]
    pub fn result(&self) -> Option<Result<()>> {
        match &*lock(&self.0.state) {
            State::Pending(_) => None,
            State::Complete(result) => Some(result.clone()),
        }
    }

    /// Ties it to a device's own event; the first one stays.
    #[cfg(feature = "cuda")]
    pub(super) fn set_native(&self, native: Native) {
        let _ = self.0.native.set(native);
    }

    /// The device's own event, if it was recorded on one.
    #[cfg(feature = "cuda")]
    pub(super) fn native(&self) -> Option<Native> {
        self.0.native.get().cloned()
    }

    /// What came of it, or `None` if it has not happened; then `waiter` is called when it does.
    pub(crate) fn result_or(
        &self,
        waiter: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Option<Result<()>> {
        match &mut *lock(&self.0.state) {
            State::Complete(result) => Some(result.clone()),
            State::Pending(waiters) => {
                waiters.push(Box::new(waiter));
                None
            }
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &*lock(&self.0.state) {
            State::Pending(_) => "pending",
            State::Complete(Ok(())) => "complete",
            State::Complete(Err(_)) => "failed",
        };
        write!(f, "Event({state})")
    }
}
