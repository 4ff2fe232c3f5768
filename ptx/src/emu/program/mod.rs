//! A kernel made ready to run: names resolved, labels and variables turned into numbers.
//!
//! ```text
//! syntax::Function ── decode ──► [Inst] over virtual registers ── allocate ──► [Inst] over slots
//! ```
//!
//! What is not supported is an error here, with its line: nothing is found out half way through a run.

mod allocate;
mod async_op;
mod call;
mod control;
mod declare;
mod decode;
mod memory_op;
mod multimem_op;
mod names;
mod op;
mod operand;
mod special;
mod visit;

use std::fmt;
use std::sync::Arc;

pub(crate) use crate::isa::{Order, Scope};
pub(crate) use decode::CONSTANT;
pub(crate) use op::*;
pub(crate) use special::Special;
use visit::Use;

use super::alu::Lanes;
use crate::syntax::{self, Position, Span, SyntaxError, position};

/// Where generic addresses of shared memory begin. Above what a process can map, so that no address of
/// global memory is one; the manual leaves the windows' places open (6.4.1.1).
pub(crate) const SHARED_WINDOW: u64 = 1 << 56;
/// Where generic addresses of local memory begin.
pub(crate) const LOCAL_WINDOW: u64 = 1 << 57;
/// The size of each window.
pub(crate) const WINDOW_BYTES: u64 = 1 << 32;

/// A kernel that can run.
pub struct Program {
    /// The kernel's name.
    pub(crate) name: String,
    source: Arc<str>,
    /// The instructions, in the order of the text.
    pub(crate) code: Vec<Inst>,
    /// What each instruction is in the source.
    spans: Vec<Span>,
    /// For each instruction, where it is from: the last `.loc` before it.
    places: Vec<Option<Place>>,
    files: Vec<(u32, String)>,
    /// Whether control may come to an instruction from elsewhere than its predecessor.
    pub(crate) leaders: Vec<bool>,
    /// Value registers of a warp.
    pub(crate) registers: usize,
    /// Predicate registers of a warp.
    pub(crate) predicates: usize,
    /// Immediate operands: the registers from number `registers` on.
    pub(crate) constants: Vec<Lanes>,
    /// Bytes of parameters.
    pub(crate) parameter_bytes: usize,
    /// Whether it takes their addresses, so that they have to be memory.
    pub(crate) addresses_parameters: bool,
    /// Bytes of shared memory declared, without what a launch adds.
    pub(crate) shared_bytes: usize,
    /// Bytes of local memory of a lane.
    pub(crate) local_bytes: usize,
    /// The most threads of a block (`.maxntid`, 11.4.3), if it says.
    pub(crate) max_threads: Option<u32>,
    /// Variables of the module in `.global` and `.const`.
    pub(crate) variables: Vec<Variable>,
    /// The value registers that each instruction reads or writes.
    touched: Vec<Touched>,
    /// For each instruction, the loop that it closes: a backward branch of a loop that waits.
    pub(crate) spins: Vec<bool>,
}

/// A variable in global memory: it keeps its value from launch to launch.
pub(crate) struct Variable {
    pub(crate) name: String,
    /// Bytes of it.
    pub(crate) bytes: usize,
    /// It, with room to align it.
    memory: Box<[u64]>,
    align: usize,
}

impl Variable {
    pub(super) fn new(name: &str, data: &[u8], align: usize) -> Self {
        let mut memory = vec![0; (data.len() + align).div_ceil(8) + 1].into_boxed_slice();
        let start = memory.as_ptr().addr().next_multiple_of(align.max(8)) - memory.as_ptr().addr();
        for (word, bytes) in memory[start / 8..].iter_mut().zip(data.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(whole);
        }
        Variable { name: name.to_owned(), bytes: data.len(), memory, align: align.max(8) }
    }

    pub(crate) fn address(&self) -> u64 {
        (self.memory.as_ptr().expose_provenance() as u64).next_multiple_of(self.align as u64)
    }
}

/// A place in a program's own source, as `.loc` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    file: u32,
    line: u32,
}

/// Why a kernel cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The text is no PTX, or the emulator does not know an instruction of it.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// There is no such kernel.
    #[error("there is no kernel `{0}` in the module")]
    NoKernel(String),
}

