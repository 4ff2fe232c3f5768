//! What is checked in the text of a kernel.

use ferroccl::ptx::Module;
use ferroccl_ptx::cfg::Cfg;
use ferroccl_ptx::{isa, syntax};
use libtest_mimic::{Failed, Trial};

/// What a kernel has by its protocol, however many types and operators there are.
struct Expected {
    protocol: &'static str,
    /// Barriers: one when the call is opened and one when it is closed; in Simple two a verb, in the others
    /// one a verb that sends or receives and one more a verb that receives. Five verbs, four that receive.
    /// A barrier that the compiler copied into two branches would be one more.
    barriers: usize,
    /// Barriers of a warp: one a verb that sends lines, before it does.
    warp_barriers: usize,
    /// Votes: three looks at the flags and one at the reason to give up, a verb that receives.
    votes: usize,
    /// Stores of lines, all of 16 bytes, at least: one a line and verb that sends.
    line_stores: usize,
    /// Loads of 16 bytes, at least.
    wide_loads: usize,
    /// Plain stores of 16 bytes, at least.
    wide_stores: usize,
}

const EXPECTED: &[Expected] = &[
    // Sources and destinations of the five verbs and of a rank alone, each pack by pack.
    Expected {
        protocol: "simple",
        barriers: 12,
        warp_barriers: 0,
        votes: 0,
        line_stores: 0,
        wide_loads: 20,
        wide_stores: 20,
    },
    // Three looks at a line a verb that receives.
    Expected {
        protocol: "ll",
        barriers: 11,
        warp_barriers: 0,
        votes: 0,
        line_stores: 4,
        wide_loads: 12,
        wide_stores: 0,
    },
    // The same at two lines, and once more when they are there; input in units of 16 bytes, of three verbs, and output, of three.
    Expected {
        protocol: "ll128",
        barriers: 11,
        warp_barriers: 4,
        votes: 16,
        line_stores: 8,
        wide_loads: 35,
        wide_stores: 3,
    },
];

/// Checks all kernels of a module.
pub(crate) fn check(module: &Module) -> Result<(), String> {
    let target = format!("\n.target sm_{}\n", module.arch());
    if !module.text().contains(&target) {
        return Err(format!("is not for sm_{}", module.arch()));
    }
    if module.entries().count() == 0 {
        return Err("has no kernels".into());
    }
    for (name, text) in module.entries() {
        check_kernel(name, text).map_err(|e| format!("{name}: {e}"))?;
    }
    Ok(())
}

/// The module's tree is all of its text, its instructions are PTX's, and the ways through its kernels are
/// known; a kernel that is cut out of the text is the one that the tree has.
pub(crate) fn check_tree(module: &Module) -> Result<(), String> {
    let tokens = syntax::tokens(module.text()).map_err(|e| e.to_string())?;
    if tokens.iter().map(|t| t.word.text).collect::<String>() != module.text() {
        return Err("tokens leave something out".into());
    }
    let tree = syntax::parse(module.text()).map_err(|e| e.to_string())?;
    isa::check_module(&tree).map_err(|e| e.to_string())?;
    let names = tree.entries().map(|f| f.name.text);
    if !names.eq(module.entries().map(|(name, _)| name)) {
        return Err("other kernels than the text".into());
    }
    for (function, (name, text)) in tree.entries().zip(module.entries()) {
        let cut = function.span.text(module.text());
        if cut.strip_prefix(".visible .entry ") != Some(text) {
            return Err(format!("{name} is cut otherwise"));
        }
        let cfg = Cfg::new(function).map_err(|e| e.at(module.text()).to_string())?;
        if !cfg.irreducible().is_empty() || cfg.loops().is_empty() {
            return Err(format!("{name}: loops that are none"));
        }
        // LLVM ends a kernel after each trap.
        let only_exit =
            |id: &_| matches!(cfg.code_of(*id), [c] if c.instruction.opcode.text == "exit");
        if let Some(lost) = cfg.ids().find(|id| !cfg.is_reachable(*id) && !only_exit(id)) {
            return Err(format!("{name}: nothing leads to {lost:?}"));
        }
    }
    Ok(())
}

