//! Litmus tests that others have published, as the emulator's memory has them: here everything is tried, so that what never comes out
//! cannot come out.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use ferroccl_device::gpu::cpu::{Access, Order};

use super::memory::{ModelMemory, Pending, hash};
use crate::runtime::cpu::races::Clock;

#[path = "../../../../ptx/tests/emulator/litmus_text.rs"]
mod litmus_text;

use litmus_text::{Condition, Outcome, REGISTERS, Test, is_register, tests};

/// What is left out: barriers of a block, which has one lane here.
fn is_left_out(test: &Test<'_>) -> bool {
    test.threads.iter().flat_map(|thread| &thread.2).any(|code| code.starts_with("bar."))
}

/// Whether an operation is of less than the system, which is what the kernels' are of: there a test may allow more.
fn is_narrow(test: &Test<'_>) -> bool {
    let mut code = test.threads.iter().flat_map(|thread| &thread.2);
    code.any(|code| code.contains(".cta") || code.contains(".gpu"))
}

/// A run of a test.
struct Run<'t> {
    test: &'t Test<'t>,
    places: Vec<&'t str>,
    words: Vec<u64>,
    memory: ModelMemory,
    /// Where each thread is.
    at: Vec<usize>,
    registers: Vec<[u64; REGISTERS]>,
    /// What the fences of sequential consistency have in common.
    sc: (Clock, u64),
    /// Whether a thread has gone back: it waits.
    waits: bool,
}

/// What a thread does next.
enum Next {
    Ended,
    Word(Pending),
    Other,
}

impl<'t> Run<'t> {
    fn new(test: &'t Test<'t>) -> Self {
        let (places, n) = (test.places(), test.threads.len());
        let mut words = vec![0; places.len()];
        for (place, value) in &test.init {
            words[places.iter().position(|known| known == place).unwrap()] = *value;
        }
        let mut memory = ModelMemory::default();
        (0..n).for_each(|thread| memory.begin(thread, 0..0, &[]));
        let (at, registers) = (vec![0; n], vec![[0; REGISTERS]; n]);
        Run { test, places, words, memory, at, registers, sc: (Clock::new(), 0), waits: false }
    }

    fn code(&self, thread: usize) -> Option<Vec<&'t str>> {
        Some(self.test.threads[thread].2.get(self.at[thread])?.split(' ').collect())
    }

    fn address(&self, place: &str) -> usize {
        let index = self.places.iter().position(|known| *known == place).unwrap();
        (&raw const self.words[index]).addr()
    }

    fn value(&self, thread: usize, word: &str) -> u64 {
        match is_register(word) {
            true => self.registers[thread][word[1..].parse::<usize>().unwrap()],
            false => word.parse().unwrap(),
        }
    }

    fn set(&mut self, thread: usize, register: &str, value: u64) {
        self.registers[thread][register[1..].parse::<usize>().unwrap()] = value;
    }

    fn jump(&mut self, thread: usize, label: &str) {
        let code = &self.test.threads[thread].2;
        let to = code.iter().position(|code| code.strip_suffix(':') == Some(label)).unwrap();
        self.waits |= to < self.at[thread];
        self.at[thread] = to;
    }

    /// Does what only concerns the thread; what it does next.
    fn next(&mut self, thread: usize) -> Next {
        while let Some(code) = self.code(thread) {
            let (op, rest) = code.split_first().unwrap();
            let taken = |run: &Self, equal: bool| {
                (run.value(thread, rest[0]) == run.value(thread, rest[1])) == equal
            };
            match *op {
                label if label.ends_with(':') => self.at[thread] += 1,
                "mov" => {
                    let value = self.value(thread, rest[1]);
                    self.set(thread, rest[0], value);
                    self.at[thread] += 1;
                }
                "add" | "sub" => {
                    let (a, b) = (self.value(thread, rest[1]), self.value(thread, rest[2]));
                    let value = if *op == "add" { a.wrapping_add(b) } else { a.wrapping_sub(b) };
                    self.set(thread, rest[0], value);
                    self.at[thread] += 1;
                }
                "goto" => self.jump(thread, rest[0]),
                "beq" | "bne" if taken(self, *op == "beq") => self.jump(thread, rest[2]),
                "beq" | "bne" => self.at[thread] += 1,
                word => return self.pending(word, rest),
            }
            if self.waits {
                break;
            }
        }
        Next::Ended
    }

    fn pending(&self, op: &str, rest: &[&str]) -> Next {
        let parts: Vec<&str> = op.split('.').collect();
        match (parts[0], parts.get(1)) {
            (_, Some(&"weak")) | ("fence", _) => Next::Other,
            ("ld", _) => Next::Word(Pending::Load(self.address(rest[1]))),
            ("st", Some(how)) => Next::Word(Pending::Store(self.address(rest[0]), order(how))),
            ("atom", _) => Next::Word(Pending::Swap(self.address(rest[1]))),
            ("red", _) => Next::Word(Pending::Swap(self.address(rest[0]))),
            _ => panic!("{}: {op}", self.test.name),
        }
    }

    /// A thread does what it does next, with this choice.
    fn step(&mut self, thread: usize, choice: Option<usize>) {
        let Some(code) = self.code(thread) else { return };
        let (op, rest) = code.split_first().unwrap();
        let parts: Vec<&str> = op.split('.').collect();
        self.memory.choice = choice;
        // SAFETY: a word of the run, which is aligned.
        let word = |address: usize| unsafe { AtomicU64::from_ptr(address as *mut u64) };
        let load = |address: usize| word(address).load(Ordering::Relaxed);
        match (parts[0], rest) {
            ("ld", [to, from]) => {
                let address = self.address(from);
                match parts[1] {
                    "weak" => self.memory.load_data(thread, address, 8),
                    how => self.memory.load(thread, address, access(how)),
                }
                self.set(thread, to, load(address));
            }
            ("st", [to, what]) => {
                let (address, value) = (self.address(to), self.value(thread, what));
                match parts[1] {
                    "weak" => {
                        let bytes = value.to_ne_bytes();
                        self.memory.store_data(thread, address, &bytes, Order::Plain);
                    }
                    how => self.memory.store_word(thread, address, value, order(how)),
                }
            }
            ("fence", []) if parts[1] == "sc" => self.memory.fence_sc(thread, &mut self.sc),
            ("fence", []) => self.memory.fence(thread),
            ("atom" | "red", operands) => {
                let (to, operands) = match parts[0] {
                    "atom" => (Some(operands[0]), &operands[1..]),
                    _ => (None, operands),
                };
                let address = self.address(operands[0]);
                let values: Vec<u64> =
                    operands[1..].iter().map(|word| self.value(thread, word)).collect();
                self.memory.swap(thread, address, access(parts[1]), order(parts[1]));
                let old = load(address);
                let new = match parts[3] {
                    "add" => old.wrapping_add(values[0]),
                    "sub" => old.wrapping_sub(values[0]),
                    "exch" => values[0],
                    "cas" if old == values[0] => values[1],
                    "cas" => old,
                    what => panic!("{}: {what}", self.test.name),
                };
                word(address).store(new, Ordering::Relaxed);
                self.memory.settle(thread);
                if let Some(to) = to {
                    self.set(thread, to, old);
                }
            }
            _ => panic!("{}: {code:?}", self.test.name),
        }
        self.at[thread] += 1;
    }

    fn outcome(&mut self) -> Outcome {
        self.memory.finish();
        let places = self.places.iter().zip(&self.words);
        let memory: BTreeMap<String, u64> =
            places.map(|(place, word)| ((*place).to_owned(), *word)).collect();
        (self.registers.clone(), memory)
    }
}

