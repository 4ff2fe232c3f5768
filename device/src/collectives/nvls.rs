//! Collectives on windows by a switch that sends what is stored to all ranks, and sums what it loads from all (NVLink SHARP).
//!
//! ```text
//! all-reduce      rank r: load the sums of part r of all inputs, store them to part r of all outputs
//! reduce-scatter  rank r: load the sums of block r of all inputs, keep them
//! all-gather      rank r: store its block to block r of all outputs
//! ```
//!
//! They are [direct](super::DirectCode) collectives, with the same barriers before and behind, whose 16-byte packs go to one address,
//! that of a multicast object: a rank's link carries a part of the data once, and not once for each other rank. The elements before
//! the first and behind the last pack go to each rank by itself. No place is accessed both ways in a call; before and behind it lie
//! the ends of kernels. So there is no need for a `fence.proxy.alias` (PTX ISA 9.0, 9.7.13.4), and NCCL's kernels have none.
//!
//! The switch sums in an order of its own, so the bits of a sum of floats are not those of [`Direct`](super::AllReduceDirect), and the
//! deterministic mode has no use for it. All ranks get the same bits, as each part is summed once.
//!
//! NCCL's kernels of this kind are `AllReduce_RSxLDMC_AGxSTMC`, `ReduceScatter_LDMC` and `AllGather_STMC`.

use super::direct::{DirectCode, part_of_input_block, part_of_output_block, part_of_rank};
use super::mesh::MeshSide;
use crate::args::KernelArgs;
use crate::element::{Element, each};
use crate::gpu::{self, MulticastAddress, PACK_BYTES};
use crate::peers::{Combined, Peers, words};
use crate::reduce::Reduction;

/// 16 bytes, as they are.
type Pack = [u64; PACK_BYTES / 8];

/// All-reduce, a sum or an average. Both buffers are in windows with multicast objects.
#[derive(Clone, Copy, Debug)]
pub struct AllReduceNvls;

impl DirectCode for AllReduceNvls {
    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction>(side: &MeshSide) {
        let args = side.cx.args();
        let (start, n) = part_of_rank::<T>(side);
        let input = args.input::<T>().wrapping_add(start);
        let output = args.output::<T>().wrapping_add(start);
        // SAFETY: the caller's; the part is inside the buffers, and another rank's is another one.
        unsafe { sum::<T, R, true>(side, args, (input, output), n) }
    }
}

/// Reduce-scatter, a sum or an average. The input is in a window with a multicast object.
#[derive(Clone, Copy, Debug)]
pub struct ReduceScatterNvls;

impl DirectCode for ReduceScatterNvls {
    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction>(side: &MeshSide) {
        let (buffers, n) = part_of_input_block::<T>(side);
        // SAFETY: the caller's; the part is inside the block.
        unsafe { sum::<T, R, false>(side, side.cx.args(), buffers, n) }
    }
}

/// All-gather. The output is in a window with a multicast object.
#[derive(Clone, Copy, Debug)]
pub struct AllGatherNvls;

impl DirectCode for AllGatherNvls {
    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction>(side: &MeshSide) {
        let ((input, output), n) = part_of_output_block::<T>(side);
        let buffers = (input.cast(), output.cast());
        // SAFETY: the caller's; the part is inside the block.
        unsafe { spread(side, side.cx.args(), buffers, n * size_of::<T>()) }
    }
}

/// Elements from `at` to the first that begins a pack, `n` at most.
#[inline(always)]
fn to_first_pack<T>(at: *const T, n: usize) -> usize {
    (at.addr().wrapping_neg() % PACK_BYTES / size_of::<T>()).min(n)
}

/// Calls `body` for packs `0..packs`, which the block's lanes share. A lane has one pack in flight: so what is stored to all travels
/// while others are loaded from all, and by 8 ranks of 16 blocks a link is asked for 1 MiB at once, more than there is room for on
/// its way.
#[inline(always)]
fn for_packs(side: &MeshSide, packs: usize, mut body: impl FnMut(usize)) {
    let mut at = side.cx.tid();
    while at < packs {
        body(at);
        at += side.cx.lanes();
    }
}

