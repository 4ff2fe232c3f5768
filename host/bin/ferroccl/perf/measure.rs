//! One thread's part in a measurement: fill, warm up, time, check.
//!
//! Timed as nccl-tests times: a thread enqueues all iterations on its ranks' streams, then waits for
//! the streams; what it waited, over the iterations, is the time of a call. Nothing that is timed is
//! checked and nothing that is checked is timed: the checked calls come after, on fresh data.
//!
//! A result lies between two guard zones. What a collective writes outside of its result is counted as
//! wrong, as is a change of its input.

use std::time::Instant;

use ferroccl::{DeviceBuffer, Operator, ReduceOp, Result, Stream};

use super::args::PerfArgs;
use super::data::{self, Case, PERIOD, Reference, TestElement, with_element_type};
use super::emulated::{CallCounts, Emulator};
use super::sweep::Sweep;
use super::table::{Cell, Row, bus_factor};
use super::team::{Member, Rank};
use super::values::Operation;

/// Elements of a guard zone. Results keep the 256-byte alignment of an allocation, whatever their type.
const GUARD: usize = 256;

/// Where the result goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Into another buffer.
    Out,
    /// Over the input.
    In,
}

/// Measures everything `args` asks for; `row` is given each line, on the leading thread only.
pub(crate) fn run<E: From<ferroccl::Error>>(
    member: &Member,
    args: &PerfArgs,
    emulator: Option<&Emulator>,
    sweep: Sweep,
    row: &mut dyn FnMut(Row) -> Result<(), E>,
) -> Result<(), E> {
    for &data_type in &args.datatype.0 {
        with_element_type!(data_type, T => {
            let buffers = Buffers::<T>::of_each_rank(member, sweep)?;
            for &op in &args.op.0 {
                let bench = Bench::new(member, args, emulator, op, &buffers)?;
                for count in sweep.counts(size_of::<T>()) {
                    let line = bench.line(count)?;
                    if member.leads() {
                        row(line)?;
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
    fn of_each_rank(member: &Member, sweep: Sweep) -> Result<Vec<Self>> {
        let len = sweep.largest(size_of::<T>()).saturating_add(2 * GUARD);
        let buffers =
            |_| Ok(Buffers { send: member.device.alloc(len)?, recv: member.device.alloc(len)? });
        member.ranks.iter().map(buffers).collect()
    }

    fn input(&self, place: Place, count: usize) -> DeviceBuffer<T> {
        let buffer = if place == Place::In { &self.recv } else { &self.send };
        buffer.slice(GUARD..GUARD + count)
    }

    fn output(&self, count: usize) -> DeviceBuffer<T> {
        self.recv.slice(GUARD..GUARD + count)
    }
}

/// One type and operator on this thread's ranks.
struct Bench<'a, T> {
    member: &'a Member,
    args: &'a PerfArgs,
    emulator: Option<&'a Emulator>,
    case: Case,
    buffers: &'a [Buffers<T>],
    /// Each rank's operator: of pre-multiplied sums every other one has its scalar in device memory.
    operators: Vec<Operator<T>>,
    /// A period of each rank's input.
    inputs: Vec<Vec<T>>,
    reference: Reference<T>,
}

impl<'a, T: TestElement> Bench<'a, T> {
    fn new(
        member: &'a Member,
        args: &'a PerfArgs,
        emulator: Option<&'a Emulator>,
        op: ReduceOp,
        buffers: &'a [Buffers<T>],
    ) -> Result<Self> {
        let case = Case { op, ranks: member.layout().world_size() };
        let operators = member.ranks.iter().map(|r| operator(member, op, r.comm.rank()));
        let operators = operators.collect::<Result<_>>()?;
        let inputs = member.ranks.iter().map(|r| data::inputs(case, r.comm.rank())).collect();
        let reference = Reference::new(case);
        Ok(Bench { member, args, emulator, case, buffers, operators, inputs, reference })
    }

    /// Measures one size, out of place and in place.
    fn line(&self, count: usize) -> Result<Row> {
        let out_of_place = self.cell(Place::Out, count)?;
        let in_place = self.cell(Place::In, count)?;
        Ok(Row {
            size: (count * size_of::<T>()) as u64,
            count: count as u64,
            data_type: T::TYPE,
            redop: self.case.op,
            root: match self.args.collective {
                Operation::AllReduce => -1,
            },
            out_of_place,
            in_place,
        })
    }

    /// The ranks' common result of one measurement.
    fn cell(&self, place: Place, count: usize) -> Result<Cell> {
        let (time, counts) = self.time(place, count)?;
        let mut wrong = 0;
        for _ in 0..self.args.check {
            wrong += self.check(place, count)?;
        }
        let all = self.member.all_gather(&[time.to_bits(), wrong])?;
        let times: Vec<f64> = all.iter().map(|words| f64::from_bits(words[0])).collect();
        let wrong = all.iter().map(|words| words[1]).sum();
        let wrong = (self.args.check > 0).then_some(wrong);
        let factor = bus_factor(self.args.collective, self.case.ranks);
        let bytes = (count * size_of::<T>()) as u64;
        Ok(Cell { counts, ..Cell::new(self.args.average.of(&times), bytes, factor, wrong) })
    }

    /// Microseconds of one call, as this thread sees it; and the figures of one, in the emulator.
    fn time(&self, place: Place, count: usize) -> Result<(f64, Option<CallCounts>)> {
        let calls = u64::from(self.args.iters) * u64::from(self.args.agg_iters);
        self.fill(place, count)?;
        for _ in 0..u64::from(self.args.warmup_iters) * u64::from(self.args.agg_iters) {
            self.call(place, count)?;
        }
        self.member.synchronize()?;
        self.member.barrier()?;
        if let Some(emulator) = self.emulator {
            emulator.begin(self.member)?;
        }
        let start = Instant::now();
        for _ in 0..calls {
            self.call(place, count)?;
            if self.args.blocking {
                self.member.synchronize()?;
            }
        }
        let enqueued = start.elapsed();
        self.member.synchronize()?;
        let ended = start.elapsed();
        let time = if self.args.report_cputime { enqueued } else { ended };
        let delivered = u64::from(self.case.ranks) * (count * size_of::<T>()) as u64;
        let counts = match self.emulator {
            Some(emulator) => emulator.end(self.member, calls, delivered)?,
            None => None,
        };
        Ok((time.as_secs_f64() * 1e6 / calls as f64, counts))
    }

    /// Enqueues one call on each rank.
    fn call(&self, place: Place, count: usize) -> Result<()> {
        for ((Rank { comm, stream }, buffers), op) in
            self.member.ranks.iter().zip(self.buffers).zip(&self.operators)
        {
            let (input, output) = (buffers.input(place, count), buffers.output(count));
            match self.args.collective {
                Operation::AllReduce => comm.all_reduce(&input, &output, op.clone(), stream)?,
            }
        }
        Ok(())
    }

    /// Enqueues the ranks' inputs.
    fn fill(&self, place: Place, count: usize) -> Result<()> {
        for ((rank, buffers), inputs) in
            self.member.ranks.iter().zip(self.buffers).zip(&self.inputs)
        {
            fill(&buffers.input(place, count), inputs, &rank.stream)?;
        }
        Ok(())
    }

    /// Elements that are wrong on this thread's ranks after one call on fresh data.
    fn check(&self, place: Place, count: usize) -> Result<u64> {
        for (Rank { comm, stream }, buffers) in self.member.ranks.iter().zip(self.buffers) {
            let poison = data::poison(comm.rank(), PERIOD);
            fill(&buffers.recv.slice(..count + 2 * GUARD), &poison, stream)?;
        }
        self.fill(place, count)?;
        self.call(place, count)?;
        self.member.synchronize()?;
        let mut wrong = 0;
        let mut got = data::poison::<T>(0, PERIOD);
        for ((Rank { comm, stream }, buffers), inputs) in
            self.member.ranks.iter().zip(self.buffers).zip(&self.inputs)
        {
            let poison = data::poison(comm.rank(), GUARD);
            let mut wrong_in = |buffer: &DeviceBuffer<T>, judge: &dyn Fn(&[T]) -> u64| {
                for start in (0..buffer.len()).step_by(PERIOD) {
                    let part = buffer.slice(start..start + PERIOD);
                    let got = &mut got[..part.len()];
                    part.copy_to(got, stream)?;
                    wrong += judge(got);
                }
                Ok::<(), ferroccl::Error>(())
            };
            wrong_in(&buffers.output(count), &|got| self.reference.wrong(got))?;
            for guard in [0..GUARD, GUARD + count..count + 2 * GUARD] {
                wrong_in(&buffers.recv.slice(guard), &|got| data::different(got, &poison))?;
            }
            if place == Place::Out {
                wrong_in(&buffers.input(place, count), &|got| data::different(got, inputs))?;
            }
        }
        Ok(wrong)
    }
}

/// What a rank calls with.
fn operator<T: TestElement>(member: &Member, op: ReduceOp, rank: u32) -> Result<Operator<T>> {
    Ok(match op {
        ReduceOp::PreMulSum if rank % 2 == 1 => {
            Operator::pre_mul_sum_at(&member.device.upload(&[T::factor(rank)])?)
        }
        ReduceOp::PreMulSum => Operator::pre_mul_sum(T::factor(rank)),
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
