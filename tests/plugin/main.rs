//! Plugins made for NCCL that choose how calls are done, or are told of them. Those that are networks are tested in the proxy's
//! crate. Each test compiles plugins, and starts itself with their variables.

mod profiler;
mod tuner;

#[path = "../support/again.rs"]
mod again;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::again::again;

/// The child's variable: it is the process that a test has started.
const HERE: &str = "FERROCCL_TEST_HERE";

/// Compiles `tests/plugin/SOURCE` with these macros. It takes its name in one step: another process may have loaded one of that
/// name.
fn compile(source: &str, name: &str, macros: &[&str]) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let temporary = directory.join(format!("{}-{number}.so", std::process::id()));
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plugin").join(source);
    let mut command = Command::new(&compiler);
    command.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]);
    command.args(macros.iter().map(|name| format!("-D{name}"))).arg(source);
    let output = command.arg("-o").arg(&temporary).output().unwrap_or_else(|error| {
        panic!("these tests need a C compiler, as `{compiler}` or what CC names: {error}")
    });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let path = directory.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::rename(&temporary, &path).unwrap();
    path
}

/// Runs a test of this program in a process of its own, without NCCL's variables but these; what it prints, and whether it passed.
fn run(module: &str, test: &str, variables: &[(&str, &str)]) -> (String, bool) {
    let mut command = again(module, test);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("NCCL_") || text.starts_with("FERROCCL_") {
            command.env_remove(&name);
        }
    }
    let output = command.env(HERE, "1").envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let passed = output.status.success() && text.contains("1 passed");
    (text.into_owned(), passed)
}

/// The same of one that passes.
fn passes(module: &str, test: &str, variables: &[(&str, &str)]) -> String {
    let (text, passed) = run(module, test, variables);
    assert!(passed, "{variables:?}: {text}");
    text
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of UTF-8")
}
