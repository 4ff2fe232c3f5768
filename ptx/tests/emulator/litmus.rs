//! Litmus tests: small programs of which the memory model says what may come out.
//!
//! The names and what is allowed follow PTX ISA 9.0, chapter 8, and Lustig et al., "A Formal Analysis of the NVIDIA PTX
//! Memory Consistency Model", ASPLOS 2019. Each is run with many seeds: what is forbidden must never come out,
//! what is allowed must come out at least once, or the memory is not as unhelpful as it may be.

use std::collections::BTreeSet;

use ferroccl_ptx::emu::{FaultKind, Machine, Unit};

use crate::support::{Buffer, checked, run_with};

const SEEDS: u64 = 300;

/// Runs a program of one lane a block; returns all that came out in the words from 8 on.
/// `x` is at `[%p]`, `y` at `[%p+128]`; a block's results go to `[%c]` and `[%c+8]`.
fn outcomes(
    blocks: &[&str],
    races: bool,
    unit: Unit,
) -> Result<BTreeSet<Vec<u64>>, (u64, FaultKind)> {
    let mut body =
        String::from("mul.wide.u32 %c, %cta, 16; add.s64 %c, %p, %c; add.s64 %c, %c, 256;\n");
    for (i, block) in blocks.iter().enumerate() {
        let next = i + 1;
        body +=
            &format!("setp.ne.u32 %q1, %cta, {i}; @%q1 bra B{next};\n{block}\nret;\nB{next}:\n");
    }
    let mut seen = BTreeSet::new();
    for seed in 0..SEEDS {
        let machine = Machine::new();
        let buffer = Buffer::zeros(&machine, 32 + 2 * blocks.len());
        let result =
            run_with(&body, blocks.len() as u32, 1, &buffer, &machine, checked(seed, races, unit));
        result.map_err(|fault| (seed, fault.kind))?;
        seen.insert(buffer.words()[32..].to_vec());
    }
    Ok(seen)
}

fn allowed(blocks: &[&str], outcome: &[u64]) {
    let seen = outcomes(blocks, false, Unit::Eight).unwrap();
    assert!(seen.contains(outcome), "{outcome:?} may come out and never did: {seen:?}");
}

fn forbidden(blocks: &[&str], outcome: &[u64]) {
    let seen = outcomes(blocks, false, Unit::Eight).unwrap();
    assert!(!seen.contains(outcome), "{outcome:?} must not come out: {seen:?}");
    assert!(seen.len() > 1, "always the same comes out: {seen:?}");
}

const STORE_DATA: &str = "mov.u64 %a, 1; st.global.u64 [%p], %a;";
const LOADS: &str = "ld.relaxed.gpu.global.u64 %a, [%p+128]; ld.global.u64 %b, [%p]; st.global.u64 [%c], %a; st.global.u64 [%c+8], %b;";

#[test]
fn message_passing() {
    let relaxed = format!("{STORE_DATA} st.relaxed.gpu.global.u64 [%p+128], %a;");
    let release = format!("{STORE_DATA} st.release.gpu.global.u64 [%p+128], %a;");
    let fenced = format!("{STORE_DATA} fence.acq_rel.gpu; st.relaxed.gpu.global.u64 [%p+128], %a;");
    let acquire = LOADS.replace("ld.relaxed", "ld.acquire");
    let fence = LOADS.replace("ld.global.u64 %b", "fence.acq_rel.gpu; ld.global.u64 %b");
    // Flag seen, data not: flag 1, data 0.
    let stale = [0, 0, 1, 0];
    allowed(&[&relaxed, LOADS], &stale);
    allowed(&[&relaxed, &acquire], &stale);
    allowed(&[&release, LOADS], &stale);
    forbidden(&[&release, &acquire], &stale);
    forbidden(&[&fenced, &fence], &stale);
    forbidden(&[&fenced, &acquire], &stale);
    forbidden(&[&release, &fence], &stale);
}

#[test]
fn message_passing_at_too_small_a_scope() {
    let release = format!("{STORE_DATA} st.release.cta.global.u64 [%p+128], %a;");
    let acquire = LOADS.replace("ld.relaxed.gpu", "ld.acquire.gpu");
    allowed(&[&release, &acquire], &[0, 0, 1, 0]);
    let fault = outcomes(&[&release, &acquire], true, Unit::Eight).unwrap_err();
    assert!(matches!(fault.1, FaultKind::Race { .. }));
}

#[test]
fn message_passing_through_an_atomic() {
    let release = format!("{STORE_DATA} st.release.gpu.global.u64 [%p+128], %a;");
    // A relaxed atomic in between keeps what was released: a chain.
    let chain = "atom.relaxed.gpu.global.add.u64 %a, [%p+128], 1; st.global.u64 [%c], %a;";
    let acquire = LOADS.replace("ld.relaxed", "ld.acquire");
    let seen = outcomes(&[&release, chain, &acquire], false, Unit::Eight).unwrap();
    // Results: of the atomic, then flag and data. The atomic after the store and before the load: flag 2.
    assert!(seen.iter().any(|o| o[4] == 2 && o[5] == 1), "{seen:?}");
    assert!(!seen.iter().any(|o| o[4] == 2 && o[5] == 0), "{seen:?}");
}

