//! A look at the machine when a communicator is made, where somebody wants to see what it is: the topology and
//! the channels are logged, read from files and written to files as the settings say.

use tracing::{Level, info};

use crate::Result;
use crate::config::Config;
use crate::graph::file;
use crate::log;
use crate::topology::{self, Paths, Policy};

/// Looks, once a group (its rank 0 does). Nothing is read where no setting asks for it and no line would be logged.
///
/// # Errors
/// [`Error::Topology`](crate::Error::Topology) and [`Error::Graph`](crate::Error::Graph): a file that makes no sense,
/// or cannot be read or written.
pub(super) fn look(env: &Config) -> Result<()> {
    let files = [&env.topo_file, &env.topo_dump_file, &env.graph_file, &env.graph_dump_file];
    let asked = files.iter().any(|file| file.is_some());
    if !asked && !tracing::enabled!(target: log::GRAPH, Level::INFO) {
        return Ok(());
    }
    let system = topology::load(env)?;
    let paths = Paths::new(&system, &Policy::from_config(env));
    info!(target: log::GRAPH, gpus = paths.gpus(), nets = paths.nets(), cpus = paths.cpus(), "System");
    for graph in file::load(&system, &paths, env, 1)?.iter() {
        info!(target: log::GRAPH, "Pattern {}, crossNic {}, nChannels {}, bw {:.1}/{:.1}, type {}/{}, sameChannels {}",
              graph.pattern as u32, u32::from(graph.cross_nic), graph.channels.len(), graph.bw_intra,
              graph.bw_inter, graph.kind_intra, graph.kind_inter, u32::from(graph.same_channels));
    }
    Ok(())
}
