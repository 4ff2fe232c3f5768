//! Locks of the runtimes.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex whose data is valid at every instant, so that a panic elsewhere does not matter.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
