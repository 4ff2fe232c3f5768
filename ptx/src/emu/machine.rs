//! A machine: memory that is mapped, and launches.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Program;
use super::clock::{HOST, Place};
use super::memory::map::Map;

/// A GPU's memory as an emulated kernel sees it: the parts of the process's memory that were mapped. Cheap to clone.
#[derive(Clone, Default)]
pub struct Machine {
    pub(crate) map: Arc<Map>,
    launches: Arc<AtomicU64>,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("launches", &self.launches.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

/// Memory that a machine's kernels may touch, until this is dropped.
#[derive(Debug)]
pub struct Mapping {
    map: Arc<Map>,
    number: u64,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.map.remove(self.number);
    }
}

impl Machine {
    /// A machine without memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets kernels touch `bytes` bytes from `start` on. Addresses are the process's own. `name` is what errors call it.
    ///
    /// # Safety
    /// The memory must be readable and writable until the mapping is dropped and no kernel of the machine runs; and
    /// accessed meanwhile by others only as atomics, or in an order that the program gives.
    #[must_use]
    pub unsafe fn map(&self, start: u64, bytes: usize, name: &str) -> Mapping {
        self.map_there(start, bytes, name, 0)
    }

    /// As [`Machine::map`], for memory of GPU number `gpu`, or with `None` of the host: how far it is counts in virtual time
    /// ([`Options::clock`](super::Options::clock)). What is mapped without a place is the first GPU's.
    ///
    /// # Safety
    /// As [`Machine::map`].
    #[must_use]
    pub unsafe fn map_on(&self, gpu: Option<u32>, start: u64, bytes: usize, name: &str) -> Mapping {
        self.map_there(start, bytes, name, gpu.unwrap_or(HOST))
    }

    /// Makes `bytes` bytes from `start` on the addresses of a multicast object (CUDA's `cuMulticastCreate`): what is done to one of
    /// them is done to the same place behind each of `members`, where memory is mapped. `multimem` instructions access them, and
    /// stores, which PTX leaves undefined and GPUs send to all members, as NCCL's kernels expect. Nothing else of the process
    /// should have these addresses; they are never accessed by the process itself.
    ///
    /// ```
    /// use ferroccl_ptx::emu::Machine;
    ///
    /// let machine = Machine::new();
    /// let mut gpus = [[0u64; 16]; 2];
    /// let members = gpus.each_mut().map(|words| words.as_mut_ptr().expose_provenance() as u64);
    /// // SAFETY: the arrays outlive the mappings.
    /// let memory = [0, 1].map(|g| unsafe { machine.map_on(Some(g), members[g as usize], 128, "words") });
    /// let multicast = machine.map_multicast(1 << 50, 128, &members, "all words");
    /// # drop((multicast, memory));
    /// ```
    #[must_use]
    pub fn map_multicast(&self, start: u64, bytes: usize, members: &[u64], name: &str) -> Mapping {
        let number = self.map.add_multicast(start, bytes as u64, members, name);
        Mapping { number, map: Arc::clone(&self.map) }
    }

    fn map_there(&self, start: u64, bytes: usize, name: &str, place: Place) -> Mapping {
        let number = self.map.add(start, bytes as u64, name, place);
        Mapping { number, map: Arc::clone(&self.map) }
    }

