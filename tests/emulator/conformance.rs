//! The suite in the PTX emulator: the kernels that a GPU would get, through the whole host path.
//!
//! Every kernel runs at least once in each of two schedules: in lockstep on plain memory, and in one that a seed draws
//! with all checks, where memory is as unhelpful as the memory model allows. A part runs on threads, with
//! larger counts and all shapes of buffers. A failing seed is printed; `FERROCCL_SEED=n` runs that one.

use std::collections::BTreeSet;
use std::sync::Arc;

use ferroccl::runtime::ptx::{Options, PtxRuntime, Unit, checks};
use ferroccl::{
    Algorithm, CommConfig, Communicator, Device, Element, F8E4M3, F8E5M2, ProtocolId, ReduceOp, ptx,
};
use ferroccl_proxy::net::LocalNet;
use half::{bf16, f16};

use crate::random::Random;
use crate::reductions::{Group, Reduction, all_cases, group, group_by, knows, reduce};
use crate::team::team_on;
use crate::tier;
use crate::values::Case;

/// Whether there is something to run.
fn ready() -> bool {
    if let Some(why) = ptx::unavailable() {
        crate::skip::skip(why);
    }
    ptx::unavailable().is_none()
}

fn seed() -> u64 {
    tier::seed().unwrap_or(0xF3220)
}

/// Calls `$run::<T>($args)` for every element type that has kernels.
macro_rules! every_type {
    ($run:ident($($arg:expr),*)) => {
        every_type!(i8 u8 i32 u32 i64 u64 f16 bf16 f32 f64 F8E4M3 F8E5M2: $run($($arg),*))
    };
    ($($T:ident)*: $run:ident $args:tt) => {
        $(if ptx::has_type(<$T as Element>::TYPE) {
            every_type!($T, $run $args);
        })*
    };
    ($T:ident, $run:ident ($($arg:expr),*)) => {
        $run::<$T>($($arg),*)
    };
}

fn kernels_run(runtime: &PtxRuntime) -> BTreeSet<&'static str> {
    runtime.counts().iter().map(|one| one.kernel).collect()
}

fn all_kernels() -> BTreeSet<&'static str> {
    ptx::modules().iter().flat_map(|module| module.kernels()).copied().collect()
}

/// What reduces, and by what: together every kernel that does.
const WAYS: [(Reduction, Algorithm); 14] = [
    (Reduction::AllReduce, Algorithm::Ring),
    (Reduction::AllReduce, Algorithm::Tree),
    (Reduction::AllReduce, Algorithm::Doubling),
    (Reduction::AllReduce, Algorithm::OneShot),
    (Reduction::AllReduce, Algorithm::TwoShot),
    (Reduction::AllReduce, Algorithm::Direct),
    (Reduction::AllReduce, Algorithm::Nvls),
    (Reduction::ReduceScatter, Algorithm::OneShot),
    (Reduction::ReduceScatter, Algorithm::Direct),
    (Reduction::ReduceScatter, Algorithm::Nvls),
    (Reduction::ReduceScatter, Algorithm::Ring),
    (Reduction::ReduceScatter, Algorithm::Bruck),
    (Reduction::ReduceScatter, Algorithm::Linear),
    (Reduction::Reduce, Algorithm::Ring),
];

fn every_op<T: Case>(
    group: &Group,
    what: Reduction,
    random: &mut Random,
    in_place: bool,
    misaligned: bool,
) {
    for &op in ReduceOp::ALL {
        for &count in group.counts {
            let n = group.ranks.len();
            let blocks = if what == Reduction::ReduceScatter { n } else { 1 };
            let inputs: Vec<Vec<T>> = (0..n)
                .map(|_| (0..count * blocks).map(|_| T::draw(random, op)).collect())
                .collect();
            reduce(group, what, op, &inputs, in_place, misaligned);
        }
    }
}

/// Algorithms that only move data, and messages.
fn moves(device: &Device, config: &CommConfig, seed: u64, counts: &[usize]) {
    use Algorithm::{Bruck, Direct, Linear, Nvls, OneShot, Ring, Tree};
    // Some need memory that all share.
    let near = config.p2p != Some(false);
    let knows = |a: &Algorithm| {
        let has = config.protocol.is_none_or(|protocol| knows(*a, protocol));
        has && (near || !(a.is_over_mesh() || *a == Linear))
    };
    for algorithm in [Ring, Tree, Bruck, Linear, OneShot, Direct, Nvls].into_iter().filter(knows) {
        let mut config = config.clone();
        config.algorithm = Some(algorithm);
        let name = format!("{algorithm}, {:?}, seed {seed}", config.protocol);
        let team = team_on(device.clone(), &config, 3, &name);
        team.collectives(seed, counts);
        team.messages(seed, counts);
    }
}

