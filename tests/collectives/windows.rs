//! Calls on registered buffers: they work on the buffers of all ranks directly, whatever their sizes, types and places; and what
//! cannot be direct is made as any other call.

use ferroccl::enqueue::CollectiveCall;
use ferroccl::{
    Algorithm, Collective, CommConfig, Communicator, DataType, Device, DeviceBuffer, Element,
    ReduceOp, Stream, Window,
};
use half::f16;

use crate::again::{elsewhere, here};
use crate::random::Random;
use crate::tier;

struct Ranks {
    device: Device,
    all: Vec<Communicator>,
    streams: Vec<Stream>,
}

/// Ranks whose calls are direct wherever they can be.
fn ranks(n: u32, channels: u32) -> Ranks {
    ranks_by(Algorithm::Direct, n, channels)
}

/// Ranks whose calls are done by an algorithm wherever they can be.
fn ranks_by(algorithm: Algorithm, n: u32, channels: u32) -> Ranks {
    let device = Device::cpu();
    let mut config = CommConfig::default();
    config.algorithm = Some(algorithm);
    config.channels = Some(channels);
    let all = Communicator::init_all_with(&device, n, &config).unwrap();
    let streams = all.iter().map(|_| device.stream().unwrap()).collect();
    Ranks { device, all, streams }
}

impl Ranks {
    /// A registered buffer of `len` elements on each rank.
    fn windows<T: Element>(&self, len: usize) -> (Vec<DeviceBuffer<T>>, Vec<Window>) {
        let buffers: Vec<_> =
            self.all.iter().map(|_| self.device.alloc_shared(len).unwrap()).collect();
        let windows = Communicator::register_windows(self.all.iter().zip(&buffers)).unwrap();
        for window in &windows {
            assert!(window.is_direct(), "{:?}", window.why_not_direct());
            assert!(window.is_multicast(), "{:?}", window.why_not_multicast());
            assert_eq!(window.len(), len * size_of::<T>());
        }
        (buffers, windows)
    }

    fn fill<T: Element>(
        &self,
        buffers: &[DeviceBuffer<T>],
        at: usize,
        values: impl Fn(usize, usize) -> T,
        n: usize,
    ) {
        for (r, (buffer, stream)) in buffers.iter().zip(&self.streams).enumerate() {
            let values: Vec<T> = (0..n).map(|i| values(r, i)).collect();
            buffer.slice(at..).copy_from(&values, stream).unwrap();
        }
    }

    fn check<T: Element + PartialEq>(
        &self,
        what: &str,
        buffers: &[DeviceBuffer<T>],
        at: usize,
        want: impl Fn(usize, usize) -> T,
        n: usize,
    ) {
        for (r, (buffer, stream)) in buffers.iter().zip(&self.streams).enumerate() {
            let got = buffer.slice(at..at + n).to_vec(stream).unwrap();
            for (i, got) in got.into_iter().enumerate() {
                assert_eq!(got, want(r, i), "{what}, rank {r}, element {i}");
            }
        }
    }
}

fn value(rank: usize, i: usize) -> u64 {
    Random((rank as u64) << 40 | i as u64).below(1 << 20) as u64
}

