//! The search: which choices have been made, and which are left.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use corosensei::stack::DefaultStack;
use ferroccl_device::gpu::Waiting;

use super::machine::Shared;
use super::memory::Agent;
use super::run::{Choice, Outcome, Run};
use super::{Chain, Checked, History, Output, Snapshot, Violation, deadlock};
use crate::runtime::sync::lock;

/// A state on the way to where the search is, and what can happen there.
struct Node {
    choices: Vec<Choice>,
    /// The one that is tried.
    now: usize,
    /// Whether it is in the midst of a block's turn.
    in_turn: bool,
    /// Whether the turn has seen the last stores alone so far.
    latest: bool,
    /// Whether one of those that were tried led on, to the end of a turn, and saw the last stores alone: memory may come to rest before
    /// anybody looks.
    led_on: bool,
}

/// A search.
pub(super) struct Search<'a> {
    pub(super) chains: &'a [Chain],
    pub(super) shared: &'a Arc<Mutex<Shared>>,
    pub(super) stacks: &'a mut Vec<DefaultStack>,
    pub(super) snapshot: &'a Snapshot,
    pub(super) check: Option<&'a (dyn Fn() -> Result<(), String> + Send)>,
    pub(super) outputs: &'a [Output],
    pub(super) most_states: u64,
}

/// What came of it.
#[derive(Default)]
pub(super) struct Tried {
    pub(super) checked: Checked,
    pub(super) wrong: Option<Violation>,
    pub(super) history: Option<History>,
}

/// What a run has come to.
enum End {
    /// Its last choice leads nowhere: a wait that it does not end.
    Waits,
    /// To a state in which only choices are left that are known to lead nowhere.
    Exhausted,
    /// To a state that was there before, or to the end of all launches.
    Known,
    /// A word is shared that was not known to be.
    Grown,
    Violation(Violation),
}

/// What is known of all runs with the same shared words.
#[derive(Default)]
struct Known {
    nodes: Vec<Node>,
    states: HashSet<(u64, Option<Agent>)>,
    /// By block, what it has loaded and what it sees next: it waits then.
    waits: HashMap<(Agent, u64, u64), Waiting>,
    /// The choices of the first run that came to the end.
    first: Option<Vec<Choice>>,
    checked: Checked,
}

