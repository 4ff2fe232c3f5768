//! PTX as a tree.
//!
//! ```text
//! source ── lexer ──► tokens ── parser ──► Module ── Function ── Block ── Statement ── Instruction
//!                        │                   └ every Word of it is a piece of the source
//!                        └ blanks and comments included: put together they are the source again
//! ```
//!
//! The tree borrows the source and changes nothing of it: names are kept as written, nothing is
//! resolved, and each piece knows where it stands ([`Word::start`], [`Span`]), so that the text between
//! two pieces is never lost. What the names mean is told by `isa` (instructions) and by who
//! runs the code.
//!
//! Source: PTX ISA 9.0, chapters 4 (syntax), 5 (declarations), 9 (instruction statements) and 11
//! (directives).

mod error;
mod expr;
mod lexer;
mod parser;
mod statement;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::{Deref, Range};

use crate::types::Type;

pub use error::{Position, SyntaxError, line_of, position};
pub use lexer::{Token, TokenKind, tokens};
pub use parser::parse;

/// A range of bytes of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Span {
    /// The first byte.
    pub start: u32,
    /// One past the last.
    pub end: u32,
}

impl Span {
    /// As a range, to index the source with.
    #[must_use]
    pub const fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// What it covers of `source`; empty when it is of another.
    #[must_use]
    pub fn text(self, source: &str) -> &str {
        source.get(self.range()).unwrap_or_default()
    }
}

/// A piece of the source that is a name or a number. Derefs to its text.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Word<'a> {
    /// As written.
    pub text: &'a str,
    /// Where it starts in the source, in bytes.
    pub start: u32,
}

impl Word<'_> {
    /// Where it stands.
    #[must_use]
    pub const fn span(&self) -> Span {
        Span { start: self.start, end: self.start + self.text.len() as u32 }
    }
}

impl Deref for Word<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        self.text
    }
}

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text)
    }
}

impl fmt::Debug for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}@{}", self.text, self.start)
    }
}

/// A file of PTX.
#[derive(Clone, Debug)]
pub struct Module<'a> {
    /// What was parsed.
    pub source: &'a str,
    /// `.version`: major and minor.
    pub version: (u32, u32),
    /// `.target`: the architecture first (`sm_90a`), then what follows it (`debug`, `texmode_independent`).
    pub target: Vec<Word<'a>>,
    /// `.address_size`; 32 where there is none (11.1.3).
    pub address_size: u32,
    /// All that follows, the directives above included, in order.
    pub items: Vec<Item<'a>>,
}

impl<'a> Module<'a> {
    /// Its functions with a body or without, kernels included, in order.
    pub fn functions(&self) -> impl Iterator<Item = &Function<'a>> {
        self.items.iter().filter_map(|item| match item {
            Item::Function(function) => Some(function),
            _ => None,
        })
    }

    /// Its kernels.
    pub fn entries(&self) -> impl Iterator<Item = &Function<'a>> {
        self.functions().filter(|f| f.entry)
    }

    /// Its variables.
    pub fn variables(&self) -> impl Iterator<Item = &Variable<'a>> {
        self.items.iter().filter_map(|item| match item {
            Item::Variable(variable) => Some(variable),
            _ => None,
        })
    }

    /// The files that `.loc` directives name by number (`.file 1 "name"`, 11.5.3).
    pub fn files(&self) -> impl Iterator<Item = (u32, &'a str)> {
        self.items.iter().filter_map(|item| match item {
            Item::Directive(d) if d.name.text == ".file" => match d.arguments[..] {
                [number, name, ..] => Some((number.parse().ok()?, name.text.trim_matches('"'))),
                _ => None,
            },
            _ => None,
        })
    }

    /// Line and column of a piece of it.
    #[must_use]
    pub fn position(&self, span: Span) -> Position {
        position(self.source, span.start)
    }
}

