//! A rank's places in the trees, one for each root, and their tables for kernels.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use ferroccl_device::abi::{NO_RANK, TreeLinks};

use super::graphs::CommGraphs;
use super::nodes::Nodes;
use crate::error::Result;
use crate::runtime::{Memory, Runtime, place};
use ferroccl_topology::graph::tree;

/// This rank's places in the trees, for each root.
#[derive(Debug)]
pub(super) struct Trees {
    /// This rank's place in the tree of each channel, without a root.
    own: Box<[TreeLinks]>,
    rank: u32,
    shapes: Box<[TreeShape]>,
    /// By root.
    tables: Mutex<HashMap<u32, TreeTable>>,
}

/// The links of all channels in the trees with some root.
#[derive(Clone, Debug)]
pub(super) struct TreeTable {
    pub links: Arc<[TreeLinks]>,
    /// The same in the device's memory.
    pub memory: Arc<dyn Memory>,
}

/// The tree of a channel.
#[derive(Clone, Debug, PartialEq)]
struct TreeShape {
    /// The chain of each node, and at which places of it its two children hang.
    chains: Vec<(Vec<u32>, [usize; 2])>,
    /// Whether the nodes make the second of the two binary trees.
    second: bool,
}

impl Trees {
    /// The trees of the graphs; without those, of the nodes with their ranks in order, or of one node's ranks.
    pub(super) fn new(
        rank: u32,
        channels: u32,
        nodes: &Nodes,
        graphs: Option<&CommGraphs>,
    ) -> Self {
        let first = |ranks: Vec<u32>| (ranks, [0, 0]);
        let shape = |channel: u32| {
            if let Some(graphs) = graphs
                && let Some(chains) = graphs.chains(channel)
            {
                return TreeShape { chains, second: graphs.second_tree(channel, channels) };
            }
            let chains = match nodes.members() {
                [ranks] => ranks.iter().map(|rank| first(vec![*rank])).collect(),
                nodes => nodes.iter().cloned().map(first).collect(),
            };
            TreeShape { chains, second: channel % 2 == 1 }
        };
        let shapes: Box<[TreeShape]> = (0..channels).map(shape).collect();
        let own = shapes.iter().map(|shape| links(shape, rank, NO_RANK)).collect();
        Trees { own, rank, shapes, tables: Mutex::default() }
    }

    /// This rank's place in the tree of each channel.
    pub(super) fn own(&self) -> &[TreeLinks] {
        &self.own
    }

    /// The table of the trees with this root; with [`NO_RANK`] the trees' own.
    ///
    /// # Errors
    /// When the device has no memory for it.
    pub(super) fn table(&self, root: u32, runtime: &dyn Runtime) -> Result<TreeTable> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = tables.get(&root) {
            return Ok(table.clone());
        }
        let links: Arc<[TreeLinks]> =
            self.shapes.iter().map(|shape| links(shape, self.rank, root)).collect();
        let memory = place(runtime, bytemuck::cast_slice(&links))?;
        let table = TreeTable { links, memory };
        tables.insert(root, table.clone());
        Ok(table)
    }
}

/// A rank's place in the tree of a channel: a binary tree of nodes with a chain of ranks in each. For another root than the
/// tree's own the nodes are renumbered.
fn links(shape: &TreeShape, rank: u32, root: u32) -> TreeLinks {
    let n = shape.chains.len() as u32;
    let place_of =
        |place: u32| if shape.second { tree::second(n, place) } else { tree::first(n, place) };
    let node_of = |rank: u32| {
        shape.chains.iter().position(|(ranks, _)| ranks.contains(&rank)).unwrap_or(0) as u32
    };
    // The tree's own root; the node of `root` takes its place.
    let top = (0..n).find(|i| place_of(*i).parent.is_none()).unwrap_or(0);
    let wanted = if root == NO_RANK { top } else { node_of(root) };
    let to_place = |node: u32| (node + n - wanted + top) % n;
    let to_node = |place: u32| (place + n - top + wanted) % n;
    // A node's chain begins as the graph says, or with the root.
    let chain = |node: u32| {
        let (mut ranks, attach) = shape.chains[node as usize].clone();
        if let Some(at) = ranks.iter().position(|r| *r == root) {
            ranks.rotate_left(at);
        }
        (ranks, attach)
    };
    let node = node_of(rank);
    let (mine, attach) = chain(node);
    let at = mine.iter().position(|r| *r == rank).unwrap_or(0);
    let place = place_of(to_place(node));
    let children = place.children.iter().zip(attach).filter(|(_, attached)| *attached == at);
    let children = children.filter_map(|(child, _)| Some(chain(to_node((*child)?)).0[0]));
    let up = match (at.checked_sub(1), place.parent) {
        (Some(before), _) => mine[before],
        (None, None) => NO_RANK,
        (None, Some((parent, child))) => {
            let (ranks, attach) = chain(to_node(parent));
            ranks[attach[child]]
        }
    };
    let mut links = TreeLinks { up, down: [NO_RANK; 3] };
    for (to, from) in links.down.iter_mut().zip(children.chain(mine.get(at + 1).copied())) {
        *to = from;
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From every rank up to the root; parents and children know each other.
    fn check(shape: &TreeShape, n: u32, root: u32) {
        let all: Vec<_> = (0..n).map(|rank| links(shape, rank, root)).collect();
        let tops: Vec<u32> = (0..n).filter(|rank| all[*rank as usize].up == NO_RANK).collect();
        assert_eq!(tops.len(), 1, "{n} ranks, root {root}, {shape:?}: {all:?}");
        assert!(root == NO_RANK || tops[0] == root, "{root}: {all:?}");
        for rank in 0..n {
            let mine = all[rank as usize];
            let there = mine.down.iter().take_while(|child| **child != NO_RANK).count();
            assert!(mine.down[there..].iter().all(|child| *child == NO_RANK));
            for child in &mine.down[..there] {
                assert_eq!(all[*child as usize].up, rank, "root {root}, {shape:?}: {all:?}");
            }
            let mut at = rank;
            for _ in 0..n {
                if all[at as usize].up != NO_RANK {
                    at = all[at as usize].up;
                    assert!(all[at as usize].down.iter().any(|child| *child != NO_RANK));
                }
            }
            assert_eq!(at, tops[0]);
        }
    }

    #[test]
    fn trees_hold_every_rank_whatever_the_root() {
        for n in 1..20u32 {
            for per_node in [1, 2, 3, 5, 20] {
                let ranks: Vec<u32> = (0..n).rev().collect();
                for (attach, second) in [([0, 0], false), ([0, 1], true), ([1, 1], false)] {
                    let chain = |ranks: &[u32]| {
                        (ranks.to_vec(), attach.map(|at: usize| at.min(ranks.len() - 1)))
                    };
                    let chains = ranks.chunks(per_node).map(chain).collect();
                    let shape = TreeShape { chains, second };
                    for root in (0..n).chain([NO_RANK]) {
                        check(&shape, n, root);
                    }
                }
            }
        }
    }
}
