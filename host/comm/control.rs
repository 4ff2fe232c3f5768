//! The control block of a communicator: what its kernels read, and where they leave a failure.

use std::sync::atomic::{AtomicU64, Ordering};

use ferroccl_device::abi::{Channel, Comm, Fault, FaultCell};

/// Memory that kernels and host share, at fixed addresses for as long as the communicator lives.
#[derive(Debug)]
pub(super) struct Control {
    block: Box<Block>,
    /// Read and written by kernels only, through the address in `block.comm`.
    channels: Box<[Channel]>,
}

#[derive(Debug)]
#[repr(C)]
struct Block {
    comm: Comm,
    abort: AtomicU64,
    fault: std::cell::UnsafeCell<FaultCell>,
}

// SAFETY: `fault` is accessed under its state word (0 -> 1 -> 2, see `FaultCell`); `comm` is only read after
// it is set up; `abort` is atomic.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Control {
    /// The control block of `rank` of `nranks`, over its channels.
    pub(super) fn new(
        rank: u32,
        nranks: u32,
        timeout_ns: u64,
        mut channels: Box<[Channel]>,
    ) -> Self {
        let mut block = Box::new(Block {
            comm: Comm { rank, nranks, timeout_ns, ..Comm::default() },
            abort: AtomicU64::new(0),
            fault: FaultCell::default().into(),
        });
        block.comm.channels = channels.as_mut_ptr().expose_provenance() as u64;
        block.comm.abort = (&raw const block.abort).expose_provenance() as u64;
        block.comm.fault = block.fault.get().expose_provenance() as u64;
        Control { block, channels }
    }

    /// What kernels touch: address, bytes, and what it is.
    pub(super) fn memory(&self) -> [(u64, usize, &'static str); 2] {
        let channels = self.block.comm.channels;
        [
            (self.comm_address(), size_of::<Block>(), "a communicator's control block"),
            (channels, size_of_val(&*self.channels), "a communicator's channels"),
        ]
    }

    /// Address of the [`Comm`].
    pub(super) fn comm_address(&self) -> u64 {
        (&raw const self.block.comm).expose_provenance() as u64
    }

    fn state(&self) -> &AtomicU64 {
        // SAFETY: the word is aligned, lives as long as `self`, and is only accessed atomically.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.block.fault.get()).state) }
    }

    /// The first failure.
    pub(super) fn fault(&self) -> Option<Fault> {
        // Pairs with the release in `fail`, here and in the device's `Context`.
        if self.state().load(Ordering::Acquire) != 2 {
            return None;
        }
        // SAFETY: in state 2 nobody writes the fault any more.
        Some(unsafe { (*self.block.fault.get()).fault })
    }

    /// Records `fault` unless there is one, and stops our kernels.
    pub(super) fn fail(&self, fault: &Fault) {
        if self.state().compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            // SAFETY: who takes the state from 0 to 1 is the only writer.
            unsafe { (*self.block.fault.get()).fault = *fault };
            // Pairs with the acquire in `fault`.
            self.state().store(2, Ordering::Release);
        }
        // Pairs with the acquire in `Context::aborted`.
        self.block.abort.store(1, Ordering::Release);
    }
}
