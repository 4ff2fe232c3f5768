//! Stamped under the library's suite, and with rules broken.

use ferroccl::conformance::ProtocolTests;
use ferroccl_device::prims::Correct;
use ferroccl_lab::stamped::{StampRules, Stamped};
use ferroccl_lab::{ALL_REDUCE_STAMPED, PTX};

ferroccl::conformance! {
    stamped: Stamped<Correct>, ptx: (ALL_REDUCE_STAMPED.kernel.name, PTX);
}

macro_rules! broken {
    ($name:ident: $rule:ident) => {{
        struct $name;
        impl StampRules for $name {
            const $rule: bool = false;
        }
        (stringify!($name), ProtocolTests::of::<Stamped<$name>>().noticed(200))
    }};
}

#[test]
fn every_broken_rule_is_noticed() {
    for (rule, noticed) in [
        broken!(OutOfTurn: WAIT_FOR_TURN),
        broken!(RelaxedStore: RELEASE),
        broken!(RelaxedLoad: ACQUIRE),
    ] {
        println!("{rule}: {noticed:?}");
        assert!(noticed.is_some(), "no seed below 200 notices {rule}");
    }
}
