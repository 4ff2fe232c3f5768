//! What an `ncclComm_t` stands for. A handle is a number that is never given twice, and is looked up: one that was destroyed, or
//! never was, is an error.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use ferroccl::{AbortHandle, Communicator, Error, Stream, SuspendedCommunicator};

use crate::answer::{Done, Failure};
use crate::config::CommSettings;
use crate::jobs::Job;
use crate::one_sided::OneSided;
use crate::operators::UserOperator;
use crate::place::Place;
use crate::types::{
    cudaStream_t, ncclComm_t, ncclInProgress, ncclRedOp_t, ncclResult_t, ncclSuccess,
};

/// A communicator, from the call that makes it on.
#[derive(Debug)]
pub(crate) struct Comm {
    pub(crate) handle: usize,
    pub(crate) place: Arc<Place>,
    pub(crate) settings: CommSettings,
    /// Ends its calls, and what makes it.
    pub(crate) abort: AbortHandle,
    pub(crate) operators: Mutex<HashMap<ncclRedOp_t, UserOperator>>,
    /// The id for new ranks that this rank has made and that no growth has used.
    pub(crate) grow_id: Mutex<Option<[u8; 128]>>,
    /// What its one-sided calls go by, from its first window on.
    pub(crate) one_sided: Mutex<Option<OneSided>>,
    /// The stream of its calls on the CPU.
    stream: OnceLock<Stream>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// `None` before it is made, while it is suspended, and when it is no more.
    made: Option<Arc<Communicator>>,
    suspended: Option<Arc<SuspendedCommunicator>>,
    /// What it takes part in and has not ended.
    jobs: Vec<Arc<Job>>,
    /// Whether calls on the CPU may not have ended: with `blocking = 0` nobody waits for them.
    running: bool,
    failure: Option<Failure>,
    finalized: bool,
    /// What `ncclGetLastError` says of it.
    last: Option<String>,
}

static COMMS: RwLock<Option<HashMap<usize, Arc<Comm>>>> = RwLock::new(None);

/// A new handle, of a communicator or a window: never the same again, and no address of a program's, whose first page is not
/// mapped.
pub(crate) fn new_handle() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    // Relaxed: only that numbers differ matters. Multiples of 16, as addresses are.
    NEXT.fetch_add(1, Ordering::Relaxed) << 4
}

/// Enters a communicator that is about to be made.
pub(crate) fn enter(place: Arc<Place>, settings: CommSettings) -> Arc<Comm> {
    let comm = Arc::new(Comm {
        handle: new_handle(),
        place,
        settings,
        abort: AbortHandle::new(),
        operators: Mutex::default(),
        grow_id: Mutex::default(),
        one_sided: Mutex::default(),
        stream: OnceLock::new(),
        state: Mutex::default(),
    });
    let mut comms = COMMS.write().unwrap_or_else(PoisonError::into_inner);
    comms.get_or_insert_default().insert(comm.handle, Arc::clone(&comm));
    comm
}

/// The communicator of a handle, the argument `comm`.
pub(crate) fn find(handle: ncclComm_t) -> Result<Arc<Comm>, Failure> {
    if handle.is_null() {
        return Err(Failure::argument("comm", "is NULL"));
    }
    let comms = COMMS.read().unwrap_or_else(PoisonError::into_inner);
    comms.as_ref().and_then(|comms| comms.get(&handle.addr()).cloned()).ok_or_else(|| {
        Failure::argument(
            "comm",
            format!("{handle:p} is no communicator, or one that was destroyed"),
        )
    })
}

/// Takes a handle away. `None` when somebody else has.
pub(crate) fn remove(comm: &Comm) -> Option<Arc<Comm>> {
    let mut comms = COMMS.write().unwrap_or_else(PoisonError::into_inner);
    comms.as_mut().and_then(|comms| comms.remove(&comm.handle))
}

