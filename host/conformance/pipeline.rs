//! The simplest use of a protocol: rank 0 sends through the slots, and every rank hands on to the next of the ring what it gets.

use ferroccl_device::abi::{Algorithm, Collective};
use ferroccl_device::collectives::KernelCode;
use ferroccl_device::element::Element;
use ferroccl_device::prims::{KernelContext, Prims, Protocol};
use ferroccl_device::reduce::Reduction;

/// A broadcast by a ring of which nobody writes to another's buffers: who sends is as far ahead as slots allow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pipeline;

/// Through slots, whatever else the connection could do.
const DIRECT: bool = false;

impl KernelCode for Pipeline {
    const COLLECTIVE: Collective = Collective::Broadcast;
    const ALGORITHM: Algorithm = Algorithm::Ring;

    unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(cx: KernelContext) {
        // SAFETY: the caller's: this block is the only user of its channel's connections, and the buffers hold the call's elements.
        unsafe {
            let (recv, send) = cx.ring();
            let last = (*cx.links()).next == 0;
            if cx.rank() == 0 {
                let prims = Prims::<T, R, P, 0, 1>::open(cx, ([], send), DIRECT);
                chunks(prims, |prims, at, n| prims.copy_send(at, at, n));
            } else if last {
                let prims = Prims::<T, R, P, 1, 0>::open(cx, (recv, []), DIRECT);
                chunks(prims, |prims, at, n| prims.recv(at, n));
            } else {
                let mut prims = Prims::<T, R, P, 1, 1>::open(cx, (recv, send), DIRECT);
                prims.settle();
                chunks(prims, |prims, at, n| prims.recv_copy_send(at, n));
            }
        }
    }
}

/// Does all chunks, and ends.
///
/// # Safety
/// As [`KernelCode::run`].
unsafe fn chunks<T, R, P, const NR: usize, const NS: usize>(
    mut prims: Prims<T, R, P, NR, NS>,
    each: impl Fn(&mut Prims<T, R, P, NR, NS>, usize, usize),
) where
    T: Element,
    R: Reduction,
    P: Protocol,
{
    let count = prims.context().count() as usize;
    let mut at = 0;
    while at < count {
        let n = prims.chunk().min(count - at);
        each(&mut prims, at, n);
        at += n;
    }
    prims.close();
}