/// What a module is made of.
#[derive(Clone, Debug)]
pub enum Item<'a> {
    /// `.version`, `.target`, `.pragma`, `.file`, `.alias` ...
    Directive(Directive<'a>),
    /// A variable of `.global`, `.const`, `.shared` ...
    Variable(Variable<'a>),
    /// `.entry` or `.func`.
    Function(Function<'a>),
    /// `.section`: debug information, kept as it is.
    Section(Span),
}

/// A directive with its arguments: words, numbers and strings (with their quotes), commas left out.
#[derive(Clone, Debug)]
pub struct Directive<'a> {
    /// With the dot: `.maxntid`.
    pub name: Word<'a>,
    /// What follows.
    pub arguments: Vec<Word<'a>>,
    /// All of it.
    pub span: Span,
}

/// `.entry` or `.func`.
#[derive(Clone, Debug)]
pub struct Function<'a> {
    /// Whether it is a kernel.
    pub entry: bool,
    /// `.visible`, `.extern`, `.weak`, `.common`.
    pub linkage: Option<Word<'a>>,
    /// Its name.
    pub name: Word<'a>,
    /// What a `.func` returns.
    pub returns: Vec<Variable<'a>>,
    /// Its parameters.
    pub parameters: Vec<Variable<'a>>,
    /// `.maxntid`, `.minnctapersm`, `.noreturn` ...
    pub directives: Vec<Directive<'a>>,
    /// Its body; a declaration has none.
    pub body: Option<Block<'a>>,
    /// All of it.
    pub span: Span,
}

impl Function<'_> {
    /// Bytes of its parameters as a launch has them: in order, each where it is aligned. `None` when one has no size, or a
    /// type that there is not.
    ///
    /// ```
    /// let text = ".version 8.0 .target sm_90 .address_size 64\n.entry k(.param .u32 n, .param .b64 p[3]) { ret; }";
    /// let module = ferroccl_ptx::syntax::parse(text)?;
    /// assert_eq!(module.functions().next().and_then(|k| k.parameter_bytes()), Some(32));
    /// # Ok::<(), ferroccl_ptx::syntax::SyntaxError>(())
    /// ```
    #[must_use]
    pub fn parameter_bytes(&self) -> Option<u64> {
        self.parameters.iter().try_fold(0u64, |end, parameter| {
            let element = u64::from(Type::from_name(parameter.ty.text)?.bytes());
            let element = element * u64::from(parameter.vector);
            let dimensions = &parameter.names.first()?.dimensions;
            let bytes = dimensions.iter().try_fold(element, |n, size| n.checked_mul((*size)?))?;
            let align = parameter.align.unwrap_or(element).max(1);
            end.checked_next_multiple_of(align)?.checked_add(bytes)
        })
    }
}

/// `{ ... }`
#[derive(Clone, Debug)]
pub struct Block<'a> {
    /// What it holds, in order.
    pub statements: Vec<Statement<'a>>,
    /// All of it, braces included.
    pub span: Span,
}

