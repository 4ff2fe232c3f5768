//! The protocol that is wrong on purpose: it is found, and explained as README.md shows it.
//!
//! `UPDATE_EXPLANATION=1 cargo test --test hasty` writes the files that README.md shows.

use std::fs;

use ferroccl::conformance::ProtocolTests;
use ferroccl_device::prims::Rules;
use ferroccl_lab::hasty::Hasty;
use ferroccl_lab::ll64::{Ll64, Ll64Rules};

/// What is in a file of this crate; or it is brought up to date.
fn is_in(file: &str, text: &str) {
    let path = format!("{}/{file}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_EXPLANATION").is_some() {
        return fs::write(path, text).unwrap();
    }
    assert_eq!(fs::read_to_string(path).unwrap_or_default(), text, "{file} is another");
}

#[test]
fn it_is_found_and_explained() {
    let why = ProtocolTests::of::<Hasty>().explain(500).expect("it is wrong");
    let text = why.to_string();
    assert!(text.contains("A release (st_release) forbids that."), "{text}");
    is_in("hasty.txt", &text);
    is_in("hasty.svg", &why.svg().expect("two accesses are out of order"));
}

/// LL64 with one rule broken, and what the explanation has to say.
macro_rules! explained {
    ($name:ident: $trait:ident $rule:ident, $words:literal) => {{
        struct $name;
        explained!(@ $name $trait $rule);
        let why = ProtocolTests::of::<Ll64<$name>>().explain(200);
        let text = why.expect(stringify!($name)).to_string();
        assert!(text.contains($words), "{}: {text}", stringify!($name));
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
fn each_broken_rule_has_its_explanation() {
    explained!(NoCredit: Rules WAIT_FOR_CREDIT, "It has to wait for credit");
    explained!(FlagFirst: Ll64Rules FLAG_LAST, "has stored the flag F before the data D");
    explained!(RelaxedStore: Ll64Rules RELEASE, "A release (st_release) forbids that");
    explained!(RelaxedLoad: Ll64Rules ACQUIRE, "An acquire (ld_acquire) forbids that");
}