    /// Makes a launch ready to run.
    ///
    /// # Errors
    /// [`LaunchError`]: what does not fit the kernel.
    pub fn launch(&self, launch: Launch) -> Result<Arc<Grid>, LaunchError> {
        let Launch { program, grid, block, parameters, dynamic_shared, device } = launch;
        let threads = block.iter().try_fold(1u32, |n, &d| n.checked_mul(d)).unwrap_or(u32::MAX);
        let most = program.max_threads.unwrap_or(MAX_THREADS).min(MAX_THREADS);
        if threads == 0 || threads > most {
            return Err(LaunchError::Threads { kernel: program.name().to_owned(), threads, most });
        }
        let blocks = grid.iter().try_fold(1u32, |n, &d| n.checked_mul(d)).unwrap_or(0);
        if blocks == 0 {
            return Err(LaunchError::Blocks { kernel: program.name().to_owned(), grid });
        }
        if parameters.len() != program.parameter_bytes {
            return Err(LaunchError::Parameters {
                kernel: program.name().to_owned(),
                given: parameters.len(),
                wanted: program.parameter_bytes,
            });
        }
        let shared = program.shared_bytes + dynamic_shared as usize;
        if shared > MAX_SHARED {
            return Err(LaunchError::Shared { kernel: program.name().to_owned(), bytes: shared });
        }
        let parameters = Parameters::new(&parameters);
        let map = |start: u64, bytes: usize, name: &str| self.map_there(start, bytes, name, device);
        let variables = program.variables.iter().map(|v| map(v.address(), v.bytes, &v.name));
        let mut mappings: Vec<Mapping> = variables.collect();
        if program.addresses_parameters {
            mappings.push(map(parameters.address(), parameters.len(), "the kernel's parameters"));
        }
        Ok(Arc::new(Grid {
            number: self.launches.fetch_add(1, Ordering::Relaxed),
            machine: self.clone(),
            program,
            grid,
            block,
            blocks,
            threads,
            parameters,
            dynamic_shared,
            device,
            _mappings: mappings,
        }))
    }
}

/// The most threads of a block on every GPU so far (CUDA C++ Programming Guide, "Technical Specifications").
const MAX_THREADS: u32 = 1024;
/// The most shared memory of a block: 227 KiB on sm_90, the same source; 256 KiB here.
const MAX_SHARED: usize = 256 << 10;

/// What to run, and how wide.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel.
    pub program: Arc<Program>,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// The parameters, laid out as the kernel declares them.
    pub parameters: Vec<u8>,
    /// Bytes of shared memory beyond what the kernel declares.
    pub dynamic_shared: u32,
    /// The GPU it runs on: what has scope `.gpu` is strong among launches of one number.
    pub device: u32,
}

impl Launch {
    /// A launch of `blocks` blocks of `threads` threads, with the parameters' bytes.
    #[must_use]
    pub fn new(program: &Arc<Program>, blocks: u32, threads: u32, parameters: Vec<u8>) -> Self {
        Launch {
            program: Arc::clone(program),
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            parameters,
            dynamic_shared: 0,
            device: 0,
        }
    }
}

/// Why a launch cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// No threads in a block, or too many.
    #[error("{kernel}: {threads} threads in a block; 1 to {most} are possible")]
    Threads {
        /// The kernel.
        kernel: String,
        /// Threads asked for.
        threads: u32,
        /// What the kernel says, or a GPU has.
        most: u32,
    },
    /// No blocks, or more than 2^32.
    #[error("{kernel}: a grid of {grid:?} blocks")]
    Blocks {
        /// The kernel.
        kernel: String,
        /// Blocks asked for.
        grid: [u32; 3],
    },
    /// Parameters of another size.
    #[error("{kernel}: {given} bytes of parameters, the kernel takes {wanted}")]
    Parameters {
        /// The kernel.
        kernel: String,
        /// Bytes given.
        given: usize,
        /// Bytes it takes.
        wanted: usize,
    },
    /// Too much shared memory.
    #[error("{kernel}: {bytes} bytes of shared memory are more than a block has")]
    Shared {
        /// The kernel.
        kernel: String,
        /// Bytes declared and added.
        bytes: usize,
    },
}

/// A launch that is ready: its blocks can be run.
pub struct Grid {
    pub(crate) number: u64,
    pub(crate) machine: Machine,
    pub(crate) program: Arc<Program>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    /// Dropped before the parameters, which are mapped.
    _mappings: Vec<Mapping>,
    pub(crate) parameters: Parameters,
    pub(crate) dynamic_shared: u32,
    pub(crate) device: u32,
}

/// The bytes of a launch's parameters, where addresses in them are aligned as offsets are.
#[derive(Debug)]
pub(crate) struct Parameters {
    words: Box<[u128]>,
    bytes: usize,
}

impl Parameters {
    fn new(bytes: &[u8]) -> Self {
        let word = |part: &[u8]| {
            let mut word = [0; 16];
            word[..part.len()].copy_from_slice(part);
            u128::from_ne_bytes(word)
        };
        Parameters { words: bytes.chunks(16).map(word).collect(), bytes: bytes.len() }
    }

    /// The generic address of the first.
    pub(crate) fn address(&self) -> u64 {
        self.words.as_ptr().expose_provenance() as u64
    }
}

impl std::ops::Deref for Parameters {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the words have at least as many bytes, any of which is a `u8`.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.bytes) }
    }
}

impl Grid {
    /// How many blocks it has.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Which launch of its machine it is.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The kernel.
    #[must_use]
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }
}

impl fmt::Debug for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grid")
            .field("kernel", &self.program.name())
            .field("grid", &self.grid)
            .field("block", &self.block)
            .finish_non_exhaustive()
    }
}
