//! From NCCL's topology XML to a [`System`].
//!
//! ```text
//!   <system version="1">
//!     <cpu numaid="0" affinity="ff" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">
//!       <pci busid="0000:10:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">    a switch
//!         <pci busid="0000:11:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">
//!           <gpu dev="0" sm="80" rank="0" gdr="1"><nvlink target="0000:c0:00.0" count="12" tclass="0x068000"/></gpu>
//!         </pci>
//!         <pci busid="0000:19:00.0" class="0x020700" link_speed="16 GT/s" link_width="16">
//!           <nic><net name="mlx5_0" dev="0" speed="200000" port="1" guid="0x1" gdr="1"/></nic>
//!         </pci> ...
//! ```
//!
//! What encloses an element is what its device hangs by, with the bandwidth of its own link. Links that cross the
//! tree (`NVLink`, C2C, CPU to CPU) come after it. Two walks: [`devices`] reads elements into a draft that knows them
//! by their place in the file; then nodes get their numbers and links their ends. Numbers follow the file: GPUs by
//! `dev`, switches, the `NVSwitch`es, CPUs, cards, ports by `dev`; what has no `dev` takes the free ones in order.
//!
//! What NCCL lets pass, passes: attributes may be missing where there is a sensible default, and unknown elements
//! are passed over with a note. What cannot be (two devices of one address, 9999 lanes) is an error. What only the
//! device itself could say, such as a GPU's compute capability, an [`Assume`] has to.

mod broadcom;
mod devices;
mod links;
mod pci;

use std::collections::BTreeMap;

use super::assume::Assume;
use super::error::TopologyError;
use super::speed;
use super::system::{BusId, Cpu, Gpu, LinkKind, Net, Nic, Node, NodeId, Pci, System};
use super::xml::{Element, Located, XmlError};

pub(super) use devices::{MOST_C2C_MBYTES, NVSWITCH_CLASS, UNSEEN_SWITCH};
pub(super) use pci::{MOST_LANES, gt_per_s, link_of};

/// Devices of one kind at most: NCCL's limit (`NCCL_TOPO_MAX_NODES`), 8 hosts of 72 GPUs.
const MOST_DEVICES: usize = 576;

/// NUMA nodes at most: every two of them are linked.
const MOST_CPUS: usize = 256;

/// A system, and what was noticed on the way.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Built {
    /// The system.
    pub system: System,
    /// What was passed over or taken for granted, with its place.
    pub notes: Vec<String>,
}

/// Builds the system that a topology file describes; `file` is its name in errors.
///
/// ```
/// use ferroccl_topology::{build, xml, Assume};
///
/// let text = r#"<system version="1"><cpu>
///   <pci busid="0000:11:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
/// </cpu></system>"#;
/// let root = xml::parse(text, "topo.xml")?;
/// let error = build::system(&root, "topo.xml", &Assume::default()).unwrap_err();
/// assert!(error.to_string().starts_with("topo.xml:2: <pci>: attribute busid=\"0000:11:00.0\""));
/// let built = build::system(&root, "topo.xml", &"sm=80".parse()?)?;
/// assert_eq!(built.system.gpus()[0].1.sm, 80);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`TopologyError::Xml`] for what makes no sense, and for what is missing and not in `assume`.
pub fn system(root: &Element, file: &str, assume: &Assume) -> Result<Built, TopologyError> {
    let root = root.in_file(file);
    if root.name() != "system" {
        return Err(root.error("not a <system>").into());
    }
    let version = root.required("version")?;
    if version.trim() != "1" {
        return Err(root.wrong("version", "not version 1 of the format").into());
    }
    let mut draft = Draft::new(assume);
    for child in root.children() {
        match child.name() {
            "cpu" => draft.cpu(child)?,
            "pci" | "gpu" | "nic" | "net" | "nvlink" | "c2c" => {
                return Err(child.error("outside of a <cpu>").into());
            }
            _ => draft.pass_over(child),
        }
    }
    draft.flatten_switches();
    draft.number()?;
    Ok(draft.assemble()?)
}

/// What hangs where, by places in the draft's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Gpu(usize),
    Pci(usize),
    Nvs,
    Cpu(usize),
    Nic(usize),
    Net(usize),
}

