//! One run of all launches, up to each choice and from there on.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use corosensei::stack::{DefaultStack, Stack};
use ferroccl_device::abi::{Comm, FaultCell, Work};
use ferroccl_device::gpu::Waiting;

use super::super::block::{self, BlockRun, Resumed, YieldReason};
use super::machine::{CheckedMachine, Shared};
use super::memory::{Agent, Pending};
use super::{Chain, Output, Violation};
use crate::KernelFault;
use crate::runtime::sync::lock;

/// The most stops of a block between two looks at whether anything moves.
const MOST_STOPS: u32 = 10_000;

/// What a block can do next.
#[derive(Clone, Copy)]
pub(super) struct Choice {
    pub(super) agent: Agent,
    /// The store that it sees, or behind which its own comes: an index into the coherence order of the word.
    store: usize,
    /// What it loads, if it loads.
    pub(super) value: Option<u64>,
    /// Whether that is the last store.
    pub(super) latest: bool,
}

/// Where a block is.
enum State {
    /// Before its launch.
    Early,
    /// Before something that has more than one outcome.
    Stopped(Pending),
    /// In a wait that what it looked at does not end.
    Waits(Waiting),
    /// It has ended.
    Ended,
}

/// What came of letting a block go on.
pub(super) enum Outcome {
    /// It has stopped or ended, and others may have begun.
    Moved,
    /// It waits.
    Waits(Waiting),
}

/// A block of a stream's launches: of one after the other.
struct ChainBlock {
    chain: usize,
    index: u32,
    /// Which of the chain's launches it is in.
    launch: usize,
    run: Option<BlockRun>,
    state: State,
}

/// A run.
pub(super) struct Run<'a> {
    chains: &'a [Chain],
    shared: &'a Arc<Mutex<Shared>>,
    stacks: &'a mut Vec<DefaultStack>,
    blocks: Vec<ChainBlock>,
    /// The block that has loaded words since it stored one, and comes next: loads are no news to others, so that all of them are done
    /// right before the store that follows.
    turn: Option<Agent>,
    /// What stopped it.
    wrong: Option<Violation>,
}

impl<'a> Run<'a> {
    /// Begins all chains: each block runs up to its first choice.
    pub(super) fn new(
        chains: &'a [Chain],
        shared: &'a Arc<Mutex<Shared>>,
        stacks: &'a mut Vec<DefaultStack>,
    ) -> Self {
        let all = chains.iter().enumerate().flat_map(|(chain, launches)| {
            (0..launches.blocks()).map(move |index| ChainBlock {
                chain,
                index,
                launch: 0,
                run: None,
                state: State::Early,
            })
        });
        let blocks = all.collect();
        let mut run = Run { chains, shared, stacks, blocks, turn: None, wrong: None };
        (0..chains.len()).for_each(|chain| run.start(chain, 0));
        run
    }

    /// What is wrong, so far.
    pub(super) fn wrong(&mut self) -> Option<Violation> {
        let found = lock(self.shared).memory.wrong.take();
        self.wrong.take().or_else(|| found.map(Violation::Race))
    }

    /// Whether everything has ended.
    pub(super) fn is_done(&self) -> bool {
        self.blocks.iter().all(|block| matches!(block.state, State::Ended))
    }

    /// The block whose turn goes on.
    pub(super) fn turn(&self) -> Option<Agent> {
        self.turn
    }

    /// What the blocks can choose from now.
    pub(super) fn choices(&self) -> Vec<Choice> {
        let mut shared = lock(self.shared);
        let mut all = Vec::new();
        for (agent, block) in self.blocks.iter().enumerate() {
            let State::Stopped(pending) = block.state else { continue };
            if self.turn.is_some_and(|turn| turn != agent) {
                continue;
            }
            let loads = matches!(pending, Pending::Load(_));
            let choices = shared.memory.choices(agent, pending).into_iter().enumerate();
            all.extend(choices.map(|(i, (store, value))| {
                let value = loads.then_some(value);
                Choice { agent, store, value, latest: i == 0 }
            }));
        }
        all
    }

    /// Has a block do what it has stopped before.
    pub(super) fn choose(&mut self, choice: Choice) -> Outcome {
        let agent = choice.agent;
        let before = {
            let memory = &mut lock(self.shared).memory;
            memory.choice = Some(choice.store);
            memory.stores_of(agent)
        };
        let launch = self.blocks[agent].launch;
        let outcome = self.resume(agent);
        let block = &self.blocks[agent];
        let goes_on = matches!(block.state, State::Stopped(_))
            && block.launch == launch
            && lock(self.shared).memory.stores_of(agent) == before;
        self.turn = goes_on.then_some(agent);
        outcome
    }

    /// Whether nothing moves any more when all blocks go on and see the last stores. Then what they wait for.
    pub(super) fn is_stuck(&mut self) -> Option<Vec<Waiting>> {
        let mut still = 0;
        while still < 3 && self.wrong.is_none() {
            let before = (lock(self.shared).memory.stored, self.ended());
            for agent in 0..self.blocks.len() {
                for _ in 0..MOST_STOPS {
                    if matches!(self.blocks[agent].state, State::Early | State::Ended) {
                        break;
                    }
                    if matches!(self.resume(agent), Outcome::Waits(_)) {
                        break;
                    }
                }
            }
            if (lock(self.shared).memory.stored, self.ended()) != before {
                return None;
            }
            still += 1;
        }
        let waits = self.blocks.iter().filter_map(|block| match block.state {
            State::Waits(waiting) => Some(waiting),
            _ => None,
        });
        Some(waits.collect())
    }

