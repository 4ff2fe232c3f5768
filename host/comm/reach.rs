//! Which ranks' kernels reach each other's memory. Pure, and the same on all ranks.

use crate::transport::kinds::{Kinds, each_pair};
use crate::transport::{AllowedTransports, PeerInfo, device};

/// The nodes of users' kernels: the ranks of each reach each other's memory (NCCL's LSA teams).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReachTeams {
    rank: u32,
    /// The ranks of each, in order.
    nodes: Vec<Vec<u32>>,
    /// This rank's node, and its place in it.
    mine: (usize, usize),
}

impl ReachTeams {
    /// Each rank goes to the first node all of whose ranks it reaches, and that reach it.
    pub(super) fn new(rank: u32, peers: &[PeerInfo], allowed: AllowedTransports<'_>) -> Self {
        let both = |one: &PeerInfo, other: &PeerInfo| {
            reached(one, other, allowed).is_ok() && reached(other, one, allowed).is_ok()
        };
        let mut nodes: Vec<(Vec<u32>, Kinds<'_>)> = Vec::new();
        for (one, peer) in (0..).zip(peers) {
            let fits = |kinds: &Kinds<'_>| kinds.beside(peer).all(|other| both(peer, other));
            let place = nodes.iter().position(|(_, kinds)| fits(kinds)).unwrap_or_else(|| {
                nodes.push((Vec::new(), Kinds::new(allowed.too_far)));
                nodes.len() - 1
            });
            nodes[place].0.push(one);
            nodes[place].1.add(peer);
        }
        Self::of(rank, nodes.into_iter().map(|(ranks, _)| ranks).collect())
    }

    fn of(rank: u32, nodes: Vec<Vec<u32>>) -> Self {
        let place = |node: &Vec<u32>| node.iter().position(|one| *one == rank);
        let mine = nodes.iter().enumerate().find_map(|(i, node)| Some((i, place(node)?)));
        ReachTeams { rank, nodes, mine: mine.unwrap_or((0, 0)) }
    }

    /// The ranks of this rank's node, in order.
    pub(super) fn node(&self) -> &[u32] {
        self.nodes.get(self.mine.0).map_or(&[], Vec::as_slice)
    }

    /// This rank's place in its node.
    pub(super) fn node_rank(&self) -> u32 {
        self.mine.1 as u32
    }

    /// The ranks that have this rank's place in their nodes, in the order of the nodes.
    pub(super) fn rail(&self) -> Vec<u32> {
        self.nodes.iter().filter_map(|node| node.get(self.mine.1)).copied().collect()
    }

    /// This rank's place in its rail.
    pub(super) fn rail_rank(&self) -> u32 {
        self.rail().iter().position(|one| *one == self.rank).unwrap_or(0) as u32
    }

    /// Whether this rank reaches another's memory, or is it.
    pub(super) fn reaches(&self, rank: u32) -> bool {
        self.node().contains(&rank)
    }

    /// Ranks of the largest node.
    pub(super) fn largest(&self) -> usize {
        self.nodes.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Whether there is one node.
    pub(super) fn is_one(&self) -> bool {
        self.nodes.len() < 2
    }
}

/// Whether the kernels of rank `from` reach the memory of `to`; why not.
pub(super) fn reached(
    from: &PeerInfo,
    to: &PeerInfo,
    allowed: AllowedTransports<'_>,
) -> Result<(), String> {
    if from.host != to.host {
        return Err("they are on two hosts".to_owned());
    }
    if from.device.is_some() || to.device.is_some() {
        allowed.p2p(from, to)?;
        let reaches = device::reaches(from, to, allowed);
        return reaches
            .then_some(())
            .ok_or_else(|| "the devices do not reach each other".to_owned());
    }
    if from.process == to.process {
        if from.space != to.space {
            return Err("they are in two address spaces".to_owned());
        }
        // By which of the two transports does not matter.
        return allowed.p2p(from, to).or_else(|_| allowed.shm(from, to));
    }
    if from.pid_namespace == to.pid_namespace {
        allowed.shm(from, to)
    } else {
        Err("they are in two PID namespaces".to_owned())
    }
}

/// Whether each rank's kernels reach the memory of every other, for the library's own calls. The error is the reason why not.
pub(super) fn all(
    peers: &[PeerInfo],
    allowed: AllowedTransports<'_>,
    has_mesh: bool,
) -> Result<(), String> {
    if peers.len() < 2 {
        return Err("there are no other ranks".to_owned());
    }
    each_pair(peers, allowed.too_far, |from, to| {
        reached(from, to, allowed)
            .map_err(|why| format!("ranks {} and {}: {why}", from.rank, to.rank))
    })?;
    if has_mesh { Ok(()) } else { Err("the ranks have no mesh".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{FarPair, TooFar};

    #[test]
    fn teams_are_of_ranks_that_all_reach_each_other() {
        // Hosts of two and three; within the second, ranks 3 and 4 do not reach each other.
        let peer = |rank: u32| PeerInfo {
            rank,
            pid: 1,
            process: 1,
            space: 1,
            device: None,
            host: (rank < 2).to_string(),
            pid_namespace: String::new(),
            cores: ferroccl_topology::CpuSet::default(),
        };
        let peers: Vec<_> = (0..5).map(peer).collect();
        let pair = FarPair { why: "far".to_owned(), net_is_faster: true };
        let too_far = TooFar::from([((3, 4), pair)]);
        let allowed =
            AllowedTransports { p2p: true, shm: true, net: true, too_far: Some(&too_far) };
        let of = |rank| ReachTeams::new(rank, &peers, allowed);
        let found: Vec<_> =
            (0..5).map(|r| (of(r).node().to_vec(), of(r).rail(), of(r).node_rank())).collect();
        assert_eq!(found[0], (vec![0, 1], vec![0, 2, 4], 0));
        assert_eq!(found[1], (vec![0, 1], vec![1, 3], 1));
        assert_eq!(found[3], (vec![2, 3], vec![1, 3], 1));
        assert_eq!(found[4], (vec![4], vec![0, 2, 4], 0));
        assert_eq!((of(4).rail_rank(), of(3).rail_rank(), of(0).is_one()), (2, 1, false));
        assert!(of(2).reaches(3) && !of(2).reaches(4) && of(4).reaches(4));
        assert!(ReachTeams::new(0, &peers[2..4], allowed).is_one());
    }
}
