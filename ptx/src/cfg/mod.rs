//! The ways through a function: basic blocks, what dominates them, and loops.
//!
//! ```text
//! Function ── flatten ──► code: instructions in a row, each with its .loc
//!                          │ cut at labels, and after what may jump or end
//!                          ▼
//!                        blocks ── edges (taken, fall-through, case n)
//!                          │
//!                          ▼
//!               dominators, post-dominators, natural loops with their depth
//! ```
//!
//! A block is a range of instructions that run one after the other: it is entered at its first and left
//! after its last. `ret`, `exit` and `trap` lead to the function's end, and so does its last instruction; a
//! `call` comes back. Calls, barriers and spins cut nothing. Who calls a function, and whether lanes of a warp
//! part at a branch, is not known here.
//!
//! Names of labels count within their braces (PTX ISA 9.0, 9.7.12.1, `{}`: names declared in a block are those
//! of the block alone), which code that was inlined from `asm!` relies on.
//!
//! Sources: PTX ISA 9.0, 9.7.12 (control flow) and 11.3 (`.branchtargets`); Cooper, Harvey, Kennedy, "A
//! Simple, Fast Dominance Algorithm" (2001), as petgraph has it; Aho, Lam, Sethi, Ullman, "Compilers", 9.6
//! (natural loops).

mod build;
mod loops;
#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::syntax::{Directive, Function, Instruction, Span, SyntaxError, Word};

pub use loops::{Loop, LoopId};

/// The number of a block, in the order of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub usize);

/// An instruction of a function, without the braces around it.
#[derive(Clone, Copy, Debug)]
pub struct Code<'f, 'a> {
    /// It.
    pub instruction: &'f Instruction<'a>,
    /// The `.loc` that counts for it: the last one before it.
    pub location: Option<&'f Directive<'a>>,
}

/// How one block follows another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EdgeKind {
    /// A branch jumps.
    Taken,
    /// The next in the text.
    FallThrough,
    /// Entry `n` of the table that a `brx.idx` jumps through.
    Case(u32),
}

/// A way out of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Where it leads.
    pub to: BlockId,
    /// How.
    pub kind: EdgeKind,
}

/// Instructions that run one after the other.
#[derive(Clone, Debug)]
pub struct BasicBlock<'a> {
    /// The labels it can be reached by, if any.
    pub labels: Vec<Word<'a>>,
    /// Its instructions, as places in [`Cfg::code`]; not empty but where a label stands at the end of a function.
    pub range: Range<usize>,
    /// Where it leads: taken or cases first, then the fall-through.
    pub successors: Vec<Edge>,
    /// What leads to it, each once, in order.
    pub predecessors: Vec<BlockId>,
    /// Whether the function may end in it.
    pub ends: bool,
}

/// The ways through a function.
#[derive(Clone, Debug)]
pub struct Cfg<'f, 'a> {
    /// Its instructions in a row.
    pub code: Vec<Code<'f, 'a>>,
    /// Its blocks in the order of the text; the first is where it begins.
    pub blocks: Vec<BasicBlock<'a>>,
    dominators: Vec<Option<BlockId>>,
    post_dominators: Vec<Option<BlockId>>,
    /// The places of what each block dominates, in a walk of the tree of dominators; empty for what is not in it.
    within: Vec<Range<u32>>,
    loops: Vec<Loop>,
    innermost: Vec<Option<LoopId>>,
    irreducible: Vec<(BlockId, BlockId)>,
}

/// A function whose ways cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct CfgError {
    /// What is wrong.
    pub what: String,
    /// Where.
    pub span: Span,
}

impl CfgError {
    /// With line and column of the source it was found in.
    #[must_use]
    pub fn at(self, source: &str) -> SyntaxError {
        SyntaxError::new(source, self.span.start, self.what)
    }
}

