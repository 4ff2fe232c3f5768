//! A host's devices: each CPU above what hangs from it, cards above GPUs, NVLink below the GPUs.

use ferroccl::topology::{Link, LinkKind, Node, NodeId, System};

use super::super::View;
use super::super::text::number;
use super::canvas::Canvas;
use super::{MARGIN, channels, colour, part_of_link, part_of_node};

const BOX: (f64, f64) = (92.0, 34.0);
const COLUMN: f64 = 106.0;
/// From one row of boxes to the next.
const ROW: f64 = 84.0;
/// Between lanes of NVLink.
const LANE: f64 = 13.0;

/// Where a node's box is: its middle, and its upper edge.
#[derive(Clone, Copy, Default)]
struct Place {
    x: f64,
    top: f64,
    there: bool,
}

/// Draws the devices from `top` on; where they end.
pub(super) fn draw(canvas: &mut Canvas, view: &View, top: f64) -> f64 {
    let system = &view.system;
    let mut layout = Layout { system, places: vec![Place::default(); system.nodes().len()] };
    let right = layout.columns(top + 26.0);
    layout.gpus_in_one_row();
    between_cpus(canvas, &layout, top + 6.0);
    layout.hanging(canvas);
    let bottom = nvlinks(canvas, &layout, right);
    for (id, node) in system.nodes().filter(|(_, node)| !matches!(node, Node::Nvs | Node::Nic(_))) {
        let place = layout.places[id.0 as usize];
        canvas.part(&part_of_node(id), |canvas| {
            canvas.device(place.x, place.top, BOX, fill(node), &words(system, id, node));
        });
        if let Node::Net(_) = node {
            channels::marks(
                canvas,
                view,
                id,
                (place.x - BOX.0 / 2.0, place.top + BOX.1 + 4.0),
                BOX.0,
            );
        }
    }
    bottom
}

struct Layout<'a> {
    system: &'a System,
    places: Vec<Place>,
}

impl Layout<'_> {
    /// Gives every device that hangs from another a column; the right end of them.
    fn columns(&mut self, top: f64) -> f64 {
        let mut x = MARGIN;
        for (id, _) in self.system.cpus() {
            self.places[id.0 as usize].there = true;
        }
        for (id, _) in self.system.cpus() {
            x += self.put(id, x, top) + 14.0;
        }
        // What hangs from no CPU.
        for (id, node) in self.system.nodes() {
            if !self.places[id.0 as usize].there && !matches!(node, Node::Nvs) {
                self.places[id.0 as usize].there = true;
                x += self.put(id, x, top);
            }
        }
        x
    }

    /// Places a node and what hangs from it, from `left` on; the width they take.
    fn put(&mut self, id: NodeId, left: f64, top: f64) -> f64 {
        // A card with its ports is one box each: the port's.
        let nic = matches!(self.system.node(id), Node::Nic(_));
        let below = if nic { top } else { top + ROW };
        let mut width = 0.0;
        for child in self.children(id) {
            if !std::mem::replace(&mut self.places[child.0 as usize].there, true) {
                width += self.put(child, left + width, below);
            }
        }
        let width = f64::max(width, COLUMN);
        self.places[id.0 as usize] = Place { x: left + width / 2.0, top, there: true };
        width
    }

    /// Cards before GPUs.
    fn children(&self, id: NodeId) -> Vec<NodeId> {
        let links = self.system.links_from(id).filter(|(_, link)| self.system.in_tree(link));
        let mut children: Vec<NodeId> = links.map(|(_, link)| link.to).collect();
        children.sort_by_key(|child| matches!(self.system.node(*child), Node::Gpu(_)));
        children
    }

    fn gpus_in_one_row(&mut self) {
        let lowest = self.places.iter().map(|place| place.top).fold(0.0, f64::max);
        let cards = self.system.nets().into_iter().map(|(id, _)| self.places[id.0 as usize].top);
        let gpus = self.system.gpus();
        let highest = gpus.iter().map(|(id, _)| self.places[id.0 as usize].top);
        let row = cards.map(|top| top + ROW).chain(highest).fold(0.0, f64::max).max(lowest);
        for (id, _) in gpus {
            self.places[id.0 as usize].top = row;
        }
    }

    /// The links down from each device: along a bus, then down a column each.
    fn hanging(&self, canvas: &mut Canvas) {
        for link in self.system.links() {
            let (from, to) = (self.places[link.from.0 as usize], self.places[link.to.0 as usize]);
            let hangs = self.system.in_tree(link);
            let into_card = matches!(self.system.node(link.from), Node::Nic(_));
            if !hangs || from.top >= to.top || into_card {
                continue;
            }
            let bus = from.top + BOX.1 + 16.0;
            let way = [(from.x, from.top + BOX.1), (from.x, bus), (to.x, bus), (to.x, to.top)];
            canvas.part(&part_of_link(link), |canvas| {
                canvas.line(&way, colour(link.kind), stroke(link.bw), &title(self.system, link));
                canvas.text(to.x + 5.0, to.top - 6.0, 10.0, &number(link.bw));
            });
        }
    }
}

