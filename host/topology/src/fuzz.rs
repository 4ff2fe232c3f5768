//! What fuzzing gives topologies, and what must hold: see `fuzz/README.md`. No part of the public interface.

use std::sync::OnceLock;

use ferroccl_device::abi::{Collective, ProtocolId};

use crate::graph::file;
use crate::graph::tuning::{Algorithm, Selectable, Selection};
use crate::{Assume, BusId, CpuSet, PathKind, Paths, Policy, System, build, dump, trim, xml};

/// A text as a topology file, with the assumptions of a person who has left something out of it.
pub fn topology(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let root = match xml::parse(text, "fuzz.xml") {
        Ok(root) => root,
        Err(error) => return assert!(error.to_string().starts_with("fuzz.xml:"), "{error}"),
    };
    assert_eq!(xml::parse(&root.to_xml(), "again").map(|again| again.to_xml()), Ok(root.to_xml()));
    for assume in [Assume::default(), "sm=80,nvswitch=12,pci=4,net=100000".parse().unwrap()] {
        match build::system(&root, "fuzz.xml", &assume) {
            Ok(built) => check(&built.system),
            Err(error) => assert!(error.to_string().starts_with("fuzz.xml"), "{error}"),
        }
    }
}

/// What those rely on who take a system.
fn check(system: &System) {
    for link in system.links() {
        assert!(link.bw.is_finite() && link.bw >= 0.0, "{link:?}");
    }
    // A file is small, and so should a system be; paths take the square of it.
    if system.nodes().len() < 200 {
        for system in [system, &trim(system)] {
            let paths = Paths::new(system, &Policy::default());
            for gpu in 0..paths.gpus() {
                for net in 0..paths.nets() {
                    let _ = (paths.gpu_net(gpu, net).hops(), paths.net_gpu(net, gpu).exists());
                }
                let _ = (crate::affinity(system, &paths, gpu), paths.local_cpu(gpu));
            }
        }
    }
    // What can be dumped is read back.
    if let Ok(root) = dump::to_xml(system) {
        let text = root.to_xml();
        let again = xml::parse(&text, "dump").unwrap_or_else(|error| panic!("{error}\n{text}"));
        let again = build::system(&again, "dump", &Assume::default());
        let again = again.unwrap_or_else(|error| panic!("{error}\n{text}")).system;
        let twice = dump::to_xml(&again).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(twice.to_xml(), text, "a dump of a dump");
    }
}

/// A text as a graph file for a host of eight GPUs and four network cards.
pub fn graphs(data: &[u8]) {
    static SYSTEM: OnceLock<System> = OnceLock::new();
    let system = SYSTEM.get_or_init(|| {
        let text = include_str!("../../../tests/topology_files/dgx-a100.xml");
        let root = xml::parse(text, "dgx-a100.xml").unwrap();
        build::system(&root, "dgx-a100.xml", &Assume::default()).unwrap().system
    });
    let Ok(text) = str::from_utf8(data) else { return };
    let Ok(root) = xml::parse(text, "graph.xml") else { return };
    let read = match file::read(&root, "graph.xml", system) {
        Ok(read) => read,
        Err(error) => return assert!(error.to_string().starts_with("graph.xml:"), "{error}"),
    };
    let (gpus, nets) = (system.gpus().len(), system.nets().len());
    for graph in &read.graphs {
        assert!((1..=64).contains(&graph.channels.len()));
        assert!(graph.bw_intra > 0.0 && graph.bw_inter > 0.0 && graph.latency_inter >= 0.0);
        for channel in &graph.channels {
            assert!((0..gpus).all(|gpu| channel.gpus.contains(&gpu)) && channel.gpus.len() == gpus);
            assert!(channel.nets.iter().flatten().all(|net| *net < nets));
        }
    }
    let written = file::to_xml(&read.graphs, system).to_xml();
    let again = file::read(&xml::parse(&written, "again").unwrap(), "again", system).unwrap();
    assert_eq!(again.graphs, read.graphs, "{written}");
}

/// A text as each of the small things that files and settings are made of.
pub fn words(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    if let Ok(id) = text.parse::<BusId>() {
        assert_eq!(id.to_string().parse().as_ref(), Ok(&id), "{text:?}");
    }
    if let Ok(kind) = text.parse::<PathKind>() {
        assert_eq!(kind.to_string().parse().as_ref(), Ok(&kind), "{text:?}");
    }
    if let Ok(set) = text.parse::<CpuSet>() {
        assert_eq!(set.to_string().parse().as_ref(), Ok(&set), "{text:?}");
        let again: CpuSet = set.iter().collect();
        assert!(again.iter().eq(set.iter()), "{text:?}");
    }
    if let Ok(assume) = text.parse::<Assume>() {
        assert_eq!(assume.to_string().parse().as_ref(), Ok(&assume), "{text:?}");
    }
    selection::<Algorithm>(text, &["NVLSTree"]);
    selection::<ProtocolId>(text, &[]);
}

fn selection<T: Selectable>(text: &str, elsewhere: &[&'static str]) {
    let Ok(list) = Selection::<T>::parse(text, elsewhere) else { return };
    let again = Selection::<T>::parse(&list.to_string(), &[]).unwrap_or_else(|e| panic!("{e}"));
    for collective in Collective::ALL {
        assert!(list.iter(*collective).next().is_some(), "{text:?} leaves nothing");
        assert!(list.iter(*collective).eq(again.iter(*collective)), "{text:?}");
    }
}

#[cfg(test)]
#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::seeds;

    #[test]
    fn what_fuzzing_begins_with_passes() {
        seeds::replay(&[
            ("topology_files", super::topology),
            ("topology_graphs", super::graphs),
            ("topology_words", super::words),
        ]);
    }
}
