//! Natural loops: what goes round to a block that dominates it.

use std::collections::BTreeMap;

use super::{BlockId, Cfg};

/// The number of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoopId(pub usize);

/// A natural loop: a header that is the only way in, and all that leads back to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    /// Where it is entered.
    pub header: BlockId,
    /// Where it goes back to the header from, in order.
    pub latches: Vec<BlockId>,
    /// All its blocks in order, those of the loops within it and the header included.
    pub blocks: Vec<BlockId>,
    /// The loop around it.
    pub parent: Option<LoopId>,
    /// How many loops it is in, itself included: 1 for an outermost.
    pub depth: u32,
    /// Whether it has loops within.
    pub innermost: bool,
}

impl Loop {
    /// Whether a block is in it.
    #[must_use]
    pub fn contains(&self, block: BlockId) -> bool {
        self.blocks.binary_search(&block).is_ok()
    }
}

/// Fills in loops and cycles that are none.
pub(super) fn find(cfg: &mut Cfg<'_, '_>) {
    let mut latches: BTreeMap<BlockId, Vec<BlockId>> = BTreeMap::new();
    for id in cfg.ids() {
        for edge in &cfg.blocks[id.0].successors {
            if cfg.is_back_edge(id, edge.to) {
                let of = latches.entry(edge.to).or_default();
                if of.last() != Some(&id) {
                    of.push(id);
                }
            }
        }
    }
    cfg.irreducible = irreducible(cfg);
    let mut loops: Vec<Loop> = latches
        .into_iter()
        .map(|(header, latches)| {
            let blocks = body(cfg, header, &latches);
            Loop { header, latches, blocks, parent: None, depth: 1, innermost: true }
        })
        .collect();
    // Two loops of different headers are apart, or one is within the other and smaller.
    loops.sort_by_key(|l| (std::cmp::Reverse(l.blocks.len()), l.header));
    for i in 0..loops.len() {
        let parent = (0..i).rev().find(|&outer| loops[outer].contains(loops[i].header));
        if let Some(outer) = parent {
            loops[i].parent = Some(LoopId(outer));
            loops[i].depth = loops[outer].depth + 1;
            loops[outer].innermost = false;
        }
        for block in &loops[i].blocks {
            cfg.innermost[block.0] = Some(LoopId(i)); // an inner one comes later
        }
    }
    cfg.loops = loops;
}

/// The header, and what leads to the latches without going through it.
fn body(cfg: &Cfg<'_, '_>, header: BlockId, latches: &[BlockId]) -> Vec<BlockId> {
    let mut inside = vec![false; cfg.blocks.len()];
    inside[header.0] = true;
    let mut open: Vec<BlockId> = latches.to_vec();
    while let Some(block) = open.pop() {
        if !std::mem::replace(&mut inside[block.0], true) {
            let before = cfg.blocks[block.0].predecessors.iter();
            open.extend(before.filter(|p| cfg.is_reachable(**p)));
        }
    }
    cfg.ids().filter(|id| inside[id.0]).collect()
}

/// Edges to a block that a walk is still in, and that does not dominate where they come from.
fn irreducible(cfg: &Cfg<'_, '_>) -> Vec<(BlockId, BlockId)> {
    let mut found = Vec::new();
    if cfg.blocks.is_empty() {
        return found;
    }
    let (mut seen, mut inside) = (vec![false; cfg.blocks.len()], vec![false; cfg.blocks.len()]);
    // A walk in depth, with the successor that comes next of each block on the way.
    let mut way = vec![(BlockId(0), 0)];
    seen[0] = true;
    inside[0] = true;
    while let Some((block, next)) = way.last_mut() {
        let from = *block;
        let Some(edge) = cfg.blocks[from.0].successors.get(*next) else {
            inside[from.0] = false;
            way.pop();
            continue;
        };
        *next += 1;
        if inside[edge.to.0] && !cfg.dominates(edge.to, from) {
            found.push((from, edge.to));
        }
        if !std::mem::replace(&mut seen[edge.to.0], true) {
            inside[edge.to.0] = true;
            way.push((edge.to, 0));
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}
