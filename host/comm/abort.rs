//! Aborting calls and communicators from another thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ferroccl_bootstrap::Stop;

use super::shared::WeakComm;

/// Aborts communicators from any thread (`ncclCommAbort`): their calls, their splits, and an
/// [`init_rank`](crate::Communicator::init_rank) that waits for other ranks. All of them return an error soon.
///
/// A handle in a [`CommConfig`](crate::CommConfig) guards every communicator that is made with that configuration, from the
/// start. Clones are the same handle. Once aborted it stays aborted.
///
/// ```
/// use ferroccl::{AbortHandle, CommConfig, Communicator, Device, Error, UniqueId};
///
/// let id = UniqueId::listening_at(([127, 0, 0, 1], 0).into())?;
/// let abort = AbortHandle::new();
/// let mut config = CommConfig::default();
/// config.abort = Some(abort.clone());
/// let stuck = std::thread::spawn(move || {
///     Communicator::init_rank_with(&Device::cpu(), 2, &id, 0, &config) // rank 1 never comes
/// });
/// abort.abort();
/// assert!(matches!(stuck.join().unwrap(), Err(Error::Aborted { rank: 0, .. })));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct AbortHandle(Arc<GuardedComms>);

#[derive(Debug, Default)]
struct GuardedComms {
    aborted: Arc<AtomicBool>,
    members: Mutex<Vec<WeakComm>>,
}

impl AbortHandle {
    /// A handle that guards no communicator yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Aborts the communicators that it guards, and those that it will guard. Returns at once.
    pub fn abort(&self) {
        let members = self.0.members.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that `guard` sees it for every communicator that is not in the list.
        self.0.aborted.store(true, Ordering::Relaxed);
        let members: Vec<_> = members.iter().filter_map(WeakComm::visit).collect();
        members.iter().for_each(|member| member.abort());
    }

    /// Whether [`AbortHandle::abort`] was called.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.0.aborted.load(Ordering::Relaxed)
    }

    /// Guards a communicator from now on.
    pub(super) fn guard(&self, comm: WeakComm) {
        let mut members = self.0.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.retain(WeakComm::has_owner);
        members.push(comm.clone());
        drop(members);
        if self.is_aborted()
            && let Some(comm) = comm.visit()
        {
            comm.abort();
        }
    }

    /// The flag that waits look at.
    pub(super) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0.aborted)
    }

    /// A [`Stop`] that only this handle sets.
    pub(super) fn stop(&self) -> Stop {
        Stop::any([self.flag()])
    }
}
