//! A memory system that is as unhelpful as the orderings allow, and repeats itself exactly.
//!
//! A store goes into its block's buffer and becomes visible later: plain data in pieces and in any order,
//! a relaxed store whole and in any order, a release store whole and after all that the block stored
//! before. A fence keeps what is before it before what is after it. Stores to the same bytes stay in
//! order, and a block that loads or modifies what it has stored sees its own value. So an order that a
//! protocol relies on, and does not ask for, is broken by some seed.
//!
//! Loads happen when they are executed: here only stores are late. That a load is ordered is seen by
//! [`races`](super::races), if the test asks for it.
//!
//! Everything random comes from one [`Rng`], whose sequence is part of this file, so that a seed means
//! the same in every version.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use corosensei::stack::Stack;
use ferroccl_device::abi::FaultKind;
use ferroccl_device::gpu::cpu::{Access, Adversary, Machine, Order};
use ferroccl_device::gpu::{Verdict, Waiting};
use ferroccl_device::orders::{self, Published, Side};

use super::block::{YieldReason, Yielder};
use super::history::{History, MemoryAccess};
use super::races::{Clock, Races};
use crate::runtime::sync::lock;

/// How unhelpful a [`SeededRuntime`](super::SeededRuntime) is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adversity {
    /// What everything random is drawn from.
    pub seed: u64,
    /// The probability that a block loses the thread at an access, from 0 to 1.
    pub preempt: f64,
    /// The probability that a store is put off instead of done at once, from 0 to 1.
    pub delay: f64,
    /// The most pieces of stores that a block has pending.
    pub max_pending: usize,
    /// The most resumes of blocks in one `synchronize`: what is not done by then fails.
    pub max_steps: u64,
    /// Whether accesses to data that nothing orders are looked for ([`SeededRuntime::race`](super::SeededRuntime::race)).
    /// Elements must have 4 bytes at least.
    pub races: bool,
    /// Whether accesses are kept ([`SeededRuntime::history`](super::SeededRuntime::history)).
    pub history: bool,
    /// A side of an order of the kernels that is relaxed, against the rules.
    pub weaken: Option<(Published, Side)>,
}

impl Adversity {
    /// The usual adversity with this seed: an eighth of the accesses preempt, three stores of four are
    /// late, 48 pieces are pending at most, 50 million steps.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Adversity {
            seed,
            preempt: 0.125,
            delay: 0.75,
            max_pending: 48,
            max_steps: 50_000_000,
            races: false,
            history: false,
            weaken: None,
        }
    }
}

/// Random numbers: `SplitMix64` (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", 2014).
#[derive(Clone, Copy, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Rng(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `n`, or 0. The bias is below `n / 2^32`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        (((self.next() >> 32) * n as u64) >> 32) as usize
    }

    /// `true` with this probability.
    pub(super) fn chance(&mut self, probability: f64) -> bool {
        const UNIT: f64 = 1.0 / (1u64 << 53) as f64;
        ((self.next() >> 11) as f64 * UNIT) < probability
    }
}

/// The last steps of `SplitMix64`: each bit depends on all.
pub(super) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Bytes of the longest piece: an LL128 line.
const PIECE: usize = 128;

/// A piece of a store that is not visible yet.
struct Piece {
    address: *mut u8,
    len: usize,
    bytes: [u8; PIECE],
    /// Fences of its block before it.
    epoch: u64,
    release: bool,
    /// Of a word, what it publishes when it becomes visible.
    clock: Option<Clock>,
    /// The slot of its block, and the number of the store in the history.
    store: (usize, u64),
}

// SAFETY: it writes to `address` on the thread that runs the schedule; `Adversary::store`'s contract
// keeps that memory until the launch is done, and that waits for the last piece.
unsafe impl Send for Piece {}

impl Piece {
    fn overlaps(&self, address: *const u8, len: usize) -> bool {
        let (a, b) = (self.address.addr(), address.addr());
        a < b + len && b < a + self.len
    }

    /// Whether this must be visible before `later`, a younger piece of the same block.
    fn precedes(&self, later: &Piece) -> bool {
        later.release || self.epoch != later.epoch || self.overlaps(later.address, later.len)
    }

