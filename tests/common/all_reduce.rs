//! Checked all-reduces: one case, and all cases of a group of ranks.
//!
//! Rank 0's result is checked against the reference, every other rank's must be the same bits, and elements
//! around the buffers must be untouched.

use ferroccl::{CommConfig, Communicator, Device, Operator, ProtocolId, ReduceOp, Stream};

use super::{Case, Random};

/// Elements kept free on both sides of a buffer; odd, so that `misaligned` buffers are.
const GUARD: usize = 3;

pub(crate) struct Group {
    pub(crate) ranks: Vec<Communicator>,
    pub(crate) streams: Vec<Stream>,
    pub(crate) device: Device,
    pub(crate) counts: &'static [usize],
}

/// A group in the default set-up, or a hostile one: 2 slots of the smallest size, 3 channels.
pub(crate) fn group(
    device: &Device,
    protocol: ProtocolId,
    nranks: u32,
    hostile: bool,
    counts: &'static [usize],
) -> Group {
    let mut config = CommConfig::default();
    config.protocol = Some(protocol);
    if hostile {
        config.slots = Some(2);
        config.buffer_bytes = [Some(512); 3];
        config.channels = Some(3);
    }
    let ranks = Communicator::init_all_with(device, nranks, &config).unwrap();
    let streams = ranks.iter().map(|_| device.stream().unwrap()).collect();
    Group { ranks, streams, device: device.clone(), counts }
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

/// One case.
pub(crate) fn case<T: Case>(
    group: &Group,
    op: ReduceOp,
    inputs: &[Vec<T>],
    in_place: bool,
    misaligned: bool,
) {
    let count = inputs[0].len();
    let at = || {
        format!(
            "type {} op {op} ranks {} count {count} in_place {in_place} misaligned {misaligned}",
            T::TYPE,
            inputs.len()
        )
    };
    // The start of an allocation is aligned; one guard element before the data moves it off.
    let before = if misaligned { GUARD } else { 64 };
    let poison: Vec<T> =
        (0..count + before + GUARD).map(|i| T::draw(&mut Random(i as u64), op)).collect();
    let mut buffers = Vec::new();
    for (stream, input) in group.streams.iter().zip(inputs) {
        let whole = group.device.upload(&poison).unwrap();
        let recv = whole.slice(before..before + count);
        let send = if in_place {
            recv.copy_from(input, stream).unwrap();
            recv.clone()
        } else {
            let send = group.device.upload(&poison).unwrap().slice(before..before + count);
            send.copy_from(input, stream).unwrap();
            send
        };
        buffers.push((whole, send, recv));
    }
    // Only now: where everything runs in one schedule, all that is to meet must be there before it does.
    let ops: Vec<_> =
        (0..buffers.len()).map(|rank| operator::<T>(&group.device, op, rank)).collect();
    for (r, (_, send, recv)) in buffers.iter().enumerate() {
        group.ranks[r].all_reduce(send, recv, ops[r].clone(), &group.streams[r]).unwrap();
    }
    // Calls keep what they need.
    drop(ops);
    let mut first: Option<Vec<T>> = None;
    for (r, ((whole, send, _), stream)) in buffers.iter().zip(&group.streams).enumerate() {
        let got = whole.to_vec(stream).unwrap_or_else(|e| panic!("{}: rank {r}: {e}", at()));
        let (head, tail) = (&got[..before], &got[before + count..]);
        assert!(
            head == &poison[..before] && tail == &poison[before + count..],
            "{}: rank {r} wrote outside",
            at()
        );
        let got = &got[before..before + count];
        if !in_place {
            assert!(
                send.to_vec(stream).unwrap() == inputs[r],
                "{}: rank {r} wrote its input",
                at()
            );
        }
        if let Some(first) = &first {
            assert!(first == got, "{}: rank {r} differs from rank 0", at());
            continue;
        }
        for (i, &got) in got.iter().enumerate() {
            let values: Vec<T> = inputs.iter().map(|input| input[i]).collect();
            assert!(T::correct(&values, op, got), "{}: element {i}: {values:?} gave {got:?}", at());
        }
        first = Some(got.to_vec());
    }
}
