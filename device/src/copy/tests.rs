//! The reduce-copy loop against arithmetic that is written out, over numbers of sources, both ways through memory.

use super::*;
use crate::abi::{ReduceOp, Work};
use crate::arith::{Arith, Unit};
use crate::element::{Bf16, F8E4M3, F8E5M2, F16};
use crate::gpu::cpu::{Access, Adversary, Block, CheckedGuard, Machine, Order, set_current};
use crate::gpu::{Verdict, Waiting};

use crate::reduce::{
    Any, AnyFloat, AnyFloat8, AnySigned, AnyUnsigned, Max, Min, PreMulSum, Prod, Sum,
};

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
    fn before_load(&self, _: *const u8, _: usize, _: Access) {}
    unsafe fn store(&self, address: *mut u8, bytes: &[u8], _: usize, _: Order) {
        // SAFETY: the caller's.
        unsafe { address.copy_from(bytes.as_ptr(), bytes.len()) }
    }
    fn fence(&self) {}
    fn before_rmw(&self, _: *const u8, _: Access, _: Order) {}
}

/// Any integer; a float with any sign and mantissa that is smaller than 2, subnormal now and then.
fn draw<T: Element>(seed: &mut u64) -> T {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let highest_of_exponent = if T::FLOAT { 1 << (8 * size_of::<T>() - 2) } else { 0 };
    T::of_bits(seed.rotate_left(29) & !highest_of_exponent)
}

/// Combines two values of any kind.
fn apply<A: Arith>(op: ReduceOp, a: A, b: A) -> A {
    match op {
        ReduceOp::Prod => a.mul(b),
        ReduceOp::Min => a.min(b),
        ReduceOp::Max => a.max(b),
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum => a.add(b),
    }
}

/// The factor of floats: exact in every type, and no power of two. Of integers, and what their averages divide by: 5.
const FACTOR: f64 = 1.25;

/// The result of one element, rounded once where the type is a small float: a unit is an element here.
fn expected<T: Element>(op: ReduceOp, values: &[T]) -> T {
    let units: Vec<T::Unit> = values.iter().map(|v| v.to_unit()).collect();
    let multiplies = op == ReduceOp::PreMulSum || op == ReduceOp::Avg && T::FLOAT;
    let first = if multiplies { units[0].times(T::Unit::factor(scalar::<T>())) } else { units[0] };
    let value = match units.len() {
        1 => first,
        2 => apply(op, first, units[1]),
        _ => T::Unit::narrow(
            units[1..].iter().fold(first.widen(), |wide, unit| apply(op, wide, unit.widen())),
        ),
    };
    let divides = op == ReduceOp::Avg && !T::FLOAT;
    T::of_unit(if divides { value.over(T::Unit::divisor(5)) } else { value })
}

fn scalar<T: Element>() -> u64 {
    match size_of::<T>() {
        _ if !T::FLOAT => 5,
        8 => FACTOR.to_bits(),
        _ => (FACTOR as f32).to_bits().into(),
    }
}

