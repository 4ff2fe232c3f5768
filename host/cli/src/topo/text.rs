//! The view as text.

use std::fmt::Write;

use ferroccl::graph::connect::Ring;
use ferroccl::graph::{self, ChannelGraph, GraphChannel, Pattern};
use ferroccl::topology::{CpuSet, LinkKind, Node, NodeId, Paths, System, affinity};

use super::View;
use super::trees::trees;
use super::verdicts::verdicts;

/// Ranks of a ring that fit a line.
const RANKS_OF_A_RING: usize = 32;

pub(super) fn all(view: &View) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = head(&mut out, view);
    let _ = tree_of_devices(&mut out, &view.system);
    let _ = matrix(&mut out, &view.system, &view.paths);
    let _ = verdicts(&mut out, &view.system, &view.policy);
    for graph in view.graphs.iter() {
        let _ = channels(&mut out, view, graph);
    }
    let _ = rings(&mut out, view);
    let _ = trees(&mut out, view);
    out
}

fn head(out: &mut String, view: &View) -> std::fmt::Result {
    let system = &view.system;
    let mut parts = vec![
        counted(system.cpus().len(), "CPU"),
        match system.min_sm() {
            0 => counted(system.gpus().len(), "CPU device"),
            sm => format!("{} (sm_{sm})", counted(system.gpus().len(), "GPU")),
        },
        counted(system.nets().len(), "network port"),
    ];
    if system.has_nvswitch() {
        parts.push("NVSwitch".to_owned());
    }
    writeln!(out, "{}; {} of it: {}\n", parts.join(", "), counted(view.hosts as usize, "host"), {
        counted(view.hosts as usize * view.paths.gpus(), "rank")
    })
}

/// `1 channel`, `2 channels`.
pub(super) fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// The devices under their CPUs, each with the bandwidth of its link up, and its other links.
fn tree_of_devices(out: &mut String, system: &System) -> std::fmt::Result {
    let mut seen = vec![false; system.nodes().len()];
    for (id, _) in system.cpus() {
        seen[id.0 as usize] = true;
    }
    for (id, _) in system.cpus() {
        writeln!(out, "{}", described(system, id))?;
        below(out, system, id, "", &mut seen)?;
    }
    for (id, node) in system.nodes() {
        if !seen[id.0 as usize] {
            seen[id.0 as usize] = true;
            let nvs = matches!(node, Node::Nvs);
            writeln!(out, "{}", if nvs { "NVS".to_owned() } else { described(system, id) })?;
            below(out, system, id, "", &mut seen)?;
        }
    }
    writeln!(out)
}

fn below(
    out: &mut String,
    system: &System,
    id: NodeId,
    indent: &str,
    seen: &mut [bool],
) -> std::fmt::Result {
    let mut children: Vec<(NodeId, f64)> = Vec::new();
    for (_, link) in system.links_from(id) {
        if system.in_tree(link) && !std::mem::replace(&mut seen[link.to.0 as usize], true) {
            children.push((link.to, link.bw));
        }
    }
    for (i, (child, bw)) in children.iter().enumerate() {
        let last = i + 1 == children.len();
        let (branch, on) = if last { ("└─", "  ") } else { ("├─", "│ ") };
        let across: Vec<String> = system
            .links_from(*child)
            .filter(|(_, link)| {
                matches!(link.kind, LinkKind::Nvl | LinkKind::C2c) || system.joins_switches(link)
            })
            .map(|(_, link)| {
                format!("{} {} to {}", link.kind, number(link.bw), system.name(link.to))
            })
            .collect();
        let across =
            if across.is_empty() { String::new() } else { format!("; {}", across.join(", ")) };
        writeln!(out, "{indent}{branch} {} [{}{across}]", described(system, *child), number(*bw))?;
        below(out, system, *child, &format!("{indent}{on} "), seen)?;
    }
    Ok(())
}

fn described(system: &System, id: NodeId) -> String {
    let name = system.name(id);
    match system.node(id) {
        Node::Cpu(cpu) => format!("{name}: cores {}", cores(&cpu.affinity)),
        Node::Gpu(gpu) if gpu.sm > 0 => format!("{name} {}", gpu.bus_id),
        Node::Net(net) => format!("{name} {}: {} GB/s", net.name, number(net.bw)),
        _ => name,
    }
}

/// Cores as ranges: `0-63,128-191`.
pub(super) fn cores(set: &CpuSet) -> String {
    if set.is_empty() { "any".to_owned() } else { ranges(set.iter()) }
}

/// Ascending numbers as ranges.
fn ranges(numbers: impl IntoIterator<Item = usize>) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, end)) if *end + 1 == number => *end = number,
            _ => ranges.push((number, number)),
        }
    }
    let one = |(a, b): &(usize, usize)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    ranges.iter().map(one).collect::<Vec<_>>().join(",")
}

