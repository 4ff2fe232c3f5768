//! A user's kernel on a device communicator over several nodes, under a scheduler and a memory that are as unhelpful as the rules allow;
//! with weakened orders, and with mistakes.
//!
//! A failing seed is printed; `FERROCCL_SEED=n` runs that one alone.

use std::sync::Arc;

use ferroccl::device::abi::DeviceComm;
use ferroccl::device::gpu;
use ferroccl::device::orders::{self, Published, Side};
use ferroccl::runtime::cpu::{Adversity, CpuRuntime};
use ferroccl::{CommConfig, Communicator, Device, DeviceCommConfig, Grid};
use ferroccl_proxy::net::{Delay, FaultNet, Faults, LocalNet, Net};

use crate::puts::{EARLY_SIGNAL, NO_FLUSH, NO_WAIT, NONE, PUTS};
use crate::puts_run::{self, Size, on_hosts};
use crate::random::Random;
use crate::tier;

const SEEDS: u64 = 120;

const SHAPES: [&[usize]; 6] = [&[1, 1], &[2, 1], &[2, 2], &[1, 1, 1], &[3, 2], &[1, 2, 1]];

fn run(seed: u64, weaken: Option<(Published, Side)>, mistake: u64) -> Result<(), String> {
    let mut random = Random(seed);
    let adversity = Adversity { races: true, weaken, ..Adversity::new(seed) };
    let runtime = Arc::new(CpuRuntime::seeded(adversity));
    let device = Device::new(runtime.clone());
    let mut config = CommConfig::default();
    // Pieces of data are of a slot.
    (config.slots, config.buffer_bytes) = (Some(2), [Some(512); 3]);
    config.channels = Some(1);
    let size = Size {
        blocks: 1 + random.below(3) as u32,
        count: [0, 1, 2, random.below(40), random.below(150)][random.below(5)],
        rounds: 1 + random.below(4),
        launches: 1 + random.below(2),
        requests: [1, 2, 64][random.below(3)],
        mistake,
    };
    let shape = SHAPES[random.below(SHAPES.len())];
    let mut net: Arc<dyn Net> = Arc::new(LocalNet::default());
    if random.below(2) == 0 {
        let delay = Some(Delay::Tests(1 + random.below(9) as u32));
        net = Arc::new(FaultNet::new(net, Faults { seed, delay, ..Faults::default() }));
    }
    puts_run::run(&device, &PUTS, shape, size, &config, Some(net))
        .map_err(|e| format!("{shape:?}, {size:?}: {e}"))?;
    runtime.race().map_or(Ok(()), Err)
}

#[test]
fn puts_survive() {
    for seed in tier::survived(SEEDS) {
        if let Err(wrong) = run(seed, None, NONE) {
            panic!("seed {seed}: {wrong}");
        }
    }
}

/// The kernels' sides of the orders; the proxy has its own in a machine's code, which nothing weakens here.
#[test]
fn every_weakened_order_is_caught() {
    for (word, side) in [
        (orders::PUT_REQUEST, Side::Release),
        (orders::PUT_DONE, Side::Acquire),
        (orders::NETWORK_WORD, Side::Acquire),
        (orders::BARRIER, Side::Release),
        (orders::BARRIER, Side::Acquire),
    ] {
        let caught =
            (0..SEEDS).find_map(|seed| Some((seed, run(seed, Some((word, side)), NONE).err()?)));
        println!("{} {side:?}: {caught:?}", word.name());
        assert!(caught.is_some(), "no seed below {SEEDS} notices {} {side:?}", word.name());
    }
}

#[test]
fn every_mistake_is_caught() {
    for mistake in [NO_FLUSH, EARLY_SIGNAL, NO_WAIT] {
        let caught = (0..SEEDS).find_map(|seed| Some((seed, run(seed, None, mistake).err()?)));
        println!("mistake {mistake}: {caught:?}");
        assert!(caught.is_some(), "no seed below {SEEDS} notices mistake {mistake}");
    }
}

ferroccl::device::kernel_argument! {
    struct Meet {
        comm: DeviceComm,
        /// Address of a word that all ranks count in before a barrier: they are of one process.
        counter: u64,
        /// Address of the least that was missing behind a barrier.
        missing: u64,
        rounds: u64,
    }
}

ferroccl::device::user_kernels! {
    MEET = "test_meet": 512, meet, Meet;
}

/// # Safety
/// The launch's contract.
unsafe fn meet(my: Meet) {
    // SAFETY: the caller's.
    unsafe {
        let mut comm = my.comm.open();
        let counter = my.counter as *mut u64;
        for round in 0..my.rounds {
            gpu::add_release(orders::SIGNAL, counter, 1);
            if !comm.barrier(0) {
                return;
            }
            let wanted = u64::from(comm.ranks()) * (round + 1);
            let there = gpu::ld_relaxed(counter);
            if there < wanted {
                gpu::st_relaxed(my.missing as *mut u64, wanted - there);
            }
        }
    }
}

/// Nodes of different sizes, some of whose ranks are alone in their rails: nobody leaves a barrier before all have come.
#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    for seed in 0..60 {
        let shape = [&[3, 1][..], &[1, 3], &[2, 1, 3], &[2, 2]][seed as usize % 4];
        let runtime = Arc::new(CpuRuntime::seeded(Adversity::new(seed)));
        let device = Device::new(runtime);
        let net: Arc<dyn Net> = Arc::new(LocalNet::default());
        let ranks = on_hosts(&device, shape, &CommConfig::default(), Some(net));
        let comms = Communicator::device_comms(&ranks, &DeviceCommConfig::default()).unwrap();
        let words = device.upload(&[0_u64; 2]).unwrap();
        let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
        for (comm, stream) in comms.iter().zip(&streams) {
            let (counter, missing) = (words.address(), words.address() + 8);
            let meet = Meet { comm: comm.value(), counter, missing, rounds: 4 };
            // SAFETY: the words are there until the streams have been waited for.
            unsafe { comm.launch(&MEET, Grid { blocks: 1, threads: 32 }, &meet, stream) }.unwrap();
        }
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        let counted = 4 * ranks.len() as u64;
        assert_eq!(words.to_vec(&streams[0]).unwrap(), [counted, 0], "seed {seed}, {shape:?}");
    }
}
