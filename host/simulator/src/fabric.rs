//! The network between hosts: its links, and the way of each message through them.
//!
//! ```text
//! fat tree and rail-optimised                      dragonfly
//!
//!      core   core         between pods            group of routers, all joined ── one trunk ── each other group
//!        │  \/  │                                     │  │  │
//!      spine  spine        of a pod                  hosts, all ports on one router
//!        │  \/  │
//!       leaf  leaf
//!        │      │
//!      hosts' ports
//! ```
//!
//! In a **fat tree** a leaf has all ports of some hosts. In a **rail-optimised** network it has one port of each of more hosts, so that
//! ports of one number are a switch away from each other. Which of the uplinks a connection takes follows from a hash of it, as switches
//! do with ECMP: it stays the same for all of its messages.
//!
//! The figures of a step between hosts that the tuner has were measured over one switch. So a link between two switches adds the
//! latency of a switch, and the links to hosts add none.

mod dragonfly;
mod file;
mod tree;

use std::fmt;
use std::str::FromStr;

use crate::SimulateError;
use dragonfly::Dragonfly;
use file::FileFabric;
use tree::SwitchTree;

/// What a switch and the cable behind it add to a message, in microseconds. Assumed: 130 ns of a switch (NVIDIA's figure for Quantum),
/// and as much again for its cable and its ports.
pub const SWITCH_US: f64 = 0.26;

/// A network as it is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct FabricSpec {
    /// How switches are joined.
    pub shape: FabricShape,
    /// What each switch behind the first adds to a message, in microseconds.
    pub switch_us: f64,
}

/// How the switches of a network are joined.
#[derive(Clone, Debug, PartialEq)]
pub enum FabricShape {
    /// Leaves with one port of each of `hosts` hosts.
    Rail {
        /// Hosts that share leaves.
        hosts: u32,
        /// Such groups of hosts in a pod.
        groups: u32,
        /// How many times as much bandwidth goes down from a leaf as goes up.
        oversubscription: f64,
    },
    /// Leaves with all ports of `hosts` hosts.
    FatTree {
        /// Hosts of a leaf.
        hosts: u32,
        /// Leaves of a pod.
        groups: u32,
        /// How many times as much bandwidth goes down from a leaf as goes up.
        oversubscription: f64,
    },
    /// Groups of routers that are all joined, and all groups joined with each other.
    Dragonfly {
        /// Hosts of a router.
        hosts: u32,
        /// Routers of a group.
        routers: u32,
        /// How many times as much bandwidth a group's hosts have as its trunks.
        oversubscription: f64,
    },
    /// Switches and links of a file, as text.
    File(String),
}

impl Default for FabricSpec {
    /// Rail-optimised, 32 hosts to a leaf and 32 such groups to a pod, without oversubscription.
    fn default() -> Self {
        let shape = FabricShape::Rail { hosts: 32, groups: 32, oversubscription: 1.0 };
        FabricSpec { shape, switch_us: SWITCH_US }
    }
}

impl FromStr for FabricSpec {
    type Err = SimulateError;

    /// `rail`, `fat-tree` or `dragonfly`, with `:key=value,...` behind it.
    fn from_str(text: &str) -> Result<Self, SimulateError> {
        let wrong = |why: String| SimulateError::Fabric(format!("{text:?}: {why}"));
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let (mut hosts, mut groups, mut oversubscription, mut switch_us) = match name {
            "rail" => (32, 32, 1.0, SWITCH_US),
            "fat-tree" => (4, 32, 1.0, SWITCH_US),
            "dragonfly" => (2, 16, 1.0, SWITCH_US),
            _ => return Err(wrong("neither rail, fat-tree nor dragonfly".to_owned())),
        };
        let of_groups = if name == "dragonfly" { "routers" } else { "groups" };
        for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
            let (key, value) = setting
                .split_once('=')
                .ok_or_else(|| wrong(format!("{setting:?} is not KEY=VALUE")))?;
            let number: f64 =
                value.parse().map_err(|_| wrong(format!("{value:?} is no number")))?;
            let count = || {
                let whole = number.fract() == 0.0 && (1.0..=1e6).contains(&number);
                if whole {
                    Ok(number as u32)
                } else {
                    Err(wrong(format!("{key}={value}: 1 to 1000000")))
                }
            };
            match key {
                "hosts" => hosts = count()?,
                key if key == of_groups => groups = count()?,
                "oversubscription" if (0.01..=1000.0).contains(&number) => {
                    oversubscription = number;
                }
                "oversubscription" => {
                    return Err(wrong("oversubscription is 0.01 to 1000".to_owned()));
                }
                "switch-us" if (0.0..=1e6).contains(&number) => switch_us = number,
                "switch-us" => return Err(wrong("switch-us is 0 to 1000000".to_owned())),
                _ => {
                    let known = format!("hosts, {of_groups}, oversubscription, switch-us");
                    return Err(wrong(format!("no key {key:?}; there are {known}")));
                }
            }
        }
        let shape = match name {
            "rail" => FabricShape::Rail { hosts, groups, oversubscription },
            "fat-tree" => FabricShape::FatTree { hosts, groups, oversubscription },
            _ => FabricShape::Dragonfly { hosts, routers: groups, oversubscription },
        };
        Ok(FabricSpec { shape, switch_us })
    }
}