fn check_kernel(name: &str, text: &str) -> Result<(), String> {
    let protocol = name.split('_').nth(3).unwrap_or_default();
    let expected = EXPECTED.iter().find(|e| e.protocol == protocol).ok_or("of which protocol?")?;
    let instructions: Vec<&str> = text.lines().map(instruction).filter(|i| !i.is_empty()).collect();
    let all = |prefix: &str| instructions.iter().filter(|i| i.starts_with(prefix)).count();

    for (unwanted, why) in [
        ("call", "calls a function"),
        (".local", "has local memory"),
        ("ld.local", "loads from local memory"),
        ("st.local", "stores to local memory"),
        ("brx", "jumps through a table"),
    ] {
        if all(unwanted) > 0 {
            return Err(why.into());
        }
    }
    if all(".maxntid ") != 1 {
        return Err("does not say how many lanes a block has".into());
    }
    let warp_barriers = all("bar.warp.");
    if warp_barriers != expected.warp_barriers {
        return Err(format!(
            "has {warp_barriers} barriers of a warp, not {}",
            expected.warp_barriers
        ));
    }
    let barriers = all("bar.") + all("barrier.") - warp_barriers;
    if barriers != expected.barriers {
        return Err(format!("has {barriers} barriers, not {}", expected.barriers));
    }
    let votes = all("vote.");
    if votes != expected.votes {
        return Err(format!("has {votes} votes, not {}", expected.votes));
    }
    let lines = all("st.volatile.");
    let wide_lines = all("st.volatile.global.v2.u64") + all("st.volatile.global.v4.u32");
    if lines != wide_lines {
        return Err(format!(
            "{} of {lines} stores of lines are narrower than 16 bytes",
            lines - wide_lines
        ));
    }
    for (what, found, least) in [
        ("stores of lines", lines, expected.line_stores),
        ("loads of 16 bytes", all("ld.volatile.global.v2.u64"), expected.wide_loads),
        ("stores of 16 bytes", all("st.global.v2.u64"), expected.wide_stores),
    ] {
        if found < least {
            return Err(format!("has {found} {what}, fewer than {least}"));
        }
    }
    Ok(())
}

/// A line without white space, predicate and comment.
fn instruction(line: &str) -> &str {
    let line = line.trim();
    if line.starts_with("//") {
        return "";
    }
    match line.strip_prefix('@') {
        Some(guarded) => guarded.split_once(' ').map_or("", |(_, rest)| rest.trim_start()),
        None => line,
    }
}

/// The checks find what they are for: each of these changes to a good kernel is told from the kernel.
pub(crate) fn self_tests() -> Vec<Trial> {
    type Change = fn(&str) -> String;
    let changes: [(&str, Change); 7] = [
        ("calls a function", |t| t.replacen("ret;", "call.uni f, ();\n\tret;", 1)),
        ("local memory", |t| t.replacen("{\n", "{\n\t.local .align 8 .b8 __local_depot0[8];\n", 1)),
        ("12 barriers, not 11", |t| {
            t.replacen("bar.sync 0;", "bar.sync 0;\n\t@%p1 bar.sync 0;", 1)
        }),
        ("3 barriers of a warp, not 4", |t| t.replacen("bar.warp.sync -1;", "", 1)),
        ("17 votes, not 16", |t| {
            t.replacen("vote.", "vote.sync.all.pred %p1, %p1, -1;\n\tvote.", 1)
        }),
        ("2 of 10 stores of lines are narrower", |t| {
            t.replacen("st.volatile", "st.volatile.global.u64 [%rd1], %rd2;\n\tst.volatile.global.u64 [%rd1+8], %rd3;\n\tst.volatile", 1)
        }),
        ("0 loads of 16 bytes", |t| {
            t.replace("ld.volatile.global.v2.u64", "ld.volatile.global.v4.u32")
        }),
    ];
    changes
        .into_iter()
        .map(|(expected, change)| {
            Trial::test(format!("a kernel is refused: {expected}"), move || {
                let good = sample();
                check_kernel("all_reduce_ring_ll128_sum_float", &good)
                    .map_err(|e| Failed::from(format!("the sample: {e}")))?;
                match check_kernel("all_reduce_ring_ll128_sum_float", &change(&good)) {
                    Err(e) if e.contains(expected) => Ok(()),
                    other => Err(format!("{other:?}").into()),
                }
            })
        })
        .collect()
}

/// As much of an LL128 kernel as is looked at.
fn sample() -> String {
    let mut text = String::from("k(.param .u64 p)\n.maxntid 512\n{\n");
    for (times, line) in [
        (11, "bar.sync 0;"),
        (4, "bar.warp.sync -1;"),
        (16, "vote.sync.all.pred %p1, %p2, -1;"),
        (8, "st.volatile.global.v2.u64 [%rd1], {%rd2, %rd3};"),
        (35, "ld.volatile.global.v2.u64 {%rd2, %rd3}, [%rd1];"),
        (3, "st.global.v2.u64 [%rd1], {%rd2, %rd3};"),
    ] {
        text += &format!("\t{line}\n").repeat(times);
    }
    text + "\tret;\n}"
}
