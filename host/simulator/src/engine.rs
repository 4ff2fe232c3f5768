//! Runs a stage: when each block takes each of its steps.
//!
//! A block takes a step when it has what it receives, and credit for what it sends; both are times that other blocks' steps set. So a run
//! is a queue of blocks, in one of two orders:
//!
//! * **By time**, for [`Detail::Steps`](crate::Detail::Steps). A message passes each link of its way behind those that came before it. The
//!   order of events decides who is first.
//! * **In any order**, where links are shared. No message waits for those of another connection, so a block goes on as far as it can.
//!
//! ```text
//! step of a block    wait for data and credit │ kernel │ copy ────────────► the next step
//! within a host                                        │ links of the way │ flight ─► data is there
//! to another host                                              copy │ proxy │ links │ flight ─► data is there
//! credit                                                       copy │ flight ─► the sender may go on
//! ```
//!
//! With LL and LL128 a receiver within the host takes lines as they come: its step begins when the first ones are there, and ends after the
//! last. Over a network, and with Simple, a step is sent as a whole.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::mem;

use crate::SimulateError;
use crate::carrier::{Carrier, Queues, Shares};
use crate::costs::Costs;
use crate::moment::Moment;
use crate::stage::{NONE, Stage, Step};
use crate::trace::StepSpan;

/// A connection as it is in a run.
#[derive(Clone, Copy, Debug, Default)]
struct ConnRun<T> {
    sent: u32,
    eaten: u32,
    /// Until when its proxy is taken.
    proxy: T,
}

/// A block as it is in a run.
#[derive(Clone, Copy, Debug, Default)]
struct BlockRun<T> {
    pc: u32,
    /// When its last step ended.
    time: T,
    /// Whether it is under way, or in the queue.
    busy: bool,
}

/// Beginnings and ends of steps, by time. Of two at one time the one that was put in first comes first.
#[derive(Debug, Default)]
struct Queue {
    /// Bits of positive numbers are in the numbers' order.
    events: BinaryHeap<Reverse<(u64, u64, u32, bool)>>,
    made: u64,
}

impl Queue {
    fn push(&mut self, time: f64, block: u32, ends: bool) {
        self.events.push(Reverse((time.to_bits(), self.made, block, ends)));
        self.made += 1;
    }

    /// The time, the block, and whether its step ends.
    fn pop(&mut self) -> Option<(f64, u32, bool)> {
        let Reverse((time, _, block, ends)) = self.events.pop()?;
        Some((f64::from_bits(time), block, ends))
    }
}

/// Steps that are kept, and how many may be.
pub(crate) type Kept<'a> = Option<(&'a mut Vec<StepSpan>, usize)>;

/// A run of a stage: its points in time, and what carries its messages.
struct Run<'a, T, C> {
    stage: &'a Stage,
    costs: &'a Costs,
    carrier: C,
    blocks: Vec<BlockRun<T>>,
    conns: Vec<ConnRun<T>>,
    /// By connection and step modulo `mask + 1`: when its first data is there, when all is, and when its slot has been given back.
    first: Vec<T>,
    there: Vec<T>,
    eaten: Vec<T>,
    mask: u32,
    steps: u64,
}

impl<'a, T: Moment, C: Carrier<T>> Run<'a, T, C> {
    /// `start` says when each rank begins.
    fn new(stage: &'a Stage, costs: &'a Costs, carrier: C, start: impl Fn(u32) -> T) -> Self {
        let slots = costs.slots.next_power_of_two();
        let block = |block: &crate::stage::Block| BlockRun {
            time: start(block.rank),
            ..BlockRun::default()
        };
        let room = stage.conns.len() * slots as usize;
        Run {
            stage,
            costs,
            carrier,
            blocks: stage.blocks.iter().map(block).collect(),
            conns: vec![ConnRun::default(); stage.conns.len()],
            first: vec![T::default(); room],
            there: vec![T::default(); room],
            eaten: vec![T::default(); room],
            mask: slots - 1,
            steps: 0,
        }
    }

    fn slot(&self, conn: u32, step: u32) -> usize {
        conn as usize * (self.mask as usize + 1) + (step & self.mask) as usize
    }

    /// The next step of a block, and its number among the connections' list.
    fn next(&self, block: u32) -> Option<Step> {
        let of = &self.stage.blocks[block as usize];
        let program = &self.stage.programs[of.program as usize];
        program.get(self.blocks[block as usize].pc as usize).copied()
    }

