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

use crate::abi::{
    Algorithm, Collective, Conn, ProtocolId, Transfer, TransferKind, TransferState, WaitKind,
};
use crate::collectives::{KernelCode, local_copy};
use crate::element::Element;
use crate::gpu;
use crate::prims::{
    self, AbortCheck, ConnState, KernelContext, Ll, Ll128, Prims, Protocol, Simple, Slice, verbs,
};
use crate::reduce::Reduction;

/// The kernel. `Work::extra` is the address of the [`Transfer`]s; a block's part of the call is its part of them. If `Work::input` is not
/// 0, the host has put them there, and each block begins by copying its part to `Work::extra`. Each transfer has a protocol of its own, on
/// which its two ends agree: the kernel's does not count.
#[derive(Clone, Copy, Debug)]
pub struct SendRecv;

/// The two ends of a transfer have exchanged an address before it is [`TransferState::Open`].
const OPENED: bool = false;

/// Steps that a transfer makes at a time, so that the others get their turn.
const STEPS: usize = 8;

/// A transfer of this block's part of the table. The table lives as long as the call, and no other block uses the part: a
/// transfer's fields are read and written without more ado.
#[derive(Clone, Copy)]
struct Entry(*mut Transfer);

/// A field of a transfer.
macro_rules! field {
    ($transfer:expr, $field:ident) => {
        // SAFETY: an entry is valid, and nobody else's.
        unsafe { (*$transfer.0).$field }
    };
}

impl Entry {
    #[inline(always)]
    fn conn(self) -> *mut Conn {
        field!(self, conn) as *mut Conn
    }

    #[inline(always)]
    fn is_send(self) -> bool {
        field!(self, kind) == TransferKind::Send as u32
    }

    #[inline(always)]
    fn is(self, state: TransferState) -> bool {
        field!(self, state) == state as u32
    }

    /// Whether all of it has moved.
    #[inline(always)]
    fn is_done(self) -> bool {
        self.is(TransferState::Done)
    }

    /// Whether another transfer comes before it on its connection.
    #[inline(always)]
    fn is_after_another(self) -> bool {
        field!(self, after) != 0
    }

    /// Whether what comes before it is done.
    #[inline(always)]
    fn can_begin(self) -> bool {
        !self.is_after_another() || Entry(field!(self, after) as *mut Transfer).is_done()
    }

    /// Whether it waits for its peer.
    #[inline(always)]
    fn waits(self) -> bool {
        !self.is_done() && self.can_begin() && !self.conn().is_null()
    }

    /// Changes its state, which all lanes have read.
    #[inline(always)]
    fn set_state(self, cx: &KernelContext, state: TransferState) {
        gpu::sync_threads();
        if cx.tid() == 0 {
            // SAFETY: an entry is valid, and nobody else's; one lane writes.
            unsafe { (*self.0).state = state as u32 }
        }
        gpu::sync_threads();
    }
}

/// Runs `$body` with `$Q` standing for the protocol of a transfer.
macro_rules! by_protocol {
    ($transfer:expr, $Q:ident => $body:expr) => {
        if field!($transfer, protocol) == ProtocolId::Ll.index() as u32 {
            type $Q = Ll;
            $body
        } else if field!($transfer, protocol) == ProtocolId::Ll128.index() as u32 {
            type $Q = Ll128;
            $body
        } else {
            type $Q = Simple;
            $body
        }
    };
}

impl KernelCode for SendRecv {
    const COLLECTIVE: Collective = Collective::SendRecv;
    const ALGORITHM: Algorithm = Algorithm::Ring;

