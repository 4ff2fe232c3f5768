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

/// Calls in a row on the same buffers: sums are direct, and of the largest value a ring has a kernel. With `text` for the
/// direct kernel.
fn run((algorithm, kernel): Way, seed: u64, text: &str) -> Result<(), String> {
    let random = &mut Random(seed);
    let options = Options {
        checks: Some(checks(Unit::Eight)),
        most_steps: 20_000_000,
        ..Options::seeded(seed)
    };
    let runtime = PtxRuntime::lockstep(options).with_threads(64).unwrap();
    let runtime = runtime.with_source(kernel, text).unwrap();
    let device = Device::new(Arc::new(runtime));
    let mut config = CommConfig::default();
    config.algorithm = Some(algorithm);
    config.slots = Some(2);
    config.buffer_bytes = [Some(4096); 3];
    config.channels = Some(1 + random.below(2) as u32);
    let n = 2 + random.below(3);
    const LEN: usize = 1200;
    let text = |e: Error| e.to_string();
    let ranks = Communicator::init_all_with(&device, n as u32, &config).map_err(text)?;
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    let mut content: Vec<Vec<f32>> =
        (0..n).map(|_| (0..LEN).map(|_| random.below(1000) as f32).collect()).collect();
    let buffers: Vec<_> = content.iter().map(|content| device.upload(content).unwrap()).collect();
    let _windows = Communicator::register_windows(ranks.iter().zip(&buffers)).map_err(text)?;
    for call in 0..4 {
        let at = random.below(9);
        let part = at..at + random.below(LEN - at);
        let op = if call % 2 == 0 { ReduceOp::Max } else { ReduceOp::Sum };
        for r in 0..n {
            let buffer = buffers[r].slice(part.clone());
            ranks[r].all_reduce(&buffer, &buffer, op, &streams[r]).map_err(text)?;
        }
        let combine = |i: usize| {
            let values = content.iter().map(|content| content[i]);
            if op == ReduceOp::Max { values.fold(0.0, f32::max) } else { values.sum() }
        };
        let result: Vec<f32> = part.clone().map(combine).collect();
        content.iter_mut().for_each(|content| content[part.clone()].copy_from_slice(&result));
    }
    for r in 0..n {
        let got = buffers[r].to_vec(&streams[r]).map_err(text)?;
        if got != content[r] {
            return Err(format!("rank {r} has another result"));
        }
    }
    Ok(())
}

fn original((_, kernel): Way) -> Option<String> {
    if let Some(why) = ptx::unavailable() {
        crate::skip::skip(why);
        return None;
    }
    Some(source(kernel, DEFAULT_ARCH).unwrap())
}

fn passes_every_check(way: Way) {
    let Some(text) = original(way) else { return };
    let seeds = match std::env::var("FERROCCL_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..SEEDS,
    };
    for seed in seeds {
        assert_eq!(run(way, seed, &text), Ok(()), "seed {seed}");
    }
}

#[test]
fn direct_calls_pass_every_check() {
    passes_every_check(DIRECT);
}

#[test]
fn nvls_calls_pass_every_check() {
    passes_every_check(NVLS);
}

#[test]
fn bugs_in_direct_kernels_are_caught() {
    bugs_are_caught(DIRECT);
}

#[test]
fn bugs_in_nvls_kernels_are_caught() {
    bugs_are_caught(NVLS);
}

fn bugs_are_caught(way: Way) {
    let Some(text) = original(way) else { return };
    let is_caught = |bug: &str, changed: String| {
        assert_ne!(changed, text, "{bug}: nothing to change");
        let caught =
            (0..SEEDS).find_map(|seed| run(way, seed, &changed).err().map(|wrong| (seed, wrong)));
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
