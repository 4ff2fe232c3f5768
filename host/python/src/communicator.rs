//! Communicators, as Python has them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ferroccl::bootstrap::UNIQUE_ID_BYTES;
use ferroccl::config::Config;
use ferroccl::launcher::RankEnv;
use ferroccl::{AbortHandle, CommConfig, Device, Operator, ReduceOp, ShrinkMode, Stream, UniqueId};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::call::Call;
use crate::element::OfFactor;
use crate::errors::{argument, exception};
use crate::group::{self, Launch};
use crate::memory::Array;
use crate::waiting::in_background;

/// A communicator with the stream of its calls.
pub(crate) struct Made {
    pub(crate) comm: ferroccl::Communicator,
    pub(crate) stream: Stream,
    /// Held from a call's launch until its end is recorded, so that an end is of one call.
    order: Mutex<()>,
}

impl Made {
    fn new(comm: ferroccl::Communicator) -> ferroccl::Result<Arc<Made>> {
        let stream = comm.device().stream()?;
        Ok(Arc::new(Made { comm, stream, order: Mutex::default() }))
    }

    pub(crate) fn order(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One rank of a group.
#[pyclass(frozen, module = "ferroccl._ferroccl")]
pub(crate) struct Communicator {
    /// `None` once it is closed.
    made: Mutex<Option<Arc<Made>>>,
    rank: u32,
    size: u32,
}

/// The settings that Python gives: seconds that a call may wait, seconds after which a warning says for whom, and whether
/// results have the same bits every time.
#[derive(FromPyObject)]
struct Settings(Option<f64>, Option<f64>, Option<bool>);

impl Settings {
    fn config(&self) -> PyResult<(CommConfig, AbortHandle)> {
        let abort = AbortHandle::new();
        let mut config = CommConfig::default();
        config.timeout = self.0.map(|s| seconds("timeout", s)).transpose()?;
        config.warn_after = self.1.map(|s| seconds("warn_after", s)).transpose()?;
        config.deterministic = self.2;
        config.abort = Some(abort.clone());
        Ok((config, abort))
    }
}

fn seconds(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| argument(name, format!("{seconds} is no number of seconds from 0 on")))
}

fn operator(op: &str) -> PyResult<ReduceOp> {
    let wrong = |e: ferroccl::device::abi::UnknownName| argument("op", format!("{op:?}: {e}"));
    op.parse().map_err(wrong)
}

/// An id for one group of ranks: 128 bytes, of which 32 are a secret.
#[pyfunction]
pub(crate) fn unique_id(py: Python<'_>) -> PyResult<Bound<'_, PyBytes>> {
    let id = Config::from_env().and_then(|env| Ok(UniqueId::new(&env.bootstrap())?));
    let id = id.map_err(|error| exception(py, &error))?;
    Ok(PyBytes::new(py, &id.to_bytes()))
}

/// A launcher's name, the rank, the ranks, the rank on the host, the host's ranks.
type Place = (String, u32, u32, u32, u32);

/// What the launcher says; `None` without one.
#[pyfunction]
pub(crate) fn launcher(py: Python<'_>) -> PyResult<Option<Place>> {
    let env = RankEnv::from_env().map_err(|error| exception(py, &error))?;
    Ok(env.map(|env| {
        (env.launcher.to_string(), env.rank, env.world_size, env.local_rank, env.local_size)
    }))
}

#[pymethods]
impl Communicator {
    /// Rank `rank` of `nranks`, which all have the same id. Returns when all have come.
    #[staticmethod]
    fn init_rank(
        py: Python<'_>,
        nranks: u32,
        id: &[u8],
        rank: u32,
        settings: Settings,
    ) -> PyResult<Self> {
        let bytes: &[u8; UNIQUE_ID_BYTES] = id.try_into().map_err(|_| {
            argument("unique_id", format!("it has {} bytes, and an id {UNIQUE_ID_BYTES}", id.len()))
        })?;
        let id = UniqueId::from_bytes(bytes).map_err(|e| argument("unique_id", e))?;
        let (config, abort) = settings.config()?;
        let made = in_background(
            py,
            || abort.abort(),
            move || {
                let device = Device::cpu();
                Made::new(ferroccl::Communicator::init_rank_with(
                    &device, nranks, &id, rank, &config,
                )?)
            },
        )?;
        Ok(Self::of(made))
    }

    /// This process's rank, as its launcher says. Without a launcher it is the only rank.
    #[staticmethod]
    fn from_env(py: Python<'_>, settings: Settings) -> PyResult<Self> {
        let (config, abort) = settings.config()?;
        let made = in_background(
            py,
            || abort.abort(),
            move || {
                let env = Config::from_env()?;
                let (nranks, id, rank) = match RankEnv::from_env()? {
                    Some(ranks) => (ranks.world_size, ranks.unique_id(&env)?, ranks.rank),
                    None => (1, UniqueId::new(&env.bootstrap())?, 0),
                };
                let device = Device::cpu();
                Made::new(ferroccl::Communicator::init_rank_with(
                    &device, nranks, &id, rank, &config,
                )?)
            },
        )?;
        Ok(Self::of(made))
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.rank
    }

    #[getter]
    fn size(&self) -> u32 {
        self.size
    }

    fn all_reduce(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: &Bound<'_, PyAny>,
        op: &str,
        factor: Option<f64>,
    ) -> PyResult<Call> {
        let (send, recv) = pair(send, recv)?;
        let (data_type, op) = self.reduction(&send, op)?;
        self.start(
            py,
            typed!(data_type, T => {
                let op = with_factor::<T>(op, factor)?;
                let (send, recv) = (send.buffer::<T>()?, recv.buffer::<T>()?);
                Box::new(move |comm, stream| comm.all_reduce(&send, &recv, op, stream))
            }),
        )
    }

    fn reduce(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: Option<&Bound<'_, PyAny>>,
        op: &str,
        factor: Option<f64>,
        root: u32,
    ) -> PyResult<Call> {
        let (send, recv) = self.at_root(("send", send, false), ("recv", recv, true), root)?;
        let (data_type, op) = self.reduction(&send, op)?;
        self.start(
            py,
            typed!(data_type, T => {
                let op = with_factor::<T>(op, factor)?;
                let send = send.buffer::<T>()?;
                let recv = recv.map_or_else(|| Ok(send.clone()), Array::buffer::<T>)?;
                Box::new(move |comm, stream| comm.reduce(&send, &recv, op, root, stream))
            }),
        )
    }

    fn reduce_scatter(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: &Bound<'_, PyAny>,
        op: &str,
        factor: Option<f64>,
    ) -> PyResult<Call> {
        let (send, recv) = pair(send, recv)?;
        let (data_type, op) = self.reduction(&send, op)?;
        self.start(
            py,
            typed!(data_type, T => {
                let op = with_factor::<T>(op, factor)?;
                let (send, recv) = (send.buffer::<T>()?, recv.buffer::<T>()?);
                Box::new(move |comm, stream| comm.reduce_scatter(&send, &recv, op, stream))
            }),
        )
    }

    fn all_gather(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: &Bound<'_, PyAny>,
    ) -> PyResult<Call> {
        let (send, recv) = pair(send, recv)?;
        self.start(
            py,
            typed!(send.element.moved(), T => {
                let (send, recv) = (send.buffer::<T>()?, recv.buffer::<T>()?);
                Box::new(move |comm, stream| comm.all_gather(&send, &recv, stream))
            }),
        )
    }

    fn all_to_all(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: &Bound<'_, PyAny>,
    ) -> PyResult<Call> {
        let (send, recv) = pair(send, recv)?;
        let (len, n) = (send.len(), self.size as usize);
        if !len.is_multiple_of(n) {
            return Err(argument("send", format!("has {len} elements, no multiple of {n} ranks")));
        }
        self.start(
            py,
            typed!(send.element.moved(), T => {
                let (send, recv) = (send.buffer::<T>()?, recv.buffer::<T>()?);
                Box::new(move |comm, stream| comm.all_to_all(&send, &recv, stream))
            }),
        )
    }

    /// Sends `send_counts[i]` elements to rank `i`, and receives `recv_counts[i]` from it.
    fn all_to_all_v(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: &Bound<'_, PyAny>,
        send_counts: Vec<usize>,
        recv_counts: Vec<usize>,
    ) -> PyResult<Call> {
        let (send, recv) = pair(send, recv)?;
        self.check_counts("send_counts", &send_counts, "send", &send)?;
        self.check_counts("recv_counts", &recv_counts, "recv", &recv)?;
        let data_type = send.element.moved();
        let parts = send.element.size() / data_type.size();
        self.start(
            py,
            typed!(data_type, T => {
                let (send, recv) = (send.buffer::<T>()?, recv.buffer::<T>()?);
                Box::new(move |comm, stream| ferroccl::group(|| {
                    let (mut sent, mut received) = (0, 0);
                    for (peer, (to, from)) in (0..).zip(send_counts.iter().zip(&recv_counts)) {
                        let (to, from) = (to * parts, from * parts);
                        comm.send(&send.slice(sent..sent + to), peer, stream)?;
                        comm.recv(&recv.slice(received..received + from), peer, stream)?;
                        (sent, received) = (sent + to, received + from);
                    }
                    Ok(())
                }))
            }),
        )
    }

    /// Gives all ranks what `buffer` of the root has.
    fn broadcast(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, root: u32) -> PyResult<Call> {
        self.check_rank("root", root)?;
        let buffer = Array::of("buffer", buffer, root != self.rank)?;
        self.start(
            py,
            typed!(buffer.element.moved(), T => {
                let buffer = buffer.buffer::<T>()?;
                Box::new(move |comm, stream| comm.broadcast(&buffer, &buffer, root, stream))
            }),
        )
    }

    fn gather(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: Option<&Bound<'_, PyAny>>,
        root: u32,
    ) -> PyResult<Call> {
        let (send, recv) = self.at_root(("send", send, false), ("recv", recv, true), root)?;
        self.start(
            py,
            typed!(send.element.moved(), T => {
                let send = send.buffer::<T>()?;
                let recv = recv.map_or_else(|| Ok(send.clone()), Array::buffer::<T>)?;
                Box::new(move |comm, stream| comm.gather(&send, &recv, root, stream))
            }),
        )
    }

    fn scatter(
        &self,
        py: Python<'_>,
        send: Option<&Bound<'_, PyAny>>,
        recv: &Bound<'_, PyAny>,
        root: u32,
    ) -> PyResult<Call> {
        let (recv, send) = self.at_root(("recv", recv, true), ("send", send, false), root)?;
        self.start(
            py,
            typed!(recv.element.moved(), T => {
                let recv = recv.buffer::<T>()?;
                let send = send.map_or_else(|| Ok(recv.clone()), Array::buffer::<T>)?;
                Box::new(move |comm, stream| comm.scatter(&send, &recv, root, stream))
            }),
        )
    }

    fn send(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, peer: u32) -> PyResult<Call> {
        self.check_rank("peer", peer)?;
        let buffer = Array::of("buffer", buffer, false)?;
        self.start(
            py,
            typed!(buffer.element.moved(), T => {
                let buffer = buffer.buffer::<T>()?;
                Box::new(move |comm, stream| comm.send(&buffer, peer, stream))
            }),
        )
    }

    fn recv(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, peer: u32) -> PyResult<Call> {
        self.check_rank("peer", peer)?;
        let buffer = Array::of("buffer", buffer, true)?;
        self.start(
            py,
            typed!(buffer.element.moved(), T => {
                let buffer = buffer.buffer::<T>()?;
                Box::new(move |comm, stream| comm.recv(&buffer, peer, stream))
            }),
        )
    }

    fn barrier(&self, py: Python<'_>) -> PyResult<Call> {
        self.start(py, Box::new(|comm, stream| comm.barrier(stream)))
    }

    /// The communicator of the ranks that give the same color; `None` without one.
    fn split(
        &self,
        py: Python<'_>,
        color: Option<u32>,
        key: i32,
        settings: Settings,
    ) -> PyResult<Option<Self>> {
        let made = self.made()?;
        let (config, abort) = settings.config()?;
        let split = in_background(
            py,
            || abort.abort(),
            move || made.comm.split_with(color, key, &config)?.map(Made::new).transpose(),
        )?;
        Ok(split.map(Self::of))
    }

    /// The communicator of the ranks without those; `abort` ends the calls of this one first.
    fn shrink(
        &self,
        py: Python<'_>,
        exclude: Vec<u32>,
        abort: bool,
        settings: Settings,
    ) -> PyResult<Self> {
        let made = self.made()?;
        let (config, handle) = settings.config()?;
        let mode = if abort { ShrinkMode::Abort } else { ShrinkMode::Healthy };
        let shrunk = in_background(
            py,
            || handle.abort(),
            move || Made::new(made.comm.shrink_with(&exclude, mode, &config)?),
        )?;
        Ok(Self::of(shrunk))
    }

    /// Ends all calls, on all ranks, with an error.
    fn abort(&self) {
        if let Ok(made) = self.made() {
            made.comm.abort();
        }
    }

    /// Raises what the communicator has failed with.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.made()?.comm.async_error().map_err(|error| exception(py, &error))
    }

    /// Waits for the calls, and lets go of all that the communicator has.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let made = self.lock().take();
        let Some(made) = made else { return Ok(()) };
        let stop = made.comm.abort_handle();
        let failed = made.comm.async_error().is_err();
        in_background(
            py,
            || stop.abort(),
            move || {
                // What has failed has been told.
                let result = if failed { Ok(()) } else { made.comm.finalize() };
                drop(made);
                result
            },
        )
    }

