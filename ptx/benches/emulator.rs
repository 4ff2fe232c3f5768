//! How fast the emulator is: lane-instructions a second, by kind of code, by blocks and threads, and what each check and the clock cost.
//!
//! `elem/s` in the output are instructions of lanes.
#![allow(missing_docs, reason = "criterion's macros make functions of their own")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ferroccl_ptx::emu::{
    Adversity, Checks, Counts, Grid, H100_NVLINK, Launch, Lockstep, Machine, Mapping, Options,
    Program, WarpSchedule, run_on_threads,
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
        Self::of(&Machine::new(), None, blocks as usize * BYTES)
    }

    /// Memory of a machine: the first GPU's unless one is named.
    fn of(machine: &Machine, gpu: Option<u32>, bytes: usize) -> Self {
        let machine = machine.clone();
        let mut bench = Bench { machine, buffer: vec![0; bytes / 8 + 2], mapping: None };
        let (gpu, bytes) = (gpu.or(Some(0)), 8 * bench.buffer.len() - 16);
        // SAFETY: the buffer lives as long as the mapping, and nobody else looks at it.
        let mapping =
            unsafe { bench.machine.map_on(gpu, bench.start(), bytes, "the bench's buffer") };
        bench.mapping = Some(mapping);
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

/// Virtual time: the same kernels with warps in turn, with the clock, and with the clock that notes what is waited for.
fn clock(c: &mut Criterion) {
    let timed = Options::simulated(H100_NVLINK);
    let all =
        [("off", Options::plain()), ("on", timed), ("noted", Options { trace: true, ..timed })];
    for (kernel, body) in KERNELS {
        let mut group = c.benchmark_group(format!("emulator/clock/{kernel}"));
        let (program, bench) = (program(body), Bench::new(BLOCKS));
        for (name, options) in all {
            let counts = lockstep(&bench.grid(&program, BLOCKS), options);
            group.throughput(Throughput::Elements(counts.lane_instructions));
            group.bench_function(BenchmarkId::from_parameter(name), |b| {
                b.iter(|| black_box(lockstep(&bench.grid(&program, BLOCKS), options)));
            });
        }
        group.finish();
    }
    let mut group = c.benchmark_group("emulator/clock/all-reduce");
    let one_shot = OneShot::new(64 << 10);
    for (name, options) in all {
        group.throughput(Throughput::Elements(one_shot.run(options)));
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| black_box(one_shot.run(options)));
        });
    }
    group.finish();
}

/// An all-reduce of two ranks, as NVIDIA's compiler makes it of CUDA C (`tests/fixtures/timing.cu`).
struct OneShot {
    program: Arc<Program>,
    /// Data, flags, input and output of each rank.
    ranks: [[Bench; 4]; 2],
    machine: Machine,
    elements: u32,
    calls: std::cell::Cell<u32>,
}

impl OneShot {
    fn new(bytes: usize) -> Self {
        let source = include_str!("../tests/fixtures/timing.sm_80.ptx");
        let program = Arc::new(Program::load(source, "one_shot").expect("the fixture's kernel"));
        let machine = Machine::new();
        let ranks = [0, 1].map(|gpu| {
            [bytes, 1024, bytes, bytes].map(|bytes| Bench::of(&machine, Some(gpu), bytes))
        });
        let elements = bytes as u32 / 16;
        OneShot { program, ranks, machine, elements, calls: std::cell::Cell::new(0) }
    }

    /// Lane-instructions of a call.
    fn run(&self, options: Options) -> u64 {
        let mut schedule = Lockstep::new(options);
        self.calls.set(self.calls.get() + 1);
        for (rank, [.., input, output]) in self.ranks.iter().enumerate() {
            let mut parameters = Vec::new();
            for which in 0..2 {
                for peer in 0..8 {
                    let address = self.ranks.get(peer).map_or(0, |ranks| ranks[which].start());
                    parameters.extend(address.to_le_bytes());
                }
            }
            parameters.extend([input.start(), output.start()].map(u64::to_le_bytes).as_flattened());
            let numbers = [rank as u32, self.ranks.len() as u32, self.elements, self.calls.get()];
            parameters.extend(numbers.map(u32::to_le_bytes).as_flattened());
            let launch = Launch::new(&self.program, BLOCKS, THREADS, parameters);
            let launch = Launch { device: rank as u32, ..launch };
            schedule.start(&self.machine.launch(launch).expect("the bench's own launch"));
        }
        let ended = schedule.run().expect("the fixture's kernel is right");
        ended.iter().map(|(_, counts)| counts.lane_instructions).sum()
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(std::time::Duration::from_secs(2));
    targets = kinds, growth, checks, clock
}
criterion_main!(benches);
