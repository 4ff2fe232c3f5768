//! Lanes, warps and blocks: divergence, barriers, votes, shuffles.

use ferroccl_ptx::emu::{FaultKind, Machine, Options, Unit};

use crate::support::{Buffer, checked, run, run_with};

/// Where this lane's word of the buffer is: `%a`.
const MINE: &str = "mul.wide.u32 %a, %tid, 8; add.s64 %a, %p, %a;\n";

fn lanes(body: &str, threads: u32) -> Vec<u64> {
    let machine = Machine::new();
    let buffer = Buffer::zeros(&machine, threads as usize);
    run(&format!("{MINE}{body}"), 1, threads, &buffer, &machine).unwrap_or_else(|e| panic!("{e}"));
    buffer.words()
}

#[test]
fn lanes_part_and_meet_again() {
    // Collatz: each lane leaves the loop in its own round.
    let words = lanes(
        "add.u32 %r1, %tid, 1; mov.u32 %r2, 0;\n\
         LOOP: setp.eq.u32 %q1, %r1, 1; @%q1 bra DONE;\n\
         and.b32 %r3, %r1, 1; setp.eq.u32 %q2, %r3, 0; @%q2 bra EVEN;\n\
         mad.lo.u32 %r1, %r1, 3, 1; bra NEXT;\n\
         EVEN: shr.u32 %r1, %r1, 1;\n\
         NEXT: add.u32 %r2, %r2, 1; bra LOOP;\n\
         DONE: activemask.b32 %r4; cvt.u64.u32 %b, %r2; st.global.u64 [%a], %b;",
        70,
    );
    let collatz = |mut n: u64| {
        let mut steps = 0;
        while n != 1 {
            n = if n.is_multiple_of(2) { n / 2 } else { 3 * n + 1 };
            steps += 1;
        }
        steps
    };
    assert_eq!(words, (1..=70).map(collatz).collect::<Vec<u64>>());
}

#[test]
fn lanes_of_a_warp_may_wait_for_each_other() {
    // Each lane in turn, in the opposite order of what runs first: a lock within a warp.
    let machine = Machine::new();
    let buffer = Buffer::zeros(&machine, 2);
    run(
        "mov.u32 %r1, 31; sub.u32 %r1, %r1, %tid; cvt.u64.u32 %b, %r1;\n\
         WAIT: ld.relaxed.gpu.global.u64 %c, [%p]; setp.ne.u64 %q1, %c, %b; @%q1 bra WAIT;\n\
         ld.relaxed.gpu.global.u64 %d, [%p+8]; add.u64 %d, %d, %b; st.relaxed.gpu.global.u64 [%p+8], %d;\n\
         add.u64 %c, %c, 1; st.relaxed.gpu.global.u64 [%p], %c;",
        1,
        32,
        &buffer,
        &machine,
    )
    .unwrap();
    assert_eq!(buffer.words(), [32, 31 * 32 / 2]);
}

