//! The CPU face: a block is a coroutine with one lane, its machine is a scheduler of the host.
//!
//! This file knows how a lane touches memory. Who runs when is the host's business: a runtime
//! implements [`Machine`] and names the running block with [`set_current`] whenever it resumes one.
//!
//! Where a runtime wants to be cruel it also gives an [`Adversary`]: then each access of a block goes
//! through it, and it may preempt, delay and tear stores as far as the orderings allow. Production code
//! pays one load of a static for that.
#![allow(unsafe_code)]

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence as atomic_fence};
use std::time::Instant;

use super::{Verdict, Waiting};
#[cfg(doc)]
use crate::abi::NO_RANK;
use crate::abi::Work;
use crate::orders::{Published, Side};

mod lines;
mod multicast;
mod vector;

pub use lines::{ld_data, ld_flag, ld_halves, ld_line, st_data, st_halves, st_line};
pub(crate) use multicast::{HAS_MULTICAST, MulticastAddress, fence_aliases, ld_sum, st_all};
pub use vector::{mem_copy, mem_gather, mem_map, mem_zip, whole_buffers};

/// Lanes of a warp.
pub const WARP: u32 = 1;
/// Lanes that hold one LL128 line.
pub const LANES_PER_LINE: usize = 1;
/// Bytes of the widest access.
pub const PACK_BYTES: usize = 16;
/// Packs in flight per lane in the bulk loop: enough to have an unrolled one to test.
pub const UNROLL: usize = 2;
/// Whether packs may be loaded and stored at any address.
pub const UNALIGNED_PACKS: bool = true;
/// Whether a rank polls memory of another's: on one host all ranks share it, and a line is in all caches that look at it.
pub const READS_PEERS: bool = true;
/// Whether a lane knows which core it runs on: [`core_number`].
pub(crate) const KNOWS_CORES: bool = true;
/// Whether loads that do not depend on each other are under way together, so that all are asked for before one is looked at. Here one
/// comes after the other.
pub const LOADS_TOGETHER: bool = false;
/// Spins between looks at abort flags and the clock. A spin costs a coroutine switch (tens of
/// nanoseconds), a look a few cache hits and a clock read.
pub const SPINS_PER_CHECK: u32 = 16;

/// The units of arithmetic of this machine for small floats.
pub use crate::arith::{Bf16 as Bf16Unit, F16 as F16Unit};
pub use crate::fp8::{F8E4M3 as F8E4M3Unit, F8E5M2 as F8E5M2Unit};
/// The unit of arithmetic of signed bytes.
pub type I8Unit = i8;
/// The unit of arithmetic of unsigned bytes.
pub type U8Unit = u8;

/// Smallest and largest as PTX has them. Without branches, so that loops of them become vector code.
macro_rules! extrema {
    ($($t:ident: $min:ident, $max:ident;)*) => { $(
        /// Smaller; of a NaN and a number, the number; -0 is smaller than +0.
        #[inline(always)]
        #[must_use]
        pub fn $min(a: $t, b: $t) -> $t {
            let smaller = if a < b || b.is_nan() { a } else { b };
            // Of equal numbers only the zeros differ, in the sign.
            if a == b { $t::from_bits(a.to_bits() | b.to_bits()) } else { smaller }
        }

        /// Larger; of a NaN and a number, the number; +0 is larger than -0.
        #[inline(always)]
        #[must_use]
        pub fn $max(a: $t, b: $t) -> $t {
            let larger = if a > b || b.is_nan() { a } else { b };
            if a == b { $t::from_bits(a.to_bits() & b.to_bits()) } else { larger }
        }
    )* };
}
extrema! { f32: min_f32, max_f32; f64: min_f64, max_f64; }

/// What a load is, to who watches that accesses are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Of data: whoever has written it, did so before, in an order that the block knows of.
    Data,
    /// Of a word that says for itself what it is.
    Relaxed,
    /// Of a word that is published.
    Acquire,
}

/// How a store is ordered against the block's other stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Plain data: may be late, out of order, and in pieces of its element's size.
    Plain,
    /// Data of 8 bytes: as plain, never in pieces.
    Guarded,
    /// May be late and out of order, never in pieces.
    Relaxed,
    /// Not before any store that precedes it, never in pieces.
    Release,
}

