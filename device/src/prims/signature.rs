//! Signatures: neighbours compare what they were called with.
//!
//! A sender tells its receiver its call's [`Signature`], who compares it with its own. A difference is a fault of the program,
//! and reported as one instead of a hang.
//!
//! Collectives do so along the ring of channel 0, whatever connections their data takes: ranks that are in different calls may
//! wait on different connections. A call's first data does not wait for that:
//!
//! * A call begins with [`tell_call`].
//! * A lane that waits long for anything looks whether the signature that has come is another ([`call_differs`]).
//! * A rank that has received data does not hand it on before it has compared its call ([`settle_call`]). What goes around a ring,
//!   or up a tree, has been handed on by all ranks in between. So a result stands for ranks that are all in the same call.
//!   Down a tree the ranks in between have compared with their previous ranks of the ring, which may not be on the way: the data
//!   of one rank that differs is handed on by nobody, but of several that are alike in another call it could be.
//! * A call ends when it has been compared.
//! * Data is written to a rank's own buffers only by who has the digest of the same call ([`ConnState::has_ptr`]).
//!
//! Over the mesh every rank gets something from every other at once, and the digest with it
//! (`collectives::mesh`).
//!
//! A transfer of [`SendRecv`](crate::collectives::SendRecv) compares its own signature, before its data.
//!
//! A signature is in lines that say for themselves that they have arrived ([`SignatureLines`]), so that telling it takes no
//! fence and no round trip. An entry of the ring is written over when it has been acknowledged. The receiver does that when its
//! next call begins: what a kernel has read is read before the next begins. Where one kernel reads many, it does so in between, too
//! ([`check_signature`]).

use crate::abi::{Conn, FaultKind, SIGNATURES, Signature, SignatureLines, SignatureRing, WaitKind};
use crate::args::KernelArgs;
use crate::gpu::{self, Waiting};
use crate::orders;
use crate::prims::conn_state::ConnState;
use crate::prims::context::KernelContext;

/// Tells the next rank of the ring which call this is, and acknowledges the previous rank's call before.
///
/// # Safety
/// One lane of the block that [compares](KernelContext::compares) calls it; the communicator has more than one rank.
#[inline(always)]
pub(crate) unsafe fn tell_call(cx: &mut KernelContext) {
    // SAFETY: the caller's.
    unsafe {
        let ([recv], [send]) = cx.ring();
        if (*recv).told > 0 {
            let (ring, told) = ((*recv).calls_reply as *mut SignatureRing, (*recv).told);
            if (*recv).wait_tail_first != 0 {
                gpu::release(orders::SIGNATURE_ACK, &raw mut (*ring).ack, told);
            } else {
                // The kernel that has read the entry has ended.
                gpu::st_relaxed(&raw mut (*ring).ack, told);
            }
        }
        let told = (*send).told;
        let conn = ConnState::named(send, told);
        if cx.wait(&conn, WaitKind::SignatureCredit, told, || has_signature_room(send)) {
            let ours = cx.args().signature();
            write_signature(send, &ours, cx.args().digest());
        }
    }
}

/// Waits for the signature of the ring's previous rank, and compares it, unless that has been done.
///
/// # Safety
/// As [`tell_call`], after it; if another lane has called it, a barrier lies between. [`end_call`] follows when no lane of the
/// block waits any more.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
pub(crate) unsafe fn settle_call(cx: &mut KernelContext) {
    // SAFETY: the caller's.
    unsafe {
        let ([recv], _) = cx.ring();
        let told = (*recv).told;
        if (*recv).settled > told {
            return;
        }
        let conn = ConnState::named(recv, told);
        if cx.wait(&conn, WaitKind::Signature, told, || has_signature(recv)) {
            let ours = cx.args().signature();
            compare(cx, recv, &ours, cx.args().digest());
            (*recv).settled = told + 1;
        }
    }
}

/// Where the number of this call's signature is, and the number.
///
/// # Safety
/// As [`settle_call`].
#[inline(always)]
pub(crate) unsafe fn told(cx: &KernelContext) -> (*mut u64, u64) {
    // SAFETY: the caller's.
    unsafe {
        let ([recv], _) = cx.ring();
        (&raw mut (*recv).told, (*recv).told)
    }
}

/// After [`settle_call`]: the next signature is the next call's. With what [`told`] has said of this call.
///
/// # Safety
/// As [`settle_call`]; no lane of the block waits for anything any more.
#[inline(always)]
pub(crate) unsafe fn end_call((at, n): (*mut u64, u64)) {
    // SAFETY: the caller's; nobody else uses the word.
    unsafe { *at = n + 1 };
}

