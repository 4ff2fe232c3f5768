//! The drawing as SVG, complete in itself.

use std::fmt::Write as _;

use super::layout::{Layout, Line, Rect, layout};
use super::{Drawing, escaped};
use crate::cfg::{BlockId, EdgeKind, LoopId};

/// Of the font: a character's width, a line's height.
const CHARACTER: f64 = 6.63;
const LINE: f64 = 14.0;
const PADDING: f64 = 8.0;
/// Characters of a line that are drawn.
const LONGEST: usize = 72;

const STYLE: &str = "\
text{font:11px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#1c2733;white-space:pre}\
.block rect{fill:#fff;stroke:#7b8a9a;stroke-width:1}\
.title{font-weight:bold}.place{fill:#1f5fa8}.figures{fill:#5b6b7b}.more{fill:#8a97a5}\
.loop{stroke:#d9a441;stroke-width:1}\
.edge{fill:none;stroke:#55636f;stroke-width:1.2}\
.back{stroke-width:1.6}";

/// Of edges.
const COLORS: [(&str, &str); 4] =
    [("taken", "#2f7d32"), ("fall", "#55636f"), ("case", "#7b3fa0"), ("back", "#c2410c")];

/// Draws it.
#[must_use]
pub fn svg(drawing: &Drawing<'_, '_>) -> String {
    let cfg = drawing.cfg;
    let sizes: Vec<(f64, f64)> = cfg.ids().map(|id| size(drawing, id)).collect();
    let layout = layout(cfg, &sizes);
    let (width, height) = (layout.width.max(200.0), layout.height + LINE);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\">\n<style>{STYLE}</style>\n"
    );
    out.push_str("<defs>");
    // A marker of each colour: not every viewer knows how to take its line's.
    for (class, color) in COLORS {
        let _ = write!(
            out,
            "<marker id=\"arrow-{class}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" \
             markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path d=\"M0 0 8 4 0 8z\" fill=\"{color}\"/></marker>\
             <style>.{class}{{stroke:{color}}}</style>"
        );
    }
    out.push_str("</defs>\n");
    let name = escaped(drawing.function.name.text);
    let _ = writeln!(
        out,
        "<title>{name}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#f6f8fa\"/>"
    );
    let _ = writeln!(out, "<text class=\"title\" x=\"{PADDING}\" y=\"{LINE}\">{name}</text>");
    for id in 0..cfg.loops().len() {
        shade(&mut out, drawing, &layout, LoopId(id));
    }
    for line in &layout.lines {
        edge(&mut out, line);
    }
    for (id, rect) in cfg.ids().zip(&layout.blocks) {
        block(&mut out, drawing, id, *rect);
    }
    out + "</svg>\n"
}

/// A line as far as it is drawn.
fn cut(text: &str) -> String {
    if text.chars().count() <= LONGEST {
        return text.to_owned();
    }
    text.chars().take(LONGEST - 1).chain(['…']).collect()
}

/// The lines of a block with their classes.
fn lines(drawing: &Drawing<'_, '_>, id: BlockId) -> Vec<(&'static str, String)> {
    let card = &drawing.cards[id.0];
    let (shown, more) = drawing.shown(id);
    let head = [("title", &card.title), ("place", &card.place), ("figures", &card.figures)];
    let head = head.into_iter().filter(|(_, text)| !text.is_empty());
    let mut lines: Vec<(&str, String)> = head.map(|(class, text)| (class, cut(text))).collect();
    lines.extend(shown.iter().map(|line| ("code", cut(line))));
    if more > 0 {
        lines.push(("more", format!("… {more} more")));
    }
    lines
}

fn size(drawing: &Drawing<'_, '_>, id: BlockId) -> (f64, f64) {
    let lines = lines(drawing, id);
    let longest = lines.iter().map(|(_, text)| text.chars().count()).max().unwrap_or(0);
    (2.0 * PADDING + CHARACTER * longest as f64, 2.0 * PADDING + LINE * lines.len() as f64)
}

