//! Making, splitting and finalizing communicators in the background.

use std::thread::JoinHandle;

use super::{AbortHandle, CommConfig, Communicator, ShrinkMode, grow, shrink, split};
use crate::buffer::Device;
use crate::error::{Error, Result};
use ferroccl_bootstrap::UniqueId;

/// A call that waits for other ranks, in a thread of its own (NCCL's `ncclInProgress`, and the state that
/// `ncclCommGetAsyncError` reports). Dropping it aborts it.
#[derive(Debug)]
#[must_use = "dropping it aborts the call in progress"]
pub struct InProgress<T> {
    /// `None` when its result has been taken.
    thread: Option<JoinHandle<Result<T>>>,
    abort: AbortHandle,
}

impl<T: Send + 'static> InProgress<T> {
    /// Starts `call`, which `abort` can end.
    fn start(
        abort: AbortHandle,
        call: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<Self> {
        let thread = std::thread::Builder::new()
            .name("ferroccl-init".to_owned())
            .spawn(call)
            .map_err(|e| Error::system("thread of a call in progress", e))?;
        Ok(InProgress { thread: Some(thread), abort })
    }
}

impl<T> InProgress<T> {
    /// Whether it is over, well or not; never blocks.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// The result if the call is over, `None` while it is in progress; never blocks.
    ///
    /// # Errors
    /// The call's errors. [`Error::InvalidArgument`] when the result has been taken before.
    pub fn poll(&mut self) -> Result<Option<T>> {
        if !self.is_over() {
            return Ok(None);
        }
        self.take().map(Some)
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// As [`InProgress::poll`].
    pub fn wait(mut self) -> Result<T> {
        self.take()
    }

    /// Aborts the call. Its result is an error, unless it was over already. A communicator that it has made is aborted.
    pub fn abort(&self) {
        self.abort.abort();
    }

    /// The handle that aborts the call, and later the communicator that it has made.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }

    fn take(&mut self) -> Result<T> {
        let taken = || Error::argument("self", "its result has been taken already");
        let thread = self.thread.take().ok_or_else(taken)?;
        thread.join().unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let message = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(Error::Panicked {
                kernel: "none, the call in progress".to_owned(),
                message: message.unwrap_or_default(),
            })
        })
    }
}

impl<T> Drop for InProgress<T> {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.abort.abort();
            let _ = self.take(); // its error is that it was aborted
        }
    }
}

impl CommConfig {
    /// These settings with an abort handle, and the handle.
    fn guarded(&self) -> (Self, AbortHandle) {
        let abort = self.abort.clone().unwrap_or_default();
        (CommConfig { abort: Some(abort.clone()), ..self.clone() }, abort)
    }
}

impl Communicator {
    /// Starts [`Communicator::init_rank_with`] and returns at once (NCCL's `ncclCommInitRankConfig` with `blocking` 0).
    ///
    /// # Errors
    /// [`Error::System`] when there can be no thread; [`InProgress::poll`] has all other errors.
    ///
    /// ```
    /// use ferroccl::{CommConfig, Communicator, Device, UniqueId};
    ///
    /// let id = UniqueId::listening_at(([127, 0, 0, 1], 0).into())?;
    /// let (device, config) = (Device::cpu(), CommConfig::default());
    /// let start = |rank| Communicator::init_rank_nonblocking(&device, 2, &id, rank, &config);
    /// let (mut first, second) = (start(0)?, start(1)?);
    /// let first = loop {
    ///     match first.poll()? {
    ///         Some(communicator) => break communicator,
    ///         None => std::thread::yield_now(), // something else
    ///     }
    /// };
    /// assert_eq!((first.rank(), second.wait()?.rank()), (0, 1));
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    pub fn init_rank_nonblocking(
        device: &Device,
        nranks: u32,
        id: &UniqueId,
        rank: u32,
        config: &CommConfig,
    ) -> Result<InProgress<Communicator>> {
        let (config, abort) = config.guarded();
        let (device, id) = (device.clone(), *id);
        InProgress::start(abort, move || Self::init_rank_with(&device, nranks, &id, rank, &config))
    }

    /// Starts [`Communicator::split_with`] and returns at once.
    ///
    /// # Errors
    /// As [`Communicator::init_rank_nonblocking`].
    pub fn split_nonblocking(
        &self,
        color: Option<u32>,
        key: i32,
        config: &CommConfig,
    ) -> Result<InProgress<Option<Communicator>>> {
        let (config, abort) = config.guarded();
        let comm = self.0.clone();
        InProgress::start(abort, move || split::split(&comm, color, key, &config))
    }

    /// Starts [`Communicator::shrink_with`] and returns at once.
    ///
    /// # Errors
    /// As [`Communicator::init_rank_nonblocking`].
    pub fn shrink_nonblocking(
        &self,
        exclude: &[u32],
        mode: ShrinkMode,
        config: &CommConfig,
    ) -> Result<InProgress<Communicator>> {
        let (config, abort) = config.guarded();
        let (comm, exclude) = (self.0.clone(), exclude.to_vec());
        InProgress::start(abort, move || shrink::shrink(&comm, &exclude, mode, &config))
    }

    /// Starts [`Communicator::grow_with`] and returns at once.
    ///
    /// # Errors
    /// As [`Communicator::init_rank_nonblocking`].
    pub fn grow_nonblocking(
        &self,
        nranks: u32,
        config: &CommConfig,
    ) -> Result<InProgress<Communicator>> {
        let (config, abort) = config.guarded();
        let comm = self.0.clone();
        InProgress::start(abort, move || grow::grow(&comm, nranks, &config))
    }

    /// Starts [`Communicator::finalize`] and returns at once. Aborting it aborts the communicator.
    ///
    /// # Errors
    /// As [`Communicator::init_rank_nonblocking`].
    pub fn finalize_nonblocking(&self) -> Result<InProgress<()>> {
        let comm = self.0.clone();
        InProgress::start(self.abort_handle(), move || comm.finalize())
    }
}
