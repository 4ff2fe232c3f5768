//! The blocks of a function as a drawing: SVG, a page of HTML around it, or a graph for Graphviz.
//!
//! The layout is our own, as the crates there are lay out any graph, and a function's blocks are not any: what a
//! block dominates is all that can be reached through it alone, so that nested boxes say more than layers.
//! See [`layout`].

mod dot;
mod html;
mod layout;
mod svg;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use super::flight::{Flight, flight};
use super::lines::Lines;
use super::stats::Bytes;
use crate::cfg::{BlockId, Cfg};
use crate::isa::{Access, Space, memory};
use crate::syntax::Function;

pub use dot::dot;
pub use html::html;
pub use svg::svg;

/// What is drawn of a block.
#[derive(Clone, Debug)]
struct Card {
    /// `B5 $L__BB4_5`
    title: String,
    /// Where it comes from: `device/src/copy.rs:188`.
    place: String,
    /// `8 instructions, 16 B in, 16 B out`
    figures: String,
    /// All its instructions.
    code: Vec<String>,
}

/// A function to draw.
pub struct Drawing<'d, 'a> {
    function: &'d Function<'a>,
    cfg: &'d Cfg<'d, 'a>,
    cards: Vec<Card>,
    /// Instructions of a block that are drawn.
    most: usize,
}

impl<'d, 'a> Drawing<'d, 'a> {
    /// Of a function of `source`, with so many instructions of each block at most.
    #[must_use]
    pub fn new(
        function: &'d Function<'a>,
        cfg: &'d Cfg<'d, 'a>,
        lines: &Lines<'a>,
        source: &str,
        most: usize,
    ) -> Self {
        let cards = cfg.ids().map(|id| card(cfg, id, lines, source)).collect();
        Drawing { function, cfg, cards, most }
    }

    /// The lines of instructions that are drawn of a block, and how many are not.
    fn shown(&self, id: BlockId) -> (&[String], usize) {
        let code = &self.cards[id.0].code;
        // One line more takes no more room than saying that there is one.
        let shown = if code.len() <= self.most + 1 { code.len() } else { self.most };
        (&code[..shown], code.len() - shown)
    }
}

fn card(cfg: &Cfg<'_, '_>, id: BlockId, lines: &Lines<'_>, source: &str) -> Card {
    let block = &cfg.blocks[id.0];
    let code = cfg.code_of(id);
    let mut title = format!("B{}", id.0);
    for label in &block.labels {
        let _ = write!(title, " {label}");
    }
    let place = code.iter().find_map(|c| c.location.and_then(|loc| lines.place(loc)));
    let place = place.map_or(String::new(), |p| format!("{}:{}", p.file, p.line));
    let bytes = global_bytes(cfg, id);
    let cyclic = block.successors.iter().any(|edge| edge.to == id);
    let Flight { loads, .. } = flight(code, cyclic);
    let mut figures = match code.len() {
        1 => "1 instruction".to_owned(),
        n => format!("{n} instructions"),
    };
    for (n, what) in [(bytes.loaded, "B in"), (bytes.stored, "B out"), (loads.into(), "in flight")]
    {
        if n > 0 {
            let _ = write!(figures, ", {n} {what}");
        }
    }
    let text = |span: crate::syntax::Span| {
        span.text(source).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let code = code.iter().map(|c| text(c.instruction.span)).collect();
    Card { title, place, figures, code }
}

/// What a block moves from and to global memory, generic addresses included.
fn global_bytes(cfg: &Cfg<'_, '_>, id: BlockId) -> Bytes {
    let mut bytes = Bytes::default();
    let accesses = cfg.code_of(id).iter().filter_map(|code| memory(code.instruction));
    for m in accesses.filter(|m| matches!(m.space, Space::Global | Space::Generic)) {
        let moved = u64::from(m.bytes.unwrap_or(0));
        if !matches!(m.access, Access::Store | Access::Reduce) {
            bytes.loaded += moved;
        }
        if matches!(m.access, Access::Store | Access::Reduce | Access::Atomic) {
            bytes.stored += moved;
        }
    }
    bytes
}

/// Text between tags.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // Control characters are none of XML's.
            c if c < ' ' && c != '\n' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
