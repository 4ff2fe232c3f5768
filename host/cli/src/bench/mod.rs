//! `ferroccl bench`: what the pieces take that collectives are made of, on the CPU, in the emulator and on a GPU.

mod kernels;
mod measure;
mod output;
mod place;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ferroccl::config::Config;
use ferroccl::device::abi::ProtocolId;
use ferroccl::runtime::ptx::MachineModel;

pub(crate) use self::measure::What;
use self::measure::{Plan, measure};
use self::output::Report;
use self::place::Place;
use crate::perf::size::Bytes;
use crate::perf::values::{RuntimeKind, one_of};
use crate::registered::{self, registry};

/// The kernels as PTX of sm_80; empty where there was no compiler for it.
const PTX: &str = include_str!(concat!(env!("OUT_DIR"), "/bench.ptx"));

const AFTER_HELP: &str = "\
What is measured:
  hop      from rank to rank: what a ring of 4 takes more than one of 2, by its 4 more hops of 8 bytes
  step     a slot, sent and received: what a message of 32 slots takes more than one of 16, by its 16 more
  post     the same over sockets on this machine, which a proxy posts (CPU only)
  barrier  all ranks meet within a kernel
  signal   one rank's kernel tells another's
  put      a kernel copies to another rank's memory, and signals
  copy     a kernel copies within its rank's memory
  reduce   a kernel combines all ranks' buffers in its rank's memory

A hop is of each protocol, those of other crates too; step and post are of LL, LL128 and Simple, in which messages go. Times are medians of rounds; on the CPU they include the \
work of all ranks that share its cores. In the emulator they are simulated. On a GPU all ranks share the first one, and its \
own clock counts.

Examples:
  ferroccl bench                                 everything, on this machine's cores
  ferroccl bench hop barrier signal              some of it
  ferroccl bench --runtime ptx --model a100      simulated: the GPU's kernels in the emulator
  ferroccl bench put copy -b 1K -e 64M -f 4 --svg put.svg
  ferroccl bench --runtime cuda --json bench.json --write-model gpu.json";

/// Measure what collectives are made of: hops, steps, barriers, signals, puts, copies
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP, after_help = "What is measured, and examples: --help")]
pub(crate) struct BenchArgs {
    /// What to measure [default: everything]
    #[arg(value_name = "WHAT", value_enum)]
    what: Vec<What>,
    /// Where
    #[arg(long, value_enum, default_value_t = RuntimeKind::Cpu)]
    runtime: RuntimeKind,
    /// The machine of --runtime ptx: a name, or a file (`ferroccl ptx models`)
    #[arg(long, value_name = "MACHINE", value_parser = crate::model::find, default_value = "h100-nvlink")]
    model: MachineModel,
    /// Protocols of hops and steps [default: all]
    #[arg(long = "proto", value_name = "PROTOCOL", ignore_case = true, value_delimiter = ',',
          value_parser = one_of::<ProtocolId>())]
    protocols: Vec<ProtocolId>,
    /// Ranks that meet at barriers, and whose buffers are combined
    #[arg(short = 'g', long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: u32,
    /// Blocks of the kernels of barrier, signal, put, copy and reduce
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=32))]
    blocks: u32,
    /// Smallest size of put, copy and reduce
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", default_value = "1K")]
    min_bytes: Bytes,
    /// Largest size [default: 16M, in the emulator 64K]
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE")]
    max_bytes: Option<Bytes>,
    /// From each size to the next: this many times as many
    #[arg(short = 'f', long = "stepfactor", value_name = "FACTOR", default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..))]
    step_factor: u64,
    /// Fewer and shorter rounds
    #[arg(long)]
    quick: bool,
    /// Write the figures as JSON, - for standard output instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw times by size
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write a machine for the emulator's clock, with what was measured on this GPU, and --model's figures for the rest
    #[arg(long, value_name = "FILE")]
    write_model: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Library(#[from] ferroccl::Error),
    #[error("{0}")]
    Refused(&'static str),
    #[error("{0}")]
    Wrong(String),
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("drawing: {0}")]
    Plot(String),
    #[error("output: {0}")]
    Output(#[from] io::Error),
}

/// Measures; the exit code says whether it could.
pub(crate) fn execute(args: &BenchArgs) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the table has seen enough.
        Err(Failure::Output(e)) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Err(failure) => {
            crate::complain("bench", &failure);
            ExitCode::FAILURE
        }
    }
}

fn run(args: &BenchArgs) -> Result<(), Failure> {
    let env = Config::from_env_with(registry())?;
    ferroccl::log::init(&env)?;
    crate::complain_of_unknown("bench", &env);
    if args.write_model.is_some() && args.runtime != RuntimeKind::Cuda {
        return Err(Failure::Refused(
            "--write-model: what is measured is a GPU, with --runtime cuda",
        ));
    }
    let most = args.max_bytes.map(|bytes| bytes.0);
    if most.is_some_and(|most| most < args.min_bytes.0) {
        return Err(Failure::Refused("--maxbytes (-e) is less than --minbytes (-b)"));
    }
    // Of these only the document can go to standard output.
    let json = args.json.as_ref().filter(|file| file.as_os_str() != "-");
    for file in [json, args.svg.as_ref(), args.write_model.as_ref()].into_iter().flatten() {
        let checked = crate::output_file::check(file);
        checked.map_err(|error| Failure::File { path: file.clone(), error })?;
    }
    let place = Place::new(args.runtime, &args.model)?;
    let most = most.unwrap_or_else(|| place.most_bytes(args.quick)).max(args.min_bytes.0);
    let next = |bytes: &u64| bytes.max(&1).checked_mul(args.step_factor);
    let sizes = std::iter::successors(Some(args.min_bytes.0), next).take_while(|b| *b <= most);
    let plan = Plan {
        effort: place.effort(args.quick),
        protocols: match &*args.protocols {
            [] => registered::protocols(),
            some => some.to_vec(),
        },
        ranks: args.ranks as usize,
        blocks: args.blocks,
        sizes: sizes.collect(),
        ptx: PTX,
    };
    let wanted: Vec<What> = What::ALL
        .into_iter()
        .filter(|what| args.what.is_empty() || args.what.contains(what))
        .collect();
    let document = args.json.as_ref().is_some_and(|file| file.as_os_str() == "-");
    let mut report = Report::new(&place, &plan);
    let mut out = io::stdout().lock();
    if !document {
        write!(out, "{}", report.head())?;
    }
    for what in wanted {
        if let Some(why) = Report::why_not(&place, what) {
            if !document {
                writeln!(out, "# {}: {why}", output::name(what))?;
            }
            continue;
        }
        let mut told = Ok(());
        measure(&place, &plan, what, &mut |figure| {
            if !document && told.is_ok() {
                told = writeln!(out, "{}", output::line(&figure)).and_then(|()| out.flush());
            }
            report.figures.push(figure);
        })?;
        told?;
    }
    if !document {
        write!(out, "{}", report.tuner())?;
    }
    report.write(args, &mut out)
}
