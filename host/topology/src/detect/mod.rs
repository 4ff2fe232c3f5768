//! Finding the machine: what Linux and the GPUs' driver say, as the elements of a topology file.
//!
//! ```text
//!   /sys/devices/system/node, /proc/cpuinfo ─► cpu.rs ──┐
//!   /sys/bus/pci/devices ────────────────────► pci.rs ──┤
//!   /sys/class/infiniband, /sys/class/net ───► net.rs ──┼─► Element ─► build ─► trim ─► System
//!   the driver (a GpuSource) ─► gpu.rs, nvml.rs ────────┘      └─► NCCL_TOPO_DUMP_FILE
//! ```
//!
//! The machine becomes a file first and a system through [`build`], as in NCCL: what is
//! dumped is what was found, and what was found passes the same checks as any file.
//!
//! Only devices that can matter are looked at: GPUs that the driver names, cards with a port that is up, and what is
//! above them. Every path is below [`Roots`], so that a test's directory is a machine. What cannot be read, or makes
//! no sense, counts as not known: a machine with a broken device is still a machine.

mod cpu;
mod gpu;
mod net;
mod nvml;
mod pci;
mod sysfs;

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::assume::Assume;
use super::build::{self, UNSEEN_SWITCH};
use super::error::TopologyError;
use super::system::{BusId, System};
use super::trim::trim;
use super::xml::{Attribute, Element};
use cpu::Cpus;
use pci::PciTree;
use sysfs::Sys;

pub use gpu::{C2c, FoundGpu, GpuError, GpuSource, NoGpus, Peer};
pub use nvml::Nvml;

/// Where Linux' views of the machine are mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// Devices: `/sys`.
    pub sys: PathBuf,
    /// Processes and the CPU: `/proc`.
    pub proc: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Roots { sys: "/sys".into(), proc: "/proc".into() }
    }
}

/// What ranks run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Devices {
    /// GPUs, and nothing where there is none.
    Gpus,
    /// One device for each NUMA node with cores, whatever GPUs there are.
    Cpus,
    /// GPUs, or without any the CPU.
    #[default]
    GpusElseCpus,
}

/// A machine as it was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Detected {
    /// As a topology file.
    pub element: Element,
    /// As a system, without what no GPU reaches.
    pub system: System,
    /// What was taken for granted.
    pub notes: Vec<String>,
}

/// The name of the machine in errors and notes, in the place of a file's.
const MACHINE: &str = "this machine";

/// Finds the machine's NUMA nodes, GPUs, cards and what is between them.
///
/// ```
/// use ferroccl_topology::detect::{self, Devices, NoGpus, Roots};
///
/// let found = detect::machine(&Roots::default(), &NoGpus, Devices::Cpus)?;
/// assert!(found.system.gpus().iter().all(|(_, device)| device.sm == 0));
/// # Ok::<(), ferroccl_topology::TopologyError>(())
/// ```
///
/// # Errors
/// [`TopologyError::Gpus`] when the driver is there and fails; [`TopologyError::Xml`] when what was found makes no
/// system, such as more devices than NCCL's format bears.
pub fn machine(
    roots: &Roots,
    gpus: &dyn GpuSource,
    devices: Devices,
) -> Result<Detected, TopologyError> {
    let sys = Sys::new(&roots.sys);
    let mut notes = Vec::new();
    let found = if devices == Devices::Cpus { Vec::new() } else { gpus.gpus()? };
    let mut tree = PciTree::default();
    let mut cpus = Cpus::find(&sys, &roots.proc);
    for (dev, gpu) in found.iter().enumerate() {
        let element = gpu_element(dev, gpu, &found, &sys);
        tree.add(&sys, gpu.bus_id, "0x030200", element);
    }
    for (dev, net) in net::find(&sys).iter().enumerate() {
        let element = net.element(dev);
        match net.bus_id {
            Some(bus_id) => tree.add_port(&sys, bus_id, element),
            // As in NCCL, what is not on PCI is near the first.
            None => _ = cpus.add(None, Element::new("nic").holding(element)),
        }
    }
    for (numa, element) in tree.into_elements() {
        let bus_id = element.text("busid").unwrap_or_default().to_owned();
        if !cpus.add(numa, element) {
            let what = "does not know its NUMA node, taken to be near the first";
            notes.push(format!("{MACHINE}: {bus_id} {what}"));
        }
    }
    let cpu_devices = match devices {
        Devices::Gpus => false,
        Devices::Cpus => true,
        Devices::GpusElseCpus => found.is_empty(),
    };
    let element = cpus.into_system(cpu_devices);
    let built = build::system(&element, MACHINE, &Assume::default())?;
    notes.extend(built.notes);
    Ok(Detected { element, system: trim(&built.system), notes })
}