impl Comm {
    /// The handle as C has it.
    pub(crate) fn as_handle(&self) -> ncclComm_t {
        std::ptr::without_provenance_mut(self.handle)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has been made.
    pub(crate) fn set_made(&self, made: Communicator) {
        let mut state = self.lock();
        state.made = Some(Arc::new(made));
        state.suspended = None;
    }

    /// Takes what is made out of it for a while.
    pub(crate) fn lend(&self) -> Option<Arc<Communicator>> {
        self.lock().made.take()
    }

    /// Takes back what it has lent.
    pub(crate) fn give_back(&self, made: Arc<Communicator>) {
        self.lock().made = Some(made);
    }

    /// It has given its memory back.
    pub(crate) fn set_suspended(&self, suspended: SuspendedCommunicator) {
        self.lock().suspended = Some(Arc::new(suspended));
    }

    pub(crate) fn suspended(&self) -> Option<Arc<SuspendedCommunicator>> {
        self.lock().suspended.clone()
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.lock().suspended.is_some()
    }

    /// Its rank, and the number of ranks, also while it is suspended.
    pub(crate) fn place_in_group(&self) -> Result<(u32, u32), Failure> {
        if let Some(suspended) = self.suspended() {
            return Ok((suspended.rank(), suspended.world_size()));
        }
        let made = self.made()?;
        Ok((made.rank(), made.world_size()))
    }

    /// It has failed, or could not be made. The first failure stays.
    pub(crate) fn fail(&self, failure: &Failure) {
        let mut state = self.lock();
        state.last = Some(failure.text.clone());
        state.failure.get_or_insert_with(|| failure.clone());
    }

    /// Notes what `ncclGetLastError` says of it.
    pub(crate) fn note(&self, failure: &Failure) {
        self.lock().last = Some(failure.text.clone());
    }

    pub(crate) fn last_failure(&self) -> Option<String> {
        self.lock().last.clone()
    }

    /// It takes part in a job that nobody waits for.
    pub(crate) fn joins(&self, job: &Arc<Job>) {
        self.lock().jobs.push(Arc::clone(job));
    }

    /// Calls on the CPU may not have ended.
    pub(crate) fn set_running(&self) {
        self.lock().running = true;
    }

    /// No calls can be made any more.
    pub(crate) fn set_finalized(&self) {
        self.lock().finalized = true;
    }

    pub(crate) fn is_finalized(&self) -> bool {
        self.lock().finalized
    }

    /// What is made, for a call: nothing is in progress, and it is neither failed nor finalized.
    pub(crate) fn ready(&self) -> Result<Arc<Communicator>, Failure> {
        let made = self.made()?;
        if self.is_finalized() {
            return Err(Failure::argument("comm", "it was finalized, and makes no more calls"));
        }
        Ok(made)
    }

    /// What is made, if nothing is in progress.
    pub(crate) fn made(&self) -> Result<Arc<Communicator>, Failure> {
        let mut state = self.lock();
        state.jobs.retain(|job| !job.is_over());
        if !state.jobs.is_empty() {
            let reason =
                "an earlier call of it is in progress: ncclCommGetAsyncError says until when";
            return Err(Failure::argument("comm", reason));
        }
        if let Some(made) = &state.made {
            return Ok(Arc::clone(made));
        }
        if state.suspended.is_some() {
            return Err(Failure::usage(
                "the communicator is suspended: ncclCommResume comes first",
            ));
        }
        let unmade = || Failure::argument("comm", "it is not made yet: the group has not ended");
        Err(state.failure.clone().unwrap_or_else(unmade))
    }

    /// Whether something of it is in progress.
    pub(crate) fn is_busy(&self) -> bool {
        let mut state = self.lock();
        state.jobs.retain(|job| !job.is_over());
        !state.jobs.is_empty()
    }

    /// What is made, whatever goes on.
    pub(crate) fn peek(&self) -> Option<Arc<Communicator>> {
        self.lock().made.clone()
    }

    /// A stream for a call: the caller's, or on the CPU the communicator's.
    pub(crate) fn stream(&self, raw: cudaStream_t) -> Result<Stream, Failure> {
        if let Some(gpu) = &self.place.gpu {
            return gpu.stream(raw);
        }
        if let Some(stream) = self.stream.get() {
            return Ok(stream.clone());
        }
        let stream = self.place.device.stream()?;
        Ok(self.stream.get_or_init(|| stream).clone())
    }

    /// What `ncclCommGetAsyncError` says, and why.
    pub(crate) fn status(&self) -> (ncclResult_t, Option<Failure>) {
        let mut state = self.lock();
        state.jobs.retain(|job| !job.is_over());
        let busy = !state.jobs.is_empty();
        let (made, running) = (state.made.clone(), state.running);
        let failure = state.failure.clone();
        drop(state);
        if let Some(failure) = failure {
            return (failure.code, Some(failure));
        }
        if busy {
            return (ncclInProgress, None);
        }
        if running && let Some(stream) = self.stream.get() {
            match stream.query() {
                Ok(false) => return (ncclInProgress, None),
                Ok(true) => self.lock().running = false,
                // One that was revoked is fit for what follows.
                Err(Error::Revoked { .. }) => self.lock().running = false,
                Err(error) => {
                    self.lock().running = false;
                    self.fail(&error.into());
                    return self.status();
                }
            }
        }
        let failed = made.and_then(|made| made.async_error().err());
        match failed.filter(|error| !matches!(error, Error::Revoked { .. })) {
            Some(error) => {
                let failure = Failure::from(error);
                self.note(&failure);
                (failure.code, Some(failure))
            }
            None => (ncclSuccess, None),
        }
    }

    /// Waits for all that is in progress. Its failures are the communicator's.
    pub(crate) fn settle(&self) {
        let jobs = std::mem::take(&mut self.lock().jobs);
        for job in jobs {
            let _ = job.wait();
        }
    }

    /// Takes what is made out of it: the last that has it drops it.
    pub(crate) fn take(&self) -> Option<Arc<Communicator>> {
        self.operators.lock().unwrap_or_else(PoisonError::into_inner).clear();
        drop(self.one_sided.lock().unwrap_or_else(PoisonError::into_inner).take());
        let mut state = self.lock();
        state.suspended = None;
        state.made.take()
    }

    /// As a function that starts something answers.
    pub(crate) fn answer_of_status(&self) -> Done {
        if self.status().0 == ncclInProgress { Done::InProgress } else { Done::Yes }
    }
}
