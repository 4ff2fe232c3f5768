//! Sends and receives: whoever is ready goes on.
//!
//! A block has a list of [`Transfer`]s and goes through it again and again. Of each it looks whether the next step can
//! be made at once (there is credit, or data has begun to arrive), makes it if so, and else goes to the next: no
//! transfer of a call waits for another, whatever the order in which the peers come to theirs.
//!
//! ```text
//! send:     New -- told which call it is --> Announced -- receiver's address --> Open -- all sent --> Done
//! receive:  New -- heard which call it is, and compared --> Open -- all received --> Done
//! ```
//!
//! An address is waited for only where the sender can reach it. What a rank sends to itself is a copy.

use crate::abi::{Conn, ProtocolId, Transfer, TransferKind, TransferState, WaitKind, Work};
use crate::collectives::{KernelCode, local};
use crate::element::Element;
use crate::gpu;
use crate::prims::{self, Context, Edge, Ll, Ll128, Prims, Protocol, Simple, Slice, Watch, verbs};
use crate::reduce::Reduction;

/// The kernel. `Work::extra` is the address of the [`Transfer`]s; a block's part of the call is its part of them. Each
/// transfer has a protocol of its own, on which its two ends agree: the kernel's does not count.
#[derive(Clone, Copy, Debug)]
pub struct SendRecv;

/// Steps that a transfer makes at a time, so that the others get their turn.
const STEPS: usize = 8;

/// Runs `$body` with `$Q` standing for the protocol of a transfer.
macro_rules! by_protocol {
    ($transfer:expr, $Q:ident => $body:expr) => {
        if (*$transfer).protocol == ProtocolId::Ll as u32 {
            type $Q = Ll;
            $body
        } else if (*$transfer).protocol == ProtocolId::Ll128 as u32 {
            type $Q = Ll128;
            $body
        } else {
            type $Q = Simple;
            $body
        }
    };
}

impl KernelCode for SendRecv {
    #[inline(always)]
    unsafe fn run<T: Element, R: Reduction, P: Protocol>(work: *const Work) {
        // SAFETY: the caller's.
        unsafe {
            let mut cx = Context::new(work);
            let part = cx.part();
            let first = (cx.call().extra() as *mut Transfer).wrapping_add(part.offset as usize);
            let count = part.count as usize;
            let mut watch = Watch::default();
            let mut turn = 0;
            loop {
                let (mut left, mut moved) = (0, false);
                for i in 0..count {
                    let transfer = first.wrapping_add(i);
                    if is_done(transfer) {
                        continue;
                    }
                    left += 1;
                    if !can_begin(transfer) {
                        continue;
                    }
                    if (*transfer).kind == TransferKind::Copy as u32 {
                        copy::<T, R>(&cx, transfer);
                        moved = true;
                    } else {
                        moved |= by_protocol!(transfer, Q => advance::<T, R, Q>(&mut cx, transfer));
                    }
                }
                if left == 0 || cx.stopped {
                    break;
                }
                if moved {
                    watch = Watch::default();
                } else {
                    // Each in its turn is what is waited for: a fault at any edge is seen.
                    turn = if turn + 1 < count { turn + 1 } else { 0 };
                    let transfer = first.wrapping_add(turn);
                    by_protocol!(transfer, Q => idle::<Q>(&mut cx, transfer, &mut watch));
                }
            }
            if cx.stopped {
                if cx.tid() == 0 {
                    cx.pass_on_fault();
                }
                return;
            }
            // A graph launches the same table again. All lanes have seen that all is done.
            gpu::sync_threads();
            for i in (cx.tid()..count).step_by(cx.lanes()) {
                let transfer = first.wrapping_add(i);
                (*transfer).done = 0;
                (*transfer).state = TransferState::New as u32;
            }
        }
    }
}

/// Whether all of a transfer has moved.
///
/// # Safety
/// As [`advance`].
#[inline(always)]
unsafe fn is_done(transfer: *const Transfer) -> bool {
    // SAFETY: the caller's.
    unsafe { (*transfer).state == TransferState::Done as u32 }
}

