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
//!
//! A message is at the end of a link when its last byte is; its first byte is on the next link before. So on an empty way it takes as long
//! as on the slowest link, and the latencies of all.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::SimulateError;
use crate::costs::{Costs, RATE};
use crate::stage::{NONE, Stage, Step};
use crate::trace::StepSpan;

/// What the links of a cluster have carried.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkState {
    /// Until when each is taken.
    free: Vec<f64>,
    /// Bytes that have passed.
    pub bytes: Vec<f64>,
    /// The longest that a message has waited.
    pub waited: Vec<f64>,
}

impl LinkState {
    pub(crate) fn new(links: usize) -> Self {
        LinkState { free: vec![0.0; links], bytes: vec![0.0; links], waited: vec![0.0; links] }
    }

    /// Sends `bytes` over links from `now` on; the time at which all are there.
    fn pass(&mut self, way: &[u32], links: &[(f64, f64)], now: f64, bytes: f64) -> f64 {
        let (mut head, mut tail) = (now, now);
        for &link in way {
            let i = link as usize;
            let (bw, latency) = links[i];
            let begin = head.max(self.free[i]);
            self.waited[i] = self.waited[i].max(begin - head);
            let end = begin + bytes / (bw * RATE);
            self.free[i] = end;
            self.bytes[i] += bytes;
            head = begin + latency;
            tail = (tail + latency).max(end + latency);
        }
        tail
    }
}

/// A connection as it is in a run.
#[derive(Clone, Copy, Debug, Default)]
struct ConnRun {
    sent: u32,
    eaten: u32,
    /// Until when its proxy, and its share of the links, are taken.
    proxy: f64,
    share: f64,
}

