//! The machine of a block whose every outcome is tried.

use std::sync::{Arc, Mutex};

use ferroccl_device::abi::FaultKind;
use ferroccl_device::gpu::cpu::{Access, Adversary, Machine, Order};
use ferroccl_device::gpu::{Verdict, Waiting};
use ferroccl_device::orders::{self, Published, Side};

use super::super::block::{YieldReason, Yielder};
use super::memory::{Agent, ModelMemory, Pending};
use crate::runtime::sync::lock;

/// What the search and the blocks of a run share.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) memory: ModelMemory,
    /// What the block has stopped before that ran last.
    pub(super) pending: Option<Pending>,
    /// A side of an order that is relaxed, against the rules.
    pub(super) weaken: Option<(Published, Side)>,
    /// The sides of orders that blocks have used.
    pub(super) used: Vec<(Published, Side)>,
}

/// The machine of a block.
pub(super) struct CheckedMachine<'a> {
    pub(super) yielder: &'a Yielder,
    pub(super) shared: Arc<Mutex<Shared>>,
    pub(super) agent: Agent,
}

impl CheckedMachine<'_> {
    /// Stops before what has more than one outcome.
    fn stop(&self, pending: Pending) {
        lock(&self.shared).pending = Some(pending);
        // A destructor of a block that unwinds must not switch: the panic is the thread's.
        if !std::thread::panicking() {
            self.yielder.suspend(YieldReason::Preempted);
        }
    }

    /// Does something with memory. Behind the first thing that is wrong nothing more is done: what follows may be anything.
    fn with_memory(&self, what: impl FnOnce(&mut ModelMemory)) {
        let wrong = {
            let memory = &mut lock(&self.shared).memory;
            what(memory);
            memory.wrong.is_some()
        };
        if wrong && !std::thread::panicking() {
            self.yielder.suspend(YieldReason::Preempted);
        }
    }

    fn on_stack(&self, address: usize) -> bool {
        lock(&self.shared).memory.on_stack(self.agent, address)
    }
}

impl Machine for CheckedMachine<'_> {
    fn pause(&self, waiting: &Waiting) -> Verdict {
        if std::thread::panicking() {
            return Some(FaultKind::Aborted);
        }
        self.yielder.suspend(YieldReason::Waits(*waiting))
    }

    fn adversary(&self) -> Option<&dyn Adversary> {
        Some(self)
    }
}

impl Adversary for CheckedMachine<'_> {
    fn before_load(&self, address: *const u8, len: usize, access: Access) {
        let address = address.addr();
        if self.on_stack(address) {
            return;
        }
        if access == Access::Data {
            return self.with_memory(|memory| memory.load_data(self.agent, address, len));
        }
        if lock(&self.shared).memory.is_shared(address) {
            self.stop(Pending::Load(address));
        }
        self.with_memory(|memory| memory.load(self.agent, address, access));
    }

    unsafe fn store(&self, address: *mut u8, bytes: &[u8], _unit: usize, order: Order) {
        if self.on_stack(address.addr()) {
            // SAFETY: the caller's; the block's own variables may overlap.
            return unsafe { std::ptr::copy(bytes.as_ptr(), address, bytes.len()) };
        }
        let address = address.addr();
        let word = <[u8; 8]>::try_from(bytes).map(u64::from_ne_bytes);
        let (Ok(value), Order::Relaxed | Order::Release) = (word, order) else {
            return self.with_memory(|memory| {
                memory.store_data(self.agent, address, bytes, order);
            });
        };
        if !lock(&self.shared).memory.appends(self.agent, address) {
            self.stop(Pending::Store(address, order));
        }
        self.with_memory(|memory| memory.store_word(self.agent, address, value, order));
    }

    fn fence(&self) {
        lock(&self.shared).memory.fence(self.agent);
    }

    fn before_rmw(&self, address: *const u8, load: Access, store: Order) {
        let address = address.addr();
        if lock(&self.shared).memory.is_shared(address) {
            self.stop(Pending::Swap(address));
        }
        self.with_memory(|memory| memory.swap(self.agent, address, load, store));
    }

    fn weakens(&self, word: Published, side: Side) -> bool {
        let shared = &mut *lock(&self.shared);
        if !shared.used.contains(&(word, side)) {
            shared.used.push((word, side));
        }
        // Nothing is read because of the abort word, but all that wait look at it: see `Cruel::weakens`.
        word == orders::ABORT || shared.weaken == Some((word, side))
    }
}