fn usual(protocol: ProtocolId) -> CommConfig {
    let mut config = CommConfig::default();
    config.protocol = Some(protocol);
    config
}

#[test]
fn every_kernel_on_plain_memory() {
    if !ready() {
        return;
    }
    let runtime = Arc::new(PtxRuntime::lockstep(Options::plain()));
    let device = Device::new(runtime.clone());
    let random = &mut Random(1);
    // The test with all checks has small counts, too.
    let counts: &[usize] = if tier::is_nightly() { &[0, 17, 523] } else { &[523] };
    for &protocol in ProtocolId::ALL {
        let ways = WAYS.into_iter().filter(|(_, a)| knows(*a, protocol));
        for (i, (what, algorithm)) in ways.enumerate() {
            let (hostile, way) = (i % 2 == 0, (algorithm, protocol));
            let group = group_by(&device, way, 3, hostile, counts);
            every_type!(every_op(&group, what, random, hostile, !hostile));
        }
        moves(&device, &usual(protocol), 5, &[0, 7, 1000]);
    }
    assert_eq!(kernels_run(&runtime), all_kernels());
}

/// With a runtime of its own a call: a seed means the same whatever ran before.
fn seeded<T: Case>(
    protocol: ProtocolId,
    unit: Unit,
    random: &mut Random,
    ran: &mut BTreeSet<&'static str>,
) {
    for (what, algorithm) in WAYS.into_iter().filter(|(_, a)| knows(*a, protocol)) {
        let (seed, nranks) = (random.next(), 2 + random.below(2));
        println!("{} {algorithm} {protocol}: seed {seed}, {nranks} ranks", T::TYPE);
        let options = Options { checks: Some(checks(unit)), ..Options::seeded(seed) };
        let runtime = PtxRuntime::lockstep(options).with_threads(64).unwrap();
        let runtime = Arc::new(runtime);
        let device = Device::new(runtime.clone());
        let group = group_by(&device, (algorithm, protocol), nranks as u32, true, &[103]);
        let misaligned = random.below(2) == 0;
        // Operators in a row: slots, signatures and offers are used again.
        every_op::<T>(&group, what, random, misaligned, misaligned);
        ran.extend(kernels_run(&runtime));
    }
}

#[test]
fn every_kernel_under_every_check() {
    if !ready() {
        return;
    }
    let (random, mut ran) = (&mut Random(seed()), BTreeSet::new());
    for (protocol, unit) in [
        (ProtocolId::Simple, Unit::Eight),
        (ProtocolId::Ll, Unit::Eight),
        (ProtocolId::Ll128, Unit::Line),
    ] {
        every_type!(seeded(protocol, unit, random, &mut ran));
        let seed = random.next();
        let options = Options { checks: Some(checks(unit)), ..Options::seeded(seed) };
        let runtime = Arc::new(PtxRuntime::lockstep(options).with_threads(64).unwrap());
        let mut config = usual(protocol);
        config.slots = Some(2);
        config.buffer_bytes = [Some(1024); 3];
        config.channels = Some(2);
        moves(&Device::new(runtime.clone()), &config, seed, &[0, 3, 150]);
        ran.extend(kernels_run(&runtime));
    }
    assert_eq!(ran, all_kernels());
}

fn many_seeds(protocol: ProtocolId, unit: Unit, seeds: u64) {
    if !ready() {
        return;
    }
    for seed in tier::named_or(0..seeds) {
        if let Err(why) = calls_in_a_row(protocol, unit, seed) {
            panic!("{protocol}, seed {seed}: {why}");
        }
    }
}