/// As `nvidia-smi topo -m`: kinds of paths, here with their bandwidth.
fn matrix(out: &mut String, system: &System, paths: &Paths) -> std::fmt::Result {
    let short = |id: &NodeId| system.name(*id).replace(' ', "");
    let cell = |from: NodeId, to: NodeId| match paths.between(from, to) {
        _ if from == to => "X".to_owned(),
        Some(path) if path.exists() => format!("{} {}", path.kind, number(path.bw)),
        _ => "DIS".to_owned(),
    };
    // What ranks and transports ask for: from GPUs and ports to all.
    let nodes = paths.nodes();
    let rows = &nodes[..paths.gpus() + paths.nets()];
    let width = |to: &NodeId| {
        let cells = rows.iter().map(|from| cell(*from, *to).len());
        cells.chain([short(to).len()]).max().unwrap_or(0) + 2
    };
    let widths: Vec<usize> = nodes.iter().map(width).collect();
    write!(out, "{:6}", "")?;
    for (id, width) in nodes.iter().zip(&widths) {
        write!(out, "{:>width$}", short(id))?;
    }
    writeln!(out, "  CPU affinity")?;
    for (place, from) in rows.iter().enumerate() {
        write!(out, "{:6}", short(from))?;
        for (to, width) in nodes.iter().zip(&widths) {
            write!(out, "{:>width$}", cell(*from, *to))?;
        }
        let near = (place < paths.gpus()).then(|| cores(&affinity(system, paths, place)));
        writeln!(out, "  {}", near.unwrap_or_default())?;
    }
    writeln!(
        out,
        "\nGB/s by the narrowest link. LOC: same memory, NVL: NVLink, NVB: NVLink through a GPU, C2C: NVLink to its CPU,\n\
         PIX: a PCI switch, PXB: several, P2C: C2C and that CPU's host bridge, PXN: a network port near another GPU,\n\
         PHB: a CPU's host bridge, SYS: between CPUs.\n"
    )
}

/// What occurs several times once, with its places: `0-3,8`.
pub(super) fn alike<T: PartialEq>(items: &[T]) -> Vec<(String, &T)> {
    let mut groups: Vec<(Vec<usize>, &T)> = Vec::new();
    for (i, item) in items.iter().enumerate() {
        match groups.iter_mut().find(|(_, known)| *known == item) {
            Some((places, _)) => places.push(i),
            None => groups.push((vec![i], item)),
        }
    }
    groups.into_iter().map(|(places, item)| (ranges(places), item)).collect()
}

fn channels(out: &mut String, view: &View, graph: &ChannelGraph) -> std::fmt::Result {
    let system = &view.system;
    let what =
        if graph.pattern == Pattern::Ring { "ring".to_owned() } else { graph.pattern.to_string() };
    let id = graph.id as u32;
    let network = graph.channels.iter().any(|channel| channel.nets.is_some());
    write!(
        out,
        "Graph {id}, {what}: {} x {} GB/s by {}",
        graph.channels.len(),
        number(graph.bw_intra),
        graph.kind_intra
    )?;
    if network {
        write!(out, ", {} GB/s to the network by {}", number(graph.bw_inter), graph.kind_inter)?;
        write!(out, "{}", if graph.cross_nic { ", crossing ports" } else { "" })?;
    }
    let total = number(graph.total_bw(view.hosts as usize));
    write!(out, "\n  {total} GB/s in all")?;
    if let Some(limit) = limit(view, graph) {
        write!(out, "; {limit}")?;
    }
    writeln!(out)?;
    for (numbers, channel) in alike(&graph.channels) {
        writeln!(out, "{numbers:>5} : {}", one_channel(system, channel))?;
    }
    writeln!(out)
}

/// Which link limits a graph.
pub(super) fn limit(view: &View, graph: &ChannelGraph) -> Option<String> {
    let system = &view.system;
    let limit = graph::limit(system, &view.paths, graph)?;
    let link = system.link(*limit.links.first()?);
    let (from, to) = (system.name(link.from), system.name(link.to));
    let (load, bw) = (number(limit.load), number(limit.bw));
    let more = match limit.links.len() - 1 {
        0 => String::new(),
        1 => ", and 1 link like it".to_owned(),
        more => format!(", and {more} links like it"),
    };
    Some(format!("the limit is {} from {from} to {to}, with {load} of {bw}{more}", link.kind))
}

/// `NET/0 GPU/0 GPU/1 NET/0`, as NCCL logs it.
pub(super) fn one_channel(system: &System, channel: &GraphChannel) -> String {
    let (gpus, nets) = (system.gpus(), system.nets());
    let net = |i: usize| {
        let place = channel.nets.map(|pair| pair[i]);
        place.and_then(|place| nets.get(place)).map(|(_, net)| format!("NET/{}", net.dev))
    };
    let inside = channel.gpus.iter().filter_map(|gpu| gpus.get(*gpu));
    let inside = inside.map(|(_, gpu)| format!("GPU/{}", gpu.dev));
    net(0).into_iter().chain(inside).chain(net(1)).collect::<Vec<_>>().join(" ")
}

fn rings(out: &mut String, view: &View) -> std::fmt::Result {
    let count = view.rings.len();
    for (numbers, ring) in alike(&view.rings) {
        writeln!(out, "Channel {numbers} of {count} : {}", one_ring(ring))?;
    }
    writeln!(out)
}

fn one_ring(ring: &Ring) -> String {
    let ranks = ring.next.len();
    let mut shown: Vec<String> =
        ring.order(0).take(RANKS_OF_A_RING).map(|rank| rank.to_string()).collect();
    if ranks > RANKS_OF_A_RING {
        shown.push(format!("... ({ranks} ranks)"));
    }
    shown.join(" ")
}

/// At most one decimal, none where it is 0.
pub(super) fn number(value: f64) -> String {
    let rounded = (value * 10.0).round() / 10.0;
    format!("{rounded}")
}