/// All collectives on `count` elements that begin anywhere, in place and not; of values less than `below`.
fn all_calls<T: Element + PartialEq>(
    ranks: &Ranks,
    count: usize,
    below: u64,
    of: impl Fn(u64) -> T,
) {
    let value = |rank: usize, i: usize| value(rank, i) % below;
    let n = ranks.all.len();
    let (guard, len) = (7, n * count + 40);
    let (sends, _sends) = ranks.windows::<T>(len);
    let (receives, _receives) = ranks.windows::<T>(len);
    for (from, to) in [(0, 0), (3, 1), (16, 0)] {
        let name = |call: &str| format!("{call} of {count} {} from {from} to {to}", T::TYPE);
        let input = |r: usize, i: usize| of(value(r, i));
        let sum = |i: usize| of((0..n).map(|r| value(r, i)).sum());
        for in_place in [false, true] {
            // The guards behind the results stay.
            ranks.fill(&receives, 0, |_, _| of(5), len);
            ranks.fill(&sends, from, input, n * count);
            if in_place {
                ranks.fill(&receives, to, input, n * count);
            }
            let send = |r: usize| {
                let (buffer, at) = if in_place { (&receives[r], to) } else { (&sends[r], from) };
                (buffer.clone(), at)
            };
            for (r, rank) in ranks.all.iter().enumerate() {
                let (send, at) = send(r);
                let (send, recv) = (send.slice(at..at + count), receives[r].slice(to..to + count));
                rank.all_reduce(&send, &recv, ReduceOp::Sum, &ranks.streams[r]).unwrap();
            }
            ranks.check(&name("all_reduce"), &receives, to, |_, i| sum(i), count);
            if !in_place {
                ranks.check("guard", &receives, to + count, |_, _| of(5), guard);
            }

            ranks.fill(&receives, 0, |_, _| of(5), len);
            for (r, rank) in ranks.all.iter().enumerate() {
                let all = receives[r].slice(to..to + n * count);
                let own = if in_place {
                    let block = all.slice(r * count..(r + 1) * count);
                    let values: Vec<T> = (0..count).map(|i| input(r, i)).collect();
                    block.copy_from(&values, &ranks.streams[r]).unwrap();
                    block
                } else {
                    sends[r].slice(from..from + count)
                };
                rank.all_gather(&own, &all, &ranks.streams[r]).unwrap();
            }
            let gathered = |_: usize, i: usize| input(i / count.max(1), i % count.max(1));
            ranks.check(&name("all_gather"), &receives, to, gathered, n * count);
            ranks.check("guard", &receives, to + n * count, |_, _| of(5), guard);

            if !in_place {
                ranks.fill(&sends, from, input, n * count);
                ranks.fill(&receives, 0, |_, _| of(5), len);
                for (r, rank) in ranks.all.iter().enumerate() {
                    let send = sends[r].slice(from..from + n * count);
                    let recv = receives[r].slice(to..to + n * count);
                    rank.all_to_all(&send, &recv, &ranks.streams[r]).unwrap();
                }
                let got =
                    |r: usize, i: usize| input(i / count.max(1), r * count + i % count.max(1));
                ranks.check(&name("all_to_all"), &receives, to, got, n * count);
                ranks.check("guard", &receives, to + n * count, |_, _| of(5), guard);
            }

            ranks.fill(&sends, from, input, n * count);
            for (r, rank) in ranks.all.iter().enumerate() {
                let all = sends[r].slice(from..from + n * count);
                let own = if in_place {
                    all.slice(r * count..(r + 1) * count)
                } else {
                    receives[r].slice(to..to + count)
                };
                rank.reduce_scatter(&all, &own, ReduceOp::Sum, &ranks.streams[r]).unwrap();
            }
            for r in 0..n {
                let own = if in_place {
                    sends[r].slice(from + r * count..)
                } else {
                    receives[r].slice(to..)
                };
                let got = own.slice(..count).to_vec(&ranks.streams[r]).unwrap();
                for (i, got) in got.into_iter().enumerate() {
                    let want = sum(r * count + i);
                    assert_eq!(got, want, "{}, rank {r}, element {i}", name("reduce_scatter"));
                }
            }
        }
    }
}

/// Numbers of ranks, and of channels: each with one or the other, and with both in the nightly tier.
fn shapes() -> impl Iterator<Item = (u32, u32)> {
    let all = [2, 3, 5, 8].into_iter().enumerate();
    all.flat_map(|(i, n)| {
        let channels = [1, 3].into_iter().enumerate();
        channels.filter(move |(j, _)| tier::takes(i, *j)).map(move |(_, channels)| (n, channels))
    })
}

#[test]
fn collectives_on_windows() {
    for (n, channels) in shapes() {
        let ranks = ranks(n, channels);
        for count in [0, 1, 17, 1000, 20_011] {
            all_calls::<u64>(&ranks, count, 1 << 20, |v| v);
            all_calls::<u8>(&ranks, count, 1 << 20, |v| v as u8);
        }
    }
}

