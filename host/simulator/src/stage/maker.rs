//! Makes stages: asks the kernels for their steps, and joins the blocks by connections.

mod detail;

use std::collections::HashMap;
use std::sync::Arc;

use ferroccl::device::abi::{NO_RANK, TreeLinks};
use ferroccl::enqueue::{ChannelPlace, CountedStep, StepRecorder};
use ferroccl::{Algorithm, Collective};

use super::{Block, Conn, NONE, Program, Stage, Step};
use crate::cluster::{Cluster, Way};
use crate::costs::RATE;
use crate::plan::{CallPlan, Group};
use crate::{Detail, Options, SimulateError};

/// Blocks that take the same steps with neighbours of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Class {
    kernel: usize,
    elements: u64,
    half: u32,
    /// Where the block is in its ring or tree.
    place: [u32; 2],
}

/// A neighbour by what it is to the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Prev,
    Next,
    Up,
    Down(usize),
}

/// A class's steps, and what its connections are: whether it sends, and to whom.
#[derive(Clone, Debug)]
struct Known {
    program: u32,
    conns: Vec<(bool, Role)>,
    /// Bytes that go out on each.
    bytes: Vec<u64>,
}

/// Makes the stages of a plan.
pub(crate) struct StageMaker<'a> {
    cluster: &'a Cluster,
    plan: &'a CallPlan,
    options: &'a Options,
    recorder: StepRecorder,
    classes: HashMap<Class, Known>,
    programs: HashMap<Program, u32>,
    wire: f64,
}

/// A member of a ring: its group's order, and where it is in it.
struct Member<'a> {
    /// The blocks of the group, as the kernel numbers them.
    order: &'a [u32],
    index: usize,
    rank: u32,
    prev: u32,
    next: u32,
    tree: TreeLinks,
}

impl<'a> StageMaker<'a> {
    pub(crate) fn new(
        cluster: &'a Cluster,
        plan: &'a CallPlan,
        options: &'a Options,
        wire: f64,
    ) -> Self {
        let recorder = StepRecorder::new(cluster.ranks(), plan.shape);
        let (classes, programs) = (HashMap::new(), HashMap::new());
        StageMaker { cluster, plan, options, recorder, classes, programs, wire }
    }

