//! Memory as the PTX ISA's memory model has it, one access after the other, where whoever tries everything says what a load sees.
//!
//! A word of 8 bytes has all its stores, in their coherence order. A load may see any of them that coherence and causality leave to it:
//! none before a store that the block knows of, nor before one that a load saw which it knows of. What a block knows of is kept in vector
//! clocks ([`Races`]): a release hands on what its block knows, an acquire takes that over from the store that it sees. The rules are
//! those of the PTX ISA 8.7, sections 8.8 (release and acquire patterns) and 8.10 (coherence, atomicity, causality), for accesses of the
//! whole system.
//!
//! One thing that PTX allows is left out: a load of a word that takes effect after a later store of its block. PTX allows it only where
//! the store does not depend on the load. The protocols' stores do: a step waits for what it loads before it stores.
//!
//! Data is looked at in another way: of two accesses, one of them a store, one must be known to the other, or there is a race. Where there
//! is none, a load of data has one store to see.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use ferroccl_device::gpu::cpu::{Access, Order};

use super::super::adversary::mix;
use super::super::history::{History, MemoryAccess};
use super::super::races::{Clock, Races, join};

/// The bytes of a word.
const WORD: usize = size_of::<u64>();

/// A block, by its number among those of a run.
pub(super) type Agent = usize;

/// A store to a word: its block, and its number among that block's stores. `None` is what was there before.
type StoreId = Option<(Agent, u32)>;

/// What a block does next that has more than one outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    /// It loads a word.
    Load(usize),
    /// It stores to a word that others store to, too: its place among theirs is open.
    Store(usize, Order),
    /// It reads and writes a word in one access.
    Swap(usize),
}

/// A store to a word.
struct Store {
    id: StoreId,
    value: u64,
    /// The time of its block at which it was done.
    time: u64,
    /// What who acquires it knows from then on.
    clock: Option<Clock>,
    /// Whether the next store is of a block that has read this one in the same access.
    taken: bool,
    /// Who has seen it, when.
    seen: Vec<(Agent, u64)>,
}

/// A word.
struct Word {
    /// Its stores in coherence order. The first is what was there before.
    stores: Vec<Store>,
    /// The blocks that have stored to it.
    writers: u128,
}

/// What there is to know of a block.
#[derive(Default)]
struct BlockState {
    stack: Range<usize>,
    stores: u32,
    /// What a later fence takes over.
    seen_relaxed: Clock,
    /// What it knew at its last fence.
    fence: Option<Clock>,
    /// What it knew at its last release to a word: later stores there hand it on, too.
    released: HashMap<usize, Clock>,
    /// What it has done with words, and where each value came from.
    events: u64,
    /// What it has loaded.
    loaded: u64,
    /// Words that it has loaded, without a choice, since it last had one.
    unshared: Vec<usize>,
    /// The word of an access that reads and writes, until what it wrote is known; with its store and the value that it read.
    swap: Option<(usize, StoreId, u64)>,
}

/// Bytes that were overwritten.
struct Overwritten {
    address: usize,
    bytes: Vec<u8>,
}

/// The memory of one run.
#[derive(Default)]
pub(super) struct ModelMemory {
    words: HashMap<usize, Word>,
    blocks: Vec<BlockState>,
    races: Races,
    overwritten: Vec<Overwritten>,
    /// The first thing that was wrong.
    pub(super) wrong: Option<String>,
    pub(super) history: Option<History>,
    /// Stores so far.
    pub(super) stored: u64,
    /// What the block that runs has been told to see or where to store: an index into the coherence order.
    pub(super) choice: Option<usize>,
    /// Words that several blocks use, one of which stores: only there is something to choose. It grows from run to run.
    pub(super) shared: HashSet<usize>,
    /// By whom words are loaded and stored, in all runs.
    users: HashMap<usize, (u128, u128)>,
    /// Whether a word has turned out to be shared in this run.
    pub(super) grown: bool,
}