/// Sums `n` elements of all inputs into the output; with `SPREAD` into all outputs. An average's sums are multiplied by its factor:
/// the switch has no other rank's values.
///
/// # Safety
/// As [`DirectCode::run_block`]; the elements are in the buffers, nobody else writes them, and of the inputs nobody else reads any
/// that are written.
#[inline(always)]
unsafe fn sum<T: Element, R: Reduction, const SPREAD: bool>(
    side: &MeshSide,
    args: KernelArgs,
    (input, output): (*const T, *mut T),
    n: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        let by_element = Combined::<T, R, MeshSide, SPREAD>::of(side, args, (input, output));
        let each_pack = PACK_BYTES / size_of::<T>();
        let head = to_first_pack(input, n);
        let aligned = (output.addr() ^ input.addr()).is_multiple_of(PACK_BYTES);
        // Where packs of the outputs begin elsewhere than those of the inputs, no pack can be stored to all.
        let packs = if SPREAD && !aligned { 0 } else { (n - head) / each_pack };
        let from = MulticastAddress::of(args.input_peers(), side.nranks, input.wrapping_add(head));
        let own = output.wrapping_add(head);
        let to =
            if SPREAD { MulticastAddress::of(args.output_peers(), side.nranks, own) } else { from };
        for_packs(side, packs, |at| {
            let mut sum = gpu::ld_sum::<T>(from.wrapping_add(at * PACK_BYTES));
            by_element.reducer().pre_words(&mut sum);
            if SPREAD {
                gpu::st_all(to.wrapping_add(at * PACK_BYTES), sum, size_of::<T>());
            } else if aligned {
                gpu::st_data(own.cast::<Pack>().wrapping_add(at), sum, size_of::<T>());
            } else {
                store_elements(own.wrapping_add(at * each_pack), sum);
            }
        });
        let rest = if packs == 0 { 0 } else { head };
        by_element.elements(0, rest);
        by_element.elements(rest + packs * each_pack, n);
    }
}

/// Stores a pack element by element.
///
/// # Safety
/// The elements are writable, and nobody else touches them.
#[inline(always)]
unsafe fn store_elements<T: Element>(to: *mut T, pack: Pack) {
    let bits = 8 * size_of::<T>();
    let in_word = 64 / bits;
    unroll_8!(PACK_BYTES / size_of::<T>(), i => {
        let element = T::of_bits(pack[i / in_word] >> (i % in_word * bits));
        // SAFETY: the caller's.
        unsafe { gpu::st_data(to.wrapping_add(i), element, size_of::<T>()) };
    });
}

/// Copies `n` bytes of the input to the outputs of all ranks.
///
/// # Safety
/// As [`DirectCode::run_block`]; the bytes are in the buffers, and nobody else touches them. The input may be the output.
#[inline(always)]
unsafe fn spread(side: &MeshSide, args: KernelArgs, (from, to): (*const u8, *mut u8), n: usize) {
    let head = to_first_pack(to, n);
    let packs = (n - head) / PACK_BYTES;
    let end = head + packs * PACK_BYTES;
    // SAFETY: the caller's. The input has the alignment that its packs are loaded with.
    unsafe {
        let peers = Peers::of_output(args);
        let first = from.wrapping_add(head);
        let all = MulticastAddress::of(args.output_peers(), side.nranks, to.wrapping_add(head));
        if first.addr().is_multiple_of(PACK_BYTES) {
            spread_packs::<Pack>(side, (first, all), packs);
        } else if first.addr().is_multiple_of(8) {
            spread_packs::<u64>(side, (first, all), packs);
        } else if first.addr().is_multiple_of(4) {
            spread_packs::<u32>(side, (first, all), packs);
        } else if first.addr().is_multiple_of(2) {
            spread_packs::<u16>(side, (first, all), packs);
        } else {
            spread_packs::<u8>(side, (first, all), packs);
        }
        words::<u8>(side, peers, (from, to), 0, head);
        words::<u8>(side, peers, (from, to), end, n);
    }
}

/// [`spread`] of whole packs, which are loaded by words.
///
/// # Safety
/// As [`spread`]; addresses of the input are multiples of a word.
#[inline(always)]
unsafe fn spread_packs<W: Copy>(
    side: &MeshSide,
    (from, all): (*const u8, MulticastAddress),
    packs: usize,
) {
    for_packs(side, packs, |at| {
        let place = at * PACK_BYTES;
        // SAFETY: the caller's; the place is among the packs.
        unsafe {
            let pack = load_words::<W>(from.wrapping_add(place).cast());
            gpu::st_all(all.wrapping_add(place), pack, 1);
        }
    });
}

/// Loads a pack word by word.
///
/// # Safety
/// The words are readable, and nobody writes them.
#[inline(always)]
unsafe fn load_words<W: Copy>(from: *const W) -> Pack {
    // SAFETY: the caller's; a word has the size of its bits.
    unsafe {
        if size_of::<W>() == PACK_BYTES {
            return gpu::ld_data(from.cast());
        }
        let bits = 8 * size_of::<W>();
        let in_word = 64 / bits;
        each(
            #[inline(always)]
            |w| {
                let mut word = 0;
                for i in 0..in_word {
                    let at = from.wrapping_add(w * in_word + i);
                    let part = match size_of::<W>() {
                        8 => gpu::ld_data(at.cast::<u64>()),
                        4 => u64::from(gpu::ld_data(at.cast::<u32>())),
                        2 => u64::from(gpu::ld_data(at.cast::<u16>())),
                        _ => u64::from(gpu::ld_data(at.cast::<u8>())),
                    };
                    word |= part << (i * bits % 64);
                }
                word
            },
        )
    }
}
