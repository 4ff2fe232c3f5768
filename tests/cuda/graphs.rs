//! Calls captured in a graph: replayed on new data, keeping what they need, and no longer than that.

use std::sync::Arc;

use ferroccl::runtime::cuda::{CudaGraph, CudaRuntime, CudaTimer};
use ferroccl::{Algorithm, CommConfig, Communicator, Device, ProtocolId, ReduceOp, Stream, group};

use crate::errors::{settled, until};
use crate::stand_in::{Kind, alone, live, ready};

const COUNT: usize = 3001;

struct Ranks {
    device: Device,
    ranks: Vec<Communicator>,
    streams: Vec<Stream>,
}

impl Ranks {
    fn new(n: u32, config: &CommConfig) -> Self {
        let device = Device::new(Arc::new(CudaRuntime::new(0).unwrap()));
        let ranks = Communicator::init_all_with(&device, n, config).unwrap();
        let streams = ranks.iter().map(|_| device.stream().unwrap()).collect();
        Ranks { device, ranks, streams }
    }

    fn streams(&self) -> Vec<&Stream> {
        self.streams.iter().collect()
    }
}

/// Every algorithm and protocol, in place, three times: state that a call leaves in memory must be as at its beginning.
#[test]
fn a_replay_is_a_call() {
    if !ready() {
        return;
    }
    let _alone = alone();
    for &protocol in ProtocolId::ALL {
        for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::OneShot] {
            let mut config = CommConfig::default();
            (config.protocol, config.algorithm) = (Some(protocol), Some(algorithm));
            config.slots = Some(2);
            config.buffer_bytes = [Some(2048); 3];
            let all = Ranks::new(3, &config);
            let buffers: Vec<_> =
                all.ranks.iter().map(|_| all.device.alloc::<u32>(COUNT).unwrap()).collect();
            let graph = CudaGraph::capture(&all.streams(), || {
                for ((rank, buffer), stream) in all.ranks.iter().zip(&buffers).zip(&all.streams) {
                    rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream)?;
                    rank.reduce(buffer, buffer, ReduceOp::Sum, 1, stream)?;
                }
                Ok(())
            })
            .unwrap();
            for round in 1..4u32 {
                // Calls that are not captured may come in between.
                for ((rank, buffer), stream) in all.ranks.iter().zip(&buffers).zip(&all.streams) {
                    buffer.copy_from(&vec![round * (rank.rank() + 1); COUNT], stream).unwrap();
                    rank.barrier(stream).unwrap();
                }
                all.streams.iter().for_each(|stream| stream.synchronize().unwrap());
                graph.launch(&all.streams[0]).unwrap();
                all.streams[0].synchronize().unwrap();
                for (i, buffer) in buffers.iter().enumerate() {
                    let want = round * 6 * if i == 1 { 3 } else { 1 };
                    let got = buffer.to_vec(&all.streams[0]).unwrap();
                    assert_eq!(
                        got,
                        vec![want; COUNT],
                        "{algorithm} {protocol}, round {round}, rank {i}"
                    );
                }
            }
        }
    }
}

#[test]
fn groups_and_messages() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let all = Ranks::new(2, &CommConfig::default());
    let new = || all.device.alloc::<u32>(COUNT).unwrap();
    let (sums, sent, received) = ([new(), new()], [new(), new()], [new(), new()]);
    let graph = CudaGraph::capture(&all.streams(), || {
        group(|| {
            for (r, (rank, stream)) in all.ranks.iter().zip(&all.streams).enumerate() {
                rank.all_reduce(&sums[r], &sums[r], ReduceOp::Sum, stream)?;
                rank.send(&sent[r], 1 - r as u32, stream)?;
                rank.recv(&received[r], 1 - r as u32, stream)?;
            }
            Ok(())
        })
    })
    .unwrap();
    for round in 1..4u32 {
        for (r, stream) in all.streams.iter().enumerate() {
            sums[r].copy_from(&[round; COUNT], stream).unwrap();
            sent[r].copy_from(&[10 * round + r as u32; COUNT], stream).unwrap();
            stream.synchronize().unwrap();
        }
        let timer = CudaTimer::start(&all.streams[0]).unwrap();
        graph.launch(&all.streams[0]).unwrap();
        timer.stop(&all.streams[0]).unwrap();
        all.streams[0].synchronize().unwrap();
        assert!(timer.seconds().unwrap() > 0.0);
        for r in 0..2 {
            let stream = &all.streams[r];
            assert_eq!(sums[r].to_vec(stream).unwrap(), [2 * round; COUNT]);
            let other = 10 * round + 1 - r as u32;
            assert_eq!(received[r].to_vec(stream).unwrap(), [other; COUNT]);
        }
    }
}

