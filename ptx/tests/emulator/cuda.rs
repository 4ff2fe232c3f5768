//! What NVIDIA's compiler made of plain CUDA kernels (`tests/fixtures/*.cu`), run and compared with what the source says.

use std::sync::Arc;

use ferroccl_ptx::emu::{
    Counts, Fault, FaultKind, Grid, Launch, Lockstep, Machine, Options, Program, Unit,
};

use crate::support::{Buffer, checked};

/// The parameters of a kernel, each aligned to its size.
#[derive(Default)]
struct Parameters(Vec<u8>);

impl Parameters {
    fn push(mut self, bytes: &[u8]) -> Self {
        while !self.0.len().is_multiple_of(bytes.len().min(8)) {
            self.0.push(0);
        }
        self.0.extend_from_slice(bytes);
        self
    }
    fn buffer(self, buffer: &Buffer) -> Self {
        self.push(&buffer.address().to_le_bytes())
    }
    fn int(self, value: i32) -> Self {
        self.push(&value.to_le_bytes())
    }
}

/// The fixtures for an architecture, by the name of their file.
fn fixture(file: &str, arch: u32) -> String {
    let path = format!("{}/tests/fixtures/{file}.sm_{arch}.ptx", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

struct Call<'a> {
    file: &'a str,
    kernel: &'a str,
    grid: [u32; 3],
    block: [u32; 3],
    dynamic: u32,
}

impl Call<'_> {
    fn grid(&self, machine: &Machine, arch: u32, parameters: &Parameters) -> Arc<Grid> {
        let program = Program::load(&fixture(self.file, arch), self.kernel);
        let program = Arc::new(program.unwrap_or_else(|e| panic!("{}: {e}", self.kernel)));
        let mut launch = Launch::new(&program, 1, 1, parameters.0.clone());
        (launch.grid, launch.block, launch.dynamic_shared) = (self.grid, self.block, self.dynamic);
        machine.launch(launch).unwrap_or_else(|e| panic!("{e}"))
    }

    fn run(
        &self,
        machine: &Machine,
        arch: u32,
        parameters: &Parameters,
        options: Options,
    ) -> Result<Counts, Box<Fault>> {
        let mut schedule = Lockstep::new(options);
        schedule.start(&self.grid(machine, arch, parameters));
        Ok(schedule.run()?[0].1)
    }
}

const ARCHS: [u32; 2] = [80, 90];

/// Runs a kernel on `words` words that start as `input`, for both architectures and some seeds with all checks.
fn with_buffers(call: &Call<'_>, inputs: &[&[u32]], ints: &[i32], check: impl Fn(&[Vec<u32>])) {
    for arch in ARCHS {
        for seed in 0..4 {
            let machine = Machine::new();
            let buffers: Vec<Buffer> =
                inputs.iter().map(|words| Buffer::new(&machine, &pairs(words))).collect();
            let parameters = buffers.iter().fold(Parameters::default(), |p, b| p.buffer(b));
            let parameters = ints.iter().fold(parameters, |p, i| p.int(*i));
            call.run(&machine, arch, &parameters, checked(seed, true, Unit::Eight))
                .unwrap_or_else(|e| panic!("{} sm_{arch} seed {seed}: {e}", call.kernel));
            check(&buffers.iter().map(Buffer::halves).collect::<Vec<_>>());
        }
    }
}

fn pairs(words: &[u32]) -> Vec<u64> {
    words.chunks(2).map(|w| u64::from(w[0]) | u64::from(*w.get(1).unwrap_or(&0)) << 32).collect()
}

fn one<'a>(file: &'a str, kernel: &'a str, threads: u32) -> Call<'a> {
    Call { file, kernel, grid: [1; 3], block: [threads, 1, 1], dynamic: 0 }
}

