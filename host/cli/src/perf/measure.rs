//! One thread's part in a measurement: fill, warm up, time, check.
//!
//! Timed as nccl-tests times: a thread enqueues all iterations on its ranks' streams, then waits for
//! the streams; what it waited, over the iterations, is the time of a call. Nothing that is timed is
//! checked and nothing that is checked is timed: the checked calls come after, on fresh data.
//!
//! A result lies between two guard zones. What a collective writes outside of its result is counted as
//! wrong, as is a change of its input.

use std::time::{Duration, Instant};

use ferroccl::{Communicator, DeviceBuffer, Operator, ReduceOp, Result, Stream, Window, group};
use jiff::Zoned;

use super::args::PerfArgs;
use super::data::{self, Case, PERIOD, TestElement, with_element_type};
use super::emulated::{CallCounts, Emulator};
use super::gpus::{Clock, Graph};
use super::iterations;
use super::operation::{Operation, Shape};
use super::planned::Planned;
use super::progress::CallCount;
use super::region::{Answers, Call, Content, GUARD, Place};
use super::sweep::Sweep;
use super::table::{Cell, Row};
use super::team::{Member, Rank};
use super::values::Blocking;

/// What happens on the leading thread.
pub(crate) enum SweepEvent {
    /// A size begins, of so many bytes.
    Begin(u64),
    /// A line is there.
    Row(Box<Row>),
}

/// Measures everything `args` asks for, as often as it does; `stage` is told of each line, on the leading thread only, which also
/// counts its calls.
pub(crate) fn run<E: From<ferroccl::Error>>(
    member: &Member,
    args: &PerfArgs,
    emulator: Option<&Emulator>,
    sweep: Sweep,
    calls: &CallCount,
    stage: &mut dyn FnMut(SweepEvent) -> Result<(), E>,
) -> Result<(), E> {
    let mut cycle = 0;
    while args.run_cycles == 0 || cycle < args.run_cycles {
        cycle += 1;
        run_once(member, args, emulator, sweep, calls, stage)?;
    }
    Ok(())
}

fn run_once<E: From<ferroccl::Error>>(
    member: &Member,
    args: &PerfArgs,
    emulator: Option<&Emulator>,
    sweep: Sweep,
    progress: &CallCount,
    stage: &mut dyn FnMut(SweepEvent) -> Result<(), E>,
) -> Result<(), E> {
    let ranks = member.layout().world_size();
    for &data_type in &args.datatype.0 {
        with_element_type!(data_type, T => {
            let buffers = Buffers::<T>::of_each_rank(member, sweep, args)?;
            let _windows = if args.windows() { register(member, &buffers)? } else { Vec::new() };
            for redop in args.redops() {
                let bench = Bench::new(member, args, emulator, redop, &buffers, progress)?;
                for root in args.roots(ranks) {
                    for shape in args.shapes(sweep, data_type, ranks) {
                        if member.leads() {
                            stage(SweepEvent::Begin(bytes::<T>(shape.largest())))?;
                        }
                        let line = bench.line(shape, root)?;
                        if member.leads() {
                            stage(SweepEvent::Row(Box::new(line)))?;
                        }
                    }
                }
            }
        });
    }
    Ok(())
}

/// The buffers of one rank, with guard zones on both sides of what is used.
struct Buffers<T> {
    send: DeviceBuffer<T>,
    recv: DeviceBuffer<T>,
}

impl<T: TestElement> Buffers<T> {
    /// With `-u` they begin that far into their memory.
    fn of_each_rank(member: &Member, sweep: Sweep, args: &PerfArgs) -> Result<Vec<Self>> {
        let first = args.unalign as usize;
        let len = sweep.largest(size_of::<T>()).saturating_add(2 * GUARD);
        let all = len.saturating_add(first);
        let buffers = |rank: &Rank| {
            let device = rank.comm.device();
            let buffer = || match args.windows() {
                true => device.alloc_shared(all),
                false => Ok(device.alloc(all)?.slice(first..all)),
            };
            Ok(Buffers { send: buffer()?, recv: buffer()? })
        };
        member.ranks.iter().map(buffers).collect()
    }

    fn input(&self, call: &Call) -> DeviceBuffer<T> {
        let buffer = if call.place == Place::In { &self.recv } else { &self.send };
        buffer.slice(call.input())
    }

    fn output(&self, call: &Call) -> DeviceBuffer<T> {
        self.recv.slice(call.output())
    }
}

