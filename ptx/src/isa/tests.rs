use std::collections::HashSet;

use super::*;
use crate::cfg::Cfg;
use crate::syntax::{Function, parse};
use crate::types::Type;

/// Does something with the instruction that `text` is.
fn with<T>(text: &str, look: impl FnOnce(&Instruction<'_>) -> T) -> T {
    let source = format!(".version 9.0\n.target sm_100a\n.func f() {{ {text}; }}");
    let module = parse(&source).unwrap_or_else(|e| panic!("{text}: {e}"));
    let function: &Function<'_> = module.functions().next().expect("one function");
    let body = function.body.as_ref().expect("with a body");
    match &body.statements[0] {
        Statement::Instruction(instruction) => look(instruction),
        other => panic!("{text}: {other:?}"),
    }
}

fn problem(text: &str) -> String {
    with(text, check).expect_err(text).to_string()
}

#[test]
fn the_table_is_read_whole() {
    let text = include_str!("table.txt");
    let rows = table::read(text).unwrap_or_else(|line| panic!("{line}"));
    let own = |l: &&str| l.starts_with(|c: char| c.is_ascii_lowercase());
    assert_eq!(rows.len(), text.lines().filter(own).count());
    assert_eq!(rows.len(), opcodes().len());
    let names: HashSet<&str> = rows.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), rows.len(), "a name is there twice");
    for row in &rows {
        assert!(row.section.starts_with("9.7."), "{row:?}");
        for group in &row.groups {
            let words: HashSet<&str> = group.words.iter().copied().collect();
            assert_eq!(words.len(), group.words.len(), "{}: {group:?}", row.name);
        }
    }
    assert!(table::read("ld load x\n").is_err() && table::read("ld lood 2\n").is_err());
    assert!(table::read("ld load 2 $nothing\n").is_err());
    assert!(table::read("  v2|v4\n").is_err());
}

#[test]
fn what_is_right_passes() {
    for text in [
        "@!%p1 ld.acquire.gpu.global.L1::no_allocate.L2::128B.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1]",
        "ld.mmio.relaxed.sys.global.u32 %r1, [%rd1]",
        "ld.global.nc.L1::evict_last.L2::cache_hint.v2.b64 {%rd1, %rd2}, [%rd3], %rd4",
        "st.volatile.global.v2.u64 [%rd1], {%rd2, %rd3}",
        "atom.acq_rel.sys.global.cas.b128 %q1, [%rd1], %q2, %q3",
        "red.relaxed.gpu.global.add.noftz.v4.bf16x2 [%rd1], {%r1, %r2, %r3, %r4}",
        "cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2",
        "cvt.u64.u32 %rd1, %r1",
        "add.rn.f32.f16 %f1, %h1, %f2",
        "min.xorsign.abs.f16x2 %r1, %r2, %r3",
        "setp.lt.and.u32 %p1|%p2, %r1, %r2, !%p3",
        "set.gt.ftz.f32.f32 %f1, %f2, %f3",
        "lop3.or.b32 %r1|%p1, %r2, %r3, %r4, 0x1f, %p2",
        "shfl.sync.bfly.b32 %r1|%p1, %r2, 1, 31, -1",
        "bar.red.popc.u32 %r1, 0, %p1",
        "barrier.cluster.arrive.release.aligned",
        "fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128",
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p1, [%r1], %r2",
        "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%r1], [%rd1, {%r2, %r2, %r2, %r2, %r2}], [%r3], {%h1, %h1, %h1}, %h2, %rd2",
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {%f1}, %rd1, %rd2, %p1, 1, 1, 0, 0",
        "tcgen05.mma.cta_group::2.kind::mxf4nvf4.block_scale.scale_vec::4X.collector::a::fill [%r1], %rd1, %rd2, %r2, [%r3], [%r4], %p1",
        "tcgen05.mma.ws.cta_group::1.kind::f16.collector::b3::lastuse [%r1], %rd1, %rd2, %r2, %p1",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1}, {%r1}, {%r2}, {%f2}",
        "tex.a2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%r1, %f5, %f6, %f7}]",
        "vadd.s32.u32.s32.sat.min %r1, %r2.h0, %r3.b1, %r4",
        "call.uni (%r1), f, (%r2)",
        "trap",
    ] {
        with(text, check).unwrap_or_else(|e| panic!("{text}: {e}"));
    }
}

