//! The library's functions, and the header's layouts and values, against NVIDIA's and against our documents.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::skip::skip;
use crate::support::{CRATE, Header, compile, exports, our_exports, run};

/// Functions of NCCL's interface for kernels, and one that is NCCL's own business: `docs/nccl.md` lists them.
const NOT_THERE: [&str; 13] = [
    "ncclGetMultimemDevicePointer",
    "ncclGinBarrierCreateRequirement",
    "ncclGinInboxA2ACreateRequirement",
    "ncclGinOutboxCreateRequirement",
    "ncclLLA2ACalcSlots",
    "ncclLLA2ACreateRequirement",
    "ncclLsaBarrierCreateRequirement",
    "ncclResetDebugInitInternal",
    "ncclTeamLsa",
    "ncclTeamRail",
    "ncclTeamRankToLsa",
    "ncclTeamRankToWorld",
    "ncclTeamWorld",
];

/// What refuses to do anything, of `nccl_device.h`: it is in no header of ours.
const DEVICE_API: [&str; 6] = [
    "ncclCommQueryProperties",
    "ncclDevCommCreate",
    "ncclDevCommDestroy",
    "ncclGetLsaDevicePointer",
    "ncclGetLsaMultimemDevicePointer",
    "ncclGetPeerDevicePointer",
];

fn of_crate(path: &str) -> String {
    let path = Path::new(CRATE).join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The words of a text that begin so and are names of functions.
fn functions(text: &str) -> BTreeSet<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut rest = text;
    let mut found = BTreeSet::new();
    while let Some(at) = rest.find('(') {
        let name = rest[..at].rsplit(|c| !is_word(c)).next().unwrap_or_default();
        if name.starts_with("nccl") {
            found.insert(name.to_owned());
        }
        rest = &rest[at + 1..];
    }
    found
}

/// The functions that our header declares.
fn declared() -> BTreeSet<String> {
    let mut names = functions(&of_crate("include/nccl.h"));
    names.retain(|name| name != "nccl" && !name.ends_with("_t"));
    names
}

fn twins(names: &BTreeSet<String>) -> BTreeSet<String> {
    names.iter().flat_map(|name| [name.clone(), format!("p{name}")]).collect()
}

#[test]
fn what_the_header_declares_is_exported_with_its_twin_and_nothing_else_is() {
    let header = of_crate("include/nccl.h");
    let names = declared();
    assert!(names.len() > 60, "{names:?}");
    for name in &names {
        let twin = format!("NCCL_TWIN({});", name.trim_start_matches("nccl"));
        assert!(header.contains(&twin), "{twin} is missing");
    }
    assert_eq!(header.matches("NCCL_TWIN(").count(), names.len() + 1);
    let all = &names | &DEVICE_API.map(str::to_owned).into();
    assert_eq!(our_exports(), twins(&all));
}

#[test]
fn every_function_is_in_the_table_of_differences() {
    let document = of_crate("../../docs/nccl.md");
    for name in declared().iter().map(String::as_str).chain(DEVICE_API).chain(NOT_THERE) {
        assert!(document.contains(&format!("`{name}`")), "docs/nccl.md does not name {name}");
    }
}

/// The page has every function, and the names that it gives in Rust and Python are there.
#[test]
fn the_page_for_those_who_come_from_nccl_has_every_function() {
    let document = of_crate("../../docs/from-nccl.md");
    let table = document.split("| C | Rust | Python |\n").nth(1).unwrap();
    let rows: Vec<[&str; 3]> = table
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .map(|row| row.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>())
        .map(|cells| cells.try_into().unwrap())
        .collect();
    fn words(cell: &str) -> impl Iterator<Item = &str> {
        cell.split('`').skip(1).step_by(2)
    }
    let named: Vec<&str> = rows.iter().flat_map(|[c, ..]| words(c)).collect();
    let want = &declared() | &DEVICE_API.map(str::to_owned).into();
    let found: BTreeSet<String> = named.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(found, want);
    assert_eq!(named.len(), want.len(), "a function is there twice");
    let rust: String = ["comm", "", "runtime", "config", "launcher", "log"]
        .iter()
        .flat_map(|folder| fs::read_dir(Path::new(CRATE).join("..").join(folder)).unwrap())
        .filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok())
        .collect();
    let rust = rust + &of_crate("../bootstrap/src/id.rs");
    let python: String = ["__init__.py", "_communicator.py", "_ferroccl.pyi"]
        .map(|file| of_crate(&format!("../python/python/ferroccl/{file}")))
        .concat();
    let last = |name: &str| name.rsplit(['.', ':']).next().unwrap_or_default().to_owned();
    for [_, in_rust, in_python] in rows {
        let functions = words(in_rust).filter(|word| !word.contains(' ') && *word != "ferroccl");
        for name in functions.filter(|word| !word.contains('=')).map(last) {
            let there = ["fn ", "struct ", "enum ", "static "]
                .iter()
                .any(|kind| rust.contains(&format!("pub {kind}{name}")));
            assert!(there, "FerroCCL has no {name}");
        }
        for name in words(in_python).filter(|word| !word.contains('=') && *word != "with").map(last)
        {
            let there =
                ["def ", "class ", ""].iter().any(|kind| python.contains(&format!("{kind}{name}")));
            assert!(there, "the package has no {name}");
        }
    }
}

