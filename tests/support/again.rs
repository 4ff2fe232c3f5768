//! This test program, started anew to run one of its tests alone.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::process::Command;

const HERE: &str = "FERROCCL_TEST_HERE";

/// A command for one test of this program; see [`only`].
pub(crate) fn again(module: &str, test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(only(module, test));
    command
}

/// Arguments that run one test, with its output, of this module: give `module_path!()`, which begins with the program's name.
pub(crate) fn only(module: &str, test: &str) -> [String; 4] {
    let name = match module.split_once("::") {
        Some((_, inner)) => format!("{inner}::{test}"),
        None => test.to_owned(),
    };
    ["--exact".to_owned(), name, "--nocapture".to_owned(), "--test-threads=1".to_owned()]
}

/// Runs a test of this program in a process of its own, in which [`here`] is true. Its name is `only`'s.
pub(crate) fn elsewhere(module: &str, test: &str, variables: &[(&str, &str)]) {
    let mut command = again(module, test);
    let output = command.env(HERE, "1").envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{test}: {text}");
}

/// Whether this process was started by [`elsewhere`].
pub(crate) fn here() -> bool {
    std::env::var_os(HERE).is_some()
}
