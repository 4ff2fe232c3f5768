//! The reduce-copy loop against arithmetic that is written out, over numbers of sources, both ways through memory.

use super::*;
use crate::abi::Work;
use crate::element::{Bf16, BinOp, F8E4M3, F8E5M2, F16, Unit};
use crate::gpu::cpu::{Adversary, Block, CheckedGuard, Machine, Order, set_current};
use crate::gpu::{Verdict, Waiting};
use crate::reduce::{Max, Min, PreMulSum, Prod, Sum};

/// A machine whose adversary does at once what it is asked: data moves pack by pack.
struct Honest;

impl Machine for Honest {
    fn pause(&self, _: &Waiting) -> Verdict {
        unreachable!("nothing waits")
    }
    fn adversary(&self) -> Option<&dyn Adversary> {
        Some(self)
    }
}

impl Adversary for Honest {
    fn before_load(&self, _: *const u8, _: usize) {}
    unsafe fn store(&self, address: *mut u8, bytes: &[u8], _: usize, _: Order) {
        // SAFETY: the caller's.
        unsafe { address.copy_from(bytes.as_ptr(), bytes.len()) }
    }
    fn fence(&self) {}
    fn before_rmw(&self) {}
}

/// Any integer; a float with any sign and mantissa that is smaller than 2, subnormal now and then.
fn draw<T: Element>(seed: &mut u64) -> T {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let highest_of_exponent = if T::FLOAT { 1 << (8 * size_of::<T>() - 2) } else { 0 };
    T::of_bits(seed.rotate_left(29) & !highest_of_exponent)
}

/// The result of one element, rounded once where the type is a small float: a unit is an element here.
fn expected<T: Element, R: Reduction>(reducer: &Reducer<T, R>, values: &[T]) -> T {
    let units: Vec<T::Unit> = values.iter().map(|v| v.to_unit()).collect();
    let [first] = reducer.pre([units[0]]);
    if units.len() == 2 {
        return T::of_unit(R::Op::apply(first, units[1]));
    }
    let wide = units[1..].iter().fold(first.widen(), |wide, unit| R::Op::apply(wide, unit.widen()));
    T::of_unit(if units.len() == 1 { first } else { T::Unit::narrow(wide) })
}

fn check<T: Element + core::fmt::Debug, R: Reduction>() {
    let seed = &mut (0x5eed + T::TYPE as u64 * 16 + R::ID as u64);
    let mut work: Work = bytemuck::Zeroable::zeroed();
    // 1.25: exact in every type, and no power of two.
    let factor = [0x3ff4_0000_0000_0000, 0x3fa0_0000][usize::from(size_of::<T>() < 8)];
    work.scalar = if T::FLOAT { factor } else { 5 };
    // SAFETY: its scalar is no address.
    let reducer = unsafe { Reducer::<T, R>::of(&work) };
    for n in [0, 1, 17, 300, 9001] {
        for sources in 1..=MAX_ENDS {
            let inputs: Vec<Vec<T>> =
                (0..sources).map(|_| (0..n).map(|_| draw(seed)).collect()).collect();
            for in_place in [false, true] {
                let mut inputs = inputs.clone();
                let want: Vec<T> = (0..n)
                    .map(|i| expected(&reducer, &inputs.iter().map(|v| v[i]).collect::<Vec<_>>()))
                    .collect();
                let mut outputs = [vec![T::of_bits(0); n], vec![T::of_bits(0); n]];
                let mut pointers = [core::ptr::null(); MAX_ENDS];
                for (pointer, input) in pointers.iter_mut().zip(&mut inputs) {
                    *pointer = input.as_mut_ptr().cast_const();
                }
                let [a, b] = &mut outputs;
                let first = if in_place { pointers[0].cast_mut() } else { a.as_mut_ptr() };
                let copy = ReduceCopy::<T, R> {
                    sources: pointers,
                    destinations: [first, b.as_mut_ptr(), b.as_mut_ptr(), b.as_mut_ptr()],
                    reducer,
                    lanes: Lanes { index: 0, count: 1 },
                };
                let shape = Shape { sources, destinations: 2, own: true, last: true };
                // SAFETY: all hold `n` elements; what is the same is source and destination 0.
                unsafe { copy.run(shape, n) };
                let first = if in_place { &inputs[0] } else { &outputs[0] };
                for (i, want) in want.iter().enumerate() {
                    for got in [first[i], outputs[1][i]] {
                        let (got, want) = (got.to_bits(), want.to_bits());
                        assert_eq!(
                            got,
                            want,
                            "{} {} of {sources} sources, element {i} of {n}",
                            T::TYPE,
                            R::ID
                        );
                    }
                }
            }
            words(&reducer, &inputs);
        }
    }
}

/// The same in words of 8 bytes, as the lines of LL and LL128 have them.
fn words<T: Element, R: Reduction>(reducer: &Reducer<T, R>, inputs: &[Vec<T>]) {
    let per_word = 8 / size_of::<T>();
    let bits = 8 * size_of::<T>();
    let word = |values: &[T]| {
        values.iter().enumerate().fold(0, |word, (i, v)| word | v.to_bits() << (bits * i))
    };
    for at in (0..inputs[0].len() / per_word * per_word).step_by(per_word) {
        let [first, more @ ..] =
            &inputs.iter().map(|v| word(&v[at..at + per_word])).collect::<Vec<_>>()[..]
        else {
            return;
        };
        let got = reducer.combine_all(reducer.pre_word(*first), more);
        for i in 0..per_word {
            let values: Vec<T> = inputs.iter().map(|v| v[at + i]).collect();
            let want = expected(reducer, &values).to_bits();
            assert_eq!(
                T::of_bits(got >> (bits * i)).to_bits(),
                want,
                "{} {} of words of {} sources",
                T::TYPE,
                R::ID,
                inputs.len()
            );
        }
    }
}

fn every_reduction<T: Element + core::fmt::Debug>() {
    check::<T, Sum>();
    check::<T, Prod>();
    check::<T, Min>();
    check::<T, Max>();
    check::<T, PreMulSum>();
}

fn every_type() {
    every_reduction::<F16>();
    every_reduction::<Bf16>();
    every_reduction::<F8E4M3>();
    every_reduction::<F8E5M2>();
    every_reduction::<f32>();
    every_reduction::<f64>();
    every_reduction::<i8>();
    every_reduction::<u32>();
}

#[test]
fn whole_buffers_are_combined_as_documented() {
    let _alone = ALONE.lock();
    every_type();
}

#[test]
fn packs_are_combined_as_documented() {
    let _alone = ALONE.lock();
    let _checked = CheckedGuard::new();
    let block = Block { index: 0, machine: &Honest };
    // SAFETY: the block lives until it is replaced.
    let before = unsafe { set_current(&raw const block) };
    every_type();
    // SAFETY: it was current before.
    unsafe { set_current(before) };
}

/// That blocks are checked is a setting of the process.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
