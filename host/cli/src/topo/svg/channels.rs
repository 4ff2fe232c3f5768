//! The channels: each in a colour, as the ports and GPUs that it passes, one after the other.

use std::collections::BTreeSet;

use ferroccl::graph::{ChannelGraph, GraphChannel, Pattern};
use ferroccl::topology::NodeId;

use super::super::View;
use super::super::text::{alike, counted, number};
use super::canvas::Canvas;
use super::{MARGIN, part_of_link, part_of_node};

/// Lines for a graph's channels at most.
const LINES: usize = 16;
const CHIP: (f64, f64) = (46.0, 18.0);
const STEP: f64 = 58.0;
const FIRST: f64 = 164.0;

/// Colours that stay apart for most eyes (Paul Tol, "Colour schemes", 2021: muted, then bright).
const COLOURS: [&str; 16] = [
    "#332288", "#88ccee", "#44aa99", "#117733", "#999933", "#ddcc77", "#cc6677", "#882255",
    "#aa4499", "#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#777777",
];

fn colour(channel: usize) -> &'static str {
    COLOURS[channel % COLOURS.len()]
}

/// Draws the channels of every graph from `y` on; where they end.
pub(super) fn draw(canvas: &mut Canvas, view: &View, y: f64) -> f64 {
    view.graphs.iter().fold(y, |y, graph| one_graph(canvas, view, graph, y) + 26.0) - 26.0
}

fn one_graph(canvas: &mut Canvas, view: &View, graph: &ChannelGraph, y: f64) -> f64 {
    let intra = format!("{} GB/s by {} in a host", number(graph.bw_intra), graph.kind_intra);
    let inter = if view.hosts > 1 {
        format!(", {} by {} to the network", number(graph.bw_inter), graph.kind_inter)
    } else {
        String::new()
    };
    let heading = format!(
        "Graph {}, {}: {} of {intra}{inter}",
        graph.id as u32,
        graph.pattern,
        counted(graph.channels.len(), "channel")
    );
    canvas.text(MARGIN, y, 13.0, &heading);
    let (gpus, nets) = (view.system.gpus(), view.system.nets());
    let groups = alike(&graph.channels);
    let mut y = y + 12.0;
    for (line, (numbers, channel)) in groups.iter().take(LINES).enumerate() {
        let port = |end: usize| {
            let (_, net) = nets.get(channel.nets?[end])?;
            Some((format!("NET {}", net.dev), "#f6e0c8"))
        };
        let inside = channel.gpus.iter().filter_map(|gpu| gpus.get(*gpu));
        let inside = inside.map(|(_, gpu)| (format!("GPU {}", gpu.dev), "#dcecc8"));
        // Without a network a ring is closed.
        let closing = inside
            .clone()
            .next()
            .filter(|_| graph.pattern == Pattern::Ring && channel.nets.is_none());
        let chips: Vec<_> =
            port(0).into_iter().chain(inside).chain(port(1)).chain(closing).collect();
        let middle = y + CHIP.1 / 2.0;
        let title = title(numbers);
        let end = FIRST + STEP * (chips.len() as f64 - 1.0);
        let passes = passes(view, graph, channel).into_iter().collect::<Vec<_>>().join(" ");
        let attributes = format!("data-channel=\"{}\" data-passes=\"{passes}\"", name(graph, line));
        canvas.group(&attributes, |canvas| {
            canvas.rectangle(MARGIN, y + 3.0, (12.0, 12.0), colour(line), "none");
            canvas.text(MARGIN + 20.0, middle + 4.0, 11.0, &title);
            canvas.line(&[(FIRST, middle), (end, middle)], colour(line), 3.0, &title);
            for (i, (name, fill)) in chips.iter().enumerate() {
                let x = FIRST + STEP * i as f64;
                canvas.device(x + CHIP.0 / 2.0 - 12.0, y, CHIP, fill, &[]);
                canvas.middle(x + CHIP.0 / 2.0 - 12.0, middle + 4.0, 10.0, name);
            }
        });
        y += CHIP.1 + 6.0;
    }
    if groups.len() > LINES {
        canvas.text(MARGIN, y + 10.0, 11.0, &format!("... and {} more", groups.len() - LINES));
        y += 18.0;
    }
    y
}

/// The channels that are drawn, by their names in the drawing, each with words for it.
pub(in super::super) fn named(view: &View) -> Vec<(String, String)> {
    let of = |graph: &ChannelGraph| {
        let lines = alike(&graph.channels).into_iter().take(LINES).enumerate();
        let words = |numbers: &str| format!("{}, {}", graph.pattern, title(numbers));
        lines.map(|(line, (numbers, _))| (name(graph, line), words(&numbers))).collect::<Vec<_>>()
    };
    view.graphs.iter().flat_map(of).collect()
}

fn name(graph: &ChannelGraph, line: usize) -> String {
    format!("{}-{line}", graph.id as u32)
}

fn title(numbers: &str) -> String {
    let several = numbers.contains([',', '-']);
    format!("channel{} {numbers}", if several { "s" } else { "" })
}

/// The parts of the drawing that a channel passes: devices and links, from its first port to its last.
fn passes(view: &View, graph: &ChannelGraph, channel: &GraphChannel) -> BTreeSet<String> {
    let (gpus, nets) = (view.system.gpus(), view.system.nets());
    let port = |end: usize| Some(nets.get(channel.nets?[end])?.0);
    let inside = channel.gpus.iter().filter_map(|gpu| gpus.get(*gpu)).map(|(id, _)| *id);
    let closed = graph.pattern == Pattern::Ring && channel.nets.is_none();
    let closing = inside.clone().next().filter(|_| closed);
    let way: Vec<NodeId> =
        port(0).into_iter().chain(inside).chain(port(1)).chain(closing).collect();
    let mut parts: BTreeSet<String> = way.iter().map(|id| part_of_node(*id)).collect();
    for pair in way.windows(2) {
        let links = view.paths.between(pair[0], pair[1]).map_or(&[][..], |path| &path.links[..]);
        for link in links.iter().map(|link| view.system.link(*link)) {
            parts.extend([part_of_link(link), part_of_node(link.from), part_of_node(link.to)]);
        }
    }
    parts
}

/// Marks a port with the colours of the rings' channels that use it.
pub(super) fn marks(canvas: &mut Canvas, view: &View, port: NodeId, at: (f64, f64), width: f64) {
    let nets = view.system.nets();
    let number = nets.iter().position(|(id, _)| *id == port);
    let groups = alike(&view.graphs.ring.channels);
    let uses = |nets: Option<[usize; 2]>| nets.into_iter().flatten().any(|net| Some(net) == number);
    let users: Vec<usize> = groups
        .iter()
        .take(LINES)
        .enumerate()
        .filter(|(_, (_, c))| uses(c.nets))
        .map(|(i, _)| i)
        .collect();
    let size = (width / users.len().max(1) as f64).min(12.0);
    for (i, line) in users.into_iter().enumerate() {
        canvas.rectangle(at.0 + size * i as f64, at.1, (size - 2.0, 8.0), colour(line), "none");
    }
}
