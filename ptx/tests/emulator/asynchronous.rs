//! Asynchronous copies, and the barriers in shared memory that wait for them.

use ferroccl_ptx::emu::{
    Fault, FaultKind, H100_NVLINK, Launch, Lockstep, Machine, Options, Unit, run_on_threads,
};

use crate::support::{Buffer, checked, kernel, run_with};

/// Shared memory: 512 bytes, and a barrier behind them.
const HEAD: &str = ".shared .align 128 .b8 tile[1024];
    mov.u32 %r0, tile; add.u32 %r1, %r0, 512; setp.ne.u32 %q0, %tid, 0;
    mul.wide.u32 %rd0, %tid, 8; add.u64 %a, %p, %rd0; shl.b32 %r2, %tid, 3; add.u32 %r3, %r0, %r2;";

/// Lane 0 loads 512 bytes in bulk; all 64 threads store a word of them behind the input, incremented.
fn load_in_bulk(init_fence: &str, wait: bool) -> String {
    let waits = if wait {
        "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %q1, [%r1], 0; @!%q1 bra WAIT;"
    } else {
        ""
    };
    format!(
        "{HEAD}
         @%q0 bra READY;
         mbarrier.init.shared::cta.b64 [%r1], 1; {init_fence}
         mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %rd1, [%r1], 512;
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%p], 512, [%r1];
      READY:
         bar.sync 0;
         {waits}
         ld.shared.u64 %b, [%r3]; add.u64 %b, %b, 1; st.global.u64 [%a + 512], %b;"
    )
}

fn words() -> Vec<u64> {
    (0..128).map(|i| if i < 64 { 100 + i } else { 0 }).collect()
}

fn outcome(
    body: &str,
    threads: u32,
    words: &[u64],
    options: Options,
) -> Result<Vec<u64>, Box<Fault>> {
    let machine = Machine::new();
    let buffer = Buffer::new(&machine, words);
    run_with(body, 1, threads, &buffer, &machine, options)?;
    Ok(buffer.words())
}

/// Whether some seed finds a race, or a wrong result.
fn found_out(body: &str, threads: u32, words: &[u64], right: impl Fn(&[u64]) -> bool) -> bool {
    (0..40).any(|seed| match outcome(body, threads, words, checked(seed, true, Unit::Eight)) {
        Ok(words) => !right(&words),
        Err(fault) => {
            assert!(
                matches!(fault.kind, FaultKind::Race { .. } | FaultKind::Uninitialised { .. }),
                "{fault}"
            );
            true
        }
    })
}

#[test]
fn a_bulk_load_is_waited_for_at_a_barrier() {
    let right = |words: &[u64]| (0..64).all(|i| words[64 + i] == 101 + i as u64);
    let body = load_in_bulk("fence.proxy.async.shared::cta;", true);
    for options in [Options::plain(), Options::simulated(H100_NVLINK)] {
        assert!(right(&outcome(&body, 64, &words(), options).unwrap()), "{options:?}");
    }
    assert!(!found_out(&body, 64, &words(), right));
    assert!(
        !found_out(&load_in_bulk("", true), 64, &words(), right),
        "no fence behind the initialisation"
    );
    assert!(found_out(&load_in_bulk("", false), 64, &words(), right), "nobody waits");
    let machine = Machine::new();
    let buffer = Buffer::new(&machine, &words());
    let launch = Launch::new(&kernel(&body), 1, 64, buffer.address().to_le_bytes().to_vec());
    run_on_threads(&[machine.launch(launch).unwrap()], 1).unwrap();
    assert!(right(&buffer.words()));
}

/// All threads fill shared memory, and lane 0 stores it in bulk.
#[test]
fn a_bulk_store_sees_what_came_before_a_proxy_fence() {
    let body = |fence: &str, meet: &str| {
        format!(
            "{HEAD}
             cvt.u64.u32 %b, %tid; st.shared.u64 [%r3], %b; {fence}
             {meet}
             @%q0 bra END;
             cp.async.bulk.global.shared::cta.bulk_group [%p], [%r0], 512;
             cp.async.bulk.commit_group;
             cp.async.bulk.wait_group 0;
             ld.global.u64 %c, [%p + 504]; st.global.u64 [%p + 512], %c;
          END:"
        )
    };
    let right = |words: &[u64]| (0..64).all(|i| words[i] == i as u64) && words[64] == 63;
    let whole = body("fence.proxy.async.shared::cta;", "bar.sync 0;");
    assert!(right(&outcome(&whole, 64, &words(), Options::plain()).unwrap()));
    assert!(right(&outcome(&whole, 64, &words(), Options::simulated(H100_NVLINK)).unwrap()));
    assert!(!found_out(&whole, 64, &words(), right));
    assert!(found_out(&body("", "bar.sync 0;"), 64, &words(), right), "no proxy fence");
    assert!(found_out(&body("fence.proxy.async;", ""), 64, &words(), right), "no barrier");
    let unwaited = whole.replace("cp.async.bulk.wait_group 0;", "");
    assert!(found_out(&unwaited, 64, &words(), right), "the store is not waited for");
    let read = whole.replace("wait_group 0", "wait_group.read 0");
    assert!(found_out(&read, 64, &words(), right), "only its reading is waited for");
}

