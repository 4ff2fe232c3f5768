//! The instructions of PTX: which there are, what may stand in their names, what kind each is, and what it
//! does to memory.
//!
//! One table, `table.txt`, has a line for each opcode; [`check`] holds an instruction against it, [`class`],
//! [`memory`] and [`fence`] read from the same names. What is checked is words: that an opcode exists, that
//! each modifier is one of its own, that no two exclude each other, that operands are as many as it takes. The
//! order of modifiers, which of them an architecture has, and the types of operands are `ptxas`'s to check.
//!
//! Source: PTX ISA 9.0, chapter 9.7; for the syntax of a few instructions the comments of libcu++'s
//! `cuda::ptx` (CCCL 3.0), and where both left a question, `ptxas` 13.

mod class;
mod error;
mod memory;
mod table;
#[cfg(test)]
mod tests;

use crate::syntax::{Block, Instruction, Module, Statement, SyntaxError};

pub use class::{Class, class};
pub use error::{IsaError, Problem};
pub use memory::{Access, Fence, Memory, Order, Scope, Space, fence, memory};
pub use table::{Opcode, opcode, opcodes};

/// Holds an instruction against the table.
///
/// # Errors
/// The first thing wrong with it: an opcode or a modifier that is not there, with one that is meant perhaps; two
/// modifiers that exclude each other; too few or too many operands.
///
/// ```
/// use ferroccl_ptx::{isa, syntax};
///
/// let module = syntax::parse(".version 9.0\n.target sm_90\n.func f() { ld.volatil.global.u32 %r1, [%rd1]; }")?;
/// let error = isa::check_module(&module).expect_err("a letter is missing");
/// assert_eq!(error.what, "`ld` has no modifier `.volatil`; did you mean `.volatile`?");
/// assert_eq!(error.at.to_string(), "3:16");
/// # Ok::<(), syntax::SyntaxError>(())
/// ```
pub fn check(instruction: &Instruction<'_>) -> Result<(), IsaError> {
    let found = opcode(instruction).ok_or_else(|| error::unknown(instruction))?;
    let own = found.parts() - 1;
    let mut taken = vec![None; found.groups.len()];
    for (at, modifier) in instruction.modifiers.iter().enumerate().skip(own) {
        let mut groups = found.groups.iter().enumerate().filter(|(_, g)| g.has(modifier));
        match groups.clone().find(|(i, _)| taken[*i].is_none()) {
            Some((i, _)) => taken[i] = Some(at),
            None => {
                let other = groups.next_back().and_then(|(i, _)| taken[i]);
                return Err(error::modifier(instruction, found, at, other));
            }
        }
    }
    let operands = instruction.operands.len();
    if !found.operands.contains(&operands) {
        return Err(error::operands(instruction, found));
    }
    Ok(())
}

/// Holds all instructions of a module against the table.
///
/// # Errors
/// The first that [`check`] refuses, with its line.
pub fn check_module(module: &Module<'_>) -> Result<(), SyntaxError> {
    let mut bodies = module.functions().filter_map(|f| f.body.as_ref());
    bodies.try_for_each(check_block).map_err(|e| e.at(module.source))
}

fn check_block(block: &Block<'_>) -> Result<(), IsaError> {
    block.statements.iter().try_for_each(|statement| match statement {
        Statement::Instruction(instruction) => check(instruction),
        Statement::Block(inner) => check_block(inner),
        _ => Ok(()),
    })
}
