use super::*;
use crate::syntax::{Module, parse};

/// A module with one kernel of this body.
fn kernel(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.entry k() {{\n.reg .pred %p<9>; .reg .b32 %r<9>;\n{body}\n}}"
    )
}

fn cfg<'m>(module: &'m Module<'m>) -> Cfg<'m, 'm> {
    Cfg::new(module.entries().next().expect("one kernel")).unwrap_or_else(|e| panic!("{e}"))
}

/// Successors by number, `*` after those that may end.
fn shape(cfg: &Cfg<'_, '_>) -> String {
    let one = |b: &BasicBlock<'_>| {
        let to: Vec<String> = b.successors.iter().map(|e| e.to.0.to_string()).collect();
        to.join(",") + if b.ends { "*" } else { "" }
    };
    cfg.blocks.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn numbers(ids: &[Option<BlockId>]) -> Vec<i64> {
    ids.iter().map(|id| id.map_or(-1, |b| b.0 as i64)).collect()
}

#[test]
fn a_diamond() {
    let source = kernel("@%p1 bra B; mov.u32 %r1, 1; bra.uni C; B: mov.u32 %r1, 2; C: ret;");
    let module = parse(&source).unwrap();
    let cfg = cfg(&module);
    assert_eq!(shape(&cfg), "2,1 3 3 *");
    assert_eq!(cfg.blocks[0].successors[0].kind, EdgeKind::Taken);
    assert_eq!(cfg.blocks[0].successors[1].kind, EdgeKind::FallThrough);
    assert_eq!(numbers(&cfg.dominators), [-1, 0, 0, 0]);
    assert_eq!(numbers(&cfg.post_dominators), [3, 3, 3, -1]);
    assert_eq!(cfg.blocks[3].predecessors, [BlockId(1), BlockId(2)]);
    assert!(cfg.loops().is_empty() && cfg.irreducible().is_empty());
    assert_eq!(
        (0..6).map(|i| cfg.block_of(i).map_or(-1, |b| b.0 as i64)).collect::<Vec<_>>(),
        [0, 1, 1, 2, 3, -1]
    );
}

#[test]
fn nested_loops_with_two_ways_back() {
    let source = kernel(
        "A: @%p1 bra Z;\n\
         B: @%p2 bra A;\n\
         mov.u32 %r1, 1;\n\
         C: @%p3 bra C;\n\
         @%p4 bra B;\n\
         bra A;\n\
         Z: exit;",
    );
    let module = parse(&source).unwrap();
    let cfg = cfg(&module);
    let [outer, middle, inner] = cfg.loops() else { panic!("{:?}", cfg.loops()) };
    assert_eq!((outer.header, &outer.latches[..]), (BlockId(0), &[BlockId(1), BlockId(5)][..]));
    assert_eq!((outer.depth, outer.parent, outer.innermost), (1, None, false));
    assert_eq!(middle.blocks, [1, 2, 3, 4].map(BlockId));
    assert_eq!((middle.depth, middle.parent, middle.innermost), (2, Some(LoopId(0)), false));
    assert_eq!((inner.depth, inner.parent, inner.innermost), (3, Some(LoopId(1)), true));
    assert_eq!((cfg.depth(BlockId(3)), cfg.depth(BlockId(5)), cfg.depth(BlockId(6))), (3, 1, 0));
    assert!(cfg.is_back_edge(BlockId(4), BlockId(1)) && !cfg.is_back_edge(BlockId(2), BlockId(3)));
}

#[test]
fn guarded_ends_and_code_that_nothing_reaches() {
    let source = kernel("@%p1 exit; ret; mov.u32 %r1, 1; @!%p2 trap; L:");
    let module = parse(&source).unwrap();
    let cfg = cfg(&module);
    assert_eq!(shape(&cfg), "1* * 3* *");
    assert_eq!([0, 1, 2, 3].map(|b| cfg.is_reachable(BlockId(b))), [true, true, false, false]);
    // One lane may end at the first instruction while the other runs on: they meet at the end alone.
    assert_eq!(cfg.post_dominator(BlockId(0)), None);
    assert!(cfg.blocks[3].range.is_empty());
    assert_eq!(cfg.block_of(4), None);
}

