//! NUMA nodes and what they are made of.

use std::path::Path;

use super::sysfs::{self, Sys};
use crate::system::CpuSet;
use crate::xml::Element;

/// Cores that a list may name, as many as a [`CpuSet`] holds.
const MOST_CORES: usize = 32_768;

/// The NUMA nodes, with what hangs by them.
pub(super) struct Cpus {
    /// By number, ascending; at least one.
    nodes: Vec<(u32, Element)>,
}

impl Cpus {
    /// Reads the nodes of `devices/system/node` and the make of the CPU. A machine that shows none has one.
    pub(super) fn find(sys: &Sys, proc: &Path) -> Cpus {
        let make = make(&sysfs::text(&proc.join("cpuinfo")).unwrap_or_default());
        let place = sys.path("devices/system/node");
        let mut nodes: Vec<(u32, Element)> = sysfs::names(&place)
            .into_iter()
            .filter_map(|name| {
                let number = name.strip_prefix("node")?.parse().ok()?;
                let cores = sysfs::text(&place.join(&name).join("cpulist")).unwrap_or_default();
                Some((number, node(number, &cores, &make)))
            })
            .collect();
        nodes.sort_by_key(|(number, _)| *number);
        nodes.dedup_by_key(|(number, _)| *number);
        if nodes.is_empty() {
            let cores = sysfs::text(&sys.path("devices/system/cpu/online")).unwrap_or_default();
            nodes.push((0, node(0, &cores, &make)));
        }
        Cpus { nodes }
    }

    /// Hangs a device under a node, without a number or with that of one that is not there under the first; whether
    /// the node was the right one.
    pub(super) fn add(&mut self, numa: Option<u32>, device: Element) -> bool {
        let place = self.nodes.iter().position(|(number, _)| Some(*number) == numa);
        if let Some((_, node)) = self.nodes.get_mut(place.unwrap_or(0)) {
            node.children.push(device);
        }
        place.is_some()
    }

    /// The root of a topology file: the nodes that something hangs by, and with `devices` those with cores.
    pub(super) fn into_system(self, devices: bool) -> Element {
        let mut root = Element::new("system").with("version", 1);
        // Where no node shows its cores, the first has them all.
        let any_cores = self.nodes.iter().any(|(_, node)| node.text("affinity").is_some());
        let mut dev = 0;
        for (i, (_, mut node)) in self.nodes.into_iter().enumerate() {
            let cores = node.text("affinity").is_some() || (!any_cores && i == 0);
            if devices && cores {
                let device = Element::new("gpu").with("dev", dev).with("sm", 0).with("gdr", 0);
                node.children.push(device);
                dev += 1;
            }
            if !node.children.is_empty() {
                root.children.push(node);
            }
        }
        root
    }

    /// Fills in what a file's `<cpu>` does not say.
    pub(super) fn complete(&self, cpu: &mut Element) {
        let number = cpu.text("numaid").and_then(|text| text.trim().parse::<u32>().ok());
        let Some((_, known)) = self.nodes.iter().find(|(node, _)| Some(*node) == number) else {
            return;
        };
        // A file that names another make means another machine's.
        let foreign = ["arch", "vendor"]
            .into_iter()
            .any(|name| cpu.text(name).is_some_and(|text| Some(text) != known.text(name)));
        for attribute in &known.attributes {
            let cores = attribute.name == "affinity";
            if cpu.text(&attribute.name).is_none() && (cores || !foreign) {
                cpu.set(&attribute.name, &attribute.value);
            }
        }
    }
}

/// A `<cpu>` with these cores, of this make.
fn node(number: u32, cores: &str, make: &[(&str, String)]) -> Element {
    let mut element = Element::new("cpu").with("numaid", number);
    let cores = cpu_list(cores);
    if !cores.is_empty() {
        element.set("affinity", cores);
    }
    for (name, value) in make {
        element.set(name, value);
    }
    element
}

/// Reads a list such as `0-3,8`; what is not a range in it is passed over.
fn cpu_list(text: &str) -> CpuSet {
    let range = |range: &str| {
        let (first, last) = range.trim().split_once('-').unwrap_or((range.trim(), range.trim()));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        Some(first..=last.min(MOST_CORES))
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// The make of the first core of `/proc/cpuinfo`, as attributes.
fn make(cpuinfo: &str) -> Vec<(&'static str, String)> {
    let value = |key: &str| {
        cpuinfo.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            // Shanghai's name has spaces around it, which mean nothing.
            (name.trim() == key).then(|| value.trim().to_owned())
        })
    };
    let number = |key: &str| value(key).filter(|text| text.parse::<u16>().is_ok());
    let mut make = Vec::new();
    if let Some(vendor) = value("vendor_id").filter(|vendor| !vendor.is_empty()) {
        make.push(("arch", "x86_64".to_owned()));
        make.push(("vendor", vendor));
        make.extend(number("cpu family").map(|family| ("familyid", family)));
        make.extend(number("model").map(|model| ("modelid", model)));
    } else if value("CPU implementer").is_some() {
        make.push(("arch", "arm64".to_owned()));
    } else if value("cpu").is_some_and(|cpu| cpu.starts_with("POWER")) {
        make.push(("arch", "ppc64".to_owned()));
    } else {
        let arch = std::env::consts::ARCH;
        make.push(("arch", if arch == "aarch64" { "arm64" } else { arch }.to_owned()));
    }
    make
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores() {
        let cores = |text: &str| cpu_list(text).iter().collect::<Vec<_>>();
        assert_eq!(cores("0-2,5, 7-7"), [0, 1, 2, 5, 7]);
        assert_eq!(cores(""), [0; 0]);
        assert_eq!(cores("x,3-,-4,9-8,-1,1"), [1]);
        assert_eq!(cores("32766-99999999999"), [32_766, 32_767]);
    }

    #[test]
    fn makes_of_cpus() {
        let intel = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: X\n";
        let made = make(intel);
        let want =
            [("arch", "x86_64"), ("vendor", "GenuineIntel"), ("familyid", "6"), ("modelid", "143")];
        assert_eq!(made, want.map(|(name, value)| (name, value.to_owned())));
        assert_eq!(make("CPU implementer\t: 0x41\n"), [("arch", "arm64".to_owned())]);
        assert_eq!(make("cpu\t\t: POWER9, altivec\n"), [("arch", "ppc64".to_owned())]);
        assert_eq!(make("vendor_id: Odd\nmodel: many\n").len(), 2);
    }
}