/// A call has stopped: if the ring's previous rank is in another call, records that.
///
/// # Safety
/// As [`settle_call`].
#[inline(always)]
pub(super) unsafe fn report_difference(cx: &mut KernelContext) {
    // SAFETY: the caller's.
    unsafe {
        let ([recv], _) = cx.ring();
        if call_differs(recv, cx.args()) {
            // The rest of the signature is on its way.
            let mut waiting = cx.without_comparing();
            let conn = ConnState::named(recv, (*recv).told);
            if waiting.wait(&conn, WaitKind::Signature, conn.step, || has_signature(recv)) {
                let ours = cx.args().signature();
                compare(cx, recv, &ours, cx.args().digest());
            }
        }
    }
}

/// Whether the signature that has come from the ring's previous rank is another than this call's. A lane that waits looks.
///
/// # Safety
/// `recv` is the ring's connection to receive from, in a block that [compares](KernelContext::compares).
#[inline(always)]
pub(super) unsafe fn call_differs(recv: *const Conn, args: KernelArgs) -> bool {
    // SAFETY: the caller's; the entry is valid.
    unsafe {
        let (ring, n) = ((*recv).calls as *mut SignatureRing, (*recv).told);
        if is_awaited(recv, ring, n) {
            return false;
        }
        // Half of the digest does: every wait has a copy of this.
        let [ours, _] = SignatureLines::halves_of(args.digest(), n);
        let theirs = gpu::ld_relaxed((&raw const (*entry(ring, n)).digest).cast());
        theirs >> 32 == ours >> 32 && theirs != ours
    }
}

/// Whether the proxy has yet to say that signature number `n` is whole, which it writes in pieces of any size before.
///
/// # Safety
/// `conn` is a valid connection to receive from, and `ring` its ring.
#[inline(always)]
unsafe fn is_awaited(conn: *const Conn, ring: *mut SignatureRing, n: u64) -> bool {
    // SAFETY: the caller's.
    unsafe {
        (*conn).wait_tail_first != 0
            && gpu::acquire(orders::SIGNATURE_TAIL, &raw const (*ring).tail) <= n
    }
}

/// Whether there is room for a call's signature. It is asked by the sender, by one lane.
///
/// # Safety
/// `conn` is a valid connection to send on.
#[inline(always)]
pub(crate) unsafe fn has_signature_room(conn: *mut Conn) -> bool {
    // SAFETY: the caller's; the acquire pairs with the releases in `check_signature` and `tell_call`.
    unsafe {
        if (*conn).room > (*conn).told {
            return true;
        }
        let ring = (*conn).calls_reply as *const SignatureRing;
        let room = gpu::acquire(orders::SIGNATURE_ACK, &raw const (*ring).ack) + SIGNATURES as u64;
        (*conn).room = room;
        room > (*conn).told
    }
}

/// Writes a call's signature, for which there is room.
///
/// # Safety
/// As [`has_signature_room`], which was true.
#[inline(always)]
pub(crate) unsafe fn write_signature(conn: *mut Conn, ours: &Signature, digest: u64) {
    // SAFETY: the caller's. The entry has been read: there is room.
    unsafe {
        let (ring, n) = ((*conn).calls as *mut SignatureRing, (*conn).told);
        let to = entry(ring, n).cast::<u64>();
        let put =
            |i: usize, word| gpu::st_halves(to.add(2 * i), SignatureLines::halves_of(word, n));
        let [seq, count, call, root] = ours.words();
        put(0, seq);
        put(1, count);
        put(2, call);
        put(3, root);
        put(4, digest);
        if (*conn).fifo != 0 {
            // To the proxy: its network reads the whole entry.
            gpu::release(orders::SIGNATURE_TAIL, &raw mut (*ring).tail, n + 1);
        }
        (*conn).told = n + 1;
    }
}

/// Whether the sender has said which call it is in. It is asked by the receiver.
///
/// # Safety
/// `conn` is a valid connection to receive from.
#[inline(always)]
pub(crate) unsafe fn has_signature(conn: *const Conn) -> bool {
    // SAFETY: the caller's.
    unsafe {
        let (ring, n) = ((*conn).calls as *mut SignatureRing, (*conn).told);
        if is_awaited(conn, ring, n) {
            return false;
        }
        let from = entry(ring, n).cast::<u64>();
        let is_there = |[low, high]: [u64; 2]| {
            let right = |half: u64| (half >> 32) as u32 == SignatureLines::flag(n);
            right(low) & right(high)
        };
        if gpu::LOADS_TOGETHER {
            return lines(from).into_iter().fold(true, |ready, line| ready & is_there(line));
        }
        (0..LINES).all(|i| is_there(gpu::ld_halves(from.add(2 * i))))
    }
}

