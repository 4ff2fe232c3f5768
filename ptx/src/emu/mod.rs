//! The emulator: kernels run warp by warp, 32 lanes at a time, on any machine.
//!
//! ```text
//! PTX text ─ program/ ─► Program        names resolved, registers shared, calls put in
//!            machine.rs  Machine        which memory there is;  Launch ─► Grid
//!            block.rs    Block          warps, shared memory, barrier.rs
//!            warp.rs     Warp           registers, fragments of lanes that are at one place
//!            exec.rs                    one instruction after the other
//!              alu/   arithmetic, 32 lanes at a time          sync.rs   votes, shuffles
//!              access.rs, atomics.rs, late.rs, multimem.rs  loads, stores, atomics ─► memory/   the host's, or the model's
//!              asynchronous.rs, mbarrier.rs  copies that go on by themselves, and who waits for them
//! who runs when:
//!            lockstep.rs  one thread, a schedule that a seed decides, all checks
//!              timed.rs, clock/  or in virtual time: what is earliest on a machine runs first
//!            threads.rs   as fast as it goes, on the host's memory
//! ```
//!
//! Global addresses are addresses of the process, so that what runs here shares memory with the host as a GPU does
//! with unified addressing. Only what was mapped can be touched ([`Machine::map`]).
//!
//! The two schedules differ in what they are for. [`Lockstep`] runs everything on one thread: its figures
//! ([`Counts`]) and its faults replay exactly from a seed; it can be given a memory that is as late, reordered and
//! torn as PTX allows, and finds races and deadlocks ([`Checks`]). [`BlockRun`] runs a block on whatever
//! thread calls it.
//!
//! What it does not know: textures and surfaces, tensor cores, copies of tensors, clusters of more than one block, recursion and
//! calls through pointers, floating-point atomics of vectors. They are errors when a kernel is loaded ([`LoadError`]).
//!
//! Time is virtual with [`Options::clock`]: what each instruction would wait for on a machine of which a table says what things
//! take ([`Timing`]). Without it an instruction is a nanosecond in [`Lockstep`], which is no GPU's time.
//!
//! ```
//! use std::sync::Arc;
//! use ferroccl_ptx::emu::{Launch, Lockstep, Machine, Options, Program};
//!
//! let source = ".version 8.0\n.target sm_90\n.address_size 64\n.entry twice(.param .u64 p) {
//!     .reg .b64 %a, %b; .reg .b32 %t, %v;
//!     ld.param.u64 %a, [p]; mov.u32 %t, %tid.x; mul.wide.u32 %b, %t, 4; add.u64 %a, %a, %b;
//!     ld.global.u32 %v, [%a]; add.u32 %v, %v, %v; st.global.u32 [%a], %v; ret; }";
//! let program = Arc::new(Program::load(source, "twice")?);
//!
//! let mut words: Vec<u32> = (0..64).collect();
//! let (start, bytes) = (words.as_mut_ptr().expose_provenance() as u64, 4 * words.len());
//! let machine = Machine::new();
//! // SAFETY: `words` outlives the mapping and the run, and is not touched meanwhile.
//! let mapping = unsafe { machine.map(start, bytes, "words") };
//!
//! let grid = machine.launch(Launch::new(&program, 1, 64, start.to_le_bytes().to_vec()))?;
//! let mut schedule = Lockstep::new(Options::seeded(7));
//! schedule.start(&grid);
//! let (_, counts) = schedule.run()?[0];
//! assert_eq!((words[63], counts.bytes_stored), (126, 256));
//! # drop(mapping);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod access;
pub mod alu;
mod assert;
mod asynchronous;
mod atomics;
mod barrier;
mod block;
mod clock;
mod counts;
mod exec;
mod fault;
mod late;
mod lockstep;
mod machine;
mod mbarrier;
mod memory;
mod multimem;
mod program;
mod random;
mod sync;
mod threads;
mod timed;
mod warp;

pub use clock::{
    A100_NVLINK, ASSUMED, H100_NVLINK, H200_ONE_GPU, MachineModel, PathStep, Source, Spent, Timing,
    UnknownFigure, totals,
};
pub use counts::Counts;
pub use fault::{Fault, FaultKind, Site};
pub use lockstep::{Lockstep, Options, WarpSchedule};
pub use machine::{Grid, Launch, LaunchError, Machine, Mapping};
pub use memory::model::{Adversity, Checks, Unit};
pub use program::{LoadError, Program};
pub use threads::{BlockRun, Progress, run_on_threads};
pub use timed::LaunchSpan;