/// The same by NVLS, where a rank plays the switch.
#[test]
fn collectives_by_nvls() {
    for (n, channels) in shapes() {
        let ranks = ranks_by(Algorithm::Nvls, n, channels);
        for count in [0, 1, 17, 1000, 20_011] {
            all_calls::<f32>(&ranks, count, 1 << 20, |v| v as f32);
            all_calls::<f16>(&ranks, count, 200, |v| f16::from_f32(v as f32));
        }
    }
}

/// All values of an element are summed before the sum is rounded, and all ranks have the same bits.
#[test]
fn nvls_rounds_a_sum_of_halves_once() {
    let ranks = ranks_by(Algorithm::Nvls, 5, 2);
    let count = 3001;
    assert_eq!(planned(&ranks, ReduceOp::Sum), Algorithm::Nvls);
    let input = |r: usize, i: usize| f16::from_f32(value(r, i) as f32 / 1024.0 - 300.0);
    let (buffers, _windows) = ranks.windows::<f16>(count);
    let sum = |i: usize| f16::from_f32((0..5).map(|r| input(r, i).to_f32()).sum());
    let by_step = |i: usize| (1..5).fold(input(0, i), |sum, r| sum + input(r, i));
    // Elements in packs, which are not all.
    let packs = count / 2 / 8;
    assert!((0..packs).any(|i| sum(i) != by_step(i)));
    ranks.fill(&buffers, 0, input, count);
    for (r, rank) in ranks.all.iter().enumerate() {
        rank.all_reduce(&buffers[r], &buffers[r], ReduceOp::Sum, &ranks.streams[r]).unwrap();
    }
    ranks.check("sums", &buffers, 0, |_, i| sum(i), packs);
    let all: Vec<Vec<f16>> =
        buffers.iter().zip(&ranks.streams).map(|(b, s)| b.to_vec(s).unwrap()).collect();
    assert!(all.iter().all(|one| *one == all[0]));
}

/// What a switch does not do is done directly: other operators, averages of halves, and sums whose order matters.
#[test]
fn what_no_switch_sums_is_direct() {
    let ranks = ranks_by(Algorithm::Nvls, 3, 1);
    let (_buffers, _windows) = ranks.windows::<f32>(10);
    for op in [ReduceOp::Max, ReduceOp::Min, ReduceOp::Prod] {
        assert_ne!(planned(&ranks, op), Algorithm::Nvls, "{op}");
    }
    assert_eq!(planned(&ranks, ReduceOp::Avg), Algorithm::Nvls);
    // Their sums could be too large for the type.
    assert_ne!(planned_of(&ranks, DataType::F16, ReduceOp::Avg), Algorithm::Nvls);
    assert_eq!(planned_of(&ranks, DataType::Bf16, ReduceOp::Avg), Algorithm::Nvls);
    let mut config = CommConfig::default();
    config.algorithm = Some(Algorithm::Nvls);
    config.deterministic = Some(true);
    let all = Communicator::init_all_with(&ranks.device, 2, &config).unwrap();
    let streams = Vec::new();
    let ranks = Ranks { device: ranks.device.clone(), all, streams };
    let (_buffers, _windows) = ranks.windows::<f32>(10);
    assert_ne!(planned(&ranks, ReduceOp::Sum), Algorithm::Nvls);
}

/// The algorithm of a large all-reduce.
fn planned(ranks: &Ranks, op: ReduceOp) -> Algorithm {
    planned_of(ranks, DataType::F32, op)
}

fn planned_of(ranks: &Ranks, data_type: DataType, op: ReduceOp) -> Algorithm {
    let (collective, count) = (Collective::AllReduce, 1 << 20);
    let call = CollectiveCall { collective, count, data_type, op, root: None };
    ranks.all[0].plan_in_windows(&call).unwrap().algorithm
}

