//! Litmus tests that others have published (`published.txt`): what is allowed has to come out, what is forbidden never.
//!
//! A thread of a test is lane 0 of a warp of its own; its CTA is a block, its GPU a launch.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use ferroccl_ptx::emu::{FaultKind, Launch, Lockstep, Machine, Unit};

use crate::litmus_text::{Condition, Outcome, REGISTERS, Test, is_register, tests};
use crate::support::{Buffer, checked, kernel};

/// Seeds of each test. A test that says "allowed" ends with the first that shows it.
const SEEDS: u64 = 1500;

/// Why an allowed outcome does not come out.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Why {
    /// Accesses race, so that loads of one place may even go back in time. The emulator has an order of all stores to a place, and finds
    /// the race instead, which is looked for here, too.
    Races,
    /// It waits for ever: nothing comes out at all.
    Waits,
    /// What else is stronger.
    Stronger(&'static str),
}

/// Allowed outcomes that the emulator does not have.
const NEVER: &[(&str, Why)] = &[
    ("Atom-plus-location-weak", Why::Races),
    ("Cause-base-weak", Why::Races),
    ("Co-Total-3-threads-scope-same", Why::Races),
    ("Co-Total-4-threads", Why::Races),
    ("CoRR-relaxed-acquire-weak", Why::Races),
    ("CoRR-weak-acquire-weak", Why::Races),
    ("CoRR-weak-weak", Why::Races),
    ("CoRW-WW", Why::Stronger("allowed, stores are in the order in which they run")),
    ("CoWR-R", Why::Races),
    ("CoWW-RR", Why::Races),
    ("Coherence-weak", Why::Races),
    ("IRIW_gl_cta", Why::Races),
    ("IRIW_uniproc", Why::Races),
    ("IRRWIW_uniproc", Why::Races),
    ("RWC_uniproc", Why::Races),
    ("barrier-instance-id-exists", Why::Waits),
    ("LB-dlb-no-fence-1", Why::Races),
    ("LB-dlb-no-fence-2", Why::Races),
    ("LB+RMW-a", Why::Races),
    ("MICRO24-Fig4b", Why::Stronger("allowed, an atomic sees the store that ran last")),
    ("SB+bar-const-diff", Why::Waits),
    ("SB+twice-bars-diff", Why::Waits),
];

