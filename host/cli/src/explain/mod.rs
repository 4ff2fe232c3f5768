//! `ferroccl explain`: which algorithm, protocol, channels and threads a call is done with, and why not otherwise.
//!
//! ```text
//! report   one size in full, several as a table, JSON
//! scale    times against the number of hosts, as a table and a plot
//! ```
//!
//! The choice itself is the library's (`ferroccl::graph::tuning`); nothing is decided here.

mod report;
mod scale;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory};
use ferroccl::config::Config;
use ferroccl::graph::tuning::{Collective, Devices, NoChoice, Settings, Situation};
use ferroccl::graph::{HostGraphs, file};
use ferroccl::topology::{Paths, System, TopologyError};

use crate::perf::size::Bytes;
use crate::perf::sweep::{Step, Sweep};
use crate::perf::values::one_of;
use crate::registered::registry;
use crate::source::{ASSUME_HELP, Source};

const AFTER_HELP: &str = "\
The environment counts as it does for the library: NCCL_ALGO, NCCL_PROTO, FERROCCL_DETERMINISTIC, NCCL_MIN_NCHANNELS, \
NCCL_MAX_NCHANNELS, NCCL_NTHREADS, NCCL_LL128_NTHREADS, NCCL_BUFFSIZE, NCCL_P2P_LEVEL, \
NCCL_NET_GDR_LEVEL, NCCL_CROSS_NIC, ... (ferroccl env lists them).

SIZE is a number of bytes, or of K, M, G, T (powers of 1024). Times are predictions in microseconds: for \
GPUs by NCCL's model and figures, for CPU devices by measured ones (what is an estimate there is said in \
host/graph/tuning). SIZE is that of the largest buffer: of an all_gather and a reduce_scatter, all ranks' \
together. A barrier is an all_reduce of one byte. Bandwidths are in 10^9 bytes per second: \
algbw is size over time, busbw what every link must have carried.

Examples:
  ferroccl explain all_reduce --bytes 1M                      one size, every alternative
  ferroccl explain all_reduce -b 8 -e 1G -f 4                 a table, and where the choice changes
  ferroccl explain all_reduce --bytes 1M --file X.xml --nodes 16
  NCCL_ALGO='ring;allreduce:tree' ferroccl explain all_reduce -b 8 -e 1G
  NCCL_ALGO=Ring ferroccl explain all_gather --bytes 8,1K,1M --json -
  ferroccl explain all_reduce --bytes 8,1M --file X.xml --plot scale.svg

Exit status: 0 when there is a choice, 1 when the settings leave none or a file is wrong, 2 for a bad \
command line.";

/// Say how a call would be done, what that takes, and why every alternative lost
#[derive(Args, Clone, Debug)]
#[command(after_long_help = format!("{ASSUME_HELP}\n\n{AFTER_HELP}"), after_help = "Examples and units: --help")]
#[command(args_override_self = true)]
pub(crate) struct ExplainArgs {
    /// What is called
    #[arg(value_name = "COLLECTIVE", value_parser = one_of::<Collective>())]
    collective: Collective,

    /// Sizes, separated by commas [default: 8 B to 1 GiB, by a factor of 8]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', help_heading = "Sizes",
          conflicts_with_all = ["min_bytes", "max_bytes", "step_bytes", "step_factor"])]
    bytes: Vec<Bytes>,
    /// Smallest size
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", help_heading = "Sizes")]
    min_bytes: Option<Bytes>,
    /// Largest size
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", help_heading = "Sizes")]
    max_bytes: Option<Bytes>,
    /// From each size to the next: this many bytes more
    #[arg(
        short = 'i',
        long = "stepbytes",
        value_name = "SIZE",
        conflicts_with = "step_factor",
        help_heading = "Sizes"
    )]
    step_bytes: Option<Bytes>,
    /// From each size to the next: this many times as many [default: 2]
    #[arg(short = 'f', long = "stepfactor", value_name = "FACTOR", help_heading = "Sizes")]
    step_factor: Option<u64>,

    #[command(flatten)]
    source: Source,
    /// Hosts, all alike [default: 1; with --plot the most of them, 3072]
    #[arg(long, value_name = "N", help_heading = "Machine",
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    nodes: Option<u32>,
    /// Ranks of all hosts together [default: one for each GPU; on CPU devices one for each core]
    #[arg(long, value_name = "N", help_heading = "Machine",
          value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    ranks: Option<u32>,
    /// Calls are on buffers that are registered as windows
    #[arg(short = 'R', long, help_heading = "Machine")]
    windows: bool,

    /// Simulate the calls besides, each algorithm on a rail-optimised network (ferroccl simulate has more)
    #[arg(long, help_heading = "Results", conflicts_with_all = ["json", "plot", "windows"])]
    simulate: bool,
    /// Write the result as JSON to a file; to standard output, in place of the text, with -
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    json: Option<PathBuf>,
    /// Draw the times of ring and tree against the number of hosts, as SVG
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    plot: Option<PathBuf>,
}

