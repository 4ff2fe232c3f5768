//! The machine code of hot loops: how many instructions a round takes, and how early it loads.
//!
//! A loop's *round* is the cheapest way through the machine code from a label back to it that does what a round has to
//! do: so many loads and stores of 16 bytes, and arithmetic. What it does not take are the ways of waits that are
//! not over at once, and of ends that are not whole. Ways are found by Dijkstra's algorithm over instructions, each of
//! which costs one.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::path::Path;
use std::process::Command;

use ferroccl::ptx;
use libtest_mimic::Trial;

/// Kernels whose rounds are counted: what their names say of the operator, the registers of a lane that their blocks leave,
/// and their limits.
struct Counted {
    op: &'static str,
    registers: u32,
    limits: &'static [Limit],
}

/// Sums, in blocks of 640, and kernels that look at the operator, in blocks of 512.
const COUNTED: [Counted; 2] = [
    Counted { op: "sum", registers: 96, limits: SUMS },
    Counted { op: "any", registers: 128, limits: ANY },
];

/// What the rounds of a protocol do, what they are counted by, and how many instructions that may take, in tenths. The
/// limits are what was reached, of all three types the most, and only fall. NCCL 2.30 for sm_90 and f32, read with
/// `nvdisasm`, takes 15.9 (reduce), 5.6 (copy), 20 (a line of LL) and 21.1 (16 bytes of LL128).
#[derive(Clone, Copy)]
struct Limit {
    protocol: &'static str,
    what: &'static str,
    does: Does,
    /// Stores of 16 bytes, or lines, that a round is counted by.
    units: usize,
    tenths: usize,
    /// Loads before the first use, at least.
    batch: usize,
}

const SUMS: &[Limit] = &[
    Limit {
        protocol: "simple",
        what: "reduce",
        does: Does { loads: 8, stores: 4, adds: 1, ..Does::NOTHING },
        units: 4,
        tenths: 128,
        batch: 8,
    },
    Limit {
        protocol: "simple",
        what: "copy",
        does: Does { loads: 4, stores: 4, ..Does::NOTHING },
        units: 4,
        tenths: 48,
        batch: 4,
    },
    Limit {
        protocol: "ll",
        what: "line",
        does: Does { loads: 2, halves: 2, stores: 2, adds: 1, votes: 0 },
        units: 2,
        tenths: 130,
        batch: 4,
    },
    Limit {
        protocol: "ll128",
        what: "16 bytes",
        does: Does { loads: 8, halves: 1, stores: 4, adds: 1, votes: 1 },
        units: 4,
        tenths: 198,
        batch: 4,
    },
];

/// A look at the operator comes once for all that a lane has in flight, which of LL's lines is little.
const ANY: &[Limit] =
    &[SUMS[0], SUMS[1], Limit { tenths: 225, ..SUMS[2] }, Limit { tenths: 188, ..SUMS[3] }];

/// One trial for each of the types that are counted: of floats, and of the halves with `FERROCCL_TEST_TIER=nightly`, which takes a minute more.
pub(crate) fn trials(ptxas: &Path) -> Vec<Trial> {
    let halves = cfg!(feature = "half") && super::tier::is_nightly();
    let types = [("float", true), ("half", halves), ("bfloat16", halves)];
    let there = types.into_iter().filter(|(_, there)| *there).map(|(element, _)| element);
    there
        .flat_map(|element| COUNTED.iter().map(move |counted| (element, counted)))
        .map(|(element, counted)| {
            let (ptxas, nvdisasm) = (ptxas.to_path_buf(), ptxas.with_file_name("nvdisasm"));
            Trial::test(format!("machine code of {} of {element}", counted.op), move || {
                Ok(check(&ptxas, &nvdisasm, element, counted)?)
            })
        })
        .collect()
}

