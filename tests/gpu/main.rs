//! The conformance cases on GPUs.
//!
//! Compiled everywhere. Where there is no GPU, each trial is listed as ignored, with what is missing. Trials run one after
//! the other: all blocks of a communicator must run at the same time, and two would fight for the multiprocessors. A
//! failing seed is printed; `FERROCCL_SEED=n` runs that one. `FERROCCL_GPU=n` chooses another GPU than the first.

#[path = "../support/random.rs"]
mod random;
#[path = "../support/reductions.rs"]
mod reductions;
#[path = "../support/scenarios.rs"]
mod scenarios;
#[path = "../support/skip.rs"]
mod skip;
#[path = "../support/team.rs"]
mod team;
#[path = "../support/values.rs"]
mod values;

mod failures;

use std::path::PathBuf;
use std::process::Command;

use ferroccl::runtime::cuda;
use ferroccl::{Algorithm, CommConfig, Communicator, Device, F8E4M3, F8E5M2, ProtocolId, ReduceOp};
use half::{bf16, f16};
use libtest_mimic::{Arguments, Failed, Trial};
use random::Random;
use reductions::{Reduction, group_by, reduce};
use team::{COUNTS, team_on};
use values::Case;

/// The GPU that is tested.
pub(crate) fn gpu() -> Device {
    Device::cuda(number("FERROCCL_GPU").unwrap_or(0) as u32).unwrap()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn seed() -> u64 {
    number("FERROCCL_SEED").unwrap_or(0xF3220)
}

fn main() {
    if let Ok(scenario) = std::env::var(failures::CHILD) {
        return failures::child(&scenario);
    }
    let mut args = Arguments::from_args();
    args.test_threads = Some(1);
    let absent = cuda::count().and_then(|_| Device::cuda(0)).err().map(|error| error.to_string());
    let trials = trials().into_iter().map(|trial| match &absent {
        Some(why) => trial.with_ignored_flag(true).with_kind(why.as_str()),
        None => trial,
    });
    libtest_mimic::run(&args, trials.collect()).exit();
}

fn trial(name: impl Into<String>, run: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name, move || {
        run();
        Ok::<(), Failed>(())
    })
}

fn trials() -> Vec<Trial> {
    let mut all = Vec::new();
    for &protocol in ProtocolId::ALL {
        for algorithm in [
            Algorithm::Ring,
            Algorithm::Tree,
            Algorithm::OneShot,
            Algorithm::TwoShot,
            Algorithm::Direct,
            Algorithm::Bruck,
            Algorithm::Doubling,
            Algorithm::Linear,
        ] {
            for n in [2, 3, 4, 8] {
                let name = format!("collectives and messages, {n} ranks, {algorithm} {protocol}");
                all.push(trial(name, move || {
                    let mut config = CommConfig::default();
                    (config.protocol, config.algorithm) = (Some(protocol), Some(algorithm));
                    let team = team_on(gpu(), &config, n, &format!("{algorithm} {protocol}"));
                    team.collectives(seed(), &COUNTS);
                    team.messages(seed(), &COUNTS);
                }));
            }
        }
        for (what, algorithm) in WAYS {
            for hostile in [false, true] {
                let slots = if hostile { "small slots" } else { "usual slots" };
                let name = format!("{what:?} of every type, {algorithm} {protocol}, {slots}");
                all.push(trial(name, move || every_type(what, algorithm, protocol, hostile)));
            }
        }
    }
    all.push(trial("collectives and messages, 1 rank", || {
        let team = team_on(gpu(), &CommConfig::default(), 1, "alone");
        team.collectives(seed(), &COUNTS);
        team.messages(seed(), &COUNTS);
    }));
    all.push(trial("steps beyond 32 bits", || {
        let mut config = CommConfig::default();
        config.slots = Some(2);
        config.buffer_bytes = [Some(2048); 3];
        config.first_step = u64::from(u32::MAX) - 5;
        for &protocol in ProtocolId::ALL {
            config.protocol = Some(protocol);
            let team = team_on(gpu(), &config, 3, &format!("late, {protocol}"));
            team.collectives(seed(), &[0, 1, 33, 4099]);
        }
    }));
    all.push(trial("a gigabyte", a_gigabyte));
    all.push(trial("all GPUs of this process", all_gpus));
    all.push(trial("NVLS on all GPUs of this process", nvls));
    for (name, variables) in [
        ("CUDA IPC", &[][..]),
        ("shared memory", &[("NCCL_P2P_DISABLE", "1")]),
        ("sockets", &[("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1")]),
    ] {
        all.push(trial(format!("processes over {name}"), move || processes(variables)));
    }
    macro_rules! scenario {
        ($($name:ident,)*) => {
            $( all.push(trial(stringify!($name).replace('_', " "), || scenarios::$name(&gpu()))); )*
        };
    }
    scenarios::scenarios!(scenario);
    all.extend(failures::trials());
    all
}

