//! Loads in flight.
//!
//! A lane goes on after a load and waits where its result is first needed. How many loads it has issued by then is
//! how many the memory works on at a time for it: with one in flight, each load costs the whole latency.
//!
//! Here: the most loads from global memory (generic addresses count as global) that stand in a basic block
//! before the first instruction that names a register any of them fills, be it to read or to overwrite it.
//! A block that is a loop by itself is read twice in a row, as loads at its end may be used at its start.
//! Where blocks follow each other the count starts again: it is a lower bound.

use std::collections::HashSet;

use crate::cfg::Code;
use crate::isa::{Access, Space, memory};
use crate::syntax::{Address, Operand};

/// Loads in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Flight {
    /// How many loads.
    pub loads: u32,
    /// How many bytes of a lane they fetch.
    pub bytes: u32,
}

/// The most loads in flight in a block; `cyclic` says that it follows itself.
#[must_use]
pub fn flight(block: &[Code<'_, '_>], cyclic: bool) -> Flight {
    let mut most = Flight::default();
    let mut now = Flight::default();
    let mut waiting: HashSet<&str> = HashSet::new();
    for code in block.iter().chain(block.iter().filter(|_| cyclic)) {
        let instruction = code.instruction;
        let guard = instruction.guard.iter().map(|g| g.register.text);
        let mut used = guard.chain(instruction.operands.iter().flat_map(names));
        if !waiting.is_empty() && used.any(|name| waiting.contains(name)) {
            waiting.clear();
            now = Flight::default();
        }
        let load = memory(instruction).filter(|m| {
            m.access == Access::Load && matches!(m.space, Space::Global | Space::Generic)
        });
        if let Some(load) = load {
            waiting.extend(instruction.operands.first().into_iter().flat_map(names));
            now.loads += 1;
            now.bytes += load.bytes.unwrap_or(0);
            most = most.max(now);
        }
    }
    most
}

/// The names in an operand.
pub(super) fn names<'o>(operand: &'o Operand<'_>) -> Vec<&'o str> {
    match operand {
        Operand::Name(w) | Operand::Not(w) | Operand::Sum(w, _) => vec![w.text],
        Operand::Pair(a, b) => vec![a.text, b.text],
        Operand::Vector(inner, _) | Operand::List(inner, _) => {
            inner.iter().flat_map(names).collect()
        }
        Operand::Address(Address { base, coordinates, .. }) => {
            let base = base.iter().map(|w| w.text);
            base.chain(coordinates.iter().flat_map(names)).collect()
        }
        Operand::Integer(..)
        | Operand::Decimal(..)
        | Operand::Single(..)
        | Operand::Double(..)
        | Operand::Sink(_) => Vec::new(),
    }
}