/// A block as it is in a run.
#[derive(Clone, Copy, Debug, Default)]
struct BlockRun {
    pc: u32,
    /// When its last step ended.
    time: f64,
    /// When the step that is under way began.
    began: f64,
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

/// A run of a stage.
pub(crate) struct Run<'a> {
    stage: &'a Stage,
    costs: &'a Costs,
    links: &'a [(f64, f64)],
    state: &'a mut LinkState,
    blocks: Vec<BlockRun>,
    conns: Vec<ConnRun>,
    /// By connection and step modulo `mask + 1`: when its first data is there, when all is, and when its slot has been given back.
    first: Vec<f64>,
    there: Vec<f64>,
    eaten: Vec<f64>,
    mask: u32,
    trace: Option<(&'a mut Vec<StepSpan>, usize)>,
    steps: u64,
}

impl<'a> Run<'a> {
    /// `starts` is when each rank begins.
    pub(crate) fn new(
        stage: &'a Stage,
        costs: &'a Costs,
        links: &'a [(f64, f64)],
        state: &'a mut LinkState,
        starts: &[f64],
        trace: Option<(&'a mut Vec<StepSpan>, usize)>,
    ) -> Self {
        let slots = costs.slots.next_power_of_two();
        let block = |block: &crate::stage::Block| BlockRun {
            time: starts.get(block.rank as usize).copied().unwrap_or(0.0),
            ..BlockRun::default()
        };
        let room = stage.conns.len() * slots as usize;
        Run {
            stage,
            costs,
            links,
            state,
            blocks: stage.blocks.iter().map(block).collect(),
            conns: vec![ConnRun::default(); stage.conns.len()],
            first: vec![0.0; room],
            there: vec![0.0; room],
            eaten: vec![0.0; room],
            mask: slots - 1,
            trace,
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

    fn conn(&self, block: u32, number: u8) -> u32 {
        let first = self.stage.blocks[block as usize].conns;
        self.stage.block_conns[first as usize + number as usize]
    }

    /// When a block may take a step; `None` while it is not known.
    fn ready(&self, block: u32, step: &Step) -> Option<f64> {
        let mut time = self.blocks[block as usize].time;
        for number in step.recv.into_iter().take_while(|number| *number != NONE) {
            let conn = self.conn(block, number);
            let ConnRun { sent, eaten, .. } = self.conns[conn as usize];
            if eaten >= sent {
                return None;
            }
            time = time.max(self.first[self.slot(conn, eaten)]);
        }
        for number in step.send.into_iter().take_while(|number| *number != NONE) {
            let conn = self.conn(block, number);
            let ConnRun { sent, eaten, .. } = self.conns[conn as usize];
            if let Some(needed) = sent.checked_sub(self.costs.slots) {
                let told = self.costs.credit_step(needed);
                if eaten <= told {
                    return None;
                }
                time = time.max(self.eaten[self.slot(conn, told)]);
            }
        }
        Some(time)
    }

    /// Ends a step at `end`: its slots are given back, and what it has sent as a whole is under way. `ordered`: links have queues.
    fn finish(&mut self, block: u32, step: &Step, end: f64, ordered: bool) {
        let costs = self.costs;
        for number in step.recv.into_iter().take_while(|number| *number != NONE) {
            let conn = self.conn(block, number);
            let remote = self.stage.conns[conn as usize].remote;
            let at = self.slot(conn, self.conns[conn as usize].eaten);
            self.eaten[at] = end + if remote { costs.net_flight } else { costs.flight };
            self.conns[conn as usize].eaten += 1;
        }
        for number in step.send.into_iter().take_while(|number| *number != NONE) {
            let conn = self.conn(block, number);
            let of = &self.stage.conns[conn as usize];
            if costs.by_lines && !of.remote {
                continue; // `start` has sent it
            }
            let at = self.slot(conn, self.conns[conn as usize].sent);
            let wire = f64::from(step.bytes) * costs.wire;
            let there = if !of.remote {
                end + costs.flight
            } else {
                let run = &mut self.conns[conn as usize];
                run.proxy = run.proxy.max(end) + costs.message;
                if ordered {
                    let way = &self.stage.links[of.way.0 as usize..of.way.1 as usize];
                    self.state.pass(way, self.links, run.proxy, wire) + costs.net_flight
                } else {
                    run.share = run.share.max(run.proxy) + wire / of.rate;
                    run.share + of.latency + costs.net_flight
                }
            };
            self.first[at] = there;
            self.there[at] = there;
            self.conns[conn as usize].sent += 1;
        }
        let run = &mut self.blocks[block as usize];
        (run.time, run.pc) = (end, run.pc + 1);
        self.steps += 1;
    }

    /// Starts a step at `begin`: what is sent within the host passes the links while it is copied, and lines are there before all are. The
    /// time at which the step ends.
    fn start(&mut self, block: u32, step: &Step, begin: f64, ordered: bool) -> f64 {
        let costs = self.costs;
        self.blocks[block as usize].began = begin;
        let copy = begin + costs.kernel;
        let mut end = copy + f64::from(step.bytes) / costs.block_rate;
        if costs.by_lines {
            for number in step.recv.into_iter().take_while(|number| *number != NONE) {
                let conn = self.conn(block, number);
                let all = self.there[self.slot(conn, self.conns[conn as usize].eaten)];
                end = end.max(all + costs.kernel);
            }
        }
        let wire = f64::from(step.bytes) * costs.wire;
        for number in step.send.into_iter().take_while(|number| *number != NONE) {
            let of = &self.stage.conns[self.conn(block, number) as usize];
            if of.remote {
                continue;
            }
            end = end.max(if ordered {
                let way = &self.stage.links[of.way.0 as usize..of.way.1 as usize];
                self.state.pass(way, self.links, copy, wire)
            } else {
                copy + wire / of.rate
            });
        }
        if costs.by_lines {
            for number in step.send.into_iter().take_while(|number| *number != NONE) {
                let conn = self.conn(block, number);
                if !self.stage.conns[conn as usize].remote {
                    let at = self.slot(conn, self.conns[conn as usize].sent);
                    (self.first[at], self.there[at]) = (copy + costs.flight, end + costs.flight);
                    self.conns[conn as usize].sent += 1;
                }
            }
        }
        end
    }

    /// The blocks that a step may have let go on.
    fn neighbours(&self, block: u32, step: &Step) -> impl Iterator<Item = u32> + use<> {
        let number = |number: u8| (number != NONE).then(|| self.conn(block, number));
        let from = step.recv.map(|n| number(n).map(|conn| self.stage.conns[conn as usize].from));
        let to = step.send.map(|n| number(n).map(|conn| self.stage.conns[conn as usize].to));
        from.into_iter().chain(to).flatten().filter(|block| *block != u32::MAX)
    }

    /// By time.
    pub(crate) fn in_order(mut self) -> Result<Vec<f64>, SimulateError> {
        let mut queue = Queue::default();
        for block in 0..self.blocks.len() as u32 {
            self.announce(block, &mut queue);
        }
        while let Some((time, block, ends)) = queue.pop() {
            let Some(step) = self.next(block) else { continue };
            if ends {
                self.finish(block, &step, time, true);
                self.blocks[block as usize].busy = false;
                self.keep(block, &step, time);
                self.announce(block, &mut queue);
            } else {
                let end = self.start(block, &step, time, true);
                queue.push(end, block, true);
                if !self.costs.by_lines {
                    continue;
                }
            }
            for other in self.neighbours(block, &step) {
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

    fn keep(&mut self, block: u32, step: &Step, end: f64) {
        let of = &self.stage.blocks[block as usize];
        let began = self.blocks[block as usize].began;
        if let Some((trace, most)) = &mut self.trace
            && trace.len() < *most
        {
            let (rank, channel, half) = (of.rank, of.channel, of.half);
            trace.push(StepSpan {
                rank,
                channel,
                half,
                begin_us: began,
                end_us: end,
                bytes: step.bytes,
            });
        }
    }

    /// Where links are shared.
    pub(crate) fn in_any_order(mut self) -> Result<Vec<f64>, SimulateError> {
        let mut queue: Vec<u32> = (0..self.blocks.len() as u32).rev().collect();
        for run in &mut self.blocks {
            run.busy = true;
        }
        while let Some(block) = queue.pop() {
            self.blocks[block as usize].busy = false;
            let mut last = None;
            while let Some(step) = self.next(block) {
                let Some(begin) = self.ready(block, &step) else { break };
                let end = self.start(block, &step, begin, false);
                self.finish(block, &step, end, false);
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
        for other in self.neighbours(block, step) {
            let run = &mut self.blocks[other as usize];
            if !run.busy && other != block {
                run.busy = true;
                queue.push(other);
            }
        }
    }

    /// When each block has ended.
    fn all_done(self) -> Result<Vec<f64>, SimulateError> {
        let done = |(block, run): (&crate::stage::Block, &BlockRun)| {
            run.pc as usize >= self.stage.programs[block.program as usize].len()
        };
        let blocks = self.stage.blocks.iter().zip(&self.blocks);
        let waiting = blocks.filter(|both| !done(*both)).count();
        if waiting > 0 {
            let blocks = self.blocks.len();
            return Err(SimulateError::Stuck { steps: self.steps, waiting, blocks });
        }
        Ok(self.blocks.iter().map(|run| run.time).collect())
    }
}
