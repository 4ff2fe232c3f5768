//! The table of instructions as data.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::LazyLock;

use super::class::Kind;
use crate::syntax::Instruction;

/// An instruction, or a family of them.
#[derive(Clone, Debug)]
pub struct Opcode {
    /// The opcode, and the first modifiers where they tell it from others: `cp.async.bulk`.
    pub name: &'static str,
    /// Where PTX ISA 9.0 has it.
    pub section: &'static str,
    /// How many operands it takes.
    pub operands: RangeInclusive<usize>,
    /// What else may stand in its name: of each group at most one.
    pub groups: Vec<Group>,
    pub(super) kind: Kind,
}

impl Opcode {
    /// How many words its name has.
    pub(super) fn parts(&self) -> usize {
        self.name.split('.').count()
    }

    /// Every modifier that it may have.
    pub fn modifiers(&self) -> impl Iterator<Item = &'static str> {
        self.groups.iter().flat_map(|g| g.words.iter().copied())
    }
}

/// Modifiers that exclude each other. `#` in one stands for a number.
#[derive(Clone, Debug)]
pub struct Group {
    /// They.
    pub words: Vec<&'static str>,
}

impl Group {
    /// Whether a modifier is one of them.
    #[must_use]
    pub fn has(&self, modifier: &str) -> bool {
        self.words.iter().any(|word| {
            *word == modifier || (word.contains('#') && fits(word.as_bytes(), modifier.as_bytes()))
        })
    }
}

/// Whether `text` is `pattern` with a number for each `#`.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((b'#', after)), Some(_)) => {
            let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
            digits > 0 && fits(after, &text[digits..])
        }
        (Some((p, after)), Some((t, rest))) => p == t && fits(after, rest),
        _ => false,
    }
}

/// All instructions, in the order of the manual.
pub fn opcodes() -> impl ExactSizeIterator<Item = &'static Opcode> {
    TABLE.rows.iter()
}

/// The instruction that this one is: of those whose name it begins with, the one of the longest name.
#[must_use]
pub fn opcode(instruction: &Instruction<'_>) -> Option<&'static Opcode> {
    let candidates = TABLE.by_opcode.get(instruction.opcode.text)?;
    candidates.iter().map(|&i| &TABLE.rows[i]).find(|row| {
        let mut modifiers = instruction.modifiers.iter();
        row.name.split('.').skip(1).all(|part| modifiers.next().is_some_and(|m| m.text == part))
    })
}

struct Table {
    rows: Vec<Opcode>,
    /// By the first word of the name, the longest name first.
    by_opcode: HashMap<&'static str, Vec<usize>>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let rows = read(include_str!("table.txt")).unwrap_or_default(); // a test reads it, too
    let mut by_opcode: HashMap<&'static str, Vec<usize>> = HashMap::new();
    for (i, row) in rows.iter().enumerate() {
        by_opcode.entry(row.name.split('.').next().unwrap_or_default()).or_default().push(i);
    }
    for places in by_opcode.values_mut() {
        places.sort_by_key(|&i| std::cmp::Reverse(rows[i].parts()));
    }
    Table { rows, by_opcode }
});

/// Reads the table, whose head says how it is written.
///
/// # Errors
/// The line that is not written so.
pub(super) fn read(text: &'static str) -> Result<Vec<Opcode>, &'static str> {
    let mut rows: Vec<Opcode> = Vec::new();
    let mut sets: HashMap<&str, Vec<&'static str>> = HashMap::new();
    let mut section = "";
    let group = |word: &'static str, sets: &HashMap<&str, Vec<&'static str>>| {
        let mut words = Vec::new();
        for part in word.split('|') {
            match part.strip_prefix('$') {
                Some(set) => words.extend(sets.get(set)?.iter().copied()),
                None => words.push(part),
            }
        }
        Some(Group { words })
    };
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let continued = line.starts_with(' ');
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(title) = line.strip_prefix("== ") {
            section = title;
            continue;
        }
        if let Some((name, set)) = line.strip_prefix('$').and_then(|l| l.split_once(" = ")) {
            sets.insert(name, group(set, &sets).ok_or(line)?.words);
            continue;
        }
        if !continued {
            let (Some(name), Some(kind), Some(count)) = (words.next(), words.next(), words.next())
            else {
                return Err(line);
            };
            let kind = Kind::from_name(kind).ok_or(line)?;
            let number = |n: &str| if n == "*" { Some(usize::MAX) } else { n.parse().ok() };
            let operands = match count.split_once('-') {
                Some((least, most)) => number(least).ok_or(line)?..=number(most).ok_or(line)?,
                None if count == "*" => 0..=usize::MAX,
                None => number(count).ok_or(line)?..=number(count).ok_or(line)?,
            };
            rows.push(Opcode { name, section, operands, groups: Vec::new(), kind });
        }
        let row = rows.last_mut().ok_or(line)?;
        for word in words {
            row.groups.push(group(word, &sets).ok_or(line)?);
        }
    }
    Ok(rows)
}
