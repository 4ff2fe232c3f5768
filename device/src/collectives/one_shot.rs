//! One-shot collectives: every rank sends to every other, once.
//!
//! ```text
//! all-reduce      rank r: send its part to all           | receive all parts, combine them in the order of the ranks
//! reduce-scatter  rank r: send block i to rank i         | receive its block of all, combine them in that order
//! all-gather      rank r: send its block to all          | receive all blocks
//! all-to-all      rank r: send block i to rank i         | receive its block of all
//! ```
//!
//! One step instead of a ring's `2 (k - 1)` or `k - 1`. An all-reduce moves `k - 1` times the data: it is for messages of which the
//! steps are the cost. All ranks combine in the order of the ranks, so all get the same bits, and the same as along a
//! [`Chain`](super::Chain). NCCL's kernels of this kind are `AllReduce_AGxLL_R`, `ReduceScatter_LL` and `AllGather_LL`
//! (`src/device/symmetric`), for memory that all ranks map.

use crate::collectives::mesh::{Chunk, Mesh, MeshCode, MeshProtocol, RankBlocks};
use crate::element::Element;
use crate::reduce::Reduction;

/// All-reduce.
#[derive(Clone, Copy, Debug)]
pub struct AllReduceOneShot;

impl MeshCode for AllReduceOneShot {
    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: MeshProtocol>(mesh: &mut Mesh<T, R, P>) {
        mesh.for_chunks(
            #[inline(always)]
            |mesh, Chunk { step, start, n }| {
                let args = mesh.args();
                let input = args.input::<T>().wrapping_add(start);
                let output = args.output::<T>().wrapping_add(start);
                // SAFETY: the caller's; the part is inside the buffers.
                unsafe {
                    mesh.spread(step, input, n);
                    mesh.reduce::<true, false>(step, (input, output), n, n);
                }
            },
        );
    }
}

/// Reduce-scatter.
#[derive(Clone, Copy, Debug)]
pub struct ReduceScatterOneShot;

impl MeshCode for ReduceScatterOneShot {
    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: MeshProtocol>(mesh: &mut Mesh<T, R, P>) {
        mesh.for_chunks(
            #[inline(always)]
            |mesh, Chunk { step, start, n }| {
                let args = mesh.args();
                let input = args.input::<T>().wrapping_add(start);
                let output = args.output::<T>().wrapping_add(start);
                let stride = args.count() as usize;
                // SAFETY: the caller's; the part is inside each block.
                unsafe {
                    mesh.scatter(step, RankBlocks { first: input, stride }, |_| n, n);
                    let own = input.wrapping_add(mesh.rank() * stride);
                    mesh.reduce::<false, false>(step, (own, output), n, n);
                }
            },
        );
    }
}

/// All-gather.
#[derive(Clone, Copy, Debug)]
pub struct AllGatherOneShot;

impl MeshCode for AllGatherOneShot {
    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: MeshProtocol>(mesh: &mut Mesh<T, R, P>) {
        mesh.for_chunks(
            #[inline(always)]
            |mesh, Chunk { step, start, n }| {
                let args = mesh.args();
                let input = args.input::<T>().wrapping_add(start);
                let output = args.output::<T>().wrapping_add(start);
                let stride = args.count() as usize;
                // SAFETY: the caller's; the part is inside each block.
                unsafe {
                    mesh.spread(step, input, n);
                    mesh.keep(input, output.wrapping_add(mesh.rank() * stride), n);
                    mesh.gather::<true>(step, RankBlocks { first: output, stride }, |_| n, n);
                }
            },
        );
    }
}

/// All-to-all. Input and output are apart.
#[derive(Clone, Copy, Debug)]
pub struct AllToAllOneShot;

impl MeshCode for AllToAllOneShot {
    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: MeshProtocol>(mesh: &mut Mesh<T, R, P>) {
        mesh.for_chunks(
            #[inline(always)]
            |mesh, Chunk { step, start, n }| {
                let args = mesh.args();
                let input = args.input::<T>().wrapping_add(start);
                let output = args.output::<T>().wrapping_add(start);
                let stride = args.count() as usize;
                // SAFETY: the caller's; the part is inside each block.
                unsafe {
                    let own = mesh.rank() * stride;
                    mesh.scatter(step, RankBlocks { first: input, stride }, |_| n, n);
                    mesh.keep(input.wrapping_add(own), output.wrapping_add(own), n);
                    mesh.gather::<false>(step, RankBlocks { first: output, stride }, |_| n, n);
                }
            },
        );
    }
}
