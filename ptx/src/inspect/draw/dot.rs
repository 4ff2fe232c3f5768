//! The drawing for Graphviz: `dot -Tsvg`.

use std::fmt::Write as _;

use super::Drawing;
use crate::cfg::{BlockId, EdgeKind, LoopId};

/// Prints the graph; loops are clusters.
#[must_use]
pub fn dot(drawing: &Drawing<'_, '_>) -> String {
    let mut out = format!("digraph \"{}\" {{\n", quoted(drawing.function.name.text));
    out.push_str(
        "  node [shape=box, fontname=monospace, fontsize=10, style=filled, fillcolor=white];\n",
    );
    let cfg = drawing.cfg;
    let outside = cfg.ids().filter(|id| cfg.innermost_loop(*id).is_none());
    for id in outside {
        node(&mut out, drawing, id, 1);
    }
    // An inner loop comes after the one around it.
    let mut inner: Vec<Vec<LoopId>> = vec![Vec::new(); cfg.loops().len()];
    let mut open: Vec<(LoopId, bool)> = Vec::new();
    for (i, of) in cfg.loops().iter().enumerate().rev() {
        match of.parent {
            Some(parent) => inner[parent.0].push(LoopId(i)),
            None => open.push((LoopId(i), false)),
        }
    }
    while let Some((id, done)) = open.pop() {
        let of = &cfg.loops()[id.0];
        let pad = "  ".repeat(of.depth as usize);
        if done {
            let _ = writeln!(out, "{pad}}}");
            continue;
        }
        let _ = writeln!(
            out,
            "{pad}subgraph cluster_{} {{ label=\"loop of B{}\"; style=filled; fillcolor=\"#f{:x}e8c8\";",
            id.0,
            of.header.0,
            15_u32.saturating_sub(of.depth).max(8)
        );
        let own = of.blocks.iter().filter(|b| cfg.innermost_loop(**b) == Some(id));
        for block in own {
            node(&mut out, drawing, *block, of.depth as usize + 1);
        }
        open.push((id, true));
        open.extend(inner[id.0].iter().map(|inner| (*inner, false)));
    }
    for (from, block) in cfg.ids().zip(&cfg.blocks) {
        for edge in &block.successors {
            let (color, label) = match edge.kind {
                EdgeKind::Taken => ("#2f7d32", String::new()),
                EdgeKind::FallThrough => ("#55636f", String::new()),
                EdgeKind::Case(n) => ("#7b3fa0", format!(", label=\"{n}\"")),
            };
            let back = if cfg.is_back_edge(from, edge.to) { ", penwidth=2" } else { "" };
            let _ =
                writeln!(out, "  B{} -> B{} [color=\"{color}\"{label}{back}];", from.0, edge.to.0);
        }
    }
    out + "}\n"
}

fn node(out: &mut String, drawing: &Drawing<'_, '_>, id: BlockId, depth: usize) {
    let card = &drawing.cards[id.0];
    let (shown, more) = drawing.shown(id);
    let mut label = String::new();
    let head = [&card.title, &card.place, &card.figures].into_iter().filter(|l| !l.is_empty());
    for line in head.chain(shown) {
        label.push_str(&quoted(line));
        label.push_str("\\l");
    }
    if more > 0 {
        let _ = write!(label, "... {more} more\\l");
    }
    let _ = writeln!(out, "{}B{} [label=\"{label}\"];", "  ".repeat(depth), id.0);
}

/// Text between quotes.
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " ")
}
