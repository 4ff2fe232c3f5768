//! The graphs of all hosts put together: the rings, trees and cards of a communicator, equal on all of its ranks.

use std::collections::BTreeSet;

use ferroccl_device::abi::MAX_CHANNELS;
use ferroccl_proxy::connection::ConnectionId;
use ferroccl_topology::graph::connect::{self, Host};
use ferroccl_topology::graph::tuning::{Devices, Gpus};
use ferroccl_topology::graph::{ChannelGraph, Pattern, tree};

use super::{HostChannels, HostFindings};
use crate::comm::nodes::Nodes;
use crate::error::{Error, Result};
use crate::transport::TooFar;

/// The channels over all ranks, equal on all of them.
#[derive(Clone, Debug)]
pub(in crate::comm) struct CommGraphs {
    /// How many channels there are; they take the graphs' in turn.
    pub channels: u32,
    /// Of each host, by node.
    pub(super) hosts: Vec<HostChannels>,
    /// The ranks of each node.
    members: Vec<Vec<u32>>,
    /// The node of each rank, and its number there.
    places: Vec<Option<(usize, usize)>>,
    /// The ranks around each ring, from rank 0 on.
    pub(super) orders: Vec<Vec<u32>>,
    /// Where each rank is in each ring.
    positions: Vec<Vec<usize>>,
    /// What the tuner reckons with: the weakest of all hosts.
    pub(super) ring: ChannelGraph,
    pub(super) tree: Option<ChannelGraph>,
}

/// A connection that another rank of the host sends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::comm) struct RelayedConnection {
    pub key: ConnectionId,
    /// The rank that sends.
    pub by: u32,
    /// The network's device that it does it by.
    pub device: u32,
}

