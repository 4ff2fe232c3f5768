//! Kernels that make no sense: the emulator says so, or runs them to an end or a fault; it never panics, and never
//! touches what is not theirs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ferroccl_ptx::emu::{Launch, Lockstep, Machine, Options, Program, Unit, run_on_threads};
use ferroccl_ptx::syntax::{self, TokenKind};

use crate::rng::Rng;
use crate::support::{Buffer, checked};

/// Below `n`.
fn below(random: &mut Rng, n: usize) -> usize {
    random.below(n.max(1) as u64) as usize
}

/// Changes some tokens: puts another of the same kind, from elsewhere in the text, in their place; or drops one, or a
/// line; or puts in a number that is hard to bear.
fn mutate(source: &str, random: &mut Rng) -> String {
    const NUMBERS: [&str; 8] = [
        "0",
        "-1",
        "4294967295",
        "0x8000000000000000",
        "18446744073709551615",
        "17",
        "0f7fc00000",
        "0dfff0000000000000",
    ];
    let tokens = syntax::tokens(source).expect("the fixture is right");
    let body = tokens.iter().position(|t| t.word.text == "{").unwrap_or(0);
    let mut texts: Vec<&str> = tokens.iter().map(|t| t.word.text).collect();
    for _ in 0..=below(random, 4) {
        let at = body + below(random, tokens.len() - body);
        let kind = tokens[at].kind;
        match below(random, 8) {
            0 => texts[at] = "",
            1 if kind == TokenKind::Number => texts[at] = NUMBERS[below(random, NUMBERS.len())],
            2 => {
                let end = texts[at..]
                    .iter()
                    .position(|t| t.contains('\n'))
                    .map_or(texts.len(), |n| at + n);
                texts[at..end].fill("");
            }
            _ => {
                let alike: Vec<usize> =
                    (0..tokens.len()).filter(|&i| tokens[i].kind == kind).collect();
                texts[at] = tokens[alike[below(random, alike.len())]].word.text;
            }
        }
    }
    texts.concat()
}

#[test]
fn mutated_kernels_never_panic() {
    let (mut loaded, mut ran, mut faults) = (0, 0, 0);
    for (file, kernels) in [
        ("control", &["choose", "nested", "table"][..]),
        ("warp", &["votes", "shuffles", "aggregate"]),
        ("reduce", &["block_sum", "block_max"]),
        ("order", &["spin_lock", "acquire_release", "atomics"]),
        ("memory", &["constants", "histogram", "generic"]),
        ("barrier", &["produce_consume", "counted"]),
        ("half", &[]),
        ("call", &["structures"]),
    ] {
        let path = format!("{}/tests/fixtures/{file}.sm_90.ptx", env!("CARGO_MANIFEST_DIR"));
        let source = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        for seed in 0..60 {
            let mut random = Rng(seed ^ source.len() as u64);
            let text = mutate(&source, &mut random);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                for kernel in kernels {
                    let Ok(program) = Program::load(&text, kernel) else { continue };
                    loaded += 1;
                    let machine = Machine::new();
                    let buffer = Buffer::zeros(&machine, 64);
                    // Every parameter is the buffer's address.
                    let address = buffer.address().to_le_bytes();
                    let parameters: Vec<u8> =
                        address.into_iter().cycle().take(program.parameter_bytes()).collect();
                    let mut launch = Launch::new(&Arc::new(program), 2, 64, parameters);
                    launch.dynamic_shared = 64;
                    let Ok(grid) = machine.launch(launch) else { continue };
                    let adverse = Options { most_steps: 5000, ..checked(seed, true, Unit::Line) };
                    for options in [adverse, Options { most_steps: 5000, ..Options::plain() }] {
                        let mut schedule = Lockstep::new(options);
                        schedule.start(&grid);
                        match schedule.run() {
                            Ok(_) => ran += 1,
                            Err(fault) => {
                                faults += 1;
                                assert!(!fault.to_string().is_empty());
                            }
                        }
                    }
                }
            }));
            assert!(outcome.is_ok(), "{file}, seed {seed}");
        }
    }
    // Not all of them are refused, or nothing has been tried.
    assert!(
        loaded > 200 && ran > 100 && faults > 100,
        "{loaded} loaded, {ran} ran, {faults} faults"
    );
}

#[test]
fn a_fault_on_one_thread_stops_the_others() {
    let machine = Machine::new();
    let buffer = Buffer::zeros(&machine, 4);
    let program = crate::support::kernel(
        "setp.eq.u32 %q1, %cta, 0; @%q1 bra BAD;\n\
         WAIT: ld.acquire.gpu.global.u64 %a, [%p]; setp.eq.u64 %q2, %a, 0; @%q2 bra WAIT; ret;\n\
         BAD: ld.global.u64 %a, [%p+4096];",
    );
    let grid = machine
        .launch(Launch::new(&program, 4, 32, buffer.address().to_le_bytes().to_vec()))
        .unwrap();
    let fault = run_on_threads(&[grid], 2).unwrap_err();
    assert!(fault.to_string().contains("out of bounds"), "{fault}");
}
