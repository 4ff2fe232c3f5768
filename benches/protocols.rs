//! The protocols side by side in figures that no machine changes: what the kernels' PTX does, counted in the emulator.
//!
//! ```text
//! cargo bench --bench protocols                      4 ranks, 8 B to 1 MiB, a table to the terminal
//! cargo bench --bench protocols -- --ranks 8         another number of ranks
//! cargo bench --bench protocols -- --threads 512     another number of threads in a block
//! ```
//!
//! Warps take turns and memory is plain, so that the table is the same wherever it is made: a change in it is a change
//! of the kernels, of the compiler that made them, or of the plan. Only the last column is a time, of the emulator.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use ferroccl::runtime::ptx::{DEFAULT_THREADS, Options, PtxRuntime};
use ferroccl::{Algorithm, CommConfig, Communicator, Device, ProtocolId, ReduceOp, ptx};

const BYTES: [usize; 6] = [8, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Compares the protocols' kernels by what they do.
#[derive(Parser)]
struct Args {
    /// Ranks
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: u32,
    /// Threads of a block, a multiple of 32
    #[arg(long, default_value_t = DEFAULT_THREADS)]
    threads: u32,
    /// What cargo passes; it changes nothing
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    if let Some(why) = ptx::unavailable() {
        return Err(format!("this build has no PTX: {why}").into());
    }
    let Args { ranks, threads, .. } = args;
    println!(
        "All-reduce of {ranks} ranks, f32 sum, {threads} threads a block: figures of one call, all ranks together."
    );
    println!("moved: bytes loaded and stored in global memory for each byte of a rank's result.");
    println!();
    println!(
        "| bytes | protocol | launches | instructions | lanes | loads | stores | sectors | moved | barriers | votes | spins | ms |"
    );
    println!("|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for bytes in BYTES {
        for &protocol in ProtocolId::ALL {
            row(ranks, threads, bytes, protocol)?;
        }
    }
    Ok(())
}

fn row(ranks: u32, threads: u32, bytes: usize, protocol: ProtocolId) -> Result<(), Box<dyn Error>> {
    let runtime = Arc::new(PtxRuntime::lockstep(Options::plain()).with_threads(threads)?);
    let device = Device::new(Arc::clone(&runtime) as _);
    let mut config = CommConfig::default();
    config.algorithm = Some(Algorithm::Ring);
    config.protocol = Some(protocol);
    let members = Communicator::init_all_with(&device, ranks, &config)?;
    let data = vec![1.0f32; bytes / size_of::<f32>()];
    let streams = members.iter().map(|_| device.stream()).collect::<Result<Vec<_>, _>>()?;
    let buffers = members.iter().map(|_| device.upload(&data)).collect::<Result<Vec<_>, _>>()?;
    runtime.reset_counts();
    let start = Instant::now();
    for ((rank, stream), buffer) in members.iter().zip(&streams).zip(&buffers) {
        rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream)?;
    }
    let result = match (buffers.first(), streams.first()) {
        (Some(buffer), Some(stream)) => buffer.to_vec(stream)?,
        _ => Vec::new(),
    };
    let elapsed = start.elapsed();
    if result.iter().any(|&sum| sum != ranks as f32) {
        return Err(format!("{bytes} bytes, {protocol}: a wrong sum").into());
    }
    for kernel in runtime.counts() {
        let c = kernel.counts;
        println!(
            "| {bytes} | {protocol} | {} | {} | {:.1} | {} | {} | {} | {:.2} | {} | {} | {} | {:.1} |",
            kernel.launches,
            c.warp_instructions,
            c.lane_instructions as f64 / c.warp_instructions.max(1) as f64,
            c.global_loads,
            c.global_stores,
            c.load_sectors + c.store_sectors,
            (c.bytes_loaded + c.bytes_stored) as f64 / (f64::from(ranks) * bytes as f64),
            c.barriers,
            c.warp_syncs,
            c.spins,
            elapsed.as_secs_f64() * 1e3,
        );
    }
    Ok(())
}
