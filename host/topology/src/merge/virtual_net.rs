//! A virtual card in the topology.

use super::Tree;
use crate::speed;
use crate::system::{LinkKind, Net, Nic, Node, NodeId, System};

/// A virtual card.
#[derive(Clone, Debug, PartialEq)]
pub struct VirtualNet {
    /// The ports that it stands for.
    pub members: Vec<NodeId>,
    /// Its number.
    pub dev: u32,
    /// Its name, such as `mlx5_0+mlx5_1`.
    pub name: String,
}

/// The system with virtual cards in the place of their members. Ports are known by the numbers of their nodes; one that is no
/// port is passed over, and so is a virtual card with none.
#[must_use]
pub fn with_virtual_nets(system: &System, virtual_nets: &[VirtualNet]) -> System {
    let tree = Tree::of(system);
    let mut out = system.clone();
    let mut replaced = vec![false; system.nodes().len()];
    for one in virtual_nets {
        let ports: Vec<(NodeId, &Net)> = one
            .members
            .iter()
            .filter_map(|id| system.nets().into_iter().find(|(net, _)| net == id))
            .collect();
        let Some(&(first, _)) = ports.first() else { continue };
        let of_first = tree.above(first);
        let Some(nic) = place(system, &mut out, &tree, &ports).or(of_first) else { continue };
        let net = combined(&ports, one);
        let bw = net.bw;
        let port = out.add(Node::Net(net));
        out.connect(nic, port, LinkKind::Net, bw);
        ports.iter().for_each(|(id, _)| replaced[id.0 as usize] = true);
    }
    // Cards that have no port left go, too.
    let gone = |id: NodeId| replaced.get(id.0 as usize).copied().unwrap_or(false);
    out.filtered(|id, node| match node {
        Node::Net(_) => !gone(id),
        Node::Nic(_) => {
            let mut ports = out.links_from(id).filter(|(_, link)| link.kind == LinkKind::Net);
            let had = ports.clone().next().is_some();
            !had || ports.any(|(_, link)| !gone(link.to))
        }
        _ => true,
    })
}

/// What the virtual port is: its first member, with the speed of all, and only what all can do.
fn combined(ports: &[(NodeId, &Net)], one: &VirtualNet) -> Net {
    let all = |can: fn(&Net) -> bool| ports.iter().all(|(_, net)| can(net));
    let (_, first) = ports[0];
    Net {
        dev: one.dev,
        name: one.name.clone(),
        port: first.port,
        guid: first.guid,
        bw: ports.iter().map(|(_, net)| net.bw).sum(),
        latency: ports.iter().map(|(_, net)| net.latency).fold(0.0, f64::max),
        max_conn: ports.iter().map(|(_, net)| net.max_conn).min().unwrap_or(first.max_conn),
        gdr: all(|net| net.gdr),
        coll: all(|net| net.coll),
    }
}

/// The card of a virtual port: that of all its members, or one that is added; `None`: that of the first member.
fn place(
    system: &System,
    out: &mut System,
    tree: &Tree,
    ports: &[(NodeId, &Net)],
) -> Option<NodeId> {
    let nics: Vec<NodeId> = ports.iter().map(|(id, _)| tree.above(*id)).collect::<Option<_>>()?;
    if nics.iter().all(|nic| *nic == nics[0]) {
        return None;
    }
    let chains: Vec<Vec<NodeId>> = nics.iter().map(|nic| tree.chain(*nic)).collect();
    let shared = (0..chains[0].len())
        .take_while(|at| chains.iter().all(|chain| chain.get(*at) == chains[0].get(*at)))
        .count();
    // Of several CPUs, the first one's.
    let parent = chains[0][shared.max(1) - 1];
    // Functions of one device share its link.
    let functions = ports
        .windows(2)
        .all(|pair| tree.distance(system, pair[0].0, pair[1].0) == Some(super::MergeLevel::Port));
    let below: Vec<&[NodeId]> = chains.iter().map(|chain| &chain[shared..]).collect();
    let (kind, first_bw) = above(system, tree, nics[0])?;
    let bw = if functions { first_bw } else { joint(system, tree, &below) };
    let Node::Nic(Nic { bus_id }) = system.node(nics[0]) else { return None };
    let nic = out.add(Node::Nic(Nic { bus_id: *bus_id }));
    out.connect(nic, parent, kind, bw);
    Some(nic)
}

/// The link by which a node hangs.
fn above(system: &System, tree: &Tree, id: NodeId) -> Option<(LinkKind, f64)> {
    let parent = tree.above(id)?;
    let up = system.links_from(id).find(|(_, link)| link.to == parent && system.in_tree(link));
    up.map(|(_, link)| (link.kind, link.bw))
}

/// What cards carry together to what they share. `below` has the nodes on the way from there to each card, from the top.
fn joint(system: &System, tree: &Tree, below: &[&[NodeId]]) -> f64 {
    let mut tops: Vec<NodeId> = below.iter().filter_map(|way| way.first().copied()).collect();
    tops.sort_unstable();
    tops.dedup();
    let carries = |top: NodeId| {
        // A CPU, where there are several, is no bottleneck of the model's.
        let own = above(system, tree, top).map_or(speed::LOC, |(_, bw)| bw);
        let ways: Vec<&[NodeId]> =
            below.iter().filter(|way| way.first() == Some(&top)).map(|way| &way[1..]).collect();
        let ends = ways.iter().any(|way| way.is_empty());
        if ends { own } else { own.min(joint(system, tree, &ways)) }
    };
    tops.into_iter().map(carries).sum()
}