    /// When a block may take a step; `None` while it is not known.
    fn ready(&self, block: u32, step: &Step) -> Option<T> {
        let mut time = self.blocks[block as usize].time.clone();
        for number in step.recv.into_iter().take_while(|number| *number != NONE) {
            let conn = self.stage.conn(block, number);
            let ConnRun { sent, eaten, .. } = self.conns[conn as usize];
            if eaten >= sent {
                return None;
            }
            time.or_later(&self.first[self.slot(conn, eaten)]);
        }
        for number in step.send.into_iter().take_while(|number| *number != NONE) {
            let conn = self.stage.conn(block, number);
            let ConnRun { sent, eaten, .. } = self.conns[conn as usize];
            if let Some(needed) = sent.checked_sub(self.costs.slots) {
                let told = self.costs.credit_step(needed);
                if eaten <= told {
                    return None;
                }
                time.or_later(&self.eaten[self.slot(conn, told)]);
            }
        }
        Some(time)
    }

    /// Ends a step at `end`: its slots are given back, and what it has sent as a whole is under way.
    fn finish(&mut self, block: u32, step: &Step, end: T) {
        let costs = self.costs;
        for number in step.recv.into_iter().take_while(|number| *number != NONE) {
            let conn = self.stage.conn(block, number);
            let of = &self.stage.conns[conn as usize];
            let at = self.slot(conn, self.conns[conn as usize].eaten);
            let flight = if of.remote { costs.net_flight } else { costs.flight };
            self.eaten[at] = end.clone().after(flight).seen_on(-of.hosts);
            self.conns[conn as usize].eaten += 1;
        }
        for number in step.send.into_iter().take_while(|number| *number != NONE) {
            let conn = self.stage.conn(block, number);
            let of = &self.stage.conns[conn as usize];
            if costs.by_lines && !of.remote {
                continue; // `start` has sent it
            }
            let at = self.slot(conn, self.conns[conn as usize].sent);
            let there = if of.remote {
                let proxy = &mut self.conns[conn as usize].proxy;
                proxy.or_later(&end);
                *proxy = mem::take(proxy).after(costs.message);
                let wire = f64::from(step.bytes) * costs.wire;
                let there = self.carrier.pass(self.stage, conn, proxy.clone(), wire);
                there.after(costs.net_flight).seen_on(of.hosts)
            } else {
                end.clone().after(costs.flight)
            };
            self.first[at] = there.clone();
            self.there[at] = there;
            self.conns[conn as usize].sent += 1;
        }
        let run = &mut self.blocks[block as usize];
        (run.time, run.pc) = (end, run.pc + 1);
        self.steps += 1;
    }

    /// Starts a step at `begin`: what is sent within the host passes the links while it is copied, and lines are there before all are. The
    /// time at which the step ends.
    fn start(&mut self, block: u32, step: &Step, begin: T) -> T {
        let costs = self.costs;
        let copy = begin.after(costs.kernel);
        let mut end = copy.clone().after(f64::from(step.bytes) / costs.block_rate);
        if costs.by_lines {
            for number in step.recv.into_iter().take_while(|number| *number != NONE) {
                let conn = self.stage.conn(block, number);
                let all = &self.there[self.slot(conn, self.conns[conn as usize].eaten)];
                end.or_later(&all.clone().after(costs.kernel));
            }
        }
        let wire = f64::from(step.bytes) * costs.wire;
        for number in step.send.into_iter().take_while(|number| *number != NONE) {
            let conn = self.stage.conn(block, number);
            if !self.stage.conns[conn as usize].remote {
                end.or_later(&self.carrier.pass(self.stage, conn, copy.clone(), wire));
            }
        }
        if costs.by_lines {
            for number in step.send.into_iter().take_while(|number| *number != NONE) {
                let conn = self.stage.conn(block, number);
                if !self.stage.conns[conn as usize].remote {
                    let at = self.slot(conn, self.conns[conn as usize].sent);
                    self.first[at] = copy.clone().after(costs.flight);
                    self.there[at] = end.clone().after(costs.flight);
                    self.conns[conn as usize].sent += 1;
                }
            }
        }
        end
    }