/// The links between CPUs: one bar above them.
fn between_cpus(canvas: &mut Canvas, layout: &Layout<'_>, y: f64) {
    let links = || layout.system.links().iter().filter(|link| link.kind == LinkKind::Sys);
    let most = links().map(|link| link.bw).fold(0.0, f64::max);
    let least = links().map(|link| link.bw).fold(f64::INFINITY, f64::min);
    let mut ends: Vec<NodeId> = links().map(|link| link.from).collect();
    ends.sort_unstable();
    ends.dedup();
    let places: Vec<Place> = ends.iter().map(|id| layout.places[id.0 as usize]).collect();
    let (Some(first), Some(last)) = (places.first(), places.last()) else { return };
    let text = if most - least < 0.05 {
        format!("between any two CPUs {}", number(most))
    } else {
        format!("between two CPUs {} to {}", number(least), number(most))
    };
    canvas.part("cpus", |canvas| {
        let mut bar = |way: &[(f64, f64)]| {
            canvas.line(way, colour(LinkKind::Sys), stroke(most), &text);
        };
        bar(&[(first.x, y), (last.x, y)]);
        places.iter().for_each(|place| bar(&[(place.x, y), (place.x, place.top)]));
        canvas.on_line(f64::midpoint(first.x, last.x), y, 10.0, &text);
    });
}

/// NVLink below the GPUs: to a switch, or in lanes from one GPU to another. Where that ends.
fn nvlinks(canvas: &mut Canvas, layout: &Layout<'_>, right: f64) -> f64 {
    let system = layout.system;
    let place = |id: NodeId| layout.places[id.0 as usize];
    let nvl = system.links().iter().filter(|link| link.kind == LinkKind::Nvl);
    let bottom = system.gpus().iter().map(|(id, _)| place(*id).top + BOX.1).fold(0.0, f64::max);
    let bottom = layout.places.iter().map(|place| place.top + BOX.1).fold(bottom, f64::max);
    if let Some((switch, _)) = system.nodes().find(|(_, node)| matches!(node, Node::Nvs)) {
        let top = bottom + 40.0;
        for link in nvl.filter(|link| link.to == switch) {
            let x = place(link.from).x;
            let way = [(x, place(link.from).top + BOX.1), (x, top)];
            canvas.part(&part_of_link(link), |canvas| {
                canvas.line(&way, colour(LinkKind::Nvl), stroke(link.bw), &title(system, link));
                canvas.text(x + 5.0, top - 6.0, 10.0, &number(link.bw));
            });
        }
        let width = right - MARGIN - 14.0;
        let middle = MARGIN + width / 2.0;
        canvas.part(&part_of_node(switch), |canvas| {
            canvas.device(middle, top, (width, 26.0), "#c7e0a3", &["NVSwitch".to_owned()]);
        });
        return top + 26.0;
    }
    // Pairs, the near ones in the upper lanes.
    let gpu = |id: NodeId| matches!(system.node(id), Node::Gpu(_));
    let mut pairs: Vec<&Link> = nvl
        .filter(|link| gpu(link.from) && gpu(link.to) && place(link.from).x < place(link.to).x)
        .collect();
    let reach = |link: &Link| place(link.to).x - place(link.from).x;
    pairs.sort_by(|a, b| reach(a).total_cmp(&reach(b)));
    // Each GPU's links leave it side by side: those to the left on the left.
    let port = |id: NodeId, other: NodeId| {
        let mut others: Vec<NodeId> = pairs
            .iter()
            .filter_map(|link| match (link.from == id, link.to == id) {
                (true, _) => Some(link.to),
                (_, true) => Some(link.from),
                _ => None,
            })
            .collect();
        others.sort_by(|a, b| place(*a).x.total_cmp(&place(*b).x));
        let at = others.iter().position(|one| *one == other).unwrap_or(0);
        place(id).x + (at as f64 + 1.0) * BOX.0 / (others.len() as f64 + 1.0) - BOX.0 / 2.0
    };
    let mut lanes: Vec<Vec<(f64, f64)>> = Vec::new();
    for link in &pairs {
        let (a, b) = (port(link.from, link.to), port(link.to, link.from));
        let free = |lane: &Vec<(f64, f64)>| lane.iter().all(|(c, d)| b + 6.0 < *c || *d + 6.0 < a);
        let lane = lanes.iter().position(free).unwrap_or(lanes.len());
        if lane == lanes.len() {
            lanes.push(Vec::new());
        }
        lanes[lane].push((a, b));
        let y = bottom + 16.0 + LANE * lane as f64;
        let way =
            [(a, place(link.from).top + BOX.1), (a, y), (b, y), (b, place(link.to).top + BOX.1)];
        canvas.part(&part_of_link(link), |canvas| {
            canvas.line(&way, colour(LinkKind::Nvl), 1.5, &title(system, link));
        });
    }
    // Numbers last, on top of the lines that cross theirs.
    for (part, number, lane) in labels(&pairs, &lanes, port) {
        canvas.part(&part, |canvas| {
            canvas.on_line(lane.0, bottom + 16.0 + LANE * lane.1 as f64, 9.0, &number);
        });
    }
    if lanes.is_empty() { bottom } else { bottom + 16.0 + LANE * lanes.len() as f64 }
}

