//! `ferroccl ptx` on what a crate has made, and on kernels of commits.
//!
//! The crates here have build scripts that copy files of PTX: they need no compiler for GPUs, and are built in a second. One looks like
//! this project, whose kernels `cargo xtask ptx` makes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::support::{Mark, ferroccl, plain, text, within};

const BUILD: &str = r#"
fn main() {
    println!("cargo::rerun-if-changed=src");
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").unwrap());
    for entry in std::fs::read_dir("src").unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "ptx") {
            std::fs::copy(&path, out.join(path.file_name().unwrap())).unwrap();
        }
    }
}
"#;

const LIBRARY: &str = "//! Nothing but its build script.\n";

/// A module with a kernel of so many instructions.
fn module(arch: u32, kernel: &str, instructions: usize) -> String {
    let body = "\tadd.s32 %r1, %r1, 1;\n".repeat(instructions - 1);
    format!(
        ".version 8.0\n.target sm_{arch}\n.address_size 64\n\n.visible .entry {kernel}()\n{{\n\t.reg .b32 %r<2>;\n{body}\tret;\n}}\n"
    )
}

/// A folder with a crate `mini`.
struct Mini(tempfile::TempDir);

impl Mini {
    fn new() -> Self {
        let mini = Mini(tempfile::tempdir().unwrap());
        let manifest =
            "[package]\nname = \"mini\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n";
        mini.write("Cargo.toml", manifest);
        mini.write("build.rs", BUILD);
        mini.write("src/lib.rs", LIBRARY);
        mini.write(".gitignore", "/target\n");
        mini.write("src/mini.ptx", &module(80, "mini", 2));
        mini
    }

    fn dir(&self) -> PathBuf {
        self.0.path().canonicalize().unwrap()
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.dir().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let out =
            settings(plain(program).args(arguments).current_dir(self.dir())).output().unwrap();
        assert!(out.status.success(), "{program} {arguments:?}: {}", text(&out.stderr));
        text(&out.stdout)
    }

    fn cargo(&self, arguments: &[&str]) {
        self.run(&std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()), arguments);
    }

    /// What is there becomes a commit.
    fn commit(&self) {
        if !self.dir().join(".git").exists() {
            self.run("git", &["init", "--quiet"]);
        }
        self.run("git", &["add", "--all"]);
        self.run("git", &["commit", "--quiet", "--message", "more"]);
    }

    /// `ferroccl ptx ARGUMENTS` in its folder.
    fn ptx(&self, arguments: &[&str]) -> Command {
        let mut command = ferroccl(["ptx"]);
        settings(command.args(arguments).current_dir(self.dir()).env("FERROCCL_PTXAS", ""));
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.ptx(arguments).output().unwrap()
    }

    fn printed(&self, arguments: &[&str]) -> String {
        let out = self.output(arguments);
        assert!(out.status.success(), "{arguments:?}: {}", text(&out.stderr));
        text(&out.stdout)
    }

    /// Fails with this error, and leaves no tree of a commit.
    fn fails(&self, arguments: &[&str], error: &str) {
        let out = self.output(arguments);
        assert_eq!(out.status.code(), Some(1), "{arguments:?}: {}", text(&out.stdout));
        assert!(text(&out.stderr).contains(error), "{arguments:?}: {}", text(&out.stderr));
        self.has_one_tree();
    }

    fn has_one_tree(&self) {
        if self.dir().join(".git").exists() {
            let trees = self.run("git", &["worktree", "list"]);
            assert_eq!(trees.lines().count(), 1, "{trees}");
        }
        assert!(!self.tree().exists());
    }

    /// Where the files of a commit are.
    fn tree(&self) -> PathBuf {
        self.dir().join("target/ferroccl-commits/tree")
    }
}

/// Whoever runs the tests may have a target folder for everything, and no name for git.
fn settings(command: &mut Command) -> &mut Command {
    command.env_remove("CARGO_TARGET_DIR").env_remove("CARGO_BUILD_TARGET_DIR");
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "test").env(format!("GIT_{who}_EMAIL"), "test@test");
    }
    command
}