/// The registers of an instruction, those that it writes last. Constants are left out.
struct Touched {
    registers: Box<[Reg]>,
    predicates: Box<[Pred]>,
    /// Where those begin that are written.
    written: (usize, usize),
}

impl Touched {
    fn of(inst: &mut Inst) -> Self {
        let (mut values, mut predicates) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        let which = |used: Use| usize::from(used == Use::Write);
        inst.visit(
            &mut |r, used| {
                if *r & CONSTANT == 0 {
                    values[which(used)].push(*r);
                }
            },
            &mut |p, used| predicates[which(used)].push(*p),
        );
        let written = (values[0].len(), predicates[0].len());
        let (registers, predicates) = (values.concat().into(), predicates.concat().into());
        Touched { registers, predicates, written }
    }
}

impl Program {
    /// Reads `kernel` of a module of PTX.
    ///
    /// # Errors
    /// [`LoadError`]: what is wrong, or what the emulator does not know, with its line.
    ///
    /// ```
    /// use ferroccl_ptx::emu::Program;
    ///
    /// let source = ".version 8.0\n.target sm_90\n.address_size 64\n.entry k() { frobnicate; }";
    /// let error = Program::load(source, "k").unwrap_err();
    /// assert!(error.to_string().starts_with("line 4:14: "), "{error}");
    /// ```
    pub fn load(source: &str, kernel: &str) -> Result<Program, LoadError> {
        let module = syntax::parse(source)?;
        let entry = module.entries().find(|f| f.name.text == kernel && f.body.is_some());
        let entry = entry.ok_or_else(|| LoadError::NoKernel(kernel.to_owned()))?;
        let mut program = decode::decode(&module, entry)?;
        control::analyse(&mut program);
        allocate::allocate(&mut program);
        program.touched = program.code.iter_mut().map(Touched::of).collect();
        Ok(program)
    }

    /// The value registers that instruction `pc` reads or writes.
    pub(crate) fn touched(&self, pc: u32) -> &[Reg] {
        self.touches(pc).0
    }

    /// The value registers and the predicates that instruction `pc` reads or writes.
    pub(crate) fn touches(&self, pc: u32) -> (&[Reg], &[Pred]) {
        self.touched.get(pc as usize).map_or((&[], &[]), |t| (&t.registers, &t.predicates))
    }

    /// The value registers and the predicates that instruction `pc` writes.
    pub(crate) fn writes(&self, pc: u32) -> (&[Reg], &[Pred]) {
        let Some(touched) = self.touched.get(pc as usize) else { return (&[], &[]) };
        let (registers, predicates) = touched.written;
        (&touched.registers[registers..], &touched.predicates[predicates..])
    }

    /// The kernel's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many bytes of parameters it takes.
    #[must_use]
    pub fn parameter_bytes(&self) -> usize {
        self.parameter_bytes
    }

    /// How many instructions it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.code.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.code.is_empty()
    }

    /// How many registers a warp needs at a time: values, and predicates.
    #[must_use]
    pub fn registers(&self) -> (usize, usize) {
        (self.registers, self.predicates)
    }

    /// The text of instruction `pc`.
    #[must_use]
    pub fn text(&self, pc: u32) -> &str {
        self.spans.get(pc as usize).map_or("", |span| span.text(&self.source))
    }

    /// Where instruction `pc` stands in the PTX.
    #[must_use]
    pub fn position(&self, pc: u32) -> Position {
        position(&self.source, self.spans.get(pc as usize).map_or(0, |span| span.start))
    }

    /// Where instruction `pc` comes from in the program's own source: file and line, if the PTX says.
    #[must_use]
    pub fn source_line(&self, pc: u32) -> Option<(&str, u32)> {
        let place = (*self.places.get(pc as usize)?)?;
        let file = self.files.iter().find(|(number, _)| *number == place.file)?;
        Some((&file.1, place.line))
    }

    /// One line that says where `pc` is: instruction, line of PTX, line of source.
    #[must_use]
    pub fn describe(&self, pc: u32) -> String {
        let at = self.position(pc);
        let mut text = format!("`{}` at line {} of {}", self.text(pc), at.line, self.name);
        if let Some((file, line)) = self.source_line(pc) {
            text += &format!(" ({file}:{line})");
        }
        text
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("name", &self.name)
            .field("instructions", &self.code.len())
            .field("registers", &self.registers)
            .finish_non_exhaustive()
    }
}
