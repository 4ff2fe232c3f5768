//! The system as a drawing: CPUs on top, what hangs from them below, NVLink under the GPUs.

use std::fmt::Write;

use ferroccl::topology::{Link, LinkKind, Node, NodeId, System};

use super::View;
use super::text::{alike, number, one_channel};

const CELL: f64 = 118.0;
const BOX: (f64, f64) = (106.0, 34.0);
const ROW: f64 = 78.0;
const MARGIN: f64 = 24.0;
/// Text under the drawing: channels at most.
const CHANNELS: usize = 16;

/// Where a node's box is: its middle.
#[derive(Clone, Copy, Default)]
struct Place {
    x: f64,
    y: f64,
}

pub(super) fn draw(view: &View) -> String {
    let system = &view.system;
    let layout = Layout::of(system);
    let lines: Vec<String> = view.graphs.iter().flat_map(|graph| legend(system, graph)).collect();
    let (width, height) =
        (layout.width.max(720.0), layout.height + 22.0 * lines.len() as f64 + 3.0 * MARGIN);
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
    );
    for (i, link) in system.links().iter().enumerate() {
        let back = |l: &Link| l.from == link.to && l.to == link.from && l.kind == link.kind;
        if !system.links()[..i].iter().any(back) {
            let _ = cable(&mut out, &layout, link);
        }
    }
    for (id, node) in system.nodes() {
        let _ = device(&mut out, system, id, node, layout.places[id.0 as usize]);
    }
    for (i, line) in lines.iter().enumerate() {
        let y = layout.height + 2.0 * MARGIN + 22.0 * i as f64;
        let _ = writeln!(out, "<text x=\"{MARGIN}\" y=\"{y:.0}\">{}</text>", escaped(line));
    }
    out + "</svg>\n"
}

fn legend(system: &System, graph: &ferroccl::graph::ChannelGraph) -> Vec<String> {
    let mut lines = vec![format!(
        "{}: {} channels of {} GB/s by {}",
        graph.pattern,
        graph.channels.len(),
        number(graph.bw_intra),
        graph.kind_intra
    )];
    let groups = alike(&graph.channels);
    let shown = groups.iter().take(CHANNELS);
    lines.extend(shown.map(|(numbers, c)| format!("{numbers}: {}", one_channel(system, c))));
    if groups.len() > CHANNELS {
        lines.push("...".to_owned());
    }
    lines
}

/// Boxes in rows: a CPU's devices below it, side by side.
struct Layout {
    places: Vec<Place>,
    width: f64,
    height: f64,
}

impl Layout {
    fn of(system: &System) -> Layout {
        let mut layout = Layout {
            places: vec![Place::default(); system.nodes().len()],
            width: 0.0,
            height: 0.0,
        };
        let mut placed = vec![false; system.nodes().len()];
        let cpus: Vec<NodeId> = system.cpus().iter().map(|(id, _)| *id).collect();
        cpus.iter().for_each(|id| placed[id.0 as usize] = true);
        let mut x = MARGIN;
        for id in cpus {
            x += layout.put(system, id, x, MARGIN + 40.0, &mut placed) + 12.0;
        }
        // What hangs from no CPU: switches between GPUs, in the middle below; else on the right.
        let bottom = layout.places.iter().map(|place| place.y).fold(0.0, f64::max);
        layout.width = x;
        for (id, node) in system.nodes() {
            if placed[id.0 as usize] {
                continue;
            }
            if matches!(node, Node::Nvs) {
                placed[id.0 as usize] = true;
                layout.places[id.0 as usize] = Place { x: x / 2.0, y: bottom + 1.4 * ROW };
            } else {
                placed[id.0 as usize] = true;
                x += layout.put(system, id, x, MARGIN + 40.0, &mut placed);
                layout.width = x;
            }
        }
        let lowest = layout.places.iter().map(|place| place.y).fold(0.0, f64::max);
        layout.height = lowest + ROW;
        layout
    }

