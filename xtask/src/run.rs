//! Runs steps, and says what each took.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// One thing to check.
pub(crate) struct Step {
    /// One word, for the table of times and for `--only`.
    pub(crate) name: &'static str,
    /// What it checks, in a line.
    pub(crate) what: &'static str,
    /// What this machine lacks for it, with how to get it. Such a step is skipped, or fails where nothing may be skipped.
    pub(crate) lacks: Option<String>,
    pub(crate) work: Vec<Work>,
}

/// A part of a step.
pub(crate) enum Work {
    /// Must end with exit status 0.
    Command(Command),
    /// `Err` says what is wrong.
    Function(Box<dyn FnMut() -> Result<(), String>>),
}

impl Step {
    pub(crate) fn new(name: &'static str, what: &'static str) -> Step {
        Step { name, what, lacks: None, work: Vec::new() }
    }

    /// Adds a command, given as words; the project's root is its working directory.
    pub(crate) fn run(self, words: &str) -> Step {
        self.run_with(words, &[])
    }

    /// The same, with variables of the environment.
    pub(crate) fn run_with(self, words: &str, environment: &[(&str, &str)]) -> Step {
        let mut words = words.split_whitespace();
        let mut command = Command::new(words.next().expect("a command has a name"));
        command.args(words).envs(environment.iter().copied());
        self.command(command)
    }

    pub(crate) fn command(mut self, mut command: Command) -> Step {
        command.current_dir(root());
        self.work.push(Work::Command(command));
        self
    }

    pub(crate) fn function(
        mut self,
        function: impl FnMut() -> Result<(), String> + 'static,
    ) -> Step {
        self.work.push(Work::Function(Box::new(function)));
        self
    }

    /// Needs what `look` looks for; it says what is missing.
    pub(crate) fn needs(mut self, look: impl FnOnce() -> Option<String>) -> Step {
        self.lacks = self.lacks.or_else(look);
        self
    }
}

/// The project's root.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// How a step ended.
enum End {
    Passed,
    Skipped(String),
    Failed(String),
}

/// Whether nothing may be skipped: in CI.
pub(crate) fn is_strict() -> bool {
    std::env::var_os("FERROCCL_TEST_ALL").is_some()
}

/// Runs steps until one fails. A step that lacks something is skipped, unless `FERROCCL_TEST_ALL` is set.
pub(crate) fn until_one_fails(steps: Vec<Step>) -> bool {
    run(steps, is_strict(), true)
}

/// Runs all steps, whatever becomes of others. A step that lacks something is skipped.
pub(crate) fn every_one(steps: Vec<Step>) -> bool {
    run(steps, false, false)
}

fn run(steps: Vec<Step>, strict: bool, stop: bool) -> bool {
    let since = Instant::now();
    let mut rows = Vec::new();
    for mut step in steps {
        let begun = Instant::now();
        println!("\n==== {}: {}", step.name, step.what);
        let end = match step.lacks.take() {
            Some(lacks) if strict => End::Failed(format!("cannot run: {lacks}")),
            Some(lacks) => End::Skipped(lacks),
            None => match step.work.iter_mut().try_for_each(Work::go) {
                Ok(()) => End::Passed,
                Err(why) => End::Failed(why),
            },
        };
        let failed = matches!(end, End::Failed(_));
        if let End::Skipped(why) | End::Failed(why) = &end {
            println!("{why}");
        }
        rows.push((step.name, begun.elapsed(), end));
        if failed && stop {
            break;
        }
    }
    println!("\n==== times");
    for (name, time, end) in &rows {
        let end = match end {
            End::Passed => String::new(),
            End::Skipped(why) => format!("  skipped: {why}"),
            End::Failed(why) => format!("  FAILED: {why}"),
        };
        println!("{}  {name:12}{end}", clock(*time));
    }
    println!("{}  together", clock(since.elapsed()));
    !rows.iter().any(|(_, _, end)| matches!(end, End::Failed(_)))
}

impl Work {
    fn go(&mut self) -> Result<(), String> {
        match self {
            Work::Function(function) => function(),
            Work::Command(command) => {
                let text = shown(command);
                println!("$ {text}");
                match command.status() {
                    Ok(status) if status.success() => Ok(()),
                    Ok(status) => Err(format!("{text}: {status}")),
                    Err(e) => Err(format!("{text}: {e}")),
                }
            }
        }
    }
}

/// A command as one would type it.
fn shown(command: &Command) -> String {
    let mut text = String::new();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            text += &format!("{}={:?} ", name.display(), value.to_string_lossy());
        }
    }
    text += &command.get_program().to_string_lossy();
    for word in command.get_args() {
        text += " ";
        text += &word.to_string_lossy();
    }
    text
}

/// Minutes and seconds.
pub(crate) fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{:4}m{:02}s", seconds / 60, seconds % 60)
}
