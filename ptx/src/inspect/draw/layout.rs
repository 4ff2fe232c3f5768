//! Where blocks and edges go.
//!
//! A block stands above all that it dominates, in a box with it:
//!
//! ```text
//!            ┌───┐
//!            │ d │                 Its children in the tree of dominators stand in rows: a child is a row
//!            └───┘                 below every child that a forward edge comes from.
//!        ┌───┐   ┌───┐
//!        │ a │   │ b │  row 0      Every forward edge into a child comes from d, or from within a child of a
//!        └───┘   └───┘             row above: it goes straight down, or, where blocks are in its way, down a
//!            ┌───┐          │      lane at the right of d's box. An edge back goes up a lane at the left
//!            │ c │      row 1      of its header's box.
//!            └───┘          │ lane
//! ```
//!
//! Blocks that nothing leads to stand at the right.

use crate::cfg::{BlockId, Cfg, EdgeKind};

/// Between blocks, sideways and down.
const GAP_X: f64 = 26.0;
const GAP_Y: f64 = 34.0;
/// Between lanes.
const LANE: f64 = 9.0;

/// Where a block is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) w: f64,
    pub(super) h: f64,
}

impl Rect {
    fn bottom(self) -> f64 {
        self.y + self.h
    }

    pub(super) fn overlaps(self, other: Rect) -> bool {
        self.x < other.x + other.w
            && other.x < self.x + self.w
            && self.y < other.y + other.h
            && other.y < self.y + self.h
    }

    /// It, and so much more on each side.
    pub(super) fn grown(self, by: f64) -> Rect {
        Rect { x: self.x - by, y: self.y - by, w: self.w + 2.0 * by, h: self.h + 2.0 * by }
    }
}

/// An edge as a line with corners.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) from: BlockId,
    pub(super) to: BlockId,
    pub(super) kind: EdgeKind,
    pub(super) back: bool,
    pub(super) points: Vec<(f64, f64)>,
}

/// Where everything goes.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) blocks: Vec<Rect>,
    pub(super) lines: Vec<Line>,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// A block with all that it dominates.
#[derive(Clone, Debug, Default)]
struct Node {
    children: Vec<usize>,
    /// The row among its siblings.
    row: usize,
    rows: Vec<Vec<usize>>,
    /// Lanes at its right and left, and how many are taken.
    right: usize,
    left: usize,
    taken: (usize, usize),
    w: f64,
    h: f64,
    /// Where its box begins.
    x: f64,
    y: f64,
}

/// Lays out blocks of these sizes.
pub(super) fn layout(cfg: &Cfg<'_, '_>, sizes: &[(f64, f64)]) -> Layout {
    let order = order(cfg);
    let mut nodes = vec![Node::default(); cfg.blocks.len()];
    for id in cfg.ids() {
        if let Some(dominator) = cfg.dominator(id) {
            nodes[dominator.0].children.push(id.0);
        }
    }
    rows(cfg, &order, &mut nodes);
    // Boxes from the inside out: what a block dominates comes after it.
    for &at in order.iter().rev() {
        measure(&mut nodes, at, sizes[at]);
    }
    let mut blocks = vec![Rect::default(); nodes.len()];
    let (mut x, mut height) = (GAP_X, 0.0_f64);
    for root in (0..nodes.len()).filter(|&i| i == 0 || !cfg.is_reachable(BlockId(i))) {
        if root > 0 {
            // Nothing dominates what nothing reaches.
            measure(&mut nodes, root, sizes[root]);
        }
        (nodes[root].x, nodes[root].y) = (x, GAP_Y);
        x += nodes[root].w + GAP_X;
        height = height.max(nodes[root].h);
        blocks[root] = place(&mut nodes, root, sizes[root]);
    }
    for &at in order.iter().skip(1) {
        blocks[at] = place(&mut nodes, at, sizes[at]);
    }
    let lines = lines(cfg, &mut nodes, &blocks);
    Layout { blocks, lines, width: x, height: height + 2.0 * GAP_Y }
}

/// The blocks that are reached, each after all that lead to it by forward edges.
fn order(cfg: &Cfg<'_, '_>) -> Vec<usize> {
    let mut seen = vec![false; cfg.blocks.len()];
    let mut order = Vec::with_capacity(seen.len());
    if seen.is_empty() {
        return order;
    }
    let mut way = vec![(0, 0)];
    seen[0] = true;
    while let Some((at, next)) = way.last_mut() {
        match cfg.blocks[*at].successors.get(*next) {
            Some(edge) => {
                *next += 1;
                if !std::mem::replace(&mut seen[edge.to.0], true) {
                    way.push((edge.to.0, 0));
                }
            }
            None => {
                order.push(*at);
                way.pop();
            }
        }
    }
    order.reverse();
    order
}

/// The child of `above` whose box a block is in; `above` itself for `above`.
fn child_of(cfg: &Cfg<'_, '_>, above: BlockId, block: BlockId) -> BlockId {
    let mut at = block;
    while let Some(dominator) = cfg.dominator(at) {
        if at == above || dominator == above {
            break;
        }
        at = dominator;
    }
    at
}

