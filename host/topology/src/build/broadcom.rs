//! Broadcom's PCI switches, whose inside Linux shows as several.
//!
//! A switch of the fourth or fifth generation shows as a switch with switches below it, although all its ports have their
//! full bandwidth: it is taken for one. Some are joined to others inside (`<pcilink>`), so that data does not go by the CPU.

use std::collections::BTreeMap;

use super::{Draft, Place};
use crate::system::{BusId, Pci};

/// The generation of one of Broadcom's switches by its numbers, as the upper one or as one below it (NCCL's `getBcmGen` in its
/// `topo.cc`).
fn generation(pci: &Pci, below: bool) -> Option<u32> {
    let [vendor, device, subsystem_vendor, subsystem] = pci.device;
    match (vendor, device, subsystem_vendor, subsystem >> 12) {
        (0x1000, 0xc010, 0x1000, 0xa) => Some(4),
        (0x1000, 0xc030, 0x1000, level) if level == u16::from(below) => Some(5),
        _ => None,
    }
}

impl Draft<'_> {
    /// Puts what hangs by a lower part of a switch by the upper one, and leaves the lower one out.
    pub(super) fn flatten_switches(&mut self) {
        // Switches stand after those that they hang by.
        let mut into: Vec<Option<usize>> = vec![None; self.pcis.len()];
        for upper in 0..self.pcis.len() {
            let Some(found) = generation(&self.pcis[upper], false) else { continue };
            if into[upper].is_some() {
                continue;
            }
            for (below, above, ..) in &self.tree {
                if let (Place::Pci(below), Place::Pci(above)) = (*below, *above)
                    && above == upper
                    && generation(&self.pcis[below], true) == Some(found)
                {
                    into[below] = Some(upper);
                }
            }
        }
        if into.iter().all(Option::is_none) {
            return;
        }
        let mut left = 0..;
        let places: Vec<Option<usize>> =
            into.iter().map(|into| into.is_none().then(|| left.next()).flatten()).collect();
        let now = |place: usize| places[into[place].unwrap_or(place)].unwrap_or_default();
        let moved = |place: Place| match place {
            Place::Pci(pci) => Place::Pci(now(pci)),
            other => other,
        };
        self.tree.retain(|(device, ..)| !matches!(device, Place::Pci(pci) if into[*pci].is_some()));
        for (device, above, ..) in &mut self.tree {
            (*device, *above) = (moved(*device), moved(*above));
        }
        for (_, switch, _) in &mut self.pci_links {
            *switch = now(*switch);
        }
        let gone = self.pcis.iter().zip(&into).filter(|(_, into)| into.is_some());
        self.flattened = gone
            .map(|(pci, _)| pci.bus_id)
            .zip(into.iter().flatten().map(|upper| now(*upper)))
            .collect();
        let mut kept = into.iter().map(Option::is_none);
        self.pcis.retain(|_| kept.next().unwrap_or(true));
    }

    /// The switches that are joined inside, each two once. What is joined to nothing here is noted.
    pub(super) fn links_between_switches(&mut self) -> Vec<(usize, usize)> {
        let mut places: BTreeMap<BusId, usize> =
            self.pcis.iter().enumerate().map(|(place, pci)| (pci.bus_id, place)).collect();
        places.append(&mut self.flattened);
        let mut links: Vec<(usize, usize)> = Vec::new();
        for (at, switch, target) in std::mem::take(&mut self.pci_links) {
            match places.get(&target) {
                Some(other) => links.push((switch.min(*other), switch.max(*other))),
                None => {
                    self.note(at, format!("leads to {target}, which is no switch here, left out"));
                }
            }
        }
        links.retain(|(one, other)| one != other);
        links.sort_unstable();
        links.dedup();
        links
    }
}
