//! `ferroccl run`: starts the ranks of a job as processes of this machine, and ends them together.
//!
//! The launcher holds the root of the bootstrap, gives every rank its number through the environment and
//! then only waits. What it promises:
//!
//! - The first rank that fails ends the others: SIGTERM, and after a grace time SIGKILL. Its exit code is
//!   the launcher's. (Of several at once it is one that a signal killed: the others may only have noticed.)
//! - Ctrl-C, SIGTERM and SIGHUP are passed on, then the same grace time.
//! - Nothing is left: not when ranks have started processes of their own, and not when the launcher is
//!   killed. All of them are in one process group, whose leader is the **keeper**: a process that does nothing
//!   but read a pipe from the launcher. When that closes, however the launcher came to end, it kills its
//!   group. (A process that leaves the group, a daemon, is left alone.)

mod keeper;
mod output;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use ferroccl::UniqueId;
use ferroccl::config::Config;
use ferroccl::launcher::CoreBinding;
use nix::sys::signal::Signal;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::machine;
use keeper::Keeper;
pub(crate) use keeper::{NAME as KEEPER, keep};
use output::Tagged;

const AFTER_HELP: &str = "\
Every rank gets FERROCCL_RANK, FERROCCL_WORLD_SIZE, FERROCCL_LOCAL_RANK, FERROCCL_LOCAL_SIZE and \
FERROCCL_UNIQUE_ID in its environment, where RankEnv::from_env finds them. Standard input goes to rank 0 \
unless it is a terminal; the other ranks have none.

Examples:
  ferroccl run -n 4 -- ferroccl perf all_reduce -b 8 -e 64M -f 2
  ferroccl run -n 2 --tag-output -- ./train --epochs 3

Exit status: 0 when every rank's was 0, else that of the first rank that failed (128 + N for signal N); \
126 and 127 when the command cannot be run or found, 2 for a bad command line, 1 for any other failure.";

/// Start the ranks of a job as processes of this machine
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP, after_help = "Examples and environment: --help")]
pub(crate) struct RunArgs {
    /// Ranks, each a process
    #[arg(short = 'n', long = "ranks", visible_alias = "np", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: u32,
    /// Begin every line of output with the rank it is from
    #[arg(long)]
    tag_output: bool,
    /// What ranks are bound to: a core each in turn, nothing, or with auto a core where there are more ranks than cores
    #[arg(long, value_name = "BINDING", default_value_t = CoreBinding::Auto,
          value_parser = PossibleValuesParser::new(["auto", "none", "core"]).try_map(|name| name.parse::<CoreBinding>()))]
    bind_to: CoreBinding,
    /// Seconds that ranks have to end when they are told to, before they are killed
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    grace: Duration,
    /// Command and its arguments
    #[arg(
        value_name = "COMMAND",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    command: Vec<OsString>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "not a number of seconds from 0 on".to_owned())
}

/// Why no job came about.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Library(#[from] ferroccl::Error),
    #[error("{what}: {source}")]
    System { what: &'static str, source: io::Error },
    #[error("cannot start {command:?}: {source}")]
    Start { command: OsString, source: io::Error },
}

