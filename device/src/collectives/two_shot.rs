//! Two-shot all-reduce: a reduce-scatter and an all-gather, each in one step.
//!
//! ```text
//! rank r:   send chunk i to rank i, for all i
//!           receive chunk r of all, combine them in the order of the ranks, send the result to all
//!           receive the results of all
//! ```
//!
//! Two steps, in which each rank sends `2 (k - 1) / k` of the data, as little as in a ring: for messages that are too large for
//! [one-shot](super::one_shot). What is larger than the slots goes in rounds, and each round's chunks are sent before the results of
//! the round before are received. The bits are those of a [`Chain`](super::Chain), whatever the size. NCCL's kernel of this kind is
//! `AllReduce_RSxLD_AGxST` (`src/device/symmetric/all_reduce.cuh`), which works on user buffers that all ranks map.

use crate::collectives::chunks::{RingChunks, Round};
use crate::collectives::mesh::{Blocks, Mesh, MeshCode};
use crate::collectives::pack;
use crate::element::Element;
use crate::prims::LineFormat;
use crate::reduce::Reduction;

/// The kernel.
#[derive(Clone, Copy, Debug)]
pub struct AllReduceTwoShot;

impl MeshCode for AllReduceTwoShot {
    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: LineFormat>(mesh: &mut Mesh<T, R, P>) {
        let (part, args) = (mesh.part(), mesh.args());
        let (start, count) = (part.offset as usize, part.count as usize);
        let input = args.input::<T>().wrapping_add(start);
        let output = args.output::<T>().wrapping_add(start);
        let rank = mesh.rank();
        let chunks = RingChunks::new(count, mesh.nranks(), mesh.chunk(), pack::<T>());
        // Once also when there is nothing to send: nobody is ahead of another by a call.
        let rounds = chunks.rounds().max(1);
        let mut before: (u64, Round) = (0, chunks.round(0));
        for i in 0..=rounds {
            let round = chunks.round(i);
            let n = |of: &Round, rank: usize| of.chunk(rank).len();
            let units = |of: &Round| Mesh::<T, R, P>::units(of.size());
            let mut step = 0;
            // SAFETY: the caller's; a round's chunks are inside the part.
            unsafe {
                if i < rounds {
                    step = mesh.take_steps(2);
                    let first = input.wrapping_add(round.start());
                    let chunks = Blocks { first, stride: round.size() };
                    mesh.scatter(step, chunks, |rank| n(&round, rank), units(&round));
                }
                if i > 0 {
                    let (step, round) = &before;
                    let first = output.wrapping_add(round.start());
                    let chunks = Blocks { first, stride: round.size() };
                    let n = |rank| n(round, rank);
                    mesh.gather(step + 1, chunks, n, units(round));
                }
                if i < rounds {
                    let own = round.chunk(rank);
                    let (from, to) =
                        (input.wrapping_add(own.start), output.wrapping_add(own.start));
                    mesh.reduce::<true>(step, (from, to), own.len(), units(&round));
                }
            }
            if i < rounds && !mesh.barrier() {
                break;
            }
            before = (step, round);
        }
    }
}