/// What schedules a block. Implemented by the host's CPU runtime.
pub trait Machine {
    /// The block cannot go on until another one has. Returns when it is worth looking again.
    fn pause(&self, waiting: &Waiting) -> Verdict;
    /// The memory system to run under, `None` for the machine's own.
    fn adversary(&self) -> Option<&dyn Adversary>;
    /// Whether its kernels only count steps, and leave data alone.
    fn counts(&self) -> bool {
        false
    }
    /// Called for each step of a kernel that only counts.
    fn counted(&self, _: &CountedStep) {}
    /// The core that the block runs on, counted from 1; 0 where blocks are not to act by it.
    fn core_number(&self) -> u64 {
        0
    }
}

/// A step of a kernel that only counts: one slice, from all that it receives from to all that it sends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CountedStep {
    /// The ranks that are received from; behind them [`NO_RANK`].
    pub recv: [u32; 3],
    /// The ranks that are sent to; behind them [`NO_RANK`].
    pub send: [u32; 3],
    /// Bytes of data.
    pub bytes: usize,
}

/// A memory system that is as unhelpful as the orderings allow.
pub trait Adversary {
    /// Called before the block reads `len` bytes at `address`.
    fn before_load(&self, address: *const u8, len: usize, access: Access);
    /// Performs, now or later, the store of `bytes` at `address`; plain stores may be torn into
    /// pieces of `unit` bytes.
    ///
    /// # Safety
    /// `address` must be writable until the block's launch is done, or lie on the block's own stack.
    unsafe fn store(&self, address: *mut u8, bytes: &[u8], unit: usize, order: Order);
    /// Performs every earlier store before any later one.
    fn fence(&self);
    /// Called before the block reads and writes a word in one access, ordered as these say: of [`Order::Release`] every earlier store
    /// is performed now.
    fn before_rmw(&self, address: *const u8, load: Access, store: Order);
    /// Whether a side of an order is relaxed, against the rules.
    fn weakens(&self, _: Published, _: Side) -> bool {
        false
    }
}

/// One running block, as its lane sees it.
pub struct Block<'a> {
    /// The block's index in its grid.
    pub index: u32,
    /// What schedules it.
    pub machine: &'a dyn Machine,
}

impl core::fmt::Debug for Block<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Block({})", self.index)
    }
}

std::thread_local! {
    static CURRENT: Cell<*const Block<'static>> = const { Cell::new(core::ptr::null()) };
}

/// Blocks that exist and have an adversary, or only count, in the process: 0 keeps the fast path fast.
static CHECKED_BLOCKS: AtomicUsize = AtomicUsize::new(0);

/// While it lives, every access looks whether the running block has an adversary, and every copy whether it only counts.
#[derive(Debug)]
pub struct CheckedGuard(());

impl CheckedGuard {
    /// Turns the look on.
    #[must_use]
    pub fn new() -> Self {
        CHECKED_BLOCKS.fetch_add(1, Ordering::Relaxed);
        CheckedGuard(())
    }
}

