//! All-to-all on windows: each rank stores its blocks straight into the other ranks' outputs.
//!
//! ```text
//! rank r: store block s of its input to block r of rank s's output, for all s
//! ```
//!
//! It is a [direct](super::DirectCode) collective: a barrier of all ranks before, so that no output is written before its rank's kernel
//! has begun, and one behind, so that no kernel ends before its output is whole. Each rank begins with the rank behind it, so that
//! all links are used at once, and no rank is stored to by all others at the same time.
//!
//! Where buffers are in no window, an all-to-all is a group of [sends and receives](super::SendRecv).

use super::direct::DirectCode;
use super::mesh::MeshSide;
use crate::element::{Element, each};
use crate::gpu::{self, PACK_BYTES, UNALIGNED_PACKS, UNROLL};
use crate::peers::{Among, Inputs, Peers};
use crate::reduce::Reduction;

/// All-to-all. The output is in a window.
#[derive(Clone, Copy, Debug)]
pub struct AllToAllDirect;

impl DirectCode for AllToAllDirect {
    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction>(side: &MeshSide) {
        let (part, args) = (side.cx.part(), side.cx.args());
        let size = size_of::<T>();
        let start = part.offset as usize * size;
        let exchange = Exchange {
            side,
            from: args.input::<u8>().wrapping_add(start),
            to: args.output::<u8>().wrapping_add(start),
            peers: Peers::of_output(args),
            block: args.count() as usize * size,
        };
        // SAFETY: the caller's; the part is inside each block.
        unsafe { exchange.bytes(part.count as usize * size) }
    }
}

/// The block's part of each block of input and output.
struct Exchange<'s> {
    side: &'s MeshSide,
    /// The part of the input's first block.
    from: *const u8,
    /// The part of the output's first block.
    to: *mut u8,
    peers: Peers,
    /// From a block's first byte to the next one's.
    block: usize,
}

impl Exchange<'_> {
    /// Where the part is for the `by`-th rank behind this one: in this rank's input, and in that rank's output. The last is this
    /// rank itself.
    ///
    /// # Safety
    /// As [`Exchange::bytes`]; `by` is less than the number of ranks.
    #[inline(always)]
    unsafe fn ends(&self, by: usize) -> (*const u8, *mut u8) {
        let peer = self.side.behind(by);
        let own = self.to.wrapping_add(self.side.rank * self.block);
        // SAFETY: the caller's: such a rank is in the table.
        (self.from.wrapping_add(peer * self.block), unsafe { self.peers.of(peer, own) })
    }

    /// Stores the first `n` bytes of the part of each block.
    ///
    /// # Safety
    /// As [`DirectCode::run_block`]; the bytes are in the buffers, nobody else touches them, and input and output are apart.
    #[inline(always)]
    unsafe fn bytes(&self, n: usize) {
        // SAFETY: the caller's.
        unsafe {
            if gpu::whole_buffers() {
                for by in 0..self.side.nranks {
                    let (from, to) = self.ends(by);
                    gpu::mem_copy(to, from, n);
                }
                return;
            }
            let bits = self.from.addr() | self.to.addr() | self.block | self.peers.bits();
            let mut done = 0;
            if UNALIGNED_PACKS || bits.is_multiple_of(PACK_BYTES) {
                done = self.words::<<u8 as Element>::Pack>(0, n);
            } else if bits.is_multiple_of(8) {
                done = self.words::<u64>(0, n);
            } else if bits.is_multiple_of(4) {
                done = self.words::<u32>(0, n);
            } else if bits.is_multiple_of(2) {
                done = self.words::<u16>(0, n);
            }
            self.words::<u8>(done, n);
        }
    }

    /// [`Exchange::bytes`] of whole words from byte `start` on; where they end. The lanes share the words of all blocks, so that few
    /// bytes go to all ranks at once.
    ///
    /// # Safety
    /// As [`Exchange::bytes`]; all addresses are multiples of a word.
    #[inline(always)]
    unsafe fn words<W: Copy>(&self, start: usize, n: usize) -> usize {
        let words = (n - start) / size_of::<W>();
        let end = start + words * size_of::<W>();
        if words == 0 {
            return end;
        }
        let nranks = self.side.nranks;
        // A word is a rank, by how far behind it is, and a place in the block's part. Divided once, not for each word.
        let (tid, lanes) = (self.side.cx.tid(), self.side.cx.lanes());
        let step = (lanes / words, lanes % words);
        let mut next = (tid / words, tid % words);
        while next.0 < nranks {
            let first = next;
            // SAFETY: the caller's; all words are of the part.
            unsafe {
                let places: [(*const W, *mut W); UNROLL] = each(
                    #[inline(always)]
                    |_| {
                        // Behind the last word a lane moves its first one again.
                        let (by, word) = if next.0 < nranks { next } else { first };
                        let (source, target) = self.ends(by);
                        let place = start + word * size_of::<W>();
                        next = (next.0 + step.0, next.1 + step.1);
                        if next.1 >= words {
                            next = (next.0 + 1, next.1 - words);
                        }
                        (source.wrapping_add(place).cast(), target.wrapping_add(place).cast())
                    },
                );
                let values: [W; UNROLL] = each(
                    #[inline(always)]
                    |u| gpu::ld_data(places[u].0),
                );
                for (u, value) in values.iter().enumerate() {
                    gpu::st_data(places[u].1, *value, 1);
                }
            }
        }
        end
    }
}
