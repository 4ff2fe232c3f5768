//! What is found out: bad addresses, races, barriers and masks that are wrong, deadlocks.

use ferroccl_ptx::emu::{Fault, FaultKind, Lockstep, Machine, Options, Unit};

use crate::support::{Buffer, checked, kernel, run, run_with};

fn fault(body: &str, blocks: u32, threads: u32) -> Box<Fault> {
    let machine = Machine::new();
    let buffer = Buffer::zeros(&machine, 64);
    run_with(body, blocks, threads, &buffer, &machine, checked(1, true, Unit::Eight))
        .expect_err("a fault")
}

#[test]
fn addresses_are_checked() {
    for (body, what) in [
        ("ld.global.u64 %a, [%p+512];", "out of bounds: 8 bytes at"),
        ("st.global.u8 [%p+512], %tid;", "0 bytes after the end of the test's buffer of 512 bytes"),
        ("ld.global.u64 %a, [%p+-8];", "out of bounds"),
        ("ld.global.u64 %a, [0];", "out of bounds: 8 bytes at 0x0"),
        ("ld.global.u64 %a, [%p+508];", "misaligned"),
        ("ld.global.v2.u64 {%a, %b}, [%p+8];", "is no multiple of 16"),
        (".shared .b64 s[2]; st.shared.u64 [s+16], %p;", "of 16 bytes of shared memory"),
        (".shared .b64 s[2]; ld.shared.u64 %a, [s];", "uninitialised"),
        (".local .b64 l[2]; st.local.u64 [l+16], %p;", "local memory of the lane"),
        ("trap;", "trap: the kernel has given up"),
    ] {
        let text = fault(body, 1, 1).to_string();
        assert!(text.contains(what), "{body}: {text}");
        assert!(text.contains("in k (launch 0) block 0 warp 0 lane 0: `"), "{text}");
    }
    // The lane that is wrong is named.
    let text =
        fault("mul.wide.u32 %a, %tid, 32; add.s64 %a, %p, %a; ld.global.u64 %b, [%a];", 1, 32)
            .to_string();
    assert!(text.contains("warp 0 lane 16: `ld.global.u64"), "{text}");
}

#[test]
fn generic_addresses_find_their_space() {
    let machine = Machine::new();
    let buffer = Buffer::zeros(&machine, 4);
    let body = ".shared .b64 s[2]; .local .b64 l[2];\n\
        mov.u64 %a, s; cvta.shared.u64 %b, %a; st.u64 [%b+8], 5; ld.shared.u64 %c, [s+8]; st.global.u64 [%p], %c;\n\
        mov.u64 %a, l; cvta.local.u64 %b, %a; st.u64 [%b], 6; ld.local.u64 %c, [l]; st.u64 [%p+8], %c;\n\
        isspacep.shared %q1, %b; isspacep.local %q2, %b; isspacep.global %q3, %p;\n\
        selp.u64 %c, 1, 0, %q1; @%q2 add.u64 %c, %c, 2; @%q3 add.u64 %c, %c, 4; st.global.u64 [%p+16], %c;\n\
        cvta.to.local.u64 %a, %b; ld.local.u64 %c, [%a]; st.global.u64 [%p+24], %c;";
    run(body, 1, 1, &buffer, &machine).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(buffer.words(), [5, 6, 6, 6]);
}

/// The parameters of a kernel are within the window of global memory (6.4.1.1).
#[test]
fn parameters_have_addresses() {
    let machine = Machine::new();
    let buffer = Buffer::zeros(&machine, 4);
    let address = "mov.b64 %a, p; cvta.param.u64 %b, %a;";
    let body = format!(
        "{address} ld.global.u64 %c, [%b]; st.global.u64 [%p], %c; ld.u64 %c, [%b]; st.global.u64 [%p+8], %c;\n\
        isspacep.global %q1, %b; selp.u64 %c, 1, 0, %q1; st.global.u64 [%p+16], %c;\n\
        cvta.to.param.u64 %d, %b; sub.s64 %c, %d, %a; st.global.u64 [%p+24], %c;"
    );
    run(&body, 1, 1, &buffer, &machine).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(buffer.words(), [buffer.address(), buffer.address(), 1, 0]);
    let text = fault(&format!("{address} ld.global.u64 %c, [%b+8];"), 1, 1).to_string();
    assert!(text.contains("0 bytes after the end of the kernel's parameters of 8 bytes"), "{text}");
}

