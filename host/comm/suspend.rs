//! Suspending: a communicator gives its memory back until it is needed again.
//!
//! ```text
//! suspend   1. this rank's calls end
//!           2. all-gather: whether something keeps the communicator     ─► all ranks suspend, or none does
//!           3. the communicator is dropped, but for where its ranks meet
//! resume    they meet there: an init like any other, of the same ranks
//! ```
//!
//! NCCL keeps the addresses of what it frees, and maps new memory there. Here everything is made anew: connections are cheap to
//! make, and nothing of a suspended communicator can be used by mistake.

use std::time::{Duration, Instant};

use ferroccl_bootstrap::{Limit, Stop};
use tracing::info;

use super::meeting::{Meeting, MeetingFor};
use super::shared::SharedComm;
use super::split::all_gather;
use super::{AbortHandle, CommConfig, Communicator};
use crate::buffer::Device;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::fork::Maker;
use crate::log;

/// How long launches that have ended may take to let go of their communicator.
const LETTING_GO: Duration = Duration::from_secs(1);

/// A rank of a communicator that has given its memory back ([`Communicator::suspend`]).
#[derive(Debug)]
pub struct SuspendedCommunicator {
    maker: Maker,
    rank: u32,
    nranks: u32,
    device: Device,
    config: CommConfig,
    meeting: Meeting,
}

/// Why a communicator was not suspended: on no rank.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct RefusedSuspension {
    /// The communicator, as it was.
    pub communicator: Communicator,
    /// The reason.
    #[source]
    pub error: Error,
}

impl From<RefusedSuspension> for Error {
    fn from(refused: RefusedSuspension) -> Error {
        refused.error
    }
}

impl Communicator {
    /// Gives all memory of the communicator back, on the device and of the host, until it is [resumed](SuspendedCommunicator::resume)
    /// (`ncclCommSuspend` with `NCCL_SUSPEND_MEM`): for a time in which a program needs the memory for something else. Collective:
    /// all ranks must take part, each from a thread of its own. [`Communicator::suspend_all`] is for several ranks of one thread.
    ///
    /// It waits until this rank's calls have ended. Buffers and streams are the user's, and stay as they are. A rank that dies
    /// meanwhile is missed when the others resume. A small allocation may be kept by its device for whoever allocates next.
    ///
    /// # Errors
    /// On all ranks, with the communicator as it was: [`Error::InvalidArgument`], which names the rank, while something uses its
    /// memory: a [`Window`](crate::Window), a [`DeviceCommunicator`](crate::DeviceCommunicator), a graph that has captured a call.
    /// [`Error::Bootstrap`] when not all ranks take part within `FERROCCL_BOOTSTRAP_TIMEOUT`; [`Error::PeerLost`] when one is
    /// gone; [`Error::Aborted`] when this communicator fails or is aborted, or was before.
    ///
    /// ```
    /// use ferroccl::{Communicator, Device, ReduceOp, SuspendedCommunicator};
    ///
    /// let device = Device::cpu();
    /// let suspended = Communicator::suspend_all(Communicator::init_all(&device, 2)?)?;
    /// // Memory is free for something else.
    /// let ranks = SuspendedCommunicator::resume_all(&suspended)?;
    /// let buffers = [device.upload(&[1.0_f32])?, device.upload(&[2.0_f32])?];
    /// let streams = [device.stream()?, device.stream()?];
    /// for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
    ///     rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream)?;
    /// }
    /// assert_eq!(buffers[0].to_vec(&streams[0])?, [3.0]);
    /// # streams[1].synchronize()?;
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    pub fn suspend(self) -> Result<SuspendedCommunicator, RefusedSuspension> {
        match prepare(&self.0) {
            Ok(suspended) => Ok(suspended),
            Err(error) => Err(RefusedSuspension { communicator: self, error }),
        }
    }

    /// [`Communicator::suspend`] of several ranks of this process at once. The result has their order.
    ///
    /// # Errors
    /// As there: the first error. The communicators are dropped then.
    pub fn suspend_all(communicators: Vec<Communicator>) -> Result<Vec<SuspendedCommunicator>> {
        super::split::at_once(communicators, |one: Communicator| Ok(one.suspend()?))
    }
}

