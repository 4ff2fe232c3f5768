//! Graph files: the channels of a host in NCCL's format (`NCCL_GRAPH_FILE`, `NCCL_GRAPH_DUMP_FILE`).
//!
//! ```text
//! <graphs version="1">
//!   <graph id="0" pattern="4" nchannels="1" speedintra="12" ...>
//!     <channel> <net dev="0"/> <gpu dev="0"/> <gpu dev="1"/> <net dev="0"/> </channel>
//! ```
//!
//! A file names devices by their `dev`; a [`ChannelGraph`] by their places in the system's lists. What a file
//! says of speeds is kept: a person may know better than a model.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{ChannelGraph, GraphChannel, GraphId, HostGraphs, NoChannels, Pattern, SearchSettings};
use crate::Files;
use crate::xml::{self, Element, Located, XmlError};
use crate::{PathKind, Paths, System};

/// The version of the format that is read and written (`NCCL_GRAPH_XML_VERSION`).
const VERSION: u32 = 1;
/// Channels of a graph at most: NCCL's `MAXCHANNELS`.
const MOST_CHANNELS: usize = 64;
/// The largest speed and latency that make sense.
const MOST: f64 = 1e6;

/// What a file holds.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphFile {
    /// The graphs that this library knows.
    pub graphs: Vec<ChannelGraph>,
    /// What it does not know and left out, in words: NCCL writes graphs for `NVLS` too.
    pub notes: Vec<String>,
}

