//! Random programs: agents that are members of several random communicators make random groups of collectives, sends and
//! receives, on one stream or two, and everything is compared with a model in plain Rust.
//!
//! A failing seed is printed; `FERROCCL_SEED=n` runs that one alone.

use std::fmt::Write as _;
use std::sync::Arc;

use ferroccl::runtime::cpu::{Adversity, CpuRuntime};
use ferroccl::{
    Algorithm, CommConfig, Communicator, Device, DeviceBuffer, Error, ProtocolId, ReduceOp, Stream,
    group,
};

use crate::random::Random;
use crate::tier;

/// Buffers of an agent, and elements of each at most.
const BUFFERS: usize = 6;

/// One who makes calls.
struct Agent {
    streams: Vec<Stream>,
    buffers: Vec<DeviceBuffer<u32>>,
    /// What the buffers hold.
    model: Vec<Vec<u32>>,
}

/// A communicator and which agent each of its ranks is.
struct Club {
    ranks: Vec<Communicator>,
    agents: Vec<usize>,
}

/// A call of one agent: what it takes to make it.
#[derive(Clone, Debug)]
struct Call {
    club: usize,
    rank: usize,
    stream: usize,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    AllReduce { from: usize, to: usize, count: usize, op: ReduceOp },
    AllGather { from: usize, to: usize, count: usize },
    ReduceScatter { from: usize, to: usize, count: usize },
    Broadcast { from: usize, to: usize, count: usize, root: u32 },
    Reduce { from: usize, to: usize, count: usize, root: u32 },
    Barrier,
    Send { from: usize, count: usize, peer: u32 },
    Recv { to: usize, count: usize, peer: u32 },
}

struct World {
    agents: Vec<Agent>,
    clubs: Vec<Club>,
    size: usize,
}

fn world(device: &Device, random: &mut Random, small: bool) -> Result<World, Error> {
    let n = 2 + random.below(4);
    let size = if small { 200 } else { 20_000 };
    let two = random.chance(50);
    let agents: Vec<Agent> = (0..n)
        .map(|_| {
            let model: Vec<Vec<u32>> =
                (0..BUFFERS).map(|_| (0..size).map(|_| random.next() as u32).collect()).collect();
            Ok(Agent {
                streams: (0..1 + usize::from(two))
                    .map(|_| device.stream())
                    .collect::<Result<_, _>>()?,
                buffers: model.iter().map(|m| device.upload(m)).collect::<Result<_, _>>()?,
                model,
            })
        })
        .collect::<Result<_, Error>>()?;
    let clubs = (0..1 + random.below(3)).map(|_| {
        let mut members: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            members.swap(i, random.below(i + 1));
        }
        members.truncate(1 + random.below(n));
        let mut config = CommConfig::default();
        if small || random.chance(50) {
            config.slots = Some(2 + random.below(3) as u32);
            config.buffer_bytes = [Some(config.slots.unwrap_or(2) as usize * 256); 3];
        }
        if random.chance(60) {
            config.protocol = Some(random.pick(ProtocolId::ALL));
        }
        if random.chance(60) {
            config.algorithm = Some(random.pick(&[
                Algorithm::Tree,
                Algorithm::OneShot,
                Algorithm::TwoShot,
                Algorithm::Bruck,
                Algorithm::Chain,
                Algorithm::Doubling,
                Algorithm::Linear,
                Algorithm::Hierarchical,
            ]));
        }
        if random.chance(30) {
            config.ranks_per_node = Some(1 + random.below(3) as u32);
        }
        if random.chance(50) {
            config.channels = Some(1 + random.below(3) as u32);
        }
        let ranks = Communicator::init_all_with(device, members.len() as u32, &config)?;
        Ok(Club { ranks, agents: members })
    });
    let clubs = clubs.collect::<Result<_, Error>>()?;
    Ok(World { agents, clubs, size })
}