fn check(ptxas: &Path, nvdisasm: &Path, element: &str, counted: &Counted) -> Result<(), String> {
    for protocol in ["simple", "ll", "ll128"] {
        let kernel = format!("all_reduce_ring_{protocol}_{}_{element}", counted.op);
        let module = ptx::module(&kernel, 90).ok_or_else(|| format!("no {kernel}"))?;
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let cubin = directory.join(format!("{kernel}.cubin"));
        let text = module.alone(&kernel).ok_or_else(|| format!("no {kernel}"))?;
        let usage = super::assembler::run_to(ptxas, &text, 90, &cubin)?;
        let registers = usage.get(&kernel).map_or(u32::MAX, |usage| usage.registers);
        if registers > counted.registers {
            return Err(format!(
                "{kernel}: {registers} registers, more than {}",
                counted.registers
            ));
        }
        let out = Command::new(nvdisasm).arg("-c").arg(&cubin).output();
        let out = out.map_err(|e| format!("{}: {e}", nvdisasm.display()))?;
        let _ = std::fs::remove_file(&cubin); // only litter
        let sass = String::from_utf8_lossy(&out.stdout);
        let code = Code::new(&sass, &kernel);
        for limit in counted.limits.iter().filter(|limit| limit.protocol == protocol) {
            let what = format!("{kernel}, {}", limit.what);
            let round = code.round(limit.does).ok_or_else(|| format!("{what}: no such loop"))?;
            let tenths = (10 * round.instructions).div_ceil(limit.units);
            let shown = |tenths: usize| format!("{}.{}", tenths / 10, tenths % 10);
            if tenths > limit.tenths || round.batch < limit.batch {
                let (now, was) = (shown(tenths), shown(limit.tenths));
                let (batch, text) = (round.batch, round.text.join("\n"));
                return Err(format!(
                    "{what}: {now} instructions, the limit is {was}; {batch} loads at once, at least {}:\n{text}",
                    limit.batch
                ));
            }
            if tenths < limit.tenths && element == "float" {
                println!("{what}: {} instructions: lower the limit", shown(tenths));
            }
        }
    }
    Ok(())
}

/// What a round has to do, at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Does {
    /// Loads of 16 bytes.
    pub(crate) loads: u8,
    /// Loads of 8 bytes.
    pub(crate) halves: u8,
    /// Stores of 16 bytes.
    pub(crate) stores: u8,
    /// Arithmetic on elements, 0 or 1.
    pub(crate) adds: u8,
    /// Votes.
    pub(crate) votes: u8,
}

/// Arithmetic on elements.
const ARITHMETIC: [&str; 8] =
    ["FADD", "HADD2", "HFMA2", "FFMA", "FMUL", "HMUL2", "FMNMX", "HMNMX2"];

impl Does {
    const NOTHING: Does = Does { loads: 0, halves: 0, stores: 0, adds: 0, votes: 0 };
}

/// The cheapest round of a loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Round {
    pub(crate) instructions: usize,
    /// Loads that are under way before the first instruction that uses one.
    pub(crate) batch: usize,
    /// Its instructions.
    pub(crate) text: Vec<String>,
}

/// A kernel's machine code, as `nvdisasm -c` prints it.
pub(crate) struct Code<'s> {
    instructions: Vec<&'s str>,
    /// Of each label the instruction that follows it.
    labels: HashMap<&'s str, usize>,
}

impl<'s> Code<'s> {
    pub(crate) fn new(sass: &'s str, kernel: &str) -> Self {
        let mut code = Code { instructions: Vec::new(), labels: HashMap::new() };
        let mut ours = false;
        for line in sass.lines().map(str::trim) {
            if let Some(section) = line.strip_prefix(".section\t") {
                ours = section.split(',').next().and_then(|s| s.strip_prefix(".text."))
                    == Some(kernel);
            } else if ours && line.starts_with(".L_") && line.ends_with(':') {
                code.labels.insert(line.trim_end_matches(':'), code.instructions.len());
            } else if ours
                && line.starts_with("/*")
                && let Some((_, text)) = line.split_once("*/")
                && let Some((text, _)) = text.split_once(';')
            {
                code.instructions.push(text.trim());
            }
        }
        code
    }

