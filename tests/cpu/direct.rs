//! Calls on registered buffers under a scheduler and a memory that are as unhelpful as the rules allow. A rank reads and writes the
//! buffers of all others, so what orders calls is a barrier at the beginning and one at the end. Each run has calls in a row on the
//! same buffers, direct ones and others, of all sizes: what one writes the next one reads, on another rank.
//!
//! A failing seed is printed; `FERROCCL_SEED=n` runs that one alone.

use std::sync::Arc;

use ferroccl::device::orders::{self, Published, Side};
use ferroccl::runtime::cpu::{Adversity, CpuRuntime};
use ferroccl::{Algorithm, CommConfig, Communicator, Device, ProtocolId, ReduceOp};

use crate::random::Random;
use crate::tier;

const SEEDS: u64 = 600;

/// Elements of a buffer.
const LEN: usize = 300;

/// What works on windows.
const ALGORITHMS: [Algorithm; 2] = [Algorithm::Direct, Algorithm::Nvls];

/// Several calls in a row, of small integers, whose sums are exact in any order.
fn run(algorithm: Algorithm, seed: u64, weaken: Option<(Published, Side)>) -> Result<(), String> {
    let mut random = Random(seed);
    let adversity = Adversity { races: true, weaken, ..Adversity::new(seed) };
    let runtime = Arc::new(CpuRuntime::seeded(adversity));
    let device = Device::new(runtime.clone());
    let mut config = CommConfig::default();
    config.algorithm = Some(algorithm);
    config.protocol = Some(ProtocolId::Simple);
    config.slots = Some(2);
    config.buffer_bytes = [Some(512); 3];
    config.channels = Some(1 + random.below(2) as u32);
    let n = 2 + random.below(4);
    let ranks =
        Communicator::init_all_with(&device, n as u32, &config).map_err(|e| e.to_string())?;
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    // Buffers 0 and 1 of each rank, and what is in them.
    let mut content: Vec<[Vec<f32>; 2]> = (0..n)
        .map(|_| [0, 1].map(|_| (0..LEN).map(|_| random.below(100) as f32).collect()))
        .collect();
    let mut windows = Vec::new();
    let buffers = [0, 1].map(|which| {
        let upload = |content: &[Vec<f32>; 2]| device.upload(&content[which]).unwrap();
        let buffers: Vec<_> = content.iter().map(upload).collect();
        windows.push(Communicator::register_windows(ranks.iter().zip(&buffers)).unwrap());
        buffers
    });
    for _ in 0..5 {
        let (from, to) = (random.below(2), random.below(2));
        let before = content.clone();
        let at = random.below(4) * 8;
        match random.below(5) {
            0 => {
                let count = [0, 1, random.below(40), random.below(LEN - at)][random.below(4)];
                for r in 0..n {
                    let part = |which: usize| buffers[which][r].slice(at..at + count);
                    let (send, recv) = (part(from), part(to));
                    ranks[r]
                        .all_reduce(&send, &recv, ReduceOp::Sum, &streams[r])
                        .map_err(|e| e.to_string())?;
                    for i in at..at + count {
                        content[r][to][i] = before.iter().map(|c| c[from][i]).sum();
                    }
                }
            }
            1 => {
                let count = random.below((LEN - at) / n);
                for r in 0..n {
                    let all = buffers[to][r].slice(at..at + n * count);
                    let own = at + r * count..at + (r + 1) * count;
                    let send = if from == to { own.clone() } else { at..at + count };
                    let send = buffers[from][r].slice(send);
                    ranks[r].all_gather(&send, &all, &streams[r]).map_err(|e| e.to_string())?;
                    for (peer, before) in before.iter().enumerate() {
                        let start = if from == to { at + peer * count } else { at };
                        let block = at + peer * count;
                        content[r][to][block..block + count]
                            .copy_from_slice(&before[from][start..start + count]);
                    }
                }
            }
            2 => {
                let count = random.below((LEN - at) / n);
                for r in 0..n {
                    let all = buffers[from][r].slice(at..at + n * count);
                    let own = at + r * count..at + (r + 1) * count;
                    let recv = if from == to { own.clone() } else { at..at + count };
                    let start = recv.start;
                    let recv = buffers[to][r].slice(recv);
                    ranks[r]
                        .reduce_scatter(&all, &recv, ReduceOp::Sum, &streams[r])
                        .map_err(|e| e.to_string())?;
                    for i in 0..count {
                        content[r][to][start + i] =
                            before.iter().map(|c| c[from][own.start + i]).sum();
                    }
                }
            }
            // Not in place, and always direct: a switch is of no use to it.
            3 => {
                let (from, to) = (from, 1 - from);
                let count = random.below((LEN - at) / n);
                for r in 0..n {
                    let part = |which: usize| buffers[which][r].slice(at..at + n * count);
                    ranks[r]
                        .all_to_all(&part(from), &part(to), &streams[r])
                        .map_err(|e| e.to_string())?;
                    for (peer, before) in before.iter().enumerate() {
                        let (block, own) = (at + peer * count, at + r * count);
                        content[r][to][block..block + count]
                            .copy_from_slice(&before[from][own..own + count]);
                    }
                }
            }
            // Not direct: around the ring, into this rank's buffer.
            _ => {
                let root = random.below(n);
                for r in 0..n {
                    let (send, recv) = (&buffers[from][r], &buffers[to][r]);
                    ranks[r]
                        .broadcast(send, recv, root as u32, &streams[r])
                        .map_err(|e| e.to_string())?;
                    content[r][to] = before[root][from].clone();
                }
            }
        }
    }
    for (r, content) in content.iter().enumerate() {
        for (which, content) in content.iter().enumerate() {
            let got =
                buffers[which][r].to_vec(&streams[r]).map_err(|e| format!("rank {r}: {e}"))?;
            if let Some(i) = (0..LEN).find(|i| got[*i] != content[*i]) {
                let (got, want) = (got[i], content[i]);
                return Err(format!("rank {r}, buffer {which}, element {i}: {got}, not {want}"));
            }
        }
    }
    runtime.race().map_or(Ok(()), Err)
}

#[test]
fn calls_on_windows_survive() {
    for seed in tier::survived(SEEDS) {
        for algorithm in ALGORITHMS {
            assert_eq!(run(algorithm, seed, None), Ok(()), "{algorithm}, seed {seed}");
        }
    }
}

#[test]
fn weakened_barriers_are_caught() {
    let words = [orders::BEGUN, orders::ENDED].map(|w| [(w, Side::Release), (w, Side::Acquire)]);
    for algorithm in ALGORITHMS {
        for weaken in words.into_iter().flatten() {
            let what = format!("{algorithm} {} {:?}", weaken.0.name(), weaken.1);
            let run = |seed| run(algorithm, seed, Some(weaken)).err();
            let caught = (0..SEEDS).find_map(|seed| Some((seed, run(seed)?)));
            println!("{what}: {caught:?}");
            assert!(caught.is_some(), "no seed below {SEEDS} notices {what}");
        }
    }
}
