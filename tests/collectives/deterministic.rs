//! The deterministic mode: values are combined in the order of the ranks, whatever the collective, the size, the protocol
//! and the number of channels; and on the CPU and in the PTX emulator alike.

use ferroccl::{
    Algorithm, CommConfig, Communicator, Device, DeviceBuffer, ProtocolId, ReduceOp, Stream, ptx,
};
use half::f16;

use crate::random::Random;

/// The same numbers for a rank and an index, however many there are.
fn input(rank: usize, index: usize) -> f32 {
    let mut random = Random((rank as u64) << 32 | index as u64);
    ((random.unit() - 0.5) * 2f64.powi(random.below(24) as i32)) as f32
}

/// In the order of the ranks.
fn folded(n: usize, index: usize) -> f32 {
    (1..n).fold(input(0, index), |sum, rank| sum + input(rank, index))
}

struct Ranks {
    device: Device,
    all: Vec<Communicator>,
    streams: Vec<Stream>,
    name: String,
}

fn ranks(device: &Device, n: usize, protocol: Option<ProtocolId>, channels: Option<u32>) -> Ranks {
    ranks_by(device, n, (None, protocol), channels)
}

fn ranks_by(
    device: &Device,
    n: usize,
    (algorithm, protocol): (Option<Algorithm>, Option<ProtocolId>),
    channels: Option<u32>,
) -> Ranks {
    let mut config = CommConfig::default();
    config.deterministic = Some(true);
    (config.algorithm, config.protocol, config.channels) = (algorithm, protocol, channels);
    let all = Communicator::init_all_with(device, n as u32, &config).unwrap();
    let streams = all.iter().map(|_| device.stream().unwrap()).collect();
    let name = format!("{algorithm:?}, {protocol:?}, {channels:?}");
    Ranks { device: device.clone(), all, streams, name }
}

impl Ranks {
    fn buffers(&self, count: usize) -> Vec<DeviceBuffer<f32>> {
        let buffer = |rank: usize| {
            let values: Vec<f32> = (0..count).map(|i| input(rank, i)).collect();
            self.device.upload(&values).unwrap()
        };
        (0..self.all.len()).map(buffer).collect()
    }

    fn check(&self, what: &str, rank: usize, got: &DeviceBuffer<f32>, from: usize) {
        let got = got.to_vec(&self.streams[rank]).unwrap();
        for (i, got) in got.into_iter().enumerate() {
            let want = folded(self.all.len(), from + i);
            assert_eq!(
                got.to_bits(),
                want.to_bits(),
                "{what}, rank {rank}, element {i}, {}",
                self.name
            );
        }
    }

    fn all_calls(&self, count: usize) {
        let n = self.all.len();
        let sends = self.buffers(count);
        for (r, rank) in self.all.iter().enumerate() {
            rank.all_reduce(&sends[r], &sends[r], ReduceOp::Sum, &self.streams[r]).unwrap();
        }
        for (r, send) in sends.iter().enumerate() {
            self.check(&format!("all_reduce of {count}"), r, send, 0);
        }
        for root in [0, n - 1] {
            let sends = self.buffers(count);
            for (r, rank) in self.all.iter().enumerate() {
                let (send, stream) = (&sends[r], &self.streams[r]);
                rank.reduce(send, send, ReduceOp::Sum, root as u32, stream).unwrap();
            }
            self.check(&format!("reduce of {count} to {root}"), root, &sends[root], 0);
        }
        let each = count.div_ceil(n);
        let sends = self.buffers(each * n);
        let blocks: Vec<_> = (0..n).map(|r| sends[r].slice(r * each..(r + 1) * each)).collect();
        for (r, rank) in self.all.iter().enumerate() {
            let (send, block, stream) = (&sends[r], &blocks[r], &self.streams[r]);
            rank.reduce_scatter(send, block, ReduceOp::Sum, stream).unwrap();
        }
        for (r, block) in blocks.iter().enumerate() {
            self.check(&format!("reduce_scatter of {each}"), r, block, r * each);
        }
    }
}

/// One-shot and two-shot combine in the order of the ranks, too, though they send in another.
#[test]
fn over_the_mesh_too() {
    for n in [2, 3, 6, 11] {
        for algorithm in [Algorithm::OneShot, Algorithm::TwoShot] {
            for protocol in ProtocolId::ALL {
                let way = (Some(algorithm), Some(*protocol));
                let ranks = ranks_by(&Device::cpu(), n, way, Some(2));
                for count in [1, 37, 5000] {
                    ranks.all_calls(count);
                }
            }
        }
    }
}

#[test]
fn sums_have_the_same_bits_whatever_the_call() {
    for n in [2, 3, 6] {
        for protocol in ProtocolId::ALL.iter().copied().map(Some).chain([None]) {
            for channels in [None, Some(1), Some(3)] {
                let ranks = ranks(&Device::cpu(), n, protocol, channels);
                for count in [1, 33, 5000, 60_001] {
                    ranks.all_calls(count);
                }
            }
        }
    }
}

/// Without the mode they do not: else the test above would say nothing.
#[test]
fn sums_of_a_ring_differ() {
    let device = Device::cpu();
    let mut config = CommConfig::default();
    config.algorithm = Some(ferroccl::Algorithm::Ring);
    let all = Communicator::init_all_with(&device, 5, &config).unwrap();
    let streams: Vec<_> = all.iter().map(|_| device.stream().unwrap()).collect();
    let ranks = Ranks { device, all, streams, name: String::new() };
    let sends = ranks.buffers(5000);
    for (r, rank) in ranks.all.iter().enumerate() {
        rank.all_reduce(&sends[r], &sends[r], ReduceOp::Sum, &ranks.streams[r]).unwrap();
    }
    let sums = sends[0].to_vec(&ranks.streams[0]).unwrap();
    for stream in &ranks.streams {
        stream.synchronize().unwrap();
    }
    let differ = (0..5000).filter(|i| sums[*i].to_bits() != folded(5, *i).to_bits()).count();
    assert!(differ > 100, "{differ}");
}

/// Halves are rounded once a rank.
#[test]
fn halves_too() {
    let value = |rank: usize, i: usize| f16::from_f32(input(rank, i) / 1e4);
    let device = Device::cpu();
    let ranks = ranks(&device, 4, None, None);
    for count in [7, 4000] {
        let sends: Vec<_> = (0..4)
            .map(|r| device.upload(&(0..count).map(|i| value(r, i)).collect::<Vec<_>>()).unwrap())
            .collect();
        for (r, rank) in ranks.all.iter().enumerate() {
            rank.all_reduce(&sends[r], &sends[r], ReduceOp::Sum, &ranks.streams[r]).unwrap();
        }
        for (send, stream) in sends.iter().zip(&ranks.streams) {
            for (i, got) in send.to_vec(stream).unwrap().into_iter().enumerate() {
                let sum = |sum: f16, r: usize| f16::from_f32(sum.to_f32() + value(r, i).to_f32());
                assert_eq!(got.to_bits(), (1..4).fold(value(0, i), sum).to_bits(), "element {i}");
            }
        }
    }
}

/// The same kernels' PTX.
#[test]
fn in_the_emulator_too() {
    if ptx::unavailable().is_some() {
        return; // the suite in `tests/emulator` says so
    }
    let device = Device::ptx().unwrap();
    for &protocol in ProtocolId::ALL {
        let ranks = ranks(&device, 3, Some(protocol), None);
        for count in [3, 700] {
            ranks.all_calls(count);
        }
    }
}
