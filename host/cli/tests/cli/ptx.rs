//! `ferroccl ptx`: on files, which need no device compiler, and on the kernels, where there are any.

use std::path::Path;
use std::process::{Command, Output};

use ferroccl::device::abi::{Algorithm, DataType};
use ferroccl::device::kernels::{self, Row};
use serde_json::Value;

use super::skip::skip;
use super::support::{ROOT, ferroccl, text};

/// As seen from where the command runs.
fn fixture(name: &str) -> String {
    format!("ptx/tests/fixtures/{name}.ptx")
}

/// `ferroccl ptx ARGUMENTS`, with no assembler and no colours.
fn ptx(arguments: &[&str]) -> Command {
    let mut command = ferroccl(["ptx"]);
    command.args(arguments).current_dir(ROOT);
    command.env("FERROCCL_PTXAS", "").env_remove("NO_COLOR");
    command
}

/// What it prints; it must succeed.
fn printed(arguments: &[&str]) -> String {
    let out = ptx(arguments).output().unwrap();
    assert!(out.status.success(), "{arguments:?}: {}", text(&out.stderr));
    text(&out.stdout)
}

/// Whether this build has kernels to look at.
fn has_kernels() -> bool {
    match ferroccl::ptx::unavailable() {
        Some(why) => {
            skip(&format!("no PTX: {why}"));
            false
        }
        None => true,
    }
}

/// The assembler that set-up installs, or none.
fn ptxas() -> Option<String> {
    let path = Path::new(ROOT).join(".toolchain/cuda/bin/ptxas");
    if !path.is_file() {
        skip("no ptxas: scripts/setup installs it");
        return None;
    }
    Some(path.to_str()?.to_owned())
}

#[test]
fn every_kernel_is_listed_and_filters_leave_some() {
    if !has_kernels() {
        return;
    }
    let all: Value = serde_json::from_str(&printed(&["list", "--json", "--arch", "80"])).unwrap();
    let all = all.as_array().unwrap();
    // What is compiled for later GPUs only, with `multimem`, is not among them.
    let rows = kernels::rows().filter(|row| row.algorithm != Algorithm::Nvls);
    let has_type = |row: &&Row| row.reduction.is_none_or(|(_, t)| ferroccl::ptx::has_type(t));
    assert_eq!(all.len(), rows.filter(has_type).count());
    for row in all {
        let name = row["name"].as_str().unwrap();
        let known = kernels::rows().find(|row| row.kernel.name == name).expect("in the table");
        assert_eq!(row["collective"], known.collective.name());
        assert_eq!(row["algorithm"], known.algorithm.name());
        assert_eq!(row["protocol"].as_str(), known.protocol.map(|p| p.name()));
        let (ops, data_type) = known.reduction.unzip();
        let ops: Vec<_> = ops.unwrap_or_default().iter().map(|op| op.name()).collect();
        assert_eq!(row["ops"], Value::from(ops));
        assert_eq!(row["type"].as_str(), data_type.map(|t| t.name()));
        assert!(row["instructions"].as_u64().unwrap() > 100, "{row}");
        assert!(row["bytes"].as_u64() > row["instructions"].as_u64(), "{row}");
        assert!(row["registers"]["b64"].as_u64().unwrap() > 10, "{row}");
    }
    let ring = ["list", "--collective", "all_reduce", "--algorithm", "ring"];
    let some = [&ring[..], &["--protocol", "LL128", "--type", "float", "--op", "sum"]].concat();
    let some = printed(&some);
    assert_eq!(some.lines().count(), 3, "{some}");
    assert!(some.lines().nth(1).unwrap().starts_with("all_reduce_ring_ll128_sum_float "), "{some}");
    // A kernel that looks at the operator has several, and is found by each.
    let some = [&ring[..], &["--protocol", "LL", "--type", "float", "--op", "prod"]].concat();
    let some = printed(&some);
    let row = some.lines().nth(1).unwrap();
    assert!(row.starts_with("all_reduce_ring_ll_any_float "), "{some}");
    assert!(row.contains(" prod,min,max,mulsum ") && some.ends_with("\n1 kernels\n"), "{some}");
    // What is written otherwise for sm_90.
    let native = [DataType::Bf16, DataType::F8E4M3, DataType::F8E5M2];
    let native = native.into_iter().filter(|t| ferroccl::ptx::has_type(*t)).count();
    if native > 0 {
        let some = printed(&["list", "all_reduce_ring_ll_any", "--arch", "sm_90"]);
        assert!(some.ends_with(&format!("\n{native} kernels\n")), "{some}");
        let has = ferroccl::ptx::has_type(DataType::Bf16);
        assert_eq!(some.contains("all_reduce_ring_ll_any_bfloat16"), has, "{some}");
    }
    let some = printed(&["list", "--collective", "all_gather", "--algorithm", "ring"]);
    assert!(some.ends_with("\n3 kernels\n"), "{some}");
    let out = ptx(&["list", "--algorithm", "collnetdirect"]).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("no kernel is of that kind"), "{}", text(&out.stderr));
}

