//! The devices of this process, with the settings of its environment. Runtimes themselves read none: they are handed
//! their [`Settings`](crate::runtime::Settings).

#[cfg(feature = "cuda")]
use std::ffi::c_void;

use crate::buffer::Device;
use crate::config::Config;
#[cfg(doc)]
use crate::error::Error;
#[cfg(any(feature = "cuda", feature = "emulator"))]
use crate::error::Result;
use crate::runtime::cpu;
#[cfg(feature = "cuda")]
use crate::runtime::cuda::{self, CudaRuntime};
#[cfg(feature = "emulator")]
use crate::runtime::ptx::{self, PtxRuntime};

impl Device {
    /// The CPU as a device: blocks are coroutines on the process's worker threads. Every call gives
    /// the same device. A setting that makes no sense is the error of the communicator that is made on it, which reads all
    /// settings; here it counts as not set.
    #[must_use]
    pub fn cpu() -> Self {
        let config = Config::from_env().unwrap_or_default();
        Device::new(cpu::shared(&config.runtime()))
    }

    /// The PTX emulator as a device: the kernels that a GPU would get, on the process's worker threads. Every
    /// call gives the same device. For its other modes see [`PtxRuntime`](ptx::PtxRuntime).
    ///
    /// # Errors
    /// [`Error::Unavailable`] when this build has no PTX ([`crate::ptx::unavailable`] says why);
    /// [`Error::InvalidSetting`].
    #[cfg(feature = "emulator")]
    pub fn ptx() -> Result<Self> {
        Ok(Device::new(ptx::shared(&Config::from_env()?.runtime())?))
    }

    /// A GPU as a device, by its number in this process (`CUDA_VISIBLE_DEVICES`) and its primary context. Every call gives
    /// the same device. A setting that makes no sense is the error of the communicator that is made on it, which reads all
    /// settings; here it counts as not set. For another context see [`CudaRuntime`](cuda::CudaRuntime).
    ///
    /// # Errors
    /// [`Error::Unavailable`] when there is no driver, no GPU, or no PTX in this build; [`Error::InvalidArgument`] when
    /// there is no GPU of this number; [`Error::InvalidSetting`].
    #[cfg(feature = "cuda")]
    pub fn cuda(ordinal: u32) -> Result<Self> {
        Ok(Device::new(cuda::shared(ordinal, &Config::from_env()?.runtime())?))
    }
}

#[cfg(feature = "emulator")]
impl PtxRuntime {
    /// With the settings of the environment; for a build that has PTX.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when this build has no PTX, [`Error::InvalidSetting`] for a setting that makes no sense.
    #[allow(clippy::wrong_self_convention, reason = "a builder's step, like the others")]
    pub fn from_env(self) -> Result<Self> {
        self.with_settings(&Config::from_env()?.runtime())
    }
}

#[cfg(feature = "cuda")]
impl CudaRuntime {
    /// [`CudaRuntime::with_settings`] with those of the environment.
    ///
    /// # Errors
    /// As there; [`Error::InvalidSetting`].
    pub fn new(ordinal: u32) -> Result<Self> {
        Self::with_settings(ordinal, &Config::from_env()?.runtime())
    }

    /// [`CudaRuntime::of_context_with`] with the settings of the environment.
    ///
    /// # Errors
    /// As there; [`Error::InvalidSetting`].
    ///
    /// # Safety
    /// `context` is a context, and outlives the runtime and all that is made on it.
    pub unsafe fn of_context(context: *mut c_void) -> Result<Self> {
        // SAFETY: the caller's.
        unsafe { Self::of_context_with(context, &Config::from_env()?.runtime()) }
    }
}