impl CommGraphs {
    /// What all ranks have found, by rank, put together; `blocks` is the most that a launch of each may have. `None` where a
    /// host has no graphs.
    ///
    /// # Errors
    /// [`Error::Malformed`] when a host's channels make no sense.
    pub(in crate::comm) fn agree(
        nodes: &Nodes,
        all: &[HostFindings],
        blocks: u32,
    ) -> Result<Option<Self>> {
        let members = nodes.members().to_vec();
        let first = members.iter().map(|ranks| all.get(ranks[0] as usize)?.channels.clone());
        let Some(mut hosts) = first.collect::<Option<Vec<HostChannels>>>() else { return Ok(None) };
        for (ranks, host) in members.iter().zip(&hosts) {
            let speeds = |graph: &ChannelGraph| {
                graph.bw_intra.is_finite() && graph.bw_inter.is_finite() && graph.bw_intra > 0.0
            };
            let sound = |graph: &ChannelGraph| {
                !graph.channels.is_empty() && graph.channels.len() <= MAX_CHANNELS && speeds(graph)
            };
            let ports = |graph: &ChannelGraph| {
                let mut named = graph.channels.iter().flat_map(|channel| channel.nets).flatten();
                named.all(|port| port < host.cards.len())
            };
            let sound = |graph: &ChannelGraph| sound(graph) && ports(graph);
            let relays = host.relays.are_sound(ranks.len(), host.cards.len());
            if host.channels == 0 || !sound(&host.ring) || !host.tree.iter().all(sound) || !relays {
                let text = format!("rank {} has channels that make no sense", ranks[0]);
                return Err(Error::malformed(text));
            }
        }
        for (number, host) in (0..).zip(&mut hosts) {
            host.ring = connect::along_rails(&host.ring, number);
        }
        let malformed = |e: connect::ConnectError| Error::malformed(e.to_string());
        let of = |graph: fn(&HostChannels) -> Option<&ChannelGraph>| -> Option<Vec<Host<'_>>> {
            let host = |(host, ranks): (_, &Vec<u32>)| {
                Some(Host { graph: graph(host)?, ranks: ranks.clone() })
            };
            hosts.iter().zip(&members).map(host).collect()
        };
        let rings = of(|host| Some(&host.ring)).unwrap_or_default();
        let orders: Vec<Vec<u32>> = connect::rings(&rings)
            .map_err(malformed)?
            .iter()
            .map(|ring| ring.order(0).collect())
            .collect();
        let ring = weakest(&rings);
        let trees = of(|host| host.tree.as_ref());
        let tree = match &trees {
            Some(trees) => {
                connect::check_trees(trees).map_err(malformed)?;
                Some(weakest(trees))
            }
            None => None,
        };
        let channels = hosts.iter().map(|host| host.channels).min().unwrap_or(1);
        let channels = channels.min(blocks).clamp(1, MAX_CHANNELS as u32);
        let (places, positions) = (places(&members), orders.iter().map(|o| positions(o)).collect());
        Ok(Some(CommGraphs { channels, orders, positions, ring, tree, members, places, hosts }))
    }

    /// The ranks around the rings, from rank 0 on; `channels` channels take them in turn.
    pub(in crate::comm) fn orders(&self, channels: u32) -> impl Iterator<Item = &[u32]> {
        self.orders.iter().take(channels as usize).map(Vec::as_slice)
    }

    /// Where a rank is: its node, and its number there.
    fn place(&self, rank: u32) -> Option<(usize, usize)> {
        *self.places.get(rank as usize)?
    }

    /// The port of `rank` for its connection with `peer` on a channel; `None` where they are neighbours neither in the
    /// channel's ring nor in its tree.
    fn port_towards(&self, rank: u32, peer: u32, channel: u32, channels: u32) -> Option<usize> {
        let (node, number) = self.place(rank)?;
        let host = &self.hosts[node];
        let of_ring = channel as usize % self.orders.len();
        let order = &self.orders[of_ring];
        let at = *self.positions[of_ring].get(rank as usize)?;
        let around = [order[(at + 1) % order.len()], order[(at + order.len() - 1) % order.len()]];
        if around.contains(&peer) {
            return host.ring.channels[of_ring].port(number);
        }
        let (tree, count) = (host.tree.as_ref()?, self.tree.as_ref()?.channels.len());
        let of_tree = channel as usize % count;
        let second = self.second_tree(channel, channels);
        let joined =
            self.joined(rank, peer, of_tree, second) || self.joined(peer, rank, of_tree, second);
        joined.then(|| tree.channels[of_tree].port(number)).flatten()
    }

    /// The network's device of `rank` for its connection with `peer` on a channel; `None` where they are neighbours neither in
    /// the channel's ring nor in its tree.
    pub(in crate::comm) fn card(
        &self,
        rank: u32,
        peer: u32,
        channel: u32,
        channels: u32,
    ) -> Option<u32> {
        let port = self.port_towards(rank, peer, channel, channels)?;
        self.hosts[self.place(rank)?.0].cards[port]
    }

    /// The rank of its host that sends for `rank` to `peer`, where it is another one, and the network's device that it does it
    /// by. The connections of collectives come first, those of messages follow.
    pub(in crate::comm) fn relay(
        &self,
        rank: u32,
        peer: u32,
        index: u32,
        channels: u32,
    ) -> Option<(u32, u32)> {
        let ((node, number), (_, theirs)) = (self.place(rank)?, self.place(peer)?);
        let host = &self.hosts[node];
        let (by, port) = if index < channels {
            let port = self.port_towards(rank, peer, index, channels)?;
            (host.relays.of_collective(number, port)?, port)
        } else {
            host.relays.of_message(number, theirs)?
        };
        Some((self.members[node][by as usize], host.cards[port]?))
    }

    /// The connections of number `index` on which other ranks of its host send for `rank`, by their peers. Of `channels` channels
    /// the connections of collectives have the first numbers, those of messages the next ones.
    pub(in crate::comm) fn relayed(
        &self,
        rank: u32,
        index: u32,
        channels: u32,
    ) -> Vec<RelayedConnection> {
        let relayed = |peer: u32| {
            let (by, device) = self.relay(rank, peer, index, channels)?;
            Some(RelayedConnection { key: ConnectionId { peer, index }, by, device })
        };
        let Some((node, _)) = self.place(rank) else { return Vec::new() };
        let elsewhere = |peer: &u32| self.place(*peer).is_some_and(|(other, _)| other != node);
        (0..self.places.len() as u32).filter(elsewhere).filter_map(relayed).collect()
    }

    /// Whether rank `by` may have something to send for `rank`, on their host.
    pub(in crate::comm) fn sends_for(&self, by: u32, rank: u32) -> bool {
        match (self.place(by), self.place(rank)) {
            (Some((node, by)), Some((same, rank))) => {
                node == same && by != rank && self.hosts[node].relays.sends_for(by, rank)
            }
            _ => false,
        }
    }

    /// Whether `child` is below `parent` in a tree, on another host.
    fn joined(&self, parent: u32, child: u32, channel: usize, second: bool) -> bool {
        let n = self.members.len() as u32;
        let first = |(node, number): (usize, usize)| {
            let tree = self.hosts[node].tree.as_ref()?;
            (tree.channels[channel].gpus.first() == Some(&number)).then_some(node as u32)
        };
        let Some(node) = self.place(child).and_then(first) else { return false };
        let place = if second { tree::second(n, node) } else { tree::first(n, node) };
        let (Some((above, which)), Some((node, number))) = (place.parent, self.place(parent))
        else {
            return false;
        };
        let Some(tree) = self.hosts[node].tree.as_ref() else { return false };
        let gpus = &tree.channels[channel].gpus;
        above as usize == node && gpus[connect::attach(tree.pattern, which, gpus.len())] == number
    }

    /// The network's devices that the channels name for a rank: where they enter and leave its host.
    pub(in crate::comm) fn cards(&self, rank: u32) -> BTreeSet<u32> {
        let Some((node, number)) = self.place(rank) else { return BTreeSet::new() };
        let host = &self.hosts[node];
        let mut cards = BTreeSet::new();
        let rings = (0..self.orders.len()).map(|channel| (&host.ring, channel));
        let trees = self.tree.iter().flat_map(|tree| 0..tree.channels.len());
        let trees = trees.filter_map(|channel| Some((host.tree.as_ref()?, channel)));
        for (graph, channel) in rings.chain(trees) {
            let gpus = &graph.channels[channel].gpus;
            let ends =
                [gpus.first(), gpus.last(), gpus.get(1).filter(|_| graph.pattern != Pattern::Ring)];
            if ends.contains(&Some(&number)) {
                let port = graph.channels[channel].port(number);
                cards.extend(port.and_then(|port| host.cards[port]));
            }
        }
        cards
    }

    /// Each host's chain of a channel's tree, and at which places of it its two children hang; `None` without trees.
    pub(in crate::comm) fn chains(&self, channel: u32) -> Option<Vec<(Vec<u32>, [usize; 2])>> {
        let count = self.tree.as_ref()?.channels.len();
        let chain = |(host, ranks): (&HostChannels, &Vec<u32>)| {
            let tree = host.tree.as_ref()?;
            let gpus = &tree.channels[channel as usize % count].gpus;
            let attach = |child| connect::attach(tree.pattern, child, gpus.len());
            Some((gpus.iter().map(|gpu| ranks[*gpu]).collect(), [attach(0), attach(1)]))
        };
        self.hosts.iter().zip(&self.members).map(chain).collect()
    }

    /// Whether a channel takes the second of the two trees over the hosts.
    pub(in crate::comm) fn second_tree(&self, channel: u32, channels: u32) -> bool {
        connect::second_tree(channel, channels, self.orders.len() as u32)
    }

    /// The devices of the tuning model: GPUs, or ranks on the CPU that stand for some.
    pub(in crate::comm) fn devices(&self, on_gpus: bool) -> Devices<'_> {
        if !on_gpus {
            return Devices::Cpu { ring: Some(&self.ring) };
        }
        Devices::Gpus(Gpus {
            ring: &self.ring,
            tree: self.tree.as_ref(),
            collnet: None,
            min_sm: self.hosts.iter().map(|host| host.min_sm).min().unwrap_or(0),
            max_sm: self.hosts.iter().map(|host| host.max_sm).max().unwrap_or(0),
            cpu: self.hosts[0].cpu,
            nvswitch: self.hosts.iter().all(|host| host.nvswitch),
        })
    }
}

