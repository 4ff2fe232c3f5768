//! The verbs as methods of [`Prims`]: on the call's buffers, and on any memory.

use core::ptr;

use crate::element::Element;
use crate::prims::primitives::{Prims, Protocol};
use crate::prims::verbs::*;
use crate::reduce::Reduction;

/// The verbs of a collective on the call's buffers. `from` and `to` are elements of the channel's part of input and
/// output.
macro_rules! verb_methods {
    ($($(#[$m:meta])* $name:ident($($arg:ident),*) = $verb:ident($from:expr, $to:expr);)*) => {
        impl<T: Element, R: Reduction, P: Protocol, const NR: usize, const NS: usize> Prims<T, R, P, NR, NS> {
            $(
                $(#[$m])*
                ///
                /// # Safety
                /// As [`Prims::generic_op`].
                #[inline(always)]
                pub unsafe fn $name(&mut self, $($arg: usize,)* n: usize) {
                    // SAFETY: the caller's.
                    unsafe { self.generic_op::<$verb>($from, $to, n) }
                }
            )*
        }
    };
}
verb_methods! {
    /// Sends input.
    send(from) = Send(from, 0);
    /// Receives into the output.
    recv(to) = Recv(0, to);
    /// Receives into the output and sends it on.
    recv_copy_send(to) = RecvCopySend(0, to);
    /// Receives, combines with the input, sends on.
    recv_reduce_send(from) = RecvReduceSend(from, 0);
    /// Sends input and keeps it in the output.
    copy_send(from, to) = CopySend(from, to);
    /// Receives and sends on.
    recv_send() = RecvSend(0, 0);
    /// Receives, combines with the input, finishes the value into the output.
    recv_reduce_copy(from, to) = RecvReduceCopy(from, to);
    /// Receives, combines with the input, finishes the value into the output and sends it on.
    recv_reduce_copy_send(from, to) = RecvReduceCopySend(from, to);
    /// [`Prims::send`], straight into the peer's output at `to` where it can be reached.
    direct_send(from, to) = DirectSend(from, to);
    /// Sends input, straight into the peer's output at `to` where it can be reached, and keeps it in the own output
    /// there.
    direct_copy_send(from, to) = DirectCopySend(from, to);
    /// [`Prims::recv`], where the sender may have put the data into the output already.
    direct_recv(to) = DirectRecv(0, to);
    /// [`Prims::recv_copy_send`], straight from output to output where that can be reached.
    direct_recv_copy_send(to) = DirectRecvCopySend(0, to);
    /// [`Prims::recv_reduce_copy_send`], straight into the peer's output where it can be reached.
    direct_recv_reduce_copy_send(from, to) = DirectRecvReduceCopySend(from, to);
}

/// Where direct data goes in the peer's output.
macro_rules! index_or_first {
    () => {
        0
    };
    ($index:expr) => {
        $index
    };
}

/// The verbs of a collective on any memory: `input` is read, `output` written.
macro_rules! pointer_methods {
    ($($(#[$m:meta])* $name:ident($($arg:ident: $p:ty),+) = $verb:ident($input:expr, $output:expr $(, $index:expr)?);)*) => {
        impl<T: Element, R: Reduction, P: Protocol, const NR: usize, const NS: usize> Prims<T, R, P, NR, NS> {
            $(
                $(#[$m])*
                ///
                /// # Safety
                /// As [`Prims::generic_op`], for `n` elements at each of the addresses.
                #[inline(always)]
                pub unsafe fn $name(&mut self, $($arg: $p,)+ n: usize) {
                    // SAFETY: the caller's; the verb uses no other address.
                    unsafe { self.op_at::<$verb>($input, $output, index_or_first!($($index)?), n) }
                }
            )*
        }
    };
}
pointer_methods! {
    /// [`Prims::send_from`], straight into the peer's output at `index` where it can be reached.
    direct_send_from(input: *const T, index: usize) = DirectSend(input, ptr::null_mut(), index);
    /// [`Prims::recv_into`], where the sender may have put the data there already.
    direct_recv_into(output: *mut T) = DirectRecv(ptr::null(), output);
    /// Sends the own value.
    send_from(input: *const T) = Send(input, ptr::null_mut());
    /// Sends what has been combined already.
    send_partial_from(partial: *const T) = SendPartial(partial, ptr::null_mut());
    /// Receives.
    recv_into(output: *mut T) = Recv(ptr::null(), output);
    /// Receives, keeps it and sends it on.
    recv_copy_send_into(output: *mut T) = RecvCopySend(ptr::null(), output);
    /// Receives, combines with the own value, sends on.
    reduce_send_from(input: *const T) = RecvReduceSend(input, ptr::null_mut());
    /// Receives, combines with the own value, finishes, sends on.
    reduce_send_final_from(input: *const T) = RecvReduceSendFinal(input, ptr::null_mut());
    /// Receives, combines with the own value, finishes.
    reduce_into(input: *const T, output: *mut T) = RecvReduceCopy(input, output);
    /// Receives, combines with the own value, finishes, keeps it and sends it on.
    reduce_send_into(input: *const T, output: *mut T) = RecvReduceCopySend(input, output);
    /// Receives, combines with the own value.
    reduce_partial_into(input: *const T, partial: *mut T) = RecvReducePartial(input, partial);
    /// Receives, combines with what has been combined already.
    add_partial_into(partial: *const T, output: *mut T) = RecvAddPartial(partial, output);
    /// Receives, combines with what has been combined already, finishes.
    add_final_into(partial: *const T, output: *mut T) = RecvAddFinal(partial, output);
}
