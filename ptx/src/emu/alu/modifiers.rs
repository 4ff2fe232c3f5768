//! The modifiers of an instruction's name, taken one by one.
//!
//! Whoever selects an instruction takes what it knows; what is left over at the end is unsupported. So
//! a modifier that nobody looked at is an error and never passes silently. The order of modifiers is
//! not checked, except that of types: the first is the destination's.

use thiserror::Error;

use super::round::Rounding;
use crate::types::Type;

/// An instruction without arithmetic here: what of its name is to blame.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unsupported {
    /// No instruction of this name computes a value here.
    #[error("no arithmetic for instruction `{opcode}`")]
    Opcode {
        /// The instruction.
        opcode: String,
    },
    /// The instruction is there, but not with this modifier, or not with it beside the others.
    #[error("`{opcode}` with modifier `.{modifier}` is not supported")]
    Modifier {
        /// The instruction.
        opcode: String,
        /// The modifier, without its dot.
        modifier: String,
    },
    /// A modifier is missing.
    #[error("`{opcode}` needs {needs}")]
    Missing {
        /// The instruction.
        opcode: String,
        /// What it needs.
        needs: &'static str,
    },
}

/// The modifiers that nobody has taken yet.
pub(super) struct Modifiers<'a> {
    opcode: &'a str,
    left: Vec<&'a str>,
}

impl<'a> Modifiers<'a> {
    pub(super) fn new(opcode: &'a str, modifiers: &[&'a str]) -> Modifiers<'a> {
        Modifiers { opcode, left: modifiers.to_vec() }
    }

    /// Takes the modifier of this name, if it is there.
    pub(super) fn flag(&mut self, name: &str) -> bool {
        let found = self.left.iter().position(|&m| m == name);
        found.map(|i| self.left.remove(i)).is_some()
    }

    /// Takes the first modifier that `of` makes something of.
    pub(super) fn find<T>(&mut self, of: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (i, found) =
            self.left.iter().enumerate().find_map(|(i, m)| of(m).map(|found| (i, found)))?;
        self.left.remove(i);
        Some(found)
    }

    /// The last type, which is left where it is: it tells families of instructions apart.
    pub(super) fn last_type(&self) -> Result<Type, Unsupported> {
        let last = self.left.iter().rev().find_map(|m| Type::from_name(m));
        last.ok_or_else(|| self.missing("a type"))
    }

    /// Takes the next type.
    pub(super) fn ty(&mut self) -> Result<Type, Unsupported> {
        self.find(Type::from_name).ok_or_else(|| self.missing("a type"))
    }

    /// Takes a rounding of floating-point results.
    pub(super) fn rounding(&mut self) -> Option<Rounding> {
        self.find(|m| match m {
            "rn" => Some(Rounding::Nearest),
            "rz" => Some(Rounding::Zero),
            "rm" => Some(Rounding::Down),
            "rp" => Some(Rounding::Up),
            _ => None,
        })
    }

    pub(super) fn missing(&self, needs: &'static str) -> Unsupported {
        Unsupported::Missing { opcode: self.opcode.to_string(), needs }
    }

    /// This modifier does not go with the others.
    pub(super) fn wrong(&self, modifier: &str) -> Unsupported {
        Unsupported::Modifier { opcode: self.opcode.to_string(), modifier: modifier.to_string() }
    }

    /// This instruction is not here.
    pub(super) fn unknown(&self) -> Unsupported {
        Unsupported::Opcode { opcode: self.opcode.to_string() }
    }

    /// Everything has been taken.
    pub(super) fn finish(self) -> Result<(), Unsupported> {
        match self.left.first() {
            None => Ok(()),
            Some(m) => Err(self.wrong(m)),
        }
    }
}
