//! The CPU runtime as a model checker: a launch runs in every way that the memory orders of its kernels allow.
//!
//! Nothing is drawn. What is launched together runs again and again, each time another way, until there is no other: whoever loads a
//! word sees each store that PTX's memory model leaves to it ([`memory`]), one after the other. All memory is put back between two
//! runs. Two ways that lead to the same state, the same loads having seen the same stores, are gone on with once ([`search`]).
//!
//! ```text
//! start ─► block 0: load F ┬─ sees 0 ─► it waits: nothing has happened
//!                          └─ sees 1 ─► block 1: load G ┬─ sees 0 ...
//!                                                       └─ sees 1 ─► the end: is the result right?
//! ```
//!
//! ```text
//! search.rs   which choices were made, and which are left
//! run.rs      one run: the blocks of all launches, up to each choice and on from there
//! memory.rs   what a load may see, and what races
//! machine.rs  what a block's accesses call
//! litmus.rs   published tests of the model
//! ```
//!
//! What is wrong in some run, is found: two accesses to data that nothing orders, a wait that nothing ends, a fault, a result that is
//! not right. What is right in all of them, is so for these launches, and for blocks of one lane: barriers within a block are for the
//! emulator.
//!
//! This is stateless model checking (Godefroid, "Model checking for programming languages using `VeriSoft`", 1997) over the executions
//! of an axiomatic memory model, as `GenMC` has it (Kokologiannakis and Vafeiadis, 2021); a load in a wait that does not end it is left
//! out, as there ("SAVer"). Data that is not a word is checked for races instead of tried.

#[cfg(test)]
mod litmus;
mod machine;
mod memory;
mod run;
mod search;

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};

use corosensei::stack::DefaultStack;
use ferroccl_device::gpu::Waiting;
use ferroccl_device::gpu::cpu::CheckedGuard;
use ferroccl_device::orders::{Published, Side};

use self::machine::Shared;
use super::history::{Conflict, History, MemoryEvent};
use super::one_thread::one_thread_runtime;
use crate::error::{Error, Result};
use crate::runtime::op::panicked;
use crate::runtime::scheduler::{self, ScheduledStreams, Scheduler, StreamId};
use crate::runtime::sync::lock;
use crate::runtime::{Launch, Memory};

/// The most blocks of all launches that run beside each other.
const MOST_BLOCKS: u32 = 128;

/// What a [`ModelCheckedRuntime`] tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelCheck {
    /// A side of an order of the kernels that is relaxed, against the rules.
    pub weaken: Option<(Published, Side)>,
    /// The search ends, incomplete, with the run in which it has come by so many states.
    pub most_states: u64,
}

/// All orders as they are, and 20 million states.
impl Default for ModelCheck {
    fn default() -> Self {
        ModelCheck { weaken: None, most_states: 20_000_000 }
    }
}

/// How much was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Runs to the end of all launches that differ in what a load has seen.
    pub executions: u64,
    /// States: who has seen and stored what, so far.
    pub states: u64,
    /// Runs, complete or not.
    pub runs: u64,
    /// Whether nothing is left to try.
    pub complete: bool,
}

/// What a run violates.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// Two accesses to the same data, one of them a store, that nothing orders.
    Race(String),
    /// Nobody can go on, with what they wait for.
    Deadlock(String),
    /// A kernel has recorded a fault.
    Fault(String),
    /// The result is not right, as the check says.
    Result(String),
    /// A kernel panicked.
    Panic(String),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Race(what) | Violation::Result(what) => f.write_str(what),
            Violation::Deadlock(what) => write!(f, "deadlock: {what}"),
            Violation::Fault(what) => write!(f, "a kernel reports: {what}"),
            Violation::Panic(what) => write!(f, "a kernel panicked: {what}"),
        }
    }
}

