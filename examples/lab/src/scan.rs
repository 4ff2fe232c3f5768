//! Inclusive scan: every rank gets the sum of its own buffer and those of all ranks before it (MPI's `MPI_Scan`).
//!
//! It is no call of the library's, so that it is launched by itself, with [`Communicator::launch`]. Along the ranks:
//!
//! ```text
//! rank 0        keeps its values and sends them on
//! rank r        receives, adds its own: keeps that, and sends it on
//! the last      receives, adds its own, keeps that
//! ```
//!
//! Chunks follow each other, so that all ranks are at work when the buffers are large.

use ferroccl_device::abi::{Algorithm, Collective};
use ferroccl_device::collectives::KernelCode;
use ferroccl_device::element::Element;
use ferroccl_device::gpu;
use ferroccl_device::prims::{KernelContext, Prims, Protocol};
use ferroccl_device::reduce::Reduction;

/// Connections that are opened without a way straight into the peer's output.
const THROUGH_SLOTS: bool = false;

/// The kernel. As of an all-reduce, both buffers have all elements.
#[derive(Clone, Copy, Debug)]
pub struct Scan;

impl KernelCode for Scan {
    /// What it is nearest to, and what reports call it.
    const COLLECTIVE: Collective = Collective::AllReduce;
    const ALGORITHM: Algorithm = Algorithm::own(1, "Scan");
    const THREADS: u32 = 512;

    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(mut cx: KernelContext) {
        let (k, r) = (cx.ranks(), cx.rank());
        // A rank without a neighbour on one side has a null there.
        let before = if r > 0 { cx.connections(r - 1).0 } else { core::ptr::null_mut() };
        let after = if r + 1 < k { cx.connections(r + 1).1 } else { core::ptr::null_mut() };
        let count = cx.count() as usize;
        // SAFETY: the caller's: each block is the only user of its channel's connections, and the call's buffers hold the part.
        unsafe {
            // What goes out is not for the ring's next rank alone.
            cx.settle();
            if r == 0 {
                let mut prims = Prims::<T, R, P, 0, 1>::open(cx, ([], [after]), THROUGH_SLOTS);
                let mut at = 0;
                while at < count {
                    let n = prims.chunk().min(count - at);
                    prims.copy_send(at, at, n);
                    at += n;
                }
                prims.close_round(&mut cx);
            } else if r + 1 < k {
                let ends = ([before], [after]);
                let mut prims = Prims::<T, R, P, 1, 1>::open(cx, ends, THROUGH_SLOTS);
                let mut at = 0;
                while at < count {
                    let n = prims.chunk().min(count - at);
                    prims.recv_reduce_copy_send(at, at, n);
                    at += n;
                }
                prims.close_round(&mut cx);
            } else {
                let mut prims = Prims::<T, R, P, 1, 0>::open(cx, ([before], []), THROUGH_SLOTS);
                let mut at = 0;
                while at < count {
                    let n = prims.chunk().min(count - at);
                    prims.recv_reduce_copy(at, at, n);
                    at += n;
                }
                prims.close_round(&mut cx);
            }
        }
        gpu::sync_threads();
    }
}

#[cfg(not(target_arch = "nvptx64"))]
mod host {
    use ferroccl::{Communicator, DeviceBuffer, KernelSpec, ReduceOp, Result, Stream};

    use crate::{PTX, SCAN};

    /// Sums `send` over this rank and all before it into `recv`. All ranks call it.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn scan(
        comm: &Communicator,
        send: &DeviceBuffer<f32>,
        recv: &DeviceBuffer<f32>,
        stream: &Stream,
    ) -> Result<()> {
        // The shorter one: the kernel reads and writes no more.
        let count = send.len().min(recv.len());
        let spec = KernelSpec::new(SCAN.with_ptx(PTX), count);
        // SAFETY: the kernel reads `count` elements of `send` and writes as many of `recv`, and ends when all ranks run it.
        unsafe { comm.launch(&spec, send, recv, ReduceOp::Sum, stream) }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use host::scan;