#[test]
fn a_spin_without_end_has_no_post_dominator() {
    let source = kernel("@%p1 bra B; A: bra A; B: ret;");
    let module = parse(&source).unwrap();
    let cfg = cfg(&module);
    assert_eq!(numbers(&cfg.post_dominators), [2, -1, -1]);
    assert_eq!(cfg.loops().len(), 1);
}

#[test]
fn tables_and_labels_within_braces() {
    let source = kernel(
        "{ t: .branchtargets a, b, a; brx.idx %r1, t; a: mov.u32 %r1, 1; b: }\n\
         { t: .branchtargets b; @%p1 brx.idx %r1, t; b: bra c; }\n\
         c: ret;",
    );
    let module = parse(&source).unwrap();
    let cfg = cfg(&module);
    assert_eq!(shape(&cfg), "1,2,1 2 3,3 4 *");
    let kinds: Vec<EdgeKind> = cfg.blocks[0].successors.iter().map(|e| e.kind).collect();
    assert_eq!(kinds, [0, 1, 2].map(EdgeKind::Case));
    assert_eq!(cfg.blocks[3].predecessors, [BlockId(2)], "two edges, one block");
    assert_eq!(cfg.blocks[3].labels[0].text, "b");
}

#[test]
fn a_cycle_with_two_entries_is_told_from_a_loop() {
    let source = kernel("@%p1 bra B; A: mov.u32 %r1, 1; B: @%p2 bra A; ret;");
    let module = parse(&source).unwrap();
    let cfg = cfg(&module);
    assert!(cfg.loops().is_empty());
    assert_eq!(cfg.irreducible().len(), 1);
}

#[test]
fn lines_count_until_the_next() {
    let source = kernel("ret; .loc 1 7 0\n L: ret; { .loc 1 8 0\n ret; } ret;");
    let module = parse(&source).unwrap();
    let cfg = cfg(&module);
    let lines: Vec<Option<&str>> =
        cfg.code.iter().map(|c| c.location.map(|l| l.arguments[1].text)).collect();
    assert_eq!(lines, [None, Some("7"), Some("8"), Some("8")]);
}

#[test]
fn what_is_wrong_has_a_place() {
    for (body, what, text) in [
        ("bra NOWHERE;", "there is no label `NOWHERE`", "NOWHERE"),
        ("L: ret; L: ret;", "label `L` is there twice", "L"),
        ("{ L: ret; } bra L;", "there is no label `L`", "L"),
        ("L: brx.idx %r1, L;", "`L` is no .branchtargets list", "L"),
        ("L: .branchtargets A; brx.idx %r1, L;", "there is no label `A`", "A"),
        ("L: .calltargets A; brx.idx %r1, L;", "`L` is no .branchtargets list", "L"),
        ("bra [%r1];", "`bra` names no label", "bra [%r1];"),
        ("brx.idx %r1;", "`brx.idx` names no label", "brx.idx %r1;"),
    ] {
        let source = kernel(body);
        let module = parse(&source).unwrap();
        let error = Cfg::new(module.entries().next().unwrap()).expect_err(body);
        assert_eq!((error.what.as_str(), error.span.text(&source)), (what, text), "{body}");
        assert_eq!(error.at(&source).at.line, 6);
    }
}

#[test]
fn a_declaration_has_no_ways() {
    let module = parse(".version 8.0\n.target sm_80\n.extern .func f();").unwrap();
    let cfg = Cfg::new(module.functions().next().unwrap()).unwrap();
    assert!(cfg.blocks.is_empty() && cfg.code.is_empty());
    let empty = parse(".version 8.0\n.target sm_80\n.func f() {}").unwrap();
    let cfg = Cfg::new(empty.functions().next().unwrap()).unwrap();
    assert!(cfg.blocks.is_empty());
}
