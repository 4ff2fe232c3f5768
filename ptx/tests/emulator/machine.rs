//! Launches, atomics, counts, threads.

use ferroccl_ptx::emu::{Launch, LaunchError, Machine, Program, Unit, run_on_threads};

use crate::support::{Buffer, checked, kernel, run, run_with, source};

#[test]
fn launches_are_checked() {
    let machine = Machine::new();
    let program = kernel("");
    let launch = |blocks, threads, bytes| {
        machine.launch(Launch::new(&program, blocks, threads, vec![0; bytes]))
    };
    assert!(matches!(launch(1, 0, 8), Err(LaunchError::Threads { .. })));
    assert!(matches!(launch(1, 1025, 8), Err(LaunchError::Threads { .. })));
    assert!(matches!(launch(0, 1, 8), Err(LaunchError::Blocks { .. })));
    assert!(matches!(launch(1, 1, 7), Err(LaunchError::Parameters { .. })));
    assert!(launch(1, 1, 8).is_ok());
    let limited = source("").replace("(.param .u64 p) {", "(.param .u64 p) .maxntid 64 {");
    let limited = std::sync::Arc::new(Program::load(&limited, "k").unwrap());
    let error = machine.launch(Launch::new(&limited, 1, 96, vec![0; 8])).unwrap_err();
    assert_eq!(error.to_string(), "k: 96 threads in a block; 1 to 64 are possible");
}

#[test]
fn what_is_not_emulated_is_an_error_with_its_line() {
    for (body, what) in [
        ("frobnicate.u32 %r1;", "line 14:1: "),
        ("call f;", "there is no function `f`"),
        ("mov.u32 %r1, %nope;", "`%nope` is not declared"),
        ("bra NOWHERE;", "there is no label `NOWHERE`"),
        ("add.u32 %r1, %r2;", "`add` takes 3 operands, not 2"),
        ("ld.global.v2.u32 %r1, [%p];", "1 elements are named, `.v2` has as many"),
        ("mov.u32 5, %r1;", "expected a register"),
        ("cp.async.bulk.commit_group 1;", "line 14:1: "),
        ("wgmma.fence.sync.aligned;", "line 14:1: "),
    ] {
        let error = Program::load(&source(body), "k").unwrap_err().to_string();
        assert!(error.contains(what), "{body}: {error}");
    }
    assert!(
        Program::load(&source(""), "other").unwrap_err().to_string().contains("no kernel `other`")
    );
}

#[test]
fn atomics_of_many_lanes() {
    let body = "atom.add.global.u64 %a, [%p], 1; red.max.global.u64 [%p+8], %rd1; cvt.u64.u32 %rd1, %tid; red.global.max.u64 [%p+8], %rd1;\n\
        atom.global.inc.u32 %r1, [%p+16], 9; atom.global.exch.b64 %b, [%p+24], 5; atom.global.cas.b64 %b, [%p+32], 0, 77;\n\
        atom.global.add.f32 %f1, [%p+40], 0f3F800000; red.global.or.b32 [%p+48], 0x80; atom.global.dec.u32 %r2, [%p+56], 9;\n\
        atom.global.min.s64 %c, [%p+64], -3;";
    let machine = Machine::new();
    for seed in 0..5 {
        let buffer = Buffer::zeros(&machine, 9);
        run_with(body, 2, 64, &buffer, &machine, checked(seed, true, Unit::Eight))
            .unwrap_or_else(|e| panic!("{e}"));
        let words = buffer.words();
        assert_eq!(words[..5], [128, 63, 128 % 10, 5, 77]);
        assert_eq!(f32::from_bits(words[5] as u32), 128.0);
        assert_eq!(words[6..], [0x80, 2, (-3i64) as u64]);
    }
    let buffer = Buffer::zeros(&machine, 9);
    let grid = machine
        .launch(Launch::new(&kernel(body), 8, 64, buffer.address().to_le_bytes().to_vec()))
        .unwrap();
    run_on_threads(&[grid], 2).unwrap();
    assert_eq!(buffer.words()[0], 512);
}

#[test]
fn variables_keep_their_values() {
    let text = source("ld.global.u32 %r1, [table+4]; atom.global.add.u32 %r2, [counter], 1; add.u32 %r1, %r1, %r2; st.global.u32 [%p], %r1;")
        .replace(".visible .entry", ".global .align 4 .u32 table[2] = {5, 70};\n.global .u32 counter;\n.visible .entry");
    let program = std::sync::Arc::new(Program::load(&text, "k").unwrap());
    let machine = Machine::new();
    let buffer = Buffer::zeros(&machine, 1);
    for round in 0..3 {
        let grid = machine
            .launch(Launch::new(&program, 1, 1, buffer.address().to_le_bytes().to_vec()))
            .unwrap();
        run_on_threads(&[grid], 1).unwrap();
        assert_eq!(buffer.halves()[0], 70 + round);
    }
}

#[test]
fn figures_are_what_the_code_says() {
    let machine = Machine::new();
    let buffer = Buffer::zeros(&machine, 256);
    let body = "mul.wide.u32 %a, %tid, 16; add.s64 %a, %p, %a; ld.global.v2.u64 {%b, %c}, [%a]; st.global.v2.u64 [%a], {%b, %c}; bar.sync 0;";
    let counts = run(body, 1, 64, &buffer, &machine).unwrap();
    // 3 before, 5 of the body, ret; for each of two warps.
    assert_eq!(counts.warp_instructions, 2 * 9);
    assert_eq!(counts.lane_instructions, 64 * 9);
    assert_eq!((counts.global_loads, counts.global_stores), (2, 2));
    assert_eq!((counts.load_sectors, counts.store_sectors, counts.lines), (32, 32, 16));
    assert_eq!((counts.bytes_loaded, counts.bytes_stored), (1024, 1024));
    assert_eq!((counts.barriers, counts.spins), (2, 0));
}

#[test]
fn rounds_of_waiting_are_counted() {
    let machine = Machine::new();
    let buffer = Buffer::zeros(&machine, 32);
    let body = "setp.eq.u32 %q1, %cta, 1; @%q1 bra WAIT; mov.u32 %r1, 0;\n\
        LOOP: add.u32 %r1, %r1, 1; setp.lt.u32 %q2, %r1, 500; @%q2 bra LOOP; st.release.gpu.global.u64 [%p], 1; ret;\n\
        WAIT: ld.acquire.gpu.global.u64 %a, [%p]; setp.eq.u64 %q2, %a, 0; @%q2 bra WAIT;";
    let first = run(body, 2, 1, &buffer, &machine).unwrap();
    assert!((400..600).contains(&first.spins), "{first:?}");
    let buffer = Buffer::zeros(&machine, 32);
    assert_eq!(
        run(body, 2, 1, &buffer, &machine).unwrap(),
        first,
        "figures are the same every time"
    );
}

#[test]
fn narrow_results_are_extended_by_their_sign() {
    let machine = Machine::new();
    let buffer = Buffer::zeros(&machine, 2);
    let body = "mov.u32 %r1, 0x1ff; cvt.s8.s32 %r2, %r1; cvt.u8.u32 %r3, %r1; st.global.u32 [%p], %r2; st.global.u32 [%p+4], %r3;\n\
        mov.u32 %r4, 5; setp.eq.u32 %q1, %tid, 1; @%q1 cvt.s16.s32 %r4, %r1; st.global.u32 [%p+8], %r4;";
    run(body, 1, 1, &buffer, &machine).unwrap();
    assert_eq!(buffer.halves(), [u32::MAX, 0xff, 5, 0]);
}