    /// Calls `each` with every rank of a kernel in a channel's ring.
    fn for_members(
        &mut self,
        kernel: usize,
        channel: u32,
        mut each: impl FnMut(&mut Self, Member<'_>) -> Result<(), SimulateError>,
    ) -> Result<(), SimulateError> {
        let all = self.plan;
        let (group, plan) = &all.kernels[kernel];
        let (hosts, local) = (self.cluster.hosts(), self.cluster.local_ranks());
        let none = TreeLinks { up: NO_RANK, down: [NO_RANK; 3] };
        let root = all.tree_root(plan);
        let mut ring = |maker: &mut Self, ranks: &[u32], order: &[u32]| {
            for (index, &rank) in ranks.iter().enumerate() {
                let at = |by: usize| ranks[(index + by) % ranks.len()];
                let tree = match all.trees.get(channel as usize) {
                    Some(shape) if plan.tree => shape.links(rank, root),
                    _ => none,
                };
                let (prev, next) = (at(ranks.len() - 1), at(1));
                each(maker, Member { order, index, rank, prev, next, tree })?;
            }
            Ok(())
        };
        match group {
            Group::World => {
                let order = &all.orders[channel as usize % all.orders.len()];
                ring(self, order, order)
            }
            Group::InRankOrder => {
                let order: Vec<u32> = (0..hosts * local).collect();
                ring(self, &order, &order)
            }
            Group::Host => {
                let order: Vec<u32> = (0..local).collect();
                for host in 0..hosts {
                    let ranks: Vec<u32> = (host * local..(host + 1) * local).collect();
                    ring(self, &ranks, &order)?;
                }
                Ok(())
            }
            Group::Leaders => {
                let ranks: Vec<u32> = (0..hosts).map(|host| host * local).collect();
                let order: Vec<u32> = (0..hosts).collect();
                ring(self, &ranks, &order)
            }
        }
    }

    /// The steps of a block, as its kernel takes them.
    fn record(
        &mut self,
        kernel: usize,
        channel: u32,
        half: u32,
        member: &Member<'_>,
    ) -> Result<Vec<CountedStep>, SimulateError> {
        let place = ChannelPlace {
            order: member.order,
            index: member.index as u32,
            prev: member.prev,
            next: member.next,
            tree: member.tree,
        };
        let plan = &self.plan.kernels[kernel].1;
        let group = member.order.len() as u32;
        Ok(self.recorder.record(plan, (member.rank, group), channel, half, &place)?)
    }

    /// Whether blocks of a class take the very same steps: only around a ring each has its own chunks.
    fn is_exact(&self, kernel: usize) -> bool {
        let plan = &self.plan.kernels[kernel].1;
        plan.choice.algorithm != Algorithm::Ring || plan.root != NO_RANK
    }

    /// Blocks of one class take the same steps, but for how the last elements are cut. `None` where it is not known which do.
    fn class(&self, kernel: usize, channel: u32, half: u32, member: &Member<'_>) -> Option<Class> {
        let plan = &self.plan.kernels[kernel].1;
        let k = member.order.len() as u32;
        let collective = (plan.signature.call & 0xff) as u8;
        let is = |other: Collective| collective == other as u8;
        let rooted = |begin: u32| {
            let q = (member.index as u32 + k - begin % k) % k;
            if q == 0 {
                0
            } else if q + 1 == k {
                2
            } else {
                1
            }
        };
        let place = match plan.choice.algorithm {
            Algorithm::Tree => {
                let children = member.tree.down.iter().filter(|child| **child != NO_RANK).count();
                [u32::from(member.tree.up != NO_RANK), children as u32]
            }
            Algorithm::Ring if is(Collective::Broadcast) || is(Collective::Reduce) => {
                let root = member.order.iter().position(|rank| *rank == plan.root)? as u32;
                [rooted(root + u32::from(is(Collective::Reduce))), k]
            }
            // The chunks of a round are alike, but for how the last elements are cut.
            Algorithm::Ring => [0, k],
            // Along the chain, and on as far as all have it.
            Algorithm::Chain if is(Collective::AllReduce) || is(Collective::Barrier) => {
                let q = member.index as u32;
                let ends = [q == 0, q + 2 == k, q + 1 == k];
                [ends.iter().fold(0, |bits, end| 2 * bits + u32::from(*end)), k]
            }
            _ => return None,
        };
        let elements = plan.part(channel).count;
        Some(Class { kernel, elements, half, place })
    }

    /// The steps of a class, from one of its blocks.
    fn known(
        &mut self,
        class: Class,
        kernel: usize,
        channel: u32,
        half: u32,
        member: &Member<'_>,
    ) -> Result<Known, SimulateError> {
        if let Some(known) = self.classes.get(&class) {
            return Ok(known.clone());
        }
        let steps = self.record(kernel, channel, half, member)?;
        let (program, list, bytes) = self.intern(&steps);
        let tree = &member.tree;
        let role = |(sends, rank): &(bool, u32)| {
            let down = tree.down.iter().position(|child| child == rank);
            let role = match down {
                Some(child) => Role::Down(child),
                None if tree.up == *rank => Role::Up,
                None if *sends => Role::Next,
                None => Role::Prev,
            };
            (*sends, role)
        };
        let known = Known { program, conns: list.iter().map(role).collect(), bytes };
        self.classes.insert(class, known.clone());
        Ok(known)
    }

    /// The program of steps, and the connections that they name, with the bytes that go out on each.
    fn intern(&mut self, steps: &[CountedStep]) -> (u32, Vec<(bool, u32)>, Vec<u64>) {
        let mut list: Vec<(bool, u32)> = Vec::new();
        let mut bytes: Vec<u64> = Vec::new();
        let mut own = Vec::with_capacity(steps.len());
        for step in steps {
            let mut number = |sends: bool, rank: u32| {
                if rank == NO_RANK {
                    return NONE;
                }
                let at = list.iter().position(|known| *known == (sends, rank));
                let at = at.unwrap_or_else(|| {
                    list.push((sends, rank));
                    bytes.push(0);
                    list.len() - 1
                });
                if sends {
                    bytes[at] += step.bytes as u64;
                }
                at as u8
            };
            let recv = step.recv.map(|rank| number(false, rank));
            let send = step.send.map(|rank| number(true, rank));
            own.push(Step { bytes: step.bytes as u32, recv, send });
        }
        let program: Program = own.into();
        let next = self.programs.len() as u32;
        let number = *self.programs.entry(program).or_insert(next);
        (number, list, bytes)
    }

    /// The stage of kernel number `kernel`.
    pub(crate) fn stage(&mut self, kernel: usize, detail: Detail) -> Result<Stage, SimulateError> {
        let channels = self.plan.kernels[kernel].1.choice.channels;
        let mut stage = match detail {
            Detail::Steps => {
                let mut stage = Stage::default();
                for channel in 0..channels {
                    self.add_channel(&mut stage, kernel, channel, true, None)?;
                }
                stage
            }
            Detail::Shares { channels: some, .. } => {
                let chosen = self.chosen(kernel, some);
                self.shared(kernel, &chosen, None)?
            }
            Detail::Folded { hosts, .. } => {
                let chosen: Vec<u32> = (0..channels).collect();
                self.shared(kernel, &chosen, Some(hosts))?
            }
        };
        let mut programs = vec![Program::from([]); self.programs.len()];
        for (program, number) in &self.programs {
            programs[*number as usize] = Arc::clone(program);
        }
        stage.steps = stage.blocks.iter().map(|b| programs[b.program as usize].len() as u64).sum();
        stage.programs = programs;
        Ok(stage)
    }

    /// The chosen channels, on which links are shared by what all channels put on them.
    fn shared(
        &mut self,
        kernel: usize,
        chosen: &[u32],
        fold: Option<u32>,
    ) -> Result<Stage, SimulateError> {
        let channels = self.plan.kernels[kernel].1.choice.channels;
        let cluster = self.cluster;
        let mut loads = vec![0.0; cluster.links.len()];
        for channel in 0..channels {
            let mut one = Stage::default();
            self.add_channel(&mut one, kernel, channel, false, None)?;
            for conn in &one.conns {
                let bytes = conn.bytes as f64 * self.wire;
                one.links[conn.way.0 as usize..conn.way.1 as usize]
                    .iter()
                    .for_each(|link| loads[*link as usize] += bytes);
            }
        }
        let time = |link: usize| loads[link] / (cluster.links[link].0 * RATE);
        let bound_us = (0..loads.len()).map(time).fold(0.0, f64::max);
        let mut stage = Stage::default();
        for channel in chosen {
            let first = stage.conns.len();
            self.add_channel(&mut stage, kernel, *channel, false, None)?;
            for conn in &mut stage.conns[first..] {
                let way = &stage.links[conn.way.0 as usize..conn.way.1 as usize];
                let slowest = way.iter().map(|link| time(*link as usize)).fold(0.0, f64::max);
                let narrowest = way
                    .iter()
                    .map(|link| cluster.links[*link as usize].0)
                    .fold(f64::INFINITY, f64::min);
                let most = narrowest * RATE;
                let bytes = conn.bytes as f64 * self.wire;
                conn.rate = if slowest > 0.0 { (bytes / slowest).min(most) } else { most };
                conn.latency = way.iter().map(|link| cluster.links[*link as usize].1).sum();
            }
            if let Some(hosts) = fold {
                self.fold(&mut stage, kernel, *channel, first, hosts)?;
            }
        }
        (stage.bound_us, stage.loads) = (bound_us, loads);
        Ok(stage)
    }

    /// Replaces the blocks and connections of a channel, which begin at connection `first`, by those of some hosts.
    fn fold(
        &mut self,
        stage: &mut Stage,
        kernel: usize,
        channel: u32,
        first: usize,
        hosts: u32,
    ) -> Result<(), SimulateError> {
        let most = hosts * self.cluster.local_ranks();
        // What stands for a connection: its ends.
        let mut merged: HashMap<(u32, u32), (f64, f64, u32)> = HashMap::new();
        for conn in &stage.conns[first..] {
            let rank = |block: u32| stage.blocks[block as usize].rank % most;
            let key = (rank(conn.from), rank(conn.to));
            let (rate, latency, n) = merged.entry(key).or_insert((f64::INFINITY, 0.0, 0));
            (*rate, *latency, *n) = (rate.min(conn.rate), *latency + conn.latency, *n + 1);
        }
        let block = stage.conns.get(first).map_or(0, |_| {
            stage.blocks.iter().position(|block| block.channel == channel).unwrap_or(0)
        });
        let list = stage.blocks.get(block).map_or(0, |block| block.conns as usize);
        let links = stage.conns.get(first).map_or(0, |conn| conn.way.0 as usize);
        stage.blocks.truncate(block);
        stage.block_conns.truncate(list);
        stage.conns.truncate(first);
        stage.links.truncate(links);
        self.add_channel(stage, kernel, channel, false, Some(most))?;
        for conn in &mut stage.conns[first..] {
            let key = (stage.blocks[conn.from as usize].rank, stage.blocks[conn.to as usize].rank);
            if let Some((rate, latency, n)) = merged.get(&key) {
                (conn.rate, conn.latency) = (*rate, latency / f64::from((*n).max(1)));
            }
        }
        Ok(())
    }

    /// Adds a channel's blocks and connections. With `exact` each block has its own steps, else those of its class. With `fold` there are
    /// only so many ranks, around which the ring is closed.
    fn add_channel(
        &mut self,
        stage: &mut Stage,
        kernel: usize,
        channel: u32,
        exact: bool,
        fold: Option<u32>,
    ) -> Result<(), SimulateError> {
        let plan = &self.plan.kernels[kernel].1;
        let (halves, algorithm) = (plan.kernel.blocks.max(1), plan.choice.algorithm);
        let exact = exact && !self.is_exact(kernel);
        let mut numbers: HashMap<(u32, u32), u32> = HashMap::new();
        let (cluster, seed) = (self.cluster, self.options.seed);
        let port = |rank: u32| {
            let local = cluster.local_ranks();
            let (host, gpu) = (rank / local, (rank % local) as usize);
            let graph = match algorithm {
                Algorithm::Tree => cluster.tree_of(host)?,
                _ => cluster.ring_of(host),
            };
            graph.channels[channel as usize % graph.channels.len()].port(gpu)
        };
        let of_search = matches!(self.plan.kernels[kernel].0, Group::World);
        self.for_members(kernel, channel, |maker, member| {
            let rank = member.rank;
            if fold.is_some_and(|most| rank >= most) {
                return Ok(());
            }
            for half in 0..halves {
                let class = (!exact).then(|| maker.class(kernel, channel, half, &member)).flatten();
                let (program, list, bytes) = match class {
                    Some(class) => {
                        let known = maker.known(class, kernel, channel, half, &member)?;
                        let of = |(sends, role): &(bool, Role)| {
                            let rank = match role {
                                Role::Prev => member.prev,
                                Role::Next => member.next,
                                Role::Up => member.tree.up,
                                Role::Down(child) => member.tree.down[*child],
                            };
                            (*sends, rank)
                        };
                        (known.program, known.conns.iter().map(of).collect(), known.bytes)
                    }
                    None => {
                        let steps = maker.record(kernel, channel, half, &member)?;
                        maker.intern(&steps)
                    }
                };
                if list.is_empty() {
                    continue;
                }
                let block = stage.blocks.len() as u32;
                let conns = stage.block_conns.len() as u32;
                for ((sends, peer), bytes) in list.into_iter().zip(bytes) {
                    let across = rank / cluster.local_ranks() != peer / cluster.local_ranks();
                    let (further, peer) = fold.map_or((0, peer), |most| {
                        // The short way round: the first host's neighbour before it is the last one.
                        let (all, further) = (cluster.ranks() / most, peer / most);
                        let back = 2 * further > all;
                        (
                            if back { further as i32 - all as i32 } else { further as i32 },
                            peer % most,
                        )
                    });
                    let ends = if sends { (rank, peer) } else { (peer, rank) };
                    let number = *numbers.entry(ends).or_insert_with(|| {
                        let Way { links, remote } = match fold {
                            // Its share and latency are those of the connections that it stands for.
                            Some(_) => Way { links: Vec::new(), remote: across },
                            None if of_search => cluster.way(ends, port, channel, seed),
                            None => cluster.way(ends, |_| None, channel, seed),
                        };
                        let first = stage.links.len() as u32;
                        stage.links.extend(links);
                        let way = (first, stage.links.len() as u32);
                        stage.conns.push(Conn {
                            from: u32::MAX,
                            to: u32::MAX,
                            way,
                            remote,
                            hosts: 0,
                            bytes: 0,
                            latency: 0.0,
                            rate: f64::INFINITY,
                        });
                        stage.conns.len() as u32 - 1
                    });
                    let conn = &mut stage.conns[number as usize];
                    if sends {
                        conn.from = block;
                        conn.bytes += bytes;
                        if fold.is_some() {
                            conn.hosts = further;
                        }
                    } else {
                        conn.to = block;
                    }
                    stage.block_conns.push(number);
                }
                stage.blocks.push(Block { rank, channel, half, program, conns });
            }
            Ok(())
        })
    }
}
