//! From the channels of each host to the rings and trees over all ranks.
//!
//! Each local rank of a host's graph is a rank of the communicator ([`Host::ranks`]). A **ring** enters a host at the first GPU
//! of its channel, passes all and goes on from the last to the next host. A **tree** joins the hosts as a double binary
//! tree does ([`tree`]) and within a host runs down the channel's chain; which GPU talks to the parent and which to the
//! children is the [`Pattern`]'s matter ([`attach`]).

mod tree_shape;

use super::tree::{self, Place};
use super::{ChannelGraph, Pattern};
pub use tree_shape::{TreeShape, second_tree};

/// A host's part in a communicator.
#[derive(Clone, Debug)]
pub struct Host<'a> {
    /// Its channels.
    pub graph: &'a ChannelGraph,
    /// The rank of each of its local ranks.
    pub ranks: Vec<u32>,
}

impl Host<'_> {
    /// The ranks in the order of a channel.
    fn order(&self, channel: usize) -> impl Iterator<Item = u32> + '_ {
        self.graph.channels[channel].gpus.iter().map(|gpu| self.ranks[*gpu])
    }
}

/// Hosts that are all alike, `local` GPUs each: what one host's topology file stands for. The second graph is that of the
/// hosts of odd numbers ([`along_rails`]).
#[must_use]
pub fn alike<'a>(graphs: [&'a ChannelGraph; 2], hosts: u32, local: u32) -> Vec<Host<'a>> {
    let ranks =
        |host: u32| (0..local).map(move |gpu| host.saturating_mul(local).saturating_add(gpu));
    let host = |host: u32| Host { graph: graphs[host as usize % 2], ranks: ranks(host).collect() };
    (0..hosts).map(host).collect()
}

/// The channels of a host as host number `host` of a communicator has them, so that rings that leave a host by one port enter
/// the next host by the same: ports of one number are often on one switch, a rail.
///
/// A ring that leaves by another port than it came in by would change the rail at each host. So hosts of odd numbers exchange
/// channels that pass two ports one way with those that pass them the other way (NCCL's `ncclTopoPostset`, for a `crossNic` of
/// 2). Channels without such a mate stay as they are.
///
/// ```
/// use ferroccl_topology::graph::{ChannelGraph, GraphChannel, GraphId, Pattern, connect::along_rails};
/// use ferroccl_topology::PathKind;
///
/// let channels = vec![
///     GraphChannel { nets: Some([0, 1]), gpus: vec![0, 1] },
///     GraphChannel { nets: Some([1, 0]), gpus: vec![1, 0] },
/// ];
/// let graph = ChannelGraph {
///     id: GraphId::Ring, pattern: Pattern::Ring, cross_nic: true, same_channels: false, bw_intra: 1.0, bw_inter: 1.0,
///     latency_inter: 0.0, kind_intra: PathKind::Nvl, kind_inter: PathKind::Pix, channels,
/// };
/// let odd = along_rails(&graph, 1);
/// assert_eq!(odd.channels[0], graph.channels[1]);
/// assert_eq!(along_rails(&graph, 2), graph);
/// ```
#[must_use]
pub fn along_rails(graph: &ChannelGraph, host: u32) -> ChannelGraph {
    let mut turned = graph.clone();
    if host.is_multiple_of(2) {
        return turned;
    }
    let channels = &mut turned.channels;
    let mut done = vec![false; channels.len()];
    for one in 0..channels.len() {
        let Some([come, leave]) = channels[one].nets.filter(|[come, leave]| come != leave) else {
            continue;
        };
        let mates = |other: &usize| !done[*other] && channels[*other].nets == Some([leave, come]);
        if done[one] {
            continue;
        }
        if let Some(other) = (one + 1..channels.len()).find(mates) {
            channels.swap(one, other);
            done[other] = true;
        }
    }
    turned
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
    /// A rank is beyond the last, or on two hosts or twice on one.
    #[error("host {host}: rank {rank} is there already, or there are no more than {ranks} ranks")]
    Ranks {
        /// The host.
        host: usize,
        /// The rank.
        rank: u32,
        /// Ranks of all hosts.
        ranks: usize,
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
        for (at, host) in hosts.iter().enumerate() {
            let after = &hosts[(at + 1) % hosts.len()];
            let mut order = host.order(channel).chain(after.order(channel).take(1));
            let Some(mut from) = order.next() else { continue };
            for to in order {
                link(from, to);
                from = to;
            }
        }
        if ring.is_whole() { Ok(ring) } else { Err(ConnectError::BrokenRing { channel }) }
    });
    rings.collect()
}