/// Registers the buffers of this thread's ranks, as all threads do.
fn register<T: TestElement>(member: &Member, buffers: &[Buffers<T>]) -> Result<Vec<Window>> {
    let ranks = || member.ranks.iter().map(|rank| &rank.comm);
    let send = Communicator::register_windows(ranks().zip(buffers.iter().map(|b| &b.send)))?;
    let recv = Communicator::register_windows(ranks().zip(buffers.iter().map(|b| &b.recv)))?;
    Ok(send.into_iter().chain(recv).collect())
}

/// One type and operator on this thread's ranks.
struct Bench<'a, T> {
    member: &'a Member,
    args: &'a PerfArgs,
    emulator: Option<&'a Emulator>,
    /// What is combined; nothing where data only move.
    redop: Option<ReduceOp>,
    case: Case,
    buffers: &'a [Buffers<T>],
    /// Each rank's operator: of pre-multiplied sums every other one has its scalar in device memory.
    operators: Vec<Operator<T>>,
    answers: Answers<T>,
    progress: &'a CallCount,
}

/// A size, a root and a place.
#[derive(Clone, Copy)]
struct Point {
    shape: Shape,
    root: Option<u32>,
    place: Place,
}

impl<'a, T: TestElement> Bench<'a, T> {
    fn new(
        member: &'a Member,
        args: &'a PerfArgs,
        emulator: Option<&'a Emulator>,
        redop: Option<ReduceOp>,
        buffers: &'a [Buffers<T>],
        progress: &'a CallCount,
    ) -> Result<Self> {
        // What only moves may be anything: the data of a maximum are.
        let op = redop.unwrap_or(ReduceOp::Max);
        let case = Case { op, ranks: member.layout().world_size() };
        let operators = member.ranks.iter().map(|rank| operator(rank, op));
        let operators = operators.collect::<Result<_>>()?;
        let answers = Answers::new(case);
        Ok(Bench { member, args, emulator, redop, case, buffers, operators, answers, progress })
    }

    /// Measures one size, out of place and in place.
    fn line(&self, shape: Shape, root: Option<u32>) -> Result<Row> {
        if self.member.leads() {
            self.progress.begin(self.calls_of_a_line());
        }
        let cell = |place| self.cell(Point { shape, root, place });
        let out_of_place = cell(Place::Out)?;
        let in_place = self.args.collective.in_place().then(|| cell(Place::In)).transpose()?;
        let comm = &self.member.ranks[0].comm;
        let planned = Planned::of(comm, self.args, shape, T::TYPE, self.redop)?;
        Ok(Row {
            size: bytes::<T>(shape.largest()),
            count: shape.count as u64,
            data_type: T::TYPE,
            redop: self.redop,
            root: root.map_or(-1, i64::from),
            planned,
            out_of_place,
            in_place,
            measured: Zoned::now(),
        })
    }

    /// The calls of a line, for its progress.
    fn calls_of_a_line(&self) -> u64 {
        let PerfArgs { iters, agg_iters, warmup_iters, check, .. } = *self.args;
        let timed = u64::from(iters) * if self.args.per_iter_timing() { 2 } else { 1 };
        let calls = (u64::from(warmup_iters) + timed) * u64::from(agg_iters) + u64::from(check);
        calls * if self.args.collective.in_place() { 2 } else { 1 }
    }

    /// The ranks' common result of one measurement.
    fn cell(&self, at: Point) -> Result<Cell> {
        let (time, counts) = self.time(at)?;
        let iterations =
            iterations::measure(self.member, self.args, self.emulator, || self.call(at))?;
        let mut wrong = 0;
        for _ in 0..self.args.check {
            wrong += self.check(at)?;
        }
        let all = self.member.all_gather(&[time.to_bits(), wrong])?;
        let times: Vec<f64> = all.iter().map(|words| f64::from_bits(words[0])).collect();
        let wrong = all.iter().map(|words| words[1]).sum();
        let wrong = (self.args.check > 0).then_some(wrong);
        let operation = self.args.collective;
        let factor = operation.bus_factor(self.case.ranks);
        let bytes = bytes::<T>(operation.moved(at.shape));
        Ok(Cell {
            counts,
            iterations,
            ..Cell::new(self.args.average.of(&times), bytes, factor, wrong)
        })
    }