/// Shared memory that a store still reads is filled again.
#[test]
fn a_buffer_is_used_again_when_it_has_been_read() {
    let body = |wait: &str| {
        format!(
            "{HEAD}
             @%q0 bra END;
             mov.u64 %b, 1; mov.u32 %r4, 0;
          ROUND:
             st.shared.v2.u64 [%r0], {{%b, %b}}; fence.proxy.async;
             mul.wide.u32 %rd2, %r4, 16; add.u64 %rd3, %p, %rd2;
             cp.async.bulk.global.shared::cta.bulk_group [%rd3], [%r0], 16;
             cp.async.bulk.commit_group; {wait}
             add.u64 %b, %b, 1; add.u32 %r4, %r4, 1; setp.lt.u32 %q1, %r4, 4; @%q1 bra ROUND;
             cp.async.bulk.wait_group 0;
          END:"
        )
    };
    let right = |words: &[u64]| words[..8] == [1, 1, 2, 2, 3, 3, 4, 4];
    assert!(!found_out(&body("cp.async.bulk.wait_group.read 0;"), 1, &words(), right));
    assert!(!found_out(&body("cp.async.bulk.wait_group 0;"), 1, &words(), right));
    assert!(found_out(&body(""), 1, &words(), right));
    assert!(found_out(&body("cp.async.bulk.wait_group.read 1;"), 1, &words(), right));
}

/// Copies of 4, 8 and 16 bytes, with zeros behind what is given; groups end in their order.
#[test]
fn small_copies_are_waited_for_by_group() {
    let body = |waits: &str| {
        format!(
            "{HEAD}
             cp.async.ca.shared.global [%r0], [%p], 16, 12; cp.async.commit_group;
             cp.async.cg.shared.global [%r0 + 16], [%p + 16], 16; cp.async.commit_group;
             cp.async.ca.shared.global [%r0 + 32], [%p + 32], 8; cp.async.commit_group;
             {waits}
             ld.shared.v2.u64 {{%b, %c}}, [%r0]; st.global.v2.u64 [%p + 64], {{%b, %c}};
             ld.shared.v2.u64 {{%b, %c}}, [%r0 + 16]; st.global.v2.u64 [%p + 80], {{%b, %c}};
             cp.async.wait_all;
             ld.shared.u64 %b, [%r0 + 32]; st.global.u64 [%p + 96], %b;"
        )
    };
    let input: Vec<u64> = (1..=32).map(|i| i << 32 | i).collect();
    let right = |words: &[u64]| words[8..13] == [input[0], 2, input[2], input[3], input[4]];
    let two = body("cp.async.wait_group 1;");
    for options in [Options::plain(), Options::simulated(H100_NVLINK)] {
        assert!(right(&outcome(&two, 1, &input, options).unwrap()), "{options:?}");
    }
    assert!(!found_out(&two, 1, &input, right));
    assert!(found_out(&body("cp.async.wait_group 2;"), 1, &input, right));
}

#[test]
fn copies_reduce_and_values_are_sent() {
    let body = format!(
        "{HEAD}
         mov.u64 %b, 5; st.shared.v2.u64 [%r0], {{%b, %b}}; fence.proxy.async;
         cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u64 [%p], [%r0], 16;
         cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
         mbarrier.init.shared::cta.b64 [%r1], 1;
         mbarrier.arrive.expect_tx.shared::cta.b64 %rd1, [%r1], 16;
         mov.u64 %c, 7; st.shared.u64 [%r0 + 32], %c;
         st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%r0 + 16], %c, [%r1];
         red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u64 [%r0 + 32], %c, [%r1];
      WAIT: mbarrier.test_wait.shared::cta.b64 %q1, [%r1], %rd1; @!%q1 bra WAIT;
         ld.shared.u64 %b, [%r0 + 16]; ld.shared.u64 %c, [%r0 + 32];
         st.global.v2.u64 [%p + 16], {{%b, %c}};"
    );
    let right = |words: &[u64]| words[..4] == [105, 106, 7, 14];
    assert!(right(&outcome(&body, 1, &words(), Options::plain()).unwrap()));
    assert!(right(&outcome(&body, 1, &words(), Options::simulated(H100_NVLINK)).unwrap()));
    assert!(!found_out(&body, 1, &words(), right));
}

