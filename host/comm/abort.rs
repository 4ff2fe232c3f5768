//! Ending what is stuck, from another thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::Inner;
use crate::bootstrap::Stop;

/// Ends communicators and what is on the way to be one, from any thread (`ncclCommAbort`): an
/// [`init_rank`](crate::Communicator::init_rank) that waits for others, a split, every call that is under way. What was
/// stuck returns an error soon.
///
/// In a [`CommConfig`](crate::CommConfig) it guards every communicator that is made with that, from the start. Clones are
/// the same handle; once aborted it stays so.
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
pub struct AbortHandle(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    aborted: Arc<AtomicBool>,
    members: Mutex<Vec<Weak<Inner>>>,
}

impl AbortHandle {
    /// A handle that guards nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends all that it guards, now and later. Returns at once.
    pub fn abort(&self) {
        let members = self.0.members.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: who becomes a member later sees it.
        self.0.aborted.store(true, Ordering::Relaxed);
        let members: Vec<_> = members.iter().filter_map(Weak::upgrade).collect();
        members.iter().for_each(|member| member.abort());
    }

    /// Whether [`AbortHandle::abort`] was called.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.0.aborted.load(Ordering::Relaxed)
    }

    /// Guards a communicator from now on.
    pub(super) fn guard(&self, inner: &Arc<Inner>) {
        let mut members = self.0.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.retain(|member| member.strong_count() > 0);
        members.push(Arc::downgrade(inner));
        drop(members);
        if self.is_aborted() {
            inner.abort();
        }
    }

    /// What tells waits of it.
    pub(super) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0.aborted)
    }

    /// It alone as what ends a wait.
    pub(super) fn stop(&self) -> Stop {
        Stop::any([self.flag()])
    }
}
