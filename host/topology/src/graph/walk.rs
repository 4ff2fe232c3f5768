//! One attempt of the search: as many channels of a given bandwidth as fit, under given conditions.
//!
//! A channel is laid GPU by GPU, charging each link it passes; when one is complete the next is laid on what
//! is left. Where no next step fits, the last one is taken back. The most channels seen at any time are kept.
//! Steps are counted and bounded, and candidates are tried in an order that depends on the system alone, so
//! that the result does.

use super::load::Ways;
use super::{GraphChannel, Pattern};
use crate::{PathKind, Paths};

/// What channels must keep to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conditions {
    pub(super) pattern: Pattern,
    /// The worst path allowed between GPUs, and to the network.
    pub(super) kind_intra: PathKind,
    pub(super) kind_inter: PathKind,
    pub(super) cross_nic: bool,
    /// All channels pass through the GPUs in the order of the first.
    pub(super) same_channels: bool,
    /// Bandwidth of a channel.
    pub(super) speed: f64,
    /// Channels that are enough.
    pub(super) enough: usize,
    /// Whether channels go to the network.
    pub(super) network: bool,
}

/// Room for rounding when bandwidths are added and subtracted.
const SLACK: f64 = 1e-6;

pub(super) struct Walk<'a> {
    paths: &'a Paths,
    ways: &'a Ways,
    conditions: Conditions,
    left: Vec<f64>,
    steps: &'a mut u64,
    /// How many channels use each port.
    in_use: Vec<u32>,
    laid: Vec<GraphChannel>,
    best: Vec<GraphChannel>,
}

impl<'a> Walk<'a> {
    /// Lays channels until there are enough, all ways have been tried, or no `steps` are left.
    pub(super) fn run(
        paths: &'a Paths,
        ways: &'a Ways,
        conditions: Conditions,
        steps: &'a mut u64,
    ) -> Vec<GraphChannel> {
        let mut walk = Walk {
            paths,
            ways,
            conditions,
            left: ways.capacity.clone(),
            steps,
            in_use: vec![0; ways.nets],
            laid: Vec::new(),
            best: Vec::new(),
        };
        walk.next_channel();
        walk.best
    }

    /// Counts a step; `false` when there is none left.
    fn step(&mut self) -> bool {
        let left = self.steps.checked_sub(1);
        *self.steps = left.unwrap_or(0);
        left.is_some()
    }

    /// Takes `amount` times the way's costs from what is left; `false`, and nothing taken, where it does not fit.
    fn take(&mut self, way: &[(usize, f64)], amount: f64) -> bool {
        if way.iter().any(|(link, cost)| self.left[*link] + SLACK < cost * amount) {
            return false;
        }
        way.iter().for_each(|(link, cost)| self.left[*link] -= cost * amount);
        true
    }

    fn give_back(&mut self, way: &[(usize, f64)], amount: f64) {
        way.iter().for_each(|(link, cost)| self.left[*link] += cost * amount);
    }

    /// Takes all of `parts`, or nothing.
    fn take_all(&mut self, parts: &[(&[(usize, f64)], f64)]) -> bool {
        for (done, (way, amount)) in parts.iter().enumerate() {
            if !self.take(way, *amount) {
                parts[..done].iter().for_each(|(way, amount)| self.give_back(way, *amount));
                return false;
            }
        }
        true
    }

    /// What is left on the narrowest link of a way.
    fn room(&self, way: &[(usize, f64)]) -> f64 {
        way.iter().map(|(link, _)| self.left[*link]).fold(f64::INFINITY, f64::min)
    }

    /// Lays channels on what is left; `true` when there are enough.
    fn next_channel(&mut self) -> bool {
        if self.laid.len() > self.best.len() {
            self.best.clone_from(&self.laid);
        }
        if self.best.len() >= self.conditions.enough {
            return true;
        }
        if let Some(last) = self.laid.last().cloned() {
            if self.lay(&last) {
                return true;
            }
            if self.conditions.same_channels {
                return false;
            }
            // The other way round uses the other direction of the same links.
            if self.conditions.pattern == Pattern::Ring
                && !self.conditions.network
                && self.lay(&reversed(&last))
            {
                return true;
            }
        }
        if self.conditions.network { self.start_at_network() } else { self.start_at_gpus() }
    }

    /// Lays a known channel and goes on; takes it back unless there are enough.
    fn lay(&mut self, channel: &GraphChannel) -> bool {
        let (ways, pattern, speed) = (self.ways, self.conditions.pattern, self.conditions.speed);
        if !self.step() {
            return false;
        }
        let mut parts: Vec<(&[(usize, f64)], f64)> = Vec::with_capacity(2 * ways.gpus + 6);
        ways.intra(pattern, channel, |way, part| parts.push((way, part * speed)));
        ways.inter(pattern, channel, |way, part| parts.push((way, part * speed)));
        if !self.take_all(&parts) {
            return false;
        }
        let enough = self.push(channel.clone());
        parts.iter().for_each(|(way, amount)| self.give_back(way, *amount));
        enough
    }