/// Each pair's name in the drawing, its bandwidth, and where that stands: near the left end of its lane's part.
fn labels(
    pairs: &[&Link],
    lanes: &[Vec<(f64, f64)>],
    port: impl Fn(NodeId, NodeId) -> f64,
) -> Vec<(String, String, (f64, usize))> {
    let label = |link: &&Link| {
        let (a, b) = (port(link.from, link.to), port(link.to, link.from));
        let lane = lanes.iter().position(|lane| lane.contains(&(a, b)))?;
        Some((part_of_link(link), number(link.bw), (f64::midpoint(a, b), lane)))
    };
    pairs.iter().filter_map(label).collect()
}

fn stroke(bw: f64) -> f64 {
    (1.0 + bw.max(1.0).log2() / 2.5).min(4.5)
}

fn title(system: &System, link: &Link) -> String {
    let (from, to) = (system.name(link.from), system.name(link.to));
    format!("{} {} GB/s, {from} to {to}", link.kind, number(link.bw))
}

fn fill(node: &Node) -> &'static str {
    match node {
        Node::Cpu(_) => "#e5d9ec",
        Node::Gpu(_) => "#dcecc8",
        Node::Pci(_) => "#d8e4f2",
        Node::Nvs => "#c7e0a3",
        Node::Nic(_) | Node::Net(_) => "#f6e0c8",
    }
}

fn words(system: &System, id: NodeId, node: &Node) -> Vec<String> {
    let name = system.name(id);
    match node {
        Node::Gpu(gpu) if gpu.sm > 0 => {
            // NVLink to a CPU is said, not drawn: it would cross what lies between.
            let to_cpu = |link: &Link| {
                let nvlink = matches!(link.kind, LinkKind::C2c | LinkKind::Nvl);
                nvlink && matches!(system.node(link.to), Node::Cpu(_))
            };
            let link = system.links_from(id).find(|(_, link)| to_cpu(link));
            let place = match link {
                Some((_, link)) => format!("{} {} to CPU", link.kind, number(link.bw)),
                None => gpu.bus_id.to_string(),
            };
            vec![format!("{name}, sm_{}", gpu.sm), place]
        }
        Node::Gpu(_) => vec![name, "CPU device".to_owned()],
        Node::Pci(pci) => {
            // So is what joins switches inside: bus and bus.
            let links = system.links_from(id).filter(|(_, link)| system.joins_switches(link));
            let others = links.filter_map(|(_, link)| match system.node(link.to) {
                Node::Pci(other) => Some(format!("{:02x}", other.bus_id.bus)),
                _ => None,
            });
            let others: Vec<String> = others.collect();
            let place = match &others[..] {
                [] => pci.bus_id.to_string(),
                others => format!("{:02x} = {}", pci.bus_id.bus, others.join(" = ")),
            };
            vec!["PCI switch".to_owned(), place]
        }
        Node::Net(net) => vec![name, format!("{} {}", net.name, number(net.bw)).trim().to_owned()],
        Node::Nic(_) | Node::Nvs | Node::Cpu(_) => vec![name],
    }
}
