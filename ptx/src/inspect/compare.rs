//! Two functions side by side.
//!
//! The numbers of registers and labels say nothing: with one instruction more at the start all of them
//! change. So lines are matched without them first. Then the names of matched lines are held against each
//! other from the top: what a line defines has one name in both from there on, and what it reads must have one
//! already, or get it where neither has been named before. Matched lines that do not read the same are
//! different after all.
//!
//! Lines of both are told in the names of the first, counted in the order in which they appear there. A
//! register that only the second has keeps its name, and is marked: `%r3'`.

use std::collections::HashMap;

use similar::{Algorithm, DiffOp, capture_diff_slices};

use super::flight::names;
use crate::cfg::Cfg;
use crate::isa::{Class, class};
use crate::syntax::{Function, Instruction, Operand, TokenKind, tokens};

/// Whether a line is in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// In both.
    Same,
    /// In the first alone.
    Removed,
    /// In the second alone.
    Added,
}

/// A line of a difference.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Difference {
    /// Whether it is in both.
    pub change: Change,
    /// Its number among the lines of the first, from 1.
    pub old: Option<usize>,
    /// Its number among the lines of the second, from 1.
    pub new: Option<usize>,
    /// It.
    pub text: String,
}

/// The instructions and labels of a function, a line each.
#[derive(Clone, Debug)]
pub struct Listing<'a> {
    lines: Vec<Line<'a>>,
}

#[derive(Clone, Debug)]
struct Line<'a> {
    /// Without names: `ld.global.u32 %r#, [%rd#+4];`
    shape: String,
    /// The text around names: one piece more than there are names.
    pieces: Vec<String>,
    names: Vec<&'a str>,
    /// Which of them it defines.
    defined: Vec<bool>,
}

impl<'a> Listing<'a> {
    /// Of a function of `source`.
    #[must_use]
    pub fn new(function: &Function<'a>, cfg: &Cfg<'_, 'a>, source: &'a str) -> Self {
        let own = function.name.text;
        let mut lines = Vec::with_capacity(cfg.code.len() + cfg.blocks.len());
        for block in &cfg.blocks {
            for label in &block.labels {
                lines.push(Line {
                    shape: "$L:".to_owned(),
                    pieces: vec![String::new(), ":".to_owned()],
                    names: vec![label.text],
                    defined: vec![false],
                });
            }
            for code in cfg.code.get(block.range.clone()).unwrap_or_default() {
                lines.push(Line::new(code.instruction, own, source));
            }
        }
        Listing { lines }
    }

    /// How many lines it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

impl<'a> Line<'a> {
    fn new(instruction: &Instruction<'a>, function: &str, source: &'a str) -> Self {
        let mut line = Line {
            shape: String::new(),
            pieces: vec!["    ".to_owned()],
            names: Vec::new(),
            defined: Vec::new(),
        };
        let mut gap = false;
        for token in tokens(instruction.span.text(source)).unwrap_or_default() {
            let text = token.word.text;
            if matches!(token.kind, TokenKind::Blank | TokenKind::Comment) {
                gap = true;
                continue;
            }
            let sign = |signs: &str| token.kind == TokenKind::Sign && signs.contains(text);
            let open = line.shape.ends_with(['[', '{', '(']);
            if std::mem::take(&mut gap) && !open && !sign(",;]})") {
                line.push(" ");
            }
            gap = sign(",");
            match kind(text).filter(|_| token.kind == TokenKind::Name) {
                Some(kind) => {
                    line.shape.push_str(kind);
                    line.shape.push('#');
                    line.pieces.push(String::new());
                    line.names.push(text);
                }
                // Parameters are named after their function.
                None => match text.strip_prefix(function).filter(|r| r.starts_with("_param_")) {
                    Some(parameter) => {
                        line.push("F");
                        line.push(parameter);
                    }
                    None => line.push(text),
                },
            }
        }
        // What is written stands right after the guard.
        let written = written(instruction).into_iter().filter(|name| kind(name).is_some()).count();
        let guard = usize::from(instruction.guard.is_some());
        line.defined =
            (0..line.names.len()).map(|i| (guard..guard + written).contains(&i)).collect();
        line
    }

    fn push(&mut self, text: &str) {
        self.shape.push_str(text);
        if let Some(piece) = self.pieces.last_mut() {
            piece.push_str(text);
        }
    }

