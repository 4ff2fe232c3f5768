//! All collectives, by every algorithm and protocol, on one GPU and on several.

use ferroccl::runtime::{Settings, cuda};
use ferroccl::{
    Algorithm, CommConfig, Communicator, Device, Element, ProtocolId, ReduceOp, UniqueId,
    config::Config, ptx,
};
use half::bf16;

use crate::random::Random;
use crate::reductions::{all_cases, group};
use crate::stand_in::{alone, gpus, ready};
use crate::team::{COUNTS, team_on};
use crate::tier;

#[test]
fn every_collective_by_every_algorithm_and_protocol() {
    if !ready() {
        return;
    }
    let _alone = alone();
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
            Algorithm::Hierarchical,
        ] {
            let mut config = CommConfig::default();
            (config.protocol, config.algorithm) = (Some(protocol), Some(algorithm));
            config.ranks_per_node = (algorithm == Algorithm::Hierarchical).then_some(2);
            let case = algorithm.index() + protocol.index();
            for n in (1..=4).filter(|n| tier::takes(case, *n as usize)) {
                let device = Device::cuda(0).unwrap();
                let team = team_on(device, &config, n, &format!("{algorithm} {protocol}"));
                team.collectives(0xC0DA, &[0, 7, 1000]);
                team.messages(0xC0DA, &[0, 7, 1000]);
            }
        }
    }
}

#[test]
fn as_chosen_by_size() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let device = Device::cuda(0).unwrap();
    let team = team_on(device, &CommConfig::default(), 4, "as chosen");
    team.collectives(1, &COUNTS);
    team.messages(1, &COUNTS);
}

#[test]
fn reductions_with_scalars_in_device_memory() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let device = Device::cuda(0).unwrap();
    let random = &mut Random(7);
    for &protocol in ProtocolId::ALL {
        for hostile in [false, true] {
            let group = group(&device, protocol, 3, hostile, &[0, 1, 523]);
            all_cases::<f32>(&group, random);
            if ptx::has_type(bf16::TYPE) {
                all_cases::<bf16>(&group, random);
            }
            all_cases::<u32>(&group, random);
        }
    }
}

/// The sum of what the ranks' devices hold.
fn sums(ranks: &[Communicator]) {
    let streams: Vec<_> = ranks.iter().map(|rank| rank.device().stream().unwrap()).collect();
    for count in [1, 1000, 70_001] {
        let buffers: Vec<_> = ranks
            .iter()
            .map(|rank| rank.device().upload(&vec![rank.rank() + 1; count]).unwrap())
            .collect();
        for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
            rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream).unwrap();
        }
        let n = ranks.len() as u32;
        for (buffer, stream) in buffers.iter().zip(&streams) {
            let sum = buffer.to_vec(stream).unwrap();
            assert!(sum.iter().all(|x| *x == n * (n + 1) / 2), "{count} of {n} ranks");
        }
    }
}

#[test]
fn ranks_on_several_gpus_of_a_process() {
    if !ready() {
        return;
    }
    let _alone = alone();
    for ordinals in [&[0, 1][..], &[0, 1, 0], &[1, 1, 0, 0]] {
        for (p2p, shm) in [(true, true), (false, true), (false, false)] {
            for &protocol in ProtocolId::ALL {
                let mut config = CommConfig::default();
                (config.p2p, config.shm, config.protocol) = (Some(p2p), Some(shm), Some(protocol));
                println!("{ordinals:?}, p2p {p2p}, shm {shm}, {protocol}");
                let ranks = Communicator::init_all_on(&gpus(ordinals), &config);
                if !p2p && !shm {
                    // A process does not find itself over a network without an id.
                    drop(ranks);
                    continue;
                }
                sums(&ranks.unwrap());
            }
        }
    }
}

#[test]
fn ranks_that_find_each_other() {
    if !ready() {
        return;
    }
    let _alone = alone();
    for (p2p, shm) in [(true, true), (false, true), (false, false)] {
        let id = UniqueId::new(&Config::from_env().unwrap().bootstrap()).unwrap();
        let mut config = CommConfig::default();
        (config.p2p, config.shm) = (Some(p2p), Some(shm));
        let devices = gpus(&[0, 1, 0]);
        let ranks: Vec<Communicator> = std::thread::scope(|scope| {
            let joining: Vec<_> = (0..3)
                .zip(&devices)
                .map(|(rank, device)| {
                    let config = &config;
                    scope.spawn(move || {
                        Communicator::init_rank_with(device, 3, &id, rank, config).unwrap()
                    })
                })
                .collect();
            joining.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        sums(&ranks);
    }
}

/// Slots of the smallest size, step counters that wrap, odd counts.
#[test]
fn small_slots_and_late_steps() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let mut config = CommConfig::default();
    config.slots = Some(2);
    config.buffer_bytes = [Some(512); 3];
    config.channels = Some(2);
    config.first_step = u64::from(u32::MAX) - 5;
    for &protocol in ProtocolId::ALL {
        config.protocol = Some(protocol);
        let team = team_on(Device::cuda(1).unwrap(), &config, 3, &format!("late, {protocol}"));
        team.collectives(5, &[0, 1, 33, 4099]);
        team.messages(5, &[1, 4099]);
    }
}

#[test]
fn split_and_finalize() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let device = Device::cuda(0).unwrap();
    let ranks = Communicator::init_all(&device, 4).unwrap();
    let halves: Vec<Communicator> = std::thread::scope(|scope| {
        let split =
            |rank: &'static Communicator| rank.split(Some(rank.rank() % 2), 0).unwrap().unwrap();
        let ranks: &'static [Communicator] = Box::leak(ranks.into_boxed_slice());
        let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(move || split(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (mut even, mut odd) = (Vec::new(), Vec::new());
    for (i, half) in halves.into_iter().enumerate() {
        if i % 2 == 0 { even.push(half) } else { odd.push(half) }
    }
    sums(&even);
    sums(&odd);
    for rank in even.iter().chain(&odd) {
        rank.finalize().unwrap();
    }
}

#[test]
fn what_there_is_to_know_of_a_gpu() {
    if !ready() {
        return;
    }
    assert_eq!(cuda::count().unwrap(), 2);
    let info = cuda::shared(1, &Settings::default()).unwrap().info().unwrap();
    assert_eq!(info.name, "GPU 1 (Stand-in)");
    assert_eq!(info.bus_id, "0000:18:00.0");
    assert_eq!((info.compute_capability, info.multiprocessors), (90, 16));
    assert_eq!((info.memory, info.driver_version), (1 << 34, 12_040));
}

/// What a host does before a launch, as counting steps, it does without the device's memory. A process of its own, as others would have it
/// reached.
#[test]
fn the_host_touches_no_device_memory() {
    if !ready() {
        return;
    }
    for scenario in ["collectives_and_messages_over_a_network", "a_graph_over_a_network"] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &format!("as_on_a_gpu::{scenario}")]);
        let output = child.env("FAKE_CUDA_GUARD", "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{}: {text}", output.status);
    }
}
