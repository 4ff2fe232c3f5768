//! Bugs that a compiler, or an author, could make in a kernel's PTX, put into the kernels of this build: each must be
//! caught by a handful of seeds, and the kernel as it is must pass the same seeds. A test that cannot fail
//! proves nothing.

use std::sync::Arc;

use ferroccl::runtime::ptx::{DEFAULT_ARCH, FaultKind, Options, PtxRuntime, Unit, checks, source};
use ferroccl::{Algorithm, CommConfig, Communicator, Device, Error, ProtocolId, ReduceOp, ptx};

use crate::random::Random;

/// Three times as many as the bug that hides best needs.
const SEEDS: u64 = 720;

/// How a run went wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wrong {
    /// The checker says so.
    Fault(&'static str),
    /// A result is wrong.
    Result,
    /// The library says so.
    Error(String),
}

/// Two calls in a row on a small group.
fn run(protocol: ProtocolId, text: &str, unit: Unit, seed: u64) -> Result<(), Wrong> {
    let random = &mut Random(seed);
    let options =
        Options { checks: Some(checks(unit)), most_steps: 20_000_000, ..Options::seeded(seed) };
    let runtime = PtxRuntime::lockstep(options).with_threads(64).unwrap();
    let runtime = runtime.with_source(&kernel(protocol), text).unwrap();
    let device = Device::new(Arc::new(runtime));
    let mut config = CommConfig::default();
    config.protocol = Some(protocol);
    config.algorithm = Some(Algorithm::Ring);
    config.slots = Some(2);
    config.buffer_bytes = [Some(4096); 3];
    config.channels = Some(1);
    let nranks = 2 + random.below(3);
    let ranks = Communicator::init_all_with(&device, nranks as u32, &config).unwrap();
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    for _ in 0..2 {
        let count = 100 + random.below(1500);
        let inputs: Vec<Vec<f32>> =
            (0..nranks).map(|_| (0..count).map(|_| random.below(1000) as f32).collect()).collect();
        let buffers: Vec<_> = inputs.iter().map(|input| device.upload(input).unwrap()).collect();
        for r in 0..nranks {
            let (buffer, stream) = (&buffers[r], &streams[r]);
            ranks[r].all_reduce(buffer, buffer, ReduceOp::Sum, stream).map_err(wrong)?;
        }
        for r in 0..nranks {
            let got = buffers[r].to_vec(&streams[r]).map_err(wrong)?;
            let want = |i: usize| inputs.iter().map(|input| input[i]).sum::<f32>();
            if (0..count).any(|i| got[i] != want(i)) {
                return Err(Wrong::Result);
            }
        }
    }
    Ok(())
}

fn wrong(error: Error) -> Wrong {
    match error {
        Error::Emulator(fault) => Wrong::Fault(match fault.kind {
            FaultKind::Race { .. } => "race",
            FaultKind::Divergence(_) => "divergence",
            FaultKind::Barrier(_) => "barrier",
            FaultKind::Deadlock => "deadlock",
            FaultKind::OutOfBounds { .. } => "out of bounds",
            FaultKind::Steps(_) => "steps",
            _ => "another",
        }),
        other => Wrong::Error(other.to_string()),
    }
}

fn kernel(protocol: ProtocolId) -> String {
    format!("all_reduce_ring_{}_sum_float", protocol.name().to_lowercase())
}

/// What makes a kernel wrong.
type Change = fn(&str) -> String;

fn unit(protocol: ProtocolId) -> Unit {
    if protocol == ProtocolId::Ll128 { Unit::Line } else { Unit::Eight }
}

/// Whether there is something to change.
fn original(protocol: ProtocolId) -> Option<String> {
    if let Some(why) = ptx::unavailable() {
        crate::skip::skip(why);
        return None;
    }
    Some(source(&kernel(protocol), DEFAULT_ARCH).unwrap())
}

