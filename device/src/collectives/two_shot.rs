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
//! the round before are received. The bits are those of a [`Chain`](super::Chain), whatever the size. On buffers that
//! all ranks map, [direct](super::direct) does the same without slots.

use crate::collectives::chunks::RingChunks;
use crate::collectives::mesh::{Mesh, MeshCode, MeshProtocol, RankBlocks};
use crate::collectives::pack;
use crate::element::Element;
use crate::gpu;
use crate::reduce::Reduction;

/// The kernel.
#[derive(Clone, Copy, Debug)]
pub struct AllReduceTwoShot;

impl MeshCode for AllReduceTwoShot {
    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: MeshProtocol>(mesh: &mut Mesh<T, R, P>) {
        // Made again wherever it is needed, from the call's arguments: kept, it would fill registers from one end to the other.
        let round = |mesh: &Mesh<T, R, P>, i: usize| {
            let count = mesh.part().count as usize;
            let chunks = RingChunks::new(count, mesh.nranks(), mesh.chunk(), pack::<T>());
            chunks.round(gpu::opaque(i))
        };
        let at = |mesh: &Mesh<T, R, P>, at: usize| {
            let at = mesh.part().offset as usize + at;
            (mesh.args().input::<T>().wrapping_add(at), mesh.args().output::<T>().wrapping_add(at))
        };
        // Once also when there is nothing to send: nobody is ahead of another by a call.
        let mut i = 0;
        loop {
            let there = i == 0 || !round(mesh, i).is_empty();
            // SAFETY: the caller's; a round's chunks are inside the part.
            unsafe {
                if there {
                    let round = round(mesh, i);
                    let chunks =
                        RankBlocks { first: at(mesh, round.start()).0, stride: round.size() };
                    let step = mesh.step();
                    mesh.scatter(step, chunks, |rank| round.chunk(rank).len(), round.size());
                }
                if i > 0 {
                    let round = round(mesh, i - 1);
                    let chunks =
                        RankBlocks { first: at(mesh, round.start()).1, stride: round.size() };
                    let step = mesh.step() - 1;
                    mesh.gather::<true>(step, chunks, |rank| round.chunk(rank).len(), round.size());
                }
                if there {
                    let round = round(mesh, i);
                    let own = round.chunk(mesh.rank());
                    let step = mesh.take_steps(2);
                    let places = at(mesh, own.start);
                    mesh.reduce::<false, true>(step, places, own.len(), round.size());
                }
            }
            if !there || !mesh.barrier() {
                break;
            }
            i += 1;
        }
    }
}