#[test]
fn copies_and_barriers_that_make_no_sense_are_faults() {
    let bulk = |operands: &str| {
        format!(
            "mbarrier.init.shared::cta.b64 [%r1], 1; cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes {operands};"
        )
    };
    for (body, says) in [
        (bulk("[%r0], [%p + 8], 16, [%r1]"), "no multiple of 16"),
        (bulk("[%r0], [%p], 24, [%r1]"), "an asynchronous copy of 24 bytes"),
        (bulk("[%r0 + 1008], [%p], 32, [%r1]"), "of 1024 bytes of shared memory"),
        (bulk("[%r0], [%p + 1008], 32, [%r1]"), "out of bounds"),
        (bulk("[%r0], [%p], 16, [%r0 + 1024]"), "of 1024 bytes of shared memory"),
        ("mbarrier.init.shared.b64 [%r1], 0;".to_owned(), "a barrier for 0 arrivals"),
        (
            "st.shared.u64 [%r1], %rd9; mbarrier.arrive.shared.b64 %b, [%r1];".to_owned(),
            "no barrier has been initialised",
        ),
        (
            "mbarrier.init.shared.b64 [%r1], 2; mbarrier.arrive.shared.b64 %b, [%r1], 3;"
                .to_owned(),
            "3 arrivals at a barrier that waits for 2",
        ),
        ("mbarrier.init.b64 [%p], 1;".to_owned(), "outside of shared memory"),
    ] {
        for options in [Options::plain(), checked(3, true, Unit::Eight)] {
            let fault = outcome(&format!("{HEAD}{body}"), 1, &words(), options).expect_err(&body);
            assert!(fault.to_string().contains(says), "{body}: {fault}");
        }
    }
    // A barrier that nobody arrives at is waited for in vain.
    let body = format!(
        "{HEAD} mbarrier.init.shared.b64 [%r1], 1;
         WAIT: mbarrier.try_wait.parity.shared.b64 %q1, [%r1], 0; @!%q1 bra WAIT;"
    );
    for options in [Options::plain(), checked(3, true, Unit::Eight)] {
        let fault = outcome(&body, 1, &words(), options).expect_err("nobody arrives");
        assert_eq!(fault.kind, FaultKind::Deadlock, "{fault}");
    }
}

/// A bulk load of another GPU's memory takes the way there and back, and what its bytes take on the link.
#[test]
fn bulk_copies_take_time() {
    const BYTES: u64 = 64 << 10;
    let time = |gpu: u32| {
        let machine = Machine::new();
        let mut words = vec![0u64; BYTES as usize / 8 + 16];
        let start = (words.as_mut_ptr().expose_provenance() as u64).next_multiple_of(128);
        // SAFETY: the vector outlives the mapping and the run.
        let _words = unsafe { machine.map_on(Some(gpu), start, BYTES as usize, "words") };
        let body = format!(
            "mov.u32 %r0, big; add.u32 %r1, %r0, {BYTES};
             mbarrier.init.shared::cta.b64 [%r1], 1;
             mbarrier.arrive.expect_tx.shared::cta.b64 %rd1, [%r1], {BYTES};
             cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r0], [%p], {BYTES}, [%r1];
          WAIT: mbarrier.try_wait.shared::cta.b64 %q1, [%r1], %rd1; @!%q1 bra WAIT;
             ld.shared.u64 %b, [%r0];"
        );
        let body = format!(".shared .align 128 .b8 big[{}];\n{body}", BYTES + 16);
        let launch = Launch::new(&kernel(&body), 1, 1, start.to_le_bytes().to_vec());
        let grid = machine.launch(launch).unwrap();
        let mut schedule = Lockstep::new(Options::simulated(H100_NVLINK));
        schedule.start(&grid);
        schedule.run().unwrap();
        let span = schedule.launch_span(grid.number()).unwrap();
        (span.end - span.start) as f64 / 1000.0
    };
    let t = H100_NVLINK;
    let cycle = 1000.0 / f64::from(t.clock_mhz);
    let own = (f64::from(t.l2_cycles) + BYTES as f64 / f64::from(t.l2_bytes)) * cycle;
    let peer = f64::from(t.peer_ns) + BYTES as f64 / f64::from(t.peer_gbs);
    for (gpu, wanted) in [(0, own), (1, peer.max(own))] {
        let took = time(gpu);
        assert!((wanted..1.3 * wanted + 300.0).contains(&took), "GPU {gpu}: {took}, not {wanted}");
    }
}

/// Lanes that wait for another lane of their warp do not keep it from going on.
#[test]
fn who_waits_lets_the_others_of_its_warp_go_first() {
    let body = format!(
        "{HEAD}
         @%q0 bra MEET;
         mbarrier.init.shared::cta.b64 [%r1], 1;
      MEET:
         bar.warp.sync -1;
         mov.u32 %r4, 0;
         @!%q0 bra WORK;
      WAIT: mbarrier.try_wait.parity.shared::cta.b64 %q1, [%r1], 0; @!%q1 bra WAIT;
         bra END;
      WORK:
         add.u32 %r4, %r4, 1; setp.lt.u32 %q2, %r4, 2000; @%q2 bra WORK;
         mbarrier.arrive.shared::cta.b64 %rd1, [%r1];
      END:"
    );
    for options in [Options::plain(), Options::simulated(H100_NVLINK)] {
        // The work is 6000 instructions; a turn in 32 for it would make 130,000 of them.
        let options = Options { most_steps: 40_000, ..options };
        outcome(&body, 32, &words(), options)
            .unwrap_or_else(|fault| panic!("{options:?}: {fault}"));
    }
}