/// Why there is no explanation.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Library(#[from] ferroccl::Error),
    #[error(transparent)]
    Topology(#[from] TopologyError),
    #[error(transparent)]
    Graphs(#[from] file::GraphError),
    #[error(transparent)]
    NoChoice(#[from] NoChoice),
    #[error("{path}: {error}")]
    File { path: String, error: io::Error },
    #[error("output: {0}")]
    Output(#[from] io::Error),
    #[error("the plot: {0}")]
    Plot(String),
    #[error("the simulation: {0}")]
    Simulate(String),
}

/// Explains; the exit code says whether there was something to explain.
pub(crate) fn execute(args: &ExplainArgs) -> ExitCode {
    match explain(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Output(e)) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Err(failure) => {
            crate::complain("explain", &failure);
            ExitCode::FAILURE
        }
    }
}

/// A command line that makes no sense ends the program as clap's own errors do.
fn refuse(reason: impl std::fmt::Display) -> ! {
    crate::Cli::command().error(ErrorKind::ValueValidation, reason).exit()
}

fn explain(args: &ExplainArgs) -> Result<(), Failure> {
    let config = Config::from_env_with(registry())?;
    ferroccl::log::init(&config)?;
    let sizes = args.sizes().unwrap_or_else(|reason| refuse(reason));
    let system = Source::merged(&args.source.system(&config)?, &config)?;
    let machine = Machine::new(system, args, &config).unwrap_or_else(|reason| refuse(reason));
    let text = if args.plot.is_some() {
        let scale = scale::Scale::new(&machine, args.collective, &sizes, args.nodes)?;
        if let Some(path) = &args.plot {
            write_file(path, &scale.svg()?)?;
        }
        if args.json.is_some() { scale.json() } else { scale.to_string() }
    } else {
        let nodes = args.nodes.unwrap_or(1);
        let graphs = machine.graphs(nodes)?;
        let situation = machine.situation(&graphs, nodes);
        let report = report::Report::new(&machine, &situation, args.collective, &sizes)?;
        let text = if args.json.is_some() { report.json() } else { report.to_string() };
        if args.simulate {
            let of = (&machine.system, machine.name.as_str());
            let simulated =
                crate::simulate::beside(of, &machine.config, nodes, args.collective, &sizes);
            text + "#\n" + &simulated.map_err(Failure::Simulate)?
        } else {
            text
        }
    };
    match &args.json {
        Some(path) if path.as_os_str() != "-" => write_file(path, &text),
        _ => Ok(io::stdout().lock().write_all(text.as_bytes())?),
    }
}

fn write_file(path: &std::path::Path, text: &str) -> Result<(), Failure> {
    let named = |error| Failure::File { path: path.display().to_string(), error };
    crate::output_file::write(path, text.as_bytes()).map_err(named)
}

impl ExplainArgs {
    /// The sizes asked for, at least one.
    fn sizes(&self) -> Result<Vec<u64>, String> {
        if self.collective == Collective::Barrier {
            let asked =
                !self.bytes.is_empty() || self.min_bytes.is_some() || self.max_bytes.is_some();
            return if asked { Err("a barrier has no size".to_owned()) } else { Ok(vec![1]) };
        }
        if !self.bytes.is_empty() {
            return Ok(self.bytes.iter().map(|bytes| bytes.0).collect());
        }
        let (usual, factor) = match (self.min_bytes, self.max_bytes) {
            (None, None) => ((Bytes(8), Bytes(1 << 30)), 8),
            (Some(min), None) => ((min, min), 2),
            (None, Some(max)) => ((Bytes(max.0.min(8)), max), 2),
            (Some(min), Some(max)) => ((min, max), 2),
        };
        let step = match self.step_bytes {
            Some(bytes) => Step::Add(bytes),
            None => Step::Times(self.step_factor.unwrap_or(factor)),
        };
        let sizes: Vec<u64> =
            Sweep::new(usual.0, usual.1, step)?.sizes().take(MOST_SIZES + 1).collect();
        if sizes.len() > MOST_SIZES {
            return Err(format!("more than {MOST_SIZES} sizes"));
        }
        Ok(sizes)
    }
}

/// Sizes at most: nobody reads more lines.
const MOST_SIZES: usize = 10_000;

/// The hosts, and what the user has to say about them.
#[derive(Debug)]
struct Machine {
    /// One of the hosts, as far as ranks run on it.
    system: System,
    paths: Paths,
    config: Config,
    settings: Settings,
    /// Ranks of a host.
    local_ranks: u32,
    /// Cores of this machine; they are the channels of CPU devices.
    cores: u32,
    /// Where it comes from.
    name: String,
}

impl Machine {
    fn new(system: System, args: &ExplainArgs, config: &Config) -> Result<Machine, String> {
        let nodes = args.nodes.unwrap_or(1);
        let cores = config.workers.unwrap_or_else(|| {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            u32::try_from(cores).unwrap_or(u32::MAX)
        });
        let gpus = system.gpus();
        let is_cpu = system.min_sm() == 0;
        let there_are = if is_cpu { cores } else { u32::try_from(gpus.len()).unwrap_or(u32::MAX) };
        let local_ranks = match args.ranks {
            Some(ranks) if !ranks.is_multiple_of(nodes) => {
                return Err(format!("{ranks} ranks do not spread evenly over {nodes} hosts"));
            }
            Some(ranks) => ranks / nodes,
            None => there_are,
        };
        if !is_cpu && local_ranks > there_are {
            return Err(format!("{local_ranks} ranks on a host that has {there_are} GPUs"));
        }
        let used: Vec<_> = gpus.iter().take(local_ranks as usize).map(|(id, _)| *id).collect();
        let unused = |id| gpus.iter().any(|(gpu, _)| *gpu == id) && !used.contains(&id);
        let system = if is_cpu { system } else { system.filtered(|id, _| !unused(id)) };
        let own = registry().own_kernels(local_ranks.saturating_mul(nodes));
        Ok(Machine {
            paths: Paths::new(&system, &config.policy()),
            system,
            config: config.clone(),
            settings: Settings { windows: args.windows, own, ..config.tuning() },
            local_ranks,
            cores,
            name: args.source.name(config),
        })
    }

    /// The graphs of a host among `nodes`.
    fn graphs(&self, nodes: u32) -> Result<Graphs, Failure> {
        let (search, files) = (self.config.search(), self.config.graph_files());
        match file::load(&self.system, &self.paths, &search, &files, nodes) {
            // CPU devices do without channels: their ranks share memory.
            Err(file::GraphError::NoChannels(_)) if self.system.min_sm() == 0 => Ok(Graphs(None)),
            found => Ok(Graphs(Some(found?))),
        }
    }

    /// The situation of all ranks.
    fn situation<'a>(&self, graphs: &'a Graphs, nodes: u32) -> Situation<'a> {
        let ranks = self.local_ranks.saturating_mul(nodes);
        match &graphs.0 {
            Some(graphs) if self.system.min_sm() > 0 => {
                graphs.situation(&self.system, nodes, ranks)
            }
            graphs => {
                let ring = graphs.as_ref().filter(|_| nodes > 1).map(|graphs| &graphs.ring);
                Situation::new(nodes, ranks, Devices::Cpu { ring }).with_channels(self.cores)
            }
        }
    }
}

/// A host's graphs; CPU devices do without.
#[derive(Debug)]
struct Graphs(Option<HostGraphs>);

#[cfg(test)]
mod tests;