#[test]
fn votes_shuffles_matches_and_reductions() {
    let ballot = lanes(
        "setp.lt.u32 %q1, %tid, 5; vote.sync.ballot.b32 %r1, %q1, -1; cvt.u64.u32 %b, %r1; st.global.u64 [%a], %b;",
        32,
    );
    assert_eq!(ballot, [0x1f; 32]);
    let all = lanes(
        "setp.lt.u32 %q1, %tid, 31; vote.sync.all.pred %q2, %q1, -1; vote.sync.any.pred %q3, %q1, -1;\n\
         vote.sync.uni.pred %q4, !%q1, -1; selp.u32 %r1, 1, 0, %q2; selp.u32 %r2, 2, 0, %q3; selp.u32 %r3, 4, 0, %q4;\n\
         or.b32 %r1, %r1, %r2; or.b32 %r1, %r1, %r3; cvt.u64.u32 %b, %r1; st.global.u64 [%a], %b;",
        32,
    );
    assert_eq!(all, [2; 32]);
    let butterfly = lanes(
        "mov.u32 %r1, %tid;\n\
         shfl.sync.bfly.b32 %r2, %r1, 16, 0x1f, -1; add.u32 %r1, %r1, %r2;\n\
         shfl.sync.bfly.b32 %r2, %r1, 8, 0x1f, -1; add.u32 %r1, %r1, %r2;\n\
         shfl.sync.bfly.b32 %r2, %r1, 4, 0x1f, -1; add.u32 %r1, %r1, %r2;\n\
         shfl.sync.bfly.b32 %r2, %r1, 2, 0x1f, -1; add.u32 %r1, %r1, %r2;\n\
         shfl.sync.bfly.b32 %r2, %r1, 1, 0x1f, -1; add.u32 %r1, %r1, %r2;\n\
         cvt.u64.u32 %b, %r1; st.global.u64 [%a], %b;",
        32,
    );
    assert_eq!(butterfly, [496; 32]);
    // Up by 1 in segments of 8 lanes: the first of each keeps its own, and its predicate is false.
    let up = lanes(
        "shfl.sync.up.b32 %r1|%q1, %tid, 1, 0x1800, -1; selp.u32 %r2, 100, 0, %q1; add.u32 %r1, %r1, %r2;\n\
         cvt.u64.u32 %b, %r1; st.global.u64 [%a], %b;",
        32,
    );
    let expected: Vec<u64> = (0..32).map(|l| if l % 8 == 0 { l } else { l - 1 + 100 }).collect();
    assert_eq!(up, expected);
    let down = lanes(
        "shfl.sync.down.b32 %r1|%q1, %tid, 30, 0x1f, -1; selp.u32 %r2, 100, 0, %q1; add.u32 %r1, %r1, %r2;\n\
         cvt.u64.u32 %b, %r1; st.global.u64 [%a], %b;",
        32,
    );
    assert_eq!((down[0], down[1], down[2], down[31]), (130, 131, 2, 31));
    let index = lanes(
        "shfl.sync.idx.b32 %r1, %tid, 5, 0x181f, -1; cvt.u64.u32 %b, %r1; st.global.u64 [%a], %b;",
        32,
    );
    let expected: Vec<u64> = (0..32).map(|l| l / 8 * 8 + 5).collect();
    assert_eq!(index, expected);
    let matched = lanes(
        "and.b32 %r1, %tid, 3; match.any.sync.b32 %r2, %r1, -1; cvt.u64.u32 %b, %r2; st.global.u64 [%a], %b;",
        32,
    );
    assert_eq!((matched[0], matched[5]), (0x1111_1111, 0x2222_2222));
    let reduced = lanes(
        "redux.sync.max.u32 %r1, %tid, -1; redux.sync.add.u32 %r2, %tid, -1; add.u32 %r1, %r1, %r2;\n\
         elect.sync _|%q1, -1; selp.u32 %r3, 1000, 0, %q1; add.u32 %r1, %r1, %r3;\n\
         cvt.u64.u32 %b, %r1; st.global.u64 [%a], %b;",
        32,
    );
    assert_eq!((reduced[0], reduced[1]), (1527, 527));
}

#[test]
fn groups_of_a_warp_run_a_vote_each() {
    // Odd and even lanes, with masks of their own, at one instruction.
    let words = lanes(
        "and.b32 %r1, %tid, 1; setp.eq.u32 %q1, %r1, 0; selp.b32 %r2, 0x55555555, 0xaaaaaaaa, %q1;\n\
         vote.sync.ballot.b32 %r3, %q1, %r2; cvt.u64.u32 %b, %r3; st.global.u64 [%a], %b;",
        32,
    );
    assert_eq!((words[0], words[1]), (0x5555_5555, 0));
}

const SUM: &str = ".shared .align 8 .b64 sums[64];\n\
     mul.wide.u32 %b, %tid, 8; mov.u64 %c, sums; add.s64 %c, %c, %b;\n\
     cvt.u64.u32 %d, %tid; st.shared.u64 [%c], %d;\n\
     BARRIER\n\
     setp.ne.u32 %q1, %tid, 0; @%q1 bra DONE;\n\
     mov.u64 %rd1, 0; mov.u64 %rd2, 0; mov.u64 %c, sums;\n\
     LOOP: ld.shared.u64 %rd3, [%c]; add.u64 %rd1, %rd1, %rd3; add.u64 %c, %c, 8; add.u64 %rd2, %rd2, 1;\n\
     setp.lt.u64 %q2, %rd2, 64; @%q2 bra LOOP;\n\
     st.global.u64 [%p], %rd1;\n\
     DONE:";