/// The values of a call are combined in the order of the ranks, and rounded at each step.
#[test]
fn sums_have_the_bits_of_a_chain() {
    let ranks = ranks(5, 2);
    let count = 3001;
    let input = |r: usize, i: usize| f16::from_f32(value(r, i) as f32 / 1024.0 - 300.0);
    let (buffers, windows) = ranks.windows::<f16>(count);
    let folded = |i: usize| (1..5).fold(input(0, i), |sum, r| sum + input(r, i));
    ranks.fill(&buffers, 0, input, count);
    for (r, rank) in ranks.all.iter().enumerate() {
        rank.all_reduce(&buffers[r], &buffers[r], ReduceOp::Sum, &ranks.streams[r]).unwrap();
    }
    ranks.check("windows", &buffers, 0, |_, i| folded(i), count);
    // The same without windows.
    drop(windows);
    ranks.fill(&buffers, 0, input, count);
    for (r, rank) in ranks.all.iter().enumerate() {
        rank.all_reduce(&buffers[r], &buffers[r], ReduceOp::Avg, &ranks.streams[r]).unwrap();
    }
    for stream in &ranks.streams {
        stream.synchronize().unwrap();
    }
}

#[test]
fn averages_and_other_operators() {
    let ranks = ranks(3, 2);
    let count = 1003;
    let (buffers, _windows) = ranks.windows::<i32>(count);
    let signed = |r: usize, i: usize| value(r, i) as i32 - (1 << 19);
    let all = |i: usize| (0..3).map(move |r| signed(r, i));
    for op in [ReduceOp::Avg, ReduceOp::Max, ReduceOp::Min] {
        ranks.fill(&buffers, 0, signed, count);
        for (r, rank) in ranks.all.iter().enumerate() {
            rank.all_reduce(&buffers[r], &buffers[r], op, &ranks.streams[r]).unwrap();
        }
        let want = |_: usize, i: usize| match op {
            ReduceOp::Max => all(i).max().unwrap(),
            ReduceOp::Min => all(i).min().unwrap(),
            _ => all(i).sum::<i32>() / 3,
        };
        ranks.check(op.name(), &buffers, 0, want, count);
    }
    // Each rank multiplies by a factor of its own.
    let (buffers, _windows) = ranks.windows::<f32>(count);
    ranks.fill(&buffers, 0, |r, i| value(r, i) as f32, count);
    for (r, rank) in ranks.all.iter().enumerate() {
        let op = ferroccl::Operator::pre_mul_sum((r + 1) as f32);
        rank.all_reduce(&buffers[r], &buffers[r], op, &ranks.streams[r]).unwrap();
    }
    let want = |_: usize, i: usize| (0..3).map(|r| (r + 1) as f32 * value(r, i) as f32).sum();
    ranks.check("factors", &buffers, 0, want, count);
}

#[test]
fn buffers_at_other_places_are_an_error_everywhere() {
    let ranks = ranks(3, 1);
    assert_eq!(planned(&ranks, ReduceOp::Sum), Algorithm::Direct);
    let (buffers, _windows) = ranks.windows::<f32>(100);
    let mut told = 0;
    for (r, rank) in ranks.all.iter().enumerate() {
        let at = if r == 1 { 4 } else { 0 };
        let part = buffers[r].slice(at..at + 50);
        let _ = rank.all_reduce(&part, &part, ReduceOp::Sum, &ranks.streams[r]);
    }
    for stream in &ranks.streams {
        let error = stream.synchronize().unwrap_err().to_string();
        told += usize::from(error.contains("with buffers at different places of their windows"));
    }
    assert!(told > 0);
}

#[test]
fn a_buffer_in_no_window_is_an_error_everywhere() {
    let ranks = ranks(3, 1);
    let (buffers, _windows) = ranks.windows::<f32>(100);
    for (r, rank) in ranks.all.iter().enumerate() {
        let other = ranks.device.alloc::<f32>(100).unwrap();
        let buffer = if r == 2 { &other } else { &buffers[r] };
        let _ = rank.all_reduce(buffer, buffer, ReduceOp::Sum, &ranks.streams[r]);
    }
    let errors: Vec<String> =
        ranks.streams.iter().map(|s| s.synchronize().unwrap_err().to_string()).collect();
    assert!(errors.iter().any(|e| e.contains("by Direct Simple")), "{errors:?}");
}

