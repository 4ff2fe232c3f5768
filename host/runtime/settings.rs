//! What the user has to say about the devices of a process.

use std::path::PathBuf;

/// What the devices of a process run with. [`Settings::default`] is what they run with where nothing is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Worker threads of the CPU and PTX devices (`FERROCCL_WORKERS`); `None`: as many as the process may use cores.
    pub workers: Option<u32>,
    /// Threads of a block on the PTX device, a multiple of 32 (`FERROCCL_PTX_THREADS`).
    pub ptx_threads: u32,
    /// The directory where kernels are kept as a GPU's driver has assembled them (`FERROCCL_CUDA_CACHE`); `None`: nowhere.
    pub cuda_cache: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { workers: None, ptx_threads: 128, cuda_cache: None }
    }
}

impl Settings {
    /// The worker threads that a process has for its device.
    #[must_use]
    pub fn worker_threads(&self) -> usize {
        self.workers.map_or_else(
            || std::thread::available_parallelism().map_or(1, usize::from),
            |workers| workers as usize,
        )
    }
}