    /// Microseconds of one call, as this thread sees it; and the figures of one, in the emulator.
    fn time(&self, at: Point) -> Result<(f64, Option<CallCounts>)> {
        let calls = u64::from(self.args.iters) * u64::from(self.args.agg_iters);
        self.fill(at)?;
        for _ in 0..u64::from(self.args.warmup_iters) * u64::from(self.args.agg_iters) {
            self.call(at)?;
        }
        self.member.synchronize()?;
        self.member.barrier()?;
        if let Some(emulator) = self.emulator {
            emulator.begin(self.member)?;
        }
        let graph =
            Graph::capture(self.args, self.member, || (0..calls).try_for_each(|_| self.call(at)))?;
        let rounds = graph.as_ref().map_or(1, |_| u64::from(self.args.cudagraph));
        let mut untimed = Duration::ZERO;
        let clock = Clock::start(self.member)?;
        let start = Instant::now();
        for _ in 0..rounds {
            match &graph {
                Some(graph) => graph.launch(self.member)?,
                None => {
                    for iteration in 1..=calls {
                        self.call(at)?;
                        untimed += self.wait(iteration)?;
                    }
                }
            }
        }
        let enqueued = start.elapsed().saturating_sub(untimed);
        clock.stop(self.member)?;
        self.member.synchronize()?;
        let elapsed = || start.elapsed().saturating_sub(untimed).as_secs_f64();
        // The GPUs' clocks also count what ranks waited for each other.
        let clock = if untimed.is_zero() { clock.seconds(self.member)? } else { None };
        let ended = clock.unwrap_or_else(elapsed);
        if let Some(emulator) = self.emulator.filter(|_| self.member.leads()) {
            let place = if at.place == Place::In { "in place" } else { "out of place" };
            let bytes = bytes::<T>(at.shape.send.max(at.shape.recv));
            emulator.note_path(&format!("{calls} of {bytes} bytes, {place}"))?;
        }
        let ended = self.emulator.and_then(Emulator::simulated).unwrap_or(ended);
        let time = if self.args.report_cputime { enqueued.as_secs_f64() } else { ended };
        let calls = calls * rounds;
        let delivered = self.args.collective.delivered(at.shape, self.case.ranks);
        let counts = match self.emulator {
            Some(emulator) => {
                emulator.end(self.member, calls, delivered * size_of::<T>() as u64)?
            }
            None => None,
        };
        Ok((time * 1e6 / calls as f64, counts))
    }

    /// Waits after the `call`-th call, as `-z` says; gives the time that does not count.
    fn wait(&self, call: u64) -> Result<Duration> {
        let mut untimed = Duration::ZERO;
        match self.args.blocking {
            Blocking::Nothing => {}
            Blocking::Call => self.member.synchronize()?,
            Blocking::CallAndRanks => {
                self.member.synchronize()?;
                self.member.barrier()?;
            }
            Blocking::Iteration if call.is_multiple_of(self.args.agg_iters.into()) => {
                self.member.synchronize()?;
                let start = Instant::now();
                self.member.barrier()?;
                untimed = start.elapsed();
            }
            Blocking::Iteration => {}
        }
        Ok(untimed)
    }

    /// This thread's ranks, each with its buffers and its part in a call.
    fn calls(&self, at: Point) -> impl Iterator<Item = (&Rank, &Buffers<T>, Call)> {
        let Point { shape, root, place } = at;
        let (operation, ranks) = (self.args.collective, self.case.ranks);
        self.member.ranks.iter().zip(self.buffers).map(move |(rank, buffers)| {
            let (root, me) = (root.unwrap_or(0), rank.comm.rank());
            (rank, buffers, Call { operation, shape, place, rank: me, ranks, root })
        })
    }

    /// Enqueues one call on each rank.
    fn call(&self, at: Point) -> Result<()> {
        if self.member.leads() {
            self.progress.another();
        }
        let calls = self.calls(at).zip(&self.operators);
        for ((Rank { comm, stream }, buffers, call), op) in calls {
            let op = || op.clone();
            let (input, output) = (buffers.input(&call), buffers.output(&call));
            match self.args.collective {
                Operation::AllReduce => comm.all_reduce(&input, &output, op(), stream)?,
                Operation::AllGather => comm.all_gather(&input, &output, stream)?,
                Operation::ReduceScatter => comm.reduce_scatter(&input, &output, op(), stream)?,
                Operation::Broadcast => comm.broadcast(&input, &output, call.root, stream)?,
                Operation::Reduce => comm.reduce(&input, &output, op(), call.root, stream)?,
                Operation::SendRecv => {
                    let (next, previous) = (call.rank + 1, call.rank + call.ranks - 1);
                    group(|| {
                        comm.send(&input, next % call.ranks, stream)?;
                        comm.recv(&output, previous % call.ranks, stream)
                    })?;
                }
                Operation::AllToAll => comm.all_to_all(&input, &output, stream)?,
                Operation::Gather => comm.gather(&input, &output, call.root, stream)?,
                Operation::Scatter => comm.scatter(&input, &output, call.root, stream)?,
                Operation::Hypercube => hypercube(comm, stream, &input, &output, &call)?,
            }
        }
        Ok(())
    }