/// The node of each rank, and its number there.
fn places(members: &[Vec<u32>]) -> Vec<Option<(usize, usize)>> {
    let of_node = |(node, ranks): (usize, &Vec<u32>)| {
        let numbered = ranks.iter().enumerate();
        numbered.map(move |(number, rank)| (*rank, (node, number))).collect::<Vec<_>>()
    };
    let mut places = vec![None; members.iter().map(Vec::len).sum()];
    for (rank, place) in members.iter().enumerate().flat_map(of_node) {
        if let Some(known) = places.get_mut(rank as usize) {
            *known = Some(place);
        }
    }
    places
}

/// Where each rank is in an order of all ranks.
fn positions(order: &[u32]) -> Vec<usize> {
    let mut positions = vec![0; order.len()];
    for (at, rank) in order.iter().enumerate() {
        if let Some(position) = positions.get_mut(*rank as usize) {
            *position = at;
        }
    }
    positions
}

/// The pairs of ranks of all hosts that may not write each other's memory.
///
/// # Errors
/// [`Error::Malformed`] when a host names ranks that it does not have.
pub(in crate::comm) fn too_far(nodes: &Nodes, all: &[HostFindings]) -> Result<TooFar> {
    let mut pairs = TooFar::new();
    for ranks in nodes.members() {
        let Some(found) = all.get(ranks[0] as usize) else { continue };
        for (a, b, pair) in &found.too_far {
            let rank = |number: u32| ranks.get(number as usize).copied();
            let (Some(one), Some(other), true) = (rank(*a), rank(*b), a < b) else {
                let text = format!("rank {} names ranks that its host does not have", ranks[0]);
                return Err(Error::malformed(text));
            };
            pairs.insert((one, other), pair.clone());
        }
    }
    Ok(pairs)
}

/// The weakest of the hosts' graphs in everything (the reduction behind NCCL's third exchange); the ways are the first host's.
fn weakest(hosts: &[Host<'_>]) -> ChannelGraph {
    let mut least = hosts[0].graph.clone();
    for Host { graph, .. } in hosts {
        least.channels.truncate(graph.channels.len());
        least.bw_intra = least.bw_intra.min(graph.bw_intra);
        least.bw_inter = least.bw_inter.min(graph.bw_inter);
        least.latency_inter = least.latency_inter.max(graph.latency_inter);
        least.kind_intra = least.kind_intra.max(graph.kind_intra);
        least.kind_inter = least.kind_inter.max(graph.kind_inter);
        least.cross_nic |= graph.cross_nic;
        least.same_channels &= graph.same_channels;
    }
    least
}
