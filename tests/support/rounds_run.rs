//! The kernel of `rounds.rs` on ranks of any devices, with all that comes out compared.

use ferroccl::device::kernels::UserKernel;
use ferroccl::{CommConfig, Communicator, Device, DeviceCommConfig, Grid, Result};

use crate::rounds::{Rounds, expected};

/// Runs rounds so many times in a row, in as many blocks of as many elements: what barriers and signals count goes on from kernel to
/// kernel. An error, or what is wrong.
pub(crate) fn run(
    devices: &[Device],
    kernel: &UserKernel<Rounds>,
    (blocks, count, rounds): (u32, usize, usize),
    launches: usize,
) -> std::result::Result<(), String> {
    let words = |e: ferroccl::Error| e.to_string();
    let ranks = Communicator::init_all_on(devices, &CommConfig::default()).map_err(words)?;
    let streams: Vec<_> = devices.iter().map(|device| device.stream().unwrap()).collect();
    let len = count * blocks as usize;
    let alloc = |len: usize| {
        devices.iter().map(|device| device.alloc_shared::<u64>(len)).collect::<Result<Vec<_>>>()
    };
    let buffers = [0; 3].map(|_| alloc(len).unwrap());
    let register = |buffers| Communicator::register_windows(ranks.iter().zip(buffers)).unwrap();
    let windows = buffers.each_ref().map(register);
    let results = alloc(3 * len * rounds).map_err(words)?;
    let mut config = DeviceCommConfig::default();
    (config.barriers, config.signals) = (blocks, 2 * blocks);
    let comms = Communicator::device_comms(&ranks, &config).map_err(words)?;
    for _ in 0..launches {
        for (r, comm) in comms.iter().enumerate() {
            let argument = Rounds {
                comm: comm.value(),
                windows: windows.each_ref().map(|of| of[r].value().unwrap()),
                results: results[r].address(),
                count: count as u64,
                rounds: rounds as u64,
            };
            let grid = Grid { blocks, threads: 64 };
            // SAFETY: the buffers have what the kernel reads and writes, and outlive the streams' work.
            unsafe { comm.launch(kernel, grid, &argument, &streams[r]) }.map_err(words)?;
        }
        for (r, stream) in streams.iter().enumerate() {
            let got = results[r].to_vec(stream).map_err(|e| format!("rank {r}: {e}"))?;
            let size = (blocks.into(), count as u64, rounds as u64);
            let wanted = expected(r as u64, ranks.len() as u64, size);
            if let Some(i) = (0..got.len()).find(|i| got[*i] != wanted[*i]) {
                return Err(format!("rank {r}, result {i}: {}, not {}", got[i], wanted[i]));
            }
        }
    }
    Ok(())
}