impl World {
    /// The calls of a group, by agent; and what they do to the model. Each buffer is used once in a group.
    fn draw(&mut self, random: &mut Random) -> Vec<Vec<Call>> {
        let mut calls: Vec<Vec<Call>> = vec![Vec::new(); self.agents.len()];
        let mut free: Vec<Vec<usize>> = vec![(0..BUFFERS).collect(); self.agents.len()];
        let streams = self.agents[0].streams.len();
        let stream = random.below(streams);
        for _ in 0..1 + random.below(4) {
            let club = random.below(self.clubs.len());
            let members = self.clubs[club].agents.clone();
            let k = members.len();
            if members.iter().any(|agent| free[*agent].len() < 2) {
                continue;
            }
            // On one stream a group's calls on a communicator are in order; streams may differ between groups.
            let (from, to): (Vec<usize>, Vec<usize>) = members
                .iter()
                .map(|agent| {
                    let mut take = || {
                        let free = &mut free[*agent];
                        let at = random.below(free.len());
                        free.swap_remove(at)
                    };
                    (take(), take())
                })
                .unzip();
            let input = |world: &World, i: usize| world.agents[members[i]].model[from[i]].clone();
            let inputs: Vec<Vec<u32>> = (0..k).map(|i| input(self, i)).collect();
            let any = random.below(self.size + 1);
            let each = random.below(self.size / k + 1);
            let root = random.below(k);
            let sum = |range: std::ops::Range<usize>| -> Vec<u32> {
                range
                    .map(|e| inputs.iter().fold(0, |s: u32, input| s.wrapping_add(input[e])))
                    .collect()
            };
            let kind = random.below(7);
            let mut put = |i: usize, at: usize, data: &[u32]| {
                self.agents[members[i]].model[to[i]][at..at + data.len()].copy_from_slice(data);
            };
            let op = random.pick(&[ReduceOp::Sum, ReduceOp::Max]);
            // Who sends to whom, for messages: a random permutation.
            let mut to_whom: Vec<usize> = (0..k).collect();
            for i in (1..k).rev() {
                to_whom.swap(i, random.below(i + 1));
            }
            for i in 0..k {
                let what = match kind {
                    0 => {
                        let result: Vec<u32> = match op {
                            ReduceOp::Max => (0..any)
                                .map(|e| inputs.iter().map(|input| input[e]).max().unwrap_or(0))
                                .collect(),
                            _ => sum(0..any),
                        };
                        put(i, 0, &result);
                        What::AllReduce { from: from[i], to: to[i], count: any, op }
                    }
                    1 => {
                        for (j, input) in inputs.iter().enumerate() {
                            put(i, j * each, &input[..each]);
                        }
                        What::AllGather { from: from[i], to: to[i], count: each }
                    }
                    2 => {
                        put(i, 0, &sum(i * each..(i + 1) * each));
                        What::ReduceScatter { from: from[i], to: to[i], count: each }
                    }
                    3 => {
                        put(i, 0, &inputs[root][..any]);
                        What::Broadcast { from: from[i], to: to[i], count: any, root: root as u32 }
                    }
                    4 => {
                        if i == root {
                            put(i, 0, &sum(0..any));
                        }
                        What::Reduce { from: from[i], to: to[i], count: any, root: root as u32 }
                    }
                    5 => What::Barrier,
                    _ => {
                        let sender = to_whom.iter().position(|t| *t == i).unwrap_or(i);
                        put(i, 0, &inputs[sender][..any]);
                        let (agent, rank) = (members[i], i);
                        let recv = What::Recv { to: to[i], count: any, peer: sender as u32 };
                        calls[agent].push(Call { club, rank, stream, what: recv });
                        What::Send { from: from[i], count: any, peer: to_whom[i] as u32 }
                    }
                };
                calls[members[i]].push(Call { club, rank: i, stream, what });
            }
        }
        calls
    }