impl Search<'_> {
    /// Tries everything. Memory is as the last run left it: of a way that is wrong, or of the first one.
    pub(super) fn all(mut self) -> Tried {
        let mut runs = 0;
        let (known, wrong) = loop {
            let mut known = Known::default();
            let wrong = self.pass(&mut known);
            runs += known.checked.runs;
            if !lock(self.shared).memory.grown {
                break (known, wrong);
            }
        };
        let checked = Checked { runs, ..known.checked };
        if let Some((wrong, stuck)) = wrong {
            let path: Vec<Choice> = known.nodes.iter().filter_map(Node::choice).collect();
            let history = self.again(&path, true, stuck);
            return Tried { checked, wrong: Some(wrong), history };
        }
        self.again(&known.first.unwrap_or_default(), false, false);
        Tried { checked, wrong: None, history: None }
    }

    /// All runs, until a word turns out to be shared; what is wrong, and whether that is that nothing moves.
    fn pass(&mut self, known: &mut Known) -> Option<(Violation, bool)> {
        loop {
            known.checked.runs += 1;
            match self.run(known) {
                End::Violation(wrong) => return Some((wrong, false)),
                End::Grown => return None,
                End::Waits | End::Known => {
                    if let Some(last) = known.nodes.last_mut() {
                        last.now += 1;
                    }
                }
                End::Exhausted => {}
            }
            // Back to the last state that has a choice left.
            while let Some(last) = known.nodes.last() {
                if last.now < last.choices.len() {
                    break;
                }
                if !last.led_on && !last.in_turn {
                    known.checked.runs += 1;
                    if let Some(wrong) = self.deadlock(known) {
                        return Some((wrong, true));
                    }
                    if lock(self.shared).memory.grown {
                        return None;
                    }
                }
                known.nodes.pop();
                if let Some(before) = known.nodes.last_mut() {
                    before.now += 1;
                }
            }
            if known.nodes.is_empty() {
                known.checked.complete = true;
                let none = "no run comes to an end, and none is stuck: ranks may reach memory by several addresses";
                let never = known.checked.executions == 0;
                return never.then(|| (Violation::Deadlock(none.to_owned()), false));
            }
            if known.checked.states >= self.most_states {
                return None;
            }
        }
    }

    /// Everything as it was before, and all blocks before their first choice.
    fn begin(&mut self, history: bool) -> Run<'_> {
        let mut shared = lock(self.shared);
        shared.memory.reset(history);
        shared.pending = None;
        drop(shared);
        self.snapshot.restore();
        Run::new(self.chains, self.shared, self.stacks)
    }

    /// Goes the way of the nodes, and on from there, always with the first choice.
    fn run(&mut self, known: &mut Known) -> End {
        let (check, outputs, shared) = (self.check, self.outputs, self.shared);
        let mut run = self.begin(false);
        let mut depth = 0;
        loop {
            if lock(shared).memory.grown {
                return End::Grown;
            }
            if let Some(wrong) = run.wrong() {
                return End::Violation(wrong);
            }
            if run.is_done() {
                known.checked.executions += 1;
                lock(shared).memory.finish();
                run.read(outputs);
                if let Some(wrong) = run.wrong() {
                    return End::Violation(wrong);
                }
                if let Some(wrong) = run.fault() {
                    return End::Violation(wrong);
                }
                if let Some(Err(wrong)) = check.map(|check| check()) {
                    return End::Violation(Violation::Result(wrong));
                }
                let path = || known.nodes.iter().filter_map(Node::choice).collect();
                known.first.get_or_insert_with(path);
                return End::Known;
            }
            if depth == known.nodes.len() {
                if !known.states.insert((lock(shared).memory.state(), run.turn())) {
                    return End::Known;
                }
                known.checked.states += 1;
                let mut choices = run.choices();
                let memory = &lock(shared).memory;
                let key = |agent, value| (agent, memory.loaded(agent), value);
                choices.retain(|Choice { agent, value, .. }| {
                    value.is_none_or(|value| !known.waits.contains_key(&key(*agent, value)))
                });
                let none = choices.is_empty();
                let in_turn = run.turn().is_some();
                let before = depth.checked_sub(1).and_then(|before| known.nodes.get(before));
                let latest = !in_turn || before.is_some_and(Node::is_latest);
                known.nodes.push(Node { choices, now: 0, in_turn, latest, led_on: false });
                if none {
                    return End::Exhausted;
                }
            }
            let node = &known.nodes[depth];
            let choice = node.choices[node.now];
            let latest = node.is_latest();
            let loaded = lock(shared).memory.loaded(choice.agent);
            if let Outcome::Waits(waiting) = run.choose(choice) {
                if let Some(value) = choice.value {
                    known.waits.insert((choice.agent, loaded, value), waiting);
                }
                return if lock(shared).memory.grown { End::Grown } else { End::Waits };
            }
            depth += 1;
            if run.turn().is_none() && latest {
                // All the way back to where the turn began.
                for node in known.nodes[..depth].iter_mut().rev() {
                    node.led_on = true;
                    if !node.in_turn {
                        break;
                    }
                }
            }
        }
    }

    /// Whether nothing moves in the state of the last node, of which no choice led on. A block may be there in the midst of a look at
    /// several words of which it saw the first too early; it looks again, then.
    fn deadlock(&mut self, known: &Known) -> Option<Violation> {
        let path: Vec<Choice> =
            known.nodes[..known.nodes.len() - 1].iter().filter_map(Node::choice).collect();
        let mut run = self.begin(false);
        for choice in path {
            run.choose(choice);
        }
        let waits = run.is_stuck()?;
        Some(run.wrong().unwrap_or_else(|| deadlock(&waits)))
    }

    /// Makes these choices once more, and keeps what comes of it.
    fn again(&mut self, path: &[Choice], history: bool, stuck: bool) -> Option<History> {
        let (outputs, shared) = (self.outputs, self.shared);
        let mut run = self.begin(history);
        for choice in path {
            if !run.is_done() {
                run.choose(*choice);
            }
        }
        if stuck {
            run.is_stuck();
        } else if run.is_done() {
            run.read(outputs);
        }
        drop(run);
        let memory = &mut lock(shared).memory;
        memory.finish();
        memory.keep();
        memory.history.take()
    }
}

impl Node {
    /// Whether what is chosen now, and all of the turn before, sees the last stores alone.
    fn is_latest(&self) -> bool {
        self.latest && self.choice().is_some_and(|choice| choice.latest)
    }

    fn choice(&self) -> Option<Choice> {
        self.choices.get(self.now).copied()
    }
}
