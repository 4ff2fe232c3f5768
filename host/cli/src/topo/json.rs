//! The view as JSON.

use ferroccl::graph::ChannelGraph;
use ferroccl::graph::connect::{NONE, Ring, Tree};
use ferroccl::topology::{Node, affinity};
use serde_json::{Value, json};

use super::View;
use super::text::cores;

/// Everything; bandwidths in 10^9 bytes a second, latencies in microseconds. Rings are lists of ranks from rank 0
/// on, trees lists of each rank's parent (-1 for the root).
pub(super) fn all(view: &View) -> String {
    let system = &view.system;
    let kind = |node: &Node| match node {
        Node::Gpu(_) => "gpu",
        Node::Pci(_) => "pci",
        Node::Nvs => "nvs",
        Node::Cpu(_) => "cpu",
        Node::Nic(_) => "nic",
        Node::Net(_) => "net",
    };
    let nodes: Vec<Value> = system
        .nodes()
        .map(|(id, node)| json!({"id": id.0, "kind": kind(node), "name": system.name(id)}))
        .collect();
    let links: Vec<Value> = system
        .links()
        .iter()
        .map(|l| json!({"from": l.from.0, "to": l.to.0, "kind": l.kind.to_string(), "bw": l.bw}))
        .collect();
    let mut paths = Vec::new();
    for &from in view.paths.nodes() {
        for &to in view.paths.nodes() {
            if let Some(path) =
                view.paths.between(from, to).filter(|path| path.exists() && from != to)
            {
                paths.push(
                    json!({"from": from.0, "to": to.0, "kind": path.kind.name(), "bw": path.bw,
                                  "hops": path.hops()}),
                );
            }
        }
    }
    let local: Vec<String> =
        (0..view.paths.gpus()).map(|gpu| cores(&affinity(system, &view.paths, gpu))).collect();
    let document = json!({
        "hosts": view.hosts,
        "ranks": view.hosts as usize * view.paths.gpus(),
        "nodes": nodes,
        "links": links,
        "paths": paths,
        "affinity": local,
        "graphs": view.graphs.iter().map(graph).collect::<Vec<_>>(),
        "rings": view.rings.iter().map(|ring: &Ring| ring.order(0).collect::<Vec<_>>()).collect::<Vec<_>>(),
        "trees": view.trees.iter().map(parents).collect::<Vec<_>>(),
    });
    format!("{document:#}\n")
}

fn graph(graph: &ChannelGraph) -> Value {
    let channels: Vec<Value> =
        graph.channels.iter().map(|c| json!({"gpus": c.gpus, "nets": c.nets})).collect();
    json!({
        "id": graph.id as u32,
        "pattern": graph.pattern.name(),
        "bw_intra": graph.bw_intra,
        "bw_inter": graph.bw_inter,
        "kind_intra": graph.kind_intra.name(),
        "kind_inter": graph.kind_inter.name(),
        "cross_nic": graph.cross_nic,
        "channels": channels,
    })
}

fn parents(tree: &Tree) -> Vec<i64> {
    tree.up.iter().map(|up| if *up == NONE { -1 } else { i64::from(*up) }).collect()
}