/// Why a host has no graphs.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// The search found none.
    #[error(transparent)]
    NoChannels(#[from] NoChannels),
    /// The file that `NCCL_GRAPH_FILE` names makes no sense.
    #[error(transparent)]
    File(#[from] XmlError),
    /// The file that `NCCL_GRAPH_DUMP_FILE` names cannot be written.
    #[error("{path}: {source}", path = path.display())]
    Dump {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Arc<io::Error>,
    },
}

/// A host's graphs: what the search finds, in place of that what the file to be read has (`NCCL_GRAPH_FILE`);
/// written to the file to be dumped (`NCCL_GRAPH_DUMP_FILE`). What of the file is left out is logged.
///
/// # Errors
/// [`GraphError`] when there are no channels, or a file cannot be read or written.
pub fn load(
    system: &System,
    paths: &Paths,
    settings: &SearchSettings,
    files: &Files,
    hosts: u32,
) -> Result<HostGraphs, GraphError> {
    let mut graphs = HostGraphs::search(system, paths, settings, hosts)?;
    if let Some(name) = &files.read {
        let file = read(&xml::read(Path::new(name))?, name, system)?;
        for note in &file.notes {
            tracing::info!(target: crate::LOG_TARGET, "{note}");
        }
        for graph in &file.graphs {
            if let Some(note) = overload(system, paths, graph) {
                tracing::warn!(target: crate::LOG_TARGET, "{name}: {note}");
            }
        }
        graphs.replace(file.graphs);
    }
    if let Some(name) = &files.dump {
        std::fs::write(name, to_xml(graphs.iter(), system).to_xml())
            .map_err(|e| GraphError::Dump { path: name.into(), source: Arc::new(e) })?;
    }
    Ok(graphs)
}

/// What is said of a graph whose channels need more of a link than it has.
fn overload(system: &System, paths: &Paths, graph: &ChannelGraph) -> Option<String> {
    let limit = super::limit(system, paths, graph).filter(super::Limit::is_exceeded)?;
    let link = system.link(*limit.links.first()?);
    Some(format!(
        "the channels of graph {} ({}) put {:.1} GB/s on the link from {} to {}, which has {:.1}",
        graph.id as u32,
        graph.pattern,
        limit.load,
        system.name(link.from),
        system.name(link.to),
        limit.bw
    ))
}

/// Reads the graphs of a file for a system; `file` names it in errors.
///
/// # Errors
/// [`XmlError`] names the line, element and attribute: another version, a device that the system does not
/// have, a channel that leaves out a GPU or has one twice, a number out of range.
pub fn read(root: &Element, file: &str, system: &System) -> Result<GraphFile, XmlError> {
    let root = root.in_file(file);
    if root.name() != "graphs" {
        return Err(root.error("not a graph file: the outermost element is not <graphs>"));
    }
    if root.number("version", 0..=u32::MAX)?.is_some_and(|version| version != VERSION) {
        return Err(root.wrong("version", format!("only version {VERSION} is known")));
    }
    let mut read = GraphFile { graphs: Vec::new(), notes: Vec::new() };
    for element in root.children() {
        if element.name() != "graph" {
            return Err(element.error("only <graph> is known here"));
        }
        let id = needed(element, "id", element.number("id", 0..=99u32)?)?;
        let pattern = needed(element, "pattern", element.number("pattern", 0..=99u32)?)?;
        let known_id = [GraphId::Ring, GraphId::Tree, GraphId::CollNet];
        let known_id = known_id.into_iter().find(|known| *known as u32 == id);
        let known_pattern = Pattern::ALL.into_iter().find(|known| *known as u32 == pattern);
        match (known_id, known_pattern) {
            (Some(id), Some(pattern)) if (id == GraphId::Ring) == (pattern == Pattern::Ring) => {
                if read.graphs.iter().any(|graph| graph.id == id) {
                    return Err(element.wrong("id", "there is a graph of this id already"));
                }
                read.graphs.push(graph(element, id, pattern, system)?);
            }
            (Some(GraphId::Ring), _) => {
                return Err(element.wrong("pattern", "a ring has pattern 4"));
            }
            _ => read.notes.push(format!(
                "{}: graph {id} of pattern {pattern} is left out: not known here",
                element.place()
            )),
        }
    }
    Ok(read)
}

fn needed<T>(element: Located<'_>, name: &str, value: Option<T>) -> Result<T, XmlError> {
    value.ok_or_else(|| element.missing(name))
}

fn graph(
    element: Located<'_>,
    id: GraphId,
    pattern: Pattern,
    system: &System,
) -> Result<ChannelGraph, XmlError> {
    let speed = |name: &str| {
        let value = needed(element, name, element.decimal(name, 0.0..=MOST)?)?;
        if value > 0.0 { Ok(value) } else { Err(element.wrong(name, "not more than 0")) }
    };
    let kind = |name: &str| Ok(element.parsed::<PathKind>(name)?.unwrap_or(PathKind::Sys));
    let channels = element
        .children()
        .map(|channel| read_channel(channel, system))
        .collect::<Result<Vec<_>, _>>()?;
    let count = element.number("nchannels", 0..=u32::MAX)?;
    if count.is_some_and(|count| count as usize != channels.len()) {
        return Err(element.wrong("nchannels", format!("there are {} channels", channels.len())));
    }
    if channels.is_empty() || channels.len() > MOST_CHANNELS {
        return Err(element.error(format!("{} channels, not 1 to {MOST_CHANNELS}", channels.len())));
    }
    if channels.windows(2).any(|pair| pair[0].nets.is_some() != pair[1].nets.is_some()) {
        return Err(element.error("some channels go to the network and some do not"));
    }
    Ok(ChannelGraph {
        id,
        pattern,
        cross_nic: element.number("crossnic", 0..=2u32)?.unwrap_or(0) > 0,
        same_channels: element.flag("samechannels")?.unwrap_or(false),
        bw_intra: speed("speedintra")?,
        bw_inter: speed("speedinter")?,
        latency_inter: element.decimal("latencyinter", 0.0..=MOST)?.unwrap_or(0.0),
        kind_intra: kind("typeintra")?,
        kind_inter: kind("typeinter")?,
        channels,
    })
}

fn read_channel(element: Located<'_>, system: &System) -> Result<GraphChannel, XmlError> {
    if element.name() != "channel" {
        return Err(element.error("only <channel> is known here"));
    }
    let (all_gpus, all_nets) = (system.gpus(), system.nets());
    let (mut gpus, mut nets) = (Vec::new(), Vec::new());
    for device in element.children() {
        let dev = needed(device, "dev", device.number("dev", 0..=u32::MAX)?)?;
        let unknown = || device.wrong("dev", "the system has no such device");
        match device.name() {
            "gpu" => {
                let place =
                    all_gpus.iter().position(|(_, gpu)| gpu.dev == dev).ok_or_else(unknown)?;
                if gpus.contains(&place) {
                    return Err(device.wrong("dev", "twice in one channel"));
                }
                gpus.push(place);
            }
            "net" => {
                let place =
                    all_nets.iter().position(|(_, net)| net.dev == dev).ok_or_else(unknown)?;
                nets.push((place, gpus.len()));
            }
            _ => return Err(device.error("only <gpu> and <net> are known here")),
        }
    }
    if gpus.len() != all_gpus.len() {
        let missing = (0..all_gpus.len()).find(|place| !gpus.contains(place));
        let missing = missing.map_or(0, |place| all_gpus[place].1.dev);
        return Err(element.error(format!("GPU {missing} is not in it")));
    }
    let nets = match nets[..] {
        [] => None,
        [(come, 0), (leave, last)] if last == gpus.len() => Some([come, leave]),
        _ => return Err(element.error("not one <net> before the GPUs and one after them")),
    };
    Ok(GraphChannel { nets, gpus })
}

/// The graphs as a file.
#[must_use]
pub fn to_xml<'a>(graphs: impl IntoIterator<Item = &'a ChannelGraph>, system: &System) -> Element {
    let (gpus, nets) = (system.gpus(), system.nets());
    let mut root = Element::new("graphs").with("version", VERSION);
    for graph in graphs {
        let mut element = Element::new("graph")
            .with("id", graph.id as u32)
            .with("pattern", graph.pattern as u32)
            .with("crossnic", u32::from(graph.cross_nic))
            .with("nchannels", graph.channels.len())
            .with("speedintra", graph.bw_intra)
            .with("speedinter", graph.bw_inter)
            .with("latencyinter", graph.latency_inter)
            .with("typeintra", graph.kind_intra)
            .with("typeinter", graph.kind_inter)
            .with("samechannels", u32::from(graph.same_channels));
        let device = |name: &str, dev: &dyn Display| Element::new(name).with("dev", dev);
        for channel in &graph.channels {
            let net = |i: usize| {
                channel
                    .nets
                    .and_then(|pair| nets.get(pair[i]))
                    .map(|(_, net)| device("net", &net.dev))
            };
            let inside = channel.gpus.iter().filter_map(|gpu| gpus.get(*gpu));
            let inside = inside.map(|(_, gpu)| device("gpu", &gpu.dev));
            let devices = net(0).into_iter().chain(inside).chain(net(1));
            let way = devices.fold(Element::new("channel"), Element::holding);
            element = element.holding(way);
        }
        root = root.holding(element);
    }
    root
}