fn check<T: Element + core::fmt::Debug, R: Reduction>(op: ReduceOp) {
    let seed = &mut (0x5eed + T::TYPE as u64 * 16 + op as u64);
    let mut work: Work = bytemuck::Zeroable::zeroed();
    work.scalar = scalar::<T>();
    work.signature.call = (op as u64) << 16;
    // SAFETY: its scalar is no address.
    let reducer = unsafe { Reducer::<T, R>::of(crate::args::KernelArgs::new(&work)) };
    for n in [0, 1, 17, 300, 9001] {
        for sources in 1..=MAX_ENDS {
            let inputs: Vec<Vec<T>> =
                (0..sources).map(|_| (0..n).map(|_| draw(seed)).collect()).collect();
            let want: Vec<T> = (0..n)
                .map(|i| expected(op, &inputs.iter().map(|v| v[i]).collect::<Vec<_>>()))
                .collect();
            for (in_place, optional) in [(false, false), (true, false), (false, true), (true, true)]
            {
                let mut inputs = inputs.clone();
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
                    there: [sources, 2],
                    reducer,
                    lanes: Lanes { index: 0, count: 1 },
                };
                let most = if optional { MAX_ENDS } else { sources };
                let shape = Shape {
                    sources: most,
                    destinations: if optional { MAX_ENDS } else { 2 },
                    optional,
                    own: true,
                    last: true,
                };
                // SAFETY: all hold `n` elements; what is the same is source and destination 0.
                unsafe { copy.run(shape, n) };
                let first = if in_place { &inputs[0] } else { &outputs[0] };
                for (i, want) in want.iter().enumerate() {
                    for got in [first[i], outputs[1][i]] {
                        assert_eq!(
                            got.to_bits(),
                            want.to_bits(),
                            "{} {op} of {sources} sources, element {i} of {n}",
                            T::TYPE,
                        );
                    }
                }
            }
            words(&reducer, op, &inputs);
        }
    }
}

/// The same in words of 8 bytes, as the lines of LL and LL128 have them.
fn words<T: Element, R: Reduction>(reducer: &Reducer<T, R>, op: ReduceOp, inputs: &[Vec<T>]) {
    let per_word = 8 / size_of::<T>();
    let bits = 8 * size_of::<T>();
    let word = |values: &[T]| {
        values.iter().enumerate().fold(0, |word, (i, v)| word | v.to_bits() << (bits * i))
    };
    for at in (0..inputs[0].len() / per_word * per_word).step_by(per_word) {
        let words: Vec<u64> = inputs.iter().map(|v| word(&v[at..at + per_word])).collect();
        let mut combined = [reducer.pre_word(words[0])];
        if Reducer::<T, R>::WIDE && words.len() > 2 {
            let mut wide = [reducer.widen_word(0)];
            reducer.widen_words(&mut wide, &combined);
            for more in &words[1..] {
                reducer.gather_words(&mut wide, &[*more]);
            }
            reducer.narrow_words(&mut combined, &wide);
        } else {
            for more in &words[1..] {
                reducer.combine_words(&mut combined, &[*more]);
            }
        }
        let got = reducer.post_word(combined[0]);
        for i in 0..per_word {
            let values: Vec<T> = inputs.iter().map(|v| v[at + i]).collect();
            assert_eq!(
                T::of_bits(got >> (bits * i)).to_bits(),
                expected(op, &values).to_bits(),
                "{} {op} of words of {} sources",
                T::TYPE,
                inputs.len(),
            );
        }
    }
}

/// As the CPU's kernels do it, which know no operator.
fn every_operator<T: Element + core::fmt::Debug>() {
    for &op in ReduceOp::ALL {
        check::<T, Any>(op);
    }
}

/// As kernels do it that have some of the operators.
fn several<T: Element + core::fmt::Debug, R: Reduction>() {
    for &op in R::OPS {
        check::<T, R>(op);
    }
}

fn every_type() {
    every_operator::<F16>();
    every_operator::<Bf16>();
    every_operator::<F8E4M3>();
    every_operator::<F8E5M2>();
    every_operator::<f32>();
    every_operator::<f64>();
    every_operator::<i8>();
    every_operator::<u32>();
    // As the GPU's kernels do it that look at the operator.
    several::<u32, AnyUnsigned>();
    several::<i8, AnySigned>();
    several::<Bf16, AnyFloat>();
    several::<F8E4M3, AnyFloat8>();
    // As kernels of one operator do it.
    check::<Bf16, Sum>(ReduceOp::Sum);
    check::<Bf16, Prod>(ReduceOp::Prod);
    check::<Bf16, Min>(ReduceOp::Min);
    check::<Bf16, Max>(ReduceOp::Max);
    check::<Bf16, PreMulSum>(ReduceOp::PreMulSum);
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