    fn perform(self, watch: &mut MemoryWatch) {
        let place = (self.address.addr(), self.len);
        if let (Some(races), Some(clock)) = (&mut watch.races, self.clock) {
            races.visible(place.0, clock);
        }
        if let Some(history) = &mut watch.history {
            let (slot, store) = self.store;
            history.push(slot, MemoryAccess::Visible(store), place, None);
        }
        let (to, bytes) = (self.address, &self.bytes[..self.len]);
        // SAFETY: `Adversary::store`'s contract. Words are stored at once, for the host's threads.
        unsafe {
            if let (Ok(word), 0) = (<[u8; 8]>::try_from(bytes), to.addr() % 8) {
                AtomicU64::from_ptr(to.cast()).store(u64::from_ne_bytes(word), Ordering::Release);
            } else if let (Ok(word), 0) = (<[u8; 4]>::try_from(bytes), to.addr() % 4) {
                AtomicU32::from_ptr(to.cast()).store(u32::from_ne_bytes(word), Ordering::Release);
            } else {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, self.len);
            }
        }
    }
}

/// Who watches accesses.
#[derive(Default)]
pub(super) struct MemoryWatch {
    pub(super) races: Option<Races>,
    pub(super) history: Option<History>,
}

impl MemoryWatch {
    /// Notes an access in the history; its number there.
    fn note(
        &mut self,
        slot: usize,
        what: MemoryAccess,
        place: (usize, usize),
        word: Option<u64>,
    ) -> u64 {
        self.history.as_mut().map_or(0, |history| history.push(slot, what, place, word))
    }

    /// Looks for a race of an access to data, whose number in the history is `event`.
    fn access(&mut self, slot: usize, (address, len): (usize, usize), is_store: bool, event: u64) {
        let Some(races) = &mut self.races else { return };
        let first = races.access(slot, address, len, is_store, event);
        if let (Some(first), Some(history)) = (first, &mut self.history) {
            history.conflict(first, event, false);
        }
    }
}

/// The stores of one block that are not visible yet, oldest first.
#[derive(Default)]
struct Buffer {
    pieces: Vec<Piece>,
    /// Fences so far.
    epoch: u64,
    /// The block's own stack: nobody else sees it, and it does not outlive the block.
    stack: Range<usize>,
}

impl Buffer {
    /// Performs piece `i` and what must precede it.
    fn force(&mut self, i: usize, watch: &mut MemoryWatch) {
        let mut due = vec![false; i + 1];
        due[i] = true;
        for later in (0..=i).rev() {
            if due[later] {
                for (earlier, due) in due[..later].iter_mut().enumerate() {
                    *due |= self.pieces[earlier].precedes(&self.pieces[later]);
                }
            }
        }
        let mut due = due.into_iter();
        let now = self.pieces.extract_if(..=i, |_| due.next().unwrap_or(false));
        now.for_each(|piece| piece.perform(watch));
    }

    /// Performs the oldest piece that piece `i` has to wait for, or `i` itself.
    fn advance(&mut self, mut i: usize, watch: &mut MemoryWatch) {
        while let Some(earlier) = (0..i).find(|&e| self.pieces[e].precedes(&self.pieces[i])) {
            i = earlier;
        }
        self.pieces.remove(i).perform(watch);
    }

    fn force_all(&mut self, watch: &mut MemoryWatch) {
        self.pieces.drain(..).for_each(|piece| piece.perform(watch));
    }
}

/// What the scheduler and its blocks share: the dice, the pending stores, the trace.
pub(super) struct Chaos {
    pub(super) adversity: Adversity,
    pub(super) rng: Rng,
    /// The probability that a scheduling point makes a store visible: some seeds have a slow memory.
    pace: f64,
    buffers: Vec<Buffer>,
    free: Vec<usize>,
    /// Whether memory may have changed since the scheduler looked.
    pub(super) changed: bool,
    /// A hash of all that has happened.
    pub(super) trace: u64,
    pub(super) watch: MemoryWatch,
}

impl Chaos {
    pub(super) fn new(adversity: Adversity) -> Self {
        let mut rng = Rng::new(adversity.seed);
        let pace = [0.5, 0.125, 0.03][rng.below(3)];
        let (buffers, free) = (Vec::new(), Vec::new());
        let watch = MemoryWatch {
            races: adversity.races.then(Races::default),
            history: adversity.history.then(History::default),
        };
        Chaos { adversity, rng, pace, buffers, free, changed: false, trace: 0, watch }
    }

    /// Adds to the trace. Never an address: those differ from run to run.
    pub(super) fn record(&mut self, event: u64) {
        self.trace = mix(self.trace.rotate_left(5) ^ event);
    }

