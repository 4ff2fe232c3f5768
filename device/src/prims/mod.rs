//! The primitives: verbs over protocols.
//!
//! A collective is written in verbs: `recv_reduce_send` takes what arrived from the previous rank,
//! combines it with the own input and hands it on. Each verb is one instance of [`Prims::generic_op`],
//! chosen by a type ([`verbs`]) and not by run-time flags, so that it becomes straight-line code. A verb
//! moves up to a chunk; a chunk is up to [`Protocol::SLICES`] slices; a slice fills one slot: one step.
//!
//! ```text
//!      previous rank                    this rank                          next rank
//!   ... slot s % slots  ==recv==>  (reduce with input)  ==send==>  slot s % slots ...
//!                                          |copy
//!                                          v
//!                                        output
//! ```
//!
//! What a step is on the wire is the [`Protocol`]'s: [`Simple`], [`Ll`], [`Ll128`], or your own: a type that
//! implements the trait, whose kernels [`kernels!`](crate::kernels!) makes. The notation
//! (step, tail, head, flag) is that of [`ConnHeader`](crate::abi::ConnHeader). A block of a user's own kernel has the verbs by
//! [`BlockComm::prims`](crate::device_comm::GroupComm::prims).
//!
//! Sources: the roles and orders follow NCCL's documented behaviour and "Demystifying NCCL" (arXiv 2507.04786).

/// Runs `$body` for the first `$there` of `$n` connections, 3 at most, with `$i` for the index. It is written out instead of a
/// loop: an array that is indexed by a variable lies in local memory on a GPU, and not in registers.
///
/// ```
/// use ferroccl_device::unroll_peers;
///
/// fn sum<const N: usize>(values: [u32; N], there: usize) -> u32 {
///     let mut sum = 0;
///     unroll_peers!(N, there, i => sum += values[i]);
///     sum
/// }
/// assert_eq!(sum([1, 2, 4], 2), 3);
/// ```
#[macro_export]
macro_rules! unroll_peers {
    ($n:expr, $there:expr, $i:ident => $body:expr) => {
        if $n == 1 || $n > 1 && $there > 0 {
            let $i = 0;
            $body
        }
        if $n > 1 && $there > 1 {
            let $i = 1;
            $body
        }
        if $n > 2 && $there > 2 {
            let $i = 2;
            $body
        }
        const { assert!($n <= 3) };
    };
}

mod abort;
mod conn_state;
mod context;
#[cfg(not(target_arch = "nvptx64"))]
mod counted;
mod lines;
mod ll;
mod ll128;
mod methods;
mod poison;
mod primitives;
mod rules;
mod signature;
mod simple;
pub mod verbs;

pub(crate) use abort::{AbortCheck, CommFaults, HasComm, StopReason};
pub use conn_state::ConnState;
pub use context::KernelContext;
#[cfg(not(target_arch = "nvptx64"))]
pub use counted::Counted;
pub use lines::{LineFormat, PEERS, load_elements, store_elements};
pub use ll::Ll;
pub use ll128::Ll128;
pub use primitives::{Prims, Protocol, Slice, Slots};
pub use rules::{Correct, Rules};
pub(crate) use signature::{
    acknowledge_earlier, check_signature, end_call, has_signature, has_signature_room, told,
    write_signature,
};
pub use simple::Simple;
