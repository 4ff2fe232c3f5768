//! Linear collectives: who has data sends it to all who want it, one after the other.
//!
//! ```text
//! broadcast       root: send to all                       | the others: receive from the root
//! all-gather      rank r: send its block to all           | receive the blocks of all
//! all-to-all      rank r: send block i to rank i          | receive its block of all
//! reduce-scatter  rank r: send block i to rank i          | receive its block of all, combine them
//! ```
//!
//! One wait instead of a ring's `k - 1`: for few ranks whose waits are the cost, as where each is a switch of processes. Data moves as a
//! protocol has it, plain with Simple, where the [`mesh`](super::mesh) has lines. A root sends all bytes `k - 1` times.
//!
//! # Straight into outputs
//!
//! With Simple, parts of some size are written into the receiver's output where its sender can reach that ([`PtrExchange`]), except where
//! they are combined. Data is then copied once instead of twice. The receiver says where before it sends anything itself; a sender waits
//! for that. In an all-gather and an all-to-all it first compares the receiver's call with its own: a rank in another call never makes the
//! offer that is waited for. In a broadcast the receivers compare the root's.
//!
//! [`PtrExchange`]: crate::abi::PtrExchange
//!
//! # Comparing calls
//!
//! Nobody hands on what others have sent. But the data of a rank in another call could arrive where it is awaited, so the call's
//! [`Signature`](crate::abi::Signature) goes before the data over each connection, and is compared by who receives. A broadcast's
//! ranks also compare their calls along the ring, as a rank that takes itself for the root receives nothing.
//!
//! Source: Open MPI has broadcasts, all-gathers and all-to-alls of this kind under this name (`coll/base`).

use core::ptr;

use crate::abi::{Algorithm, Collective, WaitKind};
use crate::collectives::placement::Placement;
use crate::collectives::{
    KernelCode, RingPosition, THROUGH_SLOTS, for_chunks, input, local_copy, output, stride,
};
use crate::element::Element;
use crate::gpu;
use crate::prims::{self, ConnState, KernelContext, Prims, Protocol};
use crate::reduce::Reduction;

/// Bytes of a part of a broadcast from which it is written straight into outputs. Below, a copy more takes less time than a wait more
/// (`benches/records/2026-11-28-linear-placed.md`).
const BROADCAST_PLACED: usize = 16 << 10;
/// The same of an all-gather and an all-to-all, whose ranks wait for all others anyway.
const EXCHANGE_PLACED: usize = 4 << 10;

/// Broadcast: block = channel. `Work::root` is the root's block of the ring's order.
#[derive(Clone, Copy, Debug)]
pub struct BroadcastLinear;

/// All-gather: block = channel. `Work::count` is that of one rank, and the parts are parts of that.
#[derive(Clone, Copy, Debug)]
pub struct AllGatherLinear;

/// All-to-all: block = channel. `Work::count` is that of one block of the input, and the parts are parts of that.
#[derive(Clone, Copy, Debug)]
pub struct AllToAllLinear;

/// Reduce-scatter: block = channel. `Work::count` is that of one rank, and the parts are parts of that.
#[derive(Clone, Copy, Debug)]
pub struct ReduceScatterLinear;

impl KernelCode for BroadcastLinear {
    const COLLECTIVE: Collective = Collective::Broadcast;
    const ALGORITHM: Algorithm = Algorithm::Linear;

    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(mut cx: KernelContext) {
        // SAFETY: the caller's: each block is the only user of its channel's connections, and the call's buffers hold the part.
        unsafe {
            let ring = RingPosition::of(&cx);
            let root = cx.args().root();
            let part = cx.part();
            let (start, count) = (part.offset as usize, part.count as usize);
            let to = output::<T>(&cx).wrapping_add(start);
            let placement = Placement { count, least_bytes: BROADCAST_PLACED };
            if cx.rank() == root {
                let from = input::<T>(&cx).wrapping_add(start);
                // The next of the ring is told by all algorithms that compare.
                for back in 1..ring.k - 1 {
                    tell(&mut cx, ring.block(back) as u32);
                }
                let mut at = 0;
                while at < count {
                    let mut n = count - at;
                    for ahead in 1..ring.k {
                        let peer = ring.block(ring.k - ahead) as u32;
                        let mut prims = to_peer::<T, R, P>(cx, peer);
                        placement.find(&mut prims, at == 0);
                        n = n.min(prims.chunk());
                        prims.direct_send_from(from.wrapping_add(at), at, n);
                        prims.close_round(&mut cx);
                    }
                    at += n;
                }
                if !ptr::eq(from, to) {
                    local_copy::<T, R, true, false>(&cx, from, to, count);
                }
            } else {
                if ring.block(1) as u32 != root {
                    compare(&mut cx, root);
                }
                placement.offer::<T, P>(&mut cx, root, to);
                let mut prims = from_peer::<T, R, P>(cx, root);
                placement.expect(&mut prims, to);
                for_chunks(
                    count,
                    prims.chunk(),
                    #[inline(always)]
                    |at, n| prims.direct_recv_into(to.wrapping_add(at), n),
                );
                prims.close_round(&mut cx);
            }
        }
        gpu::sync_threads();
    }
}

