//! One suite for every protocol, type, operator, rank count and shape of buffer.
//!
//! Each case runs the public API on the CPU runtime, under two set-ups: the default one, and a hostile one
//! (2 slots of the smallest size, 3 channels). What is checked is in `support/reductions.rs`;
//! `tests/emulator` runs a part of the suite in the PTX emulator. Each type is with half of the numbers of ranks, and with all of them in the
//! nightly tier.

use ferroccl::{Algorithm, Device, F8E4M3, F8E5M2, ProtocolId, ReduceOp};

use crate::random::Random;
use crate::reductions::{Group, Reduction, all_cases, group, group_by, knows, reduce};
use crate::tier;
use crate::values::Case;

static COUNTS: [usize; 10] = [0, 1, 2, 3, 15, 16, 17, 1023, 4096, 100_003];

/// Of each type. The nightly tier has all with every protocol and number of ranks, others half.
const ALL_CASES: [fn(&Group, &mut Random); 12] = [
    all_cases::<i8>,
    all_cases::<u8>,
    all_cases::<i32>,
    all_cases::<u32>,
    all_cases::<i64>,
    all_cases::<u64>,
    all_cases::<half::f16>,
    all_cases::<half::bf16>,
    all_cases::<f32>,
    all_cases::<f64>,
    all_cases::<F8E4M3>,
    all_cases::<F8E5M2>,
];

fn every_type(protocol: ProtocolId, nranks: u32) {
    // Odd and even numbers of ranks for each type: 1, 3 and 8, or 2, 4 and 5.
    let variant = nranks as usize * 3 / 4 + protocol.index();
    let seed = 0xF3220 + u64::from(nranks) * 8 + protocol.index() as u64;
    println!("seed {seed:#x}");
    for hostile in [false, true] {
        // The smallest slots take a thousand steps for the largest count: it adds nothing.
        let counts = if hostile { &COUNTS[..COUNTS.len() - 1] } else { &COUNTS[..] };
        let group = group(&Device::cpu(), protocol, nranks, hostile, counts);
        let random = &mut Random(seed);
        for (i, cases) in ALL_CASES.iter().enumerate() {
            if tier::takes(i, variant) {
                cases(&group, random);
            }
        }
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

/// What reduces, and by what.
const WAYS: [(Reduction, Algorithm); 19] = [
    (Reduction::AllReduce, Algorithm::Tree),
    (Reduction::AllReduce, Algorithm::OneShot),
    (Reduction::AllReduce, Algorithm::TwoShot),
    (Reduction::AllReduce, Algorithm::Direct),
    (Reduction::AllReduce, Algorithm::Nvls),
    (Reduction::ReduceScatter, Algorithm::OneShot),
    (Reduction::ReduceScatter, Algorithm::Direct),
    (Reduction::ReduceScatter, Algorithm::Nvls),
    (Reduction::AllReduce, Algorithm::Chain),
    (Reduction::AllReduce, Algorithm::Doubling),
    (Reduction::AllReduce, Algorithm::Hierarchical),
    (Reduction::AllReduce, Algorithm::CollnetDirect),
    (Reduction::ReduceScatter, Algorithm::Ring),
    (Reduction::ReduceScatter, Algorithm::Bruck),
    (Reduction::ReduceScatter, Algorithm::Linear),
    (Reduction::ReduceScatter, Algorithm::Chain),
    (Reduction::Reduce, Algorithm::Ring),
    (Reduction::Reduce, Algorithm::Tree),
    (Reduction::Reduce, Algorithm::Chain),
];

fn by_every_way<T: Case>(protocol: ProtocolId, nranks: u32) {
    let random = &mut Random(u64::from(nranks) * 8 + protocol.index() as u64);
    for (what, algorithm) in WAYS.into_iter().filter(|(_, a)| knows(*a, protocol)) {
        for hostile in [false, true] {
            let way = (algorithm, protocol);
            let group = group_by(&Device::cpu(), way, nranks, hostile, &[1, 19, 2051]);
            for &op in ReduceOp::ALL {
                for &count in group.counts {
                    let blocks = if what == Reduction::ReduceScatter { nranks as usize } else { 1 };
                    let inputs: Vec<Vec<T>> = (0..nranks)
                        .map(|_| (0..count * blocks).map(|_| T::draw(random, op)).collect())
                        .collect();
                    let (in_place, misaligned) = (random.chance(50), random.chance(50));
                    println!("{algorithm} {protocol} hostile {hostile}");
                    reduce(&group, what, op, &inputs, in_place, misaligned);
                }
            }
        }
    }
}

/// Of each type; as [`ALL_CASES`].
const BY_EVERY_WAY: [fn(ProtocolId, u32); 12] = [
    by_every_way::<i8>,
    by_every_way::<u8>,
    by_every_way::<i32>,
    by_every_way::<u32>,
    by_every_way::<i64>,
    by_every_way::<u64>,
    by_every_way::<half::f16>,
    by_every_way::<half::bf16>,
    by_every_way::<f32>,
    by_every_way::<f64>,
    by_every_way::<F8E4M3>,
    by_every_way::<F8E5M2>,
];

/// Every operator and type by every algorithm that reduces, in every protocol.
#[test]
fn every_way() {
    for &protocol in ProtocolId::ALL {
        for (variant, nranks) in [2, 5].into_iter().enumerate() {
            for (i, by_every_way) in BY_EVERY_WAY.iter().enumerate() {
                if tier::takes(i, variant) {
                    by_every_way(protocol, nranks);
                }
            }
        }
    }
}