const WAYS: [(Reduction, Algorithm); 12] = [
    (Reduction::AllReduce, Algorithm::Ring),
    (Reduction::AllReduce, Algorithm::Tree),
    (Reduction::AllReduce, Algorithm::Doubling),
    (Reduction::AllReduce, Algorithm::OneShot),
    (Reduction::AllReduce, Algorithm::TwoShot),
    (Reduction::AllReduce, Algorithm::Direct),
    (Reduction::ReduceScatter, Algorithm::OneShot),
    (Reduction::ReduceScatter, Algorithm::Direct),
    (Reduction::ReduceScatter, Algorithm::Ring),
    (Reduction::ReduceScatter, Algorithm::Bruck),
    (Reduction::ReduceScatter, Algorithm::Linear),
    (Reduction::Reduce, Algorithm::Ring),
];

fn every_type(what: Reduction, algorithm: Algorithm, protocol: ProtocolId, hostile: bool) {
    let counts: &'static [usize] = &[0, 1, 17, 523, 40_003];
    let group = group_by(&gpu(), (algorithm, protocol), 3, hostile, counts);
    let random = &mut Random(seed());
    macro_rules! types {
        ($($t:ty),*) => { $( {
            for &op in ReduceOp::ALL {
                for &count in counts {
                    for in_place in [false, true] {
                        one::<$t>(&group, what, op, (count, in_place), random);
                    }
                }
            }
        } )* };
    }
    types!(i8, u8, i32, u32, i64, u64, f16, bf16, f32, f64, F8E4M3, F8E5M2);
}

fn one<T: Case>(
    group: &reductions::Group,
    what: Reduction,
    op: ReduceOp,
    (count, in_place): (usize, bool),
    random: &mut Random,
) {
    let n = group.ranks.len();
    let blocks = if what == Reduction::ReduceScatter { n } else { 1 };
    let inputs: Vec<Vec<T>> =
        (0..n).map(|_| (0..count * blocks).map(|_| T::draw(random, op)).collect()).collect();
    let misaligned = random.below(2) == 0;
    reduce(group, what, op, &inputs, in_place, misaligned);
}

/// More bytes than a 32-bit count or offset has.
fn a_gigabyte() {
    let device = gpu();
    let count = (5usize << 30) / 4;
    let ranks = Communicator::init_all(&device, 2).unwrap();
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    let buffers = [0, 1].map(|_| device.alloc::<u32>(count).unwrap());
    let marks = [0, 1, (1 << 30) - 1, 1 << 30, count - 1];
    for (r, buffer) in buffers.iter().enumerate() {
        for (i, at) in marks.iter().enumerate() {
            buffer.slice(*at..).copy_from(&[((i + 1) as u32) << (8 * r)], &streams[r]).unwrap();
        }
        ranks[r].all_reduce(buffer, buffer, ReduceOp::Sum, &streams[r]).unwrap();
    }
    for (r, buffer) in buffers.iter().enumerate() {
        for (i, at) in marks.iter().enumerate() {
            let got = buffer.slice(*at..=*at).to_vec(&streams[r]).unwrap();
            assert_eq!(got, [(i as u32 + 1) * 0x101], "element {at} of rank {r}");
        }
    }
}

fn all_gpus() {
    let gpus = cuda::count().unwrap();
    let devices: Vec<Device> =
        (0..2 * gpus.max(2)).map(|rank| Device::cuda(rank % gpus).unwrap()).collect();
    for (p2p, shm) in [(true, true), (false, true)] {
        for &protocol in ProtocolId::ALL {
            let mut config = CommConfig::default();
            (config.p2p, config.shm, config.protocol) = (Some(p2p), Some(shm), Some(protocol));
            let ranks = Communicator::init_all_on(&devices, &config).unwrap();
            let streams: Vec<_> = devices.iter().map(|device| device.stream().unwrap()).collect();
            for count in COUNTS {
                let buffers: Vec<_> = devices
                    .iter()
                    .zip(0u32..)
                    .map(|(device, rank)| device.upload(&vec![rank + 1; count]).unwrap())
                    .collect();
                for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
                    rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream).unwrap();
                }
                let n = ranks.len() as u32;
                for (buffer, stream) in buffers.iter().zip(&streams) {
                    let sum = buffer.to_vec(stream).unwrap();
                    assert!(sum.iter().all(|x| *x == n * (n + 1) / 2), "{count}, {protocol}");
                }
            }
        }
    }
}