#[test]
fn races_between_lanes_warps_and_blocks() {
    let everybody = "st.global.u32 [%p], %tid;";
    for (blocks, threads) in [(1, 2), (1, 64), (2, 1)] {
        let fault = fault(everybody, blocks, threads);
        assert!(matches!(fault.kind, FaultKind::Race { .. }), "{fault}");
        assert_eq!(fault.others.len(), 1, "{fault}");
    }
    // The same by strong stores is no race, unless the scope is too small.
    let machine = Machine::new();
    let buffer = Buffer::zeros(&machine, 64);
    let strong = "st.relaxed.gpu.global.u32 [%p], %tid;";
    run_with(strong, 2, 64, &buffer, &machine, checked(3, true, Unit::Eight)).unwrap();
    let small = "st.relaxed.cta.global.u32 [%p], %tid;";
    assert!(matches!(fault(small, 2, 1).kind, FaultKind::Race { .. }));
    run_with(small, 1, 64, &buffer, &machine, checked(3, true, Unit::Eight)).unwrap();
    // A weak load and a strong store do race; neighbouring bytes do not.
    let mixed = "setp.eq.u32 %q1, %cta, 0; @%q1 st.relaxed.gpu.global.u32 [%p], %tid; @!%q1 ld.global.u32 %r1, [%p];";
    assert!(matches!(fault(mixed, 2, 1).kind, FaultKind::Race { .. }));
    let bytes = "cvt.u64.u32 %a, %tid; add.s64 %a, %p, %a; st.global.u8 [%a], %tid; ld.global.u8 %r1, [%a];";
    run_with(bytes, 1, 64, &buffer, &machine, checked(3, true, Unit::Eight)).unwrap();
    // A vote is no barrier of memory, bar.warp.sync is (9.7.13.2).
    let neighbour = "mul.wide.u32 %a, %tid, 8; add.s64 %a, %p, %a; cvt.u64.u32 %b, %tid; st.global.u64 [%a], %b;\n\
        SYNC\n xor.b32 %r1, %tid, 1; mul.wide.u32 %a, %r1, 8; add.s64 %a, %p, %a; ld.global.u64 %b, [%a];";
    let vote =
        neighbour.replace("SYNC", "setp.eq.u32 %q1, %tid, 0; vote.sync.all.pred %q2, %q1, -1;");
    assert!(matches!(fault(&vote, 1, 32).kind, FaultKind::Race { .. }));
    let warp = neighbour.replace("SYNC", "bar.warp.sync -1;");
    run_with(&warp, 1, 32, &buffer, &machine, checked(3, true, Unit::Eight)).unwrap();
}

#[test]
fn one_launch_after_another_is_no_race() {
    let machine = Machine::new();
    let buffer = Buffer::zeros(&machine, 64);
    let program = kernel(
        "mul.wide.u32 %a, %tid, 8; add.s64 %a, %p, %a; ld.global.u64 %b, [%a]; add.u64 %b, %b, 1; st.global.u64 [%a], %b;",
    );
    let mut schedule = Lockstep::new(Options::seeded(5));
    for _ in 0..10 {
        let launch = ferroccl_ptx::emu::Launch::new(
            &program,
            1,
            64,
            buffer.address().to_le_bytes().to_vec(),
        );
        schedule.start(&machine.launch(launch).unwrap());
        schedule.run().unwrap();
    }
    assert_eq!(buffer.words(), [10; 64]);
}

#[test]
fn barriers_are_checked() {
    for (body, threads, what) in [
        ("bar.sync 16;", 32, "there is no barrier 16"),
        ("bar.sync 1, 33;", 32, "a barrier is for whole warps of 32"),
        ("bar.sync %tid;", 32, "its number is not the same in all lanes"),
        (
            "setp.lt.u32 %q1, %tid, 32; @%q1 bra A; bar.sync 1, 64; ret; A: bar.sync 1, 96;",
            96,
            "is for",
        ),
        (
            "setp.lt.u32 %q1, %tid, 32; @%q1 bra A; bar.sync 1, 64; ret; A: bar.red.or.pred %q2, 1, 64, %q1;",
            64,
            "where others wait",
        ),
        (
            "setp.lt.u32 %q1, %tid, 5; @%q1 bra A; bar.sync 0; ret; A: bar.sync 1;",
            32,
            "wait at different instructions",
        ),
        (
            "setp.lt.u32 %q1, %tid, 5; @%q1 bar.sync 0; @!%q1 bar.sync 0;",
            32,
            "wait at different instructions",
        ),
    ] {
        let text = fault(body, 1, threads).to_string();
        assert!(text.contains(what), "{body}: {text}");
    }
}

#[test]
fn masks_are_checked() {
    for (body, what) in [
        (
            "setp.eq.u32 %q1, %tid, 0; vote.sync.all.pred %q2, %q1, 0x0000ffff;",
            "does not name the lanes that run",
        ),
        ("setp.lt.u32 %q1, %tid, 16; @%q1 exit; bar.warp.sync -1;", "names lanes that have exited"),
        (
            "setp.lt.u32 %q1, %tid, 16; @%q1 bra A; bar.warp.sync -1; ret; A: vote.sync.all.pred %q2, %q1, -1;",
            "wait at different instructions",
        ),
        (
            "setp.lt.u32 %q1, %tid, 16; @!%q1 ret; shfl.sync.idx.b32 %r1, %tid, 20, 0x1f, 0xffff;",
            "a shuffle from lane 20",
        ),
    ] {
        let fault = fault(body, 1, 32);
        assert!(matches!(&fault.kind, FaultKind::Divergence(_)), "{body}: {fault}");
        assert!(fault.to_string().contains(what), "{body}: {fault}");
    }
}

