//! Logs the machine's topology and channels when a communicator is made, and reads and writes their files, if settings ask
//! for that.

use ferroccl_device::abi::{NO_RANK, TreeLinks};
use tracing::{Level, info};

use super::control::RankOrder;
use super::trees::Trees;
use crate::config::Config;
use crate::error::Result;
use crate::log;
use ferroccl_topology::graph::file::GraphError;
use ferroccl_topology::graph::{HostGraphs, file};
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
    match file::load(&system, &paths, &env.search(), &env.graph_files(), 1) {
        Err(GraphError::NoChannels(why)) if env.graph_file.is_none() => {
            info!(target: log::GRAPH, "no channels: {why}");
        }
        graphs => log_graphs(&graphs?),
    }
    Ok(())
}

/// Logs what a host's channels come to, in NCCL's form.
pub(super) fn log_graphs(graphs: &HostGraphs) {
    for graph in graphs.iter() {
        info!(target: log::GRAPH, "Pattern {}, crossNic {}, nChannels {}, bw {:.1}/{:.1}, type {}/{}, sameChannels {}",
              graph.pattern as u32, u32::from(graph.cross_nic), graph.channels.len(), graph.bw_intra,
              graph.bw_inter, graph.kind_intra, graph.kind_inter, u32::from(graph.same_channels));
    }
}

/// Logs the rings and this rank's places in the trees, in NCCL's form: the rings by rank 0, as `Channel 00/02 : 0 1 2 3`, and
/// of each tree the children and the parent, as `[0] 2/1/-1->0->-1`.
pub(super) fn log_channels(rank: u32, rings: &[RankOrder], channels: u32, trees: &Trees) {
    if !tracing::enabled!(target: log::INIT, Level::INFO) {
        return;
    }
    for (channel, ring) in (0..channels).zip(rings.iter().cycle()).filter(|_| rank == 0) {
        let ranks: Vec<String> = ring.ranks.iter().map(u32::to_string).collect();
        info!(target: log::INIT, "Channel {channel:02}/{channels:02} : {}", ranks.join(" "));
    }
    let number = |rank: u32| if rank == NO_RANK { -1 } else { i64::from(rank) };
    let place = |(channel, links): (usize, &TreeLinks)| {
        let [a, b, c] = links.down.map(number);
        format!("[{channel}] {a}/{b}/{c}->{rank}->{}", number(links.up))
    };
    let places: Vec<String> = trees.own().iter().enumerate().map(place).collect();
    info!(target: log::INIT, "Trees {}", places.join(" "));
}
