//! The view as a drawing: a host's devices and links, the channels with their cards, and how the hosts are joined.
//!
//! ```text
//! title, totals of the graphs
//! devices   CPUs on top, what hangs from them below, GPUs in one row, NVLink under them
//! channels  one line for each, in its colour, which the cards have, too
//! hosts     rings and trees over several hosts
//! legend    colours and units
//! ```
//!
//! Every link runs in a lane of its own, and every device has a column of its own, so that no line passes behind a box and no
//! label lies on another.

mod canvas;
pub(super) mod channels;
mod devices;
mod hosts;

use ferroccl::topology::{Link, LinkKind, NodeId};

use super::View;
use super::text::{counted, limit, number};
use canvas::Canvas;
pub(super) use canvas::escaped;

const MARGIN: f64 = 28.0;

pub(super) fn draw(view: &View) -> String {
    let mut canvas = Canvas::default();
    let y = title(&mut canvas, view);
    let y = devices::draw(&mut canvas, view, y);
    let y = channels::draw(&mut canvas, view, y + 34.0);
    let y = if view.hosts > 1 { hosts::draw(&mut canvas, view, y + 30.0) } else { y };
    let y = legend(&mut canvas, view, y + 34.0);
    canvas.finish(y + MARGIN)
}

/// What is shown, and what the channels of each graph move together.
fn title(canvas: &mut Canvas, view: &View) -> f64 {
    let ranks = view.hosts as usize * view.paths.gpus();
    let (hosts, ranks) = (counted(view.hosts as usize, "host"), counted(ranks, "rank"));
    let alike = if view.hosts > 1 { ", all alike" } else { "" };
    canvas.text(MARGIN, 40.0, 20.0, &format!("{}: {hosts}{alike}, {ranks}", view.name));
    let mut y = 44.0;
    for graph in view.graphs.iter() {
        y += 20.0;
        let total = number(graph.total_bw(view.hosts as usize));
        let limit = limit(view, graph).unwrap_or_default();
        let line = format!(
            "{}: {}, {total} GB/s in all{}{limit}",
            graph.pattern,
            counted(graph.channels.len(), "channel"),
            if limit.is_empty() { "" } else { "; " }
        );
        canvas.text(MARGIN, y, 12.0, &line);
    }
    y + 24.0
}

/// The name of a link in the drawing, in whichever direction. Those between CPUs are drawn as one bar.
fn part_of_link(link: &Link) -> String {
    match link.kind {
        LinkKind::Sys => "cpus".to_owned(),
        _ => format!("link{}-{}", link.from.0.min(link.to.0), link.from.0.max(link.to.0)),
    }
}

/// The name of a device in the drawing.
fn part_of_node(id: NodeId) -> String {
    format!("node{}", id.0)
}

/// The colour of a kind of link.
fn colour(kind: LinkKind) -> &'static str {
    match kind {
        LinkKind::Nvl | LinkKind::C2c => "#4c8a10",
        LinkKind::Pci => "#2f6db3",
        LinkKind::Sys => "#8a5a9e",
        LinkKind::Net => "#c06a1d",
        LinkKind::Loc => "#888888",
    }
}

/// The kinds of links that there are, in their colours, and the unit.
fn legend(canvas: &mut Canvas, view: &View, y: f64) -> f64 {
    let kinds = [
        (LinkKind::Nvl, "NVLink"),
        (LinkKind::C2c, "NVLink to a CPU"),
        (LinkKind::Pci, "PCI Express"),
        (LinkKind::Sys, "between CPUs"),
        (LinkKind::Net, "network"),
        (LinkKind::Loc, "within a device"),
    ];
    let mut x = MARGIN;
    for (kind, name) in kinds {
        if view.system.links().iter().any(|link| link.kind == kind) {
            canvas.line(&[(x, y - 4.0), (x + 26.0, y - 4.0)], colour(kind), 3.0, name);
            canvas.text(x + 32.0, y, 11.0, name);
            x += 56.0 + 6.6 * name.len() as f64;
        }
    }
    let unit = "Numbers are GB/s (10^9 bytes a second) in each direction, by the topology's model: not measured.";
    canvas.text(MARGIN, y + 20.0, 11.0, unit);
    y + 20.0
}