fn is_caught(protocol: ProtocolId, bug: &str, change: Change) {
    let Some(text) = original(protocol) else { return };
    let changed = change(&text);
    assert_ne!(changed, text, "{protocol}: {bug}: nothing to change");
    let caught = (0..SEEDS)
        .find_map(|seed| run(protocol, &changed, unit(protocol), seed).err().map(|w| (seed, w)));
    println!("{protocol}: {bug}: {caught:?}");
    assert!(caught.is_some(), "{protocol}: {bug}: no seed below {SEEDS} catches it");
}

/// The text with `f` done to the `n`th instruction that begins with `what`: it is given the instruction.
pub(crate) fn nth(text: &str, what: &str, n: usize, f: impl Fn(&str) -> String) -> String {
    let begins = format!("\t{what}");
    let (at, _) = text.match_indices(&begins).nth(n).expect("so many of them");
    let (at, end) = (at + 1, at + text[at..].find('\n').expect("a line"));
    format!("{}{}{}", &text[..at], f(&text[at..end]), &text[end..])
}

pub(crate) fn gone(_: &str) -> String {
    String::new()
}

/// A barrier with a reduction becomes a move: each lane has its own truth, and nobody waits.
pub(crate) fn alone(barrier: &str) -> String {
    let words: Vec<&str> = barrier.split([' ', '\t', ',', ';']).filter(|w| !w.is_empty()).collect();
    format!("mov.pred {}, {};", words[1], words[3])
}

/// The `n`th release that comes after barrier number `barrier`, relaxed.
fn relaxed_after(text: &str, barrier: usize, n: usize) -> String {
    let (at, _) = text.match_indices("\tbar.sync").nth(barrier).expect("so many barriers");
    let rest = nth(&text[at..], "st.release", n, |store| store.replace("release", "relaxed"));
    format!("{}{rest}", &text[..at])
}

/// The flags of both halves of an LL line are compared and the truths combined; here the first is enough.
fn half_a_flag(text: &str) -> String {
    let mut last: Vec<&str> = Vec::new();
    let mut changed = String::new();
    for line in text.lines() {
        let words: Vec<&str> =
            line.split([' ', '\t', ',', ';']).filter(|word| !word.is_empty()).collect();
        let compares = |at: usize, p: &str| {
            let words = last.len().checked_sub(at).map(|i| last[i].split([' ', '\t', ',']));
            words
                .is_some_and(|words| words.filter(|w| !w.is_empty()).take(2).eq(["setp.eq.b32", p]))
        };
        let both = words.first() == Some(&"and.pred")
            && compares(1, words[3])
            && compares(3, words[2])
            && last[last.len() - 2].contains("mov.b64");
        if both {
            changed += &format!("\tand.pred {}, {}, {};\n", words[1], words[2], words[2]);
        } else {
            changed += &format!("{line}\n");
        }
        let is_instruction = words.first().is_some_and(|w| !w.starts_with("//") && *w != ".loc");
        if is_instruction {
            last.push(line);
        }
    }
    changed
}

/// Each lane goes by the flag that it has looked at, and asks no other of its warp.
fn without_votes(text: &str) -> String {
    let lines = text.lines().map(|line| match line.trim_start() {
        vote if vote.starts_with("vote.sync") => {
            let words: Vec<&str> =
                vote.split([' ', '\t', ',', ';']).filter(|w| !w.is_empty()).collect();
            format!("\tmov.pred {}, {};\n", words[1], words[2])
        }
        _ => format!("{line}\n"),
    });
    lines.collect()
}

/// Some seeds, and all of those that catch the bugs in the nightly tier.
#[test]
fn kernels_as_they_are_pass() {
    let times = std::env::var("FERROCCL_TEST_SEEDS").map_or(1, |times| times.parse().unwrap());
    for &protocol in ProtocolId::ALL {
        let Some(text) = original(protocol) else { return };
        for seed in 0..SEEDS.min(SEEDS / 15 * times) {
            assert_eq!(
                run(protocol, &text, unit(protocol), seed),
                Ok(()),
                "{protocol}, seed {seed}"
            );
        }
    }
}