    fn make(&self, agent: usize, call: &Call) -> Result<(), Error> {
        let Agent { streams, buffers, .. } = &self.agents[agent];
        let Club { ranks, .. } = &self.clubs[call.club];
        let (rank, stream, k) = (&ranks[call.rank], &streams[call.stream], ranks.len());
        match call.what {
            What::AllReduce { from, to, count, op } => rank.all_reduce(
                &buffers[from].slice(..count),
                &buffers[to].slice(..count),
                op,
                stream,
            ),
            What::AllGather { from, to, count } => rank.all_gather(
                &buffers[from].slice(..count),
                &buffers[to].slice(..count * k),
                stream,
            ),
            What::ReduceScatter { from, to, count } => rank.reduce_scatter(
                &buffers[from].slice(..count * k),
                &buffers[to].slice(..count),
                ReduceOp::Sum,
                stream,
            ),
            What::Broadcast { from, to, count, root } => rank.broadcast(
                &buffers[from].slice(..count),
                &buffers[to].slice(..count),
                root,
                stream,
            ),
            What::Reduce { from, to, count, root } => rank.reduce(
                &buffers[from].slice(..count),
                &buffers[to].slice(..count),
                ReduceOp::Sum,
                root,
                stream,
            ),
            What::Barrier => rank.barrier(stream),
            What::Send { from, count, peer } => {
                rank.send(&buffers[from].slice(..count), peer, stream)
            }
            What::Recv { to, count, peer } => rank.recv(&buffers[to].slice(..count), peer, stream),
        }
    }

    /// One group, as a single one of all agents or as one of each.
    fn run(&self, calls: &[Vec<Call>], together: bool) -> Result<(), Error> {
        let of_agent =
            |agent: usize| calls[agent].iter().try_for_each(|call| self.make(agent, call));
        if together {
            return group(|| (0..calls.len()).try_for_each(of_agent));
        }
        (0..calls.len()).try_for_each(|agent| group(|| of_agent(agent)))
    }

    fn check(&self) -> Result<(), String> {
        for (a, agent) in self.agents.iter().enumerate() {
            for stream in &agent.streams {
                stream.synchronize().map_err(|e| format!("agent {a}: {e}"))?;
            }
        }
        for (a, agent) in self.agents.iter().enumerate() {
            for (b, (buffer, model)) in agent.buffers.iter().zip(&agent.model).enumerate() {
                let got = buffer.to_vec(&agent.streams[0]).map_err(|e| e.to_string())?;
                if let Some(i) = (0..got.len()).find(|i| got[*i] != model[*i]) {
                    let (got, want) = (got[i], model[i]);
                    return Err(format!(
                        "agent {a}, buffer {b}, element {i}: {got:#x}, not {want:#x}"
                    ));
                }
            }
        }
        Ok(())
    }
}

fn program(device: &Device, seed: u64, small: bool) -> Result<(), String> {
    let random = &mut Random(seed);
    let mut world = world(device, random, small).map_err(|e| e.to_string())?;
    let mut history = String::new();
    for step in 0..if small { 3 } else { 12 } {
        let calls = world.draw(random);
        let together = random.chance(50);
        let _ = writeln!(history, "group {step}, together {together}: {calls:?}");
        let ran = world.run(&calls, together).map_err(|e| e.to_string());
        // Streams know nothing of each other's buffers: with two, groups are waited for.
        let checked = ran.and_then(|()| {
            if world.agents[0].streams.len() > 1 || random.chance(30) {
                world.check()
            } else {
                Ok(())
            }
        });
        checked.map_err(|e| format!("{e}\n{history}"))?;
    }
    world.check().map_err(|e| format!("{e}\n{history}"))
}

fn seeds(n: u64) -> std::ops::Range<u64> {
    // The nightly tier asks for 96, and gets five times as many as are tried without.
    let asked = std::env::var("FERROCCL_TEST_SEEDS").ok().and_then(|s| s.parse().ok());
    tier::named_or(0..tier::seeds(n / 2, n).max(asked.map_or(0, |asked: u64| 10 * asked)))
}

#[test]
fn on_threads() {
    for seed in seeds(150) {
        if let Err(why) = program(&Device::cpu(), seed, false) {
            panic!("seed {seed}: {why}");
        }
    }
}

#[test]
fn under_adversity() {
    for seed in seeds(200) {
        let device = Device::new(Arc::new(CpuRuntime::seeded(Adversity::new(seed))));
        if let Err(why) = program(&device, seed, true) {
            panic!("seed {seed}: {why}");
        }
    }
}
