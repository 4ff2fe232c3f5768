//! From a [`System`] to NCCL's topology XML: the way back of [`build`].
//!
//! Reading what was written gives an equal system, numbers included, if the numbers were those that [`build`]
//! gives (and [`System::filtered`] leaves them so). The format does not say bandwidths but what they follow from:
//! generation and lanes, the count of `NVLink`s, the make of the CPUs. A system whose bandwidths follow from
//! nothing, made up by a test, say, cannot be written, and the error names the link.

use super::assume::{Assume, MOST_NVLINKS};
use super::build::{self, MOST_C2C_MBYTES, NVSWITCH_CLASS, UNSEEN_SWITCH, link_of};
use super::error::TopologyError;
use super::speed;
use super::system::{
    Arch, Cpu, CpuSet, Gpu, LinkId, LinkKind, Net, Nic, Node, NodeId, Pci, System, Vendor,
};
use super::xml::{Element, MOST_DEPTH};

/// Writes a system as the root element of a topology file.
///
/// ```
/// use ferroccl_topology::{Assume, build, dump, xml};
///
/// let text = r#"<system version="1"><cpu numaid="0">
///   <pci busid="0000:11:00.0" class="0x03" link_speed="16 GT/s" link_width="16"><gpu dev="0" sm="80" gdr="1"/></pci>
/// </cpu></system>"#;
/// let system = build::system(&xml::parse(text, "a.xml")?, "a.xml", &Assume::default())?.system;
/// let again = xml::parse(&dump::to_xml(&system)?.to_xml(), "b.xml")?;
/// assert_eq!(build::system(&again, "b.xml", &Assume::default())?.system, system);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`TopologyError::Unwritable`] names what the format cannot say: a bandwidth that no PCI link or number of
/// `NVLink`s has, a link that leads one way only, a device that hangs by nothing, two devices of one number.
pub fn to_xml(system: &System) -> Result<Element, TopologyError> {
    let mut writer = Writer {
        system,
        written: vec![false; system.nodes().len()],
        said: vec![false; system.links().len()],
    };
    let mut root = Element::new("system").with("version", 1);
    for (id, cpu) in system.cpus() {
        root.children.push(writer.cpu(id, cpu)?);
    }
    writer.between_cpus()?;
    if let Some(node) = (0..).zip(&writer.written).find(|(_, written)| !**written) {
        return Err(unwritable(format!("{} hangs by no CPU", system.name(NodeId(node.0)))));
    }
    if let Some((id, _)) = (0..).zip(&writer.said).find(|(_, said)| !**said) {
        return Err(writer.link_error(LinkId(id), "the format has no such link"));
    }
    // Whatever else a reader would refuse: numbers given twice, or past its bounds.
    let built = build::system(&root, "dump", &Assume::default());
    let built = built.map_err(|e| unwritable(e.to_string()))?.system;
    if (built.nodes().len(), built.links().len()) != (system.nodes().len(), system.links().len()) {
        return Err(unwritable("it would not be read back as it is"));
    }
    Ok(root)
}

fn unwritable(why: impl Into<String>) -> TopologyError {
    TopologyError::Unwritable(why.into())
}

struct Writer<'a> {
    system: &'a System,
    /// Nodes that an element stands for.
    written: Vec<bool>,
    /// Links that follow from the elements.
    said: Vec<bool>,
}