#[test]
fn what_is_wrong_is_told_with_what_may_be_meant() {
    for (text, said) in [
        ("movv.u32 %r1, 1", "there is no instruction `movv`; did you mean `mov`?"),
        ("adx.u32 %r1, %r2, %r3", "there is no instruction `adx`; did you mean `add`?"),
        ("quux %r1", "there is no instruction `quux`"),
        (
            "cp.asynk.ca.shared.global [%r1], [%rd1], 4",
            "there is no instruction `cp.asynk`; did you mean `cp.async`?",
        ),
        ("wgmma", "there is no instruction `wgmma`"),
        ("add.rm.rn.f32 %f1, %f2, %f3", "`add` takes one of `.rm` and `.rn`"),
        ("ld.weak.volatile.u32 %r1, [%rd1]", "`ld` takes one of `.weak` and `.volatile`"),
        ("ld.u32.u32 %r1, [%rd1]", "`ld` takes one of `.u32` and `.u32`"),
        ("add.f32.f16.bf16 %f1, %h1, %f2", "`add` takes one of `.f16` and `.bf16`"),
        ("st.acquire.gpu.u32 [%rd1], %r1", "`st` has no modifier `.acquire`"),
        ("ld.globl.u32 %r1, [%rd1]", "`ld` has no modifier `.globl`; did you mean `.global`?"),
        ("add.u31 %r1, %r2, %r3", "`add` has no modifier `.u31`; did you mean `.u32`?"),
        ("mma.sync.m16nk8 %r1, %r2, %r3, %r4", "`mma` has no modifier `.m16nk8`"),
        ("add.u32 %r1, %r2", "`add` takes 3 operands, not 2"),
        ("setp.eq.u32 %p1, %r1", "`setp` takes 3 to 4 operands, not 2"),
        ("wgmma.mma_async.sync.aligned %r1", "`wgmma.mma_async` takes 3 or more operands, not 1"),
        ("ret %r1", "`ret` takes 0 operands, not 1"),
    ] {
        assert_eq!(problem(text), said, "{text}");
    }
    let span = with("st.global.volatle.u8 [%rd1], %r1", |i| {
        let error = check(i).expect_err("a letter is missing");
        (error.span.end - error.span.start, error.span.start - i.span.start)
    });
    assert_eq!(span, (7, 10));
}

#[test]
fn kinds() {
    for (text, expected) in [
        ("ld.global.f32 %f1, [%rd1]", Class::Load),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r2]", Class::Matrix),
        ("st.shared.f32 [%r1], %f1", Class::Store),
        ("st.async.weak.shared::cluster.b32 [%r1], %r2, [%r3]", Class::Store),
        ("red.add.u32 [%rd1], 1", Class::Atomic),
        ("cp.async.ca.shared.global [%r1], [%rd1], 16", Class::Copy),
        ("cp.async.bulk.prefetch.L2.global [%rd1], %r1", Class::Special),
        ("membar.gl", Class::Fence),
        ("bar.sync 0", Class::Barrier),
        ("bar.warp.sync -1", Class::WarpSync),
        ("vote.sync.all.pred %p1, %p2, -1", Class::WarpSync),
        ("bra L", Class::Control),
        ("fma.rn.f32 %f1, %f2, %f3, %f4", Class::Float),
        ("fma.rn.f16x2 %r1, %r2, %r3, %r4", Class::Half),
        ("add.f32.f16 %f1, %h1, %f2", Class::Float),
        ("mad.lo.s32 %r1, %r2, %r3, %r4", Class::Integer),
        ("and.b32 %r1, %r2, %r3", Class::Integer),
        ("and.pred %p1, %p2, %p3", Class::Predicate),
        ("mov.pred %p1, 1", Class::Predicate),
        ("mov.b64 %rd1, {%r1, %r2}", Class::Move),
        ("cvta.to.global.u64 %rd1, %rd2", Class::Conversion),
        ("setp.eq.f16 %p1, %h1, %h2", Class::Comparison),
        ("nanosleep.u32 5", Class::Special),
        ("quux", Class::Special),
    ] {
        assert_eq!(with(text, class), expected, "{text}");
    }
}

