//! The format of published litmus tests (`published.txt`): threads, and what may come out.

use std::collections::{BTreeMap, BTreeSet};

/// Registers of a thread.
pub(crate) const REGISTERS: usize = 10;

/// A test.
pub(crate) struct Test<'t> {
    pub(crate) name: &'t str,
    pub(crate) folder: &'t str,
    pub(crate) init: BTreeMap<&'t str, u64>,
    /// GPU, CTA, instructions.
    pub(crate) threads: Vec<(u32, u32, Vec<&'t str>)>,
    pub(crate) verdict: &'t str,
    pub(crate) condition: &'t str,
}

/// What came out: registers by thread and number, and memory by name.
pub(crate) type Outcome = (Vec<[u64; REGISTERS]>, BTreeMap<String, u64>);

/// The tests of a text.
pub(crate) fn tests(text: &str) -> Vec<Test<'_>> {
    let blocks = text.split("\n\n").filter(|block| !block.trim_start().starts_with('#'));
    blocks.filter(|block| !block.trim().is_empty()).map(test).collect()
}

fn test(block: &str) -> Test<'_> {
    let mut lines = block.trim().lines().map(str::trim);
    let head = lines.next().unwrap();
    let (head, init) = head.split_once("): ").unwrap_or((head.trim_end_matches(')'), ""));
    let (name, folder) = head.split_once(" (").unwrap();
    let init = init.split_whitespace().map(|pair| {
        let (place, value) = pair.split_once('=').unwrap();
        (place, value.parse().unwrap())
    });
    let (mut threads, mut last) = (Vec::new(), "");
    for line in lines {
        match line.split_once(": ").filter(|(place, _)| place.contains('/') && place.len() < 6) {
            Some((place, code)) => {
                let (gpu, cta) = place.split_once('/').unwrap();
                let code = code.split(';').map(str::trim).collect();
                threads.push((gpu.parse().unwrap(), cta.parse().unwrap(), code));
            }
            None => last = line,
        }
    }
    let verdicts = ["not always", "always", "allowed", "forbidden"];
    let verdict = verdicts.into_iter().find(|verdict| last.starts_with(verdict)).unwrap();
    let condition = last[verdict.len()..].trim();
    Test { name, folder, init: init.collect(), threads, verdict, condition }
}

impl Test<'_> {
    /// The places in memory, in the order of their names.
    pub(crate) fn places(&self) -> Vec<&str> {
        let words =
            self.threads.iter().flat_map(|(_, _, code)| code).flat_map(|i| i.split(' ').skip(1));
        let named = |word: &&str| {
            word.starts_with(|c: char| c.is_ascii_alphabetic())
                && !is_register(word)
                && !word.starts_with("LC")
        };
        let places: BTreeSet<&str> = words.filter(named).collect();
        places.into_iter().collect()
    }
}

/// Whether a word names a register.
pub(crate) fn is_register(word: &str) -> bool {
    word.strip_prefix('r').is_some_and(|n| !n.is_empty() && n.chars().all(|c| c.is_ascii_digit()))
}

/// Whether a condition holds: terms with `&`, `|`, `!` and parentheses.
pub(crate) struct Condition<'c> {
    rest: &'c str,
    outcome: &'c Outcome,
}

impl Condition<'_> {
    pub(crate) fn holds(text: &str, outcome: &Outcome) -> bool {
        let mut condition = Condition { rest: text, outcome };
        let holds = condition.any();
        assert!(condition.rest.trim().is_empty(), "{text}: behind it {}", condition.rest);
        holds
    }

    fn take(&mut self, what: char) -> bool {
        let rest = self.rest.trim_start();
        let there = rest.strip_prefix(what);
        self.rest = there.unwrap_or(rest);
        there.is_some()
    }

    fn any(&mut self) -> bool {
        let mut holds = self.all();
        while self.take('|') {
            holds |= self.all();
        }
        holds
    }

    fn all(&mut self) -> bool {
        let mut holds = self.one();
        while self.take('&') {
            holds &= self.one();
        }
        holds
    }

    fn one(&mut self) -> bool {
        if self.take('(') {
            let holds = self.any();
            assert!(self.take(')'), "a parenthesis is open: {}", self.rest);
            return holds;
        }
        if self.take('!') {
            return !self.one();
        }
        let end = self.rest.find([' ', ')']).unwrap_or(self.rest.len());
        let (term, rest) = self.rest.split_at(end);
        self.rest = rest;
        let (left, right, equal) = match term.split_once("!=") {
            Some((left, right)) => (left, right, false),
            None => {
                let (left, right) = term.split_once('=').unwrap_or_else(|| panic!("{term}"));
                (left, right, true)
            }
        };
        (self.value(left) == self.value(right)) == equal
    }

    fn value(&self, word: &str) -> u64 {
        if let Some((thread, register)) = word.split_once(":r") {
            let (thread, register): (usize, usize) =
                (thread.parse().unwrap(), register.parse().unwrap());
            return self.outcome.0[thread][register];
        }
        word.parse().unwrap_or_else(|_| self.outcome.1[word])
    }
}

#[test]
fn conditions_are_read_as_they_are_meant() {
    let memory = [("x".to_owned(), 2)].into_iter().collect();
    let outcome: Outcome = (vec![[1; REGISTERS], [0; REGISTERS]], memory);
    for (text, wanted) in [
        ("0:r0=1 & 1:r3=0", true),
        ("(0:r0!=1 | x=2)", true),
        ("!(0:r0=1 & x=2)", false),
        ("0:r0=1:r0 | 0:r1=0:r2 & x!=3", true),
        ("(0:r0=0 & x=2) | 1:r0=1", false),
    ] {
        assert_eq!(Condition::holds(text, &outcome), wanted, "{text}");
    }
}