#[test]
fn a_kernel_is_shown_with_its_source() {
    if !has_kernels() {
        return;
    }
    let shown = printed(&["show", "all_reduce_ring_simple_sum_float"]);
    assert!(shown.starts_with(".visible .entry all_reduce_ring_simple_sum_float("), "{shown:.200}");
    // A line of the source as it is, with the calls that led to it.
    let line = "//   device/src/collectives/all_reduce.rs:";
    let remark = shown.lines().find(|l| l.starts_with(line)).expect("a line of the collective");
    let (place, rest) = remark[5..].split_once("   ").unwrap();
    let (file, number) = place.rsplit_once(':').unwrap();
    let source = std::fs::read_to_string(Path::new(ROOT).join(file)).unwrap();
    let source = source.lines().nth(number.parse::<usize>().unwrap() - 1).unwrap().trim();
    assert!(rest.starts_with(source), "{remark}");
    assert!(rest.contains("   [") && rest.contains("entries.rs:"), "{remark}");
    assert!(!shown.contains("\t.loc"), "told in remarks");
    assert!(shown.lines().any(|l| l.starts_with("// B1, after B0")));
    assert!(!printed(&["show", "all_reduce_ring_simple_sum_float", "--no-source"]).contains(line));
}

#[test]
fn kernels_of_a_file() {
    let order = fixture("order.sm_90");
    insta::assert_snapshot!("list", printed(&["list", "--file", &order]));
    insta::assert_snapshot!("show", printed(&["show", "spin", "--file", &order]));
    insta::assert_snapshot!(
        "show_block",
        printed(&["show", "acquire", "--file", &order, "--block", "$L__BB2_2", "-n"])
    );
    insta::assert_snapshot!(
        "stats",
        printed(&["stats", "nested", "--file", &fixture("control.sm_80")])
    );
    insta::assert_snapshot!(
        "diff",
        printed(&["diff", "spin_lock", "flag", "--file", &order, "-U", "1"])
    );
}

#[test]
fn stats_as_json_and_of_functions() {
    let memory = fixture("reduce.sm_80");
    let told = printed(&["stats", "block_sum", "--file", &memory, "--json"]);
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["name"], "block_sum");
    assert_eq!(told["assembled"], Value::Null);
    let hot = &told["loops"][told["hot"].as_u64().unwrap() as usize];
    assert_eq!(hot["bytes"]["global"]["loaded"], 4, "{hot}");
    assert_eq!(hot["place"]["file"], "ptx/tests/fixtures/reduce.cu");
    let shuffles = told["mix"].as_array().unwrap().iter().find(|m| m["of"] == "warp-synchronous");
    assert_eq!(shuffles.unwrap()["count"], 10);
    let function = printed(&["stats", "_Z9fibonaccii", "--file", &fixture("call.sm_80")]);
    assert!(function.contains("control"), "{function}");
}

#[test]
fn colours_are_for_who_sees_them() {
    let order = fixture("order.sm_90");
    let base = ["show", "spin", "--file", &order];
    let always = [&base[..], &["--color", "always"]].concat();
    let plain = printed(&base);
    assert!(!plain.contains('\x1b'), "a pipe is no terminal");
    let coloured = printed(&always);
    assert!(coloured.contains("\x1b["));
    let mut bare = String::new();
    let mut rest = coloured.as_str();
    while let Some((before, after)) = rest.split_once('\x1b') {
        bare.push_str(before);
        rest = after.split_once('m').unwrap().1;
    }
    assert_eq!(bare + rest, plain, "colours change nothing else");
    let out = ptx(&always).env("NO_COLOR", "1").output().unwrap();
    assert_eq!(text(&out.stdout), coloured, "who asks for them gets them");
}

