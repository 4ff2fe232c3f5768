//! An all-reduce for an application that uses the crate `cudarc`: two ranks on GPU 0, on the application's own streams and
//! slices.
//!
//! ```text
//! cargo run --release --features cudarc --example cudarc
//! ```

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::CudaContext;
use ferroccl::runtime::cuda::CudaRuntime;
use ferroccl::{Communicator, Device, ReduceOp};

const RANKS: u32 = 2;
const COUNT: usize = 1 << 16;

fn main() -> Result<(), Box<dyn Error>> {
    // Where there is no driver this is an error that says so; cudarc panics.
    let runtime = Arc::new(CudaRuntime::new(0)?);

    // The application's: the primary context of GPU 0, and for each rank a stream and a slice that is of this stream.
    let context = CudaContext::new(0)?;
    let mut theirs = Vec::new();
    for rank in 0..RANKS {
        let stream = context.new_stream()?;
        let slice = Arc::new(stream.clone_htod(&[rank as f32 + 1.0; COUNT])?);
        theirs.push((stream, slice));
    }

    // Ours: communicators in the same context. A slice is used on its own stream, so that nothing else is to be ordered.
    let ranks = Communicator::init_all(&Device::new(runtime.clone()), RANKS)?;
    for (comm, (stream, slice)) in ranks.iter().zip(&theirs) {
        let stream = runtime.stream_of_cudarc(stream.clone())?;
        let buffer = runtime.buffer_of_cudarc(slice.clone())?;
        comm.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream)?;
    }

    // The application's again: a copy in the same stream comes after it.
    for (rank, (stream, slice)) in theirs.iter().enumerate() {
        let sum = stream.clone_dtoh(&**slice)?;
        assert!(sum.iter().all(|&x| x == 3.0));
        println!("rank {rank} of {RANKS}: 1 + 2 = {}", sum[0]);
    }
    Ok(())
}
