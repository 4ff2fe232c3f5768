//! The `ferroccl` command as a library: measure collectives, start the processes of a job, explain choices, look at the
//! kernels' PTX, show the knobs.
//!
//! A crate with protocols, algorithms and kernels of its own has the same command with them: in `perf --proto`, `perf --algo`,
//! `NCCL_PROTO`, `NCCL_ALGO`, `explain`, `ptx` and everywhere else.
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! fn main() -> ExitCode {
//!     ferroccl_cli::main_with(ferroccl::Registry::new()) // with .protocol::<..>(..), .kernels(..)
//! }
//! ```

mod bench;
mod check;
mod critical_path;
mod env;
mod explain;
mod machine;
mod model;
mod new;
mod output_file;
mod perf;
mod plot;
mod ptx;
mod registered;
mod run;
mod simulate;
mod source;
mod status;
mod topo;
mod verify;

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

use clap::{Parser, Subcommand};
use ferroccl::config::{Config, unknown_in_env};
use ferroccl::log::LogLevel;
use ferroccl::{Registry, device};

/// The repository that this was built from: sources and tools are looked for there, too.
const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Collective communication for GPUs in Rust, down to the kernels
#[derive(Debug, Parser)]
#[command(
    name = "ferroccl",
    version,
    arg_required_else_help = true,
    subcommand_required = true,
    max_term_width = 110
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Perf(Box<perf::PerfArgs>),
    Run(run::RunArgs),
    Status(status::StatusArgs),
    Topo(topo::TopoArgs),
    Explain(Box<explain::ExplainArgs>),
    Simulate(Box<simulate::SimulateArgs>),
    Ptx(Box<ptx::PtxArgs>),
    Env(env::EnvArgs),
    New(new::NewArgs),
    Bench(Box<bench::BenchArgs>),
    Check(check::CheckArgs),
    Watch(check::WatchArgs),
    Verify(verify::VerifyArgs),
    /// Ends a process group when its launcher is gone
    #[command(name = run::KEEPER, hide = true)]
    Keeper,
}

/// Runs the command that this process was started with, with the library's kernels alone.
///
/// Ends the process where the command line is wrong, or where help is asked for, as clap does.
#[must_use]
pub fn main() -> ExitCode {
    main_with(Registry::new())
}

/// [`main`] with kernels of other crates, too.
///
/// ```no_run
/// # use ferroccl::{Registry, device};
/// let code = ferroccl_cli::main_with(Registry::new());
/// ```
#[must_use]
pub fn main_with(registry: Registry) -> ExitCode {
    if let Err(error) = registry.check() {
        complain("registry", error);
        return ExitCode::FAILURE;
    }
    registered::set(registry);
    match Cli::parse().command {
        Command::Perf(args) => perf::execute(&args),
        Command::Run(args) => run::execute(&args),
        Command::Status(args) => status::execute(&args),
        Command::Topo(args) => topo::execute(&args),
        Command::Explain(args) => explain::execute(&args),
        Command::Simulate(args) => simulate::execute(&args),
        Command::Ptx(args) => ptx::execute(&args),
        Command::Env(args) => env::execute(&args),
        Command::New(args) => new::execute(&args),
        Command::Bench(args) => bench::execute(&args),
        Command::Check(args) => check::execute(&args),
        Command::Watch(args) => check::watch(&args),
        Command::Verify(args) => verify::execute(&args),
        Command::Keeper => run::keep(),
    }
}

/// Tells the user what went wrong, if anybody listens: `eprintln!` panics when standard error is closed.
fn complain(command: &str, what: impl Display) {
    // One write, so that lines of several processes do not mix.
    let line = format!("ferroccl {command}: {}{what}\n", WHO.get().map_or("", String::as_str));
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Who complains, where this process is one of a job's: its ranks and host.
static WHO: OnceLock<String> = OnceLock::new();

/// From now on lines of [`complain`] say which of a job's ranks they are of.
fn complain_as(ranks: impl Display) {
    let _ = WHO.set(format!("{ranks} on {}: ", machine::host_name()));
}

/// Tells the user of variables that look like settings and are none, unless the log does.
fn complain_of_unknown(command: &str, env: &Config) {
    if env.debug < LogLevel::Warn {
        unknown_in_env().iter().for_each(|unknown| complain(command, unknown));
    }
}
