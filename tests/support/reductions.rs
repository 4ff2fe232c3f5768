//! Checked reductions: one case, and all cases of a group of ranks.
//!
//! A result is checked against the reference; where all ranks get it they must have the same bits; and elements around
//! the buffers must be untouched.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::sync::Arc;

use ferroccl::collnet::SoftwareCollNet;
use ferroccl::{
    Algorithm, CommConfig, Communicator, Device, Operator, ProtocolId, ReduceOp, Stream, Window,
};

use crate::random::Random;
use crate::values::Case;

/// Elements kept free on both sides of a buffer; odd, so that `misaligned` buffers are.
const GUARD: usize = 3;

pub(crate) struct Group {
    pub(crate) ranks: Vec<Communicator>,
    pub(crate) streams: Vec<Stream>,
    pub(crate) device: Device,
    pub(crate) counts: &'static [usize],
    /// Whether buffers are registered.
    pub(crate) windows: bool,
}

/// What reduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    AllReduce,
    ReduceScatter,
    /// To the last rank.
    Reduce,
}

/// Whether an algorithm has kernels of a protocol; with another one, a call is made by any algorithm.
pub(crate) fn knows(algorithm: Algorithm, protocol: ProtocolId) -> bool {
    !algorithm.is_on_windows() || protocol == ProtocolId::Simple
}

/// A group whose calls are done by one algorithm.
pub(crate) fn group_by(
    device: &Device,
    (algorithm, protocol): (Algorithm, ProtocolId),
    nranks: u32,
    hostile: bool,
    counts: &'static [usize],
) -> Group {
    let mut config = config(protocol, hostile);
    config.algorithm = Some(algorithm);
    config.ranks_per_node = match algorithm {
        Algorithm::Hierarchical => Some(2),
        Algorithm::CollnetDirect => Some(1),
        _ => None,
    };
    if algorithm == Algorithm::CollnetDirect {
        config.collnet = Some(Arc::new(SoftwareCollNet::new()));
    }
    let windows = algorithm.is_on_windows();
    Group { windows, ..of_config(device, nranks, &config, counts) }
}

/// A group in the default set-up, or a hostile one: 2 slots of the smallest size, 3 channels.
pub(crate) fn group(
    device: &Device,
    protocol: ProtocolId,
    nranks: u32,
    hostile: bool,
    counts: &'static [usize],
) -> Group {
    of_config(device, nranks, &config(protocol, hostile), counts)
}

fn config(protocol: ProtocolId, hostile: bool) -> CommConfig {
    let mut config = CommConfig::default();
    config.protocol = Some(protocol);
    if hostile {
        config.slots = Some(2);
        config.buffer_bytes = [Some(512); 3];
        config.channels = Some(3);
    }
    config
}

fn of_config(device: &Device, nranks: u32, config: &CommConfig, counts: &'static [usize]) -> Group {
    let ranks = Communicator::init_all_with(device, nranks, config).unwrap();
    let streams = ranks.iter().map(|_| device.stream().unwrap()).collect();
    Group { ranks, streams, device: device.clone(), counts, windows: false }
}

/// Every operator, count, place and alignment.
pub(crate) fn all_cases<T: Case>(group: &Group, random: &mut Random) {
    for &op in ReduceOp::ALL {
        for &count in group.counts {
            let inputs: Vec<Vec<T>> = group
                .ranks
                .iter()
                .map(|_| (0..count).map(|_| T::draw(random, op)).collect())
                .collect();
            for in_place in [false, true] {
                for misaligned in [false, true] {
                    case(group, op, &inputs, in_place, misaligned);
                }
            }
        }
    }
}

/// What a rank calls with; of pre-multiplied sums every other rank has its scalar in device memory.
pub(crate) fn operator<T: Case>(device: &Device, op: ReduceOp, rank: usize) -> Operator<T> {
    match op {
        ReduceOp::PreMulSum if rank % 2 == 1 => {
            // Between others, so that a wrong address gives a wrong factor.
            let others = [T::factor(rank + 1), T::factor(rank), T::factor(rank + 2)];
            Operator::pre_mul_sum_at(&device.upload(&others).unwrap().slice(1..))
        }
        ReduceOp::PreMulSum => Operator::pre_mul_sum(T::factor(rank)),
        builtin => builtin.into(),
    }
}

/// One case of an all-reduce.
pub(crate) fn case<T: Case>(
    group: &Group,
    op: ReduceOp,
    inputs: &[Vec<T>],
    in_place: bool,
    misaligned: bool,
) {
    reduce(group, Reduction::AllReduce, op, inputs, in_place, misaligned);
}