#[test]
fn a_barrier_orders_shared_memory_and_without_it_there_is_a_race() {
    for seed in 0..20 {
        let machine = Machine::new();
        let buffer = Buffer::zeros(&machine, 1);
        let with = SUM.replace("BARRIER", "bar.sync 0;");
        run_with(&with, 1, 64, &buffer, &machine, checked(seed, true, Unit::Eight))
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(buffer.words(), [64 * 63 / 2], "seed {seed}");
        let without = SUM.replace("BARRIER", "");
        let fault = run_with(&without, 1, 64, &buffer, &machine, checked(seed, true, Unit::Eight))
            .unwrap_err();
        assert!(
            matches!(fault.kind, FaultKind::Race { .. } | FaultKind::Uninitialised { .. }),
            "seed {seed}: {fault}"
        );
    }
}

#[test]
fn barriers_with_numbers_counts_and_reductions() {
    // Warps 0 and 1 hand over to warps 2 and 3 through barrier 3: producers arrive, consumers wait.
    let body = format!(
        "{MINE}setp.ge.u32 %q1, %tid, 64; @%q1 bra TAKE;\n\
         cvt.u64.u32 %b, %tid; st.global.u64 [%a], %b; membar.gl; bar.arrive 3, 128; bra DONE;\n\
         TAKE: bar.sync 3, 128; ld.global.u64 %b, [%a+-512]; add.u64 %b, %b, 1000; st.global.u64 [%a], %b;\n\
         DONE: setp.eq.u32 %q2, %tid, 7; bar.red.or.pred %q3, 0, %q2; bar.red.popc.u32 %r1, 0, %q2;\n\
         bar.red.and.pred %q4, 1, 128, %q2; selp.u32 %r2, 10, 0, %q3; add.u32 %r1, %r1, %r2;\n\
         @%q4 add.u32 %r1, %r1, 100; setp.ne.u32 %q5, %tid, 0; cvt.u64.u32 %c, %r1;\n\
         @!%q5 st.global.u64 [%p+1024], %c;"
    );
    for seed in 0..20 {
        let machine = Machine::new();
        let buffer = Buffer::zeros(&machine, 129);
        run_with(&body, 1, 128, &buffer, &machine, checked(seed, true, Unit::Eight))
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let words = buffer.words();
        assert!(
            (0..64).all(|i| words[i] == i as u64 && words[64 + i] == 1000 + i as u64),
            "{words:?}"
        );
        assert_eq!(words[128], 11, "seed {seed}");
    }
}

#[test]
fn exited_lanes_are_not_waited_for() {
    let words = lanes(
        "setp.ge.u32 %q1, %tid, 50; @%q1 exit; bar.sync 0; setp.ge.u32 %q1, %tid, 32; @%q1 exit; bar.sync 0;\n\
         mov.u64 %b, 7; st.global.u64 [%a], %b;",
        96,
    );
    assert_eq!(words.iter().filter(|&&w| w == 7).count(), 32);
}

#[test]
fn blocks_know_where_they_are() {
    let machine = Machine::new();
    let buffer = Buffer::zeros(&machine, 12);
    let body = "mov.u32 %r1, %ntid.x; mov.u32 %r2, %nctaid.x; mad.lo.u32 %r3, %cta, %r1, %tid;\n\
         mul.wide.u32 %a, %r3, 8; add.s64 %a, %p, %a; mad.lo.u32 %r4, %r2, 100, %r3; cvt.u64.u32 %b, %r4;\n\
         st.global.u64 [%a], %b;";
    run(body, 4, 3, &buffer, &machine).unwrap();
    assert_eq!(buffer.words(), (400..412).collect::<Vec<u64>>());
}

#[test]
fn a_schedule_replays_from_its_seed() {
    let trace = |seed| {
        let machine = Machine::new();
        let buffer = Buffer::zeros(&machine, 64);
        let program = crate::support::kernel(&SUM.replace("BARRIER", "bar.sync 0;"));
        let parameters = buffer.address().to_le_bytes().to_vec();
        let grid =
            machine.launch(ferroccl_ptx::emu::Launch::new(&program, 1, 64, parameters)).unwrap();
        let mut schedule = ferroccl_ptx::emu::Lockstep::new(Options::seeded(seed));
        schedule.start(&grid);
        schedule.run().unwrap();
        (schedule.trace(), schedule.steps())
    };
    assert_eq!(trace(1), trace(1));
    assert_ne!(trace(1), trace(2));
}