impl Writer<'_> {
    fn link_error(&self, id: LinkId, why: &str) -> TopologyError {
        let link = self.system.link(id);
        let (from, to) = (self.system.name(link.from), self.system.name(link.to));
        unwritable(format!("{from} -> {to} ({}, {} GB/s): {why}", link.kind, link.bw))
    }

    fn write(&mut self, id: NodeId) -> Result<(), TopologyError> {
        if std::mem::replace(&mut self.written[id.0 as usize], true) {
            return Err(unwritable(format!("{} hangs by two devices", self.system.name(id))));
        }
        Ok(())
    }

    /// Notes that a cable is said: this link and one back of the same bandwidth.
    fn say_both(&mut self, id: LinkId) -> Result<(), TopologyError> {
        let link = *self.system.link(id);
        let back = self
            .system
            .links_from(link.to)
            .find(|(_, back)| back.to == link.from && back.kind == link.kind && back.bw == link.bw);
        let Some((back, _)) = back else {
            return Err(self.link_error(id, "nothing of this bandwidth leads back"));
        };
        self.said[id.0 as usize] = true;
        self.said[back.0 as usize] = true;
        Ok(())
    }

    fn cpu(&mut self, id: NodeId, cpu: &Cpu) -> Result<Element, TopologyError> {
        self.write(id)?;
        let mut element = Element::new("cpu").with("numaid", cpu.numa);
        if cpu.affinity != CpuSet::default() {
            element.set("affinity", &cpu.affinity);
        }
        element.set(
            "arch",
            match cpu.arch {
                Arch::X86 => "x86_64",
                Arch::Arm => "arm64",
                Arch::Power => "ppc64",
                Arch::Other => "other",
            },
        );
        match cpu.vendor {
            Vendor::Intel => element.set("vendor", "GenuineIntel"),
            Vendor::Amd => element.set("vendor", "AuthenticAMD"),
            Vendor::Zhaoxin => element.set("vendor", "CentaurHauls"),
            Vendor::Other => {}
        }
        for (name, value) in [("familyid", cpu.family), ("modelid", cpu.model)] {
            if value > 0 {
                element.set(name, value);
            }
        }
        self.below(id, id, id, 1, &mut element)?;
        Ok(element)
    }

    /// Writes what hangs by a device into its element. `from` is what the device itself hangs by.
    fn below(
        &mut self,
        id: NodeId,
        from: NodeId,
        cpu: NodeId,
        depth: usize,
        element: &mut Element,
    ) -> Result<(), TopologyError> {
        // The system, its CPU, a GPU and its NVLink come on top.
        if depth > MOST_DEPTH - 4 {
            return Err(unwritable(format!("{} is too deep", self.system.name(id))));
        }
        let system = self.system;
        for (link_id, link) in system.links_from(id).filter(|(_, link)| link.to != from) {
            let node = system.node(link.to);
            match (link.kind, node) {
                (LinkKind::Loc, Node::Gpu(gpu)) if gpu.sm == 0 && id == cpu => {
                    self.exactly(link_id, speed::CPU_DEVICE)?;
                    self.write(link.to)?;
                    element.children.push(gpu_element(gpu));
                }
                (LinkKind::Loc, Node::Nic(Nic { bus_id: None })) if id == cpu => {
                    self.exactly(link_id, speed::LOC)?;
                    element.children.push(self.nic(link.to, id)?);
                }
                (LinkKind::Pci, _) => {
                    element.children.push(self.pci(link_id, cpu, depth)?);
                }
                (LinkKind::Loc, Node::Pci(other)) if system.joins_switches(link) => {
                    self.said[link_id.0 as usize] = true;
                    let target = other.bus_id;
                    element.children.push(Element::new("pcilink").with("target", target));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn exactly(&mut self, id: LinkId, bw: f64) -> Result<(), TopologyError> {
        if self.system.link(id).bw != bw {
            return Err(self.link_error(id, &format!("such a link has {bw} GB/s")));
        }
        self.say_both(id)
    }

    fn pci(&mut self, id: LinkId, cpu: NodeId, depth: usize) -> Result<Element, TopologyError> {
        self.say_both(id)?;
        let (system, link) = (self.system, *self.system.link(id));
        let Some((link_speed, link_width)) = link_of(link.bw) else {
            return Err(self.link_error(id, "no PCI generation and width has this bandwidth"));
        };
        let device = |bus_id, class| Element::new("pci").with("busid", bus_id).with("class", class);
        let speed = |element: Element| {
            element.with("link_speed", &link_speed).with("link_width", link_width)
        };
        match system.node(link.to) {
            Node::Pci(pci) => {
                self.write(link.to)?;
                let mut element = speed(numbers(device(pci.bus_id, "0x060400"), pci));
                self.below(link.to, link.from, cpu, depth + 1, &mut element)?;
                Ok(element)
            }
            Node::Gpu(gpu) => {
                self.write(link.to)?;
                let mut element = gpu_element(gpu);
                self.crossing(link.to, gpu, cpu, &mut element)?;
                Ok(speed(device(gpu.bus_id, "0x030200")).holding(element))
            }
            Node::Nic(Nic { bus_id: Some(bus_id) }) => {
                let element = speed(device(*bus_id, "0x020700"));
                Ok(element.holding(self.nic(link.to, link.from)?))
            }
            _ => Err(self.link_error(id, "that is no PCI device")),
        }
    }

    fn nic(&mut self, id: NodeId, from: NodeId) -> Result<Element, TopologyError> {
        self.write(id)?;
        let mut element = Element::new("nic");
        for (link_id, link) in self.system.links_from(id).filter(|(_, link)| link.to != from) {
            let (LinkKind::Net, Node::Net(net)) = (link.kind, self.system.node(link.to)) else {
                continue;
            };
            self.write(link.to)?;
            self.exactly(link_id, net.bw)?;
            let Some(mbits) = mbits_of(net.bw) else {
                return Err(self.link_error(link_id, "no speed in Mbit/s gives this bandwidth"));
            };
            element.children.push(net_element(net, mbits));
        }
        Ok(element)
    }

    /// The links of a GPU that cross the tree.
    fn crossing(
        &mut self,
        id: NodeId,
        gpu: &Gpu,
        cpu: NodeId,
        element: &mut Element,
    ) -> Result<(), TopologyError> {
        let system = self.system;
        for (link_id, link) in system.links_from(id) {
            let made = match (link.kind, system.node(link.to)) {
                (LinkKind::Nvl, Node::Gpu(other)) => {
                    let back = system
                        .links_from(link.to)
                        .any(|(_, back)| back.to == id && back.kind == LinkKind::Nvl);
                    if !back || link.to == id {
                        return Err(self.link_error(link_id, "nothing leads back"));
                    }
                    self.said[link_id.0 as usize] = true;
                    nvlink(other.bus_id, "0x030200")
                }
                (LinkKind::Nvl, Node::Nvs) => {
                    self.say_both(link_id)?;
                    self.written[link.to.0 as usize] = true;
                    nvlink(UNSEEN_SWITCH, NVSWITCH_CLASS)
                }
                (LinkKind::Nvl, Node::Cpu(_)) if link.to == cpu => {
                    self.say_both(link_id)?;
                    nvlink("0000:00:00.0", "0x068001")
                }
                (LinkKind::C2c, Node::Cpu(_)) if link.to == cpu => {
                    self.say_both(link_id)?;
                    let Some((bw, count)) = c2c_of(link.bw) else {
                        return Err(self.link_error(link_id, "no C2C links have this bandwidth"));
                    };
                    element.children.push(Element::new("c2c").with("bw", bw).with("count", count));
                    continue;
                }
                _ => continue,
            };
            let one = speed::nvlink(gpu.sm);
            let count = (link.bw / one).round();
            if !(1.0..=f64::from(MOST_NVLINKS)).contains(&count) || count * one != link.bw {
                let why = format!("no number of NVLinks of {one} GB/s has this bandwidth");
                return Err(self.link_error(link_id, &why));
            }
            element.children.push(made.with("count", count));
        }
        Ok(())
    }

    /// Checks that the CPUs are linked as every reader will link them.
    fn between_cpus(&mut self) -> Result<(), TopologyError> {
        let cpus = self.system.cpus();
        for &(from, cpu) in &cpus {
            for &(to, _) in cpus.iter().filter(|(to, _)| *to != from) {
                let link = self
                    .system
                    .links_from(from)
                    .find(|(_, link)| link.to == to && link.kind == LinkKind::Sys);
                let Some((id, link)) = link else {
                    let (from, to) = (self.system.name(from), self.system.name(to));
                    return Err(unwritable(format!("no link from {from} to {to}")));
                };
                if link.bw != speed::between_cpus(cpu) {
                    return Err(self.link_error(id, "CPUs of this make have another bandwidth"));
                }
                self.said[id.0 as usize] = true;
            }
        }
        Ok(())
    }
}

fn nvlink(target: impl std::fmt::Display, class: &str) -> Element {
    Element::new("nvlink").with("target", target).with("count", 0).with("tclass", class)
}

fn gpu_element(gpu: &Gpu) -> Element {
    let mut element = Element::new("gpu").with("dev", gpu.dev).with("sm", gpu.sm);
    if let Some(rank) = gpu.rank {
        element.set("rank", rank);
    }
    element.with("gdr", u8::from(gpu.gdr))
}

fn net_element(net: &Net, mbits: f64) -> Element {
    // Six digits, as NCCL has it, if they say it all.
    let six = format!("{:.6}", net.latency);
    let exact = six.parse() == Ok(net.latency);
    let latency = if exact { six } else { net.latency.to_string() };
    let element = Element::new("net")
        .with("name", &net.name)
        .with("dev", net.dev)
        .with("speed", mbits)
        .with("port", net.port)
        .with("latency", latency)
        .with("guid", format_args!("{:#x}", net.guid))
        .with("maxconn", net.max_conn)
        .with("gdr", u8::from(net.gdr));
    if net.coll { element.with("coll", 1) } else { element }
}

/// The vendor's and device's numbers of a switch, as far as known.
fn numbers(mut element: Element, pci: &Pci) -> Element {
    let names = ["vendor", "device", "subsystem_vendor", "subsystem_device"];
    for (name, id) in names.into_iter().zip(pci.device) {
        if id > 0 {
            element.set(name, format_args!("{id:#06x}"));
        }
    }
    element
}

/// The speed of a port in 10^6 bits a second that is read as this bandwidth: a whole one if there is one.
fn mbits_of(bw: f64) -> Option<f64> {
    let mbits = bw * 8000.0;
    [mbits.round(), mbits].into_iter().find(|mbits| *mbits > 0.0 && speed::net(*mbits) == bw)
}

/// Bandwidth in 10^6 bytes a second and count of C2C links that together are read as this bandwidth.
fn c2c_of(bw: f64) -> Option<(u64, u32)> {
    let mbytes = (bw * 1000.0).round();
    let most = f64::from(MOST_C2C_MBYTES) * f64::from(MOST_NVLINKS);
    if !(1.0..=most).contains(&mbytes) || speed::c2c(mbytes) != bw {
        return None;
    }
    let mbytes = mbytes as u64;
    let even = |count: &u32| mbytes.is_multiple_of(u64::from(*count));
    let one = |count: u32| mbytes / u64::from(count);
    (1..=MOST_NVLINKS)
        .filter(even)
        .find(|count| one(*count) <= u64::from(MOST_C2C_MBYTES))
        .map(|count| (one(count), count))
}