#[test]
fn registrations_that_differ_are_refused() {
    let ranks = ranks(2, 1);
    let buffers: Vec<_> = [100, 101].map(|n| ranks.device.alloc::<f32>(n).unwrap()).into();
    let register = || Communicator::register_windows(ranks.all.iter().zip(&buffers));
    let error = register().unwrap_err().to_string();
    assert!(
        error.contains("invalid argument buffer: has 400 bytes, rank 1 registers 404")
            || error.contains("invalid argument buffer: has 404 bytes, rank 0 registers 400"),
        "{error}"
    );
    // Nothing is left behind: the next registration is one.
    let (buffers, windows) = ranks.windows::<f32>(10);
    for (r, rank) in ranks.all.iter().enumerate() {
        rank.all_reduce(&buffers[r], &buffers[r], ReduceOp::Sum, &ranks.streams[r]).unwrap();
        assert!(!windows[r].is_empty());
    }
    ranks.check("sums", &buffers, 0, |_, _| 0.0, 10);
}

#[test]
fn a_window_that_cannot_be_direct_says_why() {
    let device = Device::cpu();
    let mut config = CommConfig::default();
    config.ranks_per_node = Some(1);
    let alone = Communicator::init_all(&device, 1).unwrap();
    let buffer = device.alloc_shared::<f32>(10).unwrap();
    let window = alone[0].register_window(&buffer).unwrap();
    assert_eq!(window.why_not_direct(), Some("there are no other ranks"));
    assert_eq!(window.why_not_multicast(), Some("there are no other ranks"));
    let stream = device.stream().unwrap();
    alone[0].all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream).unwrap();
    stream.synchronize().unwrap();
}

/// With `NCCL_ALGO=Direct`, which the settings of a communicator do not have, so in a process with that environment.
#[test]
fn a_call_that_may_only_be_direct_says_what_it_needs() {
    if !here() {
        let test = "a_call_that_may_only_be_direct_says_what_it_needs";
        return elsewhere(module_path!(), test, &[("NCCL_ALGO", "direct")]);
    }
    let ranks = ranks(2, 1);
    let (buffers, windows) = ranks.windows::<f32>(10);
    for (r, rank) in ranks.all.iter().enumerate() {
        rank.all_reduce(&buffers[r], &buffers[r], ReduceOp::Sum, &ranks.streams[r]).unwrap();
    }
    ranks.check("sums", &buffers, 0, |_, _| 0.0, 10);
    drop(windows);
    let (rank, buffer, stream) = (&ranks.all[0], &buffers[0], &ranks.streams[0]);
    let error = rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream).unwrap_err().to_string();
    assert!(error.ends_with("; Direct is for buffers that are registered as windows"), "{error}");
}

/// With `NCCL_NVLS_ENABLE=0`, and only NVLS allowed, likewise.
#[test]
fn without_multicast_objects_windows_say_why_and_calls_what_they_need() {
    if !here() {
        let test = "without_multicast_objects_windows_say_why_and_calls_what_they_need";
        let variables = [("NCCL_ALGO", "allreduce:nvls"), ("NCCL_NVLS_ENABLE", "0")];
        return elsewhere(module_path!(), test, &variables);
    }
    let device = Device::cpu();
    let all = Communicator::init_all(&device, 2).unwrap();
    let streams = all.iter().map(|_| device.stream().unwrap()).collect();
    let ranks = Ranks { device, all, streams };
    let buffers: Vec<_> =
        ranks.all.iter().map(|_| ranks.device.alloc_shared::<f32>(10).unwrap()).collect();
    let windows = Communicator::register_windows(ranks.all.iter().zip(&buffers)).unwrap();
    assert!(windows[0].is_direct() && !windows[0].is_multicast());
    assert_eq!(windows[1].why_not_multicast(), Some("NCCL_NVLS_ENABLE is 0"));
    let (rank, buffer, stream) = (&ranks.all[0], &buffers[0], &ranks.streams[0]);
    let error = rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream).unwrap_err().to_string();
    let needs = "; NVLS is for buffers that are registered as windows of GPUs whose switch has multicast objects";
    assert!(error.ends_with(needs), "{error}");
    // What else is allowed is done.
    let sends: Vec<_> = ranks.all.iter().map(|_| ranks.device.alloc(5).unwrap()).collect();
    for (r, rank) in ranks.all.iter().enumerate() {
        rank.all_gather(&sends[r], &buffers[r], &ranks.streams[r]).unwrap();
    }
    for stream in &ranks.streams {
        stream.synchronize().unwrap();
    }
}