impl KernelCode for AllGatherLinear {
    const COLLECTIVE: Collective = Collective::AllGather;
    const ALGORITHM: Algorithm = Algorithm::Linear;
    /// Each two ranks compare theirs.
    const COMPARES: bool = false;

    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(cx: KernelContext) {
        // SAFETY: the caller's.
        unsafe { exchange::<T, R, P, false>(cx) }
    }
}

impl KernelCode for AllToAllLinear {
    const COLLECTIVE: Collective = Collective::AllToAll;
    const ALGORITHM: Algorithm = Algorithm::Linear;
    /// Each two ranks compare theirs.
    const COMPARES: bool = false;

    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(cx: KernelContext) {
        // SAFETY: the caller's.
        unsafe { exchange::<T, R, P, true>(cx) }
    }
}

/// Sends the input to all others, or with `EACH` to each its block of the input, and receives their blocks.
///
/// # Safety
/// As [`KernelCode::run_block`].
#[inline(always)]
unsafe fn exchange<T: Element, R: Reduction, P: Protocol, const EACH: bool>(mut cx: KernelContext) {
    // SAFETY: the caller's: each block is the only user of its channel's connections, and the call's buffers hold the part.
    unsafe {
        let ring = RingPosition::of(&cx);
        let part = cx.part();
        let (start, count) = (part.offset as usize, part.count as usize);
        let own = input::<T>(&cx).wrapping_add(start);
        let first = output::<T>(&cx).wrapping_add(start);
        // The part of the input that is for a rank.
        let for_rank = |cx: &KernelContext, rank: u32| {
            if EACH { own.wrapping_add(rank as usize * stride(cx)) } else { own }
        };
        // The part of the output that is from a rank.
        let from_rank =
            |cx: &KernelContext, rank: u32| first.wrapping_add(rank as usize * stride(cx));
        let placement = Placement { count, least_bytes: EXCHANGE_PLACED };
        for back in 1..ring.k {
            let peer = ring.block(back) as u32;
            let to = from_rank(&cx, peer);
            placement.offer::<T, P>(&mut cx, peer, to);
            tell(&mut cx, peer);
        }
        let mut at = 0;
        // Once also when there is nothing to send: the calls are compared.
        loop {
            let mut n = count - at;
            for ahead in 1..ring.k {
                let peer = ring.block(ring.k - ahead) as u32;
                // A rank in another call never makes the offer that is waited for below.
                if at == 0 && placement.holds_to::<T, P>(&cx, peer) {
                    compare(&mut cx, peer);
                }
                let mut prims = to_peer::<T, R, P>(cx, peer);
                placement.find(&mut prims, at == 0);
                n = n.min(prims.chunk());
                if n > 0 {
                    prims.direct_send_from(for_rank(&cx, peer).wrapping_add(at), at, n);
                }
                prims.close_round(&mut cx);
            }
            for back in 1..ring.k {
                let peer = ring.block(back) as u32;
                let to = from_rank(&cx, peer);
                if at == 0 && !placement.holds_to::<T, P>(&cx, peer) {
                    compare(&mut cx, peer);
                }
                let mut prims = from_peer::<T, R, P>(cx, peer);
                placement.expect(&mut prims, to);
                if n > 0 {
                    prims.direct_recv_into(to.wrapping_add(at), n);
                }
                prims.close_round(&mut cx);
            }
            at += n;
            if at >= count {
                break;
            }
        }
        let to = first.wrapping_add(cx.rank() as usize * stride(&cx));
        let from = for_rank(&cx, cx.rank());
        if !ptr::eq(from, to) {
            local_copy::<T, R, true, false>(&cx, from, to, count);
        }
    }
    gpu::sync_threads();
}