/// Over a network the proxies have their part in each replay.
#[test]
fn between_hosts() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let mut config = CommConfig::default();
    (config.p2p, config.shm) = (Some(false), Some(false));
    config.net = Some(Arc::new(ferroccl_proxy::net::LocalNet::default()));
    let all = Ranks::new(2, &config);
    let buffers = [0, 1].map(|_| all.device.alloc::<u32>(COUNT).unwrap());
    let graph = CudaGraph::capture(&all.streams(), || {
        for (r, rank) in all.ranks.iter().enumerate() {
            rank.all_reduce(&buffers[r], &buffers[r], ReduceOp::Sum, &all.streams[r])?;
        }
        Ok(())
    })
    .unwrap();
    for round in 1..4u32 {
        for (buffer, stream) in buffers.iter().zip(&all.streams) {
            buffer.copy_from(&[round; COUNT], stream).unwrap();
            stream.synchronize().unwrap();
        }
        graph.launch(&all.streams[0]).unwrap();
        all.streams[0].synchronize().unwrap();
        assert_eq!(buffers[1].to_vec(&all.streams[1]).unwrap(), [2 * round; COUNT]);
    }
}

/// A graph keeps buffers and communicators; when it is gone so are they.
#[test]
fn a_graph_keeps_what_it_needs() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let objects = || [Kind::Allocation, Kind::Graph, Kind::UserObject, Kind::Stream].map(live);
    let before = settled(objects);
    let all = Ranks::new(2, &CommConfig::default());
    let result = all.device.alloc::<u32>(COUNT).unwrap();
    let graph = {
        let inputs: Vec<_> =
            (1..3).map(|x| all.device.upload(&vec![x as u32; COUNT]).unwrap()).collect();
        let other = all.device.alloc::<u32>(COUNT).unwrap();
        CudaGraph::capture(&all.streams(), || {
            for (r, rank) in all.ranks.iter().enumerate() {
                let to = if r == 0 { &result } else { &other };
                rank.all_reduce(&inputs[r], to, ReduceOp::Sum, &all.streams[r])?;
            }
            Ok(())
        })
        .unwrap()
    };
    let Ranks { device, ranks, streams } = all;
    drop(ranks);
    for _ in 0..2 {
        graph.launch(&streams[0]).unwrap();
        streams[0].synchronize().unwrap();
        assert_eq!(result.to_vec(&streams[0]).unwrap(), [3; COUNT]);
    }
    drop((graph, streams, result, device));
    until(|| objects() == before);
}

/// What is captured is in order with the graph, and not with what was called before.
#[test]
fn calls_before_a_capture_are_no_part_of_it() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let all = Ranks::new(1, &CommConfig::default());
    let buffer = all.device.upload(&[7u32; COUNT]).unwrap();
    let call = |stream: &Stream| all.ranks[0].all_reduce(&buffer, &buffer, ReduceOp::Sum, stream);
    call(&all.streams[0]).unwrap();
    let other = all.device.stream().unwrap();
    let graph = CudaGraph::capture(&[&other], || call(&other)).unwrap();
    call(&all.streams[0]).unwrap();
    all.streams[0].synchronize().unwrap();
    graph.launch(&other).unwrap();
    other.synchronize().unwrap();
    assert_eq!(buffer.to_vec(&other).unwrap(), [7; COUNT]);
}

/// Who is told when a replay goes wrong: the stream that it ran in.
#[test]
fn a_replay_that_fails_is_an_error_of_its_stream() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let all = Ranks::new(2, &CommConfig::default());
    let buffer = all.device.alloc::<u32>(COUNT).unwrap();
    let capture = |r: usize| {
        CudaGraph::capture(&[&all.streams[r]], || {
            all.ranks[r].all_reduce(&buffer, &buffer, ReduceOp::Sum, &all.streams[r])
        })
        .unwrap()
    };
    let graphs = [capture(0), capture(1)];
    graphs[0].launch(&all.streams[0]).unwrap();
    all.ranks[0].abort();
    let error = all.streams[0].synchronize().unwrap_err().to_string();
    assert!(error.contains("abort"), "{error}");
    drop(graphs);
}

#[test]
fn what_cannot_be_captured_says_so() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let all = Ranks::new(1, &CommConfig::default());
    let buffer = all.device.alloc::<u32>(10).unwrap();
    let error = CudaGraph::capture(&all.streams(), || buffer.copy_from(&[1; 10], &all.streams[0]));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("cannot be captured in a graph"), "{error}");
    // The stream goes on.
    buffer.copy_from(&[1; 10], &all.streams[0]).unwrap();
    assert_eq!(buffer.to_vec(&all.streams[0]).unwrap(), [1; 10]);
    let error = CudaGraph::capture(&[], || Ok(())).unwrap_err().to_string();
    assert!(error.contains("streams"), "{error}");
    let cpu = Device::cpu().stream().unwrap();
    let error = CudaGraph::capture(&[&cpu], || Ok(())).unwrap_err().to_string();
    assert!(error.contains("another runtime"), "{error}");
    assert!(CudaTimer::start(&cpu).is_err());
}