    /// A buffer for a new block that runs on `stack`, and whose rank is asked for where there is a history.
    pub(super) fn open(
        &mut self,
        stack: &impl Stack,
        block: u32,
        rank: impl FnOnce() -> u32,
    ) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.buffers.push(Buffer::default());
            self.buffers.len() - 1
        });
        self.buffers[slot].stack = stack.limit().get()..stack.base().get();
        if let Some(races) = &mut self.watch.races {
            races.begin(slot);
        }
        if let Some(history) = &mut self.watch.history {
            history.begin(slot, rank(), block);
        }
        slot
    }

    /// Gives back the buffer of a block that has ended, if all that it stored is visible.
    pub(super) fn close(&mut self, slot: usize) -> bool {
        let empty = self.buffers[slot].pieces.is_empty();
        if empty {
            self.free.push(slot);
            if let Some(races) = &mut self.watch.races {
                races.end(slot);
            }
        }
        empty
    }

    /// Some time passes: a few stores may become visible.
    pub(super) fn tick(&mut self) {
        while self.rng.chance(self.pace) && self.perform_one() {}
    }

    /// Makes one pending store visible; `false` when there is none.
    pub(super) fn perform_one(&mut self) -> bool {
        let pending = self.buffers.iter().filter(|b| !b.pieces.is_empty()).count();
        if pending == 0 {
            return false;
        }
        let choice = self.rng.below(pending);
        let slots = self.buffers.iter_mut().enumerate().filter(|(_, b)| !b.pieces.is_empty());
        if let Some((slot, buffer)) = { slots }.nth(choice) {
            let i = self.rng.below(buffer.pieces.len());
            buffer.advance(i, &mut self.watch);
            self.changed = true;
            self.record((slot as u64) << 32 | (i as u64) << 8 | 1);
        }
        true
    }

    fn before_load(&mut self, slot: usize, address: *const u8, len: usize, access: Access) {
        let buffer = &mut self.buffers[slot];
        if buffer.stack.contains(&address.addr()) {
            return;
        }
        while let Some(i) = buffer.pieces.iter().rposition(|p| p.overlaps(address, len)) {
            buffer.force(i, &mut self.watch);
            self.changed = true;
        }
        let place = (address.addr(), len);
        let word = match (access, len, place.0 % 8) {
            // SAFETY: the block is about to load it, as a word.
            (Access::Relaxed | Access::Acquire, 8, 0) if self.watch.history.is_some() => unsafe {
                Some(AtomicU64::from_ptr(address.cast_mut().cast()).load(Ordering::Relaxed))
            },
            _ => None,
        };
        let event = self.watch.note(slot, MemoryAccess::Load(access), place, word);
        match access {
            Access::Data => {
                self.watch.access(slot, place, false, event);
                self.look_for_stale(slot, (address, len), event);
            }
            Access::Acquire => {
                if let Some(races) = &mut self.watch.races {
                    races.acquire(slot, place.0);
                }
            }
            Access::Relaxed => {}
        }
    }

    /// Notes where data is loaded that another block has stored and nobody sees yet.
    fn look_for_stale(&mut self, slot: usize, (address, len): (*const u8, usize), event: u64) {
        let Some(history) = &mut self.watch.history else { return };
        let others = self.buffers.iter().enumerate().filter(|(other, _)| *other != slot);
        let mut pieces = others.flat_map(|(_, buffer)| &buffer.pieces);
        if let Some(piece) = pieces.find(|piece| piece.overlaps(address, len)) {
            history.conflict(piece.store.1, event, true);
        }
    }

    fn store(&mut self, slot: usize, address: *mut u8, bytes: &[u8], unit: usize, order: Order) {
        if self.buffers[slot].stack.contains(&address.addr()) {
            // SAFETY: the caller's; the block's own variables may overlap.
            return unsafe { std::ptr::copy(bytes.as_ptr(), address, bytes.len()) };
        }
        self.record((slot as u64) << 32 | (bytes.len() as u64) << 8 | 2);
        let place = (address.addr(), bytes.len());
        let word = <[u8; 8]>::try_from(bytes).ok().map(u64::from_ne_bytes);
        let event = self.watch.note(slot, MemoryAccess::Store(order), place, word);
        if matches!(order, Order::Plain | Order::Guarded) {
            self.watch.access(slot, place, true, event);
        }
        let mut done = 0;
        while done < bytes.len() {
            let left = bytes.len() - done;
            let len = match order {
                // From one unit to all that is left.
                Order::Plain => (1 + self.rng.below(left.div_ceil(unit))) * unit,
                Order::Guarded | Order::Relaxed | Order::Release => left,
            };
            let len = len.min(left).min(PIECE);
            // SAFETY: inside what the block stores to.
            let address = unsafe { address.add(done) };
            self.put(slot, address, &bytes[done..done + len], order, event);
            done += len;
        }
        self.changed = true;
    }

    fn put(&mut self, slot: usize, address: *mut u8, bytes: &[u8], order: Order, event: u64) {
        let Buffer { pieces, epoch, .. } = &mut self.buffers[slot];
        let mut copy = [0; PIECE];
        copy[..bytes.len()].copy_from_slice(bytes);
        let (len, release) = (bytes.len(), order == Order::Release);
        let clock = self.watch.races.as_mut().and_then(|races| match order {
            Order::Plain | Order::Guarded => None,
            Order::Relaxed => Some(Clock::new()),
            Order::Release => Some(races.release(slot)),
        });
        let store = (slot, event);
        pieces.push(Piece { address, len, bytes: copy, epoch: *epoch, release, clock, store });
        if !self.rng.chance(self.adversity.delay) {
            let last = self.buffers[slot].pieces.len() - 1;
            self.buffers[slot].force(last, &mut self.watch);
        }
        while self.buffers[slot].pieces.len() > self.adversity.max_pending {
            let i = self.rng.below(self.buffers[slot].pieces.len());
            self.buffers[slot].advance(i, &mut self.watch);
        }
    }
}

