//! The kernel of `pipes.rs` on ranks of any devices, with all that comes out compared.

use ferroccl::device::kernels::UserKernel;
use ferroccl::{CommConfig, Communicator, Device, DeviceChannels, DeviceCommConfig, Grid};

use crate::pipes::{Pipes, given, results_of};

/// What is left of a round on a rank.
fn expected(
    (rank, ranks): (u64, u64),
    (block, round): (u64, u64),
    count: u64,
    all: bool,
) -> Vec<Option<u32>> {
    let mut wanted = Vec::new();
    let sum = |i| (0..ranks).fold(0u32, |sum, r| sum.wrapping_add(given(r, block, round, i)));
    wanted.extend((0..ranks * count).map(|i| Some(sum(i))));
    let largest = |i| (0..ranks).map(|r| given(r, block, round, i)).max();
    // Only the end of the pipeline, whose rank the ring says, has it.
    wanted.extend((0..count).map(|i| largest(i).filter(|_| ranks == 1)));
    for from in 0..ranks {
        let there = all && from != rank;
        wanted.extend((0..count).map(|i| there.then(|| given(from, block, round, i))));
    }
    let at_once = all && rank == 0 && (2..=4).contains(&ranks);
    wanted.extend((0..count).map(|i| at_once.then(|| sum(i))));
    wanted
}

/// Runs rounds so many times in a row, in as many blocks of as many elements: the steps of a connection go on from kernel to kernel. An
/// error, or what is wrong.
pub(crate) fn run(
    devices: &[Device],
    kernel: &UserKernel<Pipes>,
    (blocks, count, rounds): (u32, usize, usize),
    (channels, all, launches): (DeviceChannels, bool, u64),
) -> Result<(), String> {
    let words = |e: ferroccl::Error| e.to_string();
    let ranks = Communicator::init_all_on(devices, &CommConfig::default()).map_err(words)?;
    let n = ranks.len() as u64;
    let mut config = DeviceCommConfig::default();
    config.channels = channels;
    let comms = Communicator::device_comms(&ranks, &config).map_err(words)?;
    let streams: Vec<_> = devices.iter().map(|device| device.stream().unwrap()).collect();
    let each = results_of(n, count as u64) as usize * rounds;
    let buffer = |of: usize| {
        let zeros = vec![0u32; of.max(1)];
        devices.iter().map(|device| device.upload(&zeros).unwrap()).collect::<Vec<_>>()
    };
    let own = buffer(blocks as usize * n as usize * count);
    let results = buffer(blocks as usize * each);
    for launch in 0..launches {
        let first = launch * rounds as u64;
        for (r, comm) in comms.iter().enumerate() {
            let argument = Pipes {
                comm: comm.value(),
                given: own[r].address(),
                results: results[r].address(),
                count: count as u64,
                rounds: rounds as u64,
                first,
                all: all.into(),
            };
            let grid = Grid { blocks, threads: 64 };
            // SAFETY: the buffers have what the kernel reads and writes, and outlive the streams' work.
            unsafe { comm.launch(kernel, grid, &argument, &streams[r]) }.map_err(words)?;
        }
        for (r, stream) in streams.iter().enumerate() {
            let got = results[r].to_vec(stream).map_err(|e| format!("rank {r}: {e}"))?;
            for (block, got) in (0..).zip(got.chunks(each.max(1))).take(blocks as usize) {
                for (round, got) in (first..).zip(got.chunks((each / rounds).max(1))).take(rounds) {
                    let wanted = expected((r as u64, n), (block, round), count as u64, all);
                    for (i, (got, wanted)) in got.iter().zip(wanted).enumerate() {
                        if let Some(wanted) = wanted.filter(|wanted| got != wanted) {
                            return Err(format!(
                                "rank {r}, block {block}, round {round}, result {i}: {got}, not {wanted}"
                            ));
                        }
                    }
                }
            }
        }
        if n > 1 {
            largest(&results, &streams, (n, blocks, rounds), (first, count))?;
        }
    }
    Ok(())
}

/// One rank has the largest of each block and round: the end of the ring.
fn largest(
    results: &[ferroccl::DeviceBuffer<u32>],
    streams: &[ferroccl::Stream],
    (n, blocks, rounds): (u64, u32, usize),
    (first, count): (u64, usize),
) -> Result<(), String> {
    let each = results_of(n, count as u64) as usize;
    let all: Vec<Vec<u32>> =
        results.iter().zip(streams).map(|(r, s)| r.to_vec(s).unwrap()).collect();
    for block in 0..blocks as usize {
        for round in 0..rounds {
            let start = (block * rounds + round) * each + n as usize * count;
            let place = (block as u64, first + round as u64);
            let wanted: Vec<u32> = (0..count as u64)
                .map(|i| (0..n).map(|r| given(r, place.0, place.1, i)).max().unwrap())
                .collect();
            if !all.iter().any(|of| of[start..start + count] == wanted) {
                return Err(format!("no rank has the largest of block {block}, round {}", place.1));
            }
        }
    }
    Ok(())
}