impl Default for CheckedGuard {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for CheckedGuard {
    fn drop(&mut self) {
        CHECKED_BLOCKS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Names the block that runs on this thread from now on; null for none. Returns the previous one.
///
/// # Safety
/// `block` must stay valid until the next call on this thread, or be null.
pub unsafe fn set_current(block: *const Block<'_>) -> *const Block<'static> {
    CURRENT.replace(block.cast())
}

/// The running block. Never inlined: a coroutine may resume on another thread, and an address of
/// thread-local storage that the compiler kept across a switch would be the old thread's.
#[inline(never)]
fn current() -> &'static Block<'static> {
    // SAFETY: `set_current`'s contract: not null while a block runs, and valid until replaced.
    unsafe { CURRENT.get().as_ref() }.expect("device code runs only inside a block")
}

/// The adversary of the running block, if it has one.
#[inline(always)]
fn adversary() -> Option<&'static dyn Adversary> {
    if CHECKED_BLOCKS.load(Ordering::Relaxed) == 0 { None } else { slow_adversary() }
}

#[cold]
#[inline(never)]
fn slow_adversary() -> Option<&'static dyn Adversary> {
    current().machine.adversary()
}

/// Whether the running block only counts steps.
#[inline(always)]
#[must_use]
pub fn counting() -> bool {
    CHECKED_BLOCKS.load(Ordering::Relaxed) != 0 && slow_counting()
}

#[cold]
#[inline(never)]
fn slow_counting() -> bool {
    current().machine.counts()
}

/// Tells the machine of a step of a kernel that only counts.
pub(crate) fn tell_counted(step: &CountedStep) {
    current().machine.counted(step);
}

/// The core that this lane runs on, counted from 1; 0 where it is not to act by it.
#[inline(always)]
#[must_use]
pub(crate) fn core_number() -> u64 {
    current().machine.core_number()
}

/// Index of this lane in its block.
#[inline(always)]
#[must_use]
pub fn thread_idx_x() -> u32 {
    0
}

/// Lanes of the block.
#[inline(always)]
#[must_use]
pub fn block_dim_x() -> u32 {
    1
}

/// Index of this block in its grid.
#[inline(always)]
#[must_use]
pub fn block_idx_x() -> u32 {
    current().index
}

/// The word of the kernel's argument that begins `OFFSET` bytes behind its beginning: here that is in memory.
///
/// # Safety
/// `work` is the argument, and has such a word.
#[inline(always)]
pub(crate) unsafe fn argument<const OFFSET: usize>(work: *const Work) -> u64 {
    // SAFETY: the caller's.
    unsafe { argument_at(work, OFFSET) }
}

/// [`argument`], where only a running kernel knows which word it is.
///
/// # Safety
/// As there.
#[inline(always)]
pub(crate) unsafe fn argument_at(work: *const Work, offset: usize) -> u64 {
    // SAFETY: the caller's.
    unsafe { work.byte_add(offset).cast::<u64>().read() }
}

/// Index of this lane in its warp.
#[inline(always)]
#[must_use]
pub fn lane_id() -> u32 {
    0
}

/// The same value, of which the compiler knows nothing: see the other face. Here registers do not run out.
#[inline(always)]
#[must_use]
pub fn opaque(value: usize) -> usize {
    value
}

/// The most lanes of a block, for the compiler: nothing to say here.
#[inline(always)]
pub fn launch_bounds<const MAX: u32>() {}

/// Barrier over the block.
#[inline(always)]
pub fn sync_threads() {}

/// Barrier over the block that returns whether any lane brought `true`.
#[inline(always)]
#[must_use]
pub fn sync_threads_or(predicate: bool) -> bool {
    predicate
}

/// Barrier over the warp.
#[inline(always)]
pub fn sync_warp() {}

/// Whether every lane of the warp brought `true`.
#[inline(always)]
#[must_use]
pub fn warp_vote_all(predicate: bool) -> bool {
    predicate
}

/// Nanoseconds since an arbitrary moment.
#[must_use]
pub fn globaltimer() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Gives way to other blocks.
#[inline]
#[must_use]
pub fn pause(waiting: impl FnOnce() -> Waiting) -> Verdict {
    current().machine.pause(&waiting())
}

/// # Safety
/// `p` is aligned and valid for atomic access for `'a`.
#[inline(always)]
unsafe fn atomic<'a>(p: *const u64) -> &'a AtomicU64 {
    // SAFETY: the caller's.
    unsafe { AtomicU64::from_ptr(p.cast_mut()) }
}

/// # Safety
/// As [`ld_acquire`].
#[inline(always)]
unsafe fn ld(p: *const u64, access: Access) -> u64 {
    if let Some(a) = adversary() {
        a.before_load(p.cast(), 8, access);
    }
    let order = if access == Access::Acquire { Ordering::Acquire } else { Ordering::Relaxed };
    // SAFETY: the caller's.
    unsafe { atomic(p) }.load(order)
}

/// Loads with acquire.
///
/// # Safety
/// `p` is aligned and readable; other agents access it only atomically.
#[inline(always)]
pub unsafe fn ld_acquire(p: *const u64) -> u64 {
    // SAFETY: the caller's.
    unsafe { ld(p, Access::Acquire) }
}

/// Loads a word that is there because a published one says so.
///
/// # Safety
/// As [`ld_acquire`].
#[inline(always)]
pub unsafe fn ld_guarded(p: *const u64) -> u64 {
    // SAFETY: the caller's.
    unsafe { ld(p, Access::Data) }
}

/// Loads a word that says for itself what it is.
///
/// # Safety
/// As [`ld_acquire`].
#[inline(always)]
pub unsafe fn ld_relaxed(p: *const u64) -> u64 {
    // SAFETY: the caller's.
    unsafe { ld(p, Access::Relaxed) }
}

/// Loads a published word.
///
/// # Safety
/// As [`ld_acquire`].
#[inline(always)]
pub unsafe fn acquire(word: Published, p: *const u64) -> u64 {
    if let Some(a) = adversary() {
        let weak = a.weakens(word, Side::Acquire);
        a.before_load(p.cast(), 8, if weak { Access::Relaxed } else { Access::Acquire });
    }
    // SAFETY: the caller's.
    unsafe { atomic(p) }.load(Ordering::Acquire)
}

/// # Safety
/// As [`st_release`].
#[inline(always)]
unsafe fn st(p: *mut u64, value: u64, order: Order) {
    if let Some(a) = adversary() {
        // SAFETY: the caller's; connections and communicators outlive their blocks.
        return unsafe { a.store(p.cast(), &value.to_ne_bytes(), 8, order) };
    }
    let order = if order == Order::Release { Ordering::Release } else { Ordering::Relaxed };
    // SAFETY: the caller's.
    unsafe { atomic(p) }.store(value, order);
}

/// Stores with release.
///
/// # Safety
/// `p` is aligned and writable, for as long as the block runs; other agents access it only atomically.
#[inline(always)]
pub unsafe fn st_release(p: *mut u64, value: u64) {
    // SAFETY: the caller's.
    unsafe { st(p, value, Order::Release) }
}

/// Stores at once but in no order.
///
/// # Safety
/// As [`st_release`].
#[inline(always)]
pub unsafe fn st_relaxed(p: *mut u64, value: u64) {
    // SAFETY: the caller's.
    unsafe { st(p, value, Order::Relaxed) }
}

/// Stores a word before a published one says that it is there.
///
/// # Safety
/// As [`st_release`].
#[inline(always)]
pub unsafe fn st_guarded(p: *mut u64, value: u64) {
    // SAFETY: the caller's.
    unsafe { st(p, value, Order::Guarded) }
}

/// Publishes a word.
///
/// # Safety
/// As [`st_release`].
#[inline(always)]
pub unsafe fn release(word: Published, p: *mut u64, value: u64) {
    if let Some(a) = adversary() {
        let weak = a.weakens(word, Side::Release);
        let order = if weak { Order::Relaxed } else { Order::Release };
        // SAFETY: the caller's; connections and communicators outlive their blocks.
        return unsafe { a.store(p.cast(), &value.to_ne_bytes(), 8, order) };
    }
    // SAFETY: the caller's.
    unsafe { atomic(p) }.store(value, Ordering::Release);
}

/// The first half of [`release`]: what comes before it is there for who loads the word that
/// [`store_fenced`] publishes. Here the second half does it all.
#[inline(always)]
pub fn release_fence(_: Published) {}

/// The second half of [`release`], after [`release_fence`]: publishes a word.
///
/// # Safety
/// As [`st_release`].
#[inline(always)]
pub unsafe fn store_fenced(word: Published, p: *mut u64, value: u64) {
    // SAFETY: the caller's.
    unsafe { release(word, p, value) }
}

/// Publishes a word by compare and swap; returns the old value. It claims the word, and what others read because of it
/// comes later: there is nothing to weaken.
///
/// # Safety
/// As [`st_release`].
#[inline(always)]
pub unsafe fn claim(_: Published, p: *mut u64, expected: u64, new: u64) -> u64 {
    // SAFETY: the caller's.
    unsafe { cas_acq_rel(p, expected, new) }
}

/// Adds to a word that several publish: what comes before it is there for who loads the sum.
///
/// # Safety
/// As [`st_release`].
#[inline(always)]
pub unsafe fn add_release(word: Published, p: *mut u64, n: u64) {
    if let Some(a) = adversary() {
        let weak = a.weakens(word, Side::Release);
        let order = if weak { Order::Relaxed } else { Order::Release };
        a.before_rmw(p.cast_const().cast(), Access::Relaxed, order);
    }
    // SAFETY: the caller's.
    unsafe { atomic(p) }.fetch_add(n, Ordering::Release);
}

/// Adds to a word that this device's blocks number things by; returns the old value. It orders nothing.
///
/// # Safety
/// As [`st_release`]; the word is accessed by this function alone.
#[inline(always)]
pub unsafe fn fetch_add(p: *mut u64, n: u64) -> u64 {
    if let Some(a) = adversary() {
        a.before_rmw(p.cast_const().cast(), Access::Relaxed, Order::Relaxed);
    }
    // SAFETY: the caller's.
    unsafe { atomic(p) }.fetch_add(n, Ordering::Relaxed)
}

/// Fence with acquire and release: what was read before it stays before what is read or stored after it,
/// and what was stored before it before what is stored after it. A later load may still be early.
#[inline(always)]
pub fn fence() {
    if let Some(a) = adversary() {
        a.fence();
    }
    atomic_fence(Ordering::AcqRel);
}

/// Compare and swap with acquire and release; returns the old value.
///
/// # Safety
/// As [`st_release`].
pub unsafe fn cas_acq_rel(p: *mut u64, expected: u64, new: u64) -> u64 {
    if let Some(a) = adversary() {
        a.before_rmw(p.cast_const().cast(), Access::Acquire, Order::Release);
    }
    // SAFETY: the caller's.
    let cell = unsafe { atomic(p) };
    match cell.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(old) | Err(old) => old,
    }
}
