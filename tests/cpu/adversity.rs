//! The protocols under a scheduler and a memory system that are as unhelpful as the rules allow, and then with one rule broken, which
//! must be noticed: a test that cannot fail proves nothing.
//!
//! A failing seed is printed; `FERROCCL_SEED=n` runs that one alone.

use std::sync::Arc;

use ferroccl::conformance::ProtocolTests;
use ferroccl::device::prims::{Correct, Ll, Ll128, Protocol, Rules, Simple};
use ferroccl::runtime::cpu::{Adversity, CpuRuntime};
use ferroccl::{CommConfig, Communicator, Device, Error, ReduceOp};

/// Ten times as many as the bug that hides best needs.
const SEEDS: u64 = 500;

ferroccl::conformance! {
    simple: Simple<Correct>;
    ll: Ll<Correct>;
    ll128: Ll128<Correct>;
}

fn is_caught<P: Protocol>(bug: &str) {
    let caught = ProtocolTests::of::<P>().noticed(SEEDS);
    println!("{bug}: {caught:?}");
    assert!(caught.is_some(), "no seed below {SEEDS} notices {bug}");
}

macro_rules! broken {
    ($name:ident, $rule:ident) => {
        struct $name;
        impl Rules for $name {
            const $rule: bool = false;
        }
    };
}
broken!(NoCredit, WAIT_FOR_CREDIT);
broken!(OneFlag, CHECK_BOTH_FLAGS);

#[test]
fn a_missing_credit_wait_is_caught() {
    is_caught::<Simple<NoCredit>>("Simple without waiting for credit");
    is_caught::<Ll<NoCredit>>("LL without waiting for credit");
    is_caught::<Ll128<NoCredit>>("LL128 without waiting for credit");
}

#[test]
fn a_half_checked_ll_line_is_caught() {
    is_caught::<Ll<OneFlag>>("LL with one flag checked");
}

/// A rank that never calls: the others' wait is reported with rank, channel, step and condition.
#[test]
fn a_deadlock_is_explained() {
    let device = Device::new(Arc::new(CpuRuntime::seeded(Adversity::new(7))));
    let mut config = CommConfig::default();
    config.channels = Some(1);
    let ranks = Communicator::init_all_with(&device, 3, &config).unwrap();
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    let buffer = device.upload(&[1.0f32; 64]).unwrap();
    for r in 0..2 {
        let output = device.alloc::<f32>(64).unwrap();
        ranks[r].all_reduce(&buffer, &output, ReduceOp::Sum, &streams[r]).unwrap();
    }
    let error = streams[0].synchronize().unwrap_err();
    assert!(matches!(error, Error::Kernel(_)), "{error:?}");
    let text = error.to_string();
    assert!(
        text.starts_with("deadlock: rank ")
            && text.contains("channel 0 step ")
            && text.contains("waits for"),
        "{text}"
    );
}

/// The same seed gives the same run, another seed another one.
#[test]
fn a_seed_replays() {
    let trace = |seed| {
        let runtime = Arc::new(CpuRuntime::seeded(Adversity::new(seed)));
        let device = Device::new(runtime.clone());
        let ranks = Communicator::init_all(&device, 3).unwrap();
        let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
        // First all buffers: an upload runs whatever is queued.
        let buffers: Vec<_> =
            ranks.iter().map(|_| device.upload(&[1.0f32; 100]).unwrap()).collect();
        for ((rank, stream), buffer) in ranks.iter().zip(&streams).zip(&buffers) {
            rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream).unwrap();
        }
        streams[0].synchronize().unwrap();
        runtime.trace()
    };
    assert_eq!(trace(1), trace(1));
    assert_ne!(trace(1), trace(2));
}
