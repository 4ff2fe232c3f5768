//! LL64 as somebody in a hurry writes it. It is wrong, on purpose: README.md shows how the suite finds that, and says why.
//!
//! "The flag is in the same line as its data, and the line is stored by one lane: so it cannot arrive before the data. A release would
//! only cost time." No manual promises that: the data and the flag are eight stores, and the memory may show the last one first.

use ferroccl_device::prims::Rules;

use crate::ll64::{Ll64, Ll64Rules};

/// The rules that it keeps: all but one.
#[derive(Clone, Copy, Debug)]
pub struct InAHurry;

impl Rules for InAHurry {}

impl Ll64Rules for InAHurry {
    const RELEASE: bool = false;
}

/// The protocol.
pub type Hasty = Ll64<InAHurry>;