    /// Enqueues the ranks' inputs.
    fn fill(&self, at: Point) -> Result<()> {
        for (rank, buffers, call) in self.calls(at) {
            if call.place == Place::Out || call.sends() {
                let input = buffers.input(&call);
                self.answers
                    .with_input(call.rank, |pattern| fill(&input, pattern, &rank.stream))?;
            }
        }
        Ok(())
    }

    /// Elements that are wrong on this thread's ranks after one call on fresh data.
    fn check(&self, at: Point) -> Result<u64> {
        for (rank, buffers, call) in self.calls(at) {
            let poison = data::poison(call.rank, PERIOD);
            fill(&buffers.recv.slice(..call.body() + 2 * GUARD), &poison, &rank.stream)?;
        }
        self.fill(at)?;
        self.call(at)?;
        self.member.synchronize()?;
        let mut wrong = 0;
        let mut got = data::poison::<T>(0, PERIOD);
        for (Rank { stream, .. }, buffers, call) in self.calls(at) {
            let poison = data::poison(call.rank, GUARD);
            let mut wrong_in = |buffer: &DeviceBuffer<T>, content| {
                for start in (0..buffer.len()).step_by(PERIOD) {
                    let part = buffer.slice(start..start + PERIOD);
                    let got = &mut got[..part.len()];
                    part.copy_to(got, stream)?;
                    wrong += self.answers.wrong(got, content, start, &poison);
                }
                Ok::<(), ferroccl::Error>(())
            };
            let body = GUARD..GUARD + call.body();
            for guard in [0..body.start, body.end..body.end + GUARD] {
                wrong_in(&buffers.recv.slice(guard), Content::Untouched)?;
            }
            let body = buffers.recv.slice(body);
            for (range, content) in call.expected() {
                wrong_in(&body.slice(range), content)?;
            }
            if call.place == Place::Out {
                wrong_in(&buffers.input(&call), Content::Input(call.rank, 0))?;
            }
        }
        Ok(wrong)
    }
}

/// Enqueues an all-gather in rounds: in the i-th a rank exchanges the 2^i blocks that it has with the rank whose number
/// differs in bit i.
fn hypercube<T: TestElement>(
    comm: &Communicator,
    stream: &Stream,
    input: &DeviceBuffer<T>,
    output: &DeviceBuffer<T>,
    call: &Call,
) -> Result<()> {
    let (me, n, block) = (call.rank, call.ranks, call.shape.count);
    let blocks = |first: u32, many: u32| {
        let start = first as usize * block;
        output.slice(start..start + many as usize * block)
    };
    if call.place == Place::Out {
        group(|| {
            comm.send(input, me, stream)?;
            comm.recv(&blocks(me, 1), me, stream)
        })?;
    }
    for bit in (0..n.trailing_zeros()).map(|i| 1 << i) {
        let (mine, peer) = (me & !(bit - 1), me ^ bit);
        group(|| {
            comm.send(&blocks(mine, bit), peer, stream)?;
            comm.recv(&blocks(mine ^ bit, bit), peer, stream)
        })?;
    }
    Ok(())
}

fn bytes<T>(elements: usize) -> u64 {
    (elements * size_of::<T>()) as u64
}

/// What a rank calls with.
fn operator<T: TestElement>(rank: &Rank, op: ReduceOp) -> Result<Operator<T>> {
    let (device, factor) = (rank.comm.device(), T::factor(rank.comm.rank()));
    Ok(match op {
        ReduceOp::PreMulSum if rank.comm.rank() % 2 == 1 => {
            Operator::pre_mul_sum_at(&device.upload(&[factor])?)
        }
        ReduceOp::PreMulSum => Operator::pre_mul_sum(factor),
        builtin => builtin.into(),
    })
}

/// Enqueues `pattern`, as often as it takes, into all of `buffer`.
fn fill<T: TestElement>(buffer: &DeviceBuffer<T>, pattern: &[T], stream: &Stream) -> Result<()> {
    for start in (0..buffer.len()).step_by(PERIOD) {
        let part = buffer.slice(start..start + PERIOD);
        part.copy_from(&pattern[..part.len()], stream)?;
    }
    Ok(())
}