    const NEEDS_PEERS: bool = false;
    /// Each transfer is compared with its other end.
    const COMPARES: bool = false;

    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(mut cx: KernelContext) {
        let part = cx.part();
        let first = (cx.args().extra() as *mut Transfer).wrapping_add(part.offset as usize);
        let count = part.count as usize;
        let entry = |i: usize| Entry(first.wrapping_add(i));
        // SAFETY: both are valid for the block's part, which no other block uses.
        unsafe { take_table(&cx, part.offset as usize, first, count) }
        for i in (cx.tid()..count).step_by(cx.lanes()) {
            let transfer = entry(i);
            if field!(transfer, kind) == TransferKind::Recv as u32 && !transfer.is_after_another() {
                // SAFETY: the connection is valid, and this block's; it has one transfer that is the first.
                unsafe { prims::acknowledge_earlier(transfer.conn()) }
            }
        }
        // Lane 0 reads what the other lanes have written to connections.
        gpu::sync_threads();
        let mut check = AbortCheck::default();
        let (mut turn, mut last) = (0, 0);
        loop {
            let (mut left, mut moved) = (0, false);
            for i in 0..count {
                let transfer = entry(i);
                if transfer.is_done() {
                    continue;
                }
                left += 1;
                if !transfer.can_begin() {
                    continue;
                }
                let went_on = if field!(transfer, kind) == TransferKind::Copy as u32 {
                    copy::<T, R>(&cx, transfer);
                    true
                } else {
                    by_protocol!(transfer, Q => advance::<T, R, Q>(&mut cx, transfer))
                };
                if went_on {
                    (moved, last) = (true, i);
                }
            }
            if left == 0 || cx.stopped {
                break;
            }
            if moved {
                check = AbortCheck::default();
            } else {
                // Each in its turn is what is waited for: a fault at any edge is seen.
                turn = if turn + 1 < count { turn + 1 } else { 0 };
                let transfer = entry(turn);
                // The scheduler is told of the one that moved last, or of the next that has not ended: it takes a block that
                // waits for something else each time for one that gets on.
                let shown = || {
                    let mut later = (last..count).chain(0..last).map(entry);
                    later.find(|t| t.waits()).unwrap_or(transfer)
                };
                by_protocol!(transfer, Q => idle::<Q>(&mut cx, transfer, &mut check, shown));
            }
        }
        if cx.stopped {
            if cx.tid() == 0 {
                for i in 0..count {
                    let conn = entry(i).conn();
                    if !conn.is_null() {
                        // SAFETY: the connection is valid, and this block's.
                        unsafe { ConnState::named(conn, 0).set_failed() }
                    }
                }
                cx.pass_on_fault();
            }
            return;
        }
        // A graph launches the same table again. All lanes have seen that all is done.
        gpu::sync_threads();
        for i in (cx.tid()..count).step_by(cx.lanes()) {
            // SAFETY: an entry is valid, and nobody else's; one lane writes each.
            unsafe {
                (*entry(i).0).done = 0;
                (*entry(i).0).state = TransferState::New as u32;
            }
        }
    }
}

/// Copies the block's part of the table from where the host has put it, if that is not there already.
///
/// # Safety
/// `to` has `count` transfers, and so has what is `offset` transfers behind `Work::input`, if that is not 0.
#[inline(always)]
unsafe fn take_table(cx: &KernelContext, offset: usize, to: *mut Transfer, count: usize) {
    let staged = cx.args().input::<Transfer>();
    if staged.is_null() {
        return;
    }
    let from = staged.wrapping_add(offset).cast::<u64>();
    // All lanes read at the same time: a load from the host's memory takes a microsecond.
    for i in (cx.tid()..count * (size_of::<Transfer>() / 8)).step_by(cx.lanes()) {
        // SAFETY: the caller's; a transfer is made of words.
        unsafe { *to.cast::<u64>().add(i) = *from.add(i) }
    }
    gpu::sync_threads();
}

/// A message of a rank to itself.
#[inline(always)]
fn copy<T: Element, R: Reduction>(cx: &KernelContext, transfer: Entry) {
    let (from, to) = (field!(transfer, from) as *const T, field!(transfer, address) as *mut T);
    let bytes = field!(transfer, bytes) as usize;
    // SAFETY: both hold the transfer's bytes.
    unsafe { local_copy::<T, R, true, false>(cx, from, to, bytes) }
    gpu::sync_threads();
    transfer.set_state(cx, TransferState::Done);
}

/// Goes on with a transfer as far as that is possible at once, or far enough; whether anything moved.
#[inline(always)]
fn advance<T: Element, R: Reduction, P: Protocol>(cx: &mut KernelContext, transfer: Entry) -> bool {
    let conn = transfer.conn();
    let opens = !transfer.is(TransferState::Open);
    if opens {
        if !open_transfer::<P>(cx, transfer) {
            return false;
        }
        if cx.stopped || !transfer.is(TransferState::Open) {
            return true;
        }
    }
    let moved = if transfer.is_send() {
        // SAFETY: the connection is valid, and this block's.
        let mut prims = unsafe { Prims::<T, R, P, 0, 1>::open(*cx, ([], [conn]), OPENED) };
        if P::DIRECT {
            prims.send[0].take_ptr();
        }
        steps::<verbs::DirectSend, T, R, P, 0, 1>(cx, transfer, &mut prims, |p| {
            p.send[0].has_credit()
        })
    } else {
        // SAFETY: the connection is valid, and this block's.
        let mut prims = unsafe { Prims::<T, R, P, 1, 0>::open(*cx, ([conn], []), OPENED) };
        if P::DIRECT {
            prims.recv[0].take_own_ptr(field!(transfer, address) as *mut u8);
        }
        steps::<verbs::DirectRecv, T, R, P, 1, 0>(cx, transfer, &mut prims, |p| {
            P::has_begun(&p.recv[0])
        })
    };
    opens | moved
}

