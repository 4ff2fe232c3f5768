//! What is checked in the text of a kernel, whatever family it is of.

use std::collections::HashMap;

use ferroccl::device::abi::{Algorithm, ProtocolId};
use ferroccl::device::kernels;
use ferroccl::ptx::Module;
use ferroccl_ptx::cfg::Cfg;
use ferroccl_ptx::{isa, syntax};
use libtest_mimic::{Failed, Trial};

/// What a kernel is, as far as its text depends on it.
#[derive(Clone, Copy, Debug)]
struct Kind {
    /// `None` where a kernel does it in any.
    protocol: Option<ProtocolId>,
    /// Edges that a verb receives from, at most: what is done for each has so many copies.
    edges: usize,
    /// Barriers at least.
    barriers: usize,
}

impl Kind {
    fn of(kernel: &str) -> Option<Self> {
        let row = kernels::rows().find(|row| row.kernel.name == kernel)?;
        let edges = if row.algorithm == Algorithm::Tree { 3 } else { 1 };
        // Over the mesh: one before each step but the first, and one at the end. Else one when the edges are opened, one when
        // they are closed, and one a verb at least.
        let mesh = row.algorithm.is_over_mesh();
        Some(Kind { protocol: row.protocol, edges, barriers: if mesh { 2 } else { 3 } })
    }

    /// Protocols that the kernel's source stands in it for.
    fn protocols(self) -> usize {
        self.protocol.map_or(ProtocolId::ALL.len(), |_| 1)
    }
}

/// What makes lanes meet, and how often it may stand in a kernel for one place in the source (a line, and the
/// calls that led there): a compiler that copies it into branches makes lanes wait for others that come by the
/// other branch.
struct Meeting {
    what: &'static str,
    prefixes: &'static [&'static str],
    times: fn(Kind) -> usize,
}

const MEETINGS: &[Meeting] = &[
    Meeting { what: "barrier of a warp", prefixes: &["bar.warp."], times: Kind::protocols },
    Meeting {
        what: "barrier",
        prefixes: &["bar.sync", "bar.red", "barrier."],
        times: Kind::protocols,
    },
    Meeting { what: "vote", prefixes: &["vote."], times: |kind| kind.edges },
];

/// Checks all kernels of a module.
pub(crate) fn check(module: &'static Module) -> Result<(), String> {
    let target = format!("\n.target sm_{}\n", module.arch());
    if !module.text().contains(&target) {
        return Err(format!("is not for sm_{}", module.arch()));
    }
    if module.entries().count() == 0 {
        return Err("has no kernels".into());
    }
    for (name, text) in module.entries() {
        let kind = Kind::of(name).ok_or_else(|| format!("{name} is not in the table"))?;
        check_kernel(kind, text).map_err(|e| format!("{name}: {e}"))?;
    }
    Ok(())
}