    /// Notes a channel whose links are charged and goes on to the next.
    fn push(&mut self, channel: GraphChannel) -> bool {
        let nets = channel.nets;
        nets.into_iter().flatten().for_each(|net| self.in_use[net] += 1);
        self.laid.push(channel);
        let enough = self.next_channel();
        self.laid.pop();
        nets.into_iter().flatten().for_each(|net| self.in_use[net] -= 1);
        enough
    }

    /// Starts channels without a network. A ring begins anywhere, so it begins at the first GPU.
    fn start_at_gpus(&mut self) -> bool {
        let starts = if self.conditions.pattern == Pattern::Ring { 1 } else { self.ways.gpus };
        // Chains begin where most is left: their ends carry half of what the others do.
        let mut order: Vec<usize> = (0..starts).collect();
        order.sort_by_key(|gpu| {
            self.laid.iter().filter(|channel| channel.gpus.first() == Some(gpu)).count()
        });
        order.into_iter().any(|start| self.extend(&mut vec![start], None, None))
    }

    /// Starts channels at the ports, the least used and nearest first.
    fn start_at_network(&mut self) -> bool {
        let (paths, ways, c) = (self.paths, self.ways, self.conditions);
        // The first GPU of a ring only receives.
        let near = |gpu: usize, net: usize| match c.pattern {
            Pattern::Ring => paths.net_gpu(net, gpu).kind,
            _ => paths.gpu_net(gpu, net).kind.max(paths.net_gpu(net, gpu).kind),
        };
        let mut starts: Vec<(usize, usize)> = (0..ways.nets)
            .flat_map(|net| (0..ways.gpus).map(move |gpu| (net, gpu)))
            .filter(|(net, gpu)| near(*gpu, *net) <= c.kind_inter)
            .collect();
        let first_used =
            |gpu: usize| self.laid.iter().filter(|l| l.gpus.first() == Some(&gpu)).count();
        starts.sort_by_key(|&(net, gpu)| {
            (self.in_use[net], near(gpu, net), first_used(gpu), net, gpu)
        });
        for (net, gpu) in starts {
            if c.pattern != Pattern::Ring {
                if self.tree_starts(net, gpu) {
                    return true;
                }
                continue;
            }
            let way = ways.net_gpu(net, gpu);
            if !self.take(way, c.speed) {
                continue;
            }
            let enough = self.ring_ends(net, gpu);
            self.give_back(way, c.speed);
            if enough || *self.steps == 0 {
                return enough;
            }
        }
        false
    }

    /// Chooses the second GPU of a chain whose first one talks to `net`, the nearest first: it may have a part in
    /// that too. Charges the network and lays the rest.
    fn tree_starts(&mut self, net: usize, first: usize) -> bool {
        let (paths, ways, c) = (self.paths, self.ways, self.conditions);
        let near = |gpu: usize| paths.gpu_net(gpu, net).kind.max(paths.net_gpu(net, gpu).kind);
        let talks = matches!(c.pattern, Pattern::SplitTree | Pattern::BalancedTree);
        let joined =
            |gpu: usize| paths.gpu_gpu(first, gpu).kind.max(paths.gpu_gpu(gpu, first).kind);
        let mut seconds: Vec<usize> = (0..ways.gpus)
            .filter(|gpu| *gpu != first && joined(*gpu) <= c.kind_intra)
            .filter(|gpu| !talks || near(*gpu) <= c.kind_inter)
            .collect();
        let turn = |gpu: usize| (gpu + ways.gpus - first) % ways.gpus;
        seconds.sort_by_key(|gpu| (talks.then(|| near(*gpu)), joined(*gpu), turn(*gpu)));
        let starts: Vec<Vec<usize>> = if ways.gpus == 1 {
            vec![vec![first]]
        } else {
            seconds.into_iter().map(|second| vec![first, second]).collect()
        };
        for mut gpus in starts {
            if !self.step() {
                return false;
            }
            let start = GraphChannel { nets: Some([net, net]), gpus: gpus.clone() };
            let mut parts: Vec<(&[(usize, f64)], f64)> = Vec::with_capacity(8);
            ways.intra(c.pattern, &start, |way, part| parts.push((way, part * c.speed)));
            ways.inter(c.pattern, &start, |way, part| parts.push((way, part * c.speed)));
            if !self.take_all(&parts) {
                continue;
            }
            let enough = self.extend(&mut gpus, start.nets, None);
            parts.iter().for_each(|(way, amount)| self.give_back(way, *amount));
            if enough {
                return true;
            }
        }
        false
    }

