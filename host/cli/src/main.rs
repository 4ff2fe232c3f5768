//! The `ferroccl` command: measure collectives, start the processes of a job, explain choices, look at the
//! kernels' PTX, show the knobs.

mod env;
mod explain;
mod machine;
mod perf;
mod ptx;
mod run;
mod source;
mod topo;

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    Topo(topo::TopoArgs),
    Explain(Box<explain::ExplainArgs>),
    Ptx(Box<ptx::PtxArgs>),
    Env(env::EnvArgs),
    /// Ends a process group when its launcher is gone
    #[command(name = run::KEEPER, hide = true)]
    Keeper,
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Perf(args) => perf::execute(&args),
        Command::Run(args) => run::execute(&args),
        Command::Topo(args) => topo::execute(&args),
        Command::Explain(args) => explain::execute(&args),
        Command::Ptx(args) => ptx::execute(&args),
        Command::Env(args) => env::execute(&args),
        Command::Keeper => run::keep(),
    }
}

/// Tells the user what went wrong, if anybody listens: `eprintln!` panics when standard error is closed.
fn complain(command: &str, what: impl Display) {
    let _ = writeln!(io::stderr(), "ferroccl {command}: {what}");
}
