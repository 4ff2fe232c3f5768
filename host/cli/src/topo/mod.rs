//! `ferroccl topo`: what a machine or a file is made of, how its devices reach each other, and the rings and trees
//! that follow.

mod dot;
mod html;
mod json;
mod svg;
mod text;
mod trees;
mod verdicts;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ferroccl::config::Config;
use ferroccl::graph::connect::{self, Ring, Tree};
use ferroccl::graph::{HostGraphs, file};
use ferroccl::topology::policy::Policy;
use ferroccl::topology::{Paths, System, TopologyError};

use crate::source::{ASSUME_HELP, Source};

/// Show the topology: devices, paths, rings and trees
///
/// Of this machine, or of a topology file, which may be of any machine. With --nodes, of so many hosts like it.
/// NCCL's variables count: NCCL_TOPO_FILE, NCCL_P2P_LEVEL, NCCL_GRAPH_FILE, ... (ferroccl env lists them).
#[derive(Args, Clone, Debug)]
#[command(after_long_help = ASSUME_HELP)]
pub(crate) struct TopoArgs {
    #[command(flatten)]
    source: Source,
    /// Hosts, all alike
    #[arg(long, short = 'N', default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    nodes: u32,
    /// Draw the system
    #[arg(long, value_name = "SVG")]
    svg: Option<PathBuf>,
    /// Draw the system as a page in which a channel can be picked
    #[arg(long, value_name = "HTML")]
    html: Option<PathBuf>,
    /// Print the system for Graphviz
    #[arg(long, conflicts_with = "json")]
    dot: bool,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

/// All there is to show.
struct View {
    /// What to call the machine.
    name: String,
    system: System,
    policy: Policy,
    paths: Paths,
    graphs: HostGraphs,
    hosts: u32,
    rings: Vec<Ring>,
    trees: Vec<Tree>,
}

pub(crate) fn execute(args: &TopoArgs) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Output(e)) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Err(error) => {
            crate::complain("topo", error);
            ExitCode::FAILURE
        }
    }
}

/// Why it did not work.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Setting(#[from] ferroccl::Error),
    #[error(transparent)]
    Topology(#[from] TopologyError),
    #[error(transparent)]
    Graphs(#[from] file::GraphError),
    #[error(transparent)]
    Connect(#[from] connect::ConnectError),
    #[error("{}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("output: {0}")]
    Output(#[from] io::Error),
}

fn run(args: &TopoArgs) -> Result<(), Failure> {
    let config = Config::from_env()?;
    ferroccl::log::init(&config)?;
    let name = args.source.name(&config);
    let name = name.rsplit('/').next().unwrap_or(&name).to_owned();
    let system = Source::merged(&args.source.system(&config)?, &config)?;
    let view = view(name, system, &config, args.nodes)?;
    if let Some(path) = &args.svg {
        write(path, &svg::draw(&view))?;
    }
    if let Some(path) = &args.html {
        write(path, &html::page(&view))?;
    }
    let text = if args.json {
        json::all(&view)
    } else if args.dot {
        dot::graph(&view.system)
    } else {
        text::all(&view)
    };
    io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}

fn view(name: String, system: System, config: &Config, hosts: u32) -> Result<View, Failure> {
    let policy = config.policy();
    let paths = Paths::new(&system, &policy);
    let graphs = file::load(&system, &paths, &config.search(), &config.graph_files(), hosts)?;
    let local = paths.gpus() as u32;
    let odd = connect::along_rails(&graphs.ring, 1);
    let rings = connect::rings(&connect::alike([&graphs.ring, &odd], hosts, local))?;
    let trees = match &graphs.tree {
        Some(tree) => connect::trees(&connect::alike([tree; 2], hosts, local))?,
        None => Vec::new(),
    };
    Ok(View { name, system, policy, paths, graphs, hosts, rings, trees })
}

fn write(path: &std::path::Path, text: &str) -> Result<(), Failure> {
    crate::output_file::write(path, text.as_bytes())
        .map_err(|source| Failure::Write { path: path.to_owned(), source })
}
