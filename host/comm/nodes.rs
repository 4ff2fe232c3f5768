//! Which ranks are on one node. Pure.

use std::collections::HashMap;

use super::control::RankOrder;
use super::graphs::CommGraphs;
use crate::transport::PeerInfo;

/// The nodes of a communicator, each with its ranks in order. A node's first rank is its leader.
#[derive(Clone, Debug)]
pub(super) struct Nodes {
    rank: u32,
    /// The ranks of each node.
    members: Vec<Vec<u32>>,
    /// This rank's node.
    mine: usize,
}

impl Nodes {
    /// A node for each host, or for `ranks_per_node` ranks in a row.
    pub(super) fn new(rank: u32, peers: &[PeerInfo], ranks_per_node: Option<u32>) -> Self {
        let mut members: Vec<Vec<u32>> = Vec::new();
        let mut hosts: HashMap<&str, usize> = HashMap::new();
        for (rank, peer) in (0u32..).zip(peers) {
            let node = match ranks_per_node {
                Some(n) => (rank / n.max(1)) as usize,
                None => {
                    let next = hosts.len();
                    *hosts.entry(&peer.host).or_insert(next)
                }
            };
            if node == members.len() {
                members.push(Vec::new());
            }
            members[node].push(rank);
        }
        let mine = members.iter().position(|ranks| ranks.contains(&rank)).unwrap_or(0);
        Nodes { rank, members, mine }
    }

    /// The ranks of each node, in order.
    pub(super) fn members(&self) -> &[Vec<u32>] {
        &self.members
    }

    /// How many nodes there are.
    pub(super) fn count(&self) -> usize {
        self.members.len()
    }

    /// Whether all nodes have the same number of ranks.
    pub(super) fn have_equal_sizes(&self) -> bool {
        self.members.iter().all(|ranks| ranks.len() == self.members[0].len())
    }

    /// The number of this rank's node.
    pub(super) fn index(&self) -> u32 {
        self.mine as u32
    }

    /// How many ranks this rank's node has.
    pub(super) fn local_ranks(&self) -> u32 {
        self.members[self.mine].len() as u32
    }

    /// The ranks of this rank's node, in order.
    pub(super) fn local_members(&self) -> &[u32] {
        &self.members[self.mine]
    }

    /// This rank's position in its node.
    pub(super) fn local_rank(&self) -> u32 {
        let ranks = &self.members[self.mine];
        ranks.iter().position(|rank| *rank == self.rank).unwrap_or(0) as u32
    }

    /// The ranks with this rank's position in each node (the heads of one part, see `collnet`).
    pub(super) fn heads(&self) -> Vec<u32> {
        let local = self.local_rank() as usize;
        self.members.iter().filter_map(|ranks| ranks.get(local)).copied().collect()
    }

    /// Whether this rank is its node's first.
    pub(super) fn is_leader(&self) -> bool {
        self.members[self.mine].first() == Some(&self.rank)
    }

    /// The ring of some ranks, this one among them.
    fn ring(&self, ranks: Vec<u32>) -> RankOrder {
        let index = ranks.iter().position(|rank| *rank == self.rank).unwrap_or(0) as u32;
        RankOrder { ranks, index }
    }

    /// The rings of all ranks, which channels take in turn: the graphs', or one that passes the ranks of one node after those
    /// of another.
    pub(super) fn rings(&self, graphs: Option<&CommGraphs>, channels: u32) -> Vec<RankOrder> {
        match graphs {
            Some(graphs) => {
                graphs.orders(channels).map(|ranks| self.ring(ranks.to_vec())).collect()
            }
            None => vec![self.ring(self.members.iter().flatten().copied().collect())],
        }
    }

    /// The ring of all ranks in their order.
    pub(super) fn ring_in_rank_order(&self) -> RankOrder {
        let nranks = self.members.iter().map(Vec::len).sum::<usize>() as u32;
        self.ring((0..nranks).collect())
    }

    /// The ring of this rank's node.
    pub(super) fn ring_in_node(&self) -> RankOrder {
        self.ring(self.members[self.mine].clone())
    }

    /// For a leader the ring of all leaders.
    pub(super) fn ring_of_leaders(&self) -> Option<RankOrder> {
        let leaders = || self.members.iter().map(|ranks| ranks[0]).collect();
        self.is_leader().then(|| self.ring(leaders()))
    }
}
