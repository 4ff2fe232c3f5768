//! The rules that keep a protocol correct, as a type: so that a test can break one.
//!
//! [`Correct`] keeps all of them and is what every shipped kernel is made with. An experiment makes its own
//! type, turns one rule off and watches the conformance suite fail; the mutation tests of this project do
//! exactly that. A rule is a constant: nothing is left of it in the code. Orders of memory are no rules of a protocol: see
//! [`orders`](crate::orders).

/// Which rules a protocol keeps.
pub trait Rules: 'static {
    /// A sender reuses a slot only after the receiver has consumed its old content (head before slot).
    const WAIT_FOR_CREDIT: bool = true;
    /// An LL receiver checks the flags of both halves of a line: they may arrive one by one.
    const CHECK_BOTH_FLAGS: bool = true;
}

/// All rules kept.
#[derive(Clone, Copy, Debug)]
pub struct Correct;

impl Rules for Correct {}
