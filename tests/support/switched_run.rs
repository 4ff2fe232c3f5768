//! The kernel of `switched.rs` on ranks of any devices, with all that comes out compared.

use ferroccl::device::kernels::UserKernel;
use ferroccl::{CommConfig, Communicator, Device, DeviceCommConfig, Grid};

use crate::switched::{Switched, expected, part, results_of};

/// Runs rounds in as many blocks of as many elements, from a place in their parts, on windows with multicast objects if they are `wanted`.
/// An error, or what is wrong.
pub(crate) fn run(
    devices: &[Device],
    kernel: &UserKernel<Switched>,
    (blocks, count, rounds): (u32, usize, usize),
    (shift, wanted): (usize, bool),
) -> Result<(), String> {
    let words = |e: ferroccl::Error| e.to_string();
    let ranks = Communicator::init_all_on(devices, &CommConfig::default()).map_err(words)?;
    let n = ranks.len();
    let mut config = DeviceCommConfig::default();
    config.barriers = blocks;
    let comms = Communicator::device_comms(&ranks, &config).map_err(words)?;
    let streams: Vec<_> = devices.iter().map(|device| device.stream().unwrap()).collect();
    let width = part(count as u64) as usize * blocks as usize;
    let alloc = |len: usize| -> Vec<_> {
        devices.iter().map(|device| device.alloc_shared::<f32>(len.max(1)).unwrap()).collect()
    };
    let buffers = [alloc(width), alloc(width), alloc(width * n)];
    let windows = buffers
        .each_ref()
        .map(|buffers| Communicator::register_windows(ranks.iter().zip(buffers)).unwrap());
    if let Some(window) = windows.iter().flatten().find(|w| wanted && !w.is_multicast()) {
        return Err(format!("multicast: {:?}", window.why_not_multicast()));
    }
    let each = results_of(n as u64, count as u64) as usize;
    let results = alloc(each * rounds * blocks as usize);
    for (r, comm) in comms.iter().enumerate() {
        let argument = Switched {
            comm: comm.value(),
            windows: windows.each_ref().map(|of| of[r].value().unwrap()),
            results: results[r].address(),
            count: count as u64,
            rounds: rounds as u64,
            shift: shift as u64,
            wanted: wanted.into(),
        };
        let grid = Grid { blocks, threads: 64 };
        // SAFETY: the buffers have what the kernel reads and writes, and outlive the streams' work.
        unsafe { comm.launch(kernel, grid, &argument, &streams[r]) }.map_err(words)?;
    }
    for (r, stream) in streams.iter().enumerate() {
        let got = results[r].to_vec(stream).map_err(|e| format!("rank {r}: {e}"))?;
        for (number, got) in got.chunks(each.max(1)).enumerate().take(blocks as usize * rounds) {
            let place = ((number / rounds) as u64, (number % rounds) as u64);
            let wanted = expected(n as u64, place, count as u64);
            if let Some(i) = (0..wanted.len()).find(|i| got[*i] != wanted[*i]) {
                let (got, wanted) = (got[i], wanted[i]);
                return Err(format!(
                    "rank {r}, block and round {place:?}, result {i}: {got}, not {wanted}"
                ));
            }
        }
    }
    Ok(())
}
