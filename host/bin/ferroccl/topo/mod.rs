//! `ferroccl topo`: what a machine or a file is made of, how its devices reach each other, and the rings and trees
//! that follow.

mod dot;
mod json;
mod svg;
mod text;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ferroccl::config::Config;
use ferroccl::graph::connect::{self, Ring, Tree};
use ferroccl::graph::{HostGraphs, file};
use ferroccl::topology::{self, Assume, Paths, Policy, System, xml};

/// Show the topology: devices, paths, rings and trees
///
/// Of this machine, or of a topology file, which may be of any machine. With --nodes, of so many hosts like it.
/// NCCL's variables count: NCCL_TOPO_FILE, NCCL_P2P_LEVEL, NCCL_GRAPH_FILE, ... (ferroccl env lists them).
#[derive(Args, Clone, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct TopoArgs {
    /// A topology file in NCCL's format, instead of this machine
    #[arg(long, value_name = "XML")]
    file: Option<PathBuf>,
    /// What completes a file that leaves it to the machine, as sm=80,nvswitch=12
    #[arg(long, value_name = "LIST")]
    assume: Option<Assume>,
    /// Hosts, all alike
    #[arg(long, short = 'N', default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    nodes: u32,
    /// Draw the system
    #[arg(long, value_name = "SVG")]
    svg: Option<PathBuf>,
    /// Print the system for Graphviz
    #[arg(long, conflicts_with = "json")]
    dot: bool,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

/// All there is to show.
struct View {
    system: System,
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
    Topology(#[from] topology::TopologyError),
    #[error(transparent)]
    File(#[from] xml::XmlError),
    #[error(transparent)]
    Channels(#[from] ferroccl::graph::NoChannels),
    #[error(transparent)]
    Connect(#[from] connect::ConnectError),
    #[error("{}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("output: {0}")]
    Output(#[from] io::Error),
}

fn run(args: &TopoArgs) -> Result<(), Failure> {
    let config = Config::from_env()?;
    let assume = args.assume.clone().unwrap_or_default();
    let loaded = match &args.file {
        Some(path) => topology::load_file(path, &assume)?,
        None => topology::load_file("x".as_ref(), &assume)?, // TMP
    };
    for note in &loaded.notes {
        crate::complain("topo", note);
    }
    let view = view(loaded.system, &config, args.nodes)?;
    if let Some(path) = &args.svg {
        write(path, &svg::draw(&view))?;
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

fn view(system: System, config: &Config, hosts: u32) -> Result<View, Failure> {
    let paths = Paths::new(&system, &Policy::from_config(config));
    let mut graphs = HostGraphs::search(&system, &paths, config, hosts)?;
    if let Some(name) = &config.graph_file {
        let read = file::read(&xml::read(name.as_ref())?, name, &system)?;
        for note in &read.notes {
            crate::complain("topo", note);
        }
        graphs.replace(read.graphs);
    }
    if let Some(name) = &config.graph_dump_file {
        write(name.as_ref(), &file::to_xml(graphs.iter(), &system).to_xml())?;
    }
    let local = paths.gpus() as u32;
    let rings = connect::rings(&connect::alike(&graphs.ring, hosts, local))?;
    let trees = match &graphs.tree {
        Some(tree) => connect::trees(&connect::alike(tree, hosts, local))?,
        None => Vec::new(),
    };
    Ok(View { system, paths, graphs, hosts, rings, trees })
}

fn write(path: &std::path::Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|source| Failure::Write { path: path.to_owned(), source })
}