/// A line of a body.
#[derive(Clone, Debug)]
pub enum Statement<'a> {
    /// `name:`
    Label(Word<'a>),
    /// An instruction.
    Instruction(Instruction<'a>),
    /// A declaration of registers or variables (`.reg`, `.shared`, `.local`, `.param`).
    Variable(Variable<'a>),
    /// `.loc`, `.pragma` ...
    Directive(Directive<'a>),
    /// A block within: a scope for the names declared in it.
    Block(Block<'a>),
}

/// A variable, a parameter, or registers.
#[derive(Clone, Debug)]
pub struct Variable<'a> {
    /// `.visible`, `.extern`, `.weak`, `.common`.
    pub linkage: Option<Word<'a>>,
    /// `.reg`, `.global`, `.const`, `.shared`, `.local`, `.param`, with the dot.
    pub space: Word<'a>,
    /// `.align`, in bytes.
    pub align: Option<u64>,
    /// `.v2`, `.v4`: elements of a vector, else 1.
    pub vector: u32,
    /// `.b32`, without the dot.
    pub ty: Word<'a>,
    /// `.ptr` and what says more of the parameter (`.ptr .global .align 8`), with their dots.
    pub attributes: Vec<Word<'a>>,
    /// The names declared: one, but for registers and lists (`%a, %b`).
    pub names: Vec<Declared<'a>>,
    /// All of it.
    pub span: Span,
}

/// A name that a declaration makes.
#[derive(Clone, Debug)]
pub struct Declared<'a> {
    /// As written: `%r` of `%r<10>`.
    pub name: Word<'a>,
    /// `<10>`: the names `%r0` to `%r9`.
    pub count: Option<u32>,
    /// `[4][2]`: an array's sizes; `None` for one that is left open (`[]`).
    pub dimensions: Vec<Option<u64>>,
    /// What it starts with.
    pub initializer: Option<Initializer<'a>>,
}

/// The value that a variable starts with.
#[derive(Clone, Debug)]
pub enum Initializer<'a> {
    /// An integer.
    Integer(i128),
    /// A number of a floating-point type.
    Float(f64),
    /// The address of a variable or function plus a number of bytes.
    Address {
        /// Whose address.
        name: Word<'a>,
        /// `generic(name)`: its generic address.
        generic: bool,
        /// Bytes to add.
        offset: i64,
    },
    /// `{ a, b }`
    List(Vec<Initializer<'a>>),
}

/// An instruction.
#[derive(Clone, Debug)]
pub struct Instruction<'a> {
    /// `@%p` or `@!%p`.
    pub guard: Option<Guard<'a>>,
    /// The first part of its name: `ld`.
    pub opcode: Word<'a>,
    /// The others, without their dots: `volatile`, `global`, `v2`, `u64`; `shared::cta` is one.
    pub modifiers: Vec<Word<'a>>,
    /// What it works on, in order.
    pub operands: Vec<Operand<'a>>,
    /// All of it, guard and semicolon included.
    pub span: Span,
}

impl<'a> Instruction<'a> {
    /// Whether it has this modifier.
    #[must_use]
    pub fn has(&self, modifier: &str) -> bool {
        self.modifiers.iter().any(|m| m.text == modifier)
    }

    /// Its name with all parts: `ld.volatile.global.v2.u64`.
    #[must_use]
    pub fn name(&self) -> String {
        let mut name = self.opcode.text.to_owned();
        for modifier in &self.modifiers {
            name.push('.');
            name.push_str(modifier);
        }
        name
    }
}

/// The predicate that an instruction runs under.
#[derive(Clone, Copy, Debug)]
pub struct Guard<'a> {
    /// Whether it runs where the predicate is false.
    pub negated: bool,
    /// The predicate.
    pub register: Word<'a>,
}

/// An operand.
#[derive(Clone, Debug)]
pub enum Operand<'a> {
    /// A register, label, variable, function or special register (`%tid.x`).
    Name(Word<'a>),
    /// `!%p`
    Not(Word<'a>),
    /// An integer; a constant expression is its value.
    Integer(i128, Span),
    /// A floating-point number as written in decimal.
    Decimal(f64, Span),
    /// `0f3f800000`: the bits of an f32.
    Single(u32, Span),
    /// `0d3ff0000000000000`: the bits of an f64.
    Double(u64, Span),
    /// `%r+4` or `name+4` outside of brackets: an address or a parameter's.
    Sum(Word<'a>, i64),
    /// `[%rd1+8]`
    Address(Address<'a>),
    /// `{%r1, %r2}`
    Vector(Vec<Operand<'a>>, Span),
    /// `%p|%q`: two destinations.
    Pair(Word<'a>, Word<'a>),
    /// `(%r1, %r2)`: of `call`.
    List(Vec<Operand<'a>>, Span),
    /// `_`: a destination that nobody wants.
    Sink(Span),
}

impl Operand<'_> {
    /// Where it stands.
    #[must_use]
    pub fn span(&self) -> Span {
        match self {
            Operand::Name(w) | Operand::Not(w) | Operand::Sum(w, _) => w.span(),
            Operand::Integer(_, s)
            | Operand::Decimal(_, s)
            | Operand::Single(_, s)
            | Operand::Double(_, s)
            | Operand::Vector(_, s)
            | Operand::List(_, s)
            | Operand::Sink(s) => *s,
            Operand::Address(a) => a.span,
            Operand::Pair(a, b) => Span { start: a.start, end: b.span().end },
        }
    }
}

/// `[base+offset]`
#[derive(Clone, Debug)]
pub struct Address<'a> {
    /// A register or a variable; `None` for an absolute address.
    pub base: Option<Word<'a>>,
    /// Bytes to add.
    pub offset: i64,
    /// What follows a comma: coordinates of a texture or a tensor.
    pub coordinates: Vec<Operand<'a>>,
    /// All of it, brackets included.
    pub span: Span,
}
