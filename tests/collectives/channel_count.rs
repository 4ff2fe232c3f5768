//! Small calls use few channels, large ones many: the calls of a channel are numbered with gaps.

use std::time::Duration;

use ferroccl::{CommConfig, Communicator, Device, ReduceOp, Result};

#[test]
fn the_number_of_channels_may_change_from_call_to_call() -> Result<()> {
    const RANKS: u32 = 3;
    let device = Device::cpu();
    let mut config = CommConfig::default();
    config.min_channels = Some(4);
    config.timeout = Some(Duration::from_secs(20));
    let ranks = Communicator::init_all_with(&device, RANKS, &config)?;
    let streams = ranks.iter().map(|_| device.stream()).collect::<Result<Vec<_>>>()?;
    // More small calls between large ones than an edge holds signatures of calls, and fewer.
    for small in [0, 1, 3, 4, 5, 9, 40] {
        for count in std::iter::repeat_n(2, small).chain([1 << 18]) {
            let buffers = ranks
                .iter()
                .map(|rank| device.upload(&vec![rank.rank() as f32 + 1.0; count]))
                .collect::<Result<Vec<_>>>()?;
            for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
                rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream)?;
            }
            for (buffer, stream) in buffers.iter().zip(&streams) {
                assert!(buffer.to_vec(stream)?.iter().all(|&x| x == 6.0), "{count} after {small}");
            }
        }
    }
    Ok(())
}