    /// Places a node and what hangs from it, from `left` on; the width they take.
    fn put(&mut self, system: &System, id: NodeId, left: f64, y: f64, placed: &mut [bool]) -> f64 {
        let mut width = 0.0;
        for (_, link) in system.links_from(id) {
            let hangs = matches!(link.kind, LinkKind::Pci | LinkKind::Loc | LinkKind::Net);
            if hangs && !std::mem::replace(&mut placed[link.to.0 as usize], true) {
                width += self.put(system, link.to, left + width, y + ROW, placed);
            }
        }
        let width = f64::max(width, CELL);
        self.places[id.0 as usize] = Place { x: left + width / 2.0, y };
        width
    }
}

fn colour(kind: LinkKind) -> &'static str {
    match kind {
        LinkKind::Nvl | LinkKind::C2c => "#5b9a1a",
        LinkKind::Pci => "#2f6db3",
        LinkKind::Sys => "#8a5a9e",
        LinkKind::Net => "#c06a1d",
        LinkKind::Loc => "#888888",
    }
}

/// A line as wide as its bandwidth, roughly.
fn cable(out: &mut String, layout: &Layout, link: &Link) -> std::fmt::Result {
    let (a, b) = (layout.places[link.from.0 as usize], layout.places[link.to.0 as usize]);
    let stroke = (1.0 + link.bw.max(1.0).log2() / 2.0).min(6.0);
    // Between boxes of one row: an arc, above for CPUs, below for GPUs.
    let level = (a.y - b.y).abs() < 1.0;
    let bend = match (level, link.kind) {
        (true, LinkKind::Sys) => -34.0,
        (true, _) => 40.0 + (a.x - b.x).abs() / 8.0,
        (false, _) => 0.0,
    };
    let (mx, my) = (f64::midpoint(a.x, b.x), f64::midpoint(a.y, b.y) + bend);
    let title = format!("{} {} GB/s", link.kind, number(link.bw));
    writeln!(
        out,
        "<path d=\"M{:.1} {:.1} Q{mx:.1} {my:.1} {:.1} {:.1}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{stroke:.1}\" \
         stroke-opacity=\"0.75\"><title>{title}</title></path>",
        a.x,
        a.y,
        b.x,
        b.y,
        colour(link.kind)
    )?;
    // NVLinks cross too often for numbers; they have them as titles.
    if link.kind != LinkKind::Nvl {
        let my = if level { f64::midpoint(a.y, b.y) + bend / 2.0 } else { my };
        writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"10\" fill=\"#444\">{}</text>",
            mx + 5.0,
            my + 4.0,
            number(link.bw)
        )?;
    }
    Ok(())
}

fn device(
    out: &mut String,
    system: &System,
    id: NodeId,
    node: &Node,
    at: Place,
) -> std::fmt::Result {
    let fill = match node {
        Node::Cpu(_) => "#e5d9ec",
        Node::Gpu(_) => "#dcecc8",
        Node::Pci(_) => "#d8e4f2",
        Node::Nvs => "#c7e0a3",
        Node::Nic(_) | Node::Net(_) => "#f6e0c8",
    };
    let lines = match node {
        Node::Gpu(gpu) if gpu.sm > 0 => {
            vec![system.name(id), format!("sm_{} {}", gpu.sm, gpu.bus_id)]
        }
        Node::Gpu(_) => vec![system.name(id), "CPU device".to_owned()],
        Node::Pci(pci) => vec!["PCI".to_owned(), pci.bus_id.to_string()],
        Node::Nic(nic) => {
            vec!["NIC".to_owned(), nic.bus_id.map_or_else(String::new, |id| id.to_string())]
        }
        Node::Net(net) => vec![system.name(id), format!("{} {}", net.name, number(net.bw))],
        Node::Nvs | Node::Cpu(_) => vec![system.name(id)],
    };
    let (w, h) = BOX;
    writeln!(
        out,
        "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{w}\" height=\"{h}\" rx=\"4\" fill=\"{fill}\" stroke=\"#555\"/>",
        at.x - w / 2.0,
        at.y - h / 2.0
    )?;
    for (i, line) in lines.iter().enumerate() {
        let y = at.y + 4.0 + (i as f64 - (lines.len() - 1) as f64 / 2.0) * 13.0;
        let size = if i == 0 { 12 } else { 9 };
        writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" font-size=\"{size}\">{}</text>",
            at.x,
            escaped(line)
        )?;
    }
    Ok(())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
