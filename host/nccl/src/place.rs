//! Where a communicator's calls run: in the context that is current to the calling thread, or on the CPU
//! (`FERROCCL_DEVICE=cpu`).

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::ThreadId;

use ferroccl::config::{Config, LibraryDevice};
use ferroccl::runtime::cuda::{self, CudaRuntime};
use ferroccl::{Device, Error, Stream};

use crate::answer::Failure;
use crate::kernels::{PUT_SIGNAL, WAIT_SIGNAL};
use crate::types::{cudaStream_t, ncclUnhandledCudaError};

/// `cudaStreamPerThread`: each thread means its own stream by it.
const STREAM_PER_THREAD: usize = 2;

/// A device, as a program made for NCCL knows it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) device: Device,
    /// The number by which the program knows it.
    pub(crate) ordinal: c_int,
    /// A GPU's context, and the caller's streams that have been used in it; `None` for the CPU.
    pub(crate) gpu: Option<GpuPlace>,
}

#[derive(Debug)]
pub(crate) struct GpuPlace {
    pub(crate) runtime: Arc<CudaRuntime>,
    streams: Mutex<HashMap<(usize, Option<ThreadId>), Stream>>,
}

/// Every context that communicators are in: their calls share its streams.
static CONTEXTS: Mutex<Vec<(usize, Weak<Place>)>> = Mutex::new(Vec::new());

impl Place {
    /// That of the calling thread.
    pub(crate) fn current() -> Result<Arc<Place>, Failure> {
        if is_cpu()? {
            return Ok(Self::cpu(0));
        }
        match cuda::current_context().map_err(no_gpu)? {
            Some(context) => Self::of_context(context),
            // The CUDA runtime's first device, which is a thread's that has not chosen one.
            None => Self::numbered(0),
        }
    }

    /// The device of this number, by its primary context.
    pub(crate) fn numbered(ordinal: c_int) -> Result<Arc<Place>, Failure> {
        let negative = || Failure::argument("devlist", format!("{ordinal} is no device"));
        let number = u32::try_from(ordinal).map_err(|_| negative())?;
        if is_cpu()? {
            return Ok(Self::cpu(ordinal));
        }
        let wrong = |error| match error {
            Error::InvalidArgument { reason, .. } => Failure::argument("devlist", reason),
            error => no_gpu(error),
        };
        // Its own: it is kept as long as the context is in use here.
        let runtime = CudaRuntime::new(number).map_err(wrong)?;
        Ok(Self::shared(runtime.context(), || Ok((with_kernels(runtime), ordinal)))?)
    }

    fn of_context(context: *mut c_void) -> Result<Arc<Place>, Failure> {
        Ok(Self::shared(context, || {
            // SAFETY: it is current to this thread; as with NCCL, a program keeps the context as long as its communicators.
            let runtime = with_kernels(unsafe { CudaRuntime::of_context(context)? });
            let ordinal = c_int::try_from(runtime.info()?.ordinal).unwrap_or(0);
            Ok((runtime, ordinal))
        })?)
    }

    /// The place of a context: one for all of its communicators.
    fn shared(
        context: *mut c_void,
        make: impl FnOnce() -> ferroccl::Result<(Arc<CudaRuntime>, c_int)>,
    ) -> ferroccl::Result<Arc<Place>> {
        let mut all = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, place)| place.strong_count() > 0);
        let known = all.iter().find(|(known, _)| *known == context.addr());
        if let Some(place) = known.and_then(|(_, place)| place.upgrade()) {
            return Ok(place);
        }
        let (runtime, ordinal) = make()?;
        let device = Device::new(runtime.clone());
        let gpu = Some(GpuPlace { runtime, streams: Mutex::default() });
        let place = Arc::new(Place { device, ordinal, gpu });
        all.push((context.addr(), Arc::downgrade(&place)));
        Ok(place)
    }

    fn cpu(ordinal: c_int) -> Arc<Place> {
        Arc::new(Place { device: Device::cpu(), ordinal, gpu: None })
    }

    pub(crate) fn is_cpu(&self) -> bool {
        self.gpu.is_none()
    }
}

/// A runtime that knows this crate's kernels.
fn with_kernels(runtime: CudaRuntime) -> Arc<CudaRuntime> {
    /// Empty where there was no compiler for it: what needs a kernel then says so.
    const PTX: &str = include_str!(concat!(env!("OUT_DIR"), "/one_sided.ptx"));
    if PTX.is_empty() {
        return Arc::new(runtime);
    }
    let kernels = [PUT_SIGNAL.kernel().name, WAIT_SIGNAL.kernel().name];
    // SAFETY: it is the PTX of these kernels.
    let add = |runtime: CudaRuntime, kernel: &&str| unsafe { runtime.with_source(kernel, PTX) };
    Arc::new(kernels.iter().fold(runtime, add))
}

impl GpuPlace {
    /// A stream of the caller's. It is wrapped once, so that calls in one stream need no events between them.
    pub(crate) fn stream(&self, raw: cudaStream_t) -> Result<Stream, Failure> {
        let thread = (raw.addr() == STREAM_PER_THREAD).then(|| std::thread::current().id());
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = streams.get(&(raw.addr(), thread)) {
            return Ok(stream.clone());
        }
        // SAFETY: as with NCCL, a program keeps a stream until what it has put in has ended.
        let stream = unsafe { self.runtime.stream_of(raw, Arc::new(())) }?;
        streams.insert((raw.addr(), thread), stream.clone());
        Ok(stream)
    }
}

/// As NCCL answers where there is no driver, or no GPU.
fn no_gpu(error: Error) -> Failure {
    let text = match &error {
        Error::Unavailable { .. } => format!("{error} (FERROCCL_DEVICE=cpu does without a GPU)"),
        _ => error.to_string(),
    };
    Failure { code: ncclUnhandledCudaError, text }
}

fn is_cpu() -> Result<bool, Failure> {
    Ok(Config::from_env()?.device == LibraryDevice::Cpu)
}
