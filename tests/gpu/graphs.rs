//! Captured calls: replayed on new data.

use ferroccl::runtime::cuda::{CudaGraph, CudaTimer};
use ferroccl::{Algorithm, CommConfig, Communicator, ProtocolId, ReduceOp, group};
use libtest_mimic::Trial;

use crate::{gpu, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let mut all = Vec::new();
    for &protocol in ProtocolId::ALL {
        for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::OneShot] {
            let name = format!("a graph of {algorithm} {protocol}");
            all.push(trial(name, move || replay(algorithm, protocol)));
        }
    }
    all.push(trial("a graph of a group with messages", messages));
    all
}

fn replay(algorithm: Algorithm, protocol: ProtocolId) {
    const COUNT: usize = 100_003;
    let device = gpu();
    let mut config = CommConfig::default();
    (config.protocol, config.algorithm) = (Some(protocol), Some(algorithm));
    let ranks = Communicator::init_all_with(&device, 3, &config).unwrap();
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    let buffers: Vec<_> = ranks.iter().map(|_| device.alloc::<u32>(COUNT).unwrap()).collect();
    let graph = CudaGraph::capture(&streams.iter().collect::<Vec<_>>(), || {
        for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
            rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream)?;
            rank.reduce(buffer, buffer, ReduceOp::Sum, 1, stream)?;
        }
        Ok(())
    })
    .unwrap();
    for round in 1..6u32 {
        for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
            buffer.copy_from(&vec![round * (rank.rank() + 1); COUNT], stream).unwrap();
            rank.barrier(stream).unwrap();
        }
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        graph.launch(&streams[0]).unwrap();
        streams[0].synchronize().unwrap();
        for (i, buffer) in buffers.iter().enumerate() {
            let want = round * 6 * if i == 1 { 3 } else { 1 };
            let got = buffer.to_vec(&streams[0]).unwrap();
            assert!(got.iter().all(|x| *x == want), "round {round}, rank {i}: {}", got[0]);
        }
    }
}

fn messages() {
    const COUNT: usize = 50_001;
    let device = gpu();
    let ranks = Communicator::init_all(&device, 2).unwrap();
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    let new = || device.alloc::<u32>(COUNT).unwrap();
    let (sums, sent, received) = ([new(), new()], [new(), new()], [new(), new()]);
    let graph = CudaGraph::capture(&[&streams[0], &streams[1]], || {
        group(|| {
            for (r, (rank, stream)) in ranks.iter().zip(&streams).enumerate() {
                rank.all_reduce(&sums[r], &sums[r], ReduceOp::Sum, stream)?;
                rank.send(&sent[r], 1 - r as u32, stream)?;
                rank.recv(&received[r], 1 - r as u32, stream)?;
            }
            Ok(())
        })
    })
    .unwrap();
    for round in 1..6u32 {
        for (r, stream) in streams.iter().enumerate() {
            sums[r].copy_from(&[round; COUNT], stream).unwrap();
            sent[r].copy_from(&[10 * round + r as u32; COUNT], stream).unwrap();
            stream.synchronize().unwrap();
        }
        let timer = CudaTimer::start(&streams[0]).unwrap();
        graph.launch(&streams[0]).unwrap();
        timer.stop(&streams[0]).unwrap();
        streams[0].synchronize().unwrap();
        assert!(timer.seconds().unwrap() > 0.0);
        for r in 0..2 {
            assert!(sums[r].to_vec(&streams[r]).unwrap().iter().all(|x| *x == 2 * round));
            let other = 10 * round + 1 - r as u32;
            assert!(received[r].to_vec(&streams[r]).unwrap().iter().all(|x| *x == other));
        }
    }
}
