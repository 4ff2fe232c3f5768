//! The best path from one node to each other one, whatever a policy has of it.

use super::{Path, PathKind};
use crate::system::{Link, LinkKind, Node, NodeId, System};

/// How one node reaches another by itself, whatever a policy has of the memory there; `nvb`: also through a GPU by `NVLink`.
#[must_use]
pub fn direct(system: &System, from: NodeId, to: NodeId, nvb: bool) -> Path {
    let mut path =
        from_node(system, from, nvb).into_iter().nth(to.0 as usize).unwrap_or(Path::NONE);
    let gpu = match (system.node(from), system.node(to)) {
        (Node::Gpu(_), Node::Net(_)) => from,
        (Node::Net(_), Node::Gpu(_)) => to,
        _ => return path,
    };
    // Past one CPU, that of the GPU's module.
    let mut c2c = system.links_from(gpu).filter(|(_, link)| link.kind == LinkKind::C2c);
    let passes = |cpu| path.links.iter().any(|link| system.link(*link).to == cpu);
    if path.kind == PathKind::Phb && c2c.any(|(_, link)| passes(link.to)) {
        path.kind = PathKind::P2c;
    }
    path
}

/// The paths from one node to all.
pub(super) fn from_node(system: &System, from: NodeId, nvb: bool) -> Vec<Path> {
    let mut best = vec![Path::NONE; system.nodes().len()];
    best[from.0 as usize] = Path { kind: PathKind::Loc, bw: f64::INFINITY, links: Vec::new() };
    // With steps no worse than a bound, hop by hop: what is reached first under the least bound has the best
    // kind and the fewest hops.
    for bound in PathKind::ALL.into_iter().filter(|kind| *kind < PathKind::Dis) {
        let layers = layers(system, from, bound, nvb);
        for (path, found) in best.iter_mut().zip(layers) {
            if let (false, Some(found)) = (path.exists(), found) {
                *path = found;
            }
        }
    }
    best
}

/// The widest of the shortest paths whose steps are no worse than `bound`.
fn layers(system: &System, from: NodeId, bound: PathKind, nvb: bool) -> Vec<Option<Path>> {
    let mut paths: Vec<Option<Path>> = vec![None; system.nodes().len()];
    paths[from.0 as usize] =
        Some(Path { kind: PathKind::Loc, bw: f64::INFINITY, links: Vec::new() });
    let mut layer = vec![from];
    while !layer.is_empty() {
        let mut next: Vec<(NodeId, Path)> = Vec::new();
        for &node in &layer {
            let Some(here) = paths[node.0 as usize].clone() else { continue };
            for (id, link) in system.links_from(node) {
                let Some(kind) = step(system, &here, link, from, nvb) else { continue };
                if kind > bound || paths[link.to.0 as usize].is_some() {
                    continue;
                }
                let mut links = here.links.clone();
                links.push(id);
                let path = Path { kind: here.kind.max(kind), bw: here.bw.min(link.bw), links };
                match next.iter_mut().find(|(to, _)| *to == link.to) {
                    Some((_, other)) if other.bw >= path.bw => {}
                    Some((_, other)) => *other = path,
                    None => next.push((link.to, path)),
                }
            }
        }
        layer = next.iter().map(|(to, _)| *to).collect();
        for (to, path) in next {
            paths[to.0 as usize] = Some(path);
        }
    }
    paths
}

/// What going on from the end of `here` by `link` is; `None` where that is not a way.
fn step(system: &System, here: &Path, link: &Link, from: NodeId, nvb: bool) -> Option<PathKind> {
    let kind = PathKind::of_step(system, link);
    if link.from == from {
        return Some(kind);
    }
    match system.node(link.from) {
        Node::Net(_) => None,
        Node::Gpu(_) => {
            let gpu = |id| matches!(system.node(id), Node::Gpu(_));
            let direct = here.kind == PathKind::Nvl && here.hops() == 1 && gpu(from);
            let on = link.kind == LinkKind::Nvl && gpu(link.to);
            (nvb && direct && on).then_some(PathKind::Nvb)
        }
        Node::Pci(_) | Node::Nvs | Node::Cpu(_) | Node::Nic(_) => Some(kind),
    }
}