fn block(out: &mut String, drawing: &Drawing<'_, '_>, id: BlockId, rect: Rect) {
    let Rect { x, y, w, h } = rect;
    let _ = writeln!(
        out,
        "<g class=\"block\" id=\"B{}\"><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" rx=\"4\"/>",
        id.0
    );
    for (i, (class, text)) in lines(drawing, id).into_iter().enumerate() {
        let (x, y) = (x + PADDING, y + PADDING + LINE * (i as f64 + 0.75));
        let _ = writeln!(
            out,
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>",
            escaped(&text)
        );
    }
    out.push_str("</g>\n");
}

/// A loop's ground: one rectangle if no block of another stands in it, else one round each block.
fn shade(out: &mut String, drawing: &Drawing<'_, '_>, layout: &Layout, id: LoopId) {
    let of = &drawing.cfg.loops()[id.0];
    let inside: Vec<Rect> = of.blocks.iter().map(|b| layout.blocks[b.0]).collect();
    let Some(first) = inside.first() else { return };
    let around = inside.iter().fold(*first, |all, rect| {
        let (x, y) = (all.x.min(rect.x), all.y.min(rect.y));
        let right = (all.x + all.w).max(rect.x + rect.w);
        let bottom = (all.y + all.h).max(rect.y + rect.h);
        Rect { x, y, w: right - x, h: bottom - y }
    });
    // Outer loops are seen around inner ones.
    let margin = (14.0 - 2.5 * f64::from(of.depth - 1)).max(4.0);
    let alone = drawing.cfg.ids().filter(|b| !of.contains(*b));
    let alone = alone.into_iter().all(|b| !layout.blocks[b.0].overlaps(around.grown(margin)));
    let ground = if alone { vec![around] } else { inside };
    for rect in ground {
        let Rect { x, y, w, h } = rect.grown(margin);
        let _ = writeln!(
            out,
            "<rect class=\"loop\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" rx=\"8\" \
             fill=\"#e8a83a\" fill-opacity=\"0.18\"><title>loop of B{}, depth {}</title></rect>",
            of.header.0, of.depth
        );
    }
}

fn edge(out: &mut String, line: &Line) {
    let class = match line.kind {
        _ if line.back => "back",
        EdgeKind::Taken => "taken",
        EdgeKind::FallThrough => "fall",
        EdgeKind::Case(_) => "case",
    };
    let title = match line.kind {
        EdgeKind::Taken => "taken".to_owned(),
        EdgeKind::FallThrough => "falls through".to_owned(),
        EdgeKind::Case(n) => format!("case {n}"),
    };
    let _ = writeln!(
        out,
        "<path class=\"edge {class}\" data-from=\"B{0}\" data-to=\"B{1}\" marker-end=\"url(#arrow-{class})\" \
         d=\"{2}\"><title>B{0} to B{1}, {title}</title></path>",
        line.from.0,
        line.to.0,
        rounded(&line.points)
    );
}

/// A line with its corners rounded.
fn rounded(points: &[(f64, f64)]) -> String {
    const RADIUS: f64 = 6.0;
    let mut path = String::new();
    for (i, &(x, y)) in points.iter().enumerate() {
        let before = i.checked_sub(1).and_then(|i| points.get(i)).copied();
        match (before, points.get(i + 1).copied()) {
            (None, _) => {
                let _ = write!(path, "M{x:.1} {y:.1}");
            }
            (Some(_), None) => {
                let _ = write!(path, "L{x:.1} {y:.1}");
            }
            (Some(a), Some(b)) => {
                let toward = |(px, py): (f64, f64)| {
                    let length = (px - x).hypot(py - y);
                    let part = if length == 0.0 { 0.0 } else { RADIUS.min(length / 2.0) / length };
                    (x + (px - x) * part, y + (py - y) * part)
                };
                let ((ax, ay), (bx, by)) = (toward(a), toward(b));
                let _ = write!(path, "L{ax:.1} {ay:.1}Q{x:.1} {y:.1} {bx:.1} {by:.1}");
            }
        }
    }
    path
}
