//! Calls on registered buffers under every check of the emulator, and bugs in their kernels: each must be caught by a handful of seeds,
//! which the kernel as it is passes.

use std::sync::Arc;

use ferroccl::runtime::ptx::{DEFAULT_ARCH, Options, PtxRuntime, Unit, checks, source};
use ferroccl::{Algorithm, CommConfig, Communicator, Device, Error, ReduceOp, ptx};

use crate::bugs::{alone, gone, nth};
use crate::random::Random;

/// Three times as many as the bug that hides best needs.
const SEEDS: u64 = 60;
/// What works on windows, and its kernel.
type Way = (Algorithm, &'static str);
const DIRECT: Way = (Algorithm::Direct, "all_reduce_direct_simple_sum_float");
const NVLS: Way = (Algorithm::Nvls, "all_reduce_nvls_simple_sum_float");
const EXCHANGE: &str = "all_to_all_direct_simple";

/// A device that runs `text` for a kernel, under every check.
fn runtime(kernel: &str, seed: u64, text: &str) -> PtxRuntime {
    let options = Options {
        checks: Some(checks(Unit::Eight)),
        most_steps: 20_000_000,
        ..Options::seeded(seed)
    };
    let runtime = PtxRuntime::lockstep(options).with_threads(64).unwrap();
    runtime.with_source(kernel, text).unwrap()
}

/// Small buffers, one channel or two.
fn config(algorithm: Algorithm, random: &mut Random) -> CommConfig {
    let mut config = CommConfig::default();
    config.algorithm = Some(algorithm);
    config.slots = Some(2);
    config.buffer_bytes = [Some(4096); 3];
    config.channels = Some(1 + random.below(2) as u32);
    config
}

fn words(error: Error) -> String {
    error.to_string()
}

/// Calls in a row on the same buffers: sums are direct, and of the largest value a ring has a kernel. With `text` for the
/// direct kernel.
fn run((algorithm, kernel): Way, seed: u64, text: &str) -> Result<(), String> {
    let random = &mut Random(seed);
    let device = Device::new(Arc::new(runtime(kernel, seed, text)));
    let config = config(algorithm, random);
    let n = 2 + random.below(3);
    const LEN: usize = 1200;
    let ranks = Communicator::init_all_with(&device, n as u32, &config).map_err(words)?;
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    let mut content: Vec<Vec<f32>> =
        (0..n).map(|_| (0..LEN).map(|_| random.below(1000) as f32).collect()).collect();
    let buffers: Vec<_> = content.iter().map(|content| device.upload(content).unwrap()).collect();
    let _windows = Communicator::register_windows(ranks.iter().zip(&buffers)).map_err(words)?;
    for call in 0..4 {
        let at = random.below(9);
        let part = at..at + random.below(LEN - at);
        let op = if call % 2 == 0 { ReduceOp::Max } else { ReduceOp::Sum };
        for r in 0..n {
            let buffer = buffers[r].slice(part.clone());
            ranks[r].all_reduce(&buffer, &buffer, op, &streams[r]).map_err(words)?;
        }
        let combine = |i: usize| {
            let values = content.iter().map(|content| content[i]);
            if op == ReduceOp::Max { values.fold(0.0, f32::max) } else { values.sum() }
        };
        let result: Vec<f32> = part.clone().map(combine).collect();
        content.iter_mut().for_each(|content| content[part.clone()].copy_from_slice(&result));
    }
    for r in 0..n {
        let got = buffers[r].to_vec(&streams[r]).map_err(words)?;
        if got != content[r] {
            return Err(format!("rank {r} has another result"));
        }
    }
    Ok(())
}

/// All-to-alls of bytes at any place, from and to the same buffers, with `text` for their kernel; and broadcasts, by which each rank
/// writes its own.
fn exchange(seed: u64, text: &str) -> Result<(), String> {
    let random = &mut Random(seed);
    let device = Device::new(Arc::new(runtime(EXCHANGE, seed, text)));
    let n = 2 + random.below(3);
    let ranks = Communicator::init_all_with(&device, n as u32, &config(Algorithm::Direct, random))
        .map_err(words)?;
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    const LEN: usize = 5000;
    let mut content: Vec<[Vec<u8>; 2]> = (0..n)
        .map(|_| [0, 1].map(|_| (0..LEN).map(|_| random.below(256) as u8).collect()))
        .collect();
    let mut windows = Vec::new();
    let buffers = [0, 1].map(|which| {
        let upload = |content: &[Vec<u8>; 2]| device.upload(&content[which]).unwrap();
        let buffers: Vec<_> = content.iter().map(upload).collect();
        windows.push(Communicator::register_windows(ranks.iter().zip(&buffers)).unwrap());
        buffers
    });
    for _ in 0..6 {
        let from = random.below(2);
        let to = 1 - from;
        if random.chance(40) {
            let root = random.below(n);
            for r in 0..n {
                let (send, recv) = (&buffers[from][r], &buffers[to][r]);
                ranks[r].broadcast(send, recv, root as u32, &streams[r]).map_err(words)?;
            }
            let sent = content[root][from].clone();
            content.iter_mut().for_each(|content| content[to].clone_from(&sent));
            continue;
        }
        let step = [1, 2, 4, 8, 16][random.below(5)];
        let at = [0, 0].map(|_| random.below(3) * step);
        let count = random.below((LEN - 40) / n / step) * step;
        let before = content.clone();
        for r in 0..n {
            let part = |which: usize, at: usize| buffers[which][r].slice(at..at + n * count);
            ranks[r]
                .all_to_all(&part(from, at[0]), &part(to, at[1]), &streams[r])
                .map_err(words)?;
            for (peer, before) in before.iter().enumerate() {
                let block = &before[from][at[0] + r * count..][..count];
                content[r][to][at[1] + peer * count..][..count].copy_from_slice(block);
            }
        }
    }
    for r in 0..n {
        for which in [0, 1] {
            if buffers[which][r].to_vec(&streams[r]).map_err(words)? != content[r][which] {
                return Err(format!("rank {r} has another result in buffer {which}"));
            }
        }
    }
    Ok(())
}

fn original(kernel: &str) -> Option<String> {
    if let Some(why) = ptx::unavailable() {
        crate::skip::skip(why);
        return None;
    }
    Some(source(kernel, DEFAULT_ARCH).unwrap())
}

fn passes_every_check(kernel: &str, run: impl Fn(u64, &str) -> Result<(), String>) {
    let Some(text) = original(kernel) else { return };
    for seed in crate::tier::named_or(0..SEEDS) {
        assert_eq!(run(seed, &text), Ok(()), "seed {seed}");
    }
}

#[test]
fn direct_calls_pass_every_check() {
    passes_every_check(DIRECT.1, |seed, text| run(DIRECT, seed, text));
}

#[test]
fn nvls_calls_pass_every_check() {
    passes_every_check(NVLS.1, |seed, text| run(NVLS, seed, text));
}

#[test]
fn all_to_alls_pass_every_check() {
    passes_every_check(EXCHANGE, exchange);
}

#[test]
fn bugs_in_direct_kernels_are_caught() {
    bugs_are_caught(DIRECT.1, |seed, text| run(DIRECT, seed, text));
}

#[test]
fn bugs_in_nvls_kernels_are_caught() {
    bugs_are_caught(NVLS.1, |seed, text| run(NVLS, seed, text));
}

#[test]
fn bugs_in_all_to_alls_are_caught() {
    bugs_are_caught(EXCHANGE, exchange);
}

fn bugs_are_caught(kernel: &str, run: impl Fn(u64, &str) -> Result<(), String>) {
    let Some(text) = original(kernel) else { return };
    let is_caught = |bug: &str, changed: String| {
        assert_ne!(changed, text, "{bug}: nothing to change");
        let caught =
            (0..SEEDS).find_map(|seed| run(seed, &changed).err().map(|wrong| (seed, wrong)));
        println!("{bug}: {caught:?}");
        assert!(caught.is_some(), "{bug}: no seed below {SEEDS} catches it");
    };
    is_caught("a call begins without a fence", nth(&text, "fence.acq_rel", 0, gone));
    is_caught("acquires are relaxed", text.replace("ld.acquire.sys", "ld.relaxed.sys"));
    let (last, _) = text.match_indices("\tbar.red").nth(1).expect("a barrier before the end");
    let relaxed = |store: &str| store.replace("release", "relaxed");
    let ended = format!("{}{}", &text[..last], nth(&text[last..], "st.release", 0, relaxed));
    is_caught("the end is told by a relaxed store", ended);
    is_caught("the end is told to this GPU", text.replace("st.release.sys", "st.release.gpu"));
    is_caught("no barrier at the beginning", nth(&text, "bar.red", 0, alone));
    is_caught("no barrier before the end is told", nth(&text, "bar.red", 1, alone));
    is_caught("no barrier when the call is closed", nth(&text, "bar.red", 2, alone));
}
