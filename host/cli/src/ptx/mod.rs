//! `ferroccl ptx`: the kernels as PTX, listed, shown with their source, measured, compared and drawn.
//!
//! ```text
//! kernel   which kernel is meant: one of the embedded, or one of a file
//! crates   the PTX of a crate          commit  a kernel as a commit has it
//! list     all of them                 show    the text of one, with source lines
//! stats    its figures, loop by loop   diff    two of them
//! cfg      a drawing of its blocks     run     in the emulator
//! making   runs cargo
//! models   the machines that its clock goes by
//! critical_path  where the simulated time of a call goes
//! tools    ptxas and nvdisasm, if there are any
//! ```
//!
//! What there is to know of a kernel is found out by `ferroccl_ptx::inspect`; here it is printed.

mod cfg;
mod commit;
mod crates;
mod critical_path;
mod diff;
mod kernel;
mod list;
mod making;
mod models;
mod paint;
mod run;
mod sass;
mod show;
mod stats;
mod tools;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use ferroccl_ptx::emu::{Fault, LaunchError, LoadError};
use ferroccl_ptx::syntax::SyntaxError;

const AFTER_HELP: &str = "\
KERNEL is a name, or a part of one that only one kernel has. With --file it is a kernel of that file, with --crate one \
of that crate, and may be left out where there is one.

Examples:
  ferroccl ptx list --protocol ll128 --type float
  ferroccl ptx show ll128_sum_float --block 5
  ferroccl ptx stats ll128_sum_float --arch sm_90
  ferroccl ptx diff ll128_sum_float ll128_sum_half
  ferroccl ptx diff all_reduce_ring_ll_sum_float --commit HEAD~1
  ferroccl ptx cfg ll128_sum_float -o kernel.html
  ferroccl ptx stats --file mine.ptx
  ferroccl ptx list --crate .
  ferroccl ptx run --file mine.ptx --threads 256 --arg u32[256]
  ferroccl ptx models h100-nvlink
  ferroccl ptx critical-path all_reduce --ranks 8 --size 64K -o trace.json

Exit status: 0; 1 when there is no such kernel, a file is wrong or a tool fails; 2 for a bad command line.";

/// Look at the kernels as PTX, or at any PTX
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP, arg_required_else_help = true)]
pub(crate) struct PtxArgs {
    #[command(subcommand)]
    command: PtxCommand,
}

#[derive(Subcommand, Clone, Debug)]
enum PtxCommand {
    List(list::ListArgs),
    Show(show::ShowArgs),
    Stats(stats::StatsArgs),
    Run(Box<run::RunArgs>),
    Diff(diff::DiffArgs),
    Cfg(cfg::CfgArgs),
    Models(models::ModelsArgs),
    CriticalPath(Box<critical_path::CriticalPathArgs>),
}

pub(crate) fn execute(args: &PtxArgs) -> ExitCode {
    let (name, result) = match &args.command {
        PtxCommand::List(args) => ("list", list::run(args)),
        PtxCommand::Show(args) => ("show", show::run(args)),
        PtxCommand::Stats(args) => ("stats", stats::run(args)),
        PtxCommand::Run(args) => ("run", run::run(args)),
        PtxCommand::Diff(args) => ("diff", diff::run(args)),
        PtxCommand::Cfg(args) => ("cfg", cfg::run(args)),
        PtxCommand::Models(args) => ("models", models::run(args)),
        PtxCommand::CriticalPath(args) => ("critical-path", critical_path::run(args)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Output(e)) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Err(error) => {
            crate::complain(&format!("ptx {name}"), error);
            ExitCode::FAILURE
        }
    }
}

/// Why it did not work.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("this build has no PTX: {0}")]
    NoPtx(&'static str),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{origin}: {source}")]
    Syntax { origin: String, source: SyntaxError },
    #[error("there is no kernel `{name}` {}{meant}", at(.origin))]
    NoKernel { name: String, origin: String, meant: String },
    #[error("`{name}` is a part of several names:\n  {}", .kernels.join("\n  "))]
    Ambiguous { name: String, kernels: Vec<String> },
    #[error("which kernel? There are\n  {}", .0.join("\n  "))]
    Which(Vec<String>),
    #[error("no kernel is of that kind; see ferroccl ptx list")]
    Nothing,
    #[error("there is no block `{0}`: blocks are {1}")]
    NoBlock(String, String),
    #[error("{origin}: {source}")]
    Load { origin: String, source: LoadError },
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Fault(#[from] Box<Fault>),
    #[error("{}: a drawing is .html, .svg or .dot; or name one with --format", path.display())]
    Extension { path: PathBuf },
    #[error("{tool}: {what}")]
    Tool { tool: String, what: String },
    #[error(
        "{0}: of collectives there are all_reduce, all_gather, reduce_scatter, broadcast and reduce"
    )]
    NotTraced(String),
    #[error(transparent)]
    Call(#[from] ferroccl::Error),
    #[error("{} belongs to no crate: {said}", dir.display())]
    NoCrate { dir: PathBuf, said: String },
    #[error(
        "{name} has no *.ptx in {}: `cargo build` in {} makes it, if its build script writes PTX to OUT_DIR",
        build.display(),
        dir.display()
    )]
    NotBuilt { name: String, dir: PathBuf, build: PathBuf },
    #[error(
        "{origin} is empty: the build script has found no compiler for GPUs. It takes a rustc 1.96 or later with rust-src: \
         rustup toolchain install nightly --component rust-src, touch build.rs, cargo build"
    )]
    EmptyFile { origin: String },
    #[error("{} is in no git checkout, which --commit needs: {said}", dir.display())]
    NoCheckout { dir: PathBuf, said: String },
    #[error("there is no commit `{revision}` in {}", checkout.display())]
    NoCommit { revision: String, checkout: PathBuf },
    #[error("there is no {what} {place}")]
    NotThere { what: String, place: String },
    #[error("{what}: `{command}` has failed: {said}")]
    Making { what: String, command: String, said: String },
    #[error("interrupted")]
    Interrupted,
    #[error("output: {0}")]
    Output(#[from] io::Error),
    #[error("JSON: {0}")]
    Json(#[from] serde_json::Error),
}

fn at(origin: &str) -> String {
    if origin.is_empty() { "in this build".to_owned() } else { format!("in {origin}") }
}

/// An architecture as `sm_90`, `sm_90a` or `90`: the number.
fn arch(text: &str) -> Result<u32, String> {
    let number = text.strip_prefix("sm_").unwrap_or(text).trim_end_matches(['a', 'f']);
    match number.parse() {
        Ok(number @ 50..=999) => Ok(number),
        _ => Err("an architecture is sm_80, sm_90, ...".to_owned()),
    }
}
