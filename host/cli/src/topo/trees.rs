//! Trees as drawings: a line for the ranks of a host, and below it the hosts that hang from one of them.

use std::fmt::Write;

use ferroccl::graph::connect::{NONE, Tree};

use super::View;
use super::text::alike;

/// Lines of all drawings together.
const LINES: usize = 96;
/// Ranks of a host that are written out.
const RANKS: usize = 16;

/// ```text
/// Trees, the deepest of 9 hops
///   channels 0,2 of 4:
///     0 1 2 3
///     └─ from 0: 4 5 6 7
/// ```
pub(super) fn trees(out: &mut String, view: &View) -> std::fmt::Result {
    let Some(depth) = view.trees.iter().filter_map(Tree::depth).max() else { return Ok(()) };
    let hops = if depth == 1 { "hop" } else { "hops" };
    writeln!(out, "Trees, from the root down, the deepest of {depth} {hops}")?;
    let shapes = alike(&view.trees);
    let mut left = LINES;
    for (i, (numbers, tree)) in shapes.iter().enumerate() {
        let mut drawing = Drawing { tree, local: view.paths.gpus() as u32, lines: Vec::new() };
        let s = if numbers.contains([',', '-']) { "s" } else { "" };
        drawing.lines.push(format!("  channel{s} {numbers} of {}:", view.trees.len()));
        let cut = tree.root().is_some_and(|root| !drawing.host(root, "", "    ", "    ", left));
        for line in drawing.lines.iter().take(left) {
            writeln!(out, "{line}")?;
        }
        left = left.saturating_sub(drawing.lines.len());
        let more = shapes.len() - i - 1;
        if cut || (left < 2 && more > 0) {
            let others = if more > 0 { format!(", and {more} more") } else { String::new() };
            return writeln!(out, "  ... --json has them whole{others}");
        }
    }
    Ok(())
}

struct Drawing<'a> {
    tree: &'a Tree,
    /// Ranks of a host.
    local: u32,
    lines: Vec<String>,
}

impl Drawing<'_> {
    /// Draws the host whose first rank in the tree is `first`, and all below it; `false` when there are `most` lines before
    /// all is drawn.
    fn host(&mut self, first: u32, label: &str, indent: &str, below: &str, most: usize) -> bool {
        let mut chain = vec![first];
        let mut hanging: Vec<(u32, u32)> = Vec::new();
        let mut at = 0;
        while let Some(&rank) = chain.get(at) {
            for &child in self.tree.down[rank as usize].iter().filter(|child| **child != NONE) {
                if child / self.local == first / self.local {
                    chain.push(child);
                } else {
                    hanging.push((rank, child));
                }
            }
            at += 1;
        }
        self.lines.push(format!("{indent}{label}{}", written(&chain)));
        for (i, (from, child)) in hanging.iter().enumerate() {
            if self.lines.len() >= most {
                return false;
            }
            let (branch, on) =
                if i + 1 == hanging.len() { ("└─", "   ") } else { ("├─", "│  ") };
            let (branch, on) = (format!("{below}{branch} "), format!("{below}{on}"));
            if !self.host(*child, &format!("from {from}: "), &branch, &on, most) {
                return false;
            }
        }
        true
    }
}

/// `0 1 2 3`; of very many the first and the last.
fn written(ranks: &[u32]) -> String {
    let list = |ranks: &[u32]| ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    if ranks.len() <= RANKS {
        return list(ranks);
    }
    let (first, last) = (&ranks[..RANKS - 1], &ranks[ranks.len() - 1..]);
    format!("{} ... {} ({} ranks)", list(first), list(last), ranks.len())
}
