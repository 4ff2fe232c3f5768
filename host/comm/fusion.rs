//! NIC fusion: cards of a host that are near enough to each other become one, as in NCCL.
//!
//! ```text
//! NCCL_NET_MERGE_LEVEL, NCCL_NET_FORCE_MERGE ─► topology::merge ─► which cards
//!                                                    │ Net::make_virtual_device
//!                                                    ▼
//! Properties::members ─► merged ─► topology with the virtual card ─► search, gdr ─► cards of channels
//!                   └──► usable ─► the cards that ranks take in turn
//! ```
//!
//! Every rank does it with its own network, before anything else asks for cards: ranks of a host find the same topology, and so
//! give the same numbers to virtual cards.

use ferroccl_proxy::net::{Net, Properties};
use ferroccl_topology::merge::{self, MergeCard, MergeLevel, MergeRules, VirtualNet};
use ferroccl_topology::{self as topology, Assume, NodeId, System};
use tracing::{info, warn};

use super::graphs;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::log;

/// The devices of a network, by their numbers.
fn all(net: &dyn Net) -> Result<Vec<Properties>> {
    let cards = (0..net.devices()).map(|device| net.properties(device));
    Ok(cards.collect::<std::result::Result<_, _>>()?)
}

/// Has the network merge its cards. `played`: whether the ranks stand for GPUs of a file, and cards for that file's.
///
/// # Errors
/// [`Error::InvalidSetting`] when the cards of `NCCL_NET_FORCE_MERGE` are not there, or the network does not merge them; a
/// topology file that makes no sense.
pub(super) fn fuse(net: &dyn Net, played: bool, env: &Config) -> Result<()> {
    let rules = env.merge_rules();
    let wrong = |reason: String| wrong(&rules, reason);
    let most = net.max_devices_per_nic();
    if most < 2 && !rules.groups.is_empty() {
        return Err(wrong(format!("network {} makes no virtual devices", net.name())));
    }
    let real = |card: &Properties| card.members.is_empty();
    let known: Vec<(usize, Properties)> = match most {
        2.. => all(net)?.into_iter().enumerate().filter(|(_, card)| real(card)).collect(),
        _ => Vec::new(),
    };
    if rules.merge_nothing() || (known.len() < 2 && rules.groups.is_empty()) {
        return Ok(());
    }
    let system = system(played, &rules, env)?;
    let card = |(device, card): &(usize, Properties)| MergeCard {
        name: card.name.clone(),
        port: card.port,
        node: port_of(&system, *device, card, played),
    };
    let cards: Vec<MergeCard> = known.iter().map(card).collect();
    let make = |group: &[usize]| {
        let members: Vec<usize> = group.iter().map(|place| known[*place].0).collect();
        net.make_virtual_device(&members)
    };
    let made = merge::merge(&system, &cards, &rules, most, make)
        .map_err(|error| wrong(error.to_string()))?;
    for (members, device) in made {
        let Properties { name, speed, .. } = net.properties(device)?;
        info!(target: log::NET, "NET/{} : Made virtual device [{device}] name={name} speed={speed} ndevs={}", net.name(), members.len());
    }
    Ok(())
}

fn wrong(rules: &MergeRules, reason: String) -> Error {
    Error::InvalidSetting {
        name: "NCCL_NET_FORCE_MERGE".to_owned(),
        value: rules.groups.to_string(),
        reason,
    }
}

/// Where the cards are.
fn system(played: bool, rules: &MergeRules, env: &Config) -> Result<System> {
    match &env.topo_file {
        // Nobody asks how far apart they are.
        _ if rules.level == MergeLevel::Loc => Ok(System::default()),
        Some(file) if played => {
            let assume = Assume { sm: Some(80), ..Assume::default() };
            Ok(topology::load_file(file.as_ref(), &assume)?)
        }
        _ => {
            let mut env = env.clone();
            env.topo_dump_file = None; // rank 0 writes it (`graphs`)
            match topology::load(&env.topology_files()) {
                Err(error) if env.topo_file.is_none() => {
                    warn!(target: log::NET, "which cards are near each other is not known: {error}");
                    Ok(System::default())
                }
                system => Ok(system?),
            }
        }
    }
}

/// The port of a network's device: of its name, or of its PCI device, or in a file that ranks stand for, of its number.
fn port_of(system: &System, device: usize, card: &Properties, played: bool) -> Option<NodeId> {
    let nets = system.nets();
    let named = nets.iter().find(|(_, net)| net.name == card.name && net.port == card.port);
    let id = graphs::pci_device(card);
    let placed =
        || nets.iter().find(|(node, _)| id.is_some() && graphs::nic_of(system, *node) == id);
    let numbered = || nets.iter().find(|(_, net)| played && net.dev as usize == device);
    named.or_else(placed).or_else(numbered).map(|(node, _)| *node)
}

/// The topology with the network's virtual cards in the place of their members.
///
/// # Errors
/// When the network does not say what its devices are.
pub(super) fn merged(system: &System, net: &dyn Net, played: bool) -> Result<System> {
    let cards = all(net)?;
    let mut free = system.nets().iter().map(|(_, net)| net.dev + 1).max().unwrap_or(0);
    let mut virtual_nets = Vec::new();
    for (device, card) in cards.iter().enumerate().filter(|(_, card)| !card.members.is_empty()) {
        let port = |member: &usize| port_of(system, *member, cards.get(*member)?, played);
        // The network's number, unless a file has more cards than the network.
        free = free.max(device as u32) + 1;
        let (dev, name) = (free - 1, card.name.clone());
        let members = card.members.iter().filter_map(port).collect();
        virtual_nets.push(VirtualNet { members, dev, name });
    }
    Ok(merge::with_virtual_nets(system, &virtual_nets))
}

/// The devices that are no members of a virtual one.
///
/// # Errors
/// When the network does not say what its devices are.
pub(super) fn usable(net: &dyn Net) -> Result<Vec<usize>> {
    let cards = all(net)?;
    let is_member = |device: &usize| cards.iter().any(|card| card.members.contains(device));
    Ok((0..cards.len()).filter(|device| !is_member(device)).collect())
}
