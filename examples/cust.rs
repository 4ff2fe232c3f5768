//! An all-reduce for an application that uses the crate `cust`: two ranks on GPU 0, on the application's own streams and
//! buffers.
//!
//! ```text
//! cargo run --release --features cust --example cust
//! ```

use std::error::Error;
use std::sync::Arc;

use cust::memory::{CopyDestination, DeviceBuffer};
use cust::stream::{Stream, StreamFlags};
use ferroccl::runtime::cuda::CudaRuntime;
use ferroccl::{Communicator, Device, ReduceOp};

const RANKS: u32 = 2;
const COUNT: usize = 1 << 16;

fn main() -> Result<(), Box<dyn Error>> {
    // The application's: the primary context of GPU 0, and for each rank a stream and a buffer. cust's copies are of the
    // legacy stream, which waits for all of cust's: between the calls of two ranks there can be none.
    let _context = cust::quick_init()?;
    let mut theirs = Vec::new();
    for rank in 0..RANKS {
        let stream = Arc::new(Stream::new(StreamFlags::DEFAULT, None)?);
        let buffer = Arc::new(DeviceBuffer::from_slice(&[rank as f32 + 1.0; COUNT])?);
        theirs.push((stream, buffer));
    }

    // Ours: communicators in the same context.
    let runtime = Arc::new(CudaRuntime::new(0)?);
    let ranks = Communicator::init_all(&Device::new(runtime.clone()), RANKS)?;
    for (comm, (stream, buffer)) in ranks.iter().zip(&theirs) {
        let stream = runtime.stream_of_cust(stream.clone())?;
        let buffer = runtime.buffer_of_cust(buffer.clone())?;
        comm.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream)?;
    }

    // The application's again.
    for (rank, (stream, buffer)) in theirs.iter().enumerate() {
        stream.synchronize()?;
        let mut sum = vec![0.0; COUNT];
        buffer.copy_to(&mut sum)?;
        assert!(sum.iter().all(|&x| x == 3.0));
        println!("rank {rank} of {RANKS}: 1 + 2 = {}", sum[0]);
    }
    Ok(())
}