/// Two calls on a small group; every other seed starts just before LL's flags of 32 bits wrap.
fn calls_in_a_row(protocol: ProtocolId, unit: Unit, seed: u64) -> Result<(), String> {
    let random = &mut Random(seed);
    let options = Options { checks: Some(checks(unit)), ..Options::seeded(seed) };
    let threads = [32, 64, 96][random.below(3)];
    let runtime = PtxRuntime::lockstep(options).with_threads(threads).map_err(|e| e.to_string())?;
    let device = Device::new(Arc::new(runtime));
    let mut config = CommConfig::default();
    config.protocol = Some(protocol);
    config.algorithm = Some(random.pick(&[
        Algorithm::Ring,
        Algorithm::Ring,
        Algorithm::Tree,
        Algorithm::Doubling,
        Algorithm::OneShot,
        Algorithm::TwoShot,
        Algorithm::TwoShot,
        Algorithm::Chain,
    ]));
    config.slots = Some(2);
    // Slots that take both warps of a block more than one round.
    config.buffer_bytes = [Some([1024, 4096][random.below(2)]); 3];
    config.channels = Some(1 + random.below(2) as u32);
    config.first_step = if seed.is_multiple_of(2) { 0 } else { (1 << 31) - 6 };
    let nranks = 2 + random.below(3);
    let ranks = Communicator::init_all_with(&device, nranks as u32, &config).unwrap();
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    for call in 0..2 {
        let count = random.below(1000);
        let inputs: Vec<Vec<u32>> =
            (0..nranks).map(|_| (0..count).map(|_| random.next() as u32).collect()).collect();
        let buffers: Vec<_> = inputs.iter().map(|input| device.upload(input).unwrap()).collect();
        for r in 0..nranks {
            ranks[r].all_reduce(&buffers[r], &buffers[r], ReduceOp::Sum, &streams[r]).unwrap();
        }
        for r in 0..nranks {
            let got = buffers[r].to_vec(&streams[r]).map_err(|e| format!("call {call}: {e}"))?;
            for (i, got) in got.into_iter().enumerate() {
                let want = inputs.iter().fold(0u32, |sum, input| sum.wrapping_add(input[i]));
                if got != want {
                    return Err(format!("call {call} rank {r} element {i}: {got}, not {want}"));
                }
            }
        }
    }
    Ok(())
}

#[test]
fn simple_survives() {
    many_seeds(ProtocolId::Simple, Unit::Eight, tier::seeds(150, 500));
}

#[test]
fn ll_survives() {
    many_seeds(ProtocolId::Ll, Unit::Eight, tier::seeds(150, 500));
}

#[test]
fn ll128_survives_where_lines_arrive_whole() {
    many_seeds(ProtocolId::Ll128, Unit::Line, tier::seeds(150, 500));
}

/// What [`checks`] says of it: without that promise of the hardware, LL128 is wrong.
#[test]
fn ll128_needs_whole_lines() {
    if !ready() {
        return;
    }
    let wrong =
        (0..20).filter(|&s| calls_in_a_row(ProtocolId::Ll128, Unit::Eight, s).is_err()).count();
    println!("wrong in {wrong} of 20 seeds");
    assert!(wrong > 0);
}

/// Between hosts: kernels tell the proxy of their steps, and wait for what it brings. Under every check, and on threads
/// over sockets.
#[test]
fn over_a_network() {
    if !ready() {
        return;
    }
    for (protocol, unit) in [
        (ProtocolId::Simple, Unit::Eight),
        (ProtocolId::Ll, Unit::Eight),
        (ProtocolId::Ll128, Unit::Line),
    ] {
        let mut config = usual(protocol);
        (config.p2p, config.shm) = (Some(false), Some(false));
        for seed in (0..2).filter(|seed| tier::takes(*seed as usize, protocol.index())) {
            println!("{protocol}, seed {seed}");
            let options = Options { checks: Some(checks(unit)), ..Options::seeded(seed) };
            let runtime = PtxRuntime::lockstep(options).with_threads(64).unwrap();
            config.net = Some(Arc::new(LocalNet::default()));
            config.slots = Some(2);
            config.buffer_bytes = [Some(1024); 3];
            config.channels = Some(2);
            moves(&Device::new(Arc::new(runtime)), &config, seed, &[0, 3, 300]);
        }
        config.net = None;
        moves(&Device::new(Arc::new(PtxRuntime::on_threads(2))), &config, 7, &[0, 1, 5003]);
    }
}

#[test]
fn on_threads() {
    if !ready() {
        return;
    }
    for &protocol in ProtocolId::ALL {
        for nranks in [1, 2, 5] {
            let device = Device::new(Arc::new(PtxRuntime::on_threads(3)));
            let random = &mut Random(u64::from(nranks));
            let group = group(&device, protocol, nranks, nranks == 2, &[1, 16, 5003]);
            all_cases::<f32>(&group, random);
            all_cases::<u32>(&group, random);
            every_type!(bf16 u8: all_cases(&group, random));
        }
    }
}

#[test]
fn a_large_call_on_threads() {
    if !ready() {
        return;
    }
    let device = Device::new(Arc::new(PtxRuntime::on_threads(2).with_threads(512).unwrap()));
    for &protocol in ProtocolId::ALL {
        let group = group(&device, protocol, 8, false, &[100_003]);
        every_op::<u32>(&group, Reduction::AllReduce, &mut Random(5), true, false);
    }
}
