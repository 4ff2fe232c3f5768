//! Accesses to data that nothing orders: what happens before what, kept as vector clocks.
//!
//! A store is late at most; a load is done when it is executed, and does not show that its order is missing. So
//! the accesses themselves are looked at: of two accesses to the same data, one of them a store, one must happen before the
//! other. A release publishes what its block has done and knows of; who acquires the word knows it, too. A
//! block begins after all that blocks which have ended did. A word that no block has published was written by a host,
//! or a proxy, and who acquires it is taken to know all that has happened.

use std::collections::HashMap;

/// For each slot of a block, how far its events are known.
pub(super) type Clock = Vec<u64>;

/// Data is looked at in pieces of so many bytes: elements must not be smaller.
const GRAIN: usize = 4;

/// The last accesses to a piece of data.
#[derive(Default)]
struct Accesses {
    store: Option<LastAccess>,
    loads: Vec<LastAccess>,
}

/// An access.
#[derive(Clone, Copy)]
struct LastAccess {
    slot: usize,
    time: u64,
    /// Its number in the history.
    event: u64,
}

/// What blocks know of each other's accesses.
#[derive(Default)]
pub(super) struct Races {
    clocks: Vec<Clock>,
    /// What those who begin know.
    ended: Clock,
    /// What those know who acquire a word.
    published: HashMap<usize, Clock>,
    data: HashMap<usize, Accesses>,
    /// The first race.
    pub(super) found: Option<String>,
}

/// Knows from now on what another clock knows.
pub(super) fn join(to: &mut Clock, from: &[u64]) {
    if to.len() < from.len() {
        to.resize(from.len(), 0);
    }
    to.iter_mut().zip(from).for_each(|(to, from)| *to = (*to).max(*from));
}

impl Races {
    /// A block begins in a slot.
    pub(super) fn begin(&mut self, slot: usize) {
        if self.clocks.len() <= slot {
            self.clocks.resize_with(slot + 1, Clock::new);
        }
        let now = self.clocks[slot].get(slot).copied().unwrap_or(0) + 1;
        let mut clock = self.ended.clone();
        clock.resize(clock.len().max(slot + 1), 0);
        clock[slot] = now;
        self.clocks[slot] = clock;
    }

    /// A block begins in a slot, or goes on in it, behind what the blocks in these slots have done. Nothing else is known to it.
    pub(super) fn begin_after(&mut self, slot: usize, after: &[usize]) {
        if self.clocks.len() <= slot {
            self.clocks.resize_with(slot + 1, Clock::new);
        }
        let mut clock = std::mem::take(&mut self.clocks[slot]);
        after.iter().for_each(|other| join(&mut clock, &self.clocks[*other]));
        clock.resize(clock.len().max(slot + 1), 0);
        clock[slot] += 1;
        self.clocks[slot] = clock;
    }

    /// The time of a block.
    pub(super) fn time(&self, slot: usize) -> u64 {
        self.clocks[slot][slot]
    }

    /// Whether a block knows what another has done at a time.
    pub(super) fn knows(&self, slot: usize, other: usize, time: u64) -> bool {
        self.clocks[slot].get(other).is_some_and(|now| *now >= time)
    }

    /// A block gets to know what was published with this clock.
    pub(super) fn learn(&mut self, slot: usize, clock: &[u64]) {
        join(&mut self.clocks[slot], clock);
    }

    /// Whether a block would race with accesses to data, if it loaded or stored a word there.
    pub(super) fn is_racy(
        &self,
        slot: usize,
        (address, len): (usize, usize),
        is_store: bool,
    ) -> bool {
        let known = |last: &LastAccess| self.knows(slot, last.slot, last.time);
        (address / GRAIN..(address + len).div_ceil(GRAIN)).any(|piece| {
            self.data.get(&piece).is_some_and(|accesses| {
                accesses.store.as_ref().is_some_and(|last| !known(last))
                    || is_store && accesses.loads.iter().any(|last| !known(last))
            })
        })
    }

    /// The block has ended, and all that it stored is visible.
    pub(super) fn end(&mut self, slot: usize) {
        let clock = std::mem::take(&mut self.clocks[slot]);
        join(&mut self.ended, &clock);
        self.clocks[slot] = clock;
    }

    /// What a block publishes now.
    pub(super) fn release(&mut self, slot: usize) -> Clock {
        let clock = self.clocks[slot].clone();
        self.clocks[slot][slot] += 1;
        clock
    }

    /// A word has become visible: by a release with this clock, or by a store without an order.
    pub(super) fn visible(&mut self, address: usize, clock: Clock) {
        self.published.insert(address, clock);
    }

    /// A block has read a published word.
    pub(super) fn acquire(&mut self, slot: usize, address: usize) {
        let Races { clocks, published, .. } = self;
        if let Some(known) = published.get(&address) {
            join(&mut clocks[slot], known);
        } else {
            let all = clocks.iter().fold(Clock::new(), |mut all, clock| {
                join(&mut all, clock);
                all
            });
            join(&mut clocks[slot], &all);
        }
    }

    /// A block reads and writes a word in one access. A word that no block has published tells it nothing.
    pub(super) fn claim(&mut self, slot: usize, address: usize) {
        if let Some(known) = self.published.get(&address) {
            join(&mut self.clocks[slot], known);
        }
        let clock = self.release(slot);
        self.visible(address, clock);
    }

    /// A block accesses data; `event` is the access's number in the history. Of the first race, the number of the other access.
    pub(super) fn access(
        &mut self,
        slot: usize,
        address: usize,
        len: usize,
        is_store: bool,
        event: u64,
    ) -> Option<u64> {
        let mut raced = None;
        let Races { clocks, data, found, .. } = self;
        let clock = &clocks[slot];
        let known = |last: &LastAccess| clock.get(last.slot).is_some_and(|now| *now >= last.time);
        for piece in address / GRAIN..(address + len).div_ceil(GRAIN) {
            let accesses = data.entry(piece).or_default();
            let stored = accesses.store.as_ref().is_none_or(known);
            let unknown = accesses.loads.iter().find(|last| is_store && !known(last));
            if (!stored || unknown.is_some()) && found.is_none() {
                let other = if stored { unknown } else { accesses.store.as_ref() };
                raced = other.map(|last| last.event);
                let what = if is_store { "stores" } else { "loads" };
                let other = if stored { "loaded" } else { "stored" };
                *found = Some(format!("a block {what} data that another has {other}, in no order"));
            }
            let now = LastAccess { slot, time: clock[slot], event };
            if is_store {
                *accesses = Accesses { store: Some(now), loads: Vec::new() };
            } else {
                accesses.loads.retain(|last| last.slot != slot);
                accesses.loads.push(now);
            }
        }
        raced
    }
}
