//! From the channels of each host to the rings and trees over all ranks.
//!
//! Host `h` has the ranks from [`Host::first_rank`] on, one for each local rank of its graph. A **ring** enters a
//! host at the first GPU of its channel, passes all and goes on from the last to the next host. A **tree** joins
//! the hosts as a double binary tree does ([`tree`]) and within a host runs down the channel's chain;
//! which GPU talks to the parent and which to the children is the [`Pattern`]'s matter.

use super::tree::{self, Place};
use super::{ChannelGraph, Pattern};

/// A host's part in a communicator.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    /// Its channels.
    pub graph: &'a ChannelGraph,
    /// The rank of its local rank 0; the others follow.
    pub first_rank: u32,
}

/// Hosts that are all alike, `local` GPUs each: what one host's topology file stands for.
#[must_use]
pub fn alike(graph: &ChannelGraph, hosts: u32, local: u32) -> Vec<Host<'_>> {
    (0..hosts).map(|host| Host { graph, first_rank: host.saturating_mul(local) }).collect()
}

/// `0, 1, 2`.
fn list(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// Hosts that do not make a communicator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// A channel of a host leaves out a local rank or has one twice.
    #[error("host {host}, channel {channel}: not every local rank once: {}", list(.gpus))]
    NotEveryRank {
        /// The host.
        host: usize,
        /// Its channel.
        channel: usize,
        /// What the channel has.
        gpus: Vec<usize>,
    },
    /// The ranks of the hosts are not 0 to n - 1, host by host.
    #[error("host {host} begins with rank {first_rank}, not {expected}")]
    Ranks {
        /// The host.
        host: usize,
        /// Where it begins.
        first_rank: u32,
        /// Where it should.
        expected: u32,
    },
    /// A ring does not hold every rank once: a fault of this module, found before anything runs on it.
    #[error("the ring of channel {channel} does not hold every rank once")]
    BrokenRing {
        /// The channel.
        channel: usize,
    },
    /// A host's graph is of another pattern than this needs.
    #[error("host {host} has channels of the pattern {pattern}")]
    Pattern {
        /// The host.
        host: usize,
        /// Its pattern.
        pattern: Pattern,
    },
}

/// One ring: every rank's neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Whom each rank sends to.
    pub next: Vec<u32>,
    /// Whom each rank receives from.
    pub prev: Vec<u32>,
}

impl Ring {
    /// The ranks in the ring's order, from `rank` on, until it closes; shorter than the number of ranks where it
    /// is not one ring.
    pub fn order(&self, rank: u32) -> impl Iterator<Item = u32> + '_ {
        let mut at = Some(rank).filter(|rank| (*rank as usize) < self.next.len());
        let mut left = self.next.len();
        std::iter::from_fn(move || {
            let here = at?;
            left = left.checked_sub(1)?;
            at = Some(self.next[here as usize]).filter(|next| *next != rank);
            Some(here)
        })
    }

    /// Whether it holds every rank once, and `prev` is `next` the other way round.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.order(0).count() == self.next.len()
            && (0u32..)
                .zip(&self.next)
                .all(|(rank, next)| self.prev.get(*next as usize) == Some(&rank))
    }
}

/// No rank, in [`Tree`]'s arrays.
pub const NONE: u32 = u32::MAX;

/// One tree: every rank's relations. Absent ones are [`NONE`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Each rank's parent.
    pub up: Vec<u32>,
    /// Each rank's children: two hosts' at most, and the next in its host's chain.
    pub down: Vec<[u32; 3]>,
}

impl Tree {
    /// The rank without a parent.
    #[must_use]
    pub fn root(&self) -> Option<u32> {
        (0u32..).zip(&self.up).find(|(_, up)| **up == NONE).map(|(rank, _)| rank)
    }

    /// Ranks on the longest way from the root down, less one; `None` when it does not hold every rank once.
    #[must_use]
    pub fn depth(&self) -> Option<usize> {
        let (mut layer, mut seen, mut depth) = (vec![self.root()?], 1, 0);
        loop {
            let mut next = Vec::new();
            for rank in &layer {
                for child in self.down.get(*rank as usize)?.iter().filter(|child| **child != NONE) {
                    if self.up.get(*child as usize) != Some(rank) {
                        return None;
                    }
                    next.push(*child);
                }
            }
            seen += next.len();
            if next.is_empty() || seen > self.up.len() {
                return (seen == self.up.len()).then_some(depth);
            }
            (layer, depth) = (next, depth + 1);
        }
    }
}

