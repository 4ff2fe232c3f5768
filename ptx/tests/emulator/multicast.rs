//! Multicast objects, registers of 128 bits, and assertions that fail.

use ferroccl_ptx::emu::{
    FaultKind, H100_NVLINK, Launch, Lockstep, Machine, Mapping, Options, Program, Unit,
};

use crate::support::{Buffer, checked, kernel, run, run_with};

/// Addresses that no process has.
const ALL: u64 = 1 << 50;
const WORDS: usize = 64;

/// A machine of GPUs whose buffers are members of one multicast object.
struct Gpus {
    machine: Machine,
    buffers: Vec<Buffer>,
    _all: Mapping,
}

fn gpus(words: &[Vec<u64>]) -> Gpus {
    let machine = Machine::new();
    let buffers: Vec<_> = words.iter().map(|words| Buffer::new(&machine, words)).collect();
    let members: Vec<u64> = buffers.iter().map(Buffer::address).collect();
    let _all = machine.map_multicast(ALL, 8 * WORDS, &members, "the test's multicast object");
    Gpus { machine, buffers, _all }
}

fn f32s(values: [f32; 4]) -> [u64; 2] {
    let [a, b, c, d] = values.map(|v| u64::from(v.to_bits()));
    [a | b << 32, c | d << 32]
}

#[test]
fn all_members_are_loaded_combined() {
    // Of each GPU: four floats, two halves in each of two words (1.0 and a 2048 that halves cannot add 1 to), a bfloat16
    // pair, an integer.
    let of = |gpu: u64| {
        let mut words = vec![0; WORDS];
        words[..2].copy_from_slice(&f32s([1.0, 0.5, gpu as f32, -2.0]));
        words[2] = if gpu == 0 { 0x6800_3c00 } else { 0x3c00_3c00 };
        words[3] = if gpu == 0 { 0x4380_3f80 } else { 0x3f80_3f80 };
        words[4] = 10 + gpu;
        words
    };
    let gpus = gpus(&[of(0), of(1), of(2)]);
    let body = format!(
        "mov.u64 %a, {ALL};
         multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {{%f0, %f1, %f2, %f3}}, [%a];
         st.global.v4.f32 [%p + 64], {{%f0, %f1, %f2, %f3}};
         multimem.ld_reduce.relaxed.sys.global.add.acc::f32.f16x2 %r0, [%a + 16];
         multimem.ld_reduce.relaxed.sys.global.add.f16x2 %r1, [%a + 16];
         multimem.ld_reduce.relaxed.sys.global.add.acc::f32.bf16x2 %r2, [%a + 24];
         multimem.ld_reduce.weak.global.max.u32 %r3, [%a + 32];
         multimem.ld_reduce.acquire.gpu.add.u64 %b, [%a + 32];
         st.global.v4.u32 [%p + 80], {{%r0, %r1, %r2, %r3}};
         st.global.u64 [%p + 96], %b;"
    );
    run(&body, 1, 1, &gpus.buffers[0], &gpus.machine).unwrap();
    let words = gpus.buffers[0].words();
    assert_eq!(words[8..10], f32s([3.0, 1.5, 3.0, -6.0]));
    // 2048 + 1 + 1: in single precision 2050; in halves each step rounds to 2048. 256 + 1 + 1 of bfloat16 likewise.
    assert_eq!(words[10], 0x6800_4200 << 32 | 0x6801_4200);
    assert_eq!(words[11], 12 << 32 | 0x4381_4040);
    assert_eq!(words[12], 33);
}

#[test]
fn all_members_are_stored_to() {
    let gpus = gpus(&vec![vec![7; WORDS]; 3]);
    let body = format!(
        "mov.u64 %a, {ALL}; mov.u64 %b, 5; mov.u64 %c, 6; mov.u32 %r0, 9;
         multimem.st.weak.global.u64 [%a], %b;
         multimem.red.relaxed.sys.add.u64 [%a + 8], %b;
         multimem.red.release.gpu.global.max.u64 [%a + 16], %b;
         st.relaxed.sys.v2.u64 [%a + 32], {{%b, %c}};
         multimem.st.relaxed.sys.global.v4.f32 [%a + 48], {{%f0, %f0, %f0, %f0}};"
    );
    run(&body, 1, 1, &gpus.buffers[0], &gpus.machine).unwrap();
    for buffer in &gpus.buffers {
        assert_eq!(buffer.words()[..9], [5, 12, 7, 7, 5, 6, 0, 0, 7]);
    }
}

