//! How fast the emulator is: lane-instructions a second, by kind of code, by blocks and threads, and what each check costs.
//!
//! `elem/s` in the output are instructions of lanes.
#![allow(missing_docs, reason = "criterion's macros make functions of their own")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ferroccl_ptx::emu::{
    Adversity, Checks, Counts, Grid, Launch, Lockstep, Machine, Mapping, Options, Program,
    WarpSchedule, run_on_threads,
};

const THREADS: u32 = 256;
const BLOCKS: u32 = 8;
/// Bytes that a block works on.
const BYTES: usize = 64 << 10;

/// What a loop does; `%a` walks through the block's part of the buffer, 16 bytes a lane.
const KERNELS: [(&str, &str); 4] = [
    (
        "arithmetic",
        "add.s64 %b, %a, %c; shl.b64 %c, %b, 3; xor.b64 %d, %c, %b; and.b64 %b, %d, 255; add.f32 %f1, %f1, 0f3F800000;\n\
         mul.rn.f32 %f2, %f1, %f1; mad.lo.u32 %r3, %r2, 3, %r1; min.u32 %r4, %r3, %r1; or.b32 %r5, %r4, 1; shr.u32 %r6, %r5, 2;",
    ),
    ("copy", "ld.volatile.global.v2.u64 {%b, %c}, [%a]; st.global.v2.u64 [%a], {%b, %c};"),
    (
        "reduce",
        "ld.volatile.global.v2.u64 {%b, %c}, [%a]; mov.b64 {%f1, %f2}, %b; mov.b64 {%f3, %f4}, %c;\n\
         add.rn.f32 %f1, %f1, %f2; add.rn.f32 %f2, %f2, %f3; add.rn.f32 %f3, %f3, %f4; add.rn.f32 %f4, %f4, %f1;\n\
         mov.b64 %b, {%f1, %f2}; mov.b64 %c, {%f3, %f4}; st.global.v2.u64 [%a], {%b, %c};",
    ),
    ("barriers", "bar.sync 0; setp.eq.u32 %q2, %r1, 7; vote.sync.any.pred %q3, %q2, -1;"),
];

fn program(body: &str) -> Arc<Program> {
    let source = format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p) {{\n\
         .reg .b64 %p, %a, %b, %c, %d, %e;\n.reg .b32 %r<10>;\n.reg .pred %q<4>;\n.reg .f32 %f<6>;\n\
         ld.param.u64 %p, [p]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mul.wide.u32 %a, %r2, {BYTES}; add.s64 %p, %p, %a;\n\
         mul.wide.u32 %b, %r1, 16; add.s64 %a, %p, %b; add.s64 %e, %p, {BYTES};\n\
         LOOP: {body}\n add.s64 %a, %a, {}; setp.lt.u64 %q1, %a, %e; @%q1 bra LOOP; ret;\n}}\n",
        16 * THREADS
    );
    Arc::new(Program::load(&source, "k").expect("the bench's own kernel"))
}

struct Bench {
    machine: Machine,
    buffer: Vec<u64>,
    mapping: Option<Mapping>,
}

impl Bench {
    fn new(blocks: u32) -> Self {
        let mut bench = Bench {
            machine: Machine::new(),
            buffer: vec![0; blocks as usize * BYTES / 8 + 2],
            mapping: None,
        };
        let bytes = 8 * bench.buffer.len();
        // SAFETY: the buffer lives as long as the mapping, and nobody else looks at it.
        bench.mapping =
            Some(unsafe { bench.machine.map(bench.start(), bytes - 16, "the bench's buffer") });
        bench
    }

    fn start(&self) -> u64 {
        (self.buffer.as_ptr().expose_provenance() as u64).next_multiple_of(16)
    }

    fn grid(&self, program: &Arc<Program>, blocks: u32) -> Arc<Grid> {
        let launch = Launch::new(program, blocks, THREADS, self.start().to_le_bytes().to_vec());
        self.machine.launch(launch).expect("the bench's own launch")
    }
}

fn lockstep(grid: &Arc<Grid>, options: Options) -> Counts {
    let mut schedule = Lockstep::new(options);
    schedule.start(grid);
    schedule.run().expect("the bench's kernels are right")[0].1
}

fn kinds(c: &mut Criterion) {
    let mut group = c.benchmark_group("emulator/one core");
    for (name, body) in KERNELS {
        let (program, bench) = (program(body), Bench::new(BLOCKS));
        let counts = lockstep(&bench.grid(&program, BLOCKS), Options::plain());
        group.throughput(Throughput::Elements(counts.lane_instructions));
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| black_box(run_on_threads(&[bench.grid(&program, BLOCKS)], 1).is_ok()));
        });
    }
    group.finish();
}

fn growth(c: &mut Criterion) {
    let mut group = c.benchmark_group("emulator/blocks");
    let program = program(KERNELS[2].1);
    for threads in [1, 2] {
        for blocks in [1, 2, 4, 8, 16, 32] {
            let bench = Bench::new(blocks);
            let counts = lockstep(&bench.grid(&program, blocks), Options::plain());
            group.throughput(Throughput::Elements(counts.lane_instructions));
            group.bench_function(BenchmarkId::new(format!("{threads} threads"), blocks), |b| {
                b.iter(|| {
                    black_box(run_on_threads(&[bench.grid(&program, blocks)], threads).is_ok())
                });
            });
        }
    }
    group.finish();
}

fn checks(c: &mut Criterion) {
    let mut group = c.benchmark_group("emulator/checks");
    let (program, bench) = (program(KERNELS[2].1), Bench::new(BLOCKS));
    let checks = |races, uninitialised, adversity| Some(Checks { races, uninitialised, adversity });
    for (name, checks) in [
        ("plain", None),
        ("races", checks(true, true, None)),
        ("late stores", checks(false, false, Some(Adversity::default()))),
        ("all", checks(true, true, Some(Adversity::default()))),
    ] {
        let options = Options { checks, schedule: WarpSchedule::RoundRobin, ..Options::seeded(1) };
        let counts = lockstep(&bench.grid(&program, BLOCKS), options);
        group.throughput(Throughput::Elements(counts.lane_instructions));
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| black_box(lockstep(&bench.grid(&program, BLOCKS), options)));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(std::time::Duration::from_secs(2));
    targets = kinds, growth, checks
}
criterion_main!(benches);
