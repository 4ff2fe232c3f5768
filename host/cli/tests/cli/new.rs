//! `ferroccl new`, and what a command without kernels of other crates says to `check`. That the crates compile is for `cargo xtask test`.

use std::fs;

use super::support::{ferroccl, text};

#[test]
fn a_crate_has_the_name_and_nothing_of_the_labs() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, name, has) in [
        ("protocol", "my_lines", "pub struct MyLines<L = Correct>"),
        ("collective", "in_pairs", "pub struct AllReduceInPairs;"),
        ("kernel", "prefix_sum", "pub fn prefix_sum("),
    ] {
        let out = ferroccl(["new", kind, name]).current_dir(&folder).output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
        let said = text(&out.stdout);
        assert!(said.contains(&format!("{name} has a {kind}")), "{said}");
        let made = folder.path().join(name);
        let source = fs::read_to_string(made.join(format!("src/{name}.rs"))).unwrap();
        assert!(source.contains(has), "{source}");
        let files = [
            "Cargo.toml",
            "build.rs",
            "README.md",
            "src/lib.rs",
            "src/main.rs",
            "src/kernels.rs",
            "src/table.rs",
        ];
        for file in files.map(str::to_owned).into_iter().chain([format!("tests/{name}.rs")]) {
            let text = fs::read_to_string(made.join(&file)).unwrap();
            for other in ["lab", "ll64", "Ll64", "LL64", "Halving", "SCAN", "@"] {
                assert!(!text.contains(other), "{name}/{file} has {other}: {text}");
            }
        }
        let again = ferroccl(["new", kind, name]).current_dir(&folder).output().unwrap();
        assert_eq!(again.status.code(), Some(1));
        assert!(text(&again.stderr).contains("is there already"), "{}", text(&again.stderr));
    }
}

#[test]
fn what_cannot_be_made_is_said_and_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    for (line, code, why) in [
        (&["new", "protocol", "My-Lines"][..], 2, "lower case letters"),
        (&["new", "protocol", "ll128"], 2, "this name is taken"),
        (&["new", "operator", "x"], 2, "possible values: protocol, collective, kernel"),
        (&["new", "kernel", "x", "--sources", "nowhere"], 1, "--sources says where they are"),
    ] {
        let out = ferroccl([]).args(line).current_dir(&folder).output().unwrap();
        assert_eq!(out.status.code(), Some(code), "{line:?}");
        assert!(text(&out.stderr).contains(why), "{line:?}: {}", text(&out.stderr));
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn a_command_without_kernels_of_its_own_has_nothing_to_check() {
    let out = ferroccl(["check"]).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("`ferroccl new`"), "{}", text(&out.stderr));
}