/// Whether hosts' trees fit together, as [`trees`] finds it out.
///
/// # Errors
/// As there.
pub fn check_trees(hosts: &[Host<'_>]) -> Result<(), ConnectError> {
    check(hosts, |pattern| pattern != Pattern::Ring).map(drop)
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
        let chain: Vec<u32> = host.order(channel).collect();
        for pair in chain.windows(2) {
            adopt(&mut tree, pair[0], pair[1]);
        }
    }
    for (at, host) in hosts.iter().enumerate() {
        let Some((parent, child)) = place(at).parent else { continue };
        let above = &hosts[parent as usize];
        let attached = attach(above.graph.pattern, child, above.ranks.len());
        let (parent, first) = (above.order(channel).nth(attached), host.order(channel).next());
        if let (Some(parent), Some(first)) = (parent, first) {
            adopt(&mut tree, parent, first);
        }
    }
    tree
}

/// The place in a host's chain of `ranks` ranks at which child number `child` of the host, 0 or 1, hangs.
#[must_use]
pub fn attach(pattern: Pattern, child: usize, ranks: usize) -> usize {
    match (pattern, child) {
        (Pattern::SplitTree, _) | (Pattern::BalancedTree, 1) => usize::from(ranks > 1),
        _ => 0,
    }
}

/// Channels that every host has.
fn channels(hosts: &[Host<'_>]) -> usize {
    hosts.iter().map(|host| host.graph.channels.len()).min().unwrap_or(0)
}

/// Whether the hosts fit together; the number of ranks.
fn check(hosts: &[Host<'_>], fits: impl Fn(Pattern) -> bool) -> Result<usize, ConnectError> {
    let ranks = hosts.iter().map(|host| host.ranks.len()).sum();
    let mut there = vec![false; ranks];
    let mut checked: Option<(&ChannelGraph, usize)> = None;
    for (at, host) in hosts.iter().enumerate() {
        for rank in &host.ranks {
            match there.get_mut(*rank as usize) {
                Some(there) if !*there => *there = true,
                _ => return Err(ConnectError::Ranks { host: at, rank: *rank, ranks }),
            }
        }
        let local = host.ranks.len();
        // Thousands of hosts share a graph.
        if checked.is_some_and(|(graph, n)| std::ptr::eq(graph, host.graph) && n == local) {
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
        checked = Some((host.graph, local));
    }
    Ok(ranks)
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
            let trees = trees(&alike([&graph; 2], 4, 4)).unwrap();
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
        let rings = rings(&alike([&graph; 2], 2, 3)).unwrap();
        let order = |i: usize| rings[i].order(0).collect::<Vec<_>>();
        assert_eq!(order(0), [0, 2, 4, 3, 5, 1]);
        assert_eq!(order(1), [0, 5, 4, 3, 2, 1]);
    }

    /// As a launcher places them that gives each host a rank in turn.
    #[test]
    fn ranks_of_a_host_are_any() {
        let graph = graph(Pattern::Ring, &[&[1, 0, 2]]);
        let host = |ranks: &[u32]| Host { graph: &graph, ranks: ranks.to_vec() };
        let rings = rings(&[host(&[0, 2, 4]), host(&[1, 3, 5])]).unwrap();
        assert_eq!(rings[0].order(2).collect::<Vec<_>>(), [2, 0, 4, 3, 1, 5]);
    }

    #[test]
    fn hosts_that_do_not_fit_together_are_refused() {
        let ring = graph(Pattern::Ring, &[&[0, 1]]);
        let twice = graph(Pattern::Ring, &[&[0, 0]]);
        let short = graph(Pattern::Ring, &[&[0, 1], &[0]]);
        let host = |graph, first: u32| Host { graph, ranks: vec![first, first + 1] };
        for (second, rank) in [(3, 4), (1, 1)] {
            assert_eq!(
                rings(&[host(&ring, 0), host(&ring, second)]),
                Err(ConnectError::Ranks { host: 1, rank, ranks: 4 })
            );
        }
        for bad in [&twice, &short] {
            let error = rings(&[host(&ring, 0), host(bad, 2)]).unwrap_err();
            assert!(matches!(error, ConnectError::NotEveryRank { host: 1, .. }), "{error}");
        }
        assert!(matches!(trees(&[host(&ring, 0)]), Err(ConnectError::Pattern { host: 0, .. })));
        assert_eq!(rings(&[]), Ok(Vec::new()));
    }
}