#[test]
fn with_the_assembler_there_are_registers_and_machine_code() {
    let Some(ptxas) = ptxas() else { return };
    let of = |arguments: &[&str]| -> Output {
        ptx(arguments).env("FERROCCL_PTXAS", &ptxas).output().unwrap()
    };
    let file = fixture("vector.sm_80");
    for (arch, load) in [("sm_80", "LDG.E.128"), ("sm_90", "LDG.E.128")] {
        let out = of(&["stats", "axpy4", "--file", &file, "--arch", arch]);
        let told = text(&out.stdout);
        assert!(told.contains(&format!("ptxas for {arch}: ")), "{told}{}", text(&out.stderr));
        assert!(told.contains("no spills, no stack"), "{told}");
        let (_, sass) = told.split_once("the hot loop's ").expect("machine code");
        assert!(sass.contains(load) && sass.contains("STG.E.128"), "{sass}");
        assert!(sass.trim_end().lines().next_back().unwrap().contains("BRA"), "{sass}");
    }
    let out = of(&["stats", "axpy4", "--file", &file, "--json"]);
    let told: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(told["assembled"]["arch"], "sm_80");
    assert!(told["assembled"]["registers"].as_u64().unwrap() >= 16, "{told}");
    assert!(told["assembled"]["code_bytes"].as_u64().unwrap() > 200, "{told}");

    let directory = tempfile::tempdir().unwrap();
    let wrong = directory.path().join("wrong.ptx");
    let source = std::fs::read_to_string(Path::new(ROOT).join(&file)).unwrap();
    std::fs::write(&wrong, source.replace("ld.global.v4.f32", "ld.global.v4.f64")).unwrap();
    let out = of(&["stats", "axpy4", "--file", wrong.to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).starts_with("ferroccl ptx stats: ptxas: "), "{}", text(&out.stderr));
}