/// Whether what comes before a transfer is done.
///
/// # Safety
/// As [`advance`].
#[inline(always)]
unsafe fn can_begin(transfer: *const Transfer) -> bool {
    // SAFETY: the caller's.
    unsafe {
        let before = (*transfer).after as *const Transfer;
        before.is_null() || is_done(before)
    }
}

/// A message of a rank to itself.
///
/// # Safety
/// As [`advance`].
#[inline(always)]
unsafe fn copy<T: Element, R: Reduction>(cx: &Context, transfer: *mut Transfer) {
    // SAFETY: the caller's.
    unsafe {
        let (from, to) = ((*transfer).from as *const T, (*transfer).address as *mut T);
        local::<T, R, false>(cx, from, to, (*transfer).bytes as usize);
        gpu::sync_threads();
        set_state(cx, transfer, TransferState::Done);
    }
}

/// Goes on with a transfer as far as that is possible at once, or far enough; whether anything moved.
///
/// # Safety
/// As [`KernelCode::run`]; all lanes call it.
#[inline(always)]
unsafe fn advance<T: Element, R: Reduction, P: Protocol>(
    cx: &mut Context,
    transfer: *mut Transfer,
) -> bool {
    // SAFETY: the caller's.
    unsafe {
        let edge = Edge::open((*transfer).conn as *mut Conn, P::ID, false);
        if (*transfer).state != TransferState::Open as u32 {
            return greet::<P>(cx, transfer, edge);
        }
        let conn = (*transfer).conn as *mut Conn;
        if (*transfer).kind == TransferKind::Send as u32 {
            let mut prims = Prims::<T, R, P, 0, 1>::attach(*cx, [], [conn]);
            if P::DIRECT {
                prims.send[0].take_offer();
            }
            steps::<verbs::DirectSend, T, R, P, 0, 1>(cx, transfer, &mut prims, |p| {
                p.send[0].has_credit()
            })
        } else {
            let mut prims = Prims::<T, R, P, 1, 0>::attach(*cx, [conn], []);
            if P::DIRECT {
                prims.recv[0].take_own_offer((*transfer).address as *mut u8);
            }
            steps::<verbs::DirectRecv, T, R, P, 1, 0>(cx, transfer, &mut prims, |p| {
                P::has_begun(&p.recv[0])
            })
        }
    }
}

/// Before there is data: the two ends compare what they are called with, and the receiver says where data goes.
///
/// # Safety
/// As [`advance`].
#[inline(always)]
unsafe fn greet<P: Protocol>(cx: &mut Context, transfer: *mut Transfer, edge: Edge) -> bool {
    // SAFETY: the caller's.
    unsafe {
        let send = (*transfer).kind == TransferKind::Send as u32;
        let ready = cx.tid() == 0 && can_go_on::<P>(transfer, &edge);
        if !gpu::sync_threads_or(ready) {
            return false;
        }
        let direct = P::DIRECT && edge.offers() && (*transfer).bytes > 0;
        let next = match (send, (*transfer).state == TransferState::New as u32) {
            (true, true) if direct => TransferState::Announced,
            _ if (*transfer).bytes == 0 => TransferState::Done,
            _ => TransferState::Open,
        };
        if cx.tid() == 0 && (*transfer).state == TransferState::New as u32 {
            if send {
                prims::write_signature(edge.calls(), &(*transfer).signature);
            } else {
                let ours = (*transfer).signature;
                prims::compare(cx, &edge, edge.calls(), &ours);
                if direct && !cx.stopped {
                    edge.offer((*transfer).address);
                }
            }
        }
        cx.stopped = gpu::sync_threads_or(cx.stopped);
        set_state(cx, transfer, next);
        true
    }
}

/// Up to [`STEPS`] steps, as long as `ready`.
///
/// # Safety
/// As [`advance`].
#[inline(always)]
unsafe fn steps<
    V: verbs::Verb,
    T: Element,
    R: Reduction,
    P: Protocol,
    const NR: usize,
    const NS: usize,