#[test]
fn deadlocks_say_where_everybody_is() {
    // Two blocks, each of which waits for the other to begin.
    let each = "mul.wide.u32 %a, %cta, 128; add.s64 %a, %p, %a; xor.b32 %r1, %cta, 1; mul.wide.u32 %b, %r1, 128; add.s64 %b, %p, %b;\n\
        WAIT: ld.acquire.gpu.global.u64 %c, [%a]; setp.eq.u64 %q1, %c, 0; @%q1 bra WAIT; st.release.gpu.global.u64 [%b], 1;";
    let fault1 = fault(each, 2, 1);
    assert_eq!(fault1.kind, FaultKind::Deadlock, "{fault1}");
    assert_eq!(fault1.others.len(), 1, "{fault1}");
    // A barrier that a warp never comes to, as it spins.
    let spin = "setp.lt.u32 %q1, %tid, 32; @%q1 bra WAIT; bar.sync 0; ret;\n\
        WAIT: ld.relaxed.cta.global.u64 %c, [%p]; setp.eq.u64 %q1, %c, 0; @%q1 bra WAIT; bar.sync 0;";
    let fault2 = fault(spin, 1, 64);
    assert_eq!(fault2.kind, FaultKind::Deadlock, "{fault2}");
    assert!(fault2.to_string().contains("`bar.sync 0;`"), "{fault2}");
    // A barrier for more than there are.
    let fault3 = fault("bar.sync 1, 64;", 1, 32);
    assert_eq!(fault3.kind, FaultKind::Deadlock, "{fault3}");
    // A long computation is none.
    let machine = Machine::new();
    let buffer = Buffer::zeros(&machine, 4);
    let long = "mov.u32 %r1, 0; ld.global.u64 %a, [%p]; LOOP: add.u32 %r1, %r1, 1; setp.lt.u32 %q1, %r1, 100000; @%q1 bra LOOP; st.global.u32 [%p], %r1;";
    run_with(
        long,
        1,
        1,
        &buffer,
        &machine,
        Options { most_steps: 0, ..checked(1, true, Unit::Eight) },
    )
    .unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_run_without_end_is_given_up() {
    let machine = Machine::new();
    let buffer = Buffer::zeros(&machine, 4);
    let options = Options { most_steps: 1000, ..Options::plain() };
    let fault = run_with("L: bra L;", 1, 1, &buffer, &machine, options).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Steps(1024).clone(), "{fault}");
}

#[test]
fn memory_that_nobody_has_written_is_known() {
    let machine = Machine::new();
    let buffer = Buffer::zeros(&machine, 4);
    let program =
        kernel("st.global.u32 [%p], 1; ld.global.u32 %r1, [%p]; ld.global.u32 %r2, [%p+4];");
    let grid = machine
        .launch(ferroccl_ptx::emu::Launch::new(
            &program,
            1,
            1,
            buffer.address().to_le_bytes().to_vec(),
        ))
        .unwrap();
    let mut schedule = Lockstep::new(Options::seeded(1));
    schedule.uninitialised(buffer.address(), 8);
    schedule.start(&grid);
    let fault = schedule.run().unwrap_err();
    assert_eq!(fault.kind, FaultKind::Uninitialised { address: buffer.address() + 4 }, "{fault}");
}

#[test]
fn a_slot_that_is_written_again_too_early_is_a_race() {
    // The reader always comes first; only that its load happens before the store is what the credit must say.
    let credit = |give: &str, take: &str| {
        format!(
            "setp.ne.u32 %q1, %cta, 0; @%q1 bra WRITE;\n\
             ld.global.u64 %a, [%p]; {give}.global.u64 [%p+128], 1; st.global.u64 [%p+256], %a; ret;\n\
             WRITE: {take}.global.u64 %b, [%p+128]; setp.eq.u64 %q2, %b, 0; @%q2 bra WRITE; st.global.u64 [%p], 5;"
        )
    };
    for (give, take, right) in [
        ("st.release.gpu", "ld.acquire.gpu", true),
        ("st.relaxed.gpu", "ld.acquire.gpu", false),
        ("st.release.gpu", "ld.relaxed.gpu", false),
    ] {
        for seed in 0..10 {
            let machine = Machine::new();
            let buffer = Buffer::zeros(&machine, 33);
            let body = credit(give, take);
            let result = run_with(&body, 2, 1, &buffer, &machine, checked(seed, true, Unit::Eight));
            match result {
                Ok(_) => assert!(right, "{give} {take}: seed {seed}"),
                Err(fault) => assert!(
                    !right && matches!(fault.kind, FaultKind::Race { .. }),
                    "{give} {take}: {fault}"
                ),
            }
            assert!(!right || buffer.words()[32] == 0);
        }
    }
}