    fn ended(&self) -> usize {
        self.blocks.iter().map(|b| b.launch + usize::from(matches!(b.state, State::Ended))).sum()
    }

    /// The hosts read what the ranks' kernels have left there: each behind its own rank's.
    pub(super) fn read(&mut self, outputs: &[Output]) {
        let memory = &mut lock(self.shared).memory;
        for output in outputs {
            // SAFETY: the contract of `launch`: a communicator is valid until it has ended.
            let of_rank = |block: &ChainBlock| unsafe {
                let launch = &self.chains[block.chain].launches[0];
                (launch.comm() as *const Comm).as_ref().is_some_and(|c| c.rank == output.rank)
            };
            let blocks = self.blocks.iter().enumerate().filter(|(_, block)| of_rank(block));
            let kernels: Vec<Agent> = blocks.map(|(agent, _)| agent).collect();
            let host = self.blocks.len() + output.rank as usize;
            memory.name(host, output.rank, 0);
            memory.begin(host, 0..0, &kernels);
            let Range { start, end } = output.range;
            memory.load_data(host, start as usize, (end - start) as usize);
        }
    }

    /// The first fault that a kernel has recorded.
    pub(super) fn fault(&self) -> Option<Violation> {
        let mut launches = self.chains.iter().flat_map(|chain| &chain.launches);
        launches.find_map(|launch| {
            // SAFETY: the contract of `launch`: a communicator is valid until it has ended, and nobody runs now.
            let fault = unsafe {
                let comm = (launch.comm() as *const Comm).as_ref()?;
                (comm.fault as *const FaultCell).as_ref()?
            };
            (fault.state != 0).then(|| Violation::Fault(KernelFault(fault.fault).to_string()))
        })
    }

    /// Starts a launch of a chain.
    fn start(&mut self, chain: usize, number: usize) {
        let chains = self.chains;
        let launch = &chains[chain].launches[number];
        let of_chain = |block: &ChainBlock| block.chain == chain;
        let agents: Vec<Agent> =
            (0..self.blocks.len()).filter(|agent| of_chain(&self.blocks[*agent])).collect();
        let before: Vec<Agent> = if number == 0 { Vec::new() } else { agents.clone() };
        for agent in agents {
            let index = self.blocks[agent].index;
            self.blocks[agent].launch = number;
            if index >= launch.blocks {
                self.blocks[agent].state = State::Ended;
                continue;
            }
            let stack = match self.stacks.pop().map_or_else(block::new_stack, Ok) {
                Ok(stack) => stack,
                Err(error) => {
                    self.wrong = Some(Violation::Panic(format!("the stack of a block: {error}")));
                    return;
                }
            };
            let mut shared = lock(self.shared);
            // SAFETY: the contract of `launch`: a communicator is valid until it has ended.
            let comm = unsafe { (launch.comm() as *const Comm).as_ref() };
            shared.memory.name(agent, comm.map_or(0, |comm| comm.rank), index);
            shared.memory.begin(agent, stack.limit().get()..stack.base().get(), &before);
            drop(shared);
            let (kernel, work, shared) = (launch.kernel, launch.work(), Arc::clone(self.shared));
            let run = BlockRun::new(stack, move |yielder| {
                let work = work; // the whole of it, which is `Send`; not the pointer inside
                let machine = CheckedMachine { yielder, shared, agent };
                let argument: *const Work = work.0;
                // SAFETY: the contract of `launch`; the chain keeps the argument until after this.
                unsafe { block::enter(index, &machine, kernel, argument) }
            });
            self.blocks[agent].run = Some(run);
            self.resume(agent);
        }
        self.follow(chain);
    }

    /// Starts the next launch of a chain, if all blocks of the last one have ended.
    fn follow(&mut self, chain: usize) {
        let mut of_chain = self.blocks.iter().filter(|block| block.chain == chain);
        let next = self.blocks.iter().find(|b| b.chain == chain).map_or(0, |b| b.launch + 1);
        let ended = of_chain.all(|b| matches!(b.state, State::Ended) && b.launch + 1 == next);
        if ended && next < self.chains[chain].launches.len() && self.wrong.is_none() {
            self.start(chain, next);
        }
    }

    /// Has a block go on until it stops, waits or ends.
    fn resume(&mut self, agent: Agent) -> Outcome {
        let block = &mut self.blocks[agent];
        let Some(run) = &mut block.run else { return Outcome::Moved };
        let resumed = run.resume(None);
        let mut shared = lock(self.shared);
        shared.memory.settle(agent);
        match resumed {
            Resumed::Paused(YieldReason::Preempted) => {
                // None where something is wrong: the run ends.
                if let Some(pending) = shared.pending.take() {
                    block.state = State::Stopped(pending);
                }
                Outcome::Moved
            }
            Resumed::Paused(YieldReason::Waits(waiting)) => {
                shared.memory.waits(agent);
                block.state = State::Waits(waiting);
                Outcome::Waits(waiting)
            }
            Resumed::Ended | Resumed::Panicked(_) => {
                drop(shared);
                block.state = State::Ended;
                self.stacks.extend(block.run.take().map(BlockRun::into_stack));
                if let Resumed::Panicked(message) = resumed {
                    self.wrong = Some(Violation::Panic(message));
                } else {
                    let chain = block.chain;
                    self.follow(chain);
                }
                Outcome::Moved
            }
        }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let runs = self.blocks.iter_mut().filter_map(|block| block.run.take());
        self.stacks.extend(runs.map(BlockRun::abandoned));
    }
}
