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

/// What is said of LL64 with one rule broken.
macro_rules! broken {
    ($name:ident: $trait:ident $rule:ident) => {{
        struct $name;
        broken!(@ $name $trait $rule);
        let why = ProtocolTests::of::<Ll64<$name>>().explain(200);
        (stringify!($name), why.map(|why| why.to_string()))
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
fn every_broken_rule_is_noticed_and_explained() {
    for ((rule, why), words) in [
        (broken!(NoCredit: Rules WAIT_FOR_CREDIT), "It has to wait for credit"),
        (broken!(FlagFirst: Ll64Rules FLAG_LAST), "has stored the flag F before the data D"),
        (broken!(RelaxedStore: Ll64Rules RELEASE), "A release (st_release) forbids that"),
        (broken!(RelaxedLoad: Ll64Rules ACQUIRE), "An acquire (ld_acquire) forbids that"),
    ] {
        let why = why.unwrap_or_else(|| panic!("no seed below 200 notices {rule}"));
        assert!(why.contains(words), "{rule}: {why}");
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
