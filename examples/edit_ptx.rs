//! A kernel's PTX, edited and run: here the store that publishes the data of a step loses its release.
//!
//! ```text
//! cargo run --example edit_ptx             what the emulator says of it
//! cargo run --example edit_ptx -- sound    the kernel as it is
//! ```

use std::sync::Arc;

use ferroccl::runtime::ptx::{DEFAULT_ARCH, PtxRuntime, source};
use ferroccl::{Algorithm, CommConfig, Communicator, Device, ProtocolId, ReduceOp, Result};

fn main() -> Result<()> {
    let kernel = "all_reduce_ring_simple_sum_float";
    let mut text = source(kernel, DEFAULT_ARCH)?;
    if std::env::args().nth(1).as_deref() != Some("sound") {
        // The first release after the barrier that ends a verb.
        let barrier = text.find("bar.sync").unwrap_or(0);
        let edited = text[barrier..].replacen("st.release.sys", "st.relaxed.sys", 1);
        text.replace_range(barrier.., &edited);
    }

    // All checks; what is left open, the seed decides.
    let runtime = PtxRuntime::seeded(1).with_source(kernel, &text)?;
    let device = Device::new(Arc::new(runtime));
    let mut config = CommConfig::default();
    config.protocol = Some(ProtocolId::Simple);
    config.algorithm = Some(Algorithm::Ring);
    let ranks = Communicator::init_all_with(&device, 2, &config)?;

    // In one schedule all that is to meet is launched before anything is waited for.
    let streams = [device.stream()?, device.stream()?];
    let buffers = [device.upload(&[1.0f32; 1000])?, device.upload(&[2.0f32; 1000])?];
    for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
        rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream)?;
    }
    match buffers[0].to_vec(&streams[0]) {
        Ok(sum) => println!("1 + 2 = {}, {} times", sum[0], sum.len()),
        Err(error) => println!("{error}"),
    }
    Ok(())
}
