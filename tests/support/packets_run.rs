//! The kernel of `packets.rs` on ranks of any devices, with all that comes out compared.

use ferroccl::device::kernels::UserKernel;
use ferroccl::{CommConfig, Communicator, Device, DeviceCommConfig, Grid};

use crate::packets::{Exchange, given, window_bytes};

/// Runs rounds so many times in a row, in as many blocks of as many elements. An error, or what is wrong.
pub(crate) fn run(
    devices: &[Device],
    kernel: &UserKernel<Exchange>,
    (blocks, count, rounds): (u32, usize, usize),
    (launches, places): (u64, usize),
    config: &CommConfig,
) -> Result<(), String> {
    let words = |e: ferroccl::Error| e.to_string();
    let n = devices.len();
    let ranks = Communicator::init_all_on(devices, config).map_err(words)?;
    let streams: Vec<_> = devices.iter().map(|device| device.stream().unwrap()).collect();
    let bytes = window_bytes(blocks as usize, places, n, count);
    let all = |len: usize| -> Vec<_> {
        let zeros = |(device, stream): (&Device, &ferroccl::Stream)| {
            let buffer = device.alloc_shared::<u32>(len.max(4)).unwrap();
            buffer.copy_from(&vec![0; len.max(4)], stream).unwrap();
            stream.synchronize().unwrap();
            buffer
        };
        devices.iter().zip(&streams).map(zeros).collect()
    };
    let (packets, own) = (all(bytes / 4), all(blocks as usize * count));
    let results = all(blocks as usize * rounds * n * count);
    let windows = Communicator::register_windows(ranks.iter().zip(&packets)).map_err(words)?;
    let comms = Communicator::device_comms(&ranks, &DeviceCommConfig::default()).map_err(words)?;
    for launch in 0..launches {
        for (r, comm) in comms.iter().enumerate() {
            let argument = Exchange {
                comm: comm.value(),
                window: windows[r].value().unwrap(),
                given: own[r].address(),
                results: results[r].address(),
                count: count as u64,
                rounds: rounds as u64,
                flag: launch * rounds as u64,
                places: places as u64,
            };
            let grid = Grid { blocks, threads: 64 };
            // SAFETY: the buffers have what the kernel reads and writes, and outlive the streams' work.
            unsafe { comm.launch(kernel, grid, &argument, &streams[r]) }.map_err(words)?;
        }
        for (r, stream) in streams.iter().enumerate() {
            let got = results[r].to_vec(stream).map_err(|e| format!("rank {r}: {e}"))?;
            let mut at = 0;
            for block in 0..blocks.into() {
                for round in 0..rounds as u64 {
                    for sender in 0..n {
                        for i in 0..count as u64 {
                            let wanted = given(sender as u64, block, round, i);
                            if sender != r && got[at] != wanted {
                                return Err(format!(
                                    "rank {r}, block {block}, round {round}, element {i} of rank {sender}: {}, not {wanted}",
                                    got[at]
                                ));
                            }
                            at += 1;
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// What becomes of the first rank's kernel when no other rank runs it.
pub(crate) fn alone(
    devices: &[Device],
    kernel: &UserKernel<Exchange>,
    config: &CommConfig,
) -> String {
    let ranks = Communicator::init_all_on(devices, config).unwrap();
    let comms = Communicator::device_comms(&ranks, &DeviceCommConfig::default()).unwrap();
    let buffers: Vec<_> =
        devices.iter().map(|device| device.upload(&[0u32; 64]).unwrap()).collect();
    let shared: Vec<_> =
        devices.iter().map(|device| device.alloc_shared::<u32>(256).unwrap()).collect();
    let stream = devices[0].stream().unwrap();
    shared[0].copy_from(&[0; 256], &stream).unwrap();
    let windows = Communicator::register_windows(ranks.iter().zip(&shared)).unwrap();
    let argument = Exchange {
        comm: comms[0].value(),
        window: windows[0].value().unwrap(),
        given: buffers[0].address(),
        results: buffers[0].slice(16..).address(),
        count: 4,
        rounds: 1,
        flag: 0,
        places: 2,
    };
    // SAFETY: the buffers have what the kernel reads and writes, and outlive the stream's work.
    unsafe { comms[0].launch(kernel, Grid { blocks: 1, threads: 32 }, &argument, &stream) }
        .unwrap();
    stream.synchronize().unwrap_err().to_string()
}