    /// Takes all steps, in any order.
    fn in_any_order(mut self) -> Result<Vec<T>, SimulateError> {
        let mut queue: Vec<u32> = (0..self.blocks.len() as u32).rev().collect();
        for run in &mut self.blocks {
            run.busy = true;
        }
        while let Some(block) = queue.pop() {
            self.blocks[block as usize].busy = false;
            let mut last = None;
            while let Some(step) = self.next(block) {
                let Some(begin) = self.ready(block, &step) else { break };
                let end = self.start(block, &step, begin);
                self.finish(block, &step, end);
                // Blocks have the same few neighbours, step after step.
                if last.is_none_or(|last: Step| (last.recv, last.send) != (step.recv, step.send)) {
                    self.wake(block, &step, &mut queue);
                }
                last = Some(step);
            }
        }
        self.all_done()
    }

    fn wake(&mut self, block: u32, step: &Step, queue: &mut Vec<u32>) {
        for other in self.stage.neighbours(block, step) {
            let run = &mut self.blocks[other as usize];
            if !run.busy && other != block {
                run.busy = true;
                queue.push(other);
            }
        }
    }

    /// When each block has ended.
    fn all_done(self) -> Result<Vec<T>, SimulateError> {
        let done = |(block, run): (&crate::stage::Block, &BlockRun<T>)| {
            run.pc as usize >= self.stage.programs[block.program as usize].len()
        };
        let blocks = self.stage.blocks.iter().zip(&self.blocks);
        let waiting = blocks.filter(|both| !done(*both)).count();
        if waiting > 0 {
            let blocks = self.blocks.len();
            return Err(SimulateError::Stuck { steps: self.steps, waiting, blocks });
        }
        Ok(self.blocks.into_iter().map(|run| run.time).collect())
    }
}

impl Run<'_, f64, Queues<'_>> {
    /// Takes all steps by time.
    fn in_order(mut self, mut kept: Kept<'_>) -> Result<Vec<f64>, SimulateError> {
        let mut queue = Queue::default();
        // By block, when the step that is under way began.
        let mut began = vec![0.0; self.blocks.len()];
        for block in 0..self.blocks.len() as u32 {
            self.announce(block, &mut queue);
        }
        while let Some((time, block, ends)) = queue.pop() {
            let Some(step) = self.next(block) else { continue };
            if ends {
                self.finish(block, &step, time);
                self.blocks[block as usize].busy = false;
                if let Some((trace, most)) = &mut kept
                    && trace.len() < *most
                {
                    trace.push(self.span(block, &step, (began[block as usize], time)));
                }
                self.announce(block, &mut queue);
            } else {
                began[block as usize] = time;
                let end = self.start(block, &step, time);
                queue.push(end, block, true);
                if !self.costs.by_lines {
                    continue;
                }
            }
            for other in self.stage.neighbours(block, &step) {
                self.announce(other, &mut queue);
            }
        }
        self.all_done()
    }

    /// Puts the next step of a block into the queue, if it is known when it begins.
    fn announce(&mut self, block: u32, queue: &mut Queue) {
        if self.blocks[block as usize].busy {
            return;
        }
        let Some(step) = self.next(block) else { return };
        let Some(begin) = self.ready(block, &step) else { return };
        self.blocks[block as usize].busy = true;
        queue.push(begin, block, false);
    }

    fn span(&self, block: u32, step: &Step, (begin_us, end_us): (f64, f64)) -> StepSpan {
        let of = &self.stage.blocks[block as usize];
        let (rank, channel, half, bytes) = (of.rank, of.channel, of.half, step.bytes);
        StepSpan { rank, channel, half, begin_us, end_us, bytes }
    }
}

/// When each block ends where links have queues. `starts` is when each rank begins.
///
/// # Errors
/// [`SimulateError::Stuck`].
pub(crate) fn run_by_time(
    stage: &Stage,
    costs: &Costs,
    queues: Queues<'_>,
    starts: &[f64],
    kept: Kept<'_>,
) -> Result<Vec<f64>, SimulateError> {
    Run::new(stage, costs, queues, |rank| starts[rank as usize]).in_order(kept)
}

/// When each block ends where connections have shares of the links. `start` says when each rank begins.
///
/// # Errors
/// [`SimulateError::Stuck`].
pub(crate) fn run_on_shares<T: Moment>(
    stage: &Stage,
    costs: &Costs,
    start: impl Fn(u32) -> T,
) -> Result<Vec<T>, SimulateError> {
    Run::new(stage, costs, Shares::new(stage), start).in_any_order()
}
