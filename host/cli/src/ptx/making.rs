//! Running cargo for as long as nobody interrupts it.

use std::io::{self, IsTerminal as _, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::Failure;

/// Between two looks at a command that runs.
const PAUSE: Duration = Duration::from_millis(20);
/// Lines of a failed command that are told.
const LINES: usize = 30;

/// From now on SIGINT and SIGTERM end commands, and not this process, which has to clean up.
pub(super) struct Making {
    interrupted: Arc<AtomicBool>,
}

/// What a command did.
pub(super) struct Made {
    pub(super) succeeded: bool,
    /// Its standard output.
    pub(super) printed: String,
    /// The end of its standard error, without cargo's progress.
    pub(super) said: String,
}

impl Making {
    pub(super) fn new() -> Result<Self, Failure> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted)).map_err(failed)?;
        }
        Ok(Making { interrupted })
    }

    /// Runs cargo. On a terminal, what it says is shown while it runs: it may be minutes.
    pub(super) fn run(&self, command: &mut Command) -> Result<Made, Failure> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own: the compilers that it starts end with it.
        let mut child = command.process_group(0).spawn().map_err(failed)?;
        let group = Pid::from_raw(child.id().cast_signed());
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let printing = thread::spawn(move || collected(out, false));
        let shown = io::stderr().is_terminal();
        let saying = thread::spawn(move || collected(err, shown));
        let status = loop {
            // Relaxed: the flag is all that there is to see.
            if self.interrupted.load(Ordering::Relaxed) {
                let _ = killpg(group, Signal::SIGTERM); // it may have ended by itself
                let _ = child.wait();
                return Err(Failure::Interrupted);
            }
            match child.try_wait().map_err(failed)? {
                Some(status) => break status,
                None => thread::sleep(PAUSE),
            }
        };
        let text = |thread: thread::JoinHandle<String>| thread.join().unwrap_or_default();
        let (printed, said) = (text(printing), text(saying));
        Ok(Made { succeeded: status.success(), printed, said: without_progress(&said) })
    }
}

fn failed(error: io::Error) -> Failure {
    Failure::Tool { tool: "cargo".to_owned(), what: error.to_string() }
}

/// All that a pipe has, which is passed on to standard error if it is `shown`.
fn collected(pipe: Option<impl Read>, shown: bool) -> String {
    let (mut all, mut piece) = (Vec::new(), [0; 4096]);
    let Some(mut pipe) = pipe else { return String::new() };
    loop {
        match pipe.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => {
                all.extend_from_slice(&piece[..n]);
                if shown {
                    let _ = io::stderr().write_all(&piece[..n]); // nobody has to see it
                }
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&all).into_owned()
}

/// The last lines, without those that say how far cargo is: a verb that ends in the twelfth column.
fn without_progress(said: &str) -> String {
    let is_progress = |line: &str| {
        let verb = line.trim_start().split(' ').next().unwrap_or_default();
        let indent = line.len() - line.trim_start().len();
        indent + verb.len() == 12 && verb.starts_with(|c: char| c.is_ascii_uppercase())
    };
    let lines: Vec<&str> = said.lines().filter(|line| !is_progress(line)).collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_is_wrong() {
        let said =
            "   Compiling mini v0.1.0 (/x)\nerror: no\n  --> src/lib.rs:1\n    Finished `dev`\n";
        assert_eq!(without_progress(said), "error: no\n  --> src/lib.rs:1");
        assert_eq!(without_progress(&"line\n".repeat(100)).lines().count(), LINES);
    }

    #[test]
    fn what_a_command_prints_and_says_is_kept_apart() {
        let making = Making { interrupted: Arc::default() };
        let made =
            making.run(Command::new("sh").args(["-c", "echo a; echo b >&2; exit 3"])).unwrap();
        assert_eq!((made.succeeded, &*made.printed, &*made.said), (false, "a\n", "b"));
        assert!(matches!(making.run(&mut Command::new("/no/such")), Err(Failure::Tool { .. })));
        making.interrupted.store(true, Ordering::Relaxed);
        let ended = making.run(Command::new("sh").args(["-c", "sleep 100"]));
        assert!(matches!(ended, Err(Failure::Interrupted)));
    }
}