/// A GPU as far as it is read.
struct GpuDraft<'a> {
    at: Located<'a>,
    dev: Option<u32>,
    gpu: Gpu,
    /// The CPU it hangs under.
    cpu: usize,
    nvlinks: Vec<NvLink<'a>>,
    /// Bandwidth to that CPU within its module, 0 without.
    c2c: f64,
}

/// An `<nvlink>` as far as it is read.
struct NvLink<'a> {
    at: Located<'a>,
    target: Target,
    count: u32,
}

/// Where an `NVLink` leads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Gpu(BusId),
    /// A GPU if one is there, else a switch: NCCL takes what a virtual machine does not see for one.
    GpuOrSwitch(BusId),
    Switch,
    Cpu,
}

/// A port as far as it is read.
struct NetDraft<'a> {
    at: Located<'a>,
    dev: Option<u32>,
    guid: Option<u64>,
    net: Net,
}

/// The devices of a file in its order.
struct Draft<'a> {
    assume: &'a Assume,
    notes: Vec<String>,
    /// The addresses, and the line where each is.
    bus_ids: BTreeMap<BusId, u32>,
    cpus: Vec<(Option<u32>, Cpu)>,
    pcis: Vec<Pci>,
    gpus: Vec<GpuDraft<'a>>,
    nics: Vec<Nic>,
    nets: Vec<NetDraft<'a>>,
    /// Cables of the tree: a device, what it hangs by, what by, with what bandwidth.
    tree: Vec<(Place, Place, LinkKind, f64)>,
    /// `<pcilink>`s: a switch, and the address of the switch that it leads to.
    pci_links: Vec<(Located<'a>, usize, BusId)>,
    /// Lower parts of switches, which are left out, and what stands for each.
    flattened: BTreeMap<BusId, usize>,
    /// Whether the file has any `<nvlink>`.
    has_nvlinks: bool,
}