/// What the driver says of a GPU, as a `<gpu>`.
fn gpu_element(dev: usize, gpu: &FoundGpu, all: &[FoundGpu], sys: &Sys) -> Element {
    let mut element = Element::new("gpu")
        .with("dev", dev)
        .with("sm", gpu.sm)
        .with("gdr", u8::from(net::peer_memory(sys)));
    let mut links: Vec<(String, String, u32)> = Vec::new();
    for peer in &gpu.nvlinks {
        let (target, class) = match peer {
            Peer::Unseen => (UNSEEN_SWITCH.to_owned(), None),
            Peer::At(id) if all.iter().any(|other| other.bus_id == *id) => {
                (id.to_string(), Some("0x030200".to_owned()))
            }
            Peer::At(id) => (id.to_string(), pci::class(sys, *id)),
        };
        // A switch is often the host's and not the virtual machine's.
        let class = class.unwrap_or_else(|| build::NVSWITCH_CLASS.to_owned());
        match links.iter_mut().find(|(known, ..)| *known == target) {
            Some((.., count)) => *count += 1,
            None => links.push((target, class, 1)),
        }
    }
    for (target, class, count) in links {
        let link = Element::new("nvlink").with("target", target);
        element.children.push(link.with("count", count).with("tclass", class));
    }
    if let Some(C2c { mbytes_per_s, count }) = gpu.c2c {
        element.children.push(Element::new("c2c").with("bw", mbytes_per_s).with("count", count));
    }
    element
}

/// Fills in what a topology file leaves to the machine: for devices that are there, the attributes and elements
/// that the file does not have. What it has stays.
///
/// # Errors
/// [`TopologyError::Gpus`] when the driver is there and fails.
pub fn complete(
    root: &mut Element,
    roots: &Roots,
    gpus: &dyn GpuSource,
) -> Result<(), TopologyError> {
    let sys = Sys::new(&roots.sys);
    let found = gpus.gpus()?;
    let mut ports: BTreeMap<BusId, Vec<Element>> = BTreeMap::new();
    for (dev, net) in net::find(&sys).iter().enumerate() {
        let element = net.element(dev);
        if let Some(bus_id) = net.bus_id {
            ports.entry(bus_id).or_default().push(element);
        }
    }
    let machine = Cpus::find(&sys, &roots.proc);
    let mut rest: Vec<&mut Element> = Vec::new();
    for cpu in root.children.iter_mut().filter(|child| child.name == "cpu") {
        machine.complete(cpu);
        rest.extend(cpu.children.iter_mut());
    }
    while let Some(element) = rest.pop() {
        let bus_id = element.text("busid").and_then(|text| text.trim().parse::<BusId>().ok());
        if let (true, Some(bus_id)) = (element.name == "pci", bus_id) {
            pci::complete(element, &sys, bus_id);
            if let Some(dev) = found.iter().position(|gpu| gpu.bus_id == bus_id) {
                fill_child(element, gpu_element(dev, &found[dev], &found, &sys));
            }
            if let Some(ports) = ports.remove(&bus_id) {
                let nic = Element { children: ports, ..Element::new("nic") };
                fill_child(element, nic);
            }
        }
        rest.extend(element.children.iter_mut());
    }
    Ok(())
}

/// Adds what an element has to say to the child of its name, or as a new child.
fn fill_child(parent: &mut Element, from: Element) {
    let Some(known) = parent.children.iter_mut().find(|child| child.name == from.name) else {
        parent.children.push(from);
        return;
    };
    fill_attributes(known, from.attributes);
    // A file that lists links or ports means these and no others; a port of them is known by its name.
    let listed: Vec<String> = known.children.iter().map(|child| child.name.clone()).collect();
    for child in from.children {
        if !listed.contains(&child.name) {
            known.children.push(child);
            continue;
        }
        let same = |other: &&mut Element| {
            other.name == "net" && child.name == "net" && other.text("name") == child.text("name")
        };
        if let Some(port) = known.children.iter_mut().find(same) {
            fill_attributes(port, child.attributes);
        }
    }
}

fn fill_attributes(known: &mut Element, from: Vec<Attribute>) {
    for attribute in from {
        if known.text(&attribute.name).is_none() {
            known.attributes.push(attribute);
        }
    }
}
