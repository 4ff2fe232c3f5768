//! NIC fusion: which cards are used as one, and what that one is in the topology.
//!
//! ```text
//!            switch                                    switch
//!            │    │                                       │ 24 + 24 GB/s
//!        NIC a    NIC b        ── distance PIX ──►       NIC a
//!            │    │               (PORT, PHB, ...)        │
//!       mlx5_0    mlx5_1                            mlx5_0+mlx5_1    the sum of both speeds
//! ```
//!
//! Two cards are as far apart as the device that both hang by ([`MergeLevel`]). The cards that are named together are merged
//! first ([`MergeGroups`]). Then each card takes along those that are near enough, in the order of their numbers. The
//! network makes the virtual card, and may refuse: then these cards count as far apart, and the rest is merged anew.
//!
//! The virtual card hangs by the device that its members hang by together. Its link has what theirs carry together. The links
//! above stay as they are; NCCL widens the one above the shared switch, too. Its members are left out.
//!
//! Facts are those of NCCL's `ncclTopoMakeVNics`, `ncclTopoAutoMerge`, `ncclTopoForceMerge` and `ncclTopoGetPath` in its topo.cc.
//! Pure: what a virtual card is to the network, the caller says.

mod groups;
mod virtual_net;

use std::fmt;
use std::str::FromStr;

pub use groups::{MergeGroups, MergeGroupsError};
pub use virtual_net::{VirtualNet, with_virtual_nets};

use crate::system::{BusId, Net, Nic, Node, NodeId, System};

/// Cards of a virtual one at most: NCCL's `NCCL_NET_MAX_DEVS_PER_NIC` (`net.h`).
pub const MOST_CARDS: usize = 4;

/// Connections of a port that mark an interface for sockets: NCCL's limit for these, which its topology files have.
const SOCKET_CONNECTIONS: u32 = 65_536;

/// How far apart cards may be that are merged, nearest first (`NCCL_NET_MERGE_LEVEL`).
///
/// ```
/// use ferroccl_topology::merge::MergeLevel;
///
/// assert_eq!("PIX".parse(), Ok(MergeLevel::Pix));
/// assert!(MergeLevel::Port < MergeLevel::Pix && MergeLevel::default() == MergeLevel::Port);
/// assert!("NVL".parse::<MergeLevel>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum MergeLevel {
    /// No two cards.
    Loc,
    /// Ports of one card.
    #[default]
    Port,
    /// Cards of one PCI switch.
    Pix,
    /// Cards below several PCI switches of one CPU.
    Pxb,
    /// As [`MergeLevel::Pxb`]: no two cards have such a path.
    P2c,
    /// As [`MergeLevel::Pxb`]: no two cards have such a path.
    Pxn,
    /// Cards of one CPU.
    Phb,
    /// Any two cards.
    Sys,
}

impl MergeLevel {
    /// All of them, nearest first.
    pub const ALL: [MergeLevel; 8] = [
        MergeLevel::Loc,
        MergeLevel::Port,
        MergeLevel::Pix,
        MergeLevel::Pxb,
        MergeLevel::P2c,
        MergeLevel::Pxn,
        MergeLevel::Phb,
        MergeLevel::Sys,
    ];

    /// What may be written, in words.
    pub const FORM: &'static str = "LOC, PORT, PIX, PXB, P2C, PXN, PHB or SYS";

    /// Its name, as NCCL has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["LOC", "PORT", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS"][self as usize]
    }
}

impl fmt::Display for MergeLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for MergeLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|level| level.name().eq_ignore_ascii_case(text));
        known.ok_or_else(|| format!("none of {}", Self::FORM))
    }
}

/// Which cards are merged. [`MergeRules::default`] is NCCL's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergeRules {
    /// How far apart they may be.
    pub level: MergeLevel,
    /// Those that are merged however far apart they are.
    pub groups: MergeGroups,
}

impl MergeRules {
    /// Whether no two cards can be merged.
    #[must_use]
    pub fn merge_nothing(&self) -> bool {
        self.level == MergeLevel::Loc && self.groups.is_empty()
    }
}

/// A card as a network knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeCard {
    /// Its name, such as `mlx5_0`.
    pub name: String,
    /// Its port.
    pub port: u32,
    /// Its port in the system, if that has it.
    pub node: Option<NodeId>,
}

/// Why cards that are named cannot be merged. What is wrong is in [`MergeGroups`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError<E> {
    /// The names are not those of as many cards.
    #[error("{0}")]
    Groups(String),
    /// The network does not make one card of them.
    #[error("{names}: {source}")]
    Refused {
        /// The names of the cards.
        names: String,
        /// Why not.
        source: E,
    },
}