    /// The cheapest round that does it, of all loops.
    pub(crate) fn round(&self, does: Does) -> Option<Round> {
        let mut heads: HashMap<usize, usize> = HashMap::new();
        for (at, text) in self.instructions.iter().enumerate() {
            if opcode(text).starts_with("BRA")
                && let Some(head) = self.target(text).filter(|head| *head <= at)
            {
                let end = heads.entry(head).or_insert(at);
                *end = at.max(*end);
            }
        }
        let rounds = heads.into_iter().filter_map(|(head, end)| self.way(head, end, does));
        rounds.min_by_key(|round| (round.instructions, round.text.clone()))
    }

    /// The cheapest way from `head` back to it, within the code up to `end`.
    fn way(&self, head: usize, end: usize, does: Does) -> Option<Round> {
        type State = (usize, Does);
        let start: State = (head, Does::NOTHING);
        let mut from: HashMap<State, State> = HashMap::new();
        let mut best: HashMap<State, usize> = HashMap::from([(start, 0)]);
        let mut next = BinaryHeap::from([Reverse((0, start))]);
        while let Some(Reverse((cost, state))) = next.pop() {
            if best.get(&state).is_some_and(|&known| known < cost) {
                continue;
            }
            let (at, done) = state;
            let done = done.and(self.instructions[at], does);
            for to in self.successors(at) {
                let there = (to, done);
                if to == head && done == does {
                    let mut way = vec![at];
                    let mut state = state;
                    while let Some(&before) = from.get(&state) {
                        way.push(before.0);
                        state = before;
                    }
                    way.reverse();
                    return Some(self.described(&way));
                }
                if to > head && to <= end && best.get(&there).is_none_or(|&known| cost + 1 < known)
                {
                    best.insert(there, cost + 1);
                    from.insert(there, state);
                    next.push(Reverse((cost + 1, there)));
                }
            }
        }
        None
    }

    fn described(&self, way: &[usize]) -> Round {
        let text: Vec<String> = way.iter().map(|&at| self.instructions[at].to_owned()).collect();
        Round { instructions: way.len(), batch: batch(&text), text }
    }

    /// Where it may go on.
    fn successors(&self, at: usize) -> Vec<usize> {
        let text = self.instructions[at];
        let name = opcode(text);
        let guarded = text.starts_with('@');
        let mut all = Vec::new();
        let ends =
            ["BRA", "EXIT", "RET", "BREAK"].iter().any(|o| name.split('.').next() == Some(o));
        // What gives way (`BRA.DIV`) is taken where lanes have parted only.
        let parted = name.starts_with("BRA.DIV") || name.starts_with("BRA.CONV");
        if name.starts_with("BSYNC") {
            // Lanes meet where the barrier's set-up says.
            let barrier = text.rsplit(' ').next().unwrap_or_default();
            let set_up = self.instructions[..at].iter().rev().find(|text| {
                opcode(text).starts_with("BSSY") && text.contains(&format!(" {barrier},"))
            });
            all.extend(set_up.and_then(|text| self.target(text)));
            return all;
        }
        if name.starts_with("BRA") && !parted {
            all.extend(self.target(text));
            // `BRA P0, ...` and `@P0 BRA ...` go on, too.
            let operands = text.split_once("BRA").map_or("", |(_, rest)| rest);
            if guarded || operands.trim_start_matches(|c: char| c != ' ').trim().contains(',') {
                all.push(at + 1);
            }
        } else if guarded || parted || !ends {
            all.push(at + 1);
        }
        all.retain(|to| *to < self.instructions.len());
        all
    }

    fn target(&self, text: &str) -> Option<usize> {
        let (_, rest) = text.split_once("`(")?;
        self.labels.get(rest.split(')').next()?).copied()
    }
}

