use super::*;

const HEAD: &str = ".version 7.8\n.target sm_90a, debug\n.address_size 64\n";

fn body(text: &str) -> String {
    format!("{HEAD}.visible .entry k(\n\t.param .u64 .ptr .align 1 p\n)\n{{\n{text}\n}}\n")
}

/// The only instruction of a body.
fn instruction(text: &str, check: impl FnOnce(&Instruction<'_>)) {
    let source = body(text);
    let module = parse(&source).unwrap();
    let kernel = module.entries().next().unwrap();
    let found = kernel.body.as_ref().unwrap().statements.iter().find_map(|s| match s {
        Statement::Instruction(i) => Some(i),
        _ => None,
    });
    check(found.unwrap());
}

#[test]
fn a_module_and_its_head() {
    let source = format!(
        "// x\n{HEAD}.file 1 \"a.rs\"\n.pragma \"nounroll\";\n.global .align 4 .u32 table[2] = {{1, 0x10}};\n\
         .extern .shared .align 16 .b8 buffer[];\n\
         .func (.param .b32 r) f(.param .b32 a, .param .b32 b)\n{{\n.loc 1 3 0\nret;\n}}\n\
         .entry e\n.maxntid 32, 1, 1\n.minnctapersm 2\n{{ ret; }}\n"
    );
    let module = parse(&source).unwrap();
    assert_eq!((module.version, module.address_size), ((7, 8), 64));
    assert_eq!(module.target.iter().map(|w| w.text).collect::<Vec<_>>(), ["sm_90a", "debug"]);
    assert_eq!(module.files().collect::<Vec<_>>(), [(1, "a.rs")]);
    assert_eq!(module.variables().count(), 2);
    let functions: Vec<_> = module.functions().collect();
    assert_eq!(functions.len(), 2);
    assert_eq!((functions[0].parameters.len(), functions[0].returns.len()), (2, 1));
    assert_eq!(functions[1].directives.len(), 2);
    assert_eq!(functions[1].directives[0].arguments.len(), 3);
    assert_eq!(functions[1].span.text(&source).lines().next(), Some(".entry e"));
}

#[test]
fn operands_of_every_form() {
    instruction("@!%p1 ld.volatile.global.v2.u64 {%rd1, _}, [%rd2+-16];", |i| {
        assert_eq!(i.name(), "ld.volatile.global.v2.u64");
        assert!(i.guard.is_some_and(|g| g.negated && g.register.text == "%p1"));
        assert!(
            matches!(&i.operands[0], Operand::Vector(v, _) if matches!(v[1], Operand::Sink(_)))
        );
        assert!(matches!(&i.operands[1], Operand::Address(a) if a.offset == -16));
    });
    instruction("setp.lt.and.s32 %p1|%p2, %r1, -0x10, !%p3;", |i| {
        assert!(matches!(i.operands[0], Operand::Pair(..)));
        assert!(matches!(i.operands[2], Operand::Integer(-16, _)));
        assert!(matches!(i.operands[3], Operand::Not(w) if w.text == "%p3"));
    });
    instruction("mov.u32 %r1, %tid.x;", |i| {
        assert!(matches!(i.operands[1], Operand::Name(w) if w.text == "%tid.x"));
    });
    instruction("add.f32 %f1, 0f3F800000, -1.5e1;", |i| {
        assert!(matches!(i.operands[1], Operand::Single(0x3f80_0000, _)));
        assert!(matches!(i.operands[2], Operand::Decimal(v, _) if v == -15.0));
    });
    instruction("mov.u64 %rd1, (1 << 4 | WARP_SZ) * 2 - (3 > 2 ? 1 : 0);", |i| {
        assert!(matches!(i.operands[1], Operand::Integer(95, _)));
    });
    instruction("call.uni (r0), f, (p0, 4);", |i| {
        assert!(matches!(&i.operands[2], Operand::List(l, _) if l.len() == 2));
    });
    instruction("mov.u64 %rd1, table+8;", |i| {
        assert!(matches!(i.operands[1], Operand::Sum(w, 8) if w.text == "table"));
    });
    instruction("ld.shared::cta.b32 %r1, [buffer];", |i| {
        assert!(i.has("shared::cta"));
    });
    instruction("tex.2d.v4.f32.s32 {%f1,%f2,%f3,%f4}, [t, {%r1,%r2}];", |i| {
        assert!(matches!(&i.operands[1], Operand::Address(a) if a.coordinates.len() == 1));
    });
    instruction("mov.u64 %rd1, 18446744073709551615;", |i| {
        assert!(matches!(i.operands[1], Operand::Integer(v, _) if v == u64::MAX.into()));
    });
}

#[test]
fn scopes_labels_and_declarations() {
    let source = body(
        "\t.reg .pred \t%p<3>;\n.shared .align 8 .b8 s[8][4];\n$L__BB0_1:\n\
         { .reg .b32 one; mov.b32 one, 0x3f803f80; }\nbra.uni $L__BB0_1;",
    );
    let module = parse(&source).unwrap();
    let block = module.entries().next().unwrap().body.as_ref().unwrap();
    let kinds: String = block
        .statements
        .iter()
        .map(|s| match s {
            Statement::Label(_) => 'l',
            Statement::Instruction(_) => 'i',
            Statement::Variable(_) => 'v',
            Statement::Directive(_) => 'd',
            Statement::Block(_) => 'b',
        })
        .collect();
    assert_eq!(kinds, "vvlbi");
    let Statement::Variable(shared) = &block.statements[1] else { panic!() };
    assert_eq!(shared.names[0].dimensions, [Some(8), Some(4)]);
}

#[test]
fn tokens_put_together_are_the_source() {
    let source = body("/* a\nb */ ld.param.u64 %rd1, [p]; // ü\n");
    let all = tokens(&source).unwrap();
    assert_eq!(all.iter().map(|t| t.word.text).collect::<String>(), source);
    for token in all {
        assert_eq!(token.word.span().text(&source), token.word.text);
    }
}

#[test]
fn errors_name_line_and_what() {
    for (text, at, what) in [
        ("add.u32 %r1, %r2", "line 9:1", "expected `;`, found `}`"),
        ("add.u32 %r1,, %r2;", "line 8:13", "expected an operand, found `,`"),
        ("ld.u32 %r1, [%r2;", "line 8:17", "expected `]`, found `;`"),
        ("mov.u32 %r1, 4/0;", "line 8:15", "division by zero"),
        ("#", "line 8:1", "nothing in PTX begins with '#'"),
        (".frob 1;", "line 8:1", "there is no directive `.frob` here"),
        ("%r1 %r2;", "line 8:1", "`%r1` is no instruction"),
        ("/* x", "line 8:1", "a comment that does not end"),
        (".reg .b32 %r<x>;", "line 8:14", "expected a number of registers"),
    ] {
        let error = parse(&body(text)).unwrap_err().to_string();
        assert!(error.starts_with(at) && error.contains(what), "{text}: {error}");
    }
    assert!(parse("").unwrap_err().what.contains(".version"));
    assert!(parse(".version 8.0\n.entry k {").unwrap_err().what.contains("expected `}`"));
    let deep = body(&"{".repeat(100_000));
    assert!(parse(&deep).unwrap_err().what.contains("too deeply"));
    let deep = body(&format!("mov.u32 %r1, {}1;", "(".repeat(100_000)));
    assert!(parse(&deep).unwrap_err().what.contains("too deeply"));
}