/// Merges cards. `make` makes a virtual card of some, by their places in `cards`; what it gives comes back with the places.
///
/// Cards that are only near each other, and of which `make` makes none, stay as they are.
///
/// # Errors
/// When cards that are named are not there, or `make` refuses them.
pub fn merge<M, E: fmt::Display>(
    system: &System,
    cards: &[MergeCard],
    rules: &MergeRules,
    most: usize,
    mut make: impl FnMut(&[usize]) -> Result<M, E>,
) -> Result<Vec<(Vec<usize>, M)>, MergeError<E>> {
    let mut made = Vec::new();
    let mut placed = vec![false; cards.len()];
    for group in rules.groups.find(cards, most).map_err(MergeError::Groups)? {
        group.iter().for_each(|card| placed[*card] = true);
        // A card that is named alone stays alone.
        if group.len() > 1 {
            let names = names(cards, &group);
            let one = make(&group).map_err(|source| MergeError::Refused { names, source })?;
            made.push((group, one));
        }
    }
    let tree = Tree::of(system);
    let distance = |a: usize, b: usize| tree.distance(system, cards[a].node?, cards[b].node?);
    let mut refused: Vec<(usize, usize)> = Vec::new();
    for first in 0..cards.len() {
        while !placed[first] {
            let near = |other: &usize| {
                !placed[*other]
                    && !refused.contains(&(first, *other))
                    && distance(first, *other).is_some_and(|distance| distance <= rules.level)
            };
            let others = (0..cards.len()).filter(|other| *other != first);
            let mut group = vec![first];
            group.extend(others.filter(near).take(most.saturating_sub(1)));
            if group.len() > 1 {
                match make(&group) {
                    Ok(one) => made.push((group.clone(), one)),
                    Err(why) => {
                        let names = names(cards, &group);
                        tracing::info!(target: crate::LOG_TARGET, "cards {names} stay apart: {why} (NCCL_NET_MERGE_LEVEL)");
                        let pairs = group.iter().skip(1).map(|other| (*other, first));
                        refused.extend(pairs.flat_map(|(a, b)| [(a, b), (b, a)]));
                        continue;
                    }
                }
            }
            group.iter().for_each(|card| placed[*card] = true);
        }
    }
    Ok(made)
}

/// The system with its ports merged, as a network does it that makes every virtual card. The ports of interfaces for sockets
/// are not merged. A virtual port gets the next free number.
///
/// # Errors
/// When ports that are named are not there.
pub fn merge_ports(system: &System, rules: &MergeRules) -> Result<System, String> {
    let nets = system.nets();
    let cards: Vec<MergeCard> = nets
        .iter()
        .filter(|(_, net)| net.max_conn != SOCKET_CONNECTIONS)
        .map(|(id, net)| MergeCard { name: net.name.clone(), port: net.port, node: Some(*id) })
        .collect();
    let mut free = nets.iter().map(|(_, net)| net.dev + 1).max().unwrap_or(0);
    let make = |_: &[usize]| {
        free += 1;
        Ok::<u32, std::convert::Infallible>(free - 1)
    };
    let made = merge(system, &cards, rules, MOST_CARDS, make).map_err(|error| error.to_string())?;
    let virtual_nets = made.into_iter().map(|(group, dev)| {
        let members = group.iter().filter_map(|card| cards[*card].node).collect();
        VirtualNet { members, dev, name: names(&cards, &group) }
    });
    Ok(with_virtual_nets(system, &virtual_nets.collect::<Vec<_>>()))
}

/// `mlx5_0+mlx5_1`: NCCL's name of a virtual card.
fn names(cards: &[MergeCard], group: &[usize]) -> String {
    let names: Vec<&str> = group.iter().map(|card| cards[*card].name.as_str()).collect();
    names.join("+")
}

/// How far apart two ports are, as far as merging goes; `None` where one of them hangs by no CPU.
#[must_use]
pub fn distance(system: &System, one: NodeId, other: NodeId) -> Option<MergeLevel> {
    Tree::of(system).distance(system, one, other)
}

/// What each node hangs by.
struct Tree(Vec<Option<NodeId>>);

impl Tree {
    fn of(system: &System) -> Tree {
        let mut above = vec![None; system.nodes().len()];
        let mut rest: Vec<NodeId> = system.cpus().iter().map(|(id, _)| *id).collect();
        let mut seen = vec![false; above.len()];
        rest.iter().for_each(|cpu| seen[cpu.0 as usize] = true);
        while let Some(id) = rest.pop() {
            for (_, link) in system.links_from(id).filter(|(_, link)| system.in_tree(link)) {
                let below = link.to.0 as usize;
                if !std::mem::replace(&mut seen[below], true) {
                    above[below] = Some(id);
                    rest.push(link.to);
                }
            }
        }
        Tree(above)
    }

    fn above(&self, id: NodeId) -> Option<NodeId> {
        self.0[id.0 as usize]
    }

    /// The nodes from the root down to this one.
    fn chain(&self, id: NodeId) -> Vec<NodeId> {
        let mut chain: Vec<NodeId> =
            std::iter::successors(Some(id), |id| self.above(*id)).collect();
        chain.reverse();
        chain
    }

    fn distance(&self, system: &System, one: NodeId, other: NodeId) -> Option<MergeLevel> {
        let (a, b) = (self.chain(one), self.chain(other));
        let hangs = |chain: &[NodeId]| matches!(system.node(chain[0]), Node::Cpu(_));
        if !hangs(&a) || !hangs(&b) {
            return None;
        }
        let shared = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
        let (Some(a), Some(b)) = (a.get(shared..), b.get(shared..)) else { return None };
        let (Some(below_a), Some(below_b)) = (a.first(), b.first()) else {
            return Some(MergeLevel::Loc);
        };
        let functions = bus_id(system, *below_a).zip(bus_id(system, *below_b));
        if functions.is_some_and(|(a, b)| BusId { function: 0, ..a } == BusId { function: 0, ..b })
        {
            return Some(MergeLevel::Port);
        }
        Some(match self.above(*below_a).map(|common| system.node(common)) {
            None => MergeLevel::Sys,
            Some(Node::Cpu(_)) => MergeLevel::Phb,
            Some(Node::Nic(_)) => MergeLevel::Port,
            // The card and its port, and nothing between the switch and them.
            Some(_) if a.len() == 2 && b.len() == 2 => MergeLevel::Pix,
            Some(_) => MergeLevel::Pxb,
        })
    }
}

fn bus_id(system: &System, id: NodeId) -> Option<BusId> {
    match system.node(id) {
        Node::Pci(pci) => Some(pci.bus_id),
        Node::Gpu(gpu) => Some(gpu.bus_id),
        Node::Nic(Nic { bus_id }) => *bus_id,
        Node::Nvs | Node::Cpu(_) | Node::Net(Net { .. }) => None,
    }
}