impl Does {
    /// What is done once this instruction is, of what has to be.
    fn and(mut self, text: &str, wanted: Does) -> Does {
        let name = opcode(text);
        let wide = name.contains(".128");
        if name.starts_with("LDG") {
            if wide {
                self.loads = wanted.loads.min(self.loads + 1);
            } else if name.contains(".64") {
                self.halves = wanted.halves.min(self.halves + 1);
            }
        } else if name.starts_with("STG") && wide {
            self.stores = wanted.stores.min(self.stores + 1);
        } else if ARITHMETIC.iter().any(|of_elements| name.starts_with(of_elements)) {
            self.adds = wanted.adds.min(self.adds + 1);
        } else if name.starts_with("VOTE") {
            self.votes = wanted.votes.min(self.votes + 1);
        }
        self
    }
}

/// `LDG.E.128` of `@!P0 LDG.E.128 R4, desc[UR6][R2.64]`.
fn opcode(text: &str) -> &str {
    text.split_whitespace().find(|word| !word.starts_with('@')).unwrap_or_default()
}

/// Loads before the first instruction that uses what one has loaded.
fn batch(round: &[String]) -> usize {
    let mut loaded: Vec<u32> = Vec::new();
    let mut loads = 0;
    for text in round {
        let name = opcode(text);
        let operands = text.split_once(name).map_or("", |(_, rest)| rest);
        let registers = registers(operands);
        let store = name.starts_with("ST");
        // The first operand is where the result goes, but of a store.
        let read = if store { &registers[..] } else { registers.get(1..).unwrap_or_default() };
        if read.iter().any(|r| loaded.contains(r)) {
            break;
        }
        if name.starts_with("LDG")
            && let Some(&to) = registers.first()
        {
            loads += 1;
            loaded.extend(to..to + if name.contains(".128") { 4 } else { 2 });
        }
    }
    loads
}

/// `R4, desc[UR6][R2.64+0x10]`: 4, 2.
fn registers(operands: &str) -> Vec<u32> {
    let words = operands.split(|c: char| !c.is_ascii_alphanumeric());
    words.filter_map(|word| word.strip_prefix('R')?.parse().ok()).collect()
}

/// Small machine code: a round that must be found, among others.
pub(crate) fn self_test() -> Result<(), String> {
    const SASS: &str = "
\t.section\t.text.k,\"ax\",@progbits
.L_x_0:
        /*0010*/                   LDG.E.64 R2, desc[UR6][R10.64] ;
        /*0020*/                   BSSY B0, `(.L_x_3) ;
.L_x_1:
        /*0030*/                   LDG.E.128.STRONG.SYS R4, desc[UR6][R12.64] ;
        /*0040*/                   ISETP.NE.AND P0, PT, R5, R9, PT ;
        /*0050*/              @!P0 BRA `(.L_x_2) ;
        /*0060*/                   IADD3 R20, R20, 0x1, RZ ;
        /*0070*/                   BRA `(.L_x_1) ;
.L_x_2:
        /*0080*/                   BSYNC B0 ;
.L_x_3:
        /*0090*/                   FADD R2, R2, R4 ;
        /*00a0*/                   STG.E.128.STRONG.SYS desc[UR6][R14.64], R4 ;
        /*00b0*/               @P1 BRA `(.L_x_0) ;
        /*00c0*/                   EXIT ;
";
    let code = Code::new(SASS, "k");
    let does = Does { loads: 1, halves: 1, stores: 1, adds: 1, votes: 0 };
    let round = code.round(does).ok_or("no round")?;
    if (round.instructions, round.batch) != (9, 2) {
        return Err(format!("{round:?}"));
    }
    if code.round(Does { stores: 2, ..does }).is_some_and(|r| r.instructions < 18) {
        return Err("a round of two stores is two rounds".into());
    }
    if Code::new(SASS, "other").round(does).is_some() {
        return Err("of another kernel".into());
    }
    Ok(())
}