#[test]
fn a_tiled_product_of_matrices() {
    let n = 32usize;
    let value = |i: usize| ((i * 7 % 11) as f32 - 5.0).to_bits();
    let (a, b): (Vec<u32>, Vec<u32>) = (0..n * n).map(|i| (value(i), value(i + 3))).unzip();
    let f = |bits: u32| f32::from_bits(bits);
    let call =
        Call { file: "matmul", kernel: "matmul", grid: [2, 2, 1], block: [16, 16, 1], dynamic: 0 };
    with_buffers(&call, &[&vec![0; n * n], &a, &b], &[n as i32], |buffers| {
        for row in 0..n {
            for column in 0..n {
                let expected: f32 = (0..n).map(|k| f(a[row * n + k]) * f(b[k * n + column])).sum();
                assert_eq!(f(buffers[0][row * n + column]), expected, "{row} {column}");
            }
        }
    });
}

#[test]
fn sums_and_maxima_of_blocks() {
    let input: Vec<u32> = (0..1000).map(|i| (i as f32).to_bits()).collect();
    let call = Call {
        file: "reduce",
        kernel: "block_sum",
        grid: [3, 1, 1],
        block: [96, 1, 1],
        dynamic: 0,
    };
    with_buffers(&call, &[&[0, 0], &input], &[1000], |buffers| {
        assert_eq!(f32::from_bits(buffers[0][0]), 499_500.0);
    });
    let input: Vec<u32> = (0..256u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
    let most = input.iter().map(|&v| v as i32).max().unwrap();
    let call = Call {
        file: "reduce",
        kernel: "block_max",
        grid: [2, 1, 1],
        block: [128, 1, 1],
        dynamic: 512,
    };
    with_buffers(&call, &[&[i32::MIN as u32, 0], &input], &[], |buffers| {
        assert_eq!(buffers[0][0] as i32, most);
    });
}

#[test]
fn votes_shuffles_and_an_aggregate() {
    let input: Vec<u32> = (0..32).map(|i| (i % 5) as u32).collect();
    with_buffers(&one("warp", "votes", 32), &[&[0; 224], &input], &[], |b| {
        let out = &b[0];
        let positive = (0..32).filter(|i| i % 5 > 0).fold(0u32, |m, i| m | 1 << i);
        assert_eq!(out[..32], [positive; 32]);
        assert_eq!(out[32..64], [0; 32]);
        assert_eq!(out[64..96], [2; 32]);
        for i in 0..32 {
            let same = (0..32).filter(|j| j % 5 == i % 5).fold(0u32, |m, j| m | 1 << j);
            assert_eq!(out[96 + i], same);
        }
        assert_eq!(out[128..160], [0; 32]);
        assert_eq!((out[160], out[192]), ((0..32).map(|i| i % 5).sum(), 4));
    });
    let input: Vec<u32> = (100..132).collect();
    with_buffers(&one("warp", "shuffles", 32), &[&[0; 128], &input], &[], |b| {
        for i in 0..32u32 {
            let out = |n: u32| b[0][(n + i) as usize];
            assert_eq!(out(0), 100 + i / 8 * 8 + 3);
            assert_eq!(out(32), 100 + i.saturating_sub(1));
            assert_eq!(out(64), 100 + if i % 16 < 14 { i + 2 } else { i });
            assert_eq!(out(96), 100 + (i ^ 5));
        }
    });
    let input: Vec<u32> = (0..32).map(|i| u32::from(i % 3 == 0)).collect();
    with_buffers(&one("warp", "aggregate", 32), &[&[0, 0], &[0; 32], &input], &[], |b| {
        assert_eq!(b[0][0], 11);
        let expected: Vec<u32> = (0..32).filter(|i| i % 3 == 0).collect();
        assert_eq!(b[1][..11], expected);
    });
}

#[test]
fn switches_loops_and_indexed_branches() {
    let input: Vec<u32> = (0..32).map(|i| i % 9).collect();
    let out: Vec<u32> = (1000..1032).collect();
    with_buffers(&one("control", "choose", 32), &[&out, &input], &[20], |b| {
        for i in 0..32i32 {
            let expected = match i % 9 {
                0 => 20,
                1 => 20 * i,
                2 => 20 / (i + 1),
                3 => i ^ 20,
                4 | 7 => 1000 + i,
                5 => 20 % 9,
                _ => -1,
            };
            assert_eq!(b[0][i as usize] as i32, expected, "lane {i}");
        }
    });
    let start: Vec<u32> = (1..33).collect();
    with_buffers(&one("control", "collatz", 32), &[&[0; 32], &start], &[], |b| {
        let steps = |mut n: u32| {
            (0..).find(|_| {
                let one = n == 1;
                n = if n.is_multiple_of(2) { n / 2 } else { 3 * n + 1 };
                one
            })
        };
        for (i, &n) in start.iter().enumerate() {
            assert_eq!(Some(b[0][i]), steps(n));
        }
    });
    let input: Vec<u32> =
        (0..40u32).map(|i| if i % 13 == 12 { -1i32 as u32 } else { i % 7 }).collect();
    with_buffers(&one("control", "nested", 8), &[&[0; 8], &input], &[4, 10], |b| {
        for lane in 0..8u32 {
            let mut sum = 0i32;
            for i in 0..4usize {
                for j in i..10 {
                    let v = input[i * 10 + j];
                    if v == lane {
                        continue;
                    }
                    if (v as i32) < 0 {
                        break;
                    }
                    sum += v as i32;
                }
                for &v in &input[..i] {
                    sum ^= v as i32;
                }
            }
            assert_eq!(b[0][lane as usize] as i32, sum, "lane {lane}");
        }
    });
    let input: Vec<u32> = (0..32).map(|i| (i - 2) as u32).collect();
    with_buffers(&one("control", "table", 32), &[&[9; 32], &input], &[], |b| {
        let expected: Vec<u32> =
            (0..32).map(|i| [0, 1, 2, 0][(i - 2).clamp(0, 3) as usize]).collect();
        assert_eq!(b[0], expected);
    });
}

#[test]
fn calls_are_followed_and_recursion_is_refused() {
    let machine = Machine::new();
    for arch in ARCHS {
        let out = Buffer::zeros(&machine, 3 * 32);
        // struct Pair { long long a; int b[3]; } by value: 24 bytes.
        let mut pair = 5i64.to_le_bytes().to_vec();
        for v in [1, 70, 3, 0] {
            pair.extend_from_slice(&i32::to_le_bytes(v));
        }
        let mut parameters = Parameters::default().buffer(&out);
        parameters.0.extend_from_slice(&pair);
        let call = one("call", "structures", 32);
        call.run(&machine, arch, &parameters, checked(1, true, Unit::Eight))
            .unwrap_or_else(|e| panic!("{e}"));
        for lane in 0..32u64 {
            let words = &out.words()[3 * lane as usize..][..3];
            assert_eq!(words[0], 75);
            assert_eq!(
                (words[1] as u32, (words[1] >> 32) as u32, words[2] as u32),
                (1, 70, (lane / 2) as u32)
            );
        }
        let text = fixture("call", arch);
        let error = Program::load(&text, "recursion").unwrap_err().to_string();
        assert!(error.contains("recursion is not emulated"), "{error}");
        let error = Program::load(&text, "through_pointer").unwrap_err().to_string();
        assert!(error.contains("not emulated"), "{error}");
    }
}

#[test]
fn constant_local_and_generic_memory() {
    with_buffers(&one("memory", "constants", 32), &[&[0; 34]], &[1], |b| {
        for (lane, &value) in b[0][..32].iter().enumerate() {
            assert_eq!(f32::from_bits(value), -1.25 * f32::from(1u8 << (lane & 7)));
        }
        assert_eq!(f32::from_bits(b[0][32]), -6.0 + f32::from(b'e'));
    });
    let input: Vec<u32> = (0..50).map(|i| i * i).collect();
    with_buffers(&one("memory", "histogram", 4), &[&[0; 32], &input], &[50], |b| {
        let mut bins = [0; 8];
        input.iter().for_each(|v| bins[(v & 7) as usize] += 1);
        assert!(b[0].chunks(8).all(|chunk| chunk == bins), "{b:?}");
    });
    let input: Vec<u32> = (500..532).collect();
    for (which, first) in [(0, 31), (1, 531)] {
        with_buffers(&one("memory", "generic", 32), &[&[0; 32], &input], &[which], |b| {
            assert_eq!((b[0][0], b[0][31]), (first, first - 31));
        });
    }
}

#[test]
fn locks_and_flags() {
    let call = Call { grid: [4, 1, 1], ..one("order", "spin_lock", 32) };
    with_buffers(&call, &[&[0, 0], &[0, 0]], &[], |b| assert_eq!((b[0][0], b[1][0]), (0, 4)));
    let call = Call { grid: [2, 1, 1], ..one("order", "flag", 1) };
    with_buffers(&call, &[&[0, 0], &[0, 0], &[0, 0]], &[], |b| assert_eq!(b[2][0], 42));
    // All lanes of the second block read the flag themselves: each has acquired.
    let call = Call { grid: [2, 1, 1], ..one("order", "acquire_release", 64) };
    with_buffers(&call, &[&[0; 64], &[0, 0], &[0; 64]], &[], |b| {
        assert_eq!(b[2], (0..64).collect::<Vec<u32>>());
    });
}

#[test]
fn a_lock_without_its_fence_is_found_out() {
    let text = fixture("order", 90);
    let broken = text
        .replace("fence.sc.gpu;", "")
        .replace("membar.gl;", "")
        .replace("fence.acq_rel.gpu;", "");
    assert_ne!(text, broken);
    let program = Arc::new(Program::load(&broken, "spin_lock").unwrap());
    let found = (0..30).filter(|&seed| {
        let machine = Machine::new();
        let (lock, counter) = (Buffer::zeros(&machine, 1), Buffer::zeros(&machine, 1));
        let parameters = Parameters::default().buffer(&lock).buffer(&counter);
        let grid = machine.launch(Launch::new(&program, 4, 32, parameters.0)).unwrap();
        let mut schedule = Lockstep::new(checked(seed, true, Unit::Eight));
        schedule.start(&grid);
        schedule.run().is_err() || counter.words()[0] != 4
    });
    assert!(found.count() > 0, "increments get lost without the fences");
}

#[test]
fn producers_and_consumers_at_barriers() {
    let input: Vec<u32> = (0..320).collect();
    with_buffers(&one("barrier", "produce_consume", 128), &[&[0; 320], &input], &[5], |b| {
        let expected: Vec<u32> = (0..320).map(|i| i / 64 * 64 + 63 - i % 64).collect();
        assert_eq!(b[0], expected);
    });
    let input: Vec<u32> = (0..96).map(|i| i % 4).collect();
    with_buffers(&one("barrier", "counted", 96), &[&[0; 192], &input], &[], |b| {
        assert_eq!((b[0][0], b[0][95], b[0][96]), (72, 72, 2));
    });
    let input: Vec<u32> = (0..4 * 128).collect();
    with_buffers(&one("barrier", "copy_async", 128), &[&[0; 512], &input], &[], |b| {
        let expected: Vec<u32> = (0..512).map(|i| 4 * (127 - i / 4) + i % 4).collect();
        assert_eq!(b[0], expected);
    });
    // Each arrival is handed what was there before it: a phase, of which so many are still to come.
    with_buffers(&one("barrier", "mbarrier", 64), &[&[0; 128]], &[], |b| {
        assert!(b[0].iter().all(|word| *word != 0));
    });
}

#[test]
fn a_write_too_far_is_found_out() {
    let machine = Machine::new();
    let (out, input) = (Buffer::zeros(&machine, 15), Buffer::zeros(&machine, 16));
    let parameters = Parameters::default().buffer(&out).buffer(&input);
    let call = one("control", "table", 32);
    let fault = call.run(&machine, 90, &parameters, Options::plain()).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::OutOfBounds { .. }), "{fault}");
    assert_eq!(fault.site.lanes, 1 << 30, "{fault}");
}
