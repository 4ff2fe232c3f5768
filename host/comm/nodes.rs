//! Which ranks sit together, and the trees over them. Pure, but for the memory that the trees are kept in.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use ferroccl_device::abi::{NO_RANK, TreeLinks};

use super::control::Ring;
use crate::Result;
use crate::graph::tree;
use crate::runtime::{Memory, Runtime, place};
use crate::transport::PeerInfo;

/// The nodes of a communicator, each with its ranks in order; the first one of each is its leader.
#[derive(Clone, Debug)]
pub(super) struct Nodes {
    rank: u32,
    /// Ranks by node.
    members: Vec<Vec<u32>>,
    /// This rank's node.
    mine: usize,
}

impl Nodes {
    /// By host, or `ranks_per_node` at a time where that is given.
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

    /// Nodes.
    pub(super) fn count(&self) -> usize {
        self.members.len()
    }

    /// Whether all nodes have as many ranks.
    pub(super) fn alike(&self) -> bool {
        self.members.iter().all(|ranks| ranks.len() == self.members[0].len())
    }

    /// This rank's node.
    pub(super) fn node(&self) -> u32 {
        self.mine as u32
    }

    /// Ranks of this rank's node.
    pub(super) fn locals(&self) -> u32 {
        self.members[self.mine].len() as u32
    }

    /// This rank's place in its node.
    pub(super) fn local(&self) -> u32 {
        let ranks = &self.members[self.mine];
        ranks.iter().position(|rank| *rank == self.rank).unwrap_or(0) as u32
    }

    /// The ranks that have this rank's place in their nodes, where all nodes are alike.
    pub(super) fn heads(&self) -> Vec<u32> {
        let local = self.local() as usize;
        self.members.iter().filter_map(|ranks| ranks.get(local)).copied().collect()
    }

    /// Whether this rank is its node's first.
    pub(super) fn is_leader(&self) -> bool {
        self.members[self.mine].first() == Some(&self.rank)
    }

    /// The rings that this rank is in: of all ranks, of its node, and for a leader that of the leaders.
    pub(super) fn rings(&self, nranks: u32) -> Vec<Ring> {
        let place = |ranks: &[u32]| ranks.iter().position(|r| *r == self.rank).unwrap_or(0) as u32;
        let ring = |ranks: Vec<u32>| Ring { index: place(&ranks), ranks };
        let mut rings = vec![ring((0..nranks).collect()), ring(self.members[self.mine].clone())];
        if self.is_leader() {
            rings.push(ring(self.members.iter().map(|ranks| ranks[0]).collect()));
        }
        rings
    }
}

/// This rank's places in the trees, by root.
#[derive(Debug)]
pub(super) struct Trees {
    rank: u32,
    channels: u32,
    members: Vec<Vec<u32>>,
    /// The links of all channels, within reach of kernels.
    tables: Mutex<HashMap<u32, Arc<dyn Memory>>>,
}

impl Trees {
    pub(super) fn new(rank: u32, channels: u32, nodes: &Nodes) -> Self {
        Trees { rank, channels, members: nodes.members.clone(), tables: Mutex::default() }
    }

    /// The table of the trees with this root; any will do with [`NO_RANK`].
    ///
    /// # Errors
    /// When there is no memory for it.
    pub(super) fn table(&self, root: u32, runtime: &dyn Runtime) -> Result<Arc<dyn Memory>> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = tables.get(&root) {
            return Ok(Arc::clone(table));
        }
        let links: Box<[TreeLinks]> = (0..self.channels)
            .map(|channel| links(&self.members, self.rank, root, channel))
            .collect();
        let table = place(runtime, bytemuck::cast_slice(&links))?;
        tables.insert(root, Arc::clone(&table));
        Ok(table)
    }
}

/// A rank's place in the tree of a channel. Over several nodes that is a double binary tree of nodes, and a chain within
/// each; over one a double binary tree of its ranks. Channels take turns between the two trees. A root other than the
/// tree's own gets its place by renumbering.
fn links(members: &[Vec<u32>], rank: u32, root: u32, channel: u32) -> TreeLinks {
    let alone: Vec<Vec<u32>>;
    let nodes = match members {
        [ranks] => {
            alone = ranks.iter().map(|rank| vec![*rank]).collect();
            &alone
        }
        nodes => nodes,
    };
    let n = nodes.len() as u32;
    let shape = if channel.is_multiple_of(2) { tree::first } else { tree::second };
    let node_of =
        |rank: u32| nodes.iter().position(|ranks| ranks.contains(&rank)).unwrap_or(0) as u32;
    // The tree's own root, which `root`'s node replaces.
    let top = (0..n).find(|i| shape(n, *i).parent.is_none()).unwrap_or(0);
    let wanted = if root == NO_RANK { top } else { node_of(root) };
    let to_place = |node: u32| (node + n - wanted + top) % n;
    let to_node = |place: u32| (place + n - top + wanted) % n;
    // A node's chain begins with its leader, or with the root.
    let chain = |node: u32| {
        let mut ranks = nodes[node as usize].clone();
        if let Some(at) = ranks.iter().position(|r| *r == root) {
            ranks.rotate_left(at);
        }
        ranks
    };
    let node = node_of(rank);
    let mine = chain(node);
    let at = mine.iter().position(|r| *r == rank).unwrap_or(0);
    let mut down = Vec::new();
    let up = if at == 0 {
        let place = shape(n, to_place(node));
        down.extend(place.children.iter().flatten().map(|child| chain(to_node(*child))[0]));
        place.parent.map_or(NO_RANK, |(parent, _)| chain(to_node(parent))[0])
    } else {
        mine[at - 1]
    };
    down.extend(mine.get(at + 1));
    let mut links = TreeLinks { up, down: [NO_RANK; 3] };
    for (to, from) in links.down.iter_mut().zip(down) {
        *to = from;
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From every rank up to the root; parents and children know each other.
    #[test]
    fn trees_hold_every_rank_whatever_the_root() {
        for n in 1..20u32 {
            for per_node in [1, 2, 3, 5, 20] {
                let ranks: Vec<u32> = (0..n).collect();
                let members: Vec<Vec<u32>> = ranks.chunks(per_node).map(<[u32]>::to_vec).collect();
                for root in (0..n).chain([NO_RANK]) {
                    for channel in 0..2 {
                        let all: Vec<_> =
                            ranks.iter().map(|r| links(&members, *r, root, channel)).collect();
                        let tops: Vec<u32> = ranks
                            .iter()
                            .copied()
                            .filter(|r| all[*r as usize].up == NO_RANK)
                            .collect();
                        assert_eq!(
                            tops.len(),
                            1,
                            "{n} ranks, {per_node} a node, root {root}: {all:?}"
                        );
                        assert!(root == NO_RANK || tops[0] == root, "{root}: {all:?}");
                        for rank in &ranks {
                            let mine = all[*rank as usize];
                            let there = mine.down.iter().take_while(|c| **c != NO_RANK).count();
                            assert!(mine.down[there..].iter().all(|c| *c == NO_RANK));
                            for child in &mine.down[..there] {
                                assert_eq!(all[*child as usize].up, *rank);
                            }
                            let mut at = *rank;
                            for _ in 0..n {
                                if all[at as usize].up != NO_RANK {
                                    at = all[at as usize].up;
                                    assert!(all[at as usize].down.iter().any(|c| *c != NO_RANK));
                                }
                            }
                            assert_eq!(at, tops[0]);
                        }
                    }
                }
            }
        }
    }
}
