//! Locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whether or not a thread has panicked with the lock held.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing here panics with a lock held and a value half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
