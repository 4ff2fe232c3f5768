//! LL64 under the library's suite for protocols, with rules broken, and where it has no buffers.
//!
//! A failing seed is printed; `FERROCCL_SEED=n` runs that one alone.

use ferroccl::conformance::ProtocolTests;
use ferroccl::{Communicator, Device, KernelSpec, ReduceOp};
use ferroccl_device::prims::{Correct, Rules};
use ferroccl_lab::ll64::{Ll64, Ll64Rules};
use ferroccl_lab::{ALL_REDUCE, PTX};

ferroccl::conformance! {
    ll64: Ll64<Correct>, ptx: (ALL_REDUCE.kernel.name, PTX);
}

/// What comes of LL64 with one rule broken.
macro_rules! broken {
    ($name:ident: $trait:ident $rule:ident) => {{
        struct $name;
        broken!(@ $name $trait $rule);
        (stringify!($name), ProtocolTests::of::<Ll64<$name>>().noticed(200))
    }};
    (@ $name:ident Rules $rule:ident) => {
        impl Rules for $name {
            const $rule: bool = false;
        }
        impl Ll64Rules for $name {}
    };
    (@ $name:ident Ll64Rules $rule:ident) => {
        impl Rules for $name {}
        impl Ll64Rules for $name {
            const $rule: bool = false;
        }
    };
}

#[test]
fn every_broken_rule_is_noticed() {
    for (rule, noticed) in [
        broken!(NoCredit: Rules WAIT_FOR_CREDIT),
        broken!(FlagFirst: Ll64Rules FLAG_LAST),
        broken!(RelaxedStore: Ll64Rules RELEASE),
        broken!(RelaxedLoad: Ll64Rules ACQUIRE),
    ] {
        println!("{rule}: {noticed:?}");
        assert!(noticed.is_some(), "no seed below 200 notices {rule}");
    }
}

#[test]
fn the_suite_has_its_ptx() {
    let why = "no compiler for PTX was there when this was built";
    assert!(!PTX.is_empty() || std::env::var_os("FERROCCL_TEST_ALL").is_none(), "{why}");
}

#[test]
fn a_communicator_without_its_buffers_refuses() {
    let device = Device::cpu();
    let ranks = Communicator::init_all(&device, 2).unwrap();
    let (buffer, stream) = (device.upload(&[1.0; 10]).unwrap(), device.stream().unwrap());
    // SAFETY: the kernel is the ring all-reduce of f32.
    let refused = unsafe {
        let spec = KernelSpec::new(ALL_REDUCE, buffer.len());
        ranks[0].launch(&spec, &buffer, &buffer, ReduceOp::Sum, &stream)
    };
    let why = refused.unwrap_err().to_string();
    assert!(why.contains("LL64 has no buffers in this communicator"), "{why}");
}