/// A lane that takes no part may have anything in its registers.
#[test]
fn lanes_that_take_no_part_have_any_address() {
    let gpus = gpus(&vec![vec![7; WORDS]; 3]);
    let body = format!(
        "setp.eq.u32 %q0, %tid, 0; mov.u64 %a, -8; mov.u64 %b, 5;
         @%q0 mov.u64 %a, {ALL};
         @%q0 multimem.st.weak.global.u64 [%a], %b;"
    );
    run(&body, 1, 32, &gpus.buffers[0], &gpus.machine).unwrap();
    for buffer in &gpus.buffers {
        assert_eq!(buffer.words()[..2], [5, 7]);
    }
}

#[test]
fn what_multimem_cannot_do_is_a_fault() {
    let gpus = gpus(&vec![vec![0; WORDS]; 2]);
    let fault = |body: &str| {
        run(body, 1, 1, &gpus.buffers[0], &gpus.machine).expect_err("a fault").to_string()
    };
    let past = ALL + 8 * WORDS as u64;
    for (body, says) in [
        (format!("mov.u64 %a, {ALL}; ld.global.u64 %b, [%a];"), "from which only `multimem` loads"),
        ("multimem.red.relaxed.sys.add.u32 [%p], 1;".to_owned(), "is in no multicast object"),
        (format!("mov.u64 %a, {past}; st.global.v2.u64 [%a], {{%b, %b}};"), "out of bounds"),
        (format!("mov.u64 %a, {ALL}; multimem.st.global.u64 [%a + 4], %b;"), "multiple of 8"),
    ] {
        assert!(fault(&body).contains(says), "{body}: {}", fault(&body));
    }
    // A member whose memory is gone.
    let mut gpus = gpus;
    gpus.buffers.pop();
    let body = format!("mov.u64 %a, {ALL}; multimem.st.global.u64 [%a], %b;");
    let error = run(&body, 1, 1, &gpus.buffers[0], &gpus.machine).expect_err("no memory");
    assert!(matches!(error.kind, FaultKind::OutOfBounds { .. }), "{error}");
}

/// Two GPUs: one changes all members, the other one reads its own, which needs an order.
#[test]
fn a_race_by_multicast_is_found() {
    for (store, load, races) in [
        ("multimem.st.weak.global.u64 [%a], 1", "ld.weak.global.u64 %b, [%p]", true),
        ("multimem.st.relaxed.sys.global.u64 [%a], 1", "ld.weak.global.u64 %b, [%p]", true),
        ("multimem.st.relaxed.sys.global.u64 [%a], 1", "ld.relaxed.sys.global.u64 %b, [%p]", false),
        (
            "multimem.red.relaxed.gpu.global.add.u64 [%a], 1",
            "ld.relaxed.gpu.global.u64 %b, [%p]",
            true,
        ),
    ] {
        let found = (0..20).any(|seed| {
            let gpus = gpus(&vec![vec![0; WORDS]; 2]);
            let mut schedule = Lockstep::new(checked(seed, true, Unit::Eight));
            for (gpu, body) in
                [(0, format!("mov.u64 %a, {ALL}; {store};")), (1, format!("{load};"))]
            {
                let parameters = gpus.buffers[gpu].address().to_le_bytes().to_vec();
                let launch = Launch::new(&kernel(&body), 1, 1, parameters);
                let launch = Launch { device: gpu as u32, ..launch };
                schedule.start(&gpus.machine.launch(launch).unwrap());
            }
            match schedule.run() {
                Ok(_) => false,
                Err(fault) => matches!(fault.kind, FaultKind::Race { .. }) || panic!("{fault}"),
            }
        });
        assert_eq!(found, races, "{store}, {load}");
    }
}

