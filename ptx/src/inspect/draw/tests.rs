use super::layout::{Rect, layout};
use super::*;
use crate::cfg::Cfg;
use crate::syntax::parse;

/// A function of `blocks` blocks, each with a branch to a block that `seed` chooses.
fn random(blocks: u64, seed: u64) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % n
    };
    let mut body = String::from("t: .branchtargets L0, L1;\n");
    for i in 0..blocks {
        let to = next(blocks);
        let _ = match next(6) {
            0 => writeln!(body, "L{i}: bra L{to};"),
            1 => writeln!(body, "L{i}: @%p1 exit;"),
            2 => writeln!(body, "L{i}: ret;"),
            3 if blocks > 1 => writeln!(body, "L{i}: @!%p1 brx.idx %r1, t;"),
            _ => writeln!(body, "L{i}: add.u32 %r1, %r1, {to}; @%p1 bra L{to};"),
        };
    }
    format!(
        ".version 8.0\n.target sm_80\n.entry k() {{\n.reg .pred %p<2>; .reg .b32 %r<2>;\n{body}}}"
    )
}

fn holds(cfg: &Cfg<'_, '_>, what: &str) {
    let sizes: Vec<(f64, f64)> = cfg
        .ids()
        .map(|id| (60.0 + 17.0 * (id.0 % 7) as f64, 20.0 + 9.0 * (id.0 % 5) as f64))
        .collect();
    let layout = layout(cfg, &sizes);
    for (a, (rect, size)) in layout.blocks.iter().zip(&sizes).enumerate() {
        assert_eq!((rect.w, rect.h), *size, "{what}: B{a}");
        let inside = rect.x >= 0.0
            && rect.y >= 0.0
            && rect.x + rect.w <= layout.width
            && rect.y + rect.h <= layout.height;
        assert!(inside, "{what}: B{a} {rect:?} of {} x {}", layout.width, layout.height);
        for (b, other) in layout.blocks.iter().enumerate().skip(a + 1) {
            assert!(!rect.overlaps(*other), "{what}: B{a} {rect:?} and B{b} {other:?}");
        }
    }
    let edges: usize = cfg.blocks.iter().map(|b| b.successors.len()).sum();
    assert_eq!(layout.lines.len(), edges, "{what}");
    for line in &layout.lines {
        let at = |(x, y): (f64, f64), rect: Rect, side: f64| {
            y == side && rect.x <= x && x <= rect.x + rect.w
        };
        let (from, to) = (layout.blocks[line.from.0], layout.blocks[line.to.0]);
        let (Some(first), Some(last)) = (line.points.first(), line.points.last()) else {
            panic!("{what}: {line:?}")
        };
        assert!(at(*first, from, from.y + from.h) && at(*last, to, to.y), "{what}: {line:?}");
        // Forward is down, but for cycles that are no loops.
        if !line.back && cfg.irreducible().is_empty() && cfg.is_reachable(line.from) {
            assert!(to.y >= from.y + from.h, "{what}: {line:?}");
        }
        for pair in line.points.windows(2) {
            let straight = pair[0].0 == pair[1].0 || pair[0].1 == pair[1].1;
            assert!(straight, "{what}: {line:?}");
        }
    }
}

#[test]
fn blocks_stand_apart_and_edges_lead_down_whatever_the_ways() {
    for seed in 1..400 {
        let source = random(1 + seed % 40, seed);
        let module = parse(&source).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let cfg = Cfg::new(module.entries().next().unwrap()).unwrap();
        holds(&cfg, &format!("seed {seed}"));
    }
}

#[test]
fn a_diamond_is_drawn_as_one() {
    let source =
        ".version 8.0\n.target sm_80\n.entry k() { @%p bra B; A: bra C; B: bra C; C: ret; }";
    let module = parse(source).unwrap();
    let cfg = Cfg::new(module.entries().next().unwrap()).unwrap();
    let at = layout(&cfg, &[(50.0, 20.0); 4]).blocks;
    assert!(at[1].y == at[2].y && at[0].y < at[1].y && at[1].y < at[3].y, "{at:?}");
    assert!(at[0].x == at[3].x && at[1].x < at[0].x && at[0].x < at[2].x, "{at:?}");
}

#[test]
fn all_blocks_edges_and_loops_are_in_every_drawing() {
    let source = ".version 8.0\n.target sm_80\n.file 1 \"a<b>.rs\"\n.entry k() {\n.loc 1 7 0\nA: ld.global.v2.u64 {%rd1, %rd2}, [%rd3];\n\
        st.global.u8 [%rd3], 1; add.u32 %r1, %r1, 1; add.u32 %r1, %r1, 2; add.u32 %r1, %r1, 3;\n@%p1 bra A; ret; }";
    let module = parse(source).unwrap();
    let kernel = module.entries().next().unwrap();
    let cfg = Cfg::new(kernel).unwrap();
    let drawing = Drawing::new(kernel, &cfg, &Lines::new(&module), source, 2);
    let drawn = svg(&drawing);
    for what in [
        "B0 A",
        "a&lt;b&gt;.rs:7",
        "6 instructions, 16 B in, 1 B out, 1 in flight",
        "ld.global.v2.u64 {%rd1, %rd2}, [%rd3];",
        "… 4 more",
        "loop of B0, depth 1",
        "data-from=\"B0\" data-to=\"B0\"",
        "B0 to B1, falls through",
        "class=\"edge back\"",
    ] {
        assert!(drawn.contains(what), "{what} in {drawn}");
    }
    assert!(!drawn.contains("%r1, 3"), "{drawn}");
    let page = html(&drawing);
    assert!(page.contains(&drawn) && page.contains("@%p1 bra A;"), "a page has all instructions");
    let graph = dot(&drawing);
    for what in [
        "digraph \"k\"",
        "subgraph cluster_0",
        "B0 -> B1 [color",
        "B0 -> B0 [color=\"#2f7d32\", penwidth=2]",
    ] {
        assert!(graph.contains(what), "{what} in {graph}");
    }
    assert_eq!(graph.matches('{').count(), graph.matches('}').count(), "{graph}");
}
