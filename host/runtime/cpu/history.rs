//! What blocks did to memory, one after the other: kept where a test wants to explain what went wrong.

use std::collections::VecDeque;

use ferroccl_device::gpu::cpu::{Access, Order};

/// Events that are kept: the last ones.
const KEPT: usize = 1 << 18;

/// An access to memory by a block, or a store of it that became visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEvent {
    /// Its number among all of the runtime's, from 0: the order in which they happened.
    pub number: u64,
    /// The rank whose kernel it was.
    pub rank: u32,
    /// The block of the kernel.
    pub block: u32,
    /// What was done.
    pub what: MemoryAccess,
    /// Where.
    pub address: u64,
    /// How many bytes.
    pub bytes: usize,
    /// The value of a word of 8 bytes.
    pub word: Option<u64>,
}

/// What was done to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryAccess {
    /// A load.
    Load(Access),
    /// A store was executed; when others see it is another event.
    Store(Order),
    /// A store, the event of this number, or a part of it, is seen by all from here on.
    Visible(u64),
    /// A word was read and written in one.
    Swap,
}

/// Two accesses to the same data that are in no order, by the numbers of their events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The earlier one.
    pub first: u64,
    /// The later one.
    pub second: u64,
    /// Whether the later one loads what the earlier one has stored and nobody sees yet.
    pub stale: bool,
}

/// The events.
#[derive(Default)]
pub(super) struct History {
    events: VecDeque<MemoryEvent>,
    next: u64,
    /// By slot: the rank, and the block.
    blocks: Vec<(u32, u32)>,
    /// The first conflict.
    pub(super) conflict: Option<Conflict>,
}

impl History {
    /// A block of a rank begins in a slot.
    pub(super) fn begin(&mut self, slot: usize, rank: u32, block: u32) {
        if self.blocks.len() <= slot {
            self.blocks.resize(slot + 1, (0, 0));
        }
        self.blocks[slot] = (rank, block);
    }

    /// Adds an event; its number.
    pub(super) fn push(
        &mut self,
        slot: usize,
        what: MemoryAccess,
        (address, bytes): (usize, usize),
        word: Option<u64>,
    ) -> u64 {
        let (rank, block) = self.blocks.get(slot).copied().unwrap_or_default();
        let number = self.next;
        self.next += 1;
        if self.events.len() == KEPT {
            self.events.pop_front();
        }
        let address = address as u64;
        self.events.push_back(MemoryEvent { number, rank, block, what, address, bytes, word });
        number
    }

    /// Notes a conflict, unless there is one.
    pub(super) fn conflict(&mut self, first: u64, second: u64, stale: bool) {
        self.conflict.get_or_insert(Conflict { first, second, stale });
    }

    pub(super) fn events(&self) -> Vec<MemoryEvent> {
        self.events.iter().copied().collect()
    }
}
