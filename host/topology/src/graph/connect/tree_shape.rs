//! The tree of a channel, and each rank's place in it for any root.

use ferroccl_device::abi::{NO_RANK, TreeLinks};

use crate::graph::tree::{self, Place};

/// Whether channel `channel` of `channels` takes the second of the two trees over the hosts: where each of the `graphs` channels of the
/// search is there twice, that is the second half of them (NCCL's `connectTrees`).
#[must_use]
pub fn second_tree(channel: u32, channels: u32, graphs: u32) -> bool {
    let graphs = graphs.max(1);
    if channels >= graphs.saturating_mul(2) { channel / graphs % 2 == 1 } else { channel % 2 == 1 }
}

/// The tree of a channel: a binary tree of nodes with a chain of ranks in each.
///
/// ```
/// use ferroccl_device::abi::NO_RANK;
/// use ferroccl_topology::graph::connect::TreeShape;
///
/// // Two hosts of two ranks; what comes from below hangs at the first of a chain.
/// let shape = TreeShape::new(vec![(vec![0, 1], [0, 0]), (vec![2, 3], [0, 0])], false);
/// let root = shape.links(0, NO_RANK);
/// assert_eq!((root.up, root.down), (NO_RANK, [2, 1, NO_RANK]));
/// assert_eq!(shape.links(2, NO_RANK).up, 0);
/// assert_eq!(shape.links(3, 3).up, NO_RANK);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TreeShape {
    /// The chain of each node, and at which places of it its two children hang.
    chains: Vec<(Vec<u32>, [usize; 2])>,
    /// Whether the nodes make the second of the two binary trees.
    second: bool,
    /// The tree's own root.
    top: u32,
    /// By rank: its node, and where it is in the chain.
    places: Vec<Option<(u32, usize)>>,
}

impl TreeShape {
    /// Of the chain of each node with the places of it at which the node's two children hang, along the first or the second binary tree.
    #[must_use]
    pub fn new(chains: Vec<(Vec<u32>, [usize; 2])>, second: bool) -> Self {
        let n = chains.len() as u32;
        let most = chains.iter().flat_map(|(ranks, _)| ranks).max();
        let mut places = vec![None; most.map_or(0, |rank| *rank as usize + 1)];
        for (node, (ranks, _)) in (0..n).zip(&chains) {
            for (at, rank) in ranks.iter().enumerate() {
                places[*rank as usize].get_or_insert((node, at));
            }
        }
        let mut shape = TreeShape { chains, second, top: 0, places };
        shape.top = (0..n).find(|i| shape.place_of(*i).parent.is_none()).unwrap_or(0);
        shape
    }

    fn place_of(&self, place: u32) -> Place {
        let n = self.chains.len() as u32;
        if self.second { tree::second(n, place) } else { tree::first(n, place) }
    }

    fn node_of(&self, rank: u32) -> u32 {
        self.places.get(rank as usize).copied().flatten().map_or(0, |place| place.0)
    }

    /// A rank's place in the tree with this root; with [`NO_RANK`] in the tree as it is. For another root than the tree's own the nodes
    /// are renumbered.
    ///
    /// A rank that is in no chain counts as the first node's first.
    #[must_use]
    pub fn links(&self, rank: u32, root: u32) -> TreeLinks {
        let n = self.chains.len() as u32;
        if n == 0 {
            return TreeLinks { up: NO_RANK, down: [NO_RANK; 3] };
        }
        // The node of `root` takes the place of the tree's own root.
        let top = self.top;
        let wanted = if root == NO_RANK { top } else { self.node_of(root) };
        let to_place = |node: u32| (node + n - wanted + top) % n;
        let to_node = |place: u32| (place + n - top + wanted) % n;
        // A node's chain begins as the graph says, or with the root.
        let chain = |node: u32| {
            let (ranks, attach) = &self.chains[node as usize];
            let turn = ranks.iter().position(|r| *r == root).unwrap_or(0);
            (ranks, turn, *attach)
        };
        let nth = |(ranks, turn): (&Vec<u32>, usize), at: usize| {
            ranks.get((turn + at) % ranks.len().max(1)).copied().filter(|_| at < ranks.len())
        };
        let node = self.node_of(rank);
        let (mine, turn, attach) = chain(node);
        let found = mine.iter().position(|r| *r == rank).unwrap_or(turn);
        let at = (found + mine.len() - turn) % mine.len().max(1);
        let place = self.place_of(to_place(node));
        let children = place.children.iter().zip(attach).filter(|(_, attached)| *attached == at);
        let children = children.filter_map(|(child, _)| {
            let (ranks, turn, _) = chain(to_node((*child)?));
            nth((ranks, turn), 0)
        });
        let up = match (at.checked_sub(1), place.parent) {
            (Some(before), _) => nth((mine, turn), before),
            (None, None) => None,
            (None, Some((parent, child))) => {
                let (ranks, turn, attach) = chain(to_node(parent));
                nth((ranks, turn), attach[child])
            }
        };
        let mut links = TreeLinks { up: up.unwrap_or(NO_RANK), down: [NO_RANK; 3] };
        for (to, from) in links.down.iter_mut().zip(children.chain(nth((mine, turn), at + 1))) {
            *to = from;
        }
        links
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From every rank up to the root; parents and children know each other.
    fn check(shape: &TreeShape, n: u32, root: u32) {
        let all: Vec<_> = (0..n).map(|rank| shape.links(rank, root)).collect();
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
                    let shape = TreeShape::new(chains, second);
                    for root in (0..n).chain([NO_RANK]) {
                        check(&shape, n, root);
                    }
                }
            }
        }
    }

    #[test]
    fn a_tree_without_nodes_has_no_links() {
        let shape = TreeShape::new(Vec::new(), false);
        assert_eq!(shape.links(3, NO_RANK), TreeLinks { up: NO_RANK, down: [NO_RANK; 3] });
    }
}