/// One case. Of a reduce-scatter the inputs have a block for each rank.
pub(crate) fn reduce<T: Case>(
    group: &Group,
    what: Reduction,
    op: ReduceOp,
    inputs: &[Vec<T>],
    in_place: bool,
    misaligned: bool,
) {
    let (count, n) = (inputs[0].len(), inputs.len());
    let at = || {
        format!(
            "{what:?} type {} op {op} ranks {n} count {count} in_place {in_place} misaligned {misaligned}",
            T::TYPE
        )
    };
    // The elements of the input that a rank gets the reduction of.
    let gets = |rank: usize| match what {
        Reduction::AllReduce => 0..count,
        Reduction::ReduceScatter => rank * (count / n)..(rank + 1) * (count / n),
        Reduction::Reduce if rank == n - 1 => 0..count,
        Reduction::Reduce => 0..0,
    };
    // The start of an allocation is aligned; one guard element before the data moves it off.
    let before = if misaligned { GUARD } else { 64 };
    let poison: Vec<T> =
        (0..count + before + GUARD).map(|i| T::draw(&mut Random(i as u64), op)).collect();
    let mut buffers = Vec::new();
    for (rank, (stream, input)) in group.streams.iter().zip(inputs).enumerate() {
        let poisoned = || {
            if !group.windows {
                return group.device.upload(&poison).unwrap();
            }
            let buffer = group.device.alloc_shared(poison.len()).unwrap();
            buffer.copy_from(&poison, stream).unwrap();
            buffer
        };
        let whole = poisoned();
        let sent = if in_place { whole.clone() } else { poisoned() };
        let send = sent.slice(before..before + count);
        send.copy_from(input, stream).unwrap();
        let recv = match (what, in_place) {
            (Reduction::ReduceScatter, true) => send.slice(gets(rank)),
            (Reduction::ReduceScatter, false) => whole.slice(before..before + count / n),
            _ => whole.slice(before..before + count),
        };
        buffers.push((whole, send, recv));
    }
    let mut windows = Vec::new();
    if group.windows {
        let register = |buffers: Vec<_>| {
            Communicator::register_windows(group.ranks.iter().zip(&buffers)).unwrap()
        };
        windows = register(buffers.iter().map(|(whole, ..)| whole.clone()).collect());
        if !in_place {
            windows.extend(register(buffers.iter().map(|(_, send, _)| send.clone()).collect()));
        }
        assert!(windows.iter().all(Window::is_direct), "{:?}", windows[0].why_not_direct());
    }
    // Only now: where everything runs in one schedule, all that is to meet must be there before it does.
    let ops: Vec<_> = (0..n).map(|rank| operator::<T>(&group.device, op, rank)).collect();
    for (r, (_, send, recv)) in buffers.iter().enumerate() {
        let (rank, stream, op) = (&group.ranks[r], &group.streams[r], ops[r].clone());
        match what {
            Reduction::AllReduce => rank.all_reduce(send, recv, op, stream),
            Reduction::ReduceScatter => rank.reduce_scatter(send, recv, op, stream),
            Reduction::Reduce => rank.reduce(send, recv, op, n as u32 - 1, stream),
        }
        .unwrap();
    }
    // Calls keep what they need.
    drop((ops, windows));
    let mut first: Option<Vec<T>> = None;
    for (r, ((whole, send, _), stream)) in buffers.iter().zip(&group.streams).enumerate() {
        let got = whole.to_vec(stream).unwrap_or_else(|e| panic!("{}: rank {r}: {e}", at()));
        let gets = gets(r);
        let start = before + if in_place { gets.start } else { 0 };
        // Everything but the result is as it was.
        let mut want = poison.clone();
        if in_place {
            want[before..before + count].copy_from_slice(&inputs[r]);
        }
        want[start..start + gets.len()].copy_from_slice(&got[start..start + gets.len()]);
        assert!(got == want, "{}: rank {r} wrote outside", at());
        if !in_place {
            assert!(
                send.to_vec(stream).unwrap() == inputs[r],
                "{}: rank {r} wrote its input",
                at()
            );
        }
        let got = &got[start..start + gets.len()];
        if let (Some(first), Reduction::AllReduce) = (&first, what) {
            assert!(first == got, "{}: rank {r} differs from rank 0", at());
            continue;
        }
        for (i, &got) in gets.zip(got) {
            let values: Vec<T> = inputs.iter().map(|input| input[i]).collect();
            assert!(T::correct(&values, op, got), "{}: element {i}: {values:?} gave {got:?}", at());
        }
        first = Some(got.to_vec());
    }
}
