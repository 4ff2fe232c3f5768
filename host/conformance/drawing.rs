//! A space-time drawing of two ranks and what they do at two places: as text, and as SVG.

use std::fmt::{self, Write as _};

use ferroccl_device::gpu::cpu::{Access, Order};

/// Time goes down; a column for each rank.
#[derive(Clone, Debug)]
pub(super) struct Drawing {
    ranks: [u32; 2],
    rows: Vec<DrawnEvent>,
}

/// An event of a rank.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DrawnEvent {
    pub number: u64,
    /// Which rank's column.
    pub lane: usize,
    /// Where: D for data, F for a flag.
    pub place: char,
    pub kind: DrawnKind,
    pub word: Option<u64>,
    /// Whether it is one of the two accesses that are in no order.
    pub marked: bool,
    /// How often in a row.
    pub times: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DrawnKind {
    Load(Access),
    Store(Order),
    /// The store of this number is seen by all from here on.
    Visible(u64),
    Swap,
}

impl DrawnEvent {
    /// Whether it is the same once more.
    pub(super) fn is_like(&self, other: &DrawnEvent) -> bool {
        let key = |row: &DrawnEvent| (row.lane, row.place, row.word, row.marked);
        let same_kind = match (self.kind, other.kind) {
            (DrawnKind::Visible(a), DrawnKind::Visible(b)) => a == b,
            (a, b) => a == b,
        };
        key(self) == key(other) && same_kind && !self.marked
    }

    fn words(&self) -> String {
        let place = self.place;
        let order = |release: bool| if release { ", a release" } else { ", in no order" };
        let mut text = match self.kind {
            DrawnKind::Load(Access::Data) => format!("loads {place}"),
            DrawnKind::Load(Access::Relaxed) => format!("loads {place}, in no order"),
            DrawnKind::Load(Access::Acquire) => format!("loads {place}, an acquire"),
            DrawnKind::Store(Order::Plain | Order::Guarded) => format!("stores {place}"),
            DrawnKind::Store(kind) => format!("stores {place}{}", order(kind == Order::Release)),
            DrawnKind::Visible(store) => format!("its store {store} of {place} is seen"),
            DrawnKind::Swap => format!("swaps {place}"),
        };
        if let (Some(word), 'F') = (self.word, self.place) {
            let _ = write!(text, ": {word}");
        }
        if self.times > 1 {
            let _ = write!(text, " ({} times)", self.times);
        }
        if self.marked {
            text.push_str("  <--");
        }
        text
    }
}

/// Columns of the text.
const WIDTH: usize = 44;
/// Rows at most; the first ones are left out.
const MOST: usize = 48;

impl Drawing {
    pub(super) fn new(ranks: [u32; 2], mut rows: Vec<DrawnEvent>) -> Self {
        if rows.len() > MOST {
            let too_many = rows.len() - MOST;
            let marked = rows.iter().position(|row| row.marked).unwrap_or(too_many);
            let first = rows.get(marked).cloned();
            rows.drain(..too_many);
            if let Some(first) = first.filter(|_| marked < too_many) {
                rows.insert(0, first);
            }
        }
        Drawing { ranks, rows }
    }

    /// As a picture, with memory as a third line between the ranks: a store's arrow ends where it is seen.
    pub(super) fn svg(&self) -> String {
        const ROW: usize = 26;
        const LANES: [usize; 3] = [250, 450, 650];
        let height = 70 + ROW * self.rows.len();
        let at = |i: usize| 60 + ROW * i;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 900 {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <defs><marker id=\"end\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\">\
             <path d=\"M0 0L8 4L0 8z\"/></marker></defs>\n\
             <rect width=\"900\" height=\"{height}\" fill=\"white\"/>\n"
        );
        let heads = [
            format!("rank {}", self.ranks[0]),
            "memory".to_owned(),
            format!("rank {}", self.ranks[1]),
        ];
        for (x, head) in LANES.iter().zip(heads) {
            let _ = writeln!(
                out,
                "<text x=\"{x}\" y=\"24\" text-anchor=\"middle\" font-weight=\"bold\">{head}</text>\
                 <line x1=\"{x}\" y1=\"36\" x2=\"{x}\" y2=\"{}\" stroke=\"#bbb\"/>",
                height - 10
            );
        }
        for (i, row) in self.rows.iter().enumerate() {
            let (x, memory, y) = (LANES[2 * row.lane.min(1)], LANES[1], at(i));
            let color = if row.marked { "#c00" } else { "#000" };
            let arrow = |from: (usize, usize), to: (usize, usize)| {
                format!(
                    "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{color}\" marker-end=\"url(#end)\"/>\n",
                    from.0, from.1, to.0, to.1
                )
            };
            match row.kind {
                DrawnKind::Load(_) | DrawnKind::Swap => out += &arrow((memory, y), (x, y)),
                DrawnKind::Visible(store) => {
                    let from = self.rows.iter().position(|row| row.number == store);
                    out += &arrow((x, from.map_or(y, at)), (memory, y));
                    continue; // the arrow says it
                }
                DrawnKind::Store(_) => {}
            }
            let (anchor, x) = if row.lane == 0 { ("end", x - 10) } else { ("start", x + 10) };
            let _ = writeln!(
                out,
                "<text x=\"{x}\" y=\"{}\" text-anchor=\"{anchor}\" fill=\"{color}\">{}</text>",
                y + 4,
                row.words().replace("  <--", "").replace('<', "&lt;")
            );
        }
        out + "</svg>\n"
    }
}

impl fmt::Display for Drawing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = self.ranks.map(|rank| format!("rank {rank}"));
        writeln!(f, "  {:>8}  {a:<WIDTH$}{b}", "event")?;
        for row in &self.rows {
            let (left, right) = match row.lane {
                0 => (row.words(), String::new()),
                _ => (String::new(), row.words()),
            };
            writeln!(f, "{}", format!("  {:>8}  {left:<WIDTH$}{right}", row.number).trim_end())?;
        }
        Ok(())
    }
}
