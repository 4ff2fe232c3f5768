//! The cases, as gungraun has them: `COLLECTIVE_RANKS_BYTES`, and `grouped_` for calls in groups.
#![allow(missing_docs, reason = "gungraun's macros make public items")]

use ferroccl_instructions::{CALLS, Call, Ranks};
use gungraun::Callgrind;
use gungraun::prelude::*;

/// What comes before the calls. It does not count.
fn ranks(call: Call, ranks: u32, bytes: usize) -> Ranks {
    Ranks::new(call, ranks, bytes).expect("ranks on the CPU")
}

// Callgrind counts in this function alone. Its caller drops the ranks, which does not count either.
#[library_benchmark(setup = ranks)]
#[bench::all_reduce_2_8(Call::AllReduce, 2, 8)]
#[bench::all_reduce_2_512(Call::AllReduce, 2, 512)]
#[bench::all_reduce_2_4096(Call::AllReduce, 2, 4096)]
#[bench::all_reduce_2_32768(Call::AllReduce, 2, 32768)]
#[bench::all_reduce_4_8(Call::AllReduce, 4, 8)]
#[bench::all_reduce_4_512(Call::AllReduce, 4, 512)]
#[bench::all_reduce_4_4096(Call::AllReduce, 4, 4096)]
#[bench::all_reduce_4_32768(Call::AllReduce, 4, 32768)]
#[bench::all_reduce_16_8(Call::AllReduce, 16, 8)]
#[bench::all_reduce_16_512(Call::AllReduce, 16, 512)]
#[bench::all_reduce_16_4096(Call::AllReduce, 16, 4096)]
#[bench::all_reduce_16_32768(Call::AllReduce, 16, 32768)]
#[bench::broadcast_2_512(Call::Broadcast, 2, 512)]
#[bench::broadcast_2_4096(Call::Broadcast, 2, 4096)]
#[bench::broadcast_4_512(Call::Broadcast, 4, 512)]
#[bench::broadcast_4_4096(Call::Broadcast, 4, 4096)]
#[bench::broadcast_16_512(Call::Broadcast, 16, 512)]
#[bench::broadcast_16_4096(Call::Broadcast, 16, 4096)]
#[bench::all_gather_2_512(Call::AllGather, 2, 512)]
#[bench::all_gather_2_4096(Call::AllGather, 2, 4096)]
#[bench::all_gather_4_512(Call::AllGather, 4, 512)]
#[bench::all_gather_4_4096(Call::AllGather, 4, 4096)]
#[bench::all_gather_16_512(Call::AllGather, 16, 512)]
#[bench::all_gather_16_4096(Call::AllGather, 16, 4096)]
#[bench::reduce_scatter_2_512(Call::ReduceScatter, 2, 512)]
#[bench::reduce_scatter_2_4096(Call::ReduceScatter, 2, 4096)]
#[bench::reduce_scatter_4_512(Call::ReduceScatter, 4, 512)]
#[bench::reduce_scatter_4_4096(Call::ReduceScatter, 4, 4096)]
#[bench::reduce_scatter_16_512(Call::ReduceScatter, 16, 512)]
#[bench::reduce_scatter_16_4096(Call::ReduceScatter, 16, 4096)]
fn calls(ranks: Ranks) -> Ranks {
    ranks.make(CALLS).expect("calls of ranks on the CPU");
    ranks
}

#[library_benchmark(setup = ranks)]
#[bench::grouped_all_reduce_2_8(Call::AllReduce, 2, 8)]
#[bench::grouped_all_reduce_4_8(Call::AllReduce, 4, 8)]
#[bench::grouped_all_reduce_16_8(Call::AllReduce, 16, 8)]
fn grouped_calls(ranks: Ranks) -> Ranks {
    ranks.make_in_groups(CALLS).expect("calls of ranks on the CPU");
    ranks
}

library_benchmark_group!(name = small, benchmarks = [calls, grouped_calls]);

main!(
    config = LibraryBenchmarkConfig::default()
        // As many queues of blocks on every machine.
        .env("FERROCCL_WORKERS", "1")
        .tool(Callgrind::with_args(["--cache-sim=no"]));
    library_benchmark_groups = small
);