/// A rank on each GPU, and windows of which the switch between the GPUs has a multicast object.
fn nvls() {
    let gpus = cuda::count().unwrap();
    if gpus < 2 {
        return skip::skip("a multicast object needs several GPUs");
    }
    let devices: Vec<Device> = (0..gpus).map(|gpu| Device::cuda(gpu).unwrap()).collect();
    let mut config = CommConfig::default();
    config.algorithm = Some(Algorithm::Nvls);
    let ranks = Communicator::init_all_on(&devices, &config).unwrap();
    let streams: Vec<_> = devices.iter().map(|device| device.stream().unwrap()).collect();
    let (n, len) = (ranks.len(), 3_000_000);
    let buffers: Vec<_> =
        devices.iter().map(|device| device.alloc_shared::<f32>(len).unwrap()).collect();
    let windows = Communicator::register_windows(ranks.iter().zip(&buffers)).unwrap();
    if let Some(why) = windows[0].why_not_multicast() {
        return skip::skip(why);
    }
    for count in [0, 1, 17, 523, 40_003, 1 << 20] {
        let total = (n * (n + 1) / 2) as f32;
        for (r, buffer) in buffers.iter().enumerate() {
            let part = buffer.slice(3..3 + count);
            part.copy_from(&vec![(r + 1) as f32; count], &streams[r]).unwrap();
            ranks[r].all_reduce(&part, &part, ReduceOp::Sum, &streams[r]).unwrap();
        }
        for (buffer, stream) in buffers.iter().zip(&streams) {
            let sums = buffer.slice(3..3 + count).to_vec(stream).unwrap();
            assert!(sums.iter().all(|sum| *sum == total), "all_reduce of {count}");
        }
        let each = count / n;
        for (r, buffer) in buffers.iter().enumerate() {
            let (all, own) = (buffer.slice(..n * each), r * each..(r + 1) * each);
            let block = all.slice(own);
            block.copy_from(&vec![r as f32; each], &streams[r]).unwrap();
            ranks[r].all_gather(&block, &all, &streams[r]).unwrap();
        }
        let want: Vec<f32> = (0..n).flat_map(|r| vec![r as f32; each]).collect();
        for (r, (buffer, stream)) in buffers.iter().zip(&streams).enumerate() {
            let all = buffer.slice(..n * each);
            assert!(all.to_vec(stream).unwrap() == want, "all_gather of {count}");
            let block = all.slice(r * each..(r + 1) * each);
            ranks[r].reduce_scatter(&all, &block, ReduceOp::Sum, stream).unwrap();
        }
        for (r, (buffer, stream)) in buffers.iter().zip(&streams).enumerate() {
            let block = buffer.slice(r * each..(r + 1) * each).to_vec(stream).unwrap();
            assert!(block.iter().all(|sum| *sum == (n * r) as f32), "reduce_scatter of {count}");
        }
    }
}

fn processes(variables: &[(&str, &str)]) {
    // On another machine than it was built on (benches/gpu.sh) the command is elsewhere.
    let ferroccl = std::env::var_os("FERROCCL_BIN").map(PathBuf::from).unwrap_or_else(|| {
        // This is target/PROFILE/deps/gpu-HASH.
        std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("ferroccl")
    });
    assert!(ferroccl.is_file(), "no {}: cargo build --package ferroccl-cli", ferroccl.display());
    for collective in ["all_reduce", "all_gather", "alltoall"] {
        let mut command = Command::new(&ferroccl);
        command.args(["run", "-n", "2", "--"]).arg(&ferroccl).args(["perf", collective]);
        command.args([
            "-b",
            "8",
            "-e",
            "4M",
            "-f",
            "64",
            "-n",
            "3",
            "-w",
            "1",
            "--runtime",
            "cuda",
        ]);
        let output = command.envs(variables.iter().copied()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{collective} {variables:?}: {text}{errors}");
    }
}
