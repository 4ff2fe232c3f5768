//! What kind of thing an instruction does.

use std::fmt;

use super::table::opcode;
use crate::syntax::Instruction;

macro_rules! classes {
    ($($(#[$doc:meta])* $name:ident $text:literal;)*) => {
        /// What kind of thing an instruction does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Class {
            $($(#[$doc])* $name,)*
        }

        impl Class {
            /// All of them.
            pub const ALL: &[Class] = &[$(Class::$name),*];

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Class::$name => $text,)* }
            }
        }
    };
}
classes! {
    /// Reads memory.
    Load "load";
    /// Writes memory.
    Store "store";
    /// Reads and writes memory in one (`atom`, `red`).
    Atomic "atomic";
    /// Copies memory while the thread goes on (`cp.async`).
    Copy "asynchronous copy";
    /// Orders what is done to memory.
    Fence "fence";
    /// Waits for other threads, or tells them (`bar`, `mbarrier`).
    Barrier "barrier";
    /// Done by the lanes of a warp together (`shfl`, `vote`).
    WarpSync "warp-synchronous";
    /// Goes elsewhere, or ends.
    Control "control";
    /// Arithmetic of integers, bits included.
    Integer "integer";
    /// Arithmetic of f32 and f64.
    Float "float";
    /// Arithmetic of f16 and bf16.
    Half "half";
    /// Makes one type, or one kind of address, of another.
    Conversion "conversion";
    /// Compares, and says whether (`setp`).
    Comparison "comparison";
    /// Copies registers and constants, and chooses among them.
    Move "move";
    /// Logic of truth values.
    Predicate "predicate logic";
    /// Products of matrices, and what feeds them.
    Matrix "matrix";
    /// Textures and surfaces.
    Texture "texture";
    /// All else: sleeps, hints, the stack.
    Special "special";
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(feature = "inspect")]
impl serde::Serialize for Class {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

/// What the table says of an opcode: its class, or what decides on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Is(Class),
    /// Integer, float or half, by its type.
    Arithmetic,
    /// Integer, or predicate logic.
    Logic,
    /// Move, or predicate logic.
    LogicMove,
}

impl Kind {
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "arithmetic" => Kind::Arithmetic,
            "logic" => Kind::Logic,
            "logic_move" => Kind::LogicMove,
            "copy" => Kind::Is(Class::Copy),
            "warp" => Kind::Is(Class::WarpSync),
            _ => Kind::Is(*Class::ALL.iter().find(|class| class.name() == name)?),
        })
    }
}

/// What kind of thing an instruction does; [`Class::Special`] when there is no such instruction.
#[must_use]
pub fn class(instruction: &Instruction<'_>) -> Class {
    let Some(row) = opcode(instruction) else { return Class::Special };
    let any = |names: &[&str]| instruction.modifiers.iter().any(|m| names.contains(&m.text));
    match row.kind {
        Kind::Is(class) => class,
        Kind::Logic | Kind::LogicMove if any(&["pred"]) => Class::Predicate,
        Kind::Logic => Class::Integer,
        Kind::LogicMove => Class::Move,
        Kind::Arithmetic if any(&["f32", "f64", "f32x2"]) => Class::Float,
        Kind::Arithmetic if any(&["f16", "f16x2", "bf16", "bf16x2"]) => Class::Half,
        Kind::Arithmetic => Class::Integer,
    }
}
