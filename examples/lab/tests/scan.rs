//! The scan: on the CPU, under adversaries, over a network, and as PTX in the emulator.

use std::sync::Arc;

use ferroccl::conformance::seeds;
use ferroccl::runtime::cpu::{Adversity, CpuRuntime};
use ferroccl::runtime::ptx::{Options, PtxRuntime, Unit, checks};
use ferroccl::{CommConfig, Communicator, Device};
use ferroccl_lab::scan::scan;
use ferroccl_lab::{PTX, registry};

/// Scans of several lengths on a device, all of whose elements are checked.
fn is_right(device: &Device, n: u32, config: &CommConfig) -> Result<(), String> {
    let ranks = Communicator::init_all_with(device, n, config).map_err(|e| e.to_string())?;
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    for count in [1, 7, 130, 600] {
        let value = |r: usize, i: usize| ((i + 3 * r) % 16) as f32;
        let input = |r: usize| (0..count).map(|i| value(r, i)).collect::<Vec<_>>();
        let sends: Vec<_> = (0..ranks.len()).map(|r| device.upload(&input(r)).unwrap()).collect();
        let recvs: Vec<_> = ranks.iter().map(|_| device.alloc(count).unwrap()).collect();
        for (r, (rank, stream)) in ranks.iter().zip(&streams).enumerate() {
            scan(rank, &sends[r], &recvs[r], stream).map_err(|e| e.to_string())?;
        }
        for (r, stream) in streams.iter().enumerate() {
            let got = recvs[r].to_vec(stream).map_err(|e| format!("rank {r}: {e}"))?;
            for (i, got) in got.into_iter().enumerate() {
                let want: f32 = (0..=r).map(|rank| value(rank, i)).sum();
                if got != want {
                    return Err(format!(
                        "rank {r} of {n}, element {i} of {count}: {got}, not {want}"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Few small slots.
fn config() -> CommConfig {
    let mut config = CommConfig::default();
    config.registry = registry();
    (config.slots, config.buffer_bytes) = (Some(2), [Some(2048); 3]);
    config
}

#[test]
fn is_right_under_an_adversary() {
    seeds(60, |seed| {
        let adversity = Adversity { races: true, ..Adversity::new(seed) };
        let runtime = Arc::new(CpuRuntime::seeded(adversity));
        is_right(&Device::new(runtime.clone()), 2 + (seed % 4) as u32, &config())?;
        runtime.race().map_or(Ok(()), Err)
    });
}

#[test]
fn has_ptx_that_is_right_in_the_emulator() {
    if PTX.is_empty() {
        return println!("skipped: there is no PTX");
    }
    seeds(6, |seed| {
        let options = Options { checks: Some(checks(Unit::Eight)), ..Options::seeded(seed) };
        let runtime = PtxRuntime::lockstep(options).with_threads(64).unwrap();
        is_right(&Device::new(Arc::new(runtime)), 2 + (seed % 3) as u32, &config())
    });
}