    #[getter]
    fn closed(&self) -> bool {
        self.lock().is_none()
    }
}

impl Communicator {
    fn of(made: Arc<Made>) -> Self {
        let (rank, size) = (made.comm.rank(), made.comm.world_size());
        Communicator { made: Mutex::new(Some(made)), rank, size }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Made>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn made(&self) -> PyResult<Arc<Made>> {
        self.lock().clone().ok_or_else(|| argument("self", "the communicator is closed"))
    }

    fn start(&self, py: Python<'_>, launch: Launch) -> PyResult<Call> {
        group::start(py, self.made()?, launch)
    }

    fn reduction(&self, send: &Array, op: &str) -> PyResult<(ferroccl::DataType, ReduceOp)> {
        send.element.reduced(operator(op)?).map_err(|e| PyTypeError::new_err(format!("op: {e}")))
    }

    fn check_rank(&self, name: &str, rank: u32) -> PyResult<()> {
        if rank < self.size {
            return Ok(());
        }
        Err(argument(name, format!("{rank} is none of the {} ranks", self.size)))
    }

    /// The array that every rank has, and the one that the root has; elsewhere that is not looked at.
    fn at_root(
        &self,
        every: (&'static str, &Bound<'_, PyAny>, bool),
        rooted: (&'static str, Option<&Bound<'_, PyAny>>, bool),
        root: u32,
    ) -> PyResult<(Array, Option<Array>)> {
        self.check_rank("root", root)?;
        let every = Array::of(every.0, every.1, every.2)?;
        if root != self.rank {
            return Ok((every, None));
        }
        let (name, value, written) = rooted;
        let value = value.ok_or_else(|| argument(name, "the root needs it"))?;
        let rooted = Array::of(name, value, written)?;
        check_types(&every, &rooted)?;
        Ok((every, Some(rooted)))
    }

    fn check_counts(&self, name: &str, counts: &[usize], of: &str, array: &Array) -> PyResult<()> {
        if counts.len() != self.size as usize {
            let reason = format!("has {} counts, and there are {} ranks", counts.len(), self.size);
            return Err(argument(name, reason));
        }
        let sum = counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
        if sum.is_none_or(|sum| sum > array.len()) {
            let reason = format!("has more elements than {of}, which has {}", array.len());
            return Err(argument(name, reason));
        }
        Ok(())
    }
}

fn pair(send: &Bound<'_, PyAny>, recv: &Bound<'_, PyAny>) -> PyResult<(Array, Array)> {
    let (send, recv) = (Array::of("send", send, false)?, Array::of("recv", recv, true)?);
    check_types(&send, &recv)?;
    Ok((send, recv))
}

fn check_types(one: &Array, other: &Array) -> PyResult<()> {
    if one.element == other.element {
        return Ok(());
    }
    let (a, b) = (one.describe(), other.describe());
    Err(PyTypeError::new_err(format!("{a}, and {b}: they must be of one type")))
}

fn with_factor<T: OfFactor>(op: ReduceOp, factor: Option<f64>) -> PyResult<Operator<T>> {
    match (op, factor) {
        (ReduceOp::PreMulSum, Some(factor)) => Ok(Operator::pre_mul_sum(T::of_factor(factor))),
        (ReduceOp::PreMulSum, None) => Err(argument("factor", "mulsum needs one")),
        (op, None) => Ok(op.into()),
        (op, Some(_)) => Err(argument("factor", format!("{op} takes none"))),
    }
}