>(
    cx: &mut Context,
    transfer: *mut Transfer,
    prims: &mut Prims<T, R, P, NR, NS>,
    ready: impl Fn(&Prims<T, R, P, NR, NS>) -> bool,
) -> bool {
    // SAFETY: the caller's.
    unsafe {
        let (bytes, mut done) = ((*transfer).bytes as usize, (*transfer).done as usize);
        let slice = prims.slice();
        // Not a constant: the loop is not to be unrolled.
        let most = gpu::fresh(STEPS);
        let mut made = 0;
        while made < most && done < bytes && !prims.cx.stopped {
            let now = prims.cx.tid() == 0 && ready(prims);
            if !gpu::sync_threads_or(now) {
                break;
            }
            let n = slice.min(bytes - done);
            let at = ((*transfer).address as *mut T).wrapping_add(done);
            P::step::<V, T, R, NR, NS>(prims, Slice { input: at, output: at, index: done, n });
            done += n;
            made += 1;
        }
        cx.stopped |= prims.cx.stopped;
        if made == 0 {
            return false;
        }
        // All lanes have read what is changed here.
        gpu::sync_threads();
        if cx.tid() == 0 {
            prims.keep_steps();
            (*transfer).done = done as u64;
            if done == bytes {
                (*transfer).state = TransferState::Done as u32;
            }
        }
        gpu::sync_threads();
        true
    }
}

/// Changes the state of a transfer, which all lanes have read.
///
/// # Safety
/// As [`advance`].
#[inline(always)]
unsafe fn set_state(cx: &Context, transfer: *mut Transfer, state: TransferState) {
    gpu::sync_threads();
    if cx.tid() == 0 {
        // SAFETY: the caller's; one lane writes.
        unsafe { (*transfer).state = state as u32 }
    }
    gpu::sync_threads();
}

/// Whether a transfer can go on at once.
///
/// # Safety
/// As [`advance`]; `edge` is the transfer's.
#[inline(always)]
unsafe fn can_go_on<P: Protocol>(transfer: *const Transfer, edge: &Edge) -> bool {
    // SAFETY: the caller's.
    unsafe {
        let send = (*transfer).kind == TransferKind::Send as u32;
        if (*transfer).state == TransferState::Open as u32 {
            if send { edge.has_credit() } else { P::has_begun(edge) }
        } else if (*transfer).state == TransferState::Announced as u32 {
            edge.has_offer()
        } else if send {
            prims::can_tell(edge.calls())
        } else {
            prims::can_hear(edge.calls())
        }
    }
}

/// What a transfer waits for.
///
/// # Safety
/// As [`advance`].
#[inline(always)]
unsafe fn waits_for(transfer: *const Transfer) -> WaitKind {
    // SAFETY: the caller's.
    let (kind, state) = unsafe { ((*transfer).kind, (*transfer).state) };
    let send = kind == TransferKind::Send as u32;
    if state == TransferState::New as u32 {
        if send { WaitKind::SignatureCredit } else { WaitKind::Signature }
    } else if state == TransferState::Announced as u32 {
        WaitKind::Offer
    } else if send {
        WaitKind::Credit
    } else {
        WaitKind::Tail
    }
}

/// Nothing moves: looks around whether there is a reason to give up, at the edge of one transfer.
///
/// # Safety
/// As [`advance`].
#[inline(always)]
unsafe fn idle<P: Protocol>(cx: &mut Context, transfer: *mut Transfer, watch: &mut Watch) {
    // SAFETY: the caller's.
    unsafe {
        let waits = !is_done(transfer) && can_begin(transfer) && (*transfer).conn != 0;
        if cx.tid() == 0 && waits {
            let edge = Edge::open((*transfer).conn as *mut Conn, P::ID, false);
            let ready = || can_go_on::<P>(transfer, &edge);
            cx.idle(&edge, waits_for(transfer), edge.step, watch, ready);
        }
        cx.stopped = gpu::sync_threads_or(cx.stopped);
    }
}