impl Test<'_> {
    /// Whether it has barriers.
    fn meets(&self) -> bool {
        self.threads.iter().flat_map(|thread| &thread.2).any(|i| i.starts_with("bar."))
    }

    /// An instruction of a thread as PTX.
    fn instruction(&self, thread: usize, text: &str) -> String {
        let words: Vec<&str> = text.split(' ').collect();
        if let Some(label) = text.strip_suffix(':') {
            return format!("T{thread}{label}:");
        }
        let register = |word: &str| format!("%rd{}", &word[1..]);
        let value = |word: &str| if is_register(word) { register(word) } else { word.to_owned() };
        let place = |word: &str| {
            let at = self.places().iter().position(|place| *place == word);
            format!("[%p+{}]", 128 * at.unwrap_or_else(|| panic!("{}: {word}", self.name)))
        };
        let order = |how: &str| if how == "weak" { String::new() } else { format!(".{how}") };
        let parts: Vec<&str> = words[0].splitn(2, '.').collect();
        match (parts[0], &words[1..]) {
            ("ld", [to, from]) => {
                format!("ld{}.global.u64 {}, {};", order(parts[1]), register(to), place(from))
            }
            ("st", [to, what]) => {
                let (what, to) = (value(what), place(to));
                format!("mov.u64 %a, {what}; st{}.global.u64 {to}, %a;", order(parts[1]))
            }
            ("fence", []) => format!("{};", words[0]),
            ("bar", [barrier]) => format!("bar.sync {barrier};"),
            ("mov", [to, what]) => format!("mov.u64 {}, {};", register(to), value(what)),
            (op @ ("add" | "sub"), [to, a, b]) => {
                format!("mov.u64 %a, {}; {op}.u64 {}, {}, %a;", value(b), register(to), register(a))
            }
            ("goto", [label]) => format!("bra T{thread}{label};"),
            (op @ ("beq" | "bne"), [a, b, label]) => {
                let compare = if op == "beq" { "eq" } else { "ne" };
                // All lanes go where lane 0 goes.
                let vote = match self.meets() {
                    true => "and.pred %q1, %q1, %q2; vote.sync.any.pred %q1, %q1, 0xffffffff;",
                    false => "",
                };
                let (a, b) = (register(a), value(b));
                format!(
                    "mov.u64 %a, {b}; setp.{compare}.u64 %q1, {a}, %a; {vote} @%q1 bra T{thread}{label};"
                )
            }
            ("atom" | "red", operands) => {
                let (how, op) = words[0].rsplit_once('.').unwrap();
                let (to, rest) = match parts[0] {
                    "atom" => (format!("{}, ", register(operands[0])), &operands[1..]),
                    // PTX has no reduction that acquires: an atomic whose result nobody wants.
                    _ if parts[1].starts_with("acq") => ("%d, ".to_owned(), operands),
                    _ => (String::new(), operands),
                };
                let how =
                    if to.is_empty() { how.to_owned() } else { how.replacen("red", "atom", 1) };
                let (at, values) = (place(rest[0]), &rest[1..]);
                let (op, ty, first) = match op {
                    "add" => ("add", "u64", value(values[0])),
                    "sub" => ("add", "u64", format!("-{}", values[0])),
                    "exch" => ("exch", "b64", value(values[0])),
                    "cas" => ("cas", "b64", value(values[0])),
                    other => panic!("{}: {other}", self.name),
                };
                let more = values
                    .get(1)
                    .map_or(String::new(), |last| format!("mov.u64 %b, {};", value(last)));
                let second = if values.len() > 1 { ", %b" } else { "" };
                format!("mov.u64 %a, {first}; {more} {how}.global.{op}.{ty} {to}{at}, %a{second};")
            }
            _ => panic!("{}: {text}", self.name),
        }
    }

    /// Runs it once; nothing comes out where it waits for ever.
    fn run(&self, seed: u64, races: bool) -> Result<Option<Outcome>, FaultKind> {
        let meets = self.meets();
        let places = self.places();
        let results = 16 * places.len();
        let machine = Machine::new();
        let mut words = vec![0; results + REGISTERS * self.threads.len()];
        for (place, value) in &self.init {
            let at = places.iter().position(|p| p == place).unwrap();
            words[16 * at] = *value;
        }
        let buffer = Buffer::new(&machine, &words);
        let gpus: BTreeSet<u32> = self.threads.iter().map(|thread| thread.0).collect();
        let mut schedule = Lockstep::new(checked(seed, races, Unit::Eight));
        for gpu in gpus {
            let ctas: BTreeSet<u32> =
                self.threads.iter().filter(|t| t.0 == gpu).map(|t| t.1).collect();
            let (mut body, mut warps) = (String::new(), 1);
            for (block, cta) in ctas.iter().enumerate() {
                let here = |t: &(usize, &(u32, u32, Vec<&str>))| (t.1.0, t.1.1) == (gpu, *cta);
                for (warp, (thread, (_, _, code))) in
                    self.threads.iter().enumerate().filter(here).enumerate()
                {
                    warps = warps.max(warp as u32 + 1);
                    let first = 32 * warp;
                    // A barrier is the whole warp's: all lanes come to it, and only lane 0 does the rest.
                    let lanes = if meets { 32 } else { 1 };
                    let _ = writeln!(
                        body,
                        "setp.ne.u32 %q1, %cta, {block}; @%q1 bra N{thread}; sub.u32 %r1, %tid, {first};\n\
                         setp.ge.u32 %q1, %r1, {lanes}; @%q1 bra N{thread}; setp.eq.u32 %q2, %r1, 0;"
                    );
                    for register in 0..REGISTERS {
                        let _ = writeln!(body, "mov.u64 %rd{register}, 0;");
                    }
                    for instruction in code {
                        for part in self.instruction(thread, instruction).split_inclusive(';') {
                            let part = part.trim();
                            let guarded = meets && part.contains(".global");
                            body += if guarded { "@%q2 " } else { "" };
                            body += part;
                            body.push('\n');
                        }
                    }
                    for register in 0..REGISTERS {
                        let at = 8 * (results + REGISTERS * thread + register);
                        let _ = writeln!(body, "@%q2 st.global.u64 [%p+{at}], %rd{register};");
                    }
                    let _ = writeln!(body, "ret;\nN{thread}:");
                }
            }
            let argument = buffer.address().to_le_bytes().to_vec();
            let launch = Launch::new(&kernel(&body), ctas.len() as u32, 32 * warps, argument);
            let launch = Launch { device: gpu, ..launch };
            let grid = machine.launch(launch).unwrap_or_else(|e| panic!("{}: {e}", self.name));
            schedule.start(&grid);
        }
        match schedule.run() {
            Err(fault) if fault.kind == FaultKind::Deadlock => return Ok(None),
            Err(fault) => return Err(fault.kind),
            Ok(_) => {}
        }
        let words = buffer.words();
        let registers = words[results..].chunks(REGISTERS).map(|r| r.try_into().unwrap());
        let memory = places.iter().enumerate().map(|(i, p)| ((*p).to_owned(), words[16 * i]));
        Ok(Some((registers.collect(), memory.collect())))
    }
}

