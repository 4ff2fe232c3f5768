//! The protocol that is wrong on purpose: it is found, and explained as README.md shows it.
//!
//! `UPDATE_EXPLANATION=1 cargo test --test hasty` writes the files that README.md shows.

use std::fs;

use ferroccl::conformance::ProtocolTests;
use ferroccl_lab::hasty::Hasty;

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
