//! The system for Graphviz.

use std::fmt::Write;

use ferroccl::topology::{LinkKind, Node, System};

use super::text::number;

/// `dot -Tsvg` draws it.
pub(super) fn graph(system: &System) -> String {
    let mut out = String::from("graph system {\n  node [shape=box, fontname=\"sans-serif\"];\n");
    // Writing to a string does not fail.
    for (id, node) in system.nodes() {
        let shape = match node {
            Node::Cpu(_) => "box3d",
            Node::Gpu(_) => "box",
            Node::Pci(_) | Node::Nvs => "hexagon",
            Node::Nic(_) => "ellipse",
            Node::Net(_) => "cds",
        };
        let _ = writeln!(out, "  n{} [label=\"{}\", shape={shape}];", id.0, system.name(id));
    }
    for (i, link) in system.links().iter().enumerate() {
        // Each cable once: the direction that was added first.
        let back = |other: &ferroccl::topology::Link| {
            other.from == link.to && other.to == link.from && other.kind == link.kind
        };
        if system.links()[..i].iter().any(back) {
            continue;
        }
        let style = match link.kind {
            LinkKind::Nvl | LinkKind::C2c => "color=\"#3a7d00\", penwidth=2",
            LinkKind::Sys => "style=dashed",
            LinkKind::Pci | LinkKind::Loc | LinkKind::Net => "color=\"#1f5fa8\"",
        };
        let (from, to, label) = (link.from.0, link.to.0, number(link.bw));
        let _ = writeln!(out, "  n{from} -- n{to} [label=\"{} {label}\", {style}];", link.kind);
    }
    out + "}\n"
}
