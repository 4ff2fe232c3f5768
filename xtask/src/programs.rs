//! Runs the workspace's tests, two programs at a time.
//!
//! `cargo test` runs one program after the other. Many tests wait: for a peer that is gone, for a network's time, for their turn. Beside
//! another program's tests that time is not lost.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use std::{env, thread};

use serde_json::Value;

use crate::run::{clock, root};

/// How many programs run at the same time.
const AT_A_TIME: usize = 2;

/// What takes longest, the longest first. Begun last, one of them would run alone in the end. A name that is not here is begun after these.
const LONGEST: [&str; 12] = [
    "hosts",
    "verbs",
    "doc",
    "cli",
    "ptx",
    "collectives",
    "cuda",
    "emulator",
    "communicators",
    "simulator",
    "topology",
    "impostors",
];

/// A test program, or the examples of the documentation.
struct TestProgram {
    name: String,
    /// What it prints goes to a file of this name first.
    log: String,
    command: Command,
}

/// Runs all tests of `tests`, a command that begins with `cargo test`, with these variables of the environment. After a failure none is
/// begun, or all are with `--no-fail-fast` among the arguments.
pub(crate) fn run(tests: &str, environment: &[(String, String)]) -> Result<(), String> {
    let fail_fast = !tests.split_whitespace().any(|word| word == "--no-fail-fast");
    let mut programs = built(tests, environment)?;
    let examples = cargo(tests, &["--doc"], environment);
    programs.push(TestProgram { name: "doc".to_owned(), log: "doc".to_owned(), command: examples });
    let place = |program: &TestProgram| LONGEST.iter().position(|name| *name == program.name);
    programs.sort_by_key(|program| place(program).unwrap_or(LONGEST.len()));

    let logs = root().join("target/tests");
    fs::create_dir_all(&logs).map_err(|e| format!("{}: {e}", logs.display()))?;
    let waiting = Mutex::new(VecDeque::from(programs));
    let failed = Mutex::new(Vec::new());
    let next = || {
        let stop = fail_fast && !locked(&failed).is_empty();
        if stop { None } else { locked(&waiting).pop_front() }
    };
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some(mut program) = next() {
                    if let Err(why) = program.run(&logs) {
                        locked(&failed).push(format!("{}: {why}", program.name));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

impl TestProgram {
    /// Prints what it printed when it has ended, so that two do not mix.
    fn run(&mut self, logs: &Path) -> Result<(), String> {
        let begun = Instant::now();
        println!("     Running {}", self.name);
        let path = logs.join(format!("{}.log", self.log));
        let in_log = |e: io::Error| format!("{}: {e}", path.display());
        let log = File::create(&path).map_err(in_log)?;
        self.command.stderr(log.try_clone().map_err(in_log)?).stdout(log).stdin(Stdio::null());
        let status = self.command.status().map_err(|e| e.to_string())?;
        let text = fs::read(&path).map_err(in_log)?;
        let mut out = io::stdout().lock();
        // Whoever reads it may be gone; the exit status says the same.
        let _ = writeln!(out, "\n---- {}, {}", self.name, clock(begun.elapsed()).trim_start());
        let _ = out.write_all(&text).and_then(|()| out.flush());
        if status.success() { Ok(()) } else { Err(status.to_string()) }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cargo(tests: &str, more: &[&str], environment: &[(String, String)]) -> Command {
    let mut command = Command::new("cargo");
    command.args(tests.split_whitespace().skip(1)).args(more);
    command.current_dir(root()).envs(environment.iter().map(|(name, value)| (name, value)));
    command
}

/// Builds the programs, and says which they are.
fn built(tests: &str, environment: &[(String, String)]) -> Result<Vec<TestProgram>, String> {
    let how = ["--no-run", "--message-format=json-render-diagnostics"];
    let mut build = cargo(tests, &how, environment);
    let mut build = build.stdout(Stdio::piped()).spawn().map_err(|e| format!("cargo: {e}"))?;
    let mut programs = Vec::new();
    for line in build.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
        let line = line.map_err(|e| format!("cargo: {e}"))?;
        let message = serde_json::from_str(&line).map_err(|e| format!("cargo's message: {e}"))?;
        programs.extend(program(&message, environment));
    }
    let status = build.wait().map_err(|e| format!("cargo: {e}"))?;
    if status.success() { Ok(programs) } else { Err(format!("{tests} --no-run: {status}")) }
}

/// The program that a message of cargo is about, if it is about one that tests: "External tools" in The Cargo Book.
fn program(message: &Value, environment: &[(String, String)]) -> Option<TestProgram> {
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let executable = message["executable"].as_str().filter(|_| is_test)?;
    let folder = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_owned();
    // Cargo runs it there, and names the folder to it; what this program has from cargo is xtask's.
    let mut command = Command::new(executable);
    command.current_dir(&folder).env("CARGO_MANIFEST_DIR", &folder);
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_")) {
            command.env_remove(name);
        }
    }
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    // Its hash tells programs of one name apart.
    let log = Path::new(executable).file_name()?.to_str()?.to_owned();
    Some(TestProgram { name: message["target"]["name"].as_str()?.to_owned(), log, command })
}
