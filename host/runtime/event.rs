//! Events: how streams wait for each other, and for the host.

use std::fmt;
use std::sync::{Arc, Mutex};

use super::sync::lock;
use crate::Result;

/// Something that happens once: a place in a stream ([`StreamOps::record`](super::StreamOps::record)) is reached, or
/// the host says so ([`Event::complete`]). Streams wait for it by [`StreamOps::wait`](super::StreamOps::wait). Clones
/// are the same event.
#[derive(Clone, Default)]
pub struct Event(Arc<Mutex<State>>);

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
        let mut state = lock(&self.0);
        if let State::Pending(waiters) = &mut *state {
            let waiters = std::mem::take(waiters);
            *state = State::Complete(result.clone());
            drop(state); // waiters go on with their streams, which may use this event
            waiters.into_iter().for_each(|waiter| waiter(result.clone()));
        }
    }

    /// What came of it, or `None` if it has not happened; then `waiter` is called when it does.
    pub(super) fn result_or(
        &self,
        waiter: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Option<Result<()>> {
        match &mut *lock(&self.0) {
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
        let state = match &*lock(&self.0) {
            State::Pending(_) => "pending",
            State::Complete(Ok(())) => "complete",
            State::Complete(Err(_)) => "failed",
        };
        write!(f, "Event({state})")
    }
}
