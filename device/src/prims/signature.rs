//! Signatures: neighbours compare what they were called with, before they wait for each other's data.
//!
//! A sender writes its call's [`Signature`] into a [`SignatureRing`] that it shares with the receiver, who compares it
//! with its own call. A difference is a fault of the program, and reported as one instead of a hang. There is a ring for
//! each connection, and one for each edge, which all collectives use however they move their data: ranks that are in
//! different calls may wait on different connections, and only there do they learn of it.

use crate::abi::{FaultKind, ProtocolId, SIGNATURES, Signature, SignatureRing, WaitKind};
use crate::gpu::{self, Waiting};
use crate::orders;
use crate::prims::conn_state::{ConnState, Signatures};
use crate::prims::context::KernelContext;

/// Tells the receivers which call we are in, and compares with what our senders say. `of_edge`: in the place that
/// [`check_call_signature`] uses, as the connections are those of the ring. One lane calls it, when the connections are opened.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
pub(crate) fn exchange_signatures<const NR: usize, const NS: usize>(
    cx: &mut KernelContext,
    (recv, send): (&[ConnState; NR], &[ConnState; NS]),
    (nr, ns): (usize, usize),
    of_edge: bool,
) {
    let ours = cx.args().signature();
    unroll_peers!(NS, ns, i => {
        let conn = &send[i];
        let calls = if of_edge { conn.edge_calls() } else { conn.calls() };
        if !send_signature(cx, conn, calls, &ours) {
            return;
        }
    });
    unroll_peers!(NR, nr, i => {
        let conn = &recv[i];
        let calls = if of_edge { conn.edge_calls() } else { conn.calls() };
        if !recv_signature(cx, conn, calls, &ours) {
            return;
        }
    });
}

/// Compares this call with those of the ring's neighbours, at the edges: for calls that move data over other connections.
///
/// # Safety
/// One lane of one block of the call calls it; the communicator has more than one rank.
#[inline(always)]
pub(crate) unsafe fn check_call_signature(cx: &mut KernelContext) {
    // SAFETY: the caller's.
    unsafe {
        let ([recv], [send]) = cx.ring();
        let recv = ConnState::open(recv, ProtocolId::Ll, false);
        let send = ConnState::open(send, ProtocolId::Ll, false);
        exchange_signatures(cx, (&[recv], &[send]), (1, 1), true);
    }
}

/// The first half of [`check_call_signature`]: tells the next rank of the ring which call this is.
///
/// # Safety
/// As there.
#[inline(always)]
pub(crate) unsafe fn tell_call_signature(cx: &mut KernelContext) {
    // SAFETY: the caller's.
    unsafe {
        let (_, [send]) = cx.ring();
        let send = ConnState::open(send, ProtocolId::Ll, false);
        let ours = cx.args().signature();
        send_signature(cx, &send, send.edge_calls(), &ours);
    }
}

/// The second half of [`check_call_signature`]: compares with what the previous rank of the ring says.
///
/// # Safety
/// As there, after [`tell_call_signature`].
#[inline(always)]
pub(crate) unsafe fn settle_call_signature(cx: &mut KernelContext) {
    // SAFETY: the caller's.
    unsafe {
        let ([recv], _) = cx.ring();
        let recv = ConnState::open(recv, ProtocolId::Ll, false);
        let ours = cx.args().signature();
        recv_signature(cx, &recv, recv.edge_calls(), &ours);
    }
}

/// Whether there is room for a call's signature. It is asked by the sender.
#[inline(always)]
pub(crate) fn has_signature_room(calls: Signatures) -> bool {
    let ring = calls.ring();
    // SAFETY: the ring is valid. The sender alone writes the tail, so this is its last value.
    unsafe {
        gpu::acquire(orders::SIGNATURE_ACK, &raw const (*ring).ack) + SIGNATURES as u64
            > gpu::acquire(orders::SIGNATURE_TAIL, &raw const (*ring).tail)
    }
}

/// Writes a call's signature, for which there is room.
#[inline(always)]
pub(crate) fn write_signature(calls: Signatures, ours: &Signature) {
    let ring = calls.ring();
    // SAFETY: the ring is valid, and the sender alone writes it up to the tail. The entry has been read: there is room.
    unsafe {
        let n = gpu::acquire(orders::SIGNATURE_TAIL, &raw const (*ring).tail);
        let entry = entry(ring, n);
        gpu::st_guarded(&raw mut (*entry).seq, ours.seq);
        gpu::st_guarded(&raw mut (*entry).count, ours.count);
        gpu::st_guarded(&raw mut (*entry).call, ours.call);
        gpu::st_guarded(&raw mut (*entry).root, ours.root);
        // Pairs with the acquire in `has_signature`.
        gpu::release(orders::SIGNATURE_TAIL, &raw mut (*ring).tail, n + 1);
    }
}