    /// Chooses where a ring that came in at `net` and `first` leaves, the nearest first, and lays it.
    fn ring_ends(&mut self, net: usize, first: usize) -> bool {
        let (paths, ways, c) = (self.paths, self.ways, self.conditions);
        let leaves = if c.cross_nic { 0..ways.nets } else { net..net + 1 };
        let mut ends: Vec<(usize, usize)> = leaves
            .flat_map(|leave| (0..ways.gpus).map(move |last| (leave, last)))
            .filter(|(leave, last)| {
                paths.gpu_net(*last, *leave).kind <= c.kind_inter
                    && (ways.gpus == 1 || *last != first)
            })
            .collect();
        ends.sort_by_key(|&(leave, last)| {
            (self.in_use[leave], leave != net, paths.gpu_net(last, leave).kind, leave, last)
        });
        for (leave, last) in ends {
            let way = ways.gpu_net(last, leave);
            if !self.take(way, c.speed) {
                continue;
            }
            let enough = self.extend(&mut vec![first], Some([net, leave]), Some(last));
            self.give_back(way, c.speed);
            if enough || *self.steps == 0 {
                return enough;
            }
        }
        false
    }

    /// Goes on from the last of `gpus`; `end`, where given, comes last.
    fn extend(
        &mut self,
        gpus: &mut Vec<usize>,
        nets: Option<[usize; 2]>,
        end: Option<usize>,
    ) -> bool {
        let (paths, ways, c) = (self.paths, self.ways, self.conditions);
        let Some(&here) = gpus.last() else { return false };
        if gpus.len() == ways.gpus {
            return self.complete(gpus, nets);
        }
        let last_step = gpus.len() + 1 == ways.gpus;
        let mut next: Vec<usize> = (0..ways.gpus)
            .filter(|to| !gpus.contains(to))
            .filter(|to| end.is_none_or(|end| (*to == end) == last_step))
            .filter(|to| {
                paths.gpu_gpu(here, *to).kind.max(paths.gpu_gpu(*to, here).kind) <= c.kind_intra
            })
            .collect();
        // Near before far, wide before narrow, and else in the order of the devices.
        next.sort_by(|a, b| {
            let key = |to: usize| (paths.gpu_gpu(here, to).kind, paths.gpu_gpu(here, to).hops());
            let room = |to: usize| self.room(ways.gpu_gpu(here, to));
            let turn = |to: usize| (to + ways.gpus - here) % ways.gpus;
            (key(*a).cmp(&key(*b)))
                .then(room(*b).total_cmp(&room(*a)))
                .then(turn(*a).cmp(&turn(*b)))
        });
        for to in next {
            if !self.step() {
                return false;
            }
            let (there, back) = (ways.gpu_gpu(here, to), ways.gpu_gpu(to, here));
            let parts: &[(&[(usize, f64)], f64)] = if c.pattern == Pattern::Ring {
                &[(there, c.speed)]
            } else {
                &[(there, c.speed / 2.0), (back, c.speed / 2.0)]
            };
            if !self.take_all(parts) {
                continue;
            }
            gpus.push(to);
            let enough = self.extend(gpus, nets, end);
            gpus.pop();
            parts.iter().for_each(|(way, amount)| self.give_back(way, *amount));
            if enough {
                return true;
            }
        }
        false
    }

    /// All GPUs are in: charges what is missing and goes on to the next channel.
    fn complete(&mut self, gpus: &[usize], nets: Option<[usize; 2]>) -> bool {
        let (ways, c) = (self.ways, self.conditions);
        if !self.step() {
            return false;
        }
        let channel = GraphChannel { nets, gpus: gpus.to_vec() };
        // A ring without a network is closed; all else has been charged on the way.
        let mut parts: Vec<(&[(usize, f64)], f64)> = Vec::new();
        if let (Pattern::Ring, None, [first, .., last]) = (c.pattern, nets, gpus) {
            if self.paths.gpu_gpu(*last, *first).kind > c.kind_intra {
                return false;
            }
            parts.push((ways.gpu_gpu(*last, *first), c.speed));
        }
        if !self.take_all(&parts) {
            return false;
        }
        let enough = self.push(channel);
        parts.iter().for_each(|(way, amount)| self.give_back(way, *amount));
        enough
    }
}

/// The ring the other way round, from the same first GPU.
fn reversed(channel: &GraphChannel) -> GraphChannel {
    let mut gpus = channel.gpus.clone();
    if let Some(rest) = gpus.get_mut(1..) {
        rest.reverse();
    }
    GraphChannel { nets: channel.nets, gpus }
}