/// The machine of a block in a seeded schedule.
pub(super) struct Cruel<'a> {
    pub(super) yielder: &'a Yielder,
    pub(super) chaos: Arc<Mutex<Chaos>>,
    pub(super) slot: usize,
}

impl Cruel<'_> {
    /// A scheduling point that the block did not ask for.
    fn maybe_preempt(&self) {
        let mut chaos = lock(&self.chaos);
        let probability = chaos.adversity.preempt;
        let now = chaos.rng.chance(probability);
        drop(chaos);
        // A destructor of a block that unwinds must not switch: the panic is the thread's.
        if now && !std::thread::panicking() {
            self.yielder.suspend(YieldReason::Preempted);
        }
    }
}

impl Machine for Cruel<'_> {
    fn pause(&self, waiting: &Waiting) -> Verdict {
        if std::thread::panicking() {
            return Some(FaultKind::Aborted);
        }
        self.yielder.suspend(YieldReason::Waits(*waiting))
    }

    fn adversary(&self) -> Option<&dyn Adversary> {
        Some(self)
    }

    /// One of two cores, by the block's slot. So a seed is repeated exactly, and blocks wait in both ways.
    fn core_number(&self) -> u64 {
        self.slot as u64 % 2 + 1
    }
}

impl Adversary for Cruel<'_> {
    fn before_load(&self, address: *const u8, len: usize, access: Access) {
        self.maybe_preempt();
        lock(&self.chaos).before_load(self.slot, address, len, access);
    }

    unsafe fn store(&self, address: *mut u8, bytes: &[u8], unit: usize, order: Order) {
        self.maybe_preempt();
        lock(&self.chaos).store(self.slot, address, bytes, unit.max(1), order);
    }

    fn fence(&self) {
        self.maybe_preempt();
        lock(&self.chaos).buffers[self.slot].epoch += 1;
    }

    fn before_rmw(&self, address: *const u8, _: Access, order: Order) {
        self.maybe_preempt();
        if order != Order::Release {
            let chaos = &mut *lock(&self.chaos);
            chaos.before_load(self.slot, address, size_of::<u64>(), Access::Relaxed);
            chaos.changed = true; // the access itself stores
            return;
        }
        let chaos = &mut *lock(&self.chaos);
        chaos.buffers[self.slot].force_all(&mut chaos.watch);
        if let Some(races) = &mut chaos.watch.races {
            races.claim(self.slot, address.addr());
        }
        chaos.watch.note(self.slot, MemoryAccess::Swap, (address.addr(), 8), None);
        chaos.changed = true; // the access itself stores
    }

    fn weakens(&self, word: Published, side: Side) -> bool {
        let adversity = lock(&self.chaos).adversity;
        // Nothing is read because of the abort word. Were it an order, hosts could have written it, and all that wait
        // look at it: they would be taken to know all that has happened, and most races would hide.
        adversity.races && word == orders::ABORT || adversity.weaken == Some((word, side))
    }
}