impl fmt::Display for FabricSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.shape {
            FabricShape::Rail { hosts, groups, oversubscription } => {
                write!(f, "rail:hosts={hosts},groups={groups},oversubscription={oversubscription}")
            }
            FabricShape::FatTree { hosts, groups, oversubscription } => {
                write!(
                    f,
                    "fat-tree:hosts={hosts},groups={groups},oversubscription={oversubscription}"
                )
            }
            FabricShape::Dragonfly { hosts, routers, oversubscription } => {
                write!(
                    f,
                    "dragonfly:hosts={hosts},routers={routers},oversubscription={oversubscription}"
                )
            }
            FabricShape::File(_) => return f.write_str("file"),
        }?;
        write!(f, ",switch-us={}", self.switch_us)
    }
}

/// A link of a network, one way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FabricLink {
    /// 10^9 bytes a second.
    pub bw: f64,
    /// What it adds to a message, in microseconds.
    pub latency_us: f64,
}

/// Where a host's port is: the host, and the port's number there.
pub type Port = (u32, u32);

/// The networks there are.
#[derive(Debug)]
enum Kind {
    Tree(SwitchTree),
    Dragonfly(Dragonfly),
    File(FileFabric),
}

/// The links of a network, and the ways through them.
///
/// The first links lead from each port to its switch, and the next from each switch to the port; then come those between switches.
#[derive(Debug)]
pub struct Fabric {
    links: Vec<FabricLink>,
    hosts: u32,
    ports: u32,
    kind: Kind,
}

impl Fabric {
    /// The network of `hosts` hosts whose ports have these bandwidths, 10^9 bytes a second.
    ///
    /// # Errors
    /// [`SimulateError::Fabric`] where a file makes no sense, or does not join the hosts.
    pub fn new(spec: &FabricSpec, hosts: u32, ports: &[f64]) -> Result<Self, SimulateError> {
        let each = ports.len() as u32;
        let to_hosts = || {
            let port = |bw: &f64| FabricLink { bw: *bw, latency_us: 0.0 };
            (0..2 * hosts).flat_map(move |_| ports.iter().map(port))
        };
        let mut links: Vec<FabricLink> = to_hosts().collect();
        let widest = ports.iter().copied().fold(0.0, f64::max);
        let mut add = |bw: f64| links.push(FabricLink { bw, latency_us: spec.switch_us });
        let kind = match spec.shape {
            FabricShape::Rail { hosts: of_leaf, groups, oversubscription } => {
                let tree =
                    SwitchTree::new((hosts, each), (of_leaf, groups), oversubscription, true);
                (0..tree.links()).for_each(|_| add(widest));
                Kind::Tree(tree)
            }
            FabricShape::FatTree { hosts: of_leaf, groups, oversubscription } => {
                let tree =
                    SwitchTree::new((hosts, each), (of_leaf, groups), oversubscription, false);
                (0..tree.links()).for_each(|_| add(widest));
                Kind::Tree(tree)
            }
            FabricShape::Dragonfly { hosts: of_router, routers, oversubscription } => {
                let dragonfly =
                    Dragonfly::new((hosts, each), (of_router, routers), oversubscription);
                (0..dragonfly.links()).for_each(|link| add(widest * dragonfly.ports_of(link)));
                Kind::Dragonfly(dragonfly)
            }
            FabricShape::File(ref text) => {
                let file = FileFabric::new(text, hosts, each, spec.switch_us)?;
                links.extend(file.links());
                Kind::File(file)
            }
        };
        Ok(Fabric { links, hosts, ports: each, kind })
    }

    /// Its links.
    #[must_use]
    pub fn links(&self) -> &[FabricLink] {
        &self.links
    }

    /// The link from a port to its switch.
    #[must_use]
    pub fn up(&self, (host, port): Port) -> u32 {
        host * self.ports + port
    }

    /// The link from a switch to a port.
    #[must_use]
    pub fn down(&self, (host, port): Port) -> u32 {
        (self.hosts + host) * self.ports + port
    }

    /// Appends the links of the way from a port to one of another host to `way`. `flow` says which of several ways: equal flows take
    /// the same.
    pub fn route(&self, from: Port, to: Port, flow: u64, way: &mut Vec<u32>) {
        let first = 2 * self.hosts * self.ports;
        way.push(self.up(from));
        match &self.kind {
            Kind::Tree(tree) => tree.route(from, to, flow, |link| way.push(first + link)),
            Kind::Dragonfly(dragonfly) => dragonfly.route(from, to, |link| way.push(first + link)),
            Kind::File(file) => file.route(from, to, flow, |link| way.push(first + link)),
        }
        way.push(self.down(to));
    }