#[test]
fn a_kernel_by_protocol_and_by_type_is_compared() {
    if !has_kernels() {
        return;
    }
    let changed = |a: &str, b: &str| {
        let told = printed(&["diff", a, b, "--json", "--arch", "sm_90"]);
        let told: Value = serde_json::from_str(&told).unwrap();
        let lines = told["differences"].as_array().unwrap();
        lines.iter().map(|l| l["text"].as_str().unwrap().trim().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(changed("all_reduce_ring_ll_sum_float", "all_reduce_ring_ll_sum_float"), [""; 0]);
    // In the nightly tier.
    if !ferroccl::ptx::has_type(DataType::F16) {
        return;
    }
    // Sums of two types of 16 bits differ in how they add, and in which registers halves of a word are moved to.
    let lines = changed("all_reduce_ring_ll_sum_half", "all_reduce_ring_ll_sum_bfloat16");
    assert!(!lines.is_empty());
    for line in lines {
        let differs = ["add.rn.f16x2", "add.rn.bf16x2", "mov.b64"];
        assert!(differs.iter().any(|known| line.starts_with(known)), "{line}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let broken = directory.path().join("broken.ptx");
    std::fs::write(&broken, ".version 8.0\n.target sm_80\n.entry k() { add.u32 %r1, ; }").unwrap();
    let astray = directory.path().join("astray.ptx");
    std::fs::write(&astray, ".version 8.0\n.target sm_80\n.entry k() {\n  bra OUT;\n}").unwrap();
    let path = |p: &Path| p.to_str().unwrap().to_owned();
    let (broken, astray) = (path(&broken), path(&astray));
    let order = fixture("order.sm_90");
    for (arguments, status, error) in [
        (vec!["show", "k", "--file", "/nonesuch.ptx"], 1, "/nonesuch.ptx: No such file"),
        (vec!["show", "--file", &broken], 1, "broken.ptx: line 3:27: expected an operand"),
        (vec!["stats", "--file", &astray], 1, "astray.ptx: line 4:7: there is no label `OUT`"),
        (vec!["show", "--file", &order], 1, "which kernel? There are\n  spin_lock\n  flag"),
        (vec!["show", "a", "--file", &order], 1, "`a` is a part of several names:\n  flag"),
        (vec!["show", "spin_lok", "--file", &order], 1, "there is no kernel `spin_lok` in"),
        (vec!["show", "spin_lok", "--file", &order], 1, "did you mean `spin_lock`?"),
        (vec!["show", "spin", "--file", &order, "--block", "B7"], 1, "blocks are B0 to B"),
        (vec!["stats", "spin", "--file", &order, "--arch", "hopper"], 2, "sm_80, sm_90"),
        (vec!["list", "--file", &order, "--op", "sum"], 2, "cannot be used with"),
        (vec!["list", "--type", "quad"], 2, "quad"),
        (vec!["show", "spin", "--file", &order, "--color", "blue"], 2, "blue"),
    ] {
        let out = ptx(&arguments).output().unwrap();
        let told = text(&out.stderr);
        assert_eq!(out.status.code(), Some(status), "{arguments:?}: {told}");
        assert!(told.contains(error), "{arguments:?}: {told}");
    }
}

#[test]
fn blocks_are_drawn() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let file = fixture("control.sm_80");
    let base = ["cfg", "nested", "--file", &file, "-o"];
    let (svg, html) = (path("k.svg"), path("k.html"));
    assert_eq!(printed(&[&base[..], &[svg.as_str()]].concat()), "");
    printed(&[&base[..], &[html.as_str()]].concat());
    let drawn = std::fs::read_to_string(&svg).unwrap();
    // It is XML, and each of the 16 blocks and 3 loops is there.
    let mut reader = quick_xml::Reader::from_str(&drawn);
    loop {
        match reader.read_event().unwrap_or_else(|e| panic!("{e}: {drawn}")) {
            quick_xml::events::Event::Eof => break,
            _ => continue,
        }
    }
    assert_eq!(drawn.matches("class=\"block\"").count(), 16);
    assert_eq!(drawn.matches("class=\"loop\"").count(), 3);
    assert!(std::fs::read_to_string(&html).unwrap().contains(&drawn));
    let dot = printed(&base[..4]);
    assert!(dot.starts_with("digraph \"nested\"") && dot.matches(" -> ").count() >= 20, "{dot}");
    assert_eq!(printed(&[&base[..4], &["--format", "svg"]].concat()), drawn);
    for (name, error) in [("k.png", ".html, .svg or .dot"), ("none/k.svg", "No such file")] {
        let out = ptx(&[&base[..], &[path(name).as_str()]].concat()).output().unwrap();
        assert_eq!(out.status.code(), Some(1));
        assert!(text(&out.stderr).contains(error), "{}", text(&out.stderr));
    }
}

/// Machines of the emulator's clock: what is printed as a file is read again, and says of each figure where it is from.
#[test]
fn machines_are_listed_and_written_as_files() {
    let list = printed(&["models"]);
    for name in ["a100", "h100-nvlink", "h200-one-gpu"] {
        assert!(list.contains(name), "{list}");
    }
    let table = printed(&["models", "h100-nvlink"]);
    assert!(table.contains("peer_gbs") && table.contains("NCCL"), "{table}");
    assert!(table.contains("assumed"), "{table}");
    let whole = printed(&["models", "h100-nvlink", "--json"]);
    let mut model: Value = serde_json::from_str(&whole).unwrap();
    assert_eq!(model["version"], 1);
    model["timing"]["peer_ns"] = serde_json::json!({ "value": 712, "source": "measured" });
    let file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    let path = file.path().to_str().unwrap();
    std::fs::write(path, model.to_string()).unwrap();
    let again: Value = serde_json::from_str(&printed(&["models", path, "--json"])).unwrap();
    assert_eq!(again, model);
    model["timing"]["peer_ns"]["unit"] = "ns".into();
    std::fs::write(path, model.to_string()).unwrap();
    let out = ptx(&["models", path]).output().unwrap();
    let error = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{error}");
    assert!(error.contains("unknown field `unit`"), "{error}");
}