/// Before there is data: the two ends compare what they are called with, and the receiver says where data goes.
#[inline(always)]
fn open_transfer<P: Protocol>(cx: &mut KernelContext, transfer: Entry) -> bool {
    // SAFETY: the connection is valid, and this block's.
    let conn = unsafe { ConnState::open(transfer.conn(), P::ID, false) };
    let (send, is_new) = (transfer.is_send(), transfer.is(TransferState::New));
    cx.stopped |= conn.has_failed();
    if cx.stopped {
        return false;
    }
    let ready = cx.tid() == 0 && can_go_on::<P>(transfer, &conn);
    if !gpu::sync_threads_or(ready) {
        return false;
    }
    let bytes = field!(transfer, bytes);
    let direct = P::DIRECT && conn.exchanges_ptrs() && bytes > 0;
    let next = match (send, is_new) {
        (true, true) if direct => TransferState::Announced,
        _ if bytes == 0 => TransferState::Done,
        _ => TransferState::Open,
    };
    if cx.tid() == 0 && is_new {
        let (ours, address) = (field!(transfer, signature), field!(transfer, address));
        // SAFETY: the connection is valid, and ready for it; the address holds the transfer's bytes; one lane does it.
        unsafe {
            if send {
                prims::write_signature(transfer.conn(), &ours, ours.digest());
            } else {
                prims::check_signature(cx, transfer.conn(), &ours);
                if direct && !cx.stopped {
                    conn.post_ptr(address, ours.digest());
                }
            }
        }
    }
    cx.stopped = gpu::sync_threads_or(cx.stopped);
    transfer.set_state(cx, next);
    true
}

/// Up to [`STEPS`] steps, as long as `ready`.
#[inline(always)]
fn steps<
    V: verbs::Verb,
    T: Element,
    R: Reduction,
    P: Protocol,
    const NR: usize,
    const NS: usize,
>(
    cx: &mut KernelContext,
    transfer: Entry,
    prims: &mut Prims<T, R, P, NR, NS>,
    ready: impl Fn(&Prims<T, R, P, NR, NS>) -> bool,
) -> bool {
    let (bytes, mut done) = (field!(transfer, bytes) as usize, field!(transfer, done) as usize);
    let slice = prims.slice();
    // Not a constant: the loop is not to be unrolled.
    let most = gpu::opaque(STEPS);
    let mut made = 0;
    while made < most && done < bytes && !prims.cx.stopped {
        let now = prims.cx.tid() == 0 && ready(prims);
        if !gpu::sync_threads_or(now) {
            break;
        }
        let n = slice.min(bytes - done);
        let at = (field!(transfer, address) as *mut T).wrapping_add(done);
        // SAFETY: the transfer's address holds its bytes, of which the step's are not more than a slice.
        unsafe {
            P::step::<V, T, R, NR, NS>(prims, Slice { input: at, output: at, index: done, n });
        }
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
        // SAFETY: an entry is valid, and nobody else's; one lane writes.
        unsafe {
            (*transfer.0).done = done as u64;
            if done == bytes {
                (*transfer.0).state = TransferState::Done as u32;
            }
        }
    }
    gpu::sync_threads();
    true
}

/// Whether a transfer can go on at once, over its connection.
#[inline(always)]
fn can_go_on<P: Protocol>(transfer: Entry, conn: &ConnState) -> bool {
    let send = transfer.is_send();
    if transfer.is(TransferState::Open) {
        if send { conn.has_credit() } else { P::has_begun(conn) }
    } else if transfer.is(TransferState::Announced) {
        conn.has_ptr(field!(transfer, signature).digest())
    } else {
        let conn = transfer.conn();
        // SAFETY: the connection is valid, and this block's.
        unsafe { if send { prims::has_signature_room(conn) } else { prims::has_signature(conn) } }
    }
}

/// What a transfer waits for.
#[inline(always)]
fn waits_for(transfer: Entry) -> WaitKind {
    let send = transfer.is_send();
    if transfer.is(TransferState::New) {
        if send { WaitKind::SignatureCredit } else { WaitKind::Signature }
    } else if transfer.is(TransferState::Announced) {
        WaitKind::PtrExchange
    } else if send {
        WaitKind::Credit
    } else {
        WaitKind::Tail
    }
}

/// Nothing moves: looks around whether there is a reason to give up, at the edge of one transfer. `shown` is the one that the
/// scheduler is told of.
#[inline(always)]
fn idle<P: Protocol>(
    cx: &mut KernelContext,
    transfer: Entry,
    check: &mut AbortCheck,
    shown: impl FnOnce() -> Entry,
) {
    if cx.tid() == 0 && transfer.waits() {
        // SAFETY: the connection is valid, and this block's.
        let conn = unsafe { ConnState::open(transfer.conn(), P::ID, false) };
        let ready = || can_go_on::<P>(transfer, &conn);
        let waiting = |cx: &KernelContext| {
            let shown = shown();
            by_protocol!(shown, Q => {
                // SAFETY: the connection is valid, and this block's.
                let conn = unsafe { ConnState::open(shown.conn(), Q::ID, false) };
                cx.waiting(&conn, waits_for(shown), conn.step)
            })
        };
        cx.idle(&conn, (waits_for(transfer), conn.step), check, ready, waiting);
    }
    cx.stopped = gpu::sync_threads_or(cx.stopped);
}