/// A hash of numbers, in their order.
pub(super) fn hash(all: impl IntoIterator<Item = u64>) -> u64 {
    // Steele, Lea and Flood's odd constant: zeros count, too.
    let step = |hash: u64, part: u64| {
        mix((hash.rotate_left(7) ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15))
    };
    all.into_iter().fold(0, step)
}

fn number(id: StoreId) -> u64 {
    id.map_or(u64::MAX, |(agent, n)| (agent as u64) << 32 | u64::from(n))
}

impl ModelMemory {
    /// Everything as it was before the run, ready for another one. What is known of words stays.
    pub(super) fn reset(&mut self, history: bool) {
        self.restore();
        *self = ModelMemory {
            shared: std::mem::take(&mut self.shared),
            users: std::mem::take(&mut self.users),
            history: history.then(History::default),
            ..ModelMemory::default()
        };
    }

    /// Puts back all that was overwritten.
    fn restore(&mut self) {
        while let Some(Overwritten { address, bytes }) = self.overwritten.pop() {
            // SAFETY: a block stored there in this run, and the memory is kept until the launches have ended.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len());
            }
        }
    }

    /// Each word becomes what its last store left, whatever was loaded last.
    pub(super) fn finish(&mut self) {
        let last = |(at, word): (&usize, &Word)| Some((*at, word.stores.last()?.value));
        let last: Vec<(usize, u64)> = self.words.iter().filter_map(last).collect();
        last.into_iter().for_each(|(address, value)| self.place(address, value));
    }

    /// Keeps what has been done: nothing will be put back.
    pub(super) fn keep(&mut self) {
        self.overwritten.clear();
    }

    /// A block begins, behind what these have done.
    pub(super) fn begin(&mut self, agent: Agent, stack: Range<usize>, after: &[Agent]) {
        if self.blocks.len() <= agent {
            self.blocks.resize_with(agent + 1, BlockState::default);
        }
        self.races.begin_after(agent, after);
        self.blocks[agent].stack = stack;
    }

    /// Who the accesses of a block are of, for the history.
    pub(super) fn name(&mut self, agent: Agent, rank: u32, block: u32) {
        if let Some(history) = &mut self.history {
            history.begin(agent, rank, block);
        }
    }

    pub(super) fn on_stack(&self, agent: Agent, address: usize) -> bool {
        self.blocks[agent].stack.contains(&address)
    }

    /// What tells two states of a run apart: who has seen and stored what, in which order. Everything else follows from it.
    pub(super) fn state(&self) -> u64 {
        let blocks = hash(self.blocks.iter().map(|block| block.events));
        let orders = self.words.iter().filter(|(_, word)| word.writers.count_ones() > 1);
        let orders = orders.map(|(at, word)| {
            hash(std::iter::once(*at as u64).chain(word.stores.iter().map(|s| number(s.id))))
        });
        // In no order, as a map has none.
        mix(blocks ^ orders.fold(0, u64::wrapping_add))
    }

    /// How often a block has stored to words.
    pub(super) fn stores_of(&self, agent: Agent) -> u32 {
        self.blocks.get(agent).map_or(0, |block| block.stores)
    }

    /// What a block has loaded so far: by that, what it does next is known.
    pub(super) fn loaded(&self, agent: Agent) -> u64 {
        self.blocks[agent].loaded
    }

    /// Puts a value where a block is about to load it.
    fn place(&mut self, address: usize, value: u64) {
        self.overwrite(address, WORD);
        // SAFETY: a block uses this word, which is aligned.
        unsafe { AtomicU64::from_ptr(address as *mut u64) }.store(value, Ordering::Relaxed);
    }

    /// Keeps bytes that are about to be overwritten.
    fn overwrite(&mut self, address: usize, len: usize) {
        // SAFETY: a block is about to write there.
        let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, len) }.to_vec();
        self.overwritten.push(Overwritten { address, bytes });
    }

    fn word(&mut self, address: usize) -> &mut Word {
        self.words.entry(address).or_insert_with(|| {
            // SAFETY: a block is about to access this word, which is aligned.
            let value = unsafe { AtomicU64::from_ptr(address as *mut u64) }.load(Ordering::Relaxed);
            let first =
                Store { id: None, value, time: 0, clock: None, taken: false, seen: Vec::new() };
            Word { stores: vec![first], writers: 0 }
        })
    }

    /// Whether a block would have a choice here: the word is shared.
    pub(super) fn is_shared(&self, address: usize) -> bool {
        self.shared.contains(&address)
    }

    /// Notes who uses a word.
    fn note_use(&mut self, agent: Agent, address: usize, stores: bool) {
        let (loaded, stored) = self.users.entry(address).or_default();
        let bit = 1 << agent;
        *(if stores { &mut *stored } else { &mut *loaded }) |= bit;
        let shared = *stored != 0 && (*loaded | *stored).count_ones() > 1;
        if shared && self.shared.insert(address) {
            self.grown = true;
        }
    }

    /// A block has come to a wait. What it looked at without a choice counts as shared from now on: somebody should store there.
    pub(super) fn waits(&mut self, agent: Agent) {
        for address in std::mem::take(&mut self.blocks[agent].unshared) {
            self.grown |= self.shared.insert(address);
        }
    }

    /// The first store in the order of a word that a block may still see: what it knows of hides all before.
    fn least(&self, agent: Agent, address: usize) -> usize {
        let Some(word) = self.words.get(&address) else { return 0 };
        let known = |(by, time): (Agent, u64)| self.races.knows(agent, by, time);
        let last = word.stores.iter().rposition(|store| {
            store.id.is_some_and(|(by, _)| known((by, store.time)))
                || store.seen.iter().any(|seen| known(*seen))
        });
        last.unwrap_or(0)
    }

    /// What a block can choose from, for what it does next: indices into the order, with the value that it would see.
    pub(super) fn choices(&mut self, agent: Agent, pending: Pending) -> Vec<(usize, u64)> {
        let (Pending::Load(address) | Pending::Store(address, _) | Pending::Swap(address)) =
            pending;
        self.word(address);
        let least = self.least(agent, address);
        let stores = &self.words[&address].stores;
        let from = stores.iter().enumerate().skip(least);
        let all = from.filter(|(_, store)| matches!(pending, Pending::Load(_)) || !store.taken);
        // The last first: it is what a wait is for.
        all.map(|(i, store)| (i, store.value)).rev().collect()
    }

    /// Whether a store to a word has only one place in the order: the last.
    pub(super) fn appends(&mut self, agent: Agent, address: usize) -> bool {
        self.choices(agent, Pending::Store(address, Order::Relaxed)).len() == 1
    }

    /// A block loads a word: what it chose to see is put there.
    pub(super) fn load(&mut self, agent: Agent, address: usize, access: Access) {
        self.settle(agent);
        if !self.is_shared(address) {
            self.blocks[agent].unshared.push(address);
        }
        self.note_use(agent, address, false);
        let last = self.word(address).stores.len() - 1;
        let chosen = self.choice.take().unwrap_or(last).min(last);
        self.see(agent, address, chosen, access == Access::Acquire);
        let (value, id) = {
            let store = &self.words[&address].stores[chosen];
            (store.value, store.id)
        };
        self.place(address, value);
        self.event(agent, [1, address as u64, number(id)]);
        let block = &mut self.blocks[agent];
        block.loaded = hash([block.loaded, value]);
        self.log(agent, MemoryAccess::Load(access), (address, WORD), Some(value));
        if self.races.is_racy(agent, (address, WORD), false) {
            self.wrong("a block loads a word that another has stored as data, in no order");
        }
    }

    /// A block sees a store, and knows what that hands on if it acquires.
    fn see(&mut self, agent: Agent, address: usize, chosen: usize, acquires: bool) {
        let time = self.races.time(agent);
        let Some(word) = self.words.get_mut(&address) else { return };
        let store = &mut word.stores[chosen];
        store.seen.push((agent, time));
        if let Some(clock) = &store.clock {
            if acquires {
                self.races.learn(agent, clock);
            } else {
                join(&mut self.blocks[agent].seen_relaxed, clock);
            }
        }
    }

    /// A block stores a word.
    pub(super) fn store_word(&mut self, agent: Agent, address: usize, value: u64, order: Order) {
        self.settle(agent);
        self.note_use(agent, address, true);
        let last = self.word(address).stores.len() - 1;
        let behind = self.choice.take().unwrap_or(last).min(last);
        self.insert(agent, (address, behind), value, order, None);
        self.place(address, value);
        let before = self.words[&address].stores[behind].id;
        self.event(agent, [2, address as u64, number(before)]);
        let event = self.log(agent, MemoryAccess::Store(order), (address, WORD), Some(value));
        self.log(agent, MemoryAccess::Visible(event), (address, WORD), None);
        if self.races.is_racy(agent, (address, WORD), true) {
            self.wrong("a block stores a word that another uses as data, in no order");
        }
    }

    /// Puts a store into the order of a word; its name.
    fn insert(
        &mut self,
        agent: Agent,
        (address, behind): (usize, usize),
        value: u64,
        order: Order,
        with: Option<Clock>,
    ) -> StoreId {
        let time = self.races.time(agent);
        let block = &mut self.blocks[agent];
        let id = Some((agent, block.stores));
        block.stores += 1;
        let mut clock = with;
        let mut hand_on = |from: &Clock| join(clock.get_or_insert_default(), from);
        if order == Order::Release {
            let now = self.races.release(agent);
            hand_on(&now);
            block.released.insert(address, now);
        } else {
            block.fence.iter().chain(block.released.get(&address)).for_each(hand_on);
        }
        self.stored += 1;
        let store = Store { id, value, time, clock, taken: false, seen: Vec::new() };
        if let Some(word) = self.words.get_mut(&address) {
            word.writers |= 1 << agent;
            word.stores.insert(behind + 1, store);
        }
        id
    }

    /// A block is about to read and write a word in one access, which it does with what is put there.
    pub(super) fn swap(&mut self, agent: Agent, address: usize, access: Access, order: Order) {
        self.settle(agent);
        self.note_use(agent, address, false);
        self.note_use(agent, address, true);
        let stores = &self.word(address).stores;
        let last = stores.iter().rposition(|store| !store.taken).unwrap_or(0);
        let chosen = self.choice.take().unwrap_or(last).min(last);
        self.see(agent, address, chosen, access == Access::Acquire);
        let store = &self.words[&address].stores[chosen];
        let (value, from, handed_on) = (store.value, store.id, store.clock.clone());
        self.place(address, value);
        self.event(agent, [3, address as u64, number(from)]);
        let id = self.insert(agent, (address, chosen), value, order, handed_on);
        self.blocks[agent].swap = Some((address, id, value));
        let block = &mut self.blocks[agent];
        block.loaded = hash([block.loaded, value]);
        self.log(agent, MemoryAccess::Swap, (address, WORD), None);
    }

    /// What a block has written in an access that read, too, is known by now. If that is what was there, it has only read.
    pub(super) fn settle(&mut self, agent: Agent) {
        let Some((address, id, before)) = self.blocks[agent].swap.take() else { return };
        // SAFETY: a word that a block has accessed in this run.
        let value = unsafe { AtomicU64::from_ptr(address as *mut u64) }.load(Ordering::Relaxed);
        let Some(word) = self.words.get_mut(&address) else { return };
        let Some(at) = word.stores.iter().position(|store| store.id == id) else { return };
        if value == before {
            word.stores.remove(at);
        } else {
            word.stores[at].value = value;
            word.stores[at - 1].taken = true;
        }
    }

    /// A block loads data.
    pub(super) fn load_data(&mut self, agent: Agent, address: usize, len: usize) {
        self.settle(agent);
        self.words_as_data(agent, address..address + len, false);
        let event = self.log(agent, MemoryAccess::Load(Access::Data), (address, len), None);
        self.access_data(agent, (address, len), false, event);
        // SAFETY: the block is about to load it.
        let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, len) };
        let block = &mut self.blocks[agent];
        let words = bytes
            .chunks(WORD)
            .map(|chunk| chunk.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        block.loaded = hash(std::iter::once(block.loaded).chain(words));
    }

    /// A block stores data.
    pub(super) fn store_data(&mut self, agent: Agent, address: usize, bytes: &[u8], order: Order) {
        self.settle(agent);
        self.words_as_data(agent, address..address + bytes.len(), true);
        let event = self.log(agent, MemoryAccess::Store(order), (address, bytes.len()), None);
        self.access_data(agent, (address, bytes.len()), true, event);
        if self.wrong.is_some() {
            return;
        }
        self.overwrite(address, bytes.len());
        // SAFETY: `Adversary::store`'s contract; what is stored is the block's own.
        unsafe { std::ptr::copy(bytes.as_ptr(), address as *mut u8, bytes.len()) };
        self.log(agent, MemoryAccess::Visible(event), (address, bytes.len()), None);
    }

    fn access_data(&mut self, agent: Agent, place: (usize, usize), is_store: bool, event: u64) {
        let first = self.races.access(agent, place.0, place.1, is_store, event);
        if let (Some(first), Some(history)) = (first, &mut self.history) {
            history.conflict(first, event, false);
        }
        if let Some(found) = &self.races.found {
            self.wrong.get_or_insert_with(|| found.clone());
        }
    }

    /// Words that a block uses as data: it must know of all stores to them, and if it stores, of all loads. Then they have one value.
    fn words_as_data(&mut self, agent: Agent, range: Range<usize>, stores: bool) {
        let first = range.start / WORD * WORD;
        for address in (first..range.end).step_by(WORD) {
            let Some(word) = self.words.get(&address) else { continue };
            let known = |(by, time): (Agent, u64)| self.races.knows(agent, by, time);
            let orderly = word.stores.iter().all(|store| {
                store.id.is_none_or(|(by, _)| known((by, store.time)))
                    && (!stores || store.seen.iter().all(|seen| known(*seen)))
            });
            let last = word.stores.last().map(|store| store.value);
            if !orderly {
                self.wrong("a block uses a word as data that another uses as a word, in no order");
            }
            if let Some(value) = last {
                self.place(address, value);
            }
            if stores {
                self.words.remove(&address);
            }
        }
    }

    /// A block orders what it did before against what it does later.
    pub(super) fn fence(&mut self, agent: Agent) {
        self.settle(agent);
        let seen = std::mem::take(&mut self.blocks[agent].seen_relaxed);
        self.races.learn(agent, &seen);
        self.blocks[agent].fence = Some(self.races.release(agent));
        self.event(agent, [4, 0, 0]);
    }

    /// A fence of sequential consistency, which no kernel has, for published tests: all of them have one order, and each knows what
    /// those before it knew.
    #[cfg(test)]
    pub(super) fn fence_sc(&mut self, agent: Agent, order: &mut (Clock, u64)) {
        self.fence(agent);
        self.races.learn(agent, &order.0);
        order.0 = self.races.release(agent);
        self.blocks[agent].fence = Some(order.0.clone());
        // Which one it is tells states apart, and what it came to know.
        order.1 = hash([order.1, agent as u64, self.blocks[agent].events]);
        self.event(agent, [5, 0, order.1]);
    }

    fn event(&mut self, agent: Agent, what: [u64; 3]) {
        let block = &mut self.blocks[agent];
        block.events = hash(std::iter::once(block.events).chain(what));
    }

    fn log(
        &mut self,
        agent: Agent,
        what: MemoryAccess,
        place: (usize, usize),
        word: Option<u64>,
    ) -> u64 {
        self.history.as_mut().map_or(0, |history| history.push(agent, what, place, word))
    }

    fn wrong(&mut self, what: &str) {
        self.wrong.get_or_insert_with(|| what.to_owned());
    }
}