#[test]
fn published_tests_come_out_as_they_may() {
    let text = include_str!("published.txt");
    let (mut table, mut wrong) = (String::new(), Vec::new());
    let mut sums: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for test in tests(text) {
        // "always" is that the opposite is forbidden.
        let (allowed, holds) = match test.verdict {
            "allowed" => (true, true),
            "forbidden" => (false, true),
            "always" => (false, false),
            _ => (true, false),
        };
        let run = |seed, races| test.run(seed, races);
        let outcome =
            |seed| run(seed, false).unwrap_or_else(|e| panic!("{}, seed {seed}: {e}", test.name));
        let shows = |outcome: Outcome| Condition::holds(test.condition, &outcome) == holds;
        let seen = (0..SEEDS).find(|seed| outcome(*seed).is_some_and(shows));
        let known = NEVER.iter().find(|(name, _)| *name == test.name).map(|(_, why)| *why);
        let (what, fine) = match (allowed, seen.is_some(), known) {
            (true, true, None) => ("allowed, comes out", true),
            (false, false, None) => ("forbidden, never comes out", true),
            (true, false, Some(Why::Races)) => {
                let race = |seed| matches!(run(seed, true), Err(FaultKind::Race { .. }));
                ("allowed, found as a race", (0..SEEDS).any(race))
            }
            (true, false, Some(Why::Waits)) => {
                ("allowed, waits for ever", (0..20).all(|seed| outcome(seed).is_none()))
            }
            (true, false, Some(Why::Stronger(why))) => (why, true),
            (true, false, None) => ("allowed, never comes out", false),
            (false, true, _) => ("forbidden, comes out", false),
            (_, _, Some(_)) => ("is among those that never come out", false),
        };
        *sums.entry((test.folder, what)).or_default() += 1;
        let when = seen.map_or_else(|| format!("none of {SEEDS}"), |seed| format!("seed {seed}"));
        let _ = writeln!(
            table,
            "| {} | {} | {} {} | {what} | {when} |",
            test.folder,
            test.name,
            test.verdict,
            test.condition.replace('|', "or")
        );
        if !fine {
            wrong.push(format!("{}: {what} ({} {})", test.name, test.verdict, test.condition));
        }
    }
    println!("\n{table}");
    for ((folder, what), number) in sums {
        println!("{folder}: {what}: {number}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