fn access(how: &str) -> Access {
    match how {
        "acquire" | "acq_rel" => Access::Acquire,
        _ => Access::Relaxed,
    }
}

fn order(how: &str) -> Order {
    match how {
        "release" | "acq_rel" => Order::Release,
        _ => Order::Relaxed,
    }
}

/// Everything that comes out of a test, and whether accesses race.
fn all(test: &Test<'_>) -> (Vec<Outcome>, bool) {
    let (mut outcomes, mut races, mut states) = (Vec::new(), false, HashSet::new());
    let mut ways: Vec<Vec<(usize, Option<usize>)>> = vec![Vec::new()];
    while let Some(way) = ways.pop() {
        let mut run = Run::new(test);
        for (thread, choice) in &way {
            run.next(*thread);
            run.step(*thread, *choice);
        }
        if run.memory.wrong.is_some() {
            races = true;
            continue;
        }
        let threads = 0..test.threads.len();
        let next: Vec<Next> = threads.map(|thread| run.next(thread)).collect();
        if run.waits {
            continue;
        }
        let at = run.at.iter().map(|at| *at as u64);
        let values = run.registers.iter().flatten().copied();
        let state = hash([run.memory.state(), run.sc.1].into_iter().chain(at).chain(values));
        if !states.insert(state) {
            continue;
        }
        let mut ended = true;
        for (thread, next) in next.into_iter().enumerate() {
            let choices = match next {
                Next::Ended => continue,
                Next::Other => vec![None],
                Next::Word(pending) => {
                    let choices = run.memory.choices(thread, pending);
                    choices.into_iter().map(|(choice, _)| Some(choice)).collect()
                }
            };
            ended = false;
            ways.extend(choices.into_iter().map(|choice| {
                let mut way = way.clone();
                way.push((thread, choice));
                way
            }));
        }
        if ended {
            outcomes.push(run.outcome());
        }
    }
    (outcomes, races)
}

#[test]
fn published_tests_come_out_as_they_may() {
    let text = include_str!("../../../../ptx/tests/emulator/published.txt");
    let (mut sums, mut wrong) = (BTreeMap::<&str, u32>::new(), Vec::new());
    for test in tests(text) {
        if is_left_out(&test) {
            *sums.entry("left out: barriers of a block").or_default() += 1;
            continue;
        }
        let (allowed, holds) = match test.verdict {
            "allowed" => (true, true),
            "forbidden" => (false, true),
            "always" => (false, false),
            _ => (true, false),
        };
        let (outcomes, races) = all(&test);
        let seen = outcomes.iter().any(|one| Condition::holds(test.condition, one) == holds);
        let what = match (allowed, seen) {
            (true, true) => "allowed, comes out",
            (false, false) => "forbidden, never comes out",
            (true, false) if races => "allowed, found as a race",
            (true, false) if is_narrow(&test) => "allowed by scopes, which are all the system here",
            (true, false) => "allowed, should come out",
            (false, true) => "forbidden, comes out",
        };
        *sums.entry(what).or_default() += 1;
        println!("{} ({}): {what}", test.name, test.folder);
        if ["allowed, should come out", "forbidden, comes out"].contains(&what) {
            wrong.push(format!("{}: {what} ({} {})", test.name, test.verdict, test.condition));
        }
    }
    println!("{sums:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