impl KernelCode for ReduceScatterLinear {
    const COLLECTIVE: Collective = Collective::ReduceScatter;
    const ALGORITHM: Algorithm = Algorithm::Linear;
    /// Each two ranks compare theirs.
    const COMPARES: bool = false;
    /// More of its state is in registers than 96 hold.
    const THREADS: u32 = 512;

    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(mut cx: KernelContext) {
        // SAFETY: the caller's, as above.
        unsafe {
            let ring = RingPosition::of(&cx);
            let part = cx.part();
            let (start, count) = (part.offset as usize, part.count as usize);
            let first = input::<T>(&cx).wrapping_add(start);
            let to = output::<T>(&cx).wrapping_add(start);
            let mut at = 0;
            loop {
                let mut n = count - at;
                for ahead in 1..ring.k {
                    let peer = ring.block(ring.k - ahead) as u32;
                    if at == 0 {
                        tell(&mut cx, peer);
                    }
                    let mut prims = to_peer::<T, R, P>(cx, peer);
                    n = n.min(prims.chunk());
                    if n > 0 {
                        prims.send_from(first.wrapping_add(peer as usize * stride(&cx) + at), n);
                    }
                    prims.close_round(&mut cx);
                }
                let own = first.wrapping_add(cx.rank() as usize * stride(&cx) + at);
                let sum = to.wrapping_add(at);
                for back in 1..ring.k {
                    let peer = ring.block(back) as u32;
                    if at == 0 {
                        compare(&mut cx, peer);
                    }
                    let mut prims = from_peer::<T, R, P>(cx, peer);
                    if n > 0 {
                        match (back == 1, back + 1 == ring.k) {
                            (true, true) => prims.reduce_into(own, sum, n),
                            (true, false) => prims.reduce_partial_into(own, sum, n),
                            (false, false) => prims.add_partial_into(sum, sum, n),
                            (false, true) => prims.add_final_into(sum, sum, n),
                        }
                    }
                    prims.close_round(&mut cx);
                }
                at += n;
                if at >= count {
                    break;
                }
            }
        }
        gpu::sync_threads();
    }
}

/// The connection to send to a rank.
///
/// # Safety
/// As [`Prims::open`].
#[inline(always)]
unsafe fn to_peer<T: Element, R: Reduction, P: Protocol>(
    cx: KernelContext,
    peer: u32,
) -> Prims<T, R, P, 0, 1> {
    // SAFETY: the caller's.
    unsafe { Prims::open(cx, ([], [cx.connections(peer).1]), THROUGH_SLOTS) }
}

/// The connection to receive from a rank.
///
/// # Safety
/// As [`Prims::open`].
#[inline(always)]
unsafe fn from_peer<T: Element, R: Reduction, P: Protocol>(
    cx: KernelContext,
    peer: u32,
) -> Prims<T, R, P, 1, 0> {
    // SAFETY: the caller's.
    unsafe { Prims::open(cx, ([cx.connections(peer).0], []), THROUGH_SLOTS) }
}

/// Tells a rank which call this is.
///
/// # Safety
/// All lanes call it, once a call for a rank, before they send to it.
#[inline(always)]
unsafe fn tell(cx: &mut KernelContext, peer: u32) {
    if cx.tid() != 0 || gpu::block_idx_x() != 0 || gpu::counting() {
        return;
    }
    let (_, conn) = cx.connections(peer);
    // SAFETY: the caller's; one lane does it.
    unsafe {
        let told = (*conn).told;
        let state = ConnState::named(conn, told);
        if cx.wait(&state, WaitKind::SignatureCredit, told, || prims::has_signature_room(conn)) {
            prims::write_signature(conn, &cx.args().signature(), cx.args().digest());
        }
    }
}

/// Waits for what a rank [tells](tell), and compares it. Of a difference the other lanes learn at the next verb's barrier.
///
/// # Safety
/// All lanes call it, once a call for a rank, before they receive from it.
#[inline(always)]
unsafe fn compare(cx: &mut KernelContext, peer: u32) {
    if cx.tid() != 0 || gpu::block_idx_x() != 0 || gpu::counting() {
        return;
    }
    let (conn, _) = cx.connections(peer);
    // SAFETY: the caller's; one lane does it.
    unsafe {
        prims::acknowledge_earlier(conn);
        let told = (*conn).told;
        let state = ConnState::named(conn, told);
        if cx.wait(&state, WaitKind::Signature, told, || prims::has_signature(conn)) {
            prims::check_signature(cx, conn, &cx.args().signature());
        }
    }
}
