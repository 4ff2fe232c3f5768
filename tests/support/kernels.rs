//! Kernels and helpers of the tests of the CPU runtime. `input` is the address of `u64` cells, `output`
//! whatever a kernel says.
#![allow(dead_code)] // each test file uses some

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::Zeroable;
use ferroccl::device::abi::{WaitKind, Work};
use ferroccl::device::gpu::{self, Waiting};
use ferroccl::device::kernels::Kernel;
use ferroccl::runtime::{Argument, Keep, Launch, Memory, Runtime, StreamOps};
use ferroccl::{Error, Result};

pub(crate) type Cpu = unsafe fn(*const Work);

/// `u64`s in device memory.
#[derive(Debug)]
pub(crate) struct Cells(Arc<dyn Memory>);

impl Cells {
    pub(crate) fn new(runtime: &Arc<dyn Runtime>, len: usize) -> Self {
        Cells(runtime.allocate(8 * len).unwrap())
    }

    pub(crate) fn address(&self) -> u64 {
        self.0.address()
    }

    fn cell(&self, i: usize) -> &AtomicU64 {
        assert!(8 * i < self.0.len());
        // SAFETY: inside the allocation, which lives as long as `self`.
        unsafe { AtomicU64::from_ptr((self.address() as *mut u64).add(i)) }
    }

    pub(crate) fn get(&self, i: usize) -> u64 {
        self.cell(i).load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, i: usize, value: u64) {
        self.cell(i).store(value, Ordering::Release);
    }
}

/// A launch that is being described.
pub(crate) struct Pending<'a>(&'a Arc<dyn StreamOps>, Launch);

/// Describes a launch; `go` or `done` does it.
pub(crate) fn launch(
    stream: &Arc<dyn StreamOps>,
    cpu: Cpu,
    input: u64,
    output: u64,
    blocks: u32,
) -> Pending<'_> {
    let mut work = Work::zeroed();
    (work.input, work.output) = (input, output);
    let launch = Launch {
        kernel: Kernel {
            name: "test",
            cpu,
            threads: 1,
            steps: None,
            blocks: 1,
            ptx: None,
            argument: size_of::<Work>(),
        },
        blocks,
        threads: 1,
        sharing: 1,
        argument: Argument::of_work(&work),
        keep: Vec::new(),
        bytes: 0,
        observer: None,
        done: Box::new(|_| Ok(())),
    };
    Pending(stream, launch)
}

impl Pending<'_> {
    pub(crate) fn bytes(mut self, bytes: u64) -> Self {
        self.1.bytes = bytes;
        self
    }

    pub(crate) fn keep(mut self, keep: Keep) -> Self {
        self.1.keep.push(keep);
        self
    }

    pub(crate) fn go(self) {
        // SAFETY: the tests' cells outlive their streams' work.
        unsafe { self.0.launch(self.1) }.unwrap();
    }

    pub(crate) fn done(mut self, done: impl FnOnce() -> Result<(), Error> + Send + 'static) {
        self.1.done = Box::new(|_| done());
        self.go();
    }
}

/// The kernel's cells.
unsafe fn cells(work: *const Work) -> *mut u64 {
    // SAFETY: the runtime's contract.
    unsafe { (*work).input as *mut u64 }
}

pub(crate) fn waiting(peer: u64, step: u64) -> Waiting {
    let channel = gpu::block_idx_x();
    Waiting { kind: WaitKind::Tail, rank: 0, peer: peer as u32, channel, step }
}

pub(crate) unsafe fn noop(_: *const Work) {}

/// Adds 1 to the first cell, in two accesses and a pause.
pub(crate) unsafe fn add_one(work: *const Work) {
    // SAFETY: the launch's.
    unsafe {
        let cell = cells(work);
        let before = gpu::ld_acquire(cell);
        let _ = gpu::pause(|| waiting(0, 0));
        gpu::st_release(cell, before + 1);
    }
}

/// Each block adds 1 to its cell.
pub(crate) unsafe fn mark_block(work: *const Work) {
    // SAFETY: the launch's.
    unsafe {
        let cell = cells(work).add(gpu::block_idx_x() as usize);
        gpu::st_release(cell, gpu::ld_acquire(cell) + 1);
    }
}

/// As `mark_block`, but block 3 panics.
pub(crate) unsafe fn panics(work: *const Work) {
    // SAFETY: the launch's.
    unsafe { mark_block(work) };
    let _ = gpu::pause(|| waiting(0, 0));
    assert!(gpu::block_idx_x() != 3, "block 3 is unhappy");
}

/// Waits until the first cell is not 0.
pub(crate) unsafe fn spin_until_set(work: *const Work) {
    // SAFETY: the launch's.
    while unsafe { gpu::ld_acquire(cells(work)) } == 0 {
        if gpu::pause(|| waiting(9, 7)).is_some() {
            return;
        }
    }
}

/// A rendezvous of `output >> 32` ranks, of which this is `output & 0xffff_ffff`: block `b` adds 1 to
/// cell `ranks * b + rank` and waits until those of all ranks have got as far.
pub(crate) unsafe fn meet(work: *const Work) {
    // SAFETY: the launch's.
    unsafe {
        let (ranks, rank) = ((*work).output >> 32, (*work).output & 0xffff_ffff);
        let cells = cells(work).add(gpu::block_idx_x() as usize * ranks as usize);
        let mine = cells.add(rank as usize);
        let round = gpu::ld_acquire(mine) + 1;
        gpu::st_release(mine, round);
        for peer in 0..ranks {
            while gpu::ld_acquire(cells.add(peer as usize)) < round {
                if gpu::pause(|| waiting(peer, round)).is_some() {
                    return;
                }
            }
        }
    }
}