#[test]
fn nvidias_library_has_no_function_that_is_neither_here_nor_listed() {
    let Some(folder) = Header::nvidias() else {
        return skip("no list of NCCL's functions: scripts/setup fetches it");
    };
    let (list, library) = (folder.join("../symbols"), folder.join("../lib/libnccl.so.2"));
    let theirs = match fs::read_to_string(list) {
        Ok(list) => list.lines().map(str::to_owned).collect(),
        Err(_) if library.exists() => exports(&library),
        Err(_) => return skip("NCCL's header has no list of functions beside it"),
    };
    let theirs: BTreeSet<String> = theirs;
    let ours = our_exports();
    let missing: BTreeSet<String> = theirs.difference(&ours).cloned().collect();
    // NCCL's own business has no twin.
    let mut listed = twins(&NOT_THERE.map(str::to_owned).into());
    listed.remove("pncclResetDebugInitInternal");
    assert_eq!(missing, listed);
    assert_eq!(ours.difference(&theirs).collect::<Vec<_>>(), Vec::<&String>::new());
}

/// A program that prints all layouts and values of a header.
fn printer() -> String {
    let structs: [(&str, &[&str]); 4] = [
        (
            "ncclConfig_t",
            &[
                "size",
                "magic",
                "version",
                "blocking",
                "cgaClusterSize",
                "minCTAs",
                "maxCTAs",
                "netName",
                "splitShare",
                "trafficClass",
                "commName",
                "collnetEnable",
                "CTAPolicy",
                "shrinkShare",
                "nvlsCTAs",
                "nChannelsPerNetPeer",
                "nvlinkCentricSched",
                "graphUsageMode",
                "numRmaCtx",
                "maxP2pPeers",
                "graphStreamOrdering",
            ],
        ),
        ("ncclSimInfo_t", &["size", "magic", "version", "estimatedTime"]),
        ("ncclWaitSignalDesc_t", &["opCnt", "peer", "sigIdx", "ctx"]),
        ("ncclUniqueId", &["internal"]),
    ];
    let values = [
        "ncclSuccess",
        "ncclUnhandledCudaError",
        "ncclSystemError",
        "ncclInternalError",
        "ncclInvalidArgument",
        "ncclInvalidUsage",
        "ncclRemoteError",
        "ncclInProgress",
        "ncclTimeout",
        "ncclNumResults",
        "ncclSum",
        "ncclProd",
        "ncclMax",
        "ncclMin",
        "ncclAvg",
        "ncclNumOps",
        "ncclMaxRedOp",
        "ncclInt8",
        "ncclChar",
        "ncclUint8",
        "ncclInt32",
        "ncclInt",
        "ncclUint32",
        "ncclInt64",
        "ncclUint64",
        "ncclFloat16",
        "ncclHalf",
        "ncclFloat32",
        "ncclFloat",
        "ncclFloat64",
        "ncclDouble",
        "ncclBfloat16",
        "ncclFloat8e4m3",
        "ncclFloat8e5m2",
        "ncclNumTypes",
        "ncclScalarDevice",
        "ncclScalarHostImmediate",
        "ncclStatGpuMemSuspend",
        "ncclStatGpuMemSuspended",
        "ncclStatGpuMemPersist",
        "ncclStatGpuMemTotal",
        "NCCL_MAJOR",
        "NCCL_MINOR",
        "NCCL_PATCH",
        "NCCL_VERSION_CODE",
        "NCCL_VERSION(2, 7, 3)",
        "NCCL_VERSION(2, 30, 7)",
        "NCCL_UNIQUE_ID_BYTES",
        "NCCL_CONFIG_UNDEF_INT",
        "NCCL_CONFIG_UNDEF_PTR",
        "NCCL_SPLIT_NOCOLOR",
        "NCCL_API_MAGIC",
        "NCCL_WIN_DEFAULT",
        "NCCL_WIN_COLL_SYMMETRIC",
        "NCCL_WIN_STRICT_ORDERING",
        "NCCL_WIN_REQUIRED_ALIGNMENT",
        "NCCL_CTA_POLICY_DEFAULT",
        "NCCL_CTA_POLICY_EFFICIENCY",
        "NCCL_CTA_POLICY_ZERO",
        "NCCL_SHRINK_DEFAULT",
        "NCCL_SHRINK_ABORT",
        "NCCL_REVOKE_DEFAULT",
        "NCCL_SUSPEND_MEM",
        "NCCL_COMM_NULL",
        "sizeof(ncclResult_t)",
        "sizeof(ncclDataType_t)",
        "sizeof(ncclRedOp_t)",
        "sizeof(ncclComm_t)",
        "sizeof(ncclWindow_t)",
        "sizeof(ncclParamHandle_t)",
        "sizeof(ncclScalarResidence_t)",
        "sizeof(NCCL_SUFFIX)",
        "NCCL_UNDEF_FLOAT * 8",
    ];
    let mut text = String::from(
        "#include <nccl.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n",
    );
    for (name, fields) in structs {
        let _ = writeln!(text, "printf(\"{name} %zu\\n\", sizeof({name}));");
        for field in fields {
            let _ = writeln!(
                text,
                "printf(\"{name}.{field} %zu %zu\\n\", offsetof({name}, {field}), sizeof((({name}*)0)->{field}));"
            );
        }
    }
    for value in values {
        let _ = writeln!(text, "printf(\"{value} %lld\\n\", (long long)({value}));");
    }
    // The initializers, as bytes.
    for (name, initializer) in [
        ("ncclConfig_t", "NCCL_CONFIG_INITIALIZER"),
        ("ncclSimInfo_t", "NCCL_SIM_INFO_INITIALIZER"),
    ] {
        let _ = writeln!(
            text,
            "{{ static {name} x = {initializer}; printf(\"{initializer}\"); \
             for (size_t i = 0; i < sizeof x; i++) printf(\" %02x\", ((unsigned char*)&x)[i]); puts(\"\"); }}"
        );
    }
    text + "return 0;\n}\n"
}