/// A load from all members takes a way to the switch and back, however many there are; and so does a sum of four.
#[test]
fn a_load_from_all_takes_one_way() {
    let time = |members: usize, body: &str| {
        let gpus = gpus(&vec![vec![0; WORDS]; members]);
        let program = kernel(body);
        let parameters = gpus.buffers[0].address().to_le_bytes().to_vec();
        let mut schedule = Lockstep::new(Options::simulated(H100_NVLINK));
        let grid = gpus.machine.launch(Launch::new(&program, 1, 32, parameters)).unwrap();
        schedule.start(&grid);
        schedule.run().unwrap();
        let span = schedule.launch_span(grid.number()).unwrap();
        (span.end - span.start) / 1000
    };
    let body = format!(
        "mov.u64 %a, {ALL}; multimem.ld_reduce.relaxed.sys.global.add.u64 %b, [%a];
         add.u64 %b, %b, 1;"
    );
    let (two, eight) = (time(2, &body), time(8, &body));
    let way = u64::from(H100_NVLINK.peer_ns);
    assert!((way..way + 200).contains(&two) && eight < two + 50, "{two}, {eight}, {way}");
}

/// A store of 128 bits arrives whole where a vector of two words does not.
#[test]
fn registers_of_128_bits_are_not_torn() {
    let body = |ty: &str, store: &str, load: &str, unpack: &str| {
        format!(
            ".reg .b128 %w<2>;
             setp.ne.u32 %q0, %cta, 0; @%q0 bra READ;
             mov.u64 %a, 1;
          WRITE:
             mov.b128 %w0, {{%a, %a}};
             st.relaxed.sys.global.{ty} [%p], {store};
             add.u64 %a, %a, 1; setp.lt.u64 %q1, %a, 30; @%q1 bra WRITE; bra END;
          READ:
             mov.u32 %r0, 0;
          AGAIN:
             ld.relaxed.sys.global.{ty} {load}, [%p];
             {unpack}
             setp.ne.u64 %q2, %b, %c;
             @%q2 st.global.u64 [%p + 64], %c;
             add.u32 %r0, %r0, 1; setp.lt.u32 %q1, %r0, 30; @%q1 bra AGAIN;
          END:"
        )
    };
    let torn = |body: &str| {
        (0..30).any(|seed| {
            let machine = Machine::new();
            let buffer = Buffer::zeros(&machine, 16);
            let options = checked(seed, true, Unit::Eight);
            run_with(body, 2, 1, &buffer, &machine, options).unwrap();
            buffer.words()[8] != 0
        })
    };
    assert!(!torn(&body("b128", "%w0", "%w1", "mov.b128 {%b, %c}, %w1;")));
    assert!(torn(&body("v2.b64", "{%a, %a}", "{%b, %c}", "")));
}

#[test]
fn an_assertion_says_what_failed() {
    let source = "
        .version 8.0\n.target sm_90\n.address_size 64
        .extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
        .global .align 1 .b8 message[6] = {110, 32, 62, 32, 48, 0};
        .global .align 1 .b8 file[5] = {97, 46, 99, 117};
        .global .align 1 .b8 function[2] = {107};
        .visible .entry k(.param .u32 n) {
            .reg .b32 %n; .reg .pred %q; .reg .b64 %m, %f, %k;
            ld.param.u32 %n, [n];
            setp.gt.s32 %q, %n, 0;
            @%q bra FINE;
            mov.u64 %m, message; cvta.global.u64 %m, %m;
            mov.u64 %f, file; cvta.global.u64 %f, %f;
            mov.u64 %k, function; cvta.global.u64 %k, %k;
            {
                .param .b64 p0; .param .b64 p1; .param .b32 p2; .param .b64 p3; .param .b64 p4;
                st.param.b64 [p0], %m; st.param.b64 [p1], %f; st.param.b32 [p2], 12; st.param.b64 [p3], %k;
                st.param.b64 [p4], 1;
                call.uni __assertfail, (p0, p1, p2, p3, p4);
            }
        FINE:
            ret;
        }";
    let program = std::sync::Arc::new(Program::load(source, "k").unwrap());
    let outcome = |n: i32| {
        let machine = Machine::new();
        let launch = Launch::new(&program, 1, 32, n.to_le_bytes().to_vec());
        let mut schedule = Lockstep::new(Options::plain());
        schedule.start(&machine.launch(launch).unwrap());
        schedule.run().map(drop).map_err(|fault| fault.to_string())
    };
    assert_eq!(outcome(1), Ok(()));
    let error = outcome(0).unwrap_err();
    assert!(error.contains("assertion `n > 0` failed in k, a.cu:12"), "{error}");
}