#[test]
fn what_is_done_to_memory() {
    let told = |text: &str| {
        with(text, memory).map(|m| {
            let scope = m.scope.map_or("", Scope::name);
            let bytes = m.bytes.map_or("?".to_owned(), |b| b.to_string());
            format!("{:?} {} {} {scope} {}x {bytes}", m.access, m.space, m.order, m.vector)
        })
    };
    for (text, expected) in [
        ("ld.u8 %r1, [%rd1]", "Load generic weak  1x 1"),
        ("ld.volatile.global.v2.u64 {%rd1, %rd2}, [%rd3]", "Load global volatile sys 2x 16"),
        ("ld.acquire.sys.shared.b32 %r1, [%r2]", "Load shared acquire sys 1x 4"),
        ("ld.param.v8.f32 %f1, [p]", "Load param weak  8x 32"),
        (
            "st.release.cluster.shared::cluster.b16 [%r2], %h1",
            "Store shared::cluster release cluster 1x 2",
        ),
        ("atom.global.add.f64 %d1, [%rd1], %d2", "Atomic global relaxed gpu 1x 8"),
        ("atom.acq_rel.cta.cas.b128 %q1, [%rd1], %q2, %q3", "Atomic generic acq_rel cta 1x 16"),
        (
            "red.release.gpu.global.add.noftz.v4.bf16x2 [%rd1], {%r1}",
            "Reduce global release gpu 4x 16",
        ),
        (
            "cp.async.cg.shared.global.L2::128B [%r1], [%rd1], 16",
            "Copy { to: Shared } global weak  1x 16",
        ),
        (
            "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], %r2",
            "Copy { to: Global } shared weak  1x ?",
        ),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1}, [%r5]", "Load shared weak  1x 16"),
    ] {
        assert_eq!(told(text).as_deref(), Some(expected), "{text}");
    }
    let matrix = with("ld.global.v4.f32 %f1, [%rd1]", memory).expect("a load");
    assert_eq!(matrix.ty, Some(Type::F32));
    for text in
        ["add.u32 %r1, %r2, %r3", "cp.async.wait_all", "fence.sc.sys", "mbarrier.inval.b64 [%r1]"]
    {
        assert_eq!(told(text), None, "{text}");
    }
}

#[test]
fn what_fences_order() {
    let told = |text: &str| with(text, fence).map(|f| (f.order, f.scope, f.proxy));
    assert_eq!(told("membar.gl"), Some((Order::Sc, Scope::Gpu, false)));
    assert_eq!(told("membar.cta"), Some((Order::Sc, Scope::Cta, false)));
    assert_eq!(told("fence.sys"), Some((Order::AcqRel, Scope::Sys, false)));
    assert_eq!(told("fence.acquire.cluster"), Some((Order::Acquire, Scope::Cluster, false)));
    assert_eq!(told("fence.proxy.async").map(|f| f.2), Some(true));
    assert_eq!(told("bar.sync 0"), None);
}

#[test]
fn the_first_that_is_wrong_is_told_wherever_it_is() {
    let source = ".version 9.0\n.target sm_90\n.func f() {\n{ add.u32 %r1, %r1, 1;\n{ ad.u32 %r1, %r1, 1; } }\nsb.u32 %r1;\n}";
    let module = parse(source).unwrap();
    let error = check_module(&module).expect_err("`ad` is none");
    assert_eq!((error.at.line, error.at.column), (5, 3));
    assert!(Cfg::new(module.functions().next().unwrap()).is_ok(), "which the blocks do not mind");
}