#[test]
fn layouts_and_values_are_nvidias() {
    let scratch = tempfile::tempdir().expect("a folder");
    let source = scratch.path().join("print.c");
    fs::write(&source, printer()).expect("a source");
    let ours = run(&compile(scratch.path(), &source, &Header::Ours), &[], &[]);
    assert!(ours.contains("ncclConfig_t 96\n"), "{ours}");
    let Some(folder) = Header::nvidias() else {
        return skip("no nccl.h of NVIDIA's: scripts/setup fetches it");
    };
    let theirs = run(&compile(scratch.path(), &source, &Header::Nvidias(folder)), &[], &[]);
    assert_eq!(ours, theirs);
    assert!(ours.lines().count() > 90);
}

/// What the header declares is what NVIDIA's declares: each can be declared after the other, by a compiler that refuses a second
/// declaration of another type.
#[test]
fn declarations_are_nvidias() {
    let Some(folder) = Header::nvidias() else {
        return skip("no nccl.h of NVIDIA's: scripts/setup fetches it");
    };
    let scratch = tempfile::tempdir().expect("a folder");
    // Ours, without what a program may have only once: types, values and twins.
    let text = of_crate("include/nccl.h");
    let mut inside = false;
    let mut declarations = String::from("#define NCCL_OS_LINUX\n#include <nccl.h>\n");
    for line in text.lines() {
        let starts = line.starts_with("ncclResult_t ") || line.starts_with("const char* nccl");
        if starts || inside {
            declarations.push_str(line);
            declarations.push('\n');
            inside = !line.trim_end().ends_with(';');
        }
    }
    assert!(declarations.matches(';').count() > 60, "{declarations}");
    declarations.push_str("int main(void) { return 0; }\n");
    let source = scratch.path().join("twice.c");
    fs::write(&source, declarations).expect("a source");
    run(&compile(scratch.path(), &source, &Header::Nvidias(folder)), &[], &[]);
}

/// C++ programs include it, too, and programs in plain C.
#[test]
fn the_header_is_good_for_other_compilers_modes() {
    let scratch = tempfile::tempdir().expect("a folder");
    let source = scratch.path().join("only.c");
    fs::write(&source, "#include <nccl.h>\nint main(void) { return ncclSuccess; }\n")
        .expect("a source");
    let include = format!("-I{CRATE}/include");
    for arguments in [
        ["-xc", "-std=c99"],
        ["-xc", "-std=gnu17"],
        ["-xc++", "-std=c++11"],
        ["-xc++", "-std=c++20"],
    ] {
        let mut cc = std::process::Command::new("cc");
        cc.args(arguments).args([
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wpedantic",
            "-fsyntax-only",
            &include,
        ]);
        let output = cc.arg(&source).output().expect("cc runs");
        let said = String::from_utf8_lossy(&output.stderr);
        // A compiler for C alone has no cc1plus.
        let none = said.contains("cc1plus");
        assert!(output.status.success() || none, "{arguments:?}: {said}");
    }
}
