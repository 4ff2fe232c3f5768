//! The sum of a vector over all ranks.
//!
//! ```text
//! cargo run --release --example all_reduce                       one process, 4 ranks
//! ferroccl run -n 4 -- target/release/examples/all_reduce        4 processes, a rank each
//! mpirun -n 4 target/release/examples/all_reduce                 the same, by another launcher
//! ```

use ferroccl::config::Config;
use ferroccl::launcher::RankEnv;
use ferroccl::{Communicator, Device, ReduceOp, Result};

fn main() -> Result<()> {
    let device = Device::cpu();

    // Started by a launcher we are one rank of many, else we are all of them.
    let ranks = match RankEnv::from_env()? {
        Some(env) => {
            let id = env.unique_id(&Config::from_env()?)?;
            vec![Communicator::init_rank(&device, env.world_size, &id, env.rank)?]
        }
        None => Communicator::init_all(&device, 4)?,
    };

    // Each rank has a buffer of device memory and a stream, its queue of work.
    let mut calls = Vec::new();
    for comm in &ranks {
        let stream = device.stream()?;
        let buffer = device.upload(&vec![comm.rank() as f32 + 1.0; 1 << 20])?;
        // In place, and at once: the stream does the work while we go on.
        comm.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream)?;
        calls.push((comm, buffer, stream));
    }

    // Reading a buffer waits for its stream.
    for (comm, buffer, stream) in &calls {
        let sum = buffer.to_vec(stream)?;
        let n = comm.world_size();
        assert!(sum.iter().all(|&x| x == (n * (n + 1) / 2) as f32));
        println!("rank {} of {n}: 1 + ... + {n} = {}", comm.rank(), sum[0]);
    }
    Ok(())
}
