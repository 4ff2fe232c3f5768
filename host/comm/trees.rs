//! A rank's places in the trees, one for each root, and their tables for kernels.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use ferroccl_device::abi::{NO_RANK, TreeLinks};

use super::nodes::Nodes;
use crate::error::Result;
use crate::runtime::{Memory, Runtime, place};
use ferroccl_topology::graph::tree;

/// This rank's places in the trees, for each root.
#[derive(Debug)]
pub(super) struct Trees {
    rank: u32,
    channels: u32,
    members: Vec<Vec<u32>>,
    /// By root, the links of all channels, in memory of the device.
    tables: Mutex<HashMap<u32, Arc<dyn Memory>>>,
}

impl Trees {
    pub(super) fn new(rank: u32, channels: u32, nodes: &Nodes) -> Self {
        Trees { rank, channels, members: nodes.members().to_vec(), tables: Mutex::default() }
    }

    /// The table of the trees with this root; with [`NO_RANK`] the trees' own.
    ///
    /// # Errors
    /// When the device has no memory for it.
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

/// A rank's place in the tree of a channel. For several nodes that is a double binary tree of nodes with a chain of ranks in
/// each; for one node a double binary tree of its ranks. Even channels take the first tree, odd ones the second. For another
/// root than the tree's own the nodes are renumbered.
fn links(members: &[Vec<u32>], rank: u32, root: u32, channel: u32) -> TreeLinks {
    let singles: Vec<Vec<u32>>;
    let nodes = match members {
        [ranks] => {
            singles = ranks.iter().map(|rank| vec![*rank]).collect();
            &singles
        }
        nodes => nodes,
    };
    let n = nodes.len() as u32;
    let shape = if channel.is_multiple_of(2) { tree::first } else { tree::second };
    let node_of =
        |rank: u32| nodes.iter().position(|ranks| ranks.contains(&rank)).unwrap_or(0) as u32;
    // The tree's own root; the node of `root` takes its place.
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
