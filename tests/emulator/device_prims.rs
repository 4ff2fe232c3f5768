//! Primitives of a user's kernel, as PTX: under all checks, in schedules of seeds; with weakened orders; and in simulated time.

use std::sync::Arc;

use ferroccl::runtime::ptx::{MachineModel, PtxRuntime};
use ferroccl::{ChannelPeers, Device, DeviceChannels};

use crate::device_ptx;
use crate::pipes::PIPES;
use crate::pipes_run;
use crate::random::Random;

fn seeded(seed: u64, ptx: &'static str) -> Result<(), String> {
    let random = &mut Random(seed);
    let devices = vec![Device::new(Arc::new(PtxRuntime::seeded(seed))); 1 + random.below(4)];
    let size = (1 + random.below(2) as u32, [1, 7, random.below(300)][random.below(3)], 3);
    let all = random.below(2) == 0;
    let peers = if all { ChannelPeers::All } else { ChannelPeers::Ring };
    let mut channels = DeviceChannels::new(size.0, peers);
    channels.slots = 2 + random.below(4) as u32;
    // Of each protocol slots of a few hundred bytes of data.
    channels.slot_bytes = channels.slot_bytes.map(|bytes| bytes.min(512));
    pipes_run::run(&devices, &PIPES.with_ptx(ptx), size, (channels, all, 2))
}

#[test]
fn pipes_survive_all_checks() {
    let Some(ptx) = device_ptx::rounds() else { return };
    for seed in 0..20 {
        seeded(seed, ptx).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn weakened_orders_are_found() {
    let Some(ptx) = device_ptx::rounds() else { return };
    for (from, to) in [
        ("st.release.sys.global.u64", "st.relaxed.sys.global.u64"),
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
    let channels = (DeviceChannels::rings(2), false, 1);
    pipes_run::run(&devices, &PIPES.with_ptx(ptx), (2, 1000, 3), channels).unwrap();
    let micros = gpus[0].simulated_time().unwrap().as_secs_f64() * 1e6;
    println!("3 rounds of an all-reduce and a pipeline of 4 ranks: {micros:.1} us, simulated");
    // In a round data makes 10 hops over NVLink, each of half a microsecond at least.
    assert!((15.0..600.0).contains(&micros), "{micros} us");
}
