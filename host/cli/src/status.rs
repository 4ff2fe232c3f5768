//! `ferroccl status`: what the communicators of running processes do, or did when their records were written.

mod text;

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ferroccl::flight_recorder::{self, ProcessRecord, trace};

use crate::output_file;

const AFTER_HELP: &str = "\
Only the user of a process may ask it, and root. A process in another network namespace is asked from there: \
nsenter --net --target PID ferroccl status PID. FERROCCL_STATUS=0 keeps a process from being asked. On a GPU blocks do \
not say what they wait for, and connections in its memory are not read.

A process writes its records to FERROCCL_DUMP_FILE when a communicator fails, and when FERROCCL_DUMP_SIGNAL comes. \
https://ui.perfetto.dev opens such files, and those of --output: a track per rank and channel, and a slice per call.

Examples:
  ferroccl status                                      every process of this host
  ferroccl status 4711 --calls 10                      its last calls, too
  ferroccl status --output now.json                    for Perfetto
  ferroccl status --from a.json b.json -o all.json     the files of several hosts as one";

/// Show what the communicators of running processes do, and who holds up a call
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP, after_help = "Examples, and who may ask: --help")]
pub(crate) struct StatusArgs {
    /// Processes; by default all of this host that have a communicator and may be asked
    #[arg(value_name = "PID")]
    pids: Vec<u32>,
    /// Read files that processes have written, instead of asking
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "pids")]
    from: Vec<PathBuf>,
    /// Write the records as JSON that Perfetto opens; - for standard output, and nothing else there
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Show that many of the last calls of each rank
    #[arg(long, value_name = "N", default_value_t = 0)]
    calls: usize,
    /// Show how many steps each connection has moved
    #[arg(long)]
    steps: bool,
}

/// Prints what is found; fails when nothing is, or a process that was named does not answer.
pub(crate) fn execute(args: &StatusArgs) -> ExitCode {
    let (found, complete) = if args.from.is_empty() { ask(&args.pids) } else { read(&args.from) };
    let written = match &args.output {
        Some(path) if path.as_os_str() == "-" => trace::write(io::stdout().lock(), &found),
        Some(path) => save(path, &found).and_then(|()| show(args, &found)),
        None => show(args, &found),
    };
    match written {
        Ok(()) if complete => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Err(error) => {
            crate::complain("status", format_args!("output: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// The records of running processes, and whether all that were named have answered.
fn ask(named: &[u32]) -> (Vec<ProcessRecord>, bool) {
    let (mut found, mut complete) = (Vec::new(), true);
    let pids = match named {
        [] => flight_recorder::processes().unwrap_or_else(|error| {
            crate::complain("status", format_args!("/proc/net/unix: {error}"));
            complete = false;
            Vec::new()
        }),
        named => named.to_vec(),
    };
    for pid in pids {
        match flight_recorder::query(pid) {
            Ok(record) => found.push(record),
            // Who asks for all means all that may be asked, and a process may have ended since it was listed.
            Err(
                flight_recorder::QueryError::Owner { .. }
                | flight_recorder::QueryError::Absent { .. },
            ) if named.is_empty() => {}
            Err(error) => {
                crate::complain("status", error);
                complete = false;
            }
        }
    }
    if found.is_empty() && complete {
        crate::complain("status", "no process of this host has a communicator and may be asked");
        complete = false;
    }
    (found, complete)
}

/// The records of files, and whether all could be read.
fn read(paths: &[PathBuf]) -> (Vec<ProcessRecord>, bool) {
    let (mut found, mut complete) = (Vec::new(), true);
    for path in paths {
        match fs::read(path).and_then(|bytes| trace::read(&bytes)) {
            Ok(records) => found.extend(records),
            Err(error) => {
                crate::complain("status", format_args!("{}: {error}", path.display()));
                complete = false;
            }
        }
    }
    (found, complete)
}

fn save(path: &std::path::Path, found: &[ProcessRecord]) -> io::Result<()> {
    let mut bytes = Vec::new();
    trace::write(&mut bytes, found)?;
    output_file::write(path, &bytes)
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}

fn show(args: &StatusArgs, found: &[ProcessRecord]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    text::print(&mut out, found, args.calls, args.steps)?;
    out.flush()
}
