//! The collectives, in verbs.

mod all_gather;
mod all_reduce;
pub mod chunks;

pub use all_gather::AllGatherRing;
pub use all_reduce::AllReduceRing;

use crate::abi::Work;
use crate::copy::{Lanes, MAX_ENDS, ReduceCopy, Shape};
use crate::element::Element;
use crate::prims::{Context, Protocol};
use crate::reduce::{Reducer, Reduction};

/// An algorithm of a collective that reduces: a kernel for every protocol, reduction and type.
pub trait Reducing {
    /// The kernel. All blocks of a rank run it.
    ///
    /// # Safety
    /// `work` is valid until all blocks have returned: its communicator, its channels and their connections,
    /// and the call's buffers.
    unsafe fn run<T: Element, R: Reduction, P: Protocol>(work: *const Work);
}

/// One rank: its input is the result.
///
/// # Safety
/// As [`Reducing::run`].
#[inline(always)]
unsafe fn alone<T: Element, R: Reduction>(cx: &Context, start: usize, count: usize) {
    // SAFETY: the caller's.
    unsafe {
        let work = cx.work();
        let input = ((*work).input as *const T).wrapping_add(start);
        let output = ((*work).output as *mut T).wrapping_add(start);
        let copy = ReduceCopy::<T, R> {
            sources: [input; MAX_ENDS],
            destinations: [output; MAX_ENDS],
            reducer: Reducer::of(work),
            lanes: Lanes { index: cx.tid(), count: cx.lanes() },
        };
        copy.run(Shape { sources: 1, destinations: 1, own: true, last: true }, count);
    }
}