/// Puts the children of each block in rows, and counts the lanes that boxes need.
fn rows(cfg: &Cfg<'_, '_>, order: &[usize], nodes: &mut [Node]) {
    let mut place = vec![usize::MAX; nodes.len()];
    for (i, &at) in order.iter().enumerate() {
        place[at] = i;
    }
    for &at in order {
        let id = BlockId(at);
        let Some(dominator) = cfg.dominator(id) else { continue };
        let mut row = 0;
        for before in cfg.blocks[at].predecessors.iter().filter(|b| cfg.is_reachable(**b)) {
            // An edge back, be it a loop's or not, puts nothing below it.
            if place[before.0] < place[at] && *before != dominator {
                let sibling = child_of(cfg, dominator, *before);
                row = row.max(nodes[sibling.0].row + 1);
            }
        }
        nodes[at].row = row;
        let rows = &mut nodes[dominator.0].rows;
        rows.resize(rows.len().max(row + 1), Vec::new());
        rows[row].push(at);
    }
    for &at in order {
        nodes[at].rows.retain(|row| !row.is_empty());
        for edge in &cfg.blocks[at].successors {
            if cfg.is_back_edge(BlockId(at), edge.to) {
                nodes[edge.to.0].left += 1;
            } else if let Some(dominator) = cfg.dominator(edge.to)
                && nodes[edge.to.0].row > 0
            {
                nodes[dominator.0].right += 1; // perhaps: lanes are narrow
            }
        }
    }
}

/// The size of a box, from those within.
fn measure(nodes: &mut [Node], at: usize, size: (f64, f64)) {
    let (mut w, mut h) = size;
    for row in &nodes[at].rows {
        let widths: f64 = row.iter().map(|&i| nodes[i].w).sum();
        w = w.max(widths + GAP_X * (row.len() - 1) as f64);
        h += GAP_Y + row.iter().map(|&i| nodes[i].h).fold(0.0, f64::max);
    }
    let node = &mut nodes[at];
    let lanes = |n: usize| if n == 0 { 0.0 } else { LANE * (n + 1) as f64 };
    node.w = w + lanes(node.left) + lanes(node.right);
    node.h = h;
}

/// Places a block in its box, and the boxes of its children.
fn place(nodes: &mut [Node], at: usize, (w, h): (f64, f64)) -> Rect {
    let node = nodes[at].clone();
    let lanes = |n: usize| if n == 0 { 0.0 } else { LANE * (n + 1) as f64 };
    let (from, to) = (node.x + lanes(node.left), node.x + node.w - lanes(node.right));
    let middle = (from + to) / 2.0;
    let mut y = node.y + h + GAP_Y;
    for row in &node.rows {
        let widths: f64 = row.iter().map(|&i| nodes[i].w).sum();
        let mut x = middle - (widths + GAP_X * (row.len() - 1) as f64) / 2.0;
        let mut tallest = 0.0_f64;
        for &child in row {
            (nodes[child].x, nodes[child].y) = (x, y);
            x += nodes[child].w + GAP_X;
            tallest = tallest.max(nodes[child].h);
        }
        y += tallest + GAP_Y;
    }
    Rect { x: middle - w / 2.0, y: node.y, w, h }
}

/// All edges.
fn lines(cfg: &Cfg<'_, '_>, nodes: &mut [Node], blocks: &[Rect]) -> Vec<Line> {
    let mut lines = Vec::new();
    for (from, block) in cfg.ids().zip(&cfg.blocks) {
        let a = blocks[from.0];
        let count = block.successors.len();
        for (i, edge) in block.successors.iter().enumerate() {
            let b = blocks[edge.to.0];
            let back = cfg.is_back_edge(from, edge.to);
            // Ends are spread over the sides of the blocks.
            let start = a.x + a.w * (i + 1) as f64 / (count + 1) as f64;
            let before = &cfg.blocks[edge.to.0].predecessors;
            let place = before.iter().position(|p| *p == from).unwrap_or(0);
            let end = b.x + b.w * (place + 1) as f64 / (before.len() + 1) as f64;
            let (under, over) = (a.bottom() + GAP_Y / 3.0, b.y - GAP_Y / 3.0);
            let direct = vec![(start, a.bottom()), (start, over), (end, over), (end, b.y)];
            let points = if back || (b.y < a.bottom() && cfg.dominator(edge.to).is_none()) {
                let node = &mut nodes[edge.to.0];
                node.taken.0 += 1;
                let lane = node.x + LANE * node.taken.0 as f64;
                let over = b.y - GAP_Y / 4.0;
                let under = a.bottom() + GAP_Y / 4.0;
                let down = [(start, a.bottom()), (start, under), (lane, under), (lane, over)];
                down.into_iter().chain([(end, over), (end, b.y)]).collect()
            } else if b.y > a.bottom() && is_free(&direct, blocks) {
                direct
            } else {
                let around = cfg.dominator(edge.to).map_or(0, |d| d.0);
                let node = &mut nodes[around];
                node.taken.1 += 1;
                let lane = node.x + node.w - LANE * node.taken.1 as f64;
                let down = [(start, a.bottom()), (start, under), (lane, under), (lane, over)];
                down.into_iter().chain([(end, over), (end, b.y)]).collect()
            };
            lines.push(Line { from, to: edge.to, kind: edge.kind, back, points });
        }
    }
    lines
}

/// Whether a line meets no block between its ends.
fn is_free(points: &[(f64, f64)], blocks: &[Rect]) -> bool {
    points.windows(2).all(|pair| {
        let [(x0, y0), (x1, y1)] = [pair[0], pair[1]];
        let part = Rect { x: x0.min(x1), y: y0.min(y1), w: (x1 - x0).abs(), h: (y1 - y0).abs() };
        let part = Rect { x: part.x - 1.0, y: part.y + 0.5, w: part.w + 2.0, h: part.h - 1.0 };
        !blocks.iter().any(|block| block.overlaps(part))
    })
}
