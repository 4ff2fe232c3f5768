//! Shrinking: a communicator of the ranks that are left of another, which may have failed.
//!
//! ```text
//! 1. every rank that is left knows who is excluded      ─► the new communicator's ranks, in order
//! 2. with ShrinkMode::Abort: the old one is aborted     ─► nothing of it runs any more
//! 3. meet                                               ─► an init like any other                       (meeting)
//! ```
//!
//! Nothing here talks to an excluded rank, which may be gone.

use std::sync::Arc;

use ferroccl_bootstrap::Stop;
use tracing::info;

use super::meeting::{Meeting, MeetingFor};
use super::shared::SharedComm;
use super::state::CommState;
use super::{AbortHandle, CommConfig, Communicator};
use crate::error::{Error, Result};
use crate::log;

/// What becomes of the old communicator's calls when it is shrunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShrinkMode {
    /// They go on; the communicator has not failed (`NCCL_SHRINK_DEFAULT`).
    #[default]
    Healthy,
    /// They are aborted, and the communicator may have failed before: what a program does after an error
    /// (`NCCL_SHRINK_ABORT`).
    Abort,
}

impl Communicator {
    /// A communicator of the ranks that are left without those in `exclude` (`ncclCommShrink`). Every rank that is left calls
    /// it, with the same list, from a thread of its own; excluded ranks do not, and may be gone. The ranks keep their order.
    /// [`Communicator::shrink_all`] is for several ranks of one thread.
    ///
    /// With [`ShrinkMode::Abort`] this is how a job goes on when a rank has died: no process is started again. Buffers,
    /// streams and devices are those of before. A stream keeps the error of the call that has failed until it is asked for it
    /// ([`Stream::synchronize`](crate::Stream::synchronize)).
    ///
    /// The new communicator has this one's settings and device, and connections of its own. This one stays as it is, or is
    /// aborted; it can be dropped at any time.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `exclude` names no rank of this communicator, one twice, or this one.
    /// [`Error::Aborted`] when this communicator has failed, with [`ShrinkMode::Healthy`]; one that was
    /// [revoked](Communicator::revoke) has not. [`Error::Bootstrap`], which names a rank that is missing, when not all that are
    /// left come within `FERROCCL_BOOTSTRAP_TIMEOUT`: one of them has died too, or has another list. It can be tried again
    /// then, with another list. The errors of [`Communicator::init_rank`].
    ///
    /// ```
    /// use ferroccl::{Communicator, Device, Error, ReduceOp, ShrinkMode};
    ///
    /// let device = Device::cpu();
    /// let mut ranks = Communicator::init_all(&device, 3)?;
    /// ranks[0].abort(); // rank 0 is in trouble, and all learn of it
    /// let stream = device.stream()?;
    /// assert!(matches!(ranks[1].barrier(&stream), Err(Error::Aborted { .. })));
    ///
    /// let left = Communicator::shrink_all(&ranks[1..], &[0], ShrinkMode::Abort)?;
    /// assert_eq!((left[0].rank(), left[1].rank(), left[1].world_size()), (0, 1, 2));
    /// let buffers = [device.upload(&[1.0_f32])?, device.upload(&[2.0_f32])?];
    /// let streams = [device.stream()?, device.stream()?];
    /// for ((rank, buffer), stream) in left.iter().zip(&buffers).zip(&streams) {
    ///     rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream)?;
    /// }
    /// assert_eq!(buffers[0].to_vec(&streams[0])?, [3.0]);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn shrink(&self, exclude: &[u32], mode: ShrinkMode) -> Result<Communicator> {
        self.shrink_with(exclude, mode, &CommConfig::default())
    }

    /// [`Communicator::shrink`] with settings. Settings that are `None` are those of this communicator. If the ranks are of
    /// one [`Communicator::init_all`], the settings of the rank that comes last count.
    ///
    /// # Errors
    /// As there, and [`Error::InvalidSetting`] when a setting makes no sense.
    pub fn shrink_with(
        &self,
        exclude: &[u32],
        mode: ShrinkMode,
        config: &CommConfig,
    ) -> Result<Communicator> {
        shrink(&self.0, exclude, mode, config)
    }

    /// [`Communicator::shrink`] of several ranks of this process at once. The result has their order.
    ///
    /// # Errors
    /// As there: the first error.
    pub fn shrink_all(
        communicators: &[Communicator],
        exclude: &[u32],
        mode: ShrinkMode,
    ) -> Result<Vec<Communicator>> {
        super::split::at_once(communicators, |communicator| communicator.shrink(exclude, mode))
    }
}

/// See [`Communicator::shrink_with`].
pub(super) fn shrink(
    comm: &SharedComm,
    exclude: &[u32],
    mode: ShrinkMode,
    config: &CommConfig,
) -> Result<Communicator> {
    comm.check_maker()?;
    let left = left(comm, exclude)?;
    // One at a time, as splits.
    let _one = comm.split_lock.lock();
    let healthy = mode == ShrinkMode::Healthy;
    let failure = comm.failure().filter(|failure| !matches!(failure, Error::Revoked { .. }));
    match failure {
        _ if !healthy => comm.abort(),
        Some(failure) => {
            return Err(Error::Aborted { rank: comm.rank, cause: failure.to_string() });
        }
        None => {}
    }
    let config = &CommConfig { abort: config.abort.clone(), ..config.or(&comm.config) };
    let watched = (healthy && comm.failure().is_none()).then(|| Arc::clone(&comm.failed));
    let flag = config.abort.as_ref().map(AbortHandle::flag);
    let stop = Stop::any(watched.into_iter().chain(flag));
    let purpose = MeetingFor {
        what: format!("shrinking to ranks {left:?}"),
        hint: "who is left needs the same list on all ranks",
    };
    let me = (comm.rank, &comm.device);
    let made = Meeting::of(comm).connect(me, &left, (config, &stop), &purpose);
    let made = made.map_err(|error| {
        if !stop.is_set() {
            return error;
        }
        let cause = comm.failure().unwrap_or(error).to_string();
        Error::Aborted { rank: comm.rank, cause: format!("during a shrink: {cause}") }
    })?;
    let (rank, ranks) = (made.0.rank, left.len());
    info!(target: log::INIT, "rank {}: without {exclude:?} it is rank {rank} of {ranks}", comm.rank);
    Ok(made)
}

/// The ranks that are left, in order.
fn left(comm: &CommState, exclude: &[u32]) -> Result<Vec<u32>> {
    let bad = |reason: String| Err(Error::argument("exclude", reason));
    for (i, rank) in exclude.iter().enumerate() {
        if *rank >= comm.nranks {
            return bad(format!("{rank} is none of the {} ranks", comm.nranks));
        }
        if exclude[..i].contains(rank) {
            return bad(format!("rank {rank} is there twice"));
        }
    }
    if exclude.contains(&comm.rank) {
        return bad(format!("rank {} is the caller, and excluded ranks do not call", comm.rank));
    }
    Ok((0..comm.nranks).filter(|rank| !exclude.contains(rank)).collect())
}