/// Whether the sender has said which call it is in. It is asked by the receiver.
#[inline(always)]
pub(crate) fn has_signature(calls: Signatures) -> bool {
    let ring = calls.ring();
    // SAFETY: the ring is valid. The receiver alone writes the ack.
    unsafe {
        gpu::acquire(orders::SIGNATURE_TAIL, &raw const (*ring).tail)
            > gpu::acquire(orders::SIGNATURE_ACK, &raw const (*ring).ack)
    }
}

/// Compares the sender's call, which it has told, with ours; a difference is a fault.
#[inline(always)]
pub(crate) fn check_signature(
    cx: &mut KernelContext,
    conn: &ConnState,
    calls: Signatures,
    ours: &Signature,
) {
    let ring = calls.ring();
    // SAFETY: the ring is valid, and the receiver alone writes the ack; the cell of a fault is ours while it is written.
    unsafe {
        let n = gpu::acquire(orders::SIGNATURE_ACK, &raw const (*ring).ack);
        let entry = entry(ring, n);
        let theirs = Signature {
            seq: gpu::ld_guarded(&raw const (*entry).seq),
            count: gpu::ld_guarded(&raw const (*entry).count),
            call: gpu::ld_guarded(&raw const (*entry).call),
            root: gpu::ld_guarded(&raw const (*entry).root),
        };
        // Pairs with the acquire in `has_signature_room`.
        gpu::release(orders::SIGNATURE_ACK, &raw mut (*ring).ack, n + 1);
        if theirs == *ours {
            return;
        }
        let waiting = Waiting {
            kind: WaitKind::Signature,
            rank: (*cx.comm()).rank,
            peer: conn.peer(),
            channel: cx.channel(),
            step: conn.step,
        };
        let (this, ours) = (*cx, *ours);
        cx.fail(
            #[inline(always)]
            |at| {
                this.describe(at, FaultKind::Mismatch, &waiting);
                (*at).expected = ours.words();
                (*at).found = theirs.words();
            },
        );
    }
}

/// Tells the receiver of a connection; `false` after a stop.
#[inline(always)]
fn send_signature(
    cx: &mut KernelContext,
    conn: &ConnState,
    calls: Signatures,
    ours: &Signature,
) -> bool {
    // SAFETY: the ring is valid.
    let n = unsafe { gpu::acquire(orders::SIGNATURE_TAIL, &raw const (*calls.ring()).tail) };
    let there = cx.wait(conn, WaitKind::SignatureCredit, n, || has_signature_room(calls));
    if there {
        write_signature(calls, ours);
    }
    there
}

/// Compares with the sender of a connection; `false` after a stop.
#[inline(always)]
fn recv_signature(
    cx: &mut KernelContext,
    conn: &ConnState,
    calls: Signatures,
    ours: &Signature,
) -> bool {
    // SAFETY: the ring is valid.
    let n = unsafe { gpu::acquire(orders::SIGNATURE_ACK, &raw const (*calls.ring()).ack) };
    if cx.wait(conn, WaitKind::Signature, n, || has_signature(calls)) {
        check_signature(cx, conn, calls, ours);
    }
    !cx.stopped
}

/// Offers our `output` (of the channel's part) to our senders, and waits for our receivers' offers.
///
/// An offer is not overwritten before it is read: a receiver's call cannot end without data that its
/// sender only sends once it has the offer.
///
/// # Safety
/// One lane calls it, after [`exchange_signatures`] and only when the call has elements.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
pub(crate) unsafe fn exchange_ptrs<const NR: usize, const NS: usize>(
    cx: &mut KernelContext,
    output: u64,
    (recv, send): (&[ConnState; NR], &[ConnState; NS]),
    (nr, ns): (usize, usize),
) {
    // SAFETY: `open`'s contract.
    unsafe {
        unroll_peers!(NR, nr, i => {
            if recv[i].exchanges_ptrs() && !cx.stopped {
                recv[i].post_ptr(output);
            }
        });
        unroll_peers!(NS, ns, i => {
            let conn = &send[i];
            if conn.exchanges_ptrs() && !cx.wait(conn, WaitKind::PtrExchange, conn.step, || conn.has_ptr()) {
                return;
            }
        });
    }
}

/// Entry number `n`.
///
/// # Safety
/// `ring` is valid.
#[inline(always)]
unsafe fn entry(ring: *mut SignatureRing, n: u64) -> *mut Signature {
    // SAFETY: the caller's; the index is in range.
    unsafe { (&raw mut (*ring).entries).cast::<Signature>().add((n % SIGNATURES as u64) as usize) }
}