/// The rings over all hosts, one for each channel that every host has.
///
/// # Errors
/// [`ConnectError`] when the hosts do not fit together.
pub fn rings(hosts: &[Host<'_>]) -> Result<Vec<Ring>, ConnectError> {
    let ranks = check(hosts, |pattern| pattern == Pattern::Ring)?;
    let rings = (0..channels(hosts)).map(|channel| {
        let mut ring = Ring { next: vec![0; ranks], prev: vec![0; ranks] };
        let mut link = |from: u32, to: u32| {
            ring.next[from as usize] = to;
            ring.prev[to as usize] = from;
        };
        let gpus =
            |host: usize| (&hosts[host].graph.channels[channel].gpus, hosts[host].first_rank);
        for host in 0..hosts.len() {
            let (order, base) = gpus(host);
            for pair in order.windows(2) {
                link(base + pair[0] as u32, base + pair[1] as u32);
            }
            let (after, next_base) = gpus((host + 1) % hosts.len());
            if let (Some(last), Some(first)) = (order.last(), after.first()) {
                link(base + *last as u32, next_base + *first as u32);
            }
        }
        if ring.is_whole() { Ok(ring) } else { Err(ConnectError::BrokenRing { channel }) }
    });
    rings.collect()
}

/// The trees over all hosts. With several hosts there are two for each channel that every host has: the first
/// half of them along the first binary tree, the second half along the second.
///
/// # Errors
/// [`ConnectError`] when the hosts do not fit together.
pub fn trees(hosts: &[Host<'_>]) -> Result<Vec<Tree>, ConnectError> {
    let ranks = check(hosts, |pattern| pattern != Pattern::Ring)?;
    let n = hosts.len() as u32;
    let shapes: &[fn(u32, u32) -> Place] =
        if n > 1 { &[tree::first, tree::second] } else { &[tree::first] };
    let mut trees = Vec::new();
    for shape in shapes {
        for channel in 0..channels(hosts) {
            trees.push(one_tree(hosts, ranks, channel, |host| shape(n, host as u32)));
        }
    }
    Ok(trees)
}

fn one_tree(
    hosts: &[Host<'_>],
    ranks: usize,
    channel: usize,
    place: impl Fn(usize) -> Place,
) -> Tree {
    let mut tree = Tree { up: vec![NONE; ranks], down: vec![[NONE; 3]; ranks] };
    let adopt = |tree: &mut Tree, parent: u32, child: u32| {
        tree.up[child as usize] = parent;
        if let Some(free) = tree.down[parent as usize].iter_mut().find(|down| **down == NONE) {
            *free = child;
        }
    };
    for host in hosts {
        let chain = &host.graph.channels[channel].gpus;
        for pair in chain.windows(2) {
            adopt(&mut tree, host.first_rank + pair[0] as u32, host.first_rank + pair[1] as u32);
        }
    }
    for (at, host) in hosts.iter().enumerate() {
        let Some((parent, child)) = place(at).parent else { continue };
        let above = &hosts[parent as usize];
        let chain = &above.graph.channels[channel].gpus;
        let attach = match (above.graph.pattern, child) {
            (Pattern::SplitTree, _) | (Pattern::BalancedTree, 1) => chain.get(1).or(chain.first()),
            _ => chain.first(),
        };
        let first = host.graph.channels[channel].gpus.first();
        if let (Some(attach), Some(first)) = (attach, first) {
            adopt(&mut tree, above.first_rank + *attach as u32, host.first_rank + *first as u32);
        }
    }
    tree
}

/// Channels that every host has.
fn channels(hosts: &[Host<'_>]) -> usize {
    hosts.iter().map(|host| host.graph.channels.len()).min().unwrap_or(0)
}

/// Whether the hosts fit together; the number of ranks.
fn check(hosts: &[Host<'_>], fits: impl Fn(Pattern) -> bool) -> Result<usize, ConnectError> {
    let mut expected = 0u32;
    let mut checked: Option<&ChannelGraph> = None;
    for (at, host) in hosts.iter().enumerate() {
        if host.first_rank != expected {
            return Err(ConnectError::Ranks { host: at, first_rank: host.first_rank, expected });
        }
        let local = host.graph.channels.first().map_or(0, |channel| channel.gpus.len());
        expected = expected.saturating_add(local as u32);
        // Thousands of hosts share a graph.
        if checked.is_some_and(|graph| std::ptr::eq(graph, host.graph)) {
            continue;
        }
        if !fits(host.graph.pattern) {
            return Err(ConnectError::Pattern { host: at, pattern: host.graph.pattern });
        }
        for (channel, way) in host.graph.channels.iter().enumerate() {
            let mut sorted = way.gpus.clone();
            sorted.sort_unstable();
            if sorted.len() != local || sorted.iter().enumerate().any(|(i, gpu)| i != *gpu) {
                return Err(ConnectError::NotEveryRank {
                    host: at,
                    channel,
                    gpus: way.gpus.clone(),
                });
            }
        }
        checked = Some(host.graph);
    }
    Ok(expected as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PathKind;
    use crate::graph::{GraphChannel, GraphId};

    fn graph(pattern: Pattern, channels: &[&[usize]]) -> ChannelGraph {
        ChannelGraph {
            id: if pattern == Pattern::Ring { GraphId::Ring } else { GraphId::Tree },
            pattern,
            cross_nic: false,
            same_channels: true,
            bw_intra: 1.0,
            bw_inter: 1.0,
            latency_inter: 0.0,
            kind_intra: PathKind::Nvl,
            kind_inter: PathKind::Pix,
            channels: channels
                .iter()
                .map(|gpus| GraphChannel { nets: Some([0, 0]), gpus: gpus.to_vec() })
                .collect(),
        }
    }

    #[test]
    fn the_pattern_says_which_gpu_talks_to_whom() {
        // Over 4 hosts, host 2 hangs under 0 and has the children 1 and 3.
        for (pattern, attach) in
            [(Pattern::Tree, [1, 1]), (Pattern::SplitTree, [0, 0]), (Pattern::BalancedTree, [1, 0])]
        {
            // Chains of 4 GPUs: local rank 1, then 0, 3, 2.
            let graph = graph(pattern, &[&[1, 0, 3, 2]]);
            let trees = trees(&alike(&graph, 4, 4)).unwrap();
            assert_eq!(trees.len(), 2);
            let tree = &trees[0];
            let host = |h: u32, local: u32| h * 4 + local;
            // Within a host, down the chain.
            assert_eq!(tree.up[0], 1);
            assert_eq!(tree.up[host(3, 2) as usize], host(3, 3));
            // The way up leaves at the first of the chain.
            assert_eq!(tree.up[host(1, 1) as usize], host(2, attach[0]), "{pattern}");
            assert_eq!(tree.up[host(3, 1) as usize], host(2, attach[1]), "{pattern}");
            assert_eq!(tree.root(), Some(1));
        }
    }

    #[test]
    fn rings_go_from_the_last_gpu_to_the_next_hosts_first() {
        let graph = graph(Pattern::Ring, &[&[1, 0, 2], &[2, 1, 0]]);
        let rings = rings(&alike(&graph, 2, 3)).unwrap();
        let order = |i: usize| rings[i].order(0).collect::<Vec<_>>();
        assert_eq!(order(0), [0, 2, 4, 3, 5, 1]);
        assert_eq!(order(1), [0, 5, 4, 3, 2, 1]);
    }

    #[test]
    fn hosts_that_do_not_fit_together_are_refused() {
        let ring = graph(Pattern::Ring, &[&[0, 1]]);
        let twice = graph(Pattern::Ring, &[&[0, 0]]);
        let short = graph(Pattern::Ring, &[&[0, 1], &[0]]);
        let host = |graph, first_rank| Host { graph, first_rank };
        assert!(matches!(
            rings(&[host(&ring, 0), host(&ring, 3)]),
            Err(ConnectError::Ranks { host: 1, first_rank: 3, expected: 2 })
        ));
        for bad in [&twice, &short] {
            let error = rings(&[host(&ring, 0), host(bad, 2)]).unwrap_err();
            assert!(matches!(error, ConnectError::NotEveryRank { host: 1, .. }), "{error}");
        }
        assert!(matches!(trees(&[host(&ring, 0)]), Err(ConnectError::Pattern { host: 0, .. })));
        assert_eq!(rings(&[]), Ok(Vec::new()));
    }
}
