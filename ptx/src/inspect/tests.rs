use super::*;
use crate::cfg::Cfg;
use crate::isa::{Class, Order, Scope, Space};
use crate::syntax::{Module, parse};

fn module(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.file 1 \"a.rs\"\n.file 2 \"b/c.rs\"\n\
         .visible .entry k(.param .u64 k_param_0)\n{{\n.reg .pred %p<9>;\n.reg .b32 %r<20>;\n.reg .b64 %rd<20>;\n\
         {body}\n}}\n"
    )
}

fn of<T>(source: &str, look: impl FnOnce(&Module<'_>, &Cfg<'_, '_>) -> T) -> T {
    let module = parse(source).unwrap_or_else(|e| panic!("{e}"));
    let kernel = module.entries().next().expect("one kernel");
    let cfg = Cfg::new(kernel).unwrap_or_else(|e| panic!("{e}"));
    look(&module, &cfg)
}

/// `loads/bytes` in flight in the block of a label-free body.
fn in_flight(body: &str, cyclic: bool) -> (u32, u32) {
    of(&module(body), |_, cfg| {
        let flight = flight(&cfg.code, cyclic);
        (flight.loads, flight.bytes)
    })
}

#[test]
fn loads_are_in_flight_until_a_result_is_named() {
    let one = "ld.global.u32 %r1, [%rd1];";
    let two = "ld.volatile.global.v2.u64 {%rd3, %rd4}, [%rd1+8];";
    assert_eq!(in_flight("ret;", false), (0, 0));
    assert_eq!(in_flight(&format!("{one} {two} ret;"), false), (2, 20));
    assert_eq!(in_flight(&format!("{one} add.u32 %r2, %r1, 1; {two}"), false), (1, 16));
    assert_eq!(in_flight(&format!("{one} add.u32 %r2, %r3, 1; {two}"), false), (2, 20));
    // An address, a guard and a second result end it, too; so does writing over one.
    assert_eq!(in_flight("ld.global.u64 %rd2, [%rd1]; ld.global.u8 %r1, [%rd2+4];", false), (1, 8));
    assert_eq!(in_flight(&format!("{two} st.global.u64 [%rd1], %rd4; {two}"), false), (1, 16));
    assert_eq!(in_flight(&format!("{one} mov.u32 %r1, 0; {one}"), false), (1, 4));
    // Other spaces are near.
    assert_eq!(
        in_flight("ld.shared.u32 %r1, [%r2]; ld.param.u64 %rd1, [k_param_0];", false),
        (0, 0)
    );
    assert_eq!(in_flight("ld.u32 %r1, [%rd2]; ld.global.nc.u32 %r2, [%rd2];", false), (2, 8));
    // A loop whose last load is used at its start has it in flight over the edge.
    let carried = "ld.global.u32 %r4, [%rd1]; add.u32 %r2, %r4, %r1; ld.global.u64 %rd3, [%rd1];";
    assert_eq!(in_flight(carried, false), (1, 8));
    assert_eq!(in_flight(carried, true), (2, 12));
}

#[test]
fn places() {
    let source = module(
        "ret;\n.loc 1 7 3\nret;\n.loc 2 9 0 //2\nret;\n.loc 1 8 2, function_name $L, inlined_at 2 40 4\nret;\n\
         .loc 7 1 1\nret;\n.loc 1 0 1\nret;\n.loc 1 5 5 // a remark 2:6\nret;\n\
         .loc 1 6 5 //3\nret;\n.loc 1 6 6 //4\nret;\n//1 2:6\n//2 1:5 1\n//3 1:4 3\n// 2 1:9",
    );
    of(&source, |module, cfg| {
        let lines = Lines::new(module);
        let told: Vec<String> = cfg
            .code
            .iter()
            .map(|code| match code.location.and_then(|loc| lines.place(loc)) {
                None => "-".to_owned(),
                Some(p) => {
                    let calls: Vec<String> =
                        p.calls.iter().map(|c| format!("{}:{}", c.file, c.line)).collect();
                    format!("{}:{}:{} {}", p.file, p.line, p.column, calls.join(" "))
                }
            })
            .collect();
        assert_eq!(
            told,
            [
                "-",
                "a.rs:7:3 ",
                "b/c.rs:9:0 a.rs:5 b/c.rs:6",
                "a.rs:8:2 b/c.rs:40",
                "-",
                "-",
                "a.rs:5:5 ",
                "a.rs:6:5 a.rs:4",
                "a.rs:6:6 ",
            ]
        );
    });
}

const LOOPS: &str = "\
.reg .f32 %f<2>;
ld.param.u64 %rd1, [k_param_0];
A:
.loc 1 10 1
ld.global.v2.u64 {%rd2, %rd3}, [%rd1];
W:
.loc 1 11 1 //1
ld.acquire.sys.global.u64 %rd4, [%rd1];
ld.global.u64 %rd5, [%rd1];
ld.global.u64 %rd6, [%rd1];
@%p1 bra W;
st.volatile.global.v2.u64 [%rd1], {%rd2, %rd3};
atom.acq_rel.gpu.shared.add.u32 %r1, [%r2], 1;
@%p2 bra A;
{ .reg .b32 t; mov.b32 t, %r1; }
S:
st.u32 [%rd1], %r1;
@%p3 bra S;
fence.acq_rel.gpu; membar.sys; fence.proxy.async; fence.acq_rel.gpu;
bar.sync 0; bar.sync 1; and.pred %p1, %p2, %p3;
ret;
//1 1:10";

#[test]
fn figures_of_a_function_and_its_loops() {
    of(&module(LOOPS), |module, cfg| {
        let kernel = module.entries().next().expect("one kernel");
        let stats = stats(kernel, cfg, &Lines::new(module));
        assert_eq!(
            (stats.name, stats.instructions, stats.blocks, stats.loops.len()),
            ("k", 20, 7, 3)
        );
        let registers: Vec<(&str, u64)> = stats.registers.iter().map(|(t, n)| (*t, *n)).collect();
        assert_eq!(registers, [("b32", 21), ("b64", 20), ("f32", 2), ("pred", 9)]);
        let count = |class| stats.mix.iter().find(|c| c.of == class).map_or(0, |c| c.count);
        assert_eq!((count(Class::Load), count(Class::Store), count(Class::Atomic)), (5, 2, 1));
        assert_eq!(
            (count(Class::Fence), count(Class::Predicate), count(Class::Texture)),
            (4, 1, 0)
        );
        assert_eq!(stats.mix.iter().map(|c| c.count).sum::<u32>(), stats.instructions);

        let has = |access, space, order, scope, bytes, n| {
            let found = stats.accesses.iter().find(|a| {
                (a.access, a.space, a.order, a.scope) == (access, space, order, scope)
                    && a.bytes == Some(bytes)
            });
            assert_eq!(
                found.map(|a| a.count),
                Some(n),
                "{access} {space} {order}: {:?}",
                stats.accesses
            );
        };
        has("load", Space::Global, Order::Weak, None, 8, 2);
        has("load", Space::Global, Order::Acquire, Some(Scope::Sys), 8, 1);
        has("store", Space::Global, Order::Volatile, Some(Scope::Sys), 16, 1);
        has("store", Space::Generic, Order::Weak, None, 4, 1);
        has("atomic", Space::Shared, Order::AcqRel, Some(Scope::Gpu), 4, 1);
        assert_eq!(stats.accesses.len(), 6, "parameters are no memory");
        let fences: Vec<(Order, Scope, bool, u32)> =
            stats.fences.iter().map(|f| (f.order, f.scope, f.proxy, f.count)).collect();
        assert_eq!(
            fences,
            [
                (Order::AcqRel, Scope::Gpu, false, 2),
                (Order::AcqRel, Scope::Sys, true, 1),
                (Order::Sc, Scope::Sys, false, 1)
            ]
        );
        assert_eq!(stats.barriers, [Count { of: "bar.sync".to_owned(), count: 2 }]);
        assert_eq!(stats.flight, Flight { loads: 3, bytes: 24 });

        let [outer, wait, fill] = &stats.loops[..] else { panic!("{:?}", stats.loops) };
        assert_eq!(
            (outer.label, outer.depth, outer.instructions, outer.innermost),
            (Some("A"), 1, 4, false)
        );
        assert_eq!(outer.global(), Bytes { loaded: 16, stored: 16 });
        assert_eq!(outer.bytes["shared"], Bytes { loaded: 4, stored: 4 });
        assert_eq!(outer.bytes_per_instruction, 8.0);
        assert_eq!((wait.label, wait.depth, wait.parent), (Some("W"), 2, Some(0)));
        assert_eq!(wait.global(), Bytes { loaded: 24, stored: 0 });
        // The loads follow each other round the loop.
        assert_eq!(wait.flight.loads, 3);
        let place = wait.place.as_ref().expect("has a line");
        assert_eq!((place.file, place.line, place.calls.len()), ("a.rs", 11, 1));
        assert_eq!(fill.global(), Bytes { loaded: 0, stored: 4 });
        assert_eq!(stats.hot, Some(0), "it moves data; the loop within only waits");
    });
}

#[test]
fn without_a_loop_that_loads_and_stores_the_busiest_innermost_is_hot() {
    let hot = |body: &str| {
        of(&module(body), |module, cfg| {
            let kernel = module.entries().next().expect("one kernel");
            let stats = stats(kernel, cfg, &Lines::new(module));
            stats.hot.and_then(|i| stats.loops[i].label.map(str::to_owned))
        })
    };
    let sum = "A: ld.global.u32 %r1, [%rd1]; @%p1 bra A; B: ld.global.v2.u32 {%r1, %r2}, [%rd1]; @%p1 bra B; ret;";
    assert_eq!(hot(sum).as_deref(), Some("B"));
    assert_eq!(hot("A: add.u32 %r1, %r1, 1; @%p1 bra A; ret;"), None);
    assert_eq!(hot("ld.global.u32 %r1, [%rd1]; ret;"), None);
}

/// Both bodies compared: lines with their marks, those of both left out.
fn changes(old: &str, new: &str) -> Vec<String> {
    let (old, new) = (module(old), module(new));
    let (old, new) = (parse(&old).unwrap(), parse(&new).unwrap());
    let listing =
        |module: &Module<'_>| module.entries().next().map(|f| f.span).expect("one kernel");
    assert!(listing(&old).end > 0);
    let a = old.entries().next().unwrap();
    let b = new.entries().next().unwrap();
    let a = Listing::new(a, &Cfg::new(a).unwrap(), old.source);
    let b = Listing::new(b, &Cfg::new(b).unwrap(), new.source);
    let all = differences(&a, &b);
    // Every line of either is there once, in order.
    let numbers =
        |of: fn(&Difference) -> Option<usize>| all.iter().filter_map(of).collect::<Vec<_>>();
    assert_eq!(numbers(|d| d.old), (1..=a.len()).collect::<Vec<_>>());
    assert_eq!(numbers(|d| d.new), (1..=b.len()).collect::<Vec<_>>());
    all.iter()
        .filter(|d| d.change != Change::Same)
        .map(|d| format!("{}{}", if d.change == Change::Added { "+" } else { "-" }, d.text.trim()))
        .collect()
}

#[test]
fn numbers_of_registers_and_labels_make_no_difference() {
    let old =
        "$L1: ld.global.u32 %r1, [%rd1]; add.u32 %r2, %r1, %r1; @%p1 bra $L1; bra $L2; $L2: ret;";
    let new =
        "$L7: ld.global.u32 %r9, [%rd3]; add.u32  %r3,%r9, %r9; @%p4 bra $L7; bra $L0; $L0: ret;";
    assert_eq!(changes(old, new), [""; 0]);
    assert_eq!(changes(old, old), [""; 0]);
    // But which register it is does.
    let other =
        "$L7: ld.global.u32 %r9, [%rd3]; add.u32  %r3,%r9, %r8; @%p4 bra $L7; bra $L0; $L0: ret;";
    assert_eq!(changes(old, other), ["-add.u32 %r2, %r1, %r1;", "+add.u32 %r3', %r1, %r8';"]);
    let label =
        "$L7: ld.global.u32 %r9, [%rd3]; add.u32  %r3,%r9, %r9; @%p4 bra $L0; bra $L0; $L0: ret;";
    assert_eq!(changes(old, label), ["-@%p1 bra $L1;", "+@%p4' bra $L0';"]);
}

#[test]
fn an_instruction_more_moves_no_others() {
    let old = "ld.global.u32 %r1, [%rd1]; add.u32 %r2, %r1, 1; st.global.u32 [%rd1], %r2; ret;";
    let new = "ld.global.u32 %r1, [%rd1]; mul.lo.u32 %r2, %r1, 5; add.u32 %r3, %r1, 1; st.global.u32 [%rd1], %r3; ret;";
    assert_eq!(changes(old, new), ["+mul.lo.u32 %r2', %r1, 5;"]);
    assert_eq!(changes(new, old), ["-mul.lo.u32 %r2, %r1, 5;"]);
    // What is written anew is another value from there on.
    let again = "ld.global.u32 %r1, [%rd1]; add.u32 %r1, %r1, 1; st.global.u32 [%rd1], %r1; ret;";
    assert_eq!(changes(old, again), [""; 0]);
}

#[test]
fn pieces_are_told_apart() {
    let source = "// a remark\n.loc 1 2 3\n$L1: @!%p1 ld.volatile.global.v2.u64 {%rd1, %rd2}, [k+8];\n{ .reg .b32 t; mov.b32 t, %tid.x; }\nbar.sync 0x1; x: bra x;";
    let pieces = styled(source).unwrap();
    assert_eq!(pieces.iter().map(|(_, w)| w.text).collect::<String>(), source);
    let of = |text: &str| {
        let found: Vec<Style> =
            pieces.iter().filter(|(_, w)| w.text == text).map(|(s, _)| *s).collect();
        found
    };
    assert_eq!(of("// a remark"), [Style::Comment]);
    assert_eq!(of(".loc"), [Style::Directive]);
    assert_eq!(of("$L1"), [Style::Name]);
    assert_eq!(of("%p1"), [Style::Register]);
    assert_eq!(of("ld"), [Style::Memory]);
    assert_eq!(of(".volatile"), [Style::Order]);
    assert_eq!(of(".v2"), [Style::Modifier]);
    assert_eq!(of("k"), [Style::Name]);
    assert_eq!(of(".reg"), [Style::Directive]);
    assert_eq!(of("t"), [Style::Name, Style::Name]);
    assert_eq!(of("mov"), [Style::Opcode]);
    assert_eq!(of("%tid"), [Style::Special]);
    assert_eq!(of("bar"), [Style::Sync]);
    assert_eq!(of("0x1"), [Style::Number]);
    assert_eq!(of("x"), [Style::Name, Style::Name]);
    assert_eq!(of("bra"), [Style::Control]);
}