    /// What to call a link.
    #[must_use]
    pub fn name(&self, link: u32) -> String {
        let (all, each) = (self.hosts * self.ports, self.ports.max(1));
        let (host, port) = (link % all.max(1) / each, link % each);
        match link.checked_sub(2 * all) {
            Some(inner) => match &self.kind {
                Kind::Tree(tree) => tree.name(inner),
                Kind::Dragonfly(dragonfly) => dragonfly.name(inner),
                Kind::File(file) => file.name(inner),
            },
            None if link < all => format!("host {host}, port {port} to its switch"),
            None => format!("switch to host {host}, port {port}"),
        }
    }
}

/// A hash of numbers: SplitMix64's mixing (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
pub(crate) fn hash(numbers: &[u64]) -> u64 {
    numbers.iter().fold(0x9e37_79b9_7f4a_7c15, |state, number| {
        let mut z = (state ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTS: [f64; 4] = [25.0; 4];

    fn ways(spec: &str, from: Port, to: Port) -> Vec<Vec<u32>> {
        let fabric = Fabric::new(&spec.parse().unwrap(), 64, &PORTS).unwrap();
        let way = |flow| {
            let mut way = Vec::new();
            fabric.route(from, to, flow, &mut way);
            assert!(way.iter().all(|link| (*link as usize) < fabric.links().len()));
            way
        };
        (0..64).map(way).collect()
    }

    #[test]
    fn near_hosts_are_a_switch_apart_and_far_ones_more() {
        let rail = "rail:hosts=8,groups=4";
        assert!(ways(rail, (0, 1), (7, 1)).iter().all(|way| way.len() == 2)); // one leaf
        assert!(ways(rail, (0, 1), (1, 2)).iter().all(|way| way.len() == 4)); // another rail
        assert!(ways(rail, (0, 1), (31, 1)).iter().all(|way| way.len() == 4)); // one pod
        assert!(ways(rail, (0, 1), (32, 1)).iter().all(|way| way.len() == 6)); // another pod
        let tree = "fat-tree:hosts=4,groups=4";
        assert!(ways(tree, (0, 1), (3, 2)).iter().all(|way| way.len() == 2));
        assert!(ways(tree, (0, 1), (4, 1)).iter().all(|way| way.len() == 4));
        let dragonfly = "dragonfly:hosts=2,routers=4";
        assert!(ways(dragonfly, (0, 1), (1, 1)).iter().all(|way| way.len() == 2));
        assert!(ways(dragonfly, (0, 1), (2, 1)).iter().all(|way| way.len() == 3));
        assert!(ways(dragonfly, (0, 1), (63, 1)).iter().all(|way| (3..=5).contains(&way.len())));
    }

    #[test]
    fn flows_spread_over_the_uplinks_and_each_stays_where_it_is() {
        let of_flows = ways("fat-tree:hosts=4,groups=4", (0, 0), (5, 0));
        let mut uplinks: Vec<u32> = of_flows.iter().map(|way| way[1]).collect();
        uplinks.sort_unstable();
        uplinks.dedup();
        assert!(uplinks.len() > 8, "{uplinks:?}");
        assert_eq!(of_flows, ways("fat-tree:hosts=4,groups=4", (0, 0), (5, 0)));
        let narrow = ways("fat-tree:hosts=4,groups=4,oversubscription=16", (0, 0), (5, 0));
        assert!(narrow.iter().all(|way| *way == narrow[0]), "one uplink is left");
    }

    #[test]
    fn every_link_has_a_name_of_its_own() {
        for spec in ["rail:hosts=8,groups=4", "fat-tree:hosts=4,groups=4", "dragonfly:routers=4"] {
            let fabric = Fabric::new(&spec.parse().unwrap(), 64, &PORTS).unwrap();
            let mut names: Vec<_> =
                (0..fabric.links().len() as u32).map(|link| fabric.name(link)).collect();
            let all = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), all, "{spec}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (text, word) in [
            ("ring", "neither rail"),
            ("rail:hosts", "KEY=VALUE"),
            ("rail:hosts=0", "1 to 1000000"),
            ("rail:routers=2", "no key"),
            ("fat-tree:oversubscription=0", "0.01 to 1000"),
            ("dragonfly:hosts=many", "no number"),
            ("rail:switch-us=-1", "0 to 1000000"),
        ] {
            let error = text.parse::<FabricSpec>().unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
        let spec: FabricSpec = "fat-tree:oversubscription=2".parse().unwrap();
        assert_eq!(spec.to_string().parse::<FabricSpec>().unwrap(), spec);
    }
}
