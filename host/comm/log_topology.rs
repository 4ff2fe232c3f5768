//! Logs the machine's topology and channels when a communicator is made, and reads and writes their files, if settings ask
//! for that.

use tracing::{Level, info};

use crate::config::Config;
use crate::error::Result;
use crate::log;
use ferroccl_topology::graph::file;
use ferroccl_topology::{self as topology, Paths};

/// Logs topology and channels. Rank 0 of each group calls it. It reads nothing when no setting asks for it and no line would
/// be logged.
///
/// # Errors
/// [`Error::Topology`](crate::Error::Topology) and [`Error::Graph`](crate::Error::Graph): a file that makes no sense,
/// or cannot be read or written.
pub(super) fn log_topology(env: &Config) -> Result<()> {
    let files = [&env.topo_file, &env.topo_dump_file, &env.graph_file, &env.graph_dump_file];
    let asked = files.iter().any(|file| file.is_some());
    if !asked && !tracing::enabled!(target: log::GRAPH, Level::INFO) {
        return Ok(());
    }
    let system = topology::load(&env.topology_files())?;
    let paths = Paths::new(&system, &env.policy());
    info!(target: log::GRAPH, gpus = paths.gpus(), nets = paths.nets(), cpus = paths.cpus(), "System");
    for graph in file::load(&system, &paths, &env.search(), &env.graph_files(), 1)?.iter() {
        info!(target: log::GRAPH, "Pattern {}, crossNic {}, nChannels {}, bw {:.1}/{:.1}, type {}/{}, sameChannels {}",
              graph.pattern as u32, u32::from(graph.cross_nic), graph.channels.len(), graph.bw_intra,
              graph.bw_inter, graph.kind_intra, graph.kind_inter, u32::from(graph.same_channels));
    }
    Ok(())
}