/// Lines of an entry: four words of the signature, and its digest.
const LINES: usize = 5;

/// The lines of an entry. Nothing is made of a line before all are loaded, so that on a GPU they take as long as one.
///
/// # Safety
/// `from` is an entry.
#[inline(always)]
unsafe fn lines(from: *const u64) -> [[u64; 2]; LINES] {
    // SAFETY: the caller's.
    core::array::from_fn(|i| unsafe { gpu::ld_halves(from.add(2 * i)) })
}

/// Compares the sender's call, which it has told, with ours, and acknowledges it; a difference is a fault.
///
/// # Safety
/// As [`has_signature`], which was true. One lane calls it.
#[inline(always)]
pub(crate) unsafe fn check_signature(cx: &mut KernelContext, conn: *mut Conn, ours: &Signature) {
    // SAFETY: the caller's.
    unsafe {
        compare(cx, conn, ours, ours.digest());
        let told = (*conn).told + 1;
        (*conn).told = told;
        // A release waits for all that is under way. So the next kernel acknowledges what this one has read, while the sender has room.
        // A proxy is told at once.
        if (*conn).wait_tail_first != 0 || told - (*conn).room >= UNACKNOWLEDGED {
            let ring = (*conn).calls_reply as *mut SignatureRing;
            // Pairs with the acquire in `has_signature_room`.
            gpu::release(orders::SIGNATURE_ACK, &raw mut (*ring).ack, told);
            (*conn).room = told;
        }
    }
}

/// With so many signatures unacknowledged the receiver does not leave it to the next kernel. The sender has room for as many again.
const UNACKNOWLEDGED: u64 = SIGNATURES as u64 / 2;

/// Acknowledges the signatures that kernels before this one have compared by [`check_signature`].
///
/// # Safety
/// `conn` is a valid connection to receive from. One lane calls it, before the kernel compares any of that connection.
#[inline(always)]
pub(crate) unsafe fn acknowledge_earlier(conn: *mut Conn) {
    // SAFETY: the caller's.
    unsafe {
        let (told, ring) = ((*conn).told, (*conn).calls_reply as *mut SignatureRing);
        if (*conn).wait_tail_first == 0 && (*conn).room < told {
            // Relaxed, as in `tell_call`: the kernel that has read the entries has ended.
            gpu::st_relaxed(&raw mut (*ring).ack, told);
            (*conn).room = told;
        }
    }
}

/// Compares the sender's call, which it has told, with ours; a difference is a fault. If only the digests differ, the buffers are
/// in different places of their windows.
///
/// # Safety
/// As [`has_signature`], which was true.
#[inline(always)]
unsafe fn compare(cx: &mut KernelContext, conn: *mut Conn, ours: &Signature, digest: u64) {
    // SAFETY: the caller's; the cell of a fault is ours while it is written.
    unsafe {
        let (ring, n) = ((*conn).calls as *mut SignatureRing, (*conn).told);
        let [seq, count, call, root, their_digest] =
            lines(entry(ring, n).cast()).map(|[low, high]| low & 0xffff_ffff | high << 32);
        let theirs = Signature { seq, count, call, root };
        if theirs == *ours && their_digest == digest {
            return;
        }
        let waiting = Waiting {
            kind: WaitKind::Signature,
            rank: (*cx.comm()).rank,
            peer: (*conn).peer,
            channel: cx.channel(),
            step: n,
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

/// Offers our `output` (of the channel's part) to our senders, and waits for our receivers' offers.
///
/// An offer is not overwritten before it is read: a receiver's call cannot end without data that its
/// sender only sends once it has the offer.
///
/// # Safety
/// One lane calls it, and only when the call has elements.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
pub(crate) unsafe fn exchange_ptrs<const NR: usize, const NS: usize>(
    cx: &mut KernelContext,
    output: u64,
    (recv, send): (&[ConnState; NR], &[ConnState; NS]),
    (nr, ns): (usize, usize),
) {
    let digest = cx.args().digest();
    // SAFETY: `open`'s contract.
    unsafe {
        unroll_peers!(NR, nr, i => {
            if recv[i].exchanges_ptrs() && !cx.stopped {
                recv[i].post_ptr(output, digest);
            }
        });
        unroll_peers!(NS, ns, i => {
            let conn = &send[i];
            if conn.exchanges_ptrs() && !cx.wait(conn, WaitKind::PtrExchange, conn.step, || conn.has_ptr(digest)) {
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
unsafe fn entry(ring: *mut SignatureRing, n: u64) -> *mut SignatureLines {
    let index = (n % SIGNATURES as u64) as usize;
    // SAFETY: the caller's; the index is in range.
    unsafe { (&raw mut (*ring).entries).cast::<SignatureLines>().add(index) }
}