impl<'f, 'a> Cfg<'f, 'a> {
    /// The ways through `function`; a declaration has none: no code, no blocks.
    ///
    /// # Errors
    /// A branch to a label that is not there, a label that is there twice, or a jump through something that is no
    /// `.branchtargets`.
    ///
    /// ```
    /// use ferroccl_ptx::cfg::{BlockId, Cfg};
    /// use ferroccl_ptx::syntax::parse;
    ///
    /// let module = parse(".version 8.0\n.target sm_80\n.entry k() { .reg .pred %p; L: @%p bra L; ret; }")?;
    /// let kernel = module.entries().next().expect("there is one");
    /// let cfg = Cfg::new(kernel).map_err(|e| e.at(module.source))?;
    /// assert_eq!(cfg.blocks.len(), 2);
    /// assert_eq!(cfg.post_dominator(BlockId(0)), Some(BlockId(1)));
    /// assert_eq!(cfg.loops()[0].header, BlockId(0));
    /// # Ok::<(), ferroccl_ptx::syntax::SyntaxError>(())
    /// ```
    pub fn new(function: &'f Function<'a>) -> Result<Self, CfgError> {
        build::build(function)
    }

    /// The instructions of a block.
    #[must_use]
    pub fn code_of(&self, block: BlockId) -> &[Code<'f, 'a>] {
        self.blocks.get(block.0).and_then(|b| self.code.get(b.range.clone())).unwrap_or_default()
    }

    /// The block that an instruction is in.
    #[must_use]
    pub fn block_of(&self, instruction: usize) -> Option<BlockId> {
        // Empty blocks stand at the end alone, so starts differ.
        let after = self.blocks.partition_point(|b| b.range.start <= instruction);
        let id = after.checked_sub(1)?;
        self.blocks[id].range.contains(&instruction).then_some(BlockId(id))
    }

    /// All blocks by number.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = BlockId> + use<> {
        (0..self.blocks.len()).map(BlockId)
    }

    /// Whether any way from the start leads to a block.
    #[must_use]
    pub fn is_reachable(&self, block: BlockId) -> bool {
        self.within.get(block.0).is_some_and(|within| !within.is_empty())
    }

    /// The last block that every way from the start to `block` goes through before it; `None` for the first
    /// block and for those that no way leads to.
    #[must_use]
    pub fn dominator(&self, block: BlockId) -> Option<BlockId> {
        self.dominators.get(block.0).copied().flatten()
    }

    /// The first block that every way from `block` to the function's end goes through after it; `None` where
    /// that is the end itself, and where no way leads to the end. Lanes that part at the end of a block meet
    /// again there.
    #[must_use]
    pub fn post_dominator(&self, block: BlockId) -> Option<BlockId> {
        self.post_dominators.get(block.0).copied().flatten()
    }

    /// Whether every way from the start to `b` goes through `a`; a block dominates itself.
    #[must_use]
    pub fn dominates(&self, a: BlockId, b: BlockId) -> bool {
        match (self.within.get(a.0), self.within.get(b.0)) {
            (Some(outer), Some(inner)) => {
                a == b
                    || (outer.start <= inner.start && inner.end <= outer.end && !inner.is_empty())
            }
            _ => false,
        }
    }

    /// Whether an edge closes a natural loop: it leads back to a block that dominates where it comes from.
    #[must_use]
    pub fn is_back_edge(&self, from: BlockId, to: BlockId) -> bool {
        self.is_reachable(from) && self.dominates(to, from)
    }

    /// Its natural loops; one that holds another comes before it.
    #[must_use]
    pub fn loops(&self) -> &[Loop] {
        &self.loops
    }

    /// The innermost loop that a block is in.
    #[must_use]
    pub fn innermost_loop(&self, block: BlockId) -> Option<LoopId> {
        self.innermost.get(block.0).copied().flatten()
    }

    /// How many loops a block is in.
    #[must_use]
    pub fn depth(&self, block: BlockId) -> u32 {
        self.innermost_loop(block).map_or(0, |l| self.loops[l.0].depth)
    }

    /// Edges that close a cycle which is no natural loop: it can be entered elsewhere than where they lead.
    /// Compilers make none; a person may.
    #[must_use]
    pub fn irreducible(&self) -> &[(BlockId, BlockId)] {
        &self.irreducible
    }
}
