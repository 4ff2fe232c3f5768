//! The links that cross the tree: `NVLink` and C2C, each direction by itself.

use std::collections::BTreeMap;

use super::{Draft, Place, Target};
use crate::assume::{MOST_NVLINKS, NvLinks};
use crate::speed;
use crate::system::{BusId, LinkKind};
use crate::xml::XmlError;

/// One direction: from, to, what by, bandwidth.
type Crossing = (Place, Place, LinkKind, f64);

impl Draft<'_> {
    /// The crossing links, GPU by GPU in the order given.
    ///
    /// A file lists for each GPU what leaves it, so that the cable between two GPUs stands at both. Where only one
    /// of them has it, it is taken to lead both ways.
    ///
    /// # Errors
    /// More links than any GPU has.
    pub(super) fn crossing_links(&mut self, order: &[usize]) -> Result<Vec<Crossing>, XmlError> {
        let mut lists = self.listed();
        if !self.has_nvlinks {
            self.assumed(&mut lists);
        }
        let one_sided: Vec<(usize, usize, u32)> = order
            .iter()
            .flat_map(|&a| lists[a].iter().map(move |link| (a, *link)))
            .filter_map(|(a, (to, count))| match to {
                Place::Gpu(b) if !lists[b].iter().any(|(to, _)| *to == Place::Gpu(a)) => {
                    Some((a, b, count))
                }
                _ => None,
            })
            .collect();
        for (a, b, count) in one_sided {
            lists[b].push((Place::Gpu(a), count));
        }
        for (gpu, list) in self.gpus.iter().zip(&lists) {
            let links: u64 = list.iter().map(|(_, count)| u64::from(*count)).sum();
            if links > MOST_NVLINKS.into() {
                return Err(gpu.at.error(format!("{links} NVLinks, more than {MOST_NVLINKS}")));
            }
        }
        let mut crossing = Vec::new();
        for &from in order {
            for &(to, count) in &lists[from] {
                let bw = f64::from(count) * speed::nvlink(self.gpus[from].gpu.sm);
                crossing.push((Place::Gpu(from), to, LinkKind::Nvl, bw));
                if !matches!(to, Place::Gpu(_)) {
                    crossing.push((to, Place::Gpu(from), LinkKind::Nvl, bw));
                }
            }
        }
        for &gpu in order {
            let (cpu, bw) = (Place::Cpu(self.gpus[gpu].cpu), self.gpus[gpu].c2c);
            if bw > 0.0 {
                crossing.push((Place::Gpu(gpu), cpu, LinkKind::C2c, bw));
                crossing.push((cpu, Place::Gpu(gpu), LinkKind::C2c, bw));
            }
        }
        Ok(crossing)
    }

    /// What each GPU lists, links to one target together; what leads nowhere is noted and left out.
    fn listed(&mut self) -> Vec<Vec<(Place, u32)>> {
        // CPU devices have no address.
        let real = self.gpus.iter().enumerate().filter(|(_, gpu)| gpu.gpu.sm > 0);
        let place: BTreeMap<BusId, usize> = real.map(|(i, gpu)| (gpu.gpu.bus_id, i)).collect();
        let mut lists: Vec<Vec<(Place, u32)>> = vec![Vec::new(); self.gpus.len()];
        let mut notes = Vec::new();
        for (i, gpu) in self.gpus.iter().enumerate() {
            for link in &gpu.nvlinks {
                let to = match link.target {
                    Target::Switch => Place::Nvs,
                    Target::Cpu => Place::Cpu(gpu.cpu),
                    Target::GpuOrSwitch(id) if !place.contains_key(&id) => Place::Nvs,
                    Target::Gpu(id) | Target::GpuOrSwitch(id) if id == gpu.gpu.bus_id => {
                        notes.push((link.at, "leads to its own GPU, left out".to_owned()));
                        continue;
                    }
                    Target::Gpu(id) | Target::GpuOrSwitch(id) => match place.get(&id) {
                        Some(other) => Place::Gpu(*other),
                        None => {
                            notes.push((
                                link.at,
                                format!("leads to {id}, which is not here, left out"),
                            ));
                            continue;
                        }
                    },
                };
                match lists[i].iter_mut().find(|(known, _)| *known == to) {
                    Some((_, count)) => *count = count.saturating_add(link.count),
                    None => lists[i].push((to, link.count)),
                }
            }
        }
        for (at, what) in notes {
            self.note(at, what);
        }
        lists
    }

    /// Adds the links that are to be assumed.
    fn assumed(&mut self, lists: &mut [Vec<(Place, u32)>]) {
        let Some(links) = self.assume.nvlinks else { return };
        // CPU devices have none.
        let gpus: Vec<usize> = (0..lists.len()).filter(|i| self.gpus[*i].gpu.sm > 0).collect();
        for &a in &gpus {
            match links {
                NvLinks::Switch(count) => lists[a].push((Place::Nvs, count)),
                NvLinks::Pairs(count) => lists[a]
                    .extend(gpus.iter().filter(|b| **b != a).map(|b| (Place::Gpu(*b), count))),
            }
        }
    }
}
