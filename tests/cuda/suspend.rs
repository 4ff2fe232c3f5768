//! Memory of GPUs that communicators give back, and what they count of it.

use ferroccl::runtime::cuda::CudaGraph;
use ferroccl::{CommConfig, Communicator, Device, ReduceOp, SuspendedCommunicator};

use crate::errors::{settled, until};
use crate::stand_in::{Kind, alone, gpus, live, ready};

/// Sums of all ranks, each in a stream of its own.
fn sums_are_right(ranks: &[Communicator], devices: &[Device]) {
    let buffers: Vec<_> =
        devices.iter().map(|device| device.upload(&[3_u32; 5000]).unwrap()).collect();
    let streams: Vec<_> = devices.iter().map(|device| device.stream().unwrap()).collect();
    for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
        rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream).unwrap();
    }
    for (buffer, stream) in buffers.iter().zip(&streams) {
        assert!(buffer.to_vec(stream).unwrap() == [3 * ranks.len() as u32; 5000]);
    }
}

#[test]
fn memory_of_gpus_goes_and_comes_again() {
    if !ready() {
        return;
    }
    let _alone = alone();
    for ordinals in [&[0, 1][..], &[1, 1, 0]] {
        let devices = gpus(ordinals);
        let mut ranks = Communicator::init_all_on(&devices, &CommConfig::default()).unwrap();
        let mut with_memory = None;
        for _ in 0..3 {
            // A rank has the connections from each of the others, in a GPU's memory, and they are most of it.
            let used: Vec<u64> = ranks.iter().map(|rank| rank.memory_use().calls).collect();
            assert!(used.iter().all(|bytes| *bytes > 1 << 20), "{used:?}");
            assert_eq!(*with_memory.get_or_insert(used.clone()), used);
            sums_are_right(&ranks, &devices);
            let there = settled(|| live(Kind::Allocation));
            let suspended = Communicator::suspend_all(ranks).unwrap();
            // A rank's connections are one allocation, which is too large to be kept for the next one of its size.
            until(|| live(Kind::Allocation) <= there - devices.len() as i64);
            ranks = SuspendedCommunicator::resume_all(&suspended).unwrap();
            sums_are_right(&ranks, &devices);
        }
    }
}

/// A graph that has captured a call keeps its communicator.
#[test]
fn a_graph_keeps_a_communicator_from_being_suspended() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let devices = gpus(&[0, 0]);
    let ranks = Communicator::init_all_on(&devices, &CommConfig::default()).unwrap();
    let buffers = [0, 1].map(|_| devices[0].upload(&[1_u32; 8]).unwrap());
    let streams = [0, 1].map(|_| devices[0].stream().unwrap());
    let graph = CudaGraph::capture(&[&streams[0], &streams[1]], || {
        ferroccl::group(|| {
            for ((rank, stream), buffer) in ranks.iter().zip(&streams).zip(&buffers) {
                rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream)?;
            }
            Ok(())
        })
    });
    let refused = Communicator::suspend_all(ranks).unwrap_err().to_string();
    assert!(refused.contains("a graph that has captured its calls"), "{refused}");
    drop(graph.unwrap());
}
