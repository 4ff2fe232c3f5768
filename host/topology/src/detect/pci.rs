//! PCI devices and the switches above them, from the real paths of `bus/pci/devices`.
//!
//! ```text
//!   /sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:04.0/0000:03:00.0
//!                           root port    switch, up   switch, down  device
//! ```
//!
//! Each device has the port it is plugged into above it. Of a switch, the upstream port stands for all of it: so
//! every second component, from the device up, is an element of its own, and the others give their speeds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::sysfs::{self, Sys};
use crate::build::{MOST_LANES, gt_per_s};
use crate::system::BusId;
use crate::xml::Element;

/// Devices and what is above them, by address.
#[derive(Default)]
pub(super) struct PciTree {
    devices: BTreeMap<BusId, Device>,
}

struct Device {
    above: Option<BusId>,
    numa: Option<u32>,
    element: Element,
}

impl PciTree {
    /// Adds a device and what is above it; `device` goes into its element.
    pub(super) fn add(&mut self, sys: &Sys, bus_id: BusId, class: &str, device: Element) {
        self.place(sys, bus_id, class).children.push(device);
    }

    /// Adds a port to a card's `<nic>`, and the card where it is new.
    pub(super) fn add_port(&mut self, sys: &Sys, bus_id: BusId, port: Element) {
        let card = self.place(sys, bus_id, "0x020000");
        match card.children.iter_mut().find(|child| child.name == "nic") {
            Some(nic) => nic.children.push(port),
            None => card.children.push(Element::new("nic").holding(port)),
        }
    }

    /// The element of a device, which is added where it is new.
    fn place(&mut self, sys: &Sys, bus_id: BusId, class: &str) -> &mut Element {
        let mut below = None;
        for (path, id) in chain(sys, bus_id) {
            if let Some(below) = below.and_then(|below| self.devices.get_mut(&below)) {
                below.above = Some(id);
            }
            if self.devices.contains_key(&id) {
                break;
            }
            let class = if below.is_none() { class } else { "0x060400" };
            let mut element = Element::new("pci").with("busid", id);
            describe(&mut element, sys, path.as_deref());
            if element.text("class").is_none() || below.is_some() {
                element.set("class", class);
            }
            let numa = path.as_ref().and_then(|path| sysfs::text(&path.join("numa_node")));
            let numa = numa.and_then(|text| text.parse().ok());
            self.devices.insert(id, Device { above: None, numa, element });
            below = Some(id);
        }
        // The chain begins with the device itself, so that it is there.
        &mut self
            .devices
            .entry(bus_id)
            .or_insert_with(|| Device {
                above: None,
                numa: None,
                element: Element::new("pci").with("busid", bus_id).with("class", class),
            })
            .element
    }

    /// What hangs by the CPUs, and the number of the NUMA node that each is near.
    pub(super) fn into_elements(mut self) -> Vec<(Option<u32>, Element)> {
        // Deepest first: what is above comes later in this order than all that is below.
        let mut order: Vec<(usize, BusId)> =
            self.devices.keys().map(|id| (self.depth(*id), *id)).collect();
        order.sort_unstable_by(|a, b| b.cmp(a));
        let mut roots = Vec::new();
        for (_, id) in order {
            let Some(device) = self.devices.remove(&id) else { continue };
            match device.above.and_then(|above| self.devices.get_mut(&above)) {
                Some(above) => {
                    // By address, as in NCCL; the highest came first.
                    above.element.children.insert(0, device.element);
                    above.numa = above.numa.or(device.numa);
                }
                None => roots.push((device.numa, device.element)),
            }
        }
        roots.reverse();
        roots
    }

    fn depth(&self, id: BusId) -> usize {
        let above = |id: &BusId| self.devices.get(id).and_then(|device| device.above);
        std::iter::successors(Some(id), above).count()
    }
}

