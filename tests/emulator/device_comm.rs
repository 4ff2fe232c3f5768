//! A user's kernel on a device communicator, as PTX: under all checks, in schedules of seeds; with weakened orders; and in simulated
//! time.

use std::sync::Arc;

use ferroccl::runtime::ptx::{MachineModel, PtxRuntime};
use ferroccl::{Communicator, Device, DeviceCommConfig, Error, Grid};

use crate::device_ptx;
use crate::random::Random;
use crate::rounds::{ROUNDS, Rounds, expected};

/// Blocks, elements and rounds.
type Size = (u32, usize, usize);

/// Runs rounds on ranks of these devices; an error, or what is wrong.
fn run(devices: &[Device], ptx: &'static str, (blocks, count, rounds): Size) -> Result<(), String> {
    let ranks = Communicator::init_all_on(devices, &ferroccl::CommConfig::default());
    let ranks = ranks.map_err(|e| e.to_string())?;
    let n = ranks.len();
    let len = count * blocks as usize;
    let alloc = |len: usize| -> Result<Vec<_>, String> {
        let all = devices.iter().map(|device| device.alloc_shared::<u64>(len));
        all.collect::<ferroccl::Result<_>>().map_err(|e| e.to_string())
    };
    let buffers = [alloc(len)?, alloc(len)?, alloc(len)?];
    let windows = buffers
        .each_ref()
        .map(|buffers| Communicator::register_windows(ranks.iter().zip(buffers)).unwrap());
    let results = alloc(3 * len * rounds)?;
    let mut config = DeviceCommConfig::default();
    (config.barriers, config.signals) = (blocks, 2 * blocks);
    let comms = Communicator::device_comms(&ranks, &config).map_err(|e| e.to_string())?;
    let streams: Vec<_> = devices.iter().map(|device| device.stream().unwrap()).collect();
    for r in 0..n {
        let argument = Rounds {
            comm: comms[r].value(),
            windows: windows.each_ref().map(|of| of[r].value().unwrap()),
            results: results[r].address(),
            count: count as u64,
            rounds: rounds as u64,
        };
        let grid = Grid { blocks, threads: 64 };
        // SAFETY: the buffers have what the kernel reads and writes, and outlive the streams' work.
        unsafe { comms[r].launch(&ROUNDS.with_ptx(ptx), grid, &argument, &streams[r]) }
            .map_err(|e| e.to_string())?;
    }
    for r in 0..n {
        let got = results[r].to_vec(&streams[r]).map_err(|e| format!("rank {r}: {e}"))?;
        let wanted = expected(r as u64, n as u64, (blocks.into(), count as u64, rounds as u64));
        if let Some(i) = (0..got.len()).find(|i| got[*i] != wanted[*i]) {
            return Err(format!("rank {r}, result {i}: {}, not {}", got[i], wanted[i]));
        }
    }
    Ok(())
}

fn seeded(seed: u64, ptx: &'static str) -> Result<(), String> {
    let random = &mut Random(seed);
    let runtime = Arc::new(PtxRuntime::seeded(seed));
    let n = 1 + random.below(4);
    let size = (1 + random.below(2) as u32, [1, 7, random.below(150)][random.below(3)], 2);
    run(&vec![Device::new(runtime); n], ptx, size)
}

#[test]
fn rounds_survive_all_checks() {
    let Some(ptx) = device_ptx::rounds() else { return };
    for seed in 0..30 {
        seeded(seed, ptx).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn weakened_orders_are_found() {
    let Some(ptx) = device_ptx::rounds() else { return };
    for (from, to) in [
        // Of barriers and signals; of what waits for them.
        ("st.release.sys.global.u64", "st.relaxed.sys.global.u64"),
        ("red.release.sys.global.add.u64", "red.relaxed.sys.global.add.u64"),
        ("ld.acquire.sys.global.u64", "ld.relaxed.sys.global.u64"),
    ] {
        assert!(ptx.contains(from), "there is no {from}");
        let weak: &'static str = Box::leak(ptx.replace(from, to).into_boxed_str());
        let found = (0..60).find_map(|seed| Some((seed, seeded(seed, weak).err()?)));
        println!("{to}: {found:?}");
        let (_, wrong) = found.unwrap_or_else(|| panic!("no seed notices {to}"));
        assert!(wrong.contains("race") || wrong.contains(", not "), "{wrong}");
    }
}

#[test]
fn ranks_are_gpus_of_a_machine_in_simulated_time() {
    let Some(ptx) = device_ptx::rounds() else { return };
    let model = MachineModel::find("h100-nvlink").unwrap();
    let gpus: Vec<_> = PtxRuntime::simulated(model).into_iter().map(Arc::new).collect();
    let devices: Vec<_> = gpus.iter().take(4).map(|gpu| Device::new(gpu.clone())).collect();
    run(&devices, ptx, (4, 1000, 3)).unwrap();
    let micros = gpus[0].simulated_time().unwrap().as_secs_f64() * 1e6;
    // 3 rounds of 2 barriers and 2 signals, each a trip over NVLink of half a microsecond at least.
    assert!((6.0..200.0).contains(&micros), "{micros} us");
}

#[test]
fn what_has_no_ptx_is_named() {
    let runtime = Arc::new(PtxRuntime::seeded(0));
    let device = Device::new(runtime);
    let rank = Communicator::init_all(&device, 1).unwrap().remove(0);
    let comm = rank.device_comm(&DeviceCommConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let buffer = device.alloc_shared::<u64>(1).unwrap();
    let window = rank.register_window(&buffer).unwrap().value().unwrap();
    let argument =
        Rounds { comm: comm.value(), windows: [window; 3], results: 0, count: 0, rounds: 0 };
    // SAFETY: it is not launched.
    let launched =
        unsafe { comm.launch(&ROUNDS, Grid { blocks: 1, threads: 32 }, &argument, &stream) };
    let error = launched.unwrap_err();
    assert!(matches!(&error, Error::Unavailable { what, .. } if what == "test_rounds"), "{error}");
}