    fn told(&self, name: impl Fn(&'a str) -> String) -> String {
        let mut text = self.pieces.first().cloned().unwrap_or_default();
        for (own, after) in self.names.iter().zip(self.pieces.iter().skip(1)) {
            text.push_str(&name(own));
            text.push_str(after);
        }
        text
    }
}

/// What a name counts among if its number says nothing: `%rd` of `%rd7`, `$L` of a label.
fn kind(name: &str) -> Option<&str> {
    if name.starts_with("$L") {
        return name.get(..2);
    }
    let letters = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (name.starts_with('%') && letters.len() < name.len()).then_some(letters)
}

/// The names that an instruction writes: those of its first operand, if it writes any.
fn written<'o>(instruction: &'o Instruction<'_>) -> Vec<&'o str> {
    let none = match class(instruction) {
        Class::Store | Class::Fence | Class::Copy => true,
        Class::Control => instruction.opcode.text != "call",
        Class::Atomic => instruction.opcode.text != "atom",
        Class::Barrier => !instruction.has("red") && instruction.opcode.text != "mbarrier",
        _ => false,
    };
    match instruction.operands.first() {
        Some(Operand::Address(_)) | None => Vec::new(),
        Some(operand) if !none => names(operand),
        Some(_) => Vec::new(),
    }
}

/// The names of the second in those of the first, and back.
#[derive(Default)]
struct Binding<'a> {
    old: HashMap<&'a str, &'a str>,
    new: HashMap<&'a str, &'a str>,
}

impl<'a> Binding<'a> {
    fn bind(&mut self, old: &'a str, new: &'a str) {
        if let Some(before) = self.old.insert(new, old) {
            self.new.remove(before);
        }
        if let Some(before) = self.new.insert(old, new).filter(|before| *before != new) {
            self.old.remove(before);
        }
    }

    /// What a line of the second alone defines has no name in the first.
    fn forget(&mut self, new: &Line<'a>) {
        let defined = new.names.iter().zip(&new.defined).filter(|(_, defined)| **defined);
        for (name, _) in defined {
            if let Some(old) = self.old.remove(name) {
                self.new.remove(old);
            }
        }
    }

    /// Whether two lines of one shape read the same; if so, what they define is the same from now on.
    fn unify(&mut self, old: &Line<'a>, new: &Line<'a>) -> bool {
        let pairs = || old.names.iter().zip(&new.names).zip(&old.defined);
        let agree = pairs().filter(|(_, defined)| !**defined).all(|((a, b), _)| {
            match (self.new.get(a), self.old.get(b)) {
                (None, None) => true,
                (Some(known), _) => known == b,
                (None, Some(_)) => false,
            }
        });
        if agree {
            // What is written is another value than what was read under the same name.
            for written in [false, true] {
                for ((a, b), _) in pairs().filter(|(_, defined)| **defined == written) {
                    self.bind(a, b);
                }
            }
        }
        agree
    }
}

/// What differs between two functions, line by line, in the order of a unified diff.
#[must_use]
pub fn differences<'a>(old: &Listing<'a>, new: &Listing<'a>) -> Vec<Difference> {
    let canonical = canonical(old);
    let own = |name: &'a str| canonical.get(name).cloned().unwrap_or_else(|| name.to_owned());
    let shapes = |of: &Listing<'a>| of.lines.iter().map(|l| l.shape.clone()).collect::<Vec<_>>();
    let mut bound = Binding::default();
    let mut all = Vec::new();
    let line = |change, old: Option<usize>, new: Option<usize>, text| Difference {
        change,
        old: old.map(|i| i + 1),
        new: new.map(|i| i + 1),
        text,
    };
    for op in capture_diff_slices(Algorithm::Patience, &shapes(old), &shapes(new)) {
        let (mut removed, mut added) = (Vec::new(), Vec::new());
        let second = |bound: &Binding<'a>, j: usize| {
            new.lines[j].told(|name| match bound.old.get(name) {
                Some(known) => own(known),
                None if kind(name).is_some() => format!("{name}'"),
                None => name.to_owned(),
            })
        };
        let common = if let DiffOp::Equal { len, .. } = op { len } else { 0 };
        let (from, to) = (op.old_range(), op.new_range());
        for (i, j) in from.clone().zip(to.clone()).take(common) {
            if bound.unify(&old.lines[i], &new.lines[j]) {
                all.append(&mut removed);
                all.append(&mut added);
                all.push(line(Change::Same, Some(i), Some(j), old.lines[i].told(own)));
            } else {
                removed.push(line(Change::Removed, Some(i), None, old.lines[i].told(own)));
                added.push(line(Change::Added, None, Some(j), second(&bound, j)));
                bound.forget(&new.lines[j]);
            }
        }
        for i in from.skip(common) {
            removed.push(line(Change::Removed, Some(i), None, old.lines[i].told(own)));
        }
        for j in to.skip(common) {
            bound.forget(&new.lines[j]);
            added.push(line(Change::Added, None, Some(j), second(&bound, j)));
        }
        all.append(&mut removed);
        all.append(&mut added);
    }
    all
}

/// The names of a listing, numbered in the order in which they appear.
fn canonical<'a>(listing: &Listing<'a>) -> HashMap<&'a str, String> {
    let mut next: HashMap<&str, usize> = HashMap::new();
    let mut known = HashMap::new();
    for name in listing.lines.iter().flat_map(|line| line.names.iter().copied()) {
        known.entry(name).or_insert_with(|| {
            let kind = kind(name).unwrap_or(name);
            let number = next.entry(kind).or_default();
            *number += 1;
            format!("{kind}{number}")
        });
    }
    known
}