impl Failure {
    /// As a shell tells these apart.
    fn code(&self) -> u8 {
        match self {
            Failure::Start { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Failure::Start { .. } => 126,
            Failure::Library(_) | Failure::System { .. } => 1,
        }
    }
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> Failure {
    move |source| Failure::System { what, source }
}

/// Runs the job; the exit code is the job's.
pub(crate) fn execute(args: &RunArgs) -> ExitCode {
    run(args)
        .unwrap_or_else(|failure| {
            crate::complain("run", &failure);
            failure.code()
        })
        .into()
}

fn run(args: &RunArgs) -> Result<u8, Failure> {
    let env = Config::from_env()?;
    ferroccl::log::init(&env)?;
    crate::complain_of_unknown("run", &env);
    // Before there are children, so that the end of none goes unnoticed.
    let signals = signals().map_err(system("cannot watch for signals"))?;
    // The root of the bootstrap is a thread of this process.
    let unique_id = UniqueId::new(&env.bootstrap()).map_err(ferroccl::Error::from)?;
    let keeper = Keeper::start().map_err(system("cannot start the keeper"))?;
    // An error on the way drops the keeper, and with it every rank that has been started.
    let mut ranks = Vec::new();
    let mut tagged = Tagged::default();
    for rank in 0..args.ranks {
        let mut child = start(args, rank, &unique_id, &keeper)?;
        if args.tag_output {
            tagged.add(rank, &mut child).map_err(system("cannot start a thread"))?;
        }
        ranks.push(child);
    }
    let code = Job { ranks: ranks.into_iter().map(Some).collect(), keeper, grace: args.grace }
        .supervise(&signals);
    tagged.drain();
    code
}

/// The signals that concern a launcher, as they come.
fn signals() -> io::Result<Receiver<Signal>> {
    let mut signals = Signals::new([SIGCHLD, SIGINT, SIGTERM, SIGHUP])?;
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().name("signals".into()).spawn(move || {
        // Ends with the job, when nobody receives any more.
        let signals = signals.forever().filter_map(|number| Signal::try_from(number).ok());
        let _ = signals.map(|signal| sender.send(signal)).find(Result::is_err);
    })?;
    Ok(receiver)
}

fn start(
    args: &RunArgs,
    rank: u32,
    unique_id: &UniqueId,
    keeper: &Keeper,
) -> Result<Child, Failure> {
    let program = &args.command[0];
    let mut command = Command::new(program);
    command
        .args(&args.command[1..])
        .env("FERROCCL_RANK", rank.to_string())
        .env("FERROCCL_WORLD_SIZE", args.ranks.to_string())
        .env("FERROCCL_LOCAL_RANK", rank.to_string())
        .env("FERROCCL_LOCAL_SIZE", args.ranks.to_string())
        .env("FERROCCL_UNIQUE_ID", unique_id.to_secret_hex());
    // A rank that read from the terminal would be stopped: it is not in the terminal's foreground.
    if rank > 0 || io::IsTerminal::is_terminal(&io::stdin()) {
        command.stdin(Stdio::null());
    }
    if args.tag_output {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    keeper.adopt(&mut command);
    let spawned = args.bind_to.spawn(&mut command, rank, args.ranks);
    spawned.map_err(|source| Failure::Start { command: program.clone(), source })
}

/// How long after the first failure a rank that was killed still counts as its cause.
const SETTLE: Duration = Duration::from_millis(50);

/// A job that runs.
struct Job {
    /// By rank; nothing once it has ended.
    ranks: Vec<Option<Child>>,
    keeper: Keeper,
    grace: Duration,
}

impl Job {
    /// Waits for the end of all ranks, and brings it about once one has failed.
    fn supervise(mut self, signals: &Receiver<Signal>) -> Result<u8, Failure> {
        let mut code = None;
        let mut deadline = None;
        loop {
            let mut failed = self.failed()?;
            if code.is_none() && !failed.is_empty() {
                // Other ranks may notice the end of one, and end, before the system tells us of it.
                thread::sleep(SETTLE);
                failed.extend(self.failed()?);
                let killed = failed.iter().find(|(_, status)| status.signal().is_some());
                let &(rank, status) = killed.unwrap_or(&failed[0]);
                let how = describe(status);
                crate::complain(
                    "run",
                    format_args!(
                        "rank {rank} on {}: {how}; ending the others",
                        machine::host_name()
                    ),
                );
                code = Some(exit_code(status));
                self.keeper.signal(Signal::SIGTERM);
                deadline = Some(Instant::now() + self.grace);
            }
            if self.ranks.iter().all(Option::is_none) {
                return Ok(code.unwrap_or(0));
            }
            let signal = match deadline {
                None => signals.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => signals.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match signal {
                Ok(Signal::SIGCHLD) => {}
                // The second time, at once.
                Ok(_) if code.is_some() => deadline = Some(self.kill()),
                Ok(signal) => {
                    code = Some(128 + signal as u8);
                    self.keeper.signal(signal);
                    deadline = Some(Instant::now() + self.grace);
                }
                Err(_) => deadline = Some(self.kill()),
            }
        }
    }

    /// The ranks that have ended since the last call, and not well.
    fn failed(&mut self) -> Result<Vec<(usize, ExitStatus)>, Failure> {
        let mut failed = Vec::new();
        for (rank, child) in self.ranks.iter_mut().enumerate() {
            let status = child.as_mut().map(Child::try_wait).transpose();
            if let Some(status) = status.map_err(system("cannot wait for a rank"))?.flatten() {
                *child = None;
                if !status.success() {
                    failed.push((rank, status));
                }
            }
        }
        Ok(failed)
    }

    /// Kills all that is left of the job; gives the time to look again.
    fn kill(&mut self) -> Instant {
        self.keeper.release();
        // A rank that has left the group is still ours to end.
        for child in self.ranks.iter_mut().flatten() {
            let _ = child.kill(); // it may just have ended
        }
        Instant::now() + Duration::from_secs(1)
    }
}

/// What a shell makes of it.
fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(1),
        (None, Some(signal)) => u8::try_from(128 + signal).unwrap_or(1),
        (None, None) => 1,
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (_, Some(signal)) => match Signal::try_from(signal) {
            Ok(name) => format!("was killed by signal {signal} ({name})"),
            Err(_) => format!("was killed by signal {signal}"),
        },
        _ => "ended".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_a_shells() {
        let raw = |raw| ExitStatus::from_raw(raw);
        assert_eq!((exit_code(raw(0)), exit_code(raw(7 << 8)), exit_code(raw(9))), (0, 7, 137));
        assert_eq!(describe(raw(9)), "was killed by signal 9 (SIGKILL)");
        assert_eq!(describe(raw(7 << 8)), "ended with exit code 7");
    }
}
