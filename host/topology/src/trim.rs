//! Leaving out what no GPU has a use for.

use super::system::{LinkKind, Node, NodeId, System};

/// The system without what no GPU reaches, and without switches and CPUs that lead nowhere. A system without GPUs
/// stays as it is.
///
/// ```
/// use ferroccl_topology::{Assume, build, trim, xml};
///
/// let text = r#"<system version="1"><cpu numaid="0">
///   <pci busid="0000:10:00.0" class="0x060400"/>
///   <pci busid="0000:11:00.0" class="0x03"><gpu sm="80"/></pci>
/// </cpu><cpu numaid="1"/></system>"#;
/// let system = build::system(&xml::parse(text, "a.xml")?, "a.xml", &Assume::default())?.system;
/// assert_eq!((system.nodes().len(), trim(&system).nodes().len()), (4, 2)); // a GPU and its CPU
/// # Ok::<(), ferroccl_topology::TopologyError>(())
/// ```
#[must_use]
pub fn trim(system: &System) -> System {
    let mut reached: Vec<NodeId> = system.gpus().iter().map(|(id, _)| *id).collect();
    if reached.is_empty() {
        return system.clone();
    }
    let mut keep = vec![false; system.nodes().len()];
    while let Some(id) = reached.pop() {
        if !std::mem::replace(&mut keep[id.0 as usize], true) {
            reached.extend(system.links_from(id).map(|(_, link)| link.to));
        }
    }
    // A switch is of use between two devices, a CPU to one.
    let uses = |keep: &[bool], id: NodeId| {
        let mut others: Vec<NodeId> = system
            .links_from(id)
            .filter(|(_, link)| link.kind != LinkKind::Sys && keep[link.to.0 as usize])
            .map(|(_, link)| link.to)
            .collect();
        others.sort_unstable();
        others.dedup();
        others.len()
    };
    loop {
        let useless: Vec<NodeId> = system
            .nodes()
            .filter(|(id, node)| {
                keep[id.0 as usize]
                    && match node {
                        Node::Pci(_) => uses(&keep, *id) < 2,
                        Node::Cpu(_) | Node::Nic(_) => uses(&keep, *id) < 1,
                        Node::Gpu(_) | Node::Nvs | Node::Net(_) => false,
                    }
            })
            .map(|(id, _)| id)
            .collect();
        if useless.is_empty() {
            return system.filtered(|id, _| keep[id.0 as usize]);
        }
        useless.iter().for_each(|id| keep[id.0 as usize] = false);
    }
}