/// The module's tree is all of its text, its instructions are PTX's, and the ways through its kernels are
/// known; a kernel that is cut out of the text is the one that the tree has.
pub(crate) fn check_tree(module: &'static Module) -> Result<(), String> {
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

fn check_kernel(kind: Kind, text: &str) -> Result<(), String> {
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
    for meeting in MEETINGS {
        for (place, times) in places(text, meeting.prefixes) {
            let most = (meeting.times)(kind);
            if times > most {
                return Err(format!("has {times} of one {}, not {most}: {place}", meeting.what));
            }
        }
    }
    let barriers = all("bar.sync") + all("bar.red");
    if barriers < kind.barriers {
        return Err(format!("has {barriers} barriers, fewer than {}", kind.barriers));
    }
    let lines = all("st.volatile.");
    let wide_lines = all("st.volatile.global.v2.u64") + all("st.volatile.global.v4.u32");
    if lines != wide_lines {
        return Err(format!(
            "{} of {lines} stores of lines are narrower than 16 bytes",
            lines - wide_lines
        ));
    }
    let votes = all("vote.");
    let is = |protocol| kind.protocol.is_none_or(|p| p == protocol);
    let together = is(ProtocolId::Ll128);
    if together != (votes > 0) || together != (all("bar.warp.") > 0) {
        return Err(format!("has {votes} votes and {} barriers of a warp", all("bar.warp.")));
    }
    let wide_loads = all("ld.volatile.global.v2.u64")
        + all("ld.volatile.global.v4.u32")
        + all("multimem.ld_reduce.relaxed.sys.global.add.v4.f32")
        + all("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.");
    let wide_stores =
        all("st.global.v2.u64") + all("st.global.v4.u32") + all("multimem.st.global.v4.f32");
    for (what, found, wanted) in [
        ("stores of lines", lines, kind.protocol != Some(ProtocolId::Simple)),
        ("loads of 16 bytes", wide_loads, true),
        ("stores of 16 bytes", wide_stores, kind.protocol != Some(ProtocolId::Ll)),
    ] {
        if wanted && found == 0 {
            return Err(format!("has no {what}"));
        }
    }
    Ok(())
}

/// The places in the source that instructions of these kinds are from, and how many are from each.
fn places<'t>(text: &'t str, prefixes: &[&str]) -> HashMap<&'t str, usize> {
    let mut places = HashMap::new();
    let mut place = "";
    for line in text.lines() {
        let code = instruction(line);
        if let Some(loc) = code.strip_prefix(".loc") {
            place = loc.trim();
        } else if prefixes.iter().any(|prefix| code.starts_with(prefix)) {
            *places.entry(place).or_insert(0) += 1;
        }
    }
    places
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
    let changes: [(&str, Change); 10] = [
        ("calls a function", |t| t.replacen("ret;", "call.uni f, ();\n\tret;", 1)),
        ("local memory", |t| t.replacen("{\n", "{\n\t.local .align 8 .b8 __local_depot0[8];\n", 1)),
        ("2 of one barrier, not 1: 1 9 0 // 2:12", |t| {
            t.replacen("bar.sync 0;", "bar.sync 0;\n\t@%p1 bar.sync 0;", 1)
        }),
        ("2 barriers, fewer than 3", |t| t.replacen("bar.sync 0;", "", 1)),
        ("2 of one barrier of a warp", |t| {
            t.replacen("bar.warp.sync -1;", "bar.warp.sync -1;\n\tbar.warp.sync -1;", 1)
        }),
        ("1 votes and 0 barriers of a warp", |t| t.replace("bar.warp.sync -1;", "")),
        ("4 of one vote, not 3: 1 33 4", |t| {
            t.replacen("vote.", &("vote.sync.all.pred %p1, %p1, -1;\n\t".repeat(3) + "vote."), 1)
        }),
        ("2 of 3 stores of lines are narrower", |t| {
            t.replacen("st.volatile", "st.volatile.global.u64 [%rd1], %rd2;\n\tst.volatile.global.u64 [%rd1+8], %rd3;\n\tst.volatile", 1)
        }),
        ("no loads of 16 bytes", |t| {
            t.replace("ld.volatile.global.v2.u64", "ld.volatile.global.u64")
        }),
        ("no stores of 16 bytes", |t| t.replace("st.global.v2.u64", "st.global.v2.u32")),
    ];
    let kind = Kind { protocol: Some(ProtocolId::Ll128), edges: 3, barriers: 3 };
    let tried = changes.into_iter().map(move |(expected, change)| {
        Trial::test(format!("a kernel is refused: {expected}"), move || {
            let good = sample();
            check_kernel(kind, &good).map_err(|e| Failed::from(format!("the sample: {e}")))?;
            match check_kernel(kind, &change(&good)) {
                Err(e) if e.contains(expected) => Ok(()),
                other => Err(format!("{other:?}").into()),
            }
        })
    });
    tried.collect()
}

/// As much of an LL128 kernel as is looked at.
fn sample() -> String {
    let mut text = String::from("k(.param .u64 p)\n.maxntid 512\n{\n");
    for line in [
        ".loc 1 9 0 // 2:12",
        "bar.sync 0;",
        ".loc 1 9 0 // 2:14",
        "bar.sync 0;",
        ".loc 1 8 0 // 2:16",
        "bar.red.or.pred %p1, 0, %p2;",
        "bar.warp.sync -1;",
        ".loc 1 33 4",
        "vote.sync.all.pred %p1, %p2, -1;",
        "st.volatile.global.v2.u64 [%rd1], {%rd2, %rd3};",
        "ld.volatile.global.v2.u64 {%rd2, %rd3}, [%rd1];",
        "st.global.v2.u64 [%rd1], {%rd2, %rd3};",
    ] {
        text += &format!("\t{line}\n");
    }
    text + "\tret;\n}"
}
