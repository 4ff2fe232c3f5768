//! What an instruction that the table does not have is told.

use super::table::{Opcode, opcodes};
use crate::syntax::{Instruction, Span, SyntaxError};

/// An instruction that PTX has not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct IsaError {
    /// What is wrong.
    pub problem: Problem,
    /// Where.
    pub span: Span,
}

impl IsaError {
    /// With line and column of the source it was found in.
    #[must_use]
    pub fn at(self, source: &str) -> SyntaxError {
        SyntaxError::new(source, self.span.start, self.problem.to_string())
    }
}

/// What can be wrong with an instruction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// There is none of this name.
    #[error("there is no instruction `{name}`{}", suggestion("", .meant))]
    Opcode {
        /// As far as it was looked at.
        name: String,
        /// One that is there and looks alike.
        meant: Option<&'static str>,
    },
    /// A modifier that it never has.
    #[error("`{opcode}` has no modifier `.{modifier}`{}", suggestion(".", .meant))]
    Modifier {
        /// Which instruction.
        opcode: &'static str,
        /// Which modifier.
        modifier: String,
        /// One that it may have and that looks alike.
        meant: Option<&'static str>,
    },
    /// Two modifiers of which one excludes the other.
    #[error("`{opcode}` takes one of `.{first}` and `.{second}`")]
    Exclusive {
        /// Which instruction.
        opcode: &'static str,
        /// The modifier that stands first.
        first: String,
        /// The one that it excludes.
        second: String,
    },
    /// More or fewer operands than it takes.
    #[error("`{opcode}` takes {takes} operands, not {found}")]
    Operands {
        /// Which instruction.
        opcode: &'static str,
        /// How many it takes.
        takes: String,
        /// How many there are.
        found: usize,
    },
}

fn suggestion(dot: &str, word: &Option<&str>) -> String {
    word.map_or(String::new(), |word| format!("; did you mean `{dot}{word}`?"))
}

pub(super) fn unknown(instruction: &Instruction<'_>) -> IsaError {
    let opcode = instruction.opcode;
    let family = opcodes().any(|row| row.name.split('.').next() == Some(opcode.text));
    // Of a family that is there, the rest of the name is wrong.
    let (name, last) = match instruction.modifiers.first() {
        Some(modifier) if family => (format!("{opcode}.{modifier}"), *modifier),
        _ => (opcode.text.to_owned(), opcode),
    };
    let names = opcodes().filter(|row| !family || row.name.contains('.'));
    let meant = nearest(&name, names.map(|row| row.name));
    let span = Span { start: opcode.start, end: last.span().end };
    IsaError { problem: Problem::Opcode { name, meant }, span }
}

pub(super) fn modifier(
    instruction: &Instruction<'_>,
    row: &'static Opcode,
    at: usize,
    other: Option<usize>,
) -> IsaError {
    let word = instruction.modifiers[at];
    let problem = match other {
        Some(first) => Problem::Exclusive {
            opcode: row.name,
            first: instruction.modifiers[first].text.to_owned(),
            second: word.text.to_owned(),
        },
        None => Problem::Modifier {
            opcode: row.name,
            modifier: word.text.to_owned(),
            meant: nearest(word.text, row.modifiers().filter(|m| !m.contains('#'))),
        },
    };
    IsaError { problem, span: word.span() }
}

pub(super) fn operands(instruction: &Instruction<'_>, row: &'static Opcode) -> IsaError {
    let (least, most) = (*row.operands.start(), *row.operands.end());
    let takes = match most {
        _ if least == most => least.to_string(),
        usize::MAX => format!("{least} or more"),
        _ => format!("{least} to {most}"),
    };
    let found = instruction.operands.len();
    let problem = Problem::Operands { opcode: row.name, takes, found };
    IsaError { problem, span: instruction.span }
}

/// The word that is nearest, if it is near: a third of the letters may differ. The first of several.
fn nearest(word: &str, words: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let far = word.chars().count().div_ceil(3);
    words
        .map(|known| (strsim::damerau_levenshtein(word, known), known))
        .filter(|(distance, _)| *distance <= far)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}
