//! The rules that keep a protocol correct, as a type: so that a test can break one.
//!
//! [`Sound`] keeps all of them and is what every shipped kernel is made with. An experiment makes its own
//! type, turns one rule off and watches the conformance suite fail; the mutation tests of this project do
//! exactly that. A rule is a constant: nothing is left of it in the code.

/// Which rules a protocol keeps.
pub trait Rules: 'static {
    /// A sender reuses a slot only after the receiver has consumed its old content (head before slot).
    const WAIT_FOR_CREDIT: bool = true;
    /// An LL receiver checks the flags of both halves of a line: they may arrive one by one.
    const CHECK_BOTH_FLAGS: bool = true;
    /// The flag of an LL128 line becomes visible after the line's data.
    const FLAG_LAST: bool = true;
    /// A Simple sender publishes its tail after the data of the step.
    const DATA_BEFORE_TAIL: bool = true;
}

/// All rules kept.
#[derive(Clone, Copy, Debug)]
pub struct Sound;

impl Rules for Sound {}