/// The instructions of both in a comparison's figures.
fn instructions(compared: &str) -> (u64, u64) {
    let line = compared.lines().find(|line| line.starts_with("instructions ")).unwrap();
    let mut numbers = line.split_whitespace().skip(1).map(|n| n.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn the_newest_build_of_a_crate_is_read() {
    let mini = Mini::new();
    mini.fails(&["list", "--crate", "."], "`cargo build` in ");
    mini.cargo(&["build", "--quiet"]);
    let out = mini.output(&["list", "--crate", ".", "--json"]);
    assert!(text(&out.stderr).starts_with("ferroccl ptx: reads "), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("/target/debug/build/mini-"), "{}", text(&out.stderr));
    let listed: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((&listed[0]["name"], &listed[0]["instructions"]), (&"mini".into(), &2.into()));

    // Another profile, later; then the first again.
    mini.write("src/mini.ptx", &module(80, "mini", 5));
    mini.cargo(&["build", "--quiet", "--release"]);
    for arguments in [
        &["stats", "--crate", "src"][..],
        &["show", "--crate", ".", "-n"],
        &["diff", "mini", "--crate", "."],
        &["cfg", "mini", "--crate", "."],
        &["run", "--crate", "."],
    ] {
        let out = mini.output(arguments);
        assert!(out.status.success(), "{arguments:?}: {}", text(&out.stderr));
        assert!(text(&out.stderr).contains("/release/build/mini-"), "{}", text(&out.stderr));
    }
    assert!(mini.printed(&["stats", "--crate", "."]).contains("\n5 instructions, "));
    mini.cargo(&["build", "--quiet"]);
    let out = mini.output(&["stats", "--crate", "."]);
    assert!(text(&out.stderr).contains("/debug/build/mini-"), "{}", text(&out.stderr));

    // As build scripts do without a compiler.
    mini.write("src/mini.ptx", "");
    mini.cargo(&["build", "--quiet"]);
    mini.fails(
        &["list", "--crate", "."],
        "mini.ptx is empty: the build script has found no compiler",
    );
}

#[test]
fn of_several_files_that_for_the_architecture_is_read() {
    let mini = Mini::new();
    for arch in [80, 90, 100] {
        mini.write(&format!("src/sm_{arch}.ptx"), &module(arch, "both", arch as usize));
    }
    mini.cargo(&["build", "--quiet"]);
    assert!(mini.printed(&["list", "--crate", "."]).ends_with("\n4 kernels\n"));
    let some = mini.printed(&["list", "both", "--crate", ".", "--arch", "90"]);
    assert!(some.ends_with("\n1 kernels\n") && some.contains("sm_90"), "{some}");
    for (arch, instructions) in [(None, 80), (Some("80"), 80), (Some("99"), 90), (Some("120"), 100)]
    {
        let mut arguments = vec!["stats", "both", "--crate", "."];
        arguments.extend(arch.into_iter().flat_map(|arch| ["--arch", arch]));
        let told = mini.printed(&arguments);
        assert!(told.contains(&format!("\n{instructions} instructions, ")), "{arch:?}: {told}");
    }
    mini.fails(&["stats", "--crate", "."], "which kernel? There are\n  mini\n  both");
    mini.fails(&["stats", "bot", "--crate", "/no/such"], "/no/such: No such file");
    mini.fails(&["stats", "bothh", "--crate", "."], "did you mean `both`?");
}

#[test]
fn a_folder_without_a_crate_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let out = ferroccl(["ptx", "list", "--crate", "."]).current_dir(&folder).output().unwrap();
    let said = text(&out.stderr);
    assert!(said.contains("belongs to no crate") && said.contains("Cargo.toml"), "{said}");
    let out = ferroccl(["ptx", "list", "--crate", ".", "--file", "x"]).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
}

#[test]
fn a_kernel_of_a_commit_is_compared() {
    let mini = Mini::new();
    mini.commit();
    mini.write("src/mini.ptx", &module(80, "mini", 3));
    mini.write("src/gone.ptx", &module(80, "gone", 3));
    mini.commit();
    mini.run("git", &["rm", "--quiet", "src/gone.ptx"]);
    mini.write("src/mini.ptx", &module(80, "mini", 7));

    let told = mini.printed(&["diff", "mini", "--commit", "HEAD~1"]);
    assert_eq!(instructions(&told), (2, 7), "{told}");
    let short = mini.run("git", &["rev-parse", "--short", "HEAD~1"]);
    let names =
        format!("A: mini (mini.ptx at {})\nB: mini (mini.ptx in the working tree)\n", short.trim());
    assert!(told.starts_with(&names), "{told}");
    assert_eq!(told.matches("\n+    add.s32").count(), 5, "{told}");
    mini.has_one_tree();

    let two = ["diff", "mini", "--commit", "HEAD~1", "--commit2", "HEAD", "--figures"];
    assert_eq!(instructions(&mini.printed(&two)), (2, 3));
    // Elsewhere, of this crate, and by a part of its name.
    let dir = mini.dir();
    let mut command = mini.ptx(&["diff", "min", "--commit", "HEAD", "--crate"]);
    let out = command.arg(&dir).current_dir("/").output().unwrap();
    assert_eq!(instructions(&text(&out.stdout)), (3, 7), "{}", text(&out.stderr));
    // The crate's own builds are left alone, and no other build is taken for one of them.
    assert!(!dir.join("target/debug").exists());
    mini.fails(&["list", "--crate", "."], "`cargo build` in ");

    // What an earlier comparison made is gone.
    mini.fails(
        &["diff", "gone", "--commit", "HEAD~1"],
        "there is no kernel `gone` in mini.ptx at ",
    );
    mini.fails(
        &["diff", "gone", "--commit", "HEAD"],
        "there is no kernel `gone` in mini.ptx in the working tree",
    );
    mini.fails(&["diff", "mini", "--commit", "v7"], "there is no commit `v7` in ");
    mini.fails(&["diff", "mini", "--commit=--all"], "there is no commit `--all` in ");
    for wrong in [
        &["diff", "--commit", "HEAD"][..],
        &["diff", "mini", "--commit2", "HEAD"],
        &["diff", "mini", "--commit", "HEAD", "--file", "mini.ptx"],
        &["diff", "mini", "--commit", "HEAD", "--arch2", "90"],
    ] {
        assert_eq!(mini.output(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn what_a_commit_lacks_is_named_and_nothing_is_left() {
    let mini = Mini::new();
    mini.fails(
        &["diff", "mini", "--commit", "HEAD"],
        "is in no git checkout, which --commit needs",
    );
    mini.write("build.rs", "fn main() { panic!(\"no luck today\") }");
    mini.commit();
    mini.write("build.rs", BUILD);
    mini.write("src/mini.ptx", "");
    mini.commit();
    mini.write("src/mini.ptx", &module(80, "mini", 3));
    mini.fails(&["diff", "mini", "--commit", "HEAD~1"], "no luck today");
    mini.fails(
        &["diff", "mini", "--commit", "HEAD"],
        "is empty: the build script has found no compiler",
    );

    // Host code that does not compile is not looked at.
    mini.write("src/lib.rs", "compile_error!(\"of last year\");");
    mini.commit();
    mini.write("src/lib.rs", LIBRARY);
    assert_eq!(instructions(&mini.printed(&["diff", "mini", "--commit", "HEAD"])), (3, 3));

    // A crate that is not there yet, in a folder of a checkout; and a tree that a killed comparison has left.
    mini.write(
        "other/Cargo.toml",
        "[package]\nname = \"other\"\nedition = \"2024\"\n\n[workspace]\n",
    );
    mini.write("other/src/lib.rs", LIBRARY);
    mini.fails(
        &["diff", "mini", "--commit", "HEAD", "--crate", "other"],
        "no other/Cargo.toml at ",
    );
    mini.commit();
    mini.fails(
        &["diff", "mini", "--commit", "HEAD", "--crate", "other"],
        "other has no build script",
    );
    let tree = mini.tree();
    mini.run("git", &["worktree", "add", "--quiet", "--detach", tree.to_str().unwrap()]);
    assert_eq!(instructions(&mini.printed(&["diff", "mini", "--commit", "HEAD"])), (3, 3));
    mini.has_one_tree();
}

/// What a crate takes from beside its checkout is found.
#[test]
fn a_neighbour_of_the_checkout_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let mini = Mini::new();
    let beside = folder.path().join("checkout");
    let neighbour = folder.path().join("neighbour");
    fs::create_dir_all(neighbour.join("src")).unwrap();
    let manifest = "[package]\nname = \"neighbour\"\nedition = \"2024\"\n\n[workspace]\n";
    fs::write(neighbour.join("Cargo.toml"), manifest).unwrap();
    fs::write(neighbour.join("src/lib.rs"), LIBRARY).unwrap();
    let manifest = fs::read_to_string(mini.dir().join("Cargo.toml")).unwrap();
    let dependency = "\n[dependencies]\nneighbour = { path = \"../neighbour\" }\n";
    mini.write("Cargo.toml", &(manifest + dependency));
    mini.commit();
    fs::rename(mini.dir(), &beside).unwrap();
    let mut command = ferroccl(["ptx", "diff", "mini", "--commit", "HEAD", "--figures"]);
    let out = settings(command.current_dir(&beside)).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let mut left: Vec<_> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort_unstable();
    assert_eq!(left, ["checkout", "neighbour"]);
    fs::create_dir(mini.0.path()).unwrap(); // which the test's end removes
}

/// Its build script at a commit waits for ever.
#[test]
fn who_interrupts_a_comparison_leaves_nothing() {
    let mini = Mini::new();
    let wait = "fn main() { loop { std::thread::sleep(std::time::Duration::from_secs(9)); } }";
    mini.write("build.rs", wait);
    mini.commit();
    let mark = Mark::new();
    let mut command = mini.ptx(&["diff", "mini", "--commit", "HEAD"]);
    let command = mark.put_on(command.stdout(Stdio::null()).stderr(Stdio::piped()));
    let child = command.spawn().unwrap();
    let waits = || mark.alive().iter().any(|process| process.contains("build-script-build"));
    assert!(within(Duration::from_secs(60), waits), "{:?}", mark.alive());
    sleep(Duration::from_millis(100));
    let began = Instant::now();
    // SAFETY: kill takes no pointers.
    unsafe { libc::kill(child.id().cast_signed(), libc::SIGINT) };
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(text(&out.stderr), "ferroccl ptx diff: interrupted\n");
    assert!(began.elapsed() < Duration::from_secs(5));
    mark.assert_gone();
    mini.has_one_tree();
}

/// A workspace that looks like this project: its xtask prints what lies in `device/`.
#[test]
fn kernels_of_the_library_are_made_by_xtask() {
    let mini = Mini::new();
    let xtask = r#"fn main() {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let [_, name, _, arch, _, file] = &arguments[..] else { panic!("{arguments:?}") };
        let Ok(text) = std::fs::read_to_string(format!("device/{name}.{arch}")) else {
            eprintln!("no kernel or module is called {name:?} for sm_{arch}");
            std::process::exit(1);
        };
        std::fs::write(file, text).unwrap();
    }"#;
    let name = "all_reduce_ring_ll_sum_float";
    mini.write("Cargo.toml", "[workspace]\nmembers = [\"device\", \"xtask\"]\nresolver = \"3\"\n");
    mini.write("device/Cargo.toml", "[package]\nname = \"device\"\nedition = \"2024\"\n");
    mini.write("device/src/lib.rs", LIBRARY);
    mini.commit();
    let alias = "[alias]\nxtask = \"run --quiet --package xtask --\"\n";
    mini.write(".cargo/config.toml", alias);
    mini.write("xtask/Cargo.toml", "[package]\nname = \"xtask\"\nedition = \"2024\"\n");
    mini.write("xtask/src/main.rs", xtask);
    mini.write("xtask/src/ptx.rs", "");
    mini.commit();
    mini.write(&format!("device/{name}.90"), &module(90, name, 4));
    mini.commit();
    mini.write(&format!("device/{name}.90"), &module(90, name, 6));
    // By a part of the name, which the table completes, and of a folder within.
    let part = "reduce_ring_ll_sum_float";
    let base = ["diff", part, "--arch", "90", "--crate", "device"];
    let told = mini.printed(&[&base[..], &["--commit", "HEAD"]].concat());
    assert_eq!(instructions(&told), (4, 6), "{told}");
    assert!(told.contains("(device/src in the working tree)"), "{told}");
    mini.has_one_tree();
    let error = format!("no kernel or module is called \"{name}\" for sm_90");
    mini.fails(&[&base[..], &["--commit", "HEAD~1"]].concat(), &error);
    mini.fails(&[&base[..], &["--commit", "HEAD~2"]].concat(), "there is no `cargo xtask ptx`");
}

/// The folders of this repository are crates, too.
#[test]
fn a_crate_of_a_workspace_is_the_innermost() {
    let inner = Path::new(super::support::ROOT).join("host/topology/src/graph");
    let out = ferroccl(["ptx", "list", "--crate"]).arg(inner).output().unwrap();
    assert!(
        text(&out.stderr).contains("ferroccl-topology has no *.ptx in "),
        "{}",
        text(&out.stderr)
    );
}