/// What waits say, of those who can go on no more.
fn deadlock(waits: &[Waiting]) -> Violation {
    let one = |w: &Waiting| {
        format!(
            "rank {} waits for {} of step {} from rank {}",
            w.rank,
            w.kind.words(),
            w.step,
            w.peer
        )
    };
    Violation::Deadlock(waits.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// Says whether a result is right.
type Check = Box<dyn Fn() -> std::result::Result<(), String> + Send>;

/// Memory that a rank's host reads behind its kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The rank.
    pub rank: u32,
    /// Its addresses.
    pub range: Range<u64>,
}

/// A CPU device that runs launches in all ways; see [`CpuRuntime::model_checked`](super::CpuRuntime::model_checked).
pub struct ModelCheckedRuntime(Arc<ScheduledStreams<ModelChecker>>);

/// Launches, of which every outcome is tried.
struct ModelChecker {
    config: ModelCheck,
    results: Mutex<Results>,
    check: Mutex<Option<Check>>,
    outputs: Mutex<Vec<Output>>,
    memory: Mutex<Vec<Weak<dyn Memory>>>,
    _checked: CheckedGuard,
}

/// What came of all searches.
#[derive(Default)]
struct Results {
    checked: Checked,
    wrong: Option<Violation>,
    events: Vec<MemoryEvent>,
    conflict: Option<Conflict>,
    orders: Vec<(Published, Side)>,
}

type Launched = scheduler::Launched<ModelChecker>;

/// The launches of a stream, one behind the other.
struct Chain {
    stream: StreamId,
    launches: Vec<Arc<Launched>>,
}

impl Chain {
    /// The blocks of the largest launch.
    fn blocks(&self) -> u32 {
        self.launches.iter().map(|launch| launch.blocks).max().unwrap_or(0)
    }
}

/// What waits to be searched.
#[derive(Default)]
struct Schedule {
    chains: Vec<Chain>,
    stacks: Vec<DefaultStack>,
}

impl ModelCheckedRuntime {
    pub(super) fn new(config: ModelCheck) -> Self {
        let checker = ModelChecker {
            config,
            results: Mutex::default(),
            check: Mutex::default(),
            outputs: Mutex::default(),
            memory: Mutex::default(),
            _checked: CheckedGuard::new(),
        };
        ModelCheckedRuntime(ScheduledStreams::new(checker, Schedule::default()))
    }

    /// Has every execution's result looked at, when its last kernel has ended, and before memory is put back. `check` may read buffers
    /// by address; it must not wait for a stream. Of the memory of `outputs`, which a rank's host would read when the rank's kernels have
    /// ended, nobody's store may be in no order with that.
    pub fn check(
        &self,
        outputs: impl IntoIterator<Item = Output>,
        check: impl Fn() -> std::result::Result<(), String> + Send + 'static,
    ) {
        *lock(&self.0.scheduler.outputs) = outputs.into_iter().collect();
        *lock(&self.0.scheduler.check) = Some(Box::new(check));
    }

    /// How much has been tried so far.
    #[must_use]
    pub fn checked(&self) -> Checked {
        lock(&self.0.scheduler.results).checked
    }

    /// The sides of the orders that the kernels have used.
    #[must_use]
    pub fn orders(&self) -> Vec<(Published, Side)> {
        lock(&self.0.scheduler.results).orders.clone()
    }

    /// What was wrong, if anything was.
    #[must_use]
    pub fn wrong(&self) -> Option<Violation> {
        lock(&self.0.scheduler.results).wrong.clone()
    }

    /// What the blocks of the run did to memory that was wrong.
    #[must_use]
    pub fn history(&self) -> Vec<MemoryEvent> {
        lock(&self.0.scheduler.results).events.clone()
    }

    fn allocated(&self, memory: &Arc<dyn Memory>) {
        let mut all = lock(&self.0.scheduler.memory);
        all.retain(|memory| memory.strong_count() > 0);
        all.push(Arc::downgrade(memory));
    }

    /// The two accesses of a race.
    #[must_use]
    pub fn conflict(&self) -> Option<Conflict> {
        lock(&self.0.scheduler.results).conflict
    }
}

impl fmt::Debug for ModelCheckedRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ModelCheckedRuntime").field(&self.0.scheduler.config).finish()
    }
}

