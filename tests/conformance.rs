//! One suite for every protocol, type, operator, rank count and shape of buffer.
//!
//! Each case runs the public API on the CPU runtime, under two set-ups: the default one, and a hostile one
//! (2 slots of the smallest size, 3 channels). Rank 0's result is checked against the reference, every
//! other rank's must be the same bits, and elements around the buffers must be untouched.

mod common;

use common::{Case, Random};
use ferroccl::{CommConfig, Communicator, Device, ProtocolId, ReduceOp, Stream};

const COUNTS: [usize; 10] = [0, 1, 2, 3, 15, 16, 17, 1023, 4096, 100_003];
/// Elements kept free on both sides of a buffer; odd, so that `misaligned` buffers are.
const GUARD: usize = 3;

struct Group {
    ranks: Vec<Communicator>,
    streams: Vec<Stream>,
    device: Device,
    counts: &'static [usize],
}

fn group(protocol: ProtocolId, nranks: u32, hostile: bool) -> Group {
    let device = Device::cpu();
    let mut config = CommConfig::default();
    config.protocol = Some(protocol);
    if hostile {
        config.slots = Some(2);
        config.buffer_bytes = [Some(512); 3];
        config.channels = Some(3);
    }
    let ranks = Communicator::init_all_with(&device, nranks, &config).unwrap();
    let streams = ranks.iter().map(|_| device.stream().unwrap()).collect();
    // The smallest slots take a thousand steps for the largest count: it adds nothing.
    let counts = if hostile { &COUNTS[..COUNTS.len() - 1] } else { &COUNTS[..] };
    Group { ranks, streams, device, counts }
}

fn all_cases<T: Case>(group: &Group, random: &mut Random) {
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

fn case<T: Case>(group: &Group, op: ReduceOp, inputs: &[Vec<T>], in_place: bool, misaligned: bool) {
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
    for ((rank, stream), input) in group.ranks.iter().zip(&group.streams).zip(inputs) {
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
        rank.all_reduce(&send, &recv, op, stream).unwrap();
        buffers.push((whole, send));
    }
    let mut first: Option<Vec<T>> = None;
    for (r, ((whole, send), stream)) in buffers.iter().zip(&group.streams).enumerate() {
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

fn every_type(protocol: ProtocolId, nranks: u32) {
    let seed = 0xF3220 + u64::from(nranks) * 8 + protocol as u64;
    println!("seed {seed:#x}");
    for hostile in [false, true] {
        let group = group(protocol, nranks, hostile);
        let random = &mut Random(seed);
        all_cases::<i8>(&group, random);
        all_cases::<u8>(&group, random);
        all_cases::<i32>(&group, random);
        all_cases::<u32>(&group, random);
        all_cases::<i64>(&group, random);
        all_cases::<u64>(&group, random);
        all_cases::<half::f16>(&group, random);
        all_cases::<half::bf16>(&group, random);
        all_cases::<f32>(&group, random);
        all_cases::<f64>(&group, random);
    }
}

macro_rules! suites {
    ($($name:ident: $protocol:ident $ranks:literal;)*) => { $(
        #[test]
        fn $name() {
            every_type(ProtocolId::$protocol, $ranks);
        }
    )* };
}
suites! {
    simple_1: Simple 1; simple_2: Simple 2; simple_3: Simple 3; simple_4: Simple 4; simple_5: Simple 5; simple_8: Simple 8;
    ll_1: Ll 1; ll_2: Ll 2; ll_3: Ll 3; ll_4: Ll 4; ll_5: Ll 5; ll_8: Ll 8;
    ll128_1: Ll128 1; ll128_2: Ll128 2; ll128_3: Ll128 3; ll128_4: Ll128 4; ll128_5: Ll128 5; ll128_8: Ll128 8;
}