#[test]
fn store_buffering() {
    let block = |mine: u32, other: u32, fence: &str| {
        format!(
            "mov.u64 %a, 1; st.relaxed.gpu.global.u64 [%p+{mine}], %a; {fence} ld.relaxed.gpu.global.u64 %b, [%p+{other}];\n\
             st.global.u64 [%c], %b;"
        )
    };
    let both = |fence: &str| [block(0, 128, fence), block(128, 0, fence)];
    let neither = [0, 0, 0, 0];
    for (fence, may) in
        [("", true), ("fence.acq_rel.gpu;", true), ("fence.sc.gpu;", false), ("membar.gl;", false)]
    {
        let [a, b] = both(fence);
        if may { allowed(&[&a, &b], &neither) } else { forbidden(&[&a, &b], &neither) }
    }
}

#[test]
fn load_buffering() {
    // Each loads what the other stores after its own load. A data dependency forbids values out of thin air.
    let block = |from: u32, to: u32, store: &str| {
        format!(
            "ld.relaxed.gpu.global.u64 %a, [%p+{from}]; mov.u64 %b, 1; {store} st.relaxed.gpu.global.u64 [%p+{to}], %b;\n\
             st.global.u64 [%c], %a;"
        )
    };
    let (a, b) = (block(0, 128, ""), block(128, 0, ""));
    allowed(&[&a, &b], &[1, 0, 1, 0]);
    let fence = "fence.acq_rel.gpu;";
    forbidden(&[&block(0, 128, fence), &block(128, 0, fence)], &[1, 0, 1, 0]);
    let copy = "mov.u64 %b, %a;";
    let seen = outcomes(&[&block(0, 128, copy), &block(128, 0, copy)], false, Unit::Eight).unwrap();
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [vec![0, 0, 0, 0]]);
}

#[test]
fn coherence() {
    // Two loads of one place by one lane never go back in time.
    let writer = "mov.u64 %a, 1; st.relaxed.gpu.global.u64 [%p], %a; mov.u64 %a, 2; st.relaxed.gpu.global.u64 [%p], %a;";
    let reader = "ld.relaxed.gpu.global.u64 %a, [%p]; ld.relaxed.gpu.global.u64 %b, [%p]; st.global.u64 [%c], %a; st.global.u64 [%c+8], %b;";
    let seen = outcomes(&[writer, reader], false, Unit::Eight).unwrap();
    assert!(seen.iter().all(|o| o[2] <= o[3]), "{seen:?}");
    assert!(seen.len() >= 4, "{seen:?}");
}

#[test]
fn independent_reads_of_independent_writes() {
    let write = |at: u32| format!("mov.u64 %a, 1; st.relaxed.gpu.global.u64 [%p+{at}], %a;");
    let read = |first: u32, second: u32, fence: &str, order: &str| {
        format!(
            "ld.{order}.gpu.global.u64 %a, [%p+{first}]; {fence} ld.{order}.gpu.global.u64 %b, [%p+{second}];\n\
             st.global.u64 [%c], %a; st.global.u64 [%c+8], %b;"
        )
    };
    let program = |fence: &str, order: &str| {
        [write(0), write(128), read(0, 128, fence, order), read(128, 0, fence, order)]
    };
    let disagree = [0, 0, 0, 0, 1, 0, 1, 0];
    let run = |p: &[String; 4]| {
        let blocks: Vec<&str> = p.iter().map(String::as_str).collect();
        outcomes(&blocks, false, Unit::Eight).unwrap()
    };
    assert!(
        run(&program("", "acquire")).contains(&disagree[..]),
        "readers may disagree without fence.sc"
    );
    assert!(!run(&program("fence.sc.gpu;", "relaxed")).contains(&disagree[..]));
}

#[test]
fn vectors_tear_at_what_arrives_together() {
    // A store of 16 bytes and a load of 16 bytes.
    let writer = "mov.u64 %a, 1; st.volatile.global.v2.u64 [%p], {%a, %a};";
    let reader = "ld.volatile.global.v2.u64 {%a, %b}, [%p]; st.global.u64 [%c], %a; st.global.u64 [%c+8], %b;";
    let torn = |unit| {
        let seen = outcomes(&[writer, reader], false, unit).unwrap();
        seen.iter().any(|o| o[2] != o[3])
    };
    assert!(torn(Unit::Eight));
    assert!(!torn(Unit::Sixteen));
    assert!(!torn(Unit::Line));
}

#[test]
fn a_line_arrives_whole_only_where_that_is_assumed() {
    // 8 lanes of 16 bytes, the flag in the last word: LL128.
    let body = "mul.wide.u32 %a, %tid, 16; add.s64 %a, %p, %a; setp.ne.u32 %q1, %cta, 0; @%q1 bra READ;\n\
         mov.u64 %b, 1; st.volatile.global.v2.u64 [%a], {%b, %b}; ret;\n\
         READ: ld.volatile.global.v2.u64 {%b, %c}, [%a]; setp.eq.u64 %q2, %c, 1; setp.eq.u32 %q3, %tid, 7;\n\
         and.pred %q4, %q2, %q3; vote.sync.any.pred %q5, %q4, 0xff; @!%q5 bra READ;\n\
         st.global.v2.u64 [%a+128], {%b, %c};";
    let torn = |unit| {
        (0..200).any(|seed| {
            let machine = Machine::new();
            let buffer = Buffer::zeros(&machine, 32);
            run_with(body, 2, 8, &buffer, &machine, checked(seed, true, unit)).unwrap();
            buffer.words()[16..].contains(&0)
        })
    };
    assert!(torn(Unit::Eight) && torn(Unit::Sixteen));
    assert!(!torn(Unit::Line));
}