one_thread_runtime!(ModelCheckedRuntime);

impl Scheduler for ModelChecker {
    type Ready = ();
    type Schedule = Schedule;

    fn address_space(&self) -> u64 {
        0
    }

    fn chains(&self) -> bool {
        true
    }

    fn prepare(&self, _: &Launch, _: StreamId, _: u64) -> Result<()> {
        Ok(())
    }

    fn begin(&self, _: &mut Schedule) {}

    fn is_idle(&self, schedule: &Schedule) -> bool {
        schedule.chains.is_empty()
    }

    fn start(&self, schedule: &mut Schedule, launched: Launched, _: &mut Vec<Launched>) {
        let stream = *launched.stream();
        let launch = Arc::new(launched);
        match schedule.chains.iter_mut().find(|chain| chain.stream == stream) {
            Some(chain) => chain.launches.push(launch),
            None => schedule.chains.push(Chain { stream, launches: vec![launch] }),
        }
    }

    /// Tries everything, of all launches that have started.
    fn step(&self, schedule: &mut Schedule, ended: &mut Vec<Launched>) {
        let chains = std::mem::take(&mut schedule.chains);
        let blocks: u32 = chains.iter().map(Chain::blocks).sum();
        let result = if blocks > MOST_BLOCKS {
            let reason = format!("{blocks} blocks beside each other are more than {MOST_BLOCKS}");
            Err(Error::argument("blocks", reason))
        } else {
            self.search(&chains, &mut schedule.stacks);
            match &lock(&self.results).wrong {
                Some(wrong) => Err(panicked("(model checker)", wrong.to_string())),
                None => Ok(()),
            }
        };
        for launch in chains.into_iter().flat_map(|chain| chain.launches) {
            if let Err(error) = &result {
                launch.fail(error.clone());
            }
            ended.extend(Arc::into_inner(launch));
        }
    }

    fn touched(&self) {}
}

impl ModelChecker {
    fn search(&self, chains: &[Chain], stacks: &mut Vec<DefaultStack>) {
        let snapshot = self.snapshot();
        let shared =
            Arc::new(Mutex::new(Shared { weaken: self.config.weaken, ..Shared::default() }));
        let (check, outputs) = (lock(&self.check), lock(&self.outputs));
        let tried = search::Search {
            chains,
            shared: &shared,
            stacks,
            snapshot: &snapshot,
            check: check.as_deref(),
            outputs: &outputs,
            most_states: self.config.most_states,
        }
        .all();
        let mut results = lock(&self.results);
        let Results { checked, .. } = &mut *results;
        checked.executions += tried.checked.executions;
        checked.states += tried.checked.states;
        checked.runs += tried.checked.runs;
        checked.complete = tried.checked.complete;
        let used = std::mem::take(&mut lock(&shared).used);
        results.orders.extend(used);
        if results.wrong.is_none() {
            results.wrong = tried.wrong;
            let history = tried.history.unwrap_or_default();
            (results.conflict, results.events) = (history.conflict, history.events());
        }
    }

    /// What all memory of the device has now.
    fn snapshot(&self) -> Snapshot {
        let all = lock(&self.memory);
        let copies = all.iter().filter_map(Weak::upgrade).map(|memory| {
            let at = memory.address() as usize;
            // SAFETY: an allocation, which is kept, and nobody runs.
            let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, memory.len()) };
            Copied { at, bytes: bytes.to_vec(), _memory: memory }
        });
        Snapshot(copies.collect())
    }
}

/// What memory had before the first run: blocks also change what no other agent sees, and say so to nobody.
struct Snapshot(Vec<Copied>);

/// An allocation as it was.
struct Copied {
    at: usize,
    bytes: Vec<u8>,
    _memory: Arc<dyn Memory>,
}

impl Snapshot {
    fn restore(&self) {
        for Copied { at, bytes, .. } in &self.0 {
            // SAFETY: an allocation, which is kept, and nobody runs.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), *at as *mut u8, bytes.len());
            }
        }
    }
}