impl<'a> Draft<'a> {
    fn new(assume: &'a Assume) -> Draft<'a> {
        Draft {
            assume,
            notes: Vec::new(),
            bus_ids: BTreeMap::new(),
            cpus: Vec::new(),
            pcis: Vec::new(),
            gpus: Vec::new(),
            nics: Vec::new(),
            nets: Vec::new(),
            tree: Vec::new(),
            pci_links: Vec::new(),
            flattened: BTreeMap::new(),
            has_nvlinks: false,
        }
    }

    fn note(&mut self, at: Located<'_>, what: impl AsRef<str>) {
        self.notes.push(format!("{}: {}", at.place(), what.as_ref()));
    }

    fn pass_over(&mut self, at: Located<'_>) {
        self.note(at, "not known, passed over");
    }

    /// Gives a number to what has none, and refuses numbers given twice.
    fn number(&mut self) -> Result<(), XmlError> {
        let mut devs: Vec<Option<u32>> = self.gpus.iter().map(|gpu| gpu.dev).collect();
        let again = fill(&mut devs);
        if let Some(again) = again {
            return Err(self.gpus[again].at.wrong("dev", "another <gpu> has it already"));
        }
        for (gpu, dev) in self.gpus.iter_mut().zip(devs) {
            gpu.gpu.dev = dev.unwrap_or_default();
        }
        let mut ranks = BTreeMap::new();
        for gpu in &self.gpus {
            if let Some(rank) = gpu.gpu.rank
                && ranks.insert(rank, ()).is_some()
            {
                return Err(gpu.at.wrong("rank", "another <gpu> has it already"));
            }
        }
        let mut devs: Vec<Option<u32>> = self.nets.iter().map(|net| net.dev).collect();
        if let Some(again) = fill(&mut devs) {
            return Err(self.nets[again].at.wrong("dev", "another <net> has it already"));
        }
        for (net, dev) in self.nets.iter_mut().zip(devs) {
            let dev = dev.unwrap_or_default();
            net.net.dev = dev;
            // As NCCL has it: the number tells ports without a GUID apart.
            net.net.guid = net.guid.unwrap_or(dev.into());
            if net.net.name.is_empty() {
                net.net.name = format!("net{dev}");
            }
        }
        let mut numas: Vec<Option<u32>> = self.cpus.iter().map(|(numa, _)| *numa).collect();
        fill(&mut numas);
        for ((_, cpu), numa) in self.cpus.iter_mut().zip(numas) {
            cpu.numa = numa.unwrap_or_default();
        }
        Ok(())
    }

    /// Nodes and links of what has been read and numbered.
    fn assemble(mut self) -> Result<Built, XmlError> {
        let mut system = System::default();
        let by_dev = |devs: Vec<u32>| {
            let mut order: Vec<usize> = (0..devs.len()).collect();
            order.sort_by_key(|place| devs[*place]);
            order
        };
        let gpu_order = by_dev(self.gpus.iter().map(|gpu| gpu.gpu.dev).collect());
        let net_order = by_dev(self.nets.iter().map(|net| net.net.dev).collect());
        let crossing = self.crossing_links(&gpu_order)?;
        let between_switches = self.links_between_switches();

        let mut ids = Ids::new(self.gpus.len(), self.nets.len());
        for &gpu in &gpu_order {
            ids.gpus[gpu] = system.add(Node::Gpu(self.gpus[gpu].gpu.clone()));
        }
        ids.pcis = self.pcis.into_iter().map(|pci| system.add(Node::Pci(pci))).collect();
        if crossing.iter().any(|(_, to, ..)| *to == Place::Nvs) {
            ids.nvs = system.add(Node::Nvs);
        }
        ids.cpus = self.cpus.into_iter().map(|(_, cpu)| system.add(Node::Cpu(cpu))).collect();
        ids.nics = self.nics.into_iter().map(|nic| system.add(Node::Nic(nic))).collect();
        for &net in &net_order {
            ids.nets[net] = system.add(Node::Net(self.nets[net].net.clone()));
        }
        for (device, above, kind, bw) in self.tree {
            system.connect(ids.of(device), ids.of(above), kind, bw);
        }
        for (from, to, kind, bw) in crossing {
            system.connect_one_way(ids.of(from), ids.of(to), kind, bw);
        }
        for (one, other) in between_switches {
            system.connect(ids.pcis[one], ids.pcis[other], LinkKind::Loc, speed::LOC);
        }
        let cpus: Vec<(NodeId, f64)> =
            system.cpus().iter().map(|(id, cpu)| (*id, speed::between_cpus(cpu))).collect();
        for &(from, bw) in &cpus {
            for &(to, _) in cpus.iter().filter(|(to, _)| *to != from) {
                system.connect_one_way(from, to, LinkKind::Sys, bw);
            }
        }
        Ok(Built { system, notes: self.notes })
    }
}

/// Numbers of nodes, by places in the draft.
struct Ids {
    gpus: Vec<NodeId>,
    pcis: Vec<NodeId>,
    nvs: NodeId,
    cpus: Vec<NodeId>,
    nics: Vec<NodeId>,
    nets: Vec<NodeId>,
}

impl Ids {
    fn new(gpus: usize, nets: usize) -> Ids {
        let none = NodeId(0);
        Ids {
            gpus: vec![none; gpus],
            pcis: Vec::new(),
            nvs: none,
            cpus: Vec::new(),
            nics: Vec::new(),
            nets: vec![none; nets],
        }
    }

    fn of(&self, place: Place) -> NodeId {
        match place {
            Place::Gpu(i) => self.gpus[i],
            Place::Pci(i) => self.pcis[i],
            Place::Nvs => self.nvs,
            Place::Cpu(i) => self.cpus[i],
            Place::Nic(i) => self.nics[i],
            Place::Net(i) => self.nets[i],
        }
    }
}

/// Gives the least free numbers, in order, to what has none; the place of the first one given twice.
fn fill(numbers: &mut [Option<u32>]) -> Option<usize> {
    let mut taken = BTreeMap::new();
    for (place, number) in numbers.iter().enumerate() {
        if let Some(number) = number
            && taken.insert(*number, ()).is_some()
        {
            return Some(place);
        }
    }
    let mut free = (0..).filter(|number| !taken.contains_key(number));
    for number in numbers.iter_mut().filter(|number| number.is_none()) {
        *number = free.next();
    }
    None
}
