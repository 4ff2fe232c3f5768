//! Which pairs of ranks stand for all pairs.
//!
//! How two ranks are connected follows from their hosts, PID namespaces, processes, address spaces and devices, and from which
//! devices are too far apart. A group of 1024 ranks has a million pairs and often one or two kinds of them, and every rank asks.
//!
//! ```text
//! ranks of one process              those that have one address space stand for each other
//! ranks of other processes          two of different processes stand for all of a host and namespace
//! ranks that have devices           each for itself
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{PeerInfo, TooFar};

/// What ranks have in common that stand for each other, but for their processes: host, PID namespace, and their own number if
/// nobody stands for them.
type Kind<'a> = (&'a str, &'a str, Option<u32>);

/// Ranks, of which some stand for the others.
pub(crate) struct Kinds<'a> {
    /// Those that are too far from others.
    far: HashSet<u32>,
    /// One of each process, two of different processes at most.
    of_hosts: BTreeMap<Kind<'a>, Vec<&'a PeerInfo>>,
    /// By process: one of each kind and address space.
    of_processes: HashMap<u64, Vec<(Kind<'a>, &'a PeerInfo)>>,
}

impl<'a> Kinds<'a> {
    /// No ranks yet.
    pub(crate) fn new(too_far: Option<&TooFar>) -> Self {
        let far = too_far.into_iter().flat_map(TooFar::keys).flat_map(|(a, b)| [*a, *b]).collect();
        Kinds { far, of_hosts: BTreeMap::new(), of_processes: HashMap::new() }
    }

    fn kind(&self, peer: &'a PeerInfo) -> Kind<'a> {
        let own = peer.device.is_some() || self.far.contains(&peer.rank);
        (&peer.host, &peer.pid_namespace, own.then_some(peer.rank))
    }

    /// Adds a rank.
    pub(crate) fn add(&mut self, peer: &'a PeerInfo) {
        let kind = self.kind(peer);
        let of_host = self.of_hosts.entry(kind).or_default();
        if of_host.len() < 2 && of_host.iter().all(|other| other.process != peer.process) {
            of_host.push(peer);
        }
        let of_process = self.of_processes.entry(peer.process).or_default();
        if !of_process.iter().any(|(of, other)| *of == kind && other.space == peer.space) {
            of_process.push((kind, peer));
        }
    }

    /// Ranks of those that were added: every other is to `peer` what one of these is.
    pub(crate) fn beside(&self, peer: &'a PeerInfo) -> impl Iterator<Item = &'a PeerInfo> {
        let same = self.of_processes.get(&peer.process).into_iter().flatten();
        let others = self
            .of_hosts
            .values()
            .filter_map(|two| two.iter().find(|other| other.process != peer.process));
        same.map(|(_, other)| *other).chain(others.copied())
    }
}

/// Gives `check` pairs of ranks, in both directions, such that every other pair is like one of them; the first error.
pub(crate) fn each_pair<E>(
    peers: &[PeerInfo],
    too_far: Option<&TooFar>,
    mut check: impl FnMut(&PeerInfo, &PeerInfo) -> Result<(), E>,
) -> Result<(), E> {
    let mut kinds = Kinds::new(too_far);
    for peer in peers {
        for other in kinds.beside(peer) {
            check(other, peer)?;
            check(peer, other)?;
        }
        kinds.add(peer);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{AllowedTransports, FarPair, select};
    use super::*;

    /// SplitMix64.
    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = *state;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// What can be said of a pair.
    fn relation(one: &PeerInfo, other: &PeerInfo, too_far: &TooFar) -> (String, bool, bool) {
        let allowed =
            AllowedTransports { p2p: true, shm: true, net: false, too_far: Some(too_far) };
        let selected = select(one, other, allowed).map(|t| (t.name(), t.direct(one, other)));
        let selected =
            selected.map_err(|e| e.to_string().replace(|c: char| c.is_ascii_digit(), ""));
        (format!("{selected:?}"), one.process == other.process, one.space == other.space)
    }

    #[test]
    fn every_pair_is_like_one_that_is_looked_at() {
        for seed in 0..300 {
            println!("seed {seed}");
            let state = &mut (seed << 32);
            let mut few = |most: u64| random(state) % (1 + seed % most);
            let peer = |rank: u32| PeerInfo {
                rank,
                pid: 1,
                process: few(7),
                space: few(3),
                device: None,
                host: format!("host {}", few(3)),
                pid_namespace: few(2).to_string(),
                cores: ferroccl_topology::CpuSet::default(),
            };
            let peers: Vec<_> = (0..1 + seed as u32 % 19).map(peer).collect();
            let pair = FarPair { why: "far".to_owned(), net_is_faster: true };
            let too_far = TooFar::from_iter((seed % 5 == 0).then_some(((0, 2), pair)));
            let mut looked = Vec::new();
            let end = each_pair(&peers, Some(&too_far), |one, other| {
                looked.push(relation(one, other, &too_far));
                Ok::<(), ()>(())
            });
            assert_eq!(end, Ok(()));
            for one in &peers {
                for other in peers.iter().filter(|other| other.rank != one.rank) {
                    let found = relation(one, other, &too_far);
                    // Two processes have their spaces each for itself.
                    let like = |(selected, process, space): &(String, bool, bool)| {
                        *selected == found.0
                            && *process == found.1
                            && (!found.1 || *space == found.2)
                    };
                    assert!(looked.iter().any(like), "{one:?} and {other:?}");
                }
            }
        }
    }

    #[test]
    fn a_thousand_ranks_of_a_host_are_few_kinds_of_pairs() {
        for processes in [1, 4, 1024] {
            let peer = |rank: u32| PeerInfo {
                rank,
                pid: 1,
                process: u64::from(rank % processes),
                space: 1,
                device: None,
                host: "host".to_owned(),
                pid_namespace: String::new(),
                cores: ferroccl_topology::CpuSet::default(),
            };
            let peers: Vec<_> = (0..1024).map(peer).collect();
            let mut looked = 0;
            let _ = each_pair(&peers, None, |_, _| {
                looked += 1;
                Ok::<(), ()>(())
            });
            assert!(looked <= 4 * 1024, "{processes} processes: {looked} pairs");
        }
    }
}
