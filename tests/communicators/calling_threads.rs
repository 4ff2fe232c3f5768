//! Ranks of one process, called by one thread or by a thread each: the tuner has a model for either, and all ranks take the same.

use ferroccl::flight_recorder::ProcessRecord;
use ferroccl::graph::tuning::{Choice, Devices, Settings, Situation, choose};
use ferroccl::{Collective, CommConfig, Communicator, Device, ReduceOp, group};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use crate::again::{elsewhere, here};
use crate::{each, init_ranks};

const RANKS: u32 = 16;

/// What a call of 8 bytes is chosen for, in the words of the records.
fn chosen(situation: &Situation<'_>) -> String {
    let settings = Settings::default();
    let Choice { algorithm, protocol, .. } =
        choose(situation, Collective::AllReduce, 8, &settings).unwrap();
    format!("{algorithm} {protocol}")
}

/// How each rank's calls were done, by rank.
fn plans() -> Vec<Vec<(u64, String)>> {
    let mut ranks = ProcessRecord::here().communicators;
    assert_eq!(ranks.len(), RANKS as usize);
    ranks.sort_by_key(|comm| comm.rank);
    let calls = |comm: &ferroccl::flight_recorder::CommRecord| {
        let calls = comm.calls.iter();
        calls.map(|call| (call.number.unwrap(), call.plan.clone().unwrap())).collect()
    };
    ranks.iter().map(calls).collect()
}

/// A sum of 8 bytes by each rank's thread, so often.
fn by_threads(device: &Device, ranks: &[Communicator], calls: u64) {
    each(RANKS, |rank| {
        let comm = &ranks[rank as usize];
        let stream = device.stream().unwrap();
        for call in 0..calls {
            let buffer = device.upload(&[u64::from(rank) + call]).unwrap();
            comm.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream).unwrap();
            assert_eq!(
                buffer.to_vec(&stream).unwrap(),
                [120 + 16 * call],
                "rank {rank}, call {call}"
            );
        }
    });
}

fn by_one(device: &Device, ranks: &[Communicator]) {
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    let buffers: Vec<_> = ranks.iter().map(|_| device.upload(&[1u64]).unwrap()).collect();
    for sum in [16, 256, 4096] {
        group(|| {
            ranks.iter().zip(&buffers).zip(&streams).try_for_each(|((comm, buffer), stream)| {
                comm.all_reduce(buffer, buffer, ReduceOp::Sum, stream)
            })
        })
        .unwrap();
        for (buffer, stream) in buffers.iter().zip(&streams) {
            assert_eq!(buffer.to_vec(stream).unwrap(), [sum]);
        }
    }
}

#[test]
fn ranks_that_threads_of_their_own_call_are_planned_for_that() {
    if !here() {
        let name = "ranks_that_threads_of_their_own_call_are_planned_for_that";
        return elsewhere(module_path!(), name, &[]);
    }
    let device = Device::cpu();
    // As the library counts them: a quota of time leaves none out.
    let may_use = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let cores = (0..CpuSet::count()).filter(|core| may_use.is_set(*core).unwrap()).count() as u32;
    for alone in [false, true] {
        let config = CommConfig::default();
        let ranks = match alone {
            false => Communicator::init_all_with(&device, RANKS, &config).unwrap(),
            true => init_ranks(&device, RANKS, &config),
        };
        let one = Situation::new(1, RANKS, Devices::Cpu { ring: None });
        let one = one.with_channels(ranks[0].channels());
        let (of_one, of_each) = (chosen(&one), chosen(&one.clone().with_threads(RANKS, cores)));
        by_one(&device, &ranks);
        let before = plans();
        assert!(before.iter().flatten().all(|(_, plan)| *plan == of_one), "{before:?}");
        by_threads(&device, &ranks, 20);
        let after = plans();
        assert!(after.iter().all(|rank| *rank == after[0]), "{after:?}");
        assert_eq!(after[0].last(), Some(&(23, of_each.clone())));
        // One way before, and the other afterwards.
        let changes = after[0].windows(2).filter(|calls| calls[0].1 != calls[1].1).count();
        assert_eq!(changes, usize::from(of_one != of_each), "{:?}", after[0]);
    }
}