#[test]
fn orders_that_are_missing_are_caught() {
    // Lines of LL and LL128 say for themselves what they are of, also to the checker. The order of LL128's credit is shown on the
    // CPU (`tests/cpu/orders.rs`); LL's credit has none.
    let p = ProtocolId::Simple;
    is_caught(p, "releases are relaxed", |t| t.replace("st.release.sys", "st.relaxed.sys"));
    is_caught(p, "acquires are relaxed", |t| t.replace("ld.acquire.sys", "ld.relaxed.sys"));
    is_caught(p, "releases are for this GPU", |t| t.replace("st.release.sys", "st.release.gpu"));
    is_caught(ProtocolId::Simple, "the tail is published by a relaxed store", |t| {
        relaxed_after(t, 0, 0)
    });
    is_caught(ProtocolId::Simple, "the credit is given by a relaxed store", |t| {
        relaxed_after(t, 1, 0)
    });
    is_caught(ProtocolId::Simple, "a tail that is sent on is published by a relaxed store", |t| {
        relaxed_after(t, 1, 1)
    });
}

#[test]
fn weak_lines_are_caught() {
    for protocol in [ProtocolId::Ll, ProtocolId::Ll128] {
        is_caught(protocol, "lines are stored weakly", |t| t.replace("st.volatile", "st"));
        is_caught(protocol, "lines are loaded weakly", |t| t.replace("ld.volatile", "ld"));
    }
}

#[test]
fn barriers_that_are_missing_are_caught() {
    let p = ProtocolId::Simple;
    is_caught(p, "no barrier after a verb that sends", |t| nth(t, "bar.sync", 0, gone));
    is_caught(p, "no barrier after one that sends on", |t| nth(t, "bar.sync", 1, gone));
    is_caught(p, "no barrier after one that keeps", |t| nth(t, "bar.sync", 2, gone));
    is_caught(p, "no barrier after one that copies", |t| nth(t, "bar.sync", 3, gone));
    is_caught(p, "no barrier when a call is opened", |t| nth(t, "bar.red", 0, alone));
    is_caught(p, "no barrier before a verb that sends on", |t| nth(t, "bar.red", 2, alone));
    is_caught(p, "no barrier before one that keeps", |t| nth(t, "bar.red", 3, alone));
    is_caught(p, "no barrier before one that copies", |t| nth(t, "bar.red", 4, alone));
    let p = ProtocolId::Ll;
    is_caught(p, "credit is given before all have read", |t| t.replace("\tbar.sync", "\t//"));
    is_caught(p, "lines are sent on before there is credit", |t| nth(t, "bar.red", 1, alone));
    is_caught(p, "lines are kept before there is credit", |t| nth(t, "bar.red", 2, alone));
    is_caught(p, "lines are copied before there is credit", |t| nth(t, "bar.red", 3, alone));
}

#[test]
fn half_a_flag_is_caught() {
    is_caught(ProtocolId::Ll, "one flag of two is looked at", half_a_flag);
}

#[test]
fn lanes_that_do_not_meet_are_caught() {
    let p = ProtocolId::Ll128;
    is_caught(p, "votes of half a warp", |t| t.replace(", -1;", ", 0x0000ffff;"));
    is_caught(p, "one vote of half a warp", |t| {
        nth(t, "vote.sync", 0, |vote| vote.replace("-1", "0x0000ffff"))
    });
    is_caught(p, "lanes load when their own flag is right", without_votes);
    is_caught(p, "lanes do not meet before they store a line", |t| {
        t.replace("\tbar.warp.sync", "\t//")
    });
}

/// LL128 stands on lines that arrive whole.
#[test]
fn lines_in_pieces_are_caught() {
    let Some(text) = original(ProtocolId::Ll128) else { return };
    let caught = (0..SEEDS).find_map(|seed| run(ProtocolId::Ll128, &text, Unit::Eight, seed).err());
    println!("{caught:?}");
    assert!(caught.is_some());
}