/// A device and the switches above it with their places, from the device up. A device that sysfs does not show is
/// alone and has no place.
fn chain(sys: &Sys, bus_id: BusId) -> Vec<(Option<PathBuf>, BusId)> {
    let Some(real) = sys.real(&place(sys, bus_id)) else { return vec![(None, bus_id)] };
    let mut chain: Vec<(Option<PathBuf>, BusId)> = Vec::new();
    let mut at = Some(real.as_path());
    while let Some(path) = at {
        let Some(id) = address(path) else { break };
        // No device is above itself.
        if chain.iter().any(|(_, below)| *below == id) {
            break;
        }
        chain.push((Some(path.to_owned()), id));
        // Past the port it is plugged into.
        at = path.parent().filter(|port| address(port).is_some()).and_then(Path::parent);
    }
    match chain.first() {
        Some((_, first)) if *first == bus_id => chain,
        _ => vec![(None, bus_id)],
    }
}

fn place(sys: &Sys, bus_id: BusId) -> PathBuf {
    sys.path("bus/pci/devices").join(bus_id.to_string())
}

/// The address that a directory is named for.
pub(super) fn address(path: &Path) -> Option<BusId> {
    let name = path.file_name()?.to_str()?;
    // In full: 0000:c1:00.0.
    (name.matches(':').count() == 2).then(|| name.parse().ok())?
}

/// The class of a device, where it is seen and makes sense.
pub(super) fn class(sys: &Sys, bus_id: BusId) -> Option<String> {
    hexadecimal(&place(sys, bus_id).join("class"), 6)
}

/// A number such as `0x10de` of so many digits.
fn hexadecimal(path: &Path, digits: usize) -> Option<String> {
    sysfs::text(path).filter(|text| {
        let number = text.strip_prefix("0x").unwrap_or_default();
        number.len() == digits && number.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// Adds what sysfs says of a device to its element, where that does not say it already.
fn describe(element: &mut Element, sys: &Sys, path: Option<&Path>) {
    let mut set = |name: &str, value: Option<String>| {
        if let (None, Some(value)) = (element.text(name), value) {
            element.set(name, value);
        }
    };
    let Some(path) = path else {
        set("link_speed", Some(String::new()));
        set("link_width", Some("0".to_owned()));
        return;
    };
    set("class", hexadecimal(&path.join("class"), 6));
    for name in ["vendor", "device", "subsystem_vendor", "subsystem_device"] {
        set(name, hexadecimal(&path.join(name), 4));
    }
    // A link is as fast as the slower of its ends; what only one end knows is what is known.
    let ends = || [Some(path), path.parent()].into_iter().flatten();
    let speed = ends()
        .filter_map(|end| sysfs::text(&end.join("max_link_speed")))
        .filter_map(|text| gt_per_s(&text).ok().flatten())
        .min_by(f64::total_cmp);
    let width = ends()
        .filter_map(|end| sysfs::text(&end.join("max_link_width")))
        .filter_map(|text| text.parse::<u32>().ok())
        // 0 and 255 are said by devices that do not know.
        .filter(|lanes| (1..=MOST_LANES).contains(lanes))
        .min();
    set("link_speed", Some(speed.map_or_else(String::new, |gt| format!("{gt:.1} GT/s PCIe"))));
    set("link_width", Some(width.unwrap_or(0).to_string()));
    // A switch of Broadcom's.
    let broadcom = element.text("vendor") == Some("0x1000")
        && element.text("class").is_some_and(|class| class.starts_with("0x0604"));
    if broadcom && element.children.iter().all(|child| child.name != "pcilink") {
        element.children.extend(joined_switches(sys, path));
    }
}

/// The switches that one is joined to inside, as Broadcom's driver lists them (NCCL's `ncclOsGetBcmLinks`).
fn joined_switches(sys: &Sys, switch: &Path) -> Vec<Element> {
    let Some(id) = address(switch) else { return Vec::new() };
    let links = sys.path("kernel/pci_switch_link/virtual_switch_links").join(id.to_string());
    let others = sysfs::names(&links).into_iter().filter_map(|name| address(Path::new(&name)));
    others.map(|other| Element::new("pcilink").with("target", other)).collect()
}

/// Adds what sysfs says of a file's device, where it is there.
pub(super) fn complete(element: &mut Element, sys: &Sys, bus_id: BusId) {
    if let Some(path) = sys.real(&place(sys, bus_id)) {
        describe(element, sys, Some(&path));
    }
}