impl SuspendedCommunicator {
    /// This rank, from 0.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.nranks
    }

    /// The device of its buffers and streams.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The communicator with memory again (`ncclCommResume`): the same ranks, settings and device, and connections of its own.
    /// Collective: all ranks must take part, each from a thread of its own.
    ///
    /// # Errors
    /// [`Error::Bootstrap`], which names a rank that is missing, when not all ranks come within `FERROCCL_BOOTSTRAP_TIMEOUT`; it
    /// can be tried again then. [`Error::InvalidArgument`] in a fork. The errors of [`Communicator::init_rank`].
    pub fn resume(&self) -> Result<Communicator> {
        self.resume_with(&CommConfig::default())
    }

    /// [`SuspendedCommunicator::resume`] with settings. Settings that are `None` are those of before, but for the
    /// [`AbortHandle`]: one of before does not abort the new communicator. If the ranks are of one [`Communicator::init_all`],
    /// the settings of the rank that comes last count.
    ///
    /// # Errors
    /// As there, [`Error::InvalidSetting`] when a setting makes no sense, and [`Error::Aborted`] when the handle is used.
    pub fn resume_with(&self, config: &CommConfig) -> Result<Communicator> {
        if !self.maker.is_here() {
            return Err(self.maker.elsewhere());
        }
        let config = &CommConfig { abort: config.abort.clone(), ..config.or(&self.config) };
        let stop = config.abort.as_ref().map(AbortHandle::stop).unwrap_or_default();
        let all: Vec<u32> = (0..self.nranks).collect();
        let purpose = MeetingFor { what: "resuming".to_owned(), hint: "all ranks resume together" };
        let me = (self.rank, &self.device);
        let made = self.meeting.connect(me, &all, (config, &stop), &purpose);
        let made = made.map_err(|error| match stop.is_set() {
            true => {
                Error::Aborted { rank: self.rank, cause: format!("during a resumption: {error}") }
            }
            false => error,
        })?;
        info!(target: log::INIT, "rank {} of {} is resumed", self.rank, self.nranks);
        Ok(made)
    }

    /// [`SuspendedCommunicator::resume`] of several ranks of this process at once. The result has their order.
    ///
    /// # Errors
    /// As there: the first error.
    pub fn resume_all(suspended: &[SuspendedCommunicator]) -> Result<Vec<Communicator>> {
        super::split::at_once(suspended, SuspendedCommunicator::resume)
    }
}

/// What is left of a communicator that all ranks agree to suspend.
fn prepare(comm: &SharedComm) -> Result<SuspendedCommunicator> {
    comm.check_maker()?;
    // Its all-gather must not be mixed with those of a split.
    let _one = comm.split_lock.lock();
    drop(comm.lock_order()?);
    let stop = Stop::any([std::sync::Arc::clone(&comm.failed)]);
    let ended = comm.wait_for_calls().and_then(|()| comm.failure().map_or(Ok(()), Err));
    let agreed = ended.and_then(|()| agree(comm, &stop));
    agreed.map_err(|error| match stop.is_set() {
        true => {
            let cause = comm.failure().unwrap_or(error).to_string();
            Error::Aborted { rank: comm.rank, cause: format!("during a suspension: {cause}") }
        }
        false => error,
    })?;
    info!(target: log::INIT, "rank {} of {} is suspended", comm.rank, comm.nranks);
    Ok(SuspendedCommunicator {
        maker: comm.maker,
        rank: comm.rank,
        nranks: comm.nranks,
        device: comm.device.clone(),
        config: CommConfig { abort: None, ..comm.config.clone() },
        meeting: Meeting::of(comm),
    })
}

/// Nothing keeps the communicator, on any rank.
fn agree(comm: &SharedComm, stop: &Stop) -> Result<()> {
    let limit = Limit { time: Config::from_env()?.bootstrap_timeout, stop: stop.clone() };
    let all: Vec<Option<String>> = all_gather(comm, &in_use(comm), &limit)?;
    match all.iter().enumerate().find_map(|(rank, used)| Some((rank, used.as_ref()?))) {
        Some((rank, used)) => {
            Err(Error::argument("self", format!("it cannot be suspended: on rank {rank} {used}")))
        }
        None => Ok(()),
    }
}

/// What keeps this rank's communicator, if something does.
fn in_use(comm: &SharedComm) -> Option<String> {
    match comm.windows.count() {
        0 => {}
        1 => return Some("a window is registered".to_owned()),
        windows => return Some(format!("{windows} windows are registered")),
    }
    let begun = Instant::now();
    // The user's handle, and what sends for it.
    while comm.owners() > 1 + comm.net.as_ref().map_or(0, |net| net.owners()) {
        if begun.elapsed() > LETTING_GO {
            let text = "a device communicator has it, or a graph that has captured its calls";
            return Some(text.to_owned());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}
