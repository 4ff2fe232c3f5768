//! A host's devices and the links between them.
//!
//! ```text
//!   NET 0      GPU 0 ══ NVL ══ NVS 0 ══ NVL ══ GPU 1
//!     │ NET      │ PCI                           │ PCI
//!   NIC 0 ─PCI─ PCI switch                  PCI switch
//!                │ PCI                           │ PCI
//!              CPU 0 ──────────── SYS ────────── CPU 1
//! ```
//!
//! Nodes are numbered in the order they are added, links too, and everything that walks a system goes by
//! these numbers: the same input gives the same result. A link has one direction; a cable is two links.

use std::fmt;
use std::str::FromStr;

/// A node of a [`System`], by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// One direction of a link of a [`System`], by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// A PCI address, as Linux writes it: `domain:bus:device.function`.
///
/// ```
/// use ferroccl_topology::BusId;
///
/// let id: BusId = "0000:c1:00.0".parse()?;
/// assert_eq!(id.to_string(), "0000:c1:00.0");
/// assert_eq!("C1:00.0".parse(), Ok(id)); // the domain may be left out
/// # Ok::<(), ferroccl_topology::BusIdError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BusId {
    /// PCI domain (segment).
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device, below 32.
    pub device: u8,
    /// Function, below 16: real functions are below 8, and NCCL's files number virtual ones up to f.
    pub function: u8,
}

/// Not a PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a PCI address such as 0000:c1:00.0")]
pub struct BusIdError(pub String);

impl fmt::Display for BusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BusId { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl FromStr for BusId {
    type Err = BusIdError;

    fn from_str(text: &str) -> Result<Self, BusIdError> {
        let parse = || {
            let (front, function) = text.rsplit_once('.')?;
            let mut parts = front.rsplit(':');
            let hex = |digits: &str, longest: usize| {
                (digits.len() <= longest && digits.bytes().all(|b| b.is_ascii_hexdigit()))
                    .then(|| u32::from_str_radix(digits, 16).ok())?
            };
            let device = hex(parts.next()?, 2).filter(|device| *device < 32)?;
            let bus = hex(parts.next()?, 2)?;
            let domain = parts.next().map_or(Some(0), |domain| hex(domain, 8))?;
            let function = hex(function, 1)?;
            parts.next().is_none().then_some(BusId {
                domain,
                bus: bus as u8,
                device: device as u8,
                function: function as u8,
            })
        };
        parse().ok_or_else(|| BusIdError(text.to_owned()))
    }
}

/// What a node is.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// A device that ranks run on.
    Gpu(Gpu),
    /// A PCI switch.
    Pci(Pci),
    /// The `NVSwitch`es of a host, all of them as one.
    Nvs,
    /// A NUMA node: cores and their memory.
    Cpu(Cpu),
    /// A network card.
    Nic(Nic),
    /// A port of a network card.
    Net(Net),
}

/// A device that ranks run on: a GPU, or where there is none, the CPU device of a NUMA node.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// Device number, as the driver counts.
    pub dev: u32,
    /// The rank that runs on it, where one is given.
    pub rank: Option<u32>,
    /// Compute capability times ten (80 for an A100); 0 for a CPU device.
    pub sm: u32,
    /// Whether network cards can reach its memory.
    pub gdr: bool,
    /// Where it is on the PCI bus.
    pub bus_id: BusId,
}

/// A PCI switch.
#[derive(Clone, Debug, PartialEq)]
pub struct Pci {
    /// Where its upstream port is.
    pub bus_id: BusId,
    /// `vendor:device:subsystem_vendor:subsystem_device`, as far as known, else 0.
    pub device: [u16; 4],
}

/// Instruction set of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Arch {
    /// `x86_64`.
    X86,
    /// `aarch64`.
    Arm,
    /// `ppc64`.
    Power,
    /// Any other.
    Other,
}

/// Maker of a CPU, as far as it decides how well devices reach each other through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Vendor {
    /// Intel.
    Intel,
    /// AMD.
    Amd,
    /// Zhaoxin.
    Zhaoxin,
    /// Any other.
    Other,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq)]
pub struct Cpu {
    /// Its number.
    pub numa: u32,
    /// Its instruction set.
    pub arch: Arch,
    /// Its maker.
    pub vendor: Vendor,
    /// CPUID family, where known.
    pub family: u32,
    /// CPUID model, where known.
    pub model: u32,
    /// Its cores.
    pub affinity: CpuSet,
}

/// A set of cores, by number.
///
/// Written as Linux does: groups of 32 cores in hexadecimal, the highest first.
///
/// ```
/// use ferroccl_topology::CpuSet;
///
/// let set: CpuSet = "00000001,0000000f".parse()?;
/// assert_eq!(set.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 32]);
/// assert_eq!(set.to_string(), "00000001,0000000f");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct CpuSet(Vec<u32>);

impl CpuSet {
    /// Groups at most: 32,768 cores, eight times Linux' limit.
    const MOST_GROUPS: usize = 1024;

    /// Adds a core; what no machine has is ignored.
    pub fn insert(&mut self, core: usize) {
        let (group, bit) = (core / 32, core % 32);
        if group >= Self::MOST_GROUPS {
            return;
        }
        if self.0.len() <= group {
            self.0.resize(group + 1, 0);
        }
        self.0[group] |= 1 << bit;
    }

    /// Whether a core is in it.
    #[must_use]
    pub fn contains(&self, core: usize) -> bool {
        self.0.get(core / 32).is_some_and(|group| group >> (core % 32) & 1 == 1)
    }

    /// Whether there is none in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|group| *group == 0)
    }

    /// Its cores, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.0.len() * 32).filter(|core| self.contains(*core))
    }
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cores: I) -> Self {
        let mut set = CpuSet::default();
        cores.into_iter().for_each(|core| set.insert(core));
        set
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups: Vec<String> = self.0.iter().rev().map(|group| format!("{group:08x}")).collect();
        f.write_str(if groups.is_empty() { "00000000" } else { "" })?;
        f.write_str(&groups.join(","))
    }
}

impl FromStr for CpuSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a set of cores such as 000000ff,ffffffff");
        let groups: Vec<u32> = text
            .trim()
            .trim_start_matches("0x")
            .rsplit(',')
            .map(|group| {
                let plain = group.len() <= 8 && group.bytes().all(|b| b.is_ascii_hexdigit());
                plain.then(|| u32::from_str_radix(group, 16).ok())?
            })
            .collect::<Option<_>>()
            .ok_or_else(wrong)?;
        if groups.len() > Self::MOST_GROUPS { Err(wrong()) } else { Ok(CpuSet(groups)) }
    }
}

/// A network card.
#[derive(Clone, Debug, PartialEq)]
pub struct Nic {
    /// Where it is on the PCI bus; `None` for one that is not on it, such as a virtual one.
    pub bus_id: Option<BusId>,
}

/// A port of a network card.
#[derive(Clone, Debug, PartialEq)]
pub struct Net {
    /// Device number, as the network's driver counts.
    pub dev: u32,
    /// Its name, such as `mlx5_0` or `eth0`.
    pub name: String,
    /// Port of the card.
    pub port: u32,
    /// What tells two ports of one card from two cards.
    pub guid: u64,
    /// Bandwidth in 10^9 bytes a second, each way.
    pub bw: f64,
    /// What it adds to a message, in microseconds.
    pub latency: f64,
    /// Connections at most.
    pub max_conn: u32,
    /// Whether it can read and write a GPU's memory.
    pub gdr: bool,
    /// Whether the network can reduce (`SHARP`).
    pub coll: bool,
}

/// What a link is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkKind {
    /// Within one device or one memory.
    Loc,
    /// `NVLink`.
    Nvl,
    /// `NVLink` between a CPU and a GPU of one module.
    C2c,
    /// PCI Express.
    Pci,
    /// Between CPUs.
    Sys,
    /// From a network card to its port.
    Net,
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            LinkKind::Loc => "LOC",
            LinkKind::Nvl => "NVL",
            LinkKind::C2c => "C2C",
            LinkKind::Pci => "PCI",
            LinkKind::Sys => "SYS",
            LinkKind::Net => "NET",
        })
    }
}

/// One direction of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Where it leaves.
    pub from: NodeId,
    /// Where it arrives.
    pub to: NodeId,
    /// What it is made of.
    pub kind: LinkKind,
    /// Bandwidth in 10^9 bytes a second.
    pub bw: f64,
}

/// The devices of one host and the links between them.
///
/// ```
/// use ferroccl_topology::{LinkKind, Node, System};
///
/// let mut system = System::default();
/// let (a, b) = (system.add(Node::Nvs), system.add(Node::Nvs));
/// system.connect(a, b, LinkKind::Nvl, 20.0);
/// system.connect(a, b, LinkKind::Nvl, 20.0); // a second cable
/// let links: Vec<_> = system.links_from(a).collect();
/// assert_eq!((links.len(), links[0].1.bw), (1, 40.0));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct System {
    nodes: Vec<Node>,
    links: Vec<Link>,
    out: Vec<Vec<LinkId>>,
}

impl System {
    /// Adds a node.
    pub fn add(&mut self, node: Node) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        self.nodes.push(node);
        self.out.push(Vec::new());
        id
    }

    /// Adds a cable of bandwidth `bw` each way. Cables of one kind between two nodes count as one of their
    /// joint bandwidth.
    pub fn connect(&mut self, a: NodeId, b: NodeId, kind: LinkKind, bw: f64) {
        self.connect_one_way(a, b, kind, bw);
        self.connect_one_way(b, a, kind, bw);
    }

    /// Adds one direction, as [`System::connect`] does.
    pub fn connect_one_way(&mut self, from: NodeId, to: NodeId, kind: LinkKind, bw: f64) {
        let same = |link: &Link| link.to == to && link.kind == kind;
        let known = self.out[from.0 as usize].iter().find(|id| same(&self.links[id.0 as usize]));
        if let Some(id) = known {
            self.links[id.0 as usize].bw += bw;
            return;
        }
        self.out[from.0 as usize].push(LinkId(self.links.len() as u32));
        self.links.push(Link { from, to, kind, bw });
    }

    /// The node of a number that this system gave.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// The link of a number that this system gave.
    #[must_use]
    pub fn link(&self, id: LinkId) -> &Link {
        &self.links[id.0 as usize]
    }

    /// All nodes, in order.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (NodeId, &Node)> + Clone {
        self.nodes.iter().enumerate().map(|(i, node)| (NodeId(i as u32), node))
    }

    /// All links, in order.
    #[must_use]
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The links that leave a node, in the order they were added.
    pub fn links_from(&self, id: NodeId) -> impl Iterator<Item = (LinkId, &Link)> + Clone {
        self.out[id.0 as usize].iter().map(|link| (*link, self.link(*link)))
    }

    /// Whether a link joins two PCI switches inside, besides the tree of devices.
    #[must_use]
    pub fn joins_switches(&self, link: &Link) -> bool {
        let switch = |id| matches!(self.node(id), Node::Pci(_));
        link.kind == LinkKind::Loc && switch(link.from) && switch(link.to)
    }

    /// Whether a link is one of the tree of devices under a CPU.
    #[must_use]
    pub fn in_tree(&self, link: &Link) -> bool {
        let kind = matches!(link.kind, LinkKind::Pci | LinkKind::Net | LinkKind::Loc);
        kind && !self.joins_switches(link)
    }

    /// The devices that ranks run on. Their places in this list are the **local ranks**.
    #[must_use]
    pub fn gpus(&self) -> Vec<(NodeId, &Gpu)> {
        self.nodes()
            .filter_map(|(id, n)| if let Node::Gpu(gpu) = n { Some((id, gpu)) } else { None })
            .collect()
    }

    /// The network ports.
    #[must_use]
    pub fn nets(&self) -> Vec<(NodeId, &Net)> {
        self.nodes()
            .filter_map(|(id, n)| if let Node::Net(net) = n { Some((id, net)) } else { None })
            .collect()
    }

    /// The NUMA nodes.
    #[must_use]
    pub fn cpus(&self) -> Vec<(NodeId, &Cpu)> {
        self.nodes()
            .filter_map(|(id, n)| if let Node::Cpu(cpu) = n { Some((id, cpu)) } else { None })
            .collect()
    }

    /// Whether the GPUs are joined by switches instead of by cables from one to the other.
    #[must_use]
    pub fn has_nvswitch(&self) -> bool {
        self.nodes.iter().any(|node| matches!(node, Node::Nvs))
    }

    /// The least compute capability of the GPUs; 0 without any.
    #[must_use]
    pub fn min_sm(&self) -> u32 {
        self.gpus().iter().map(|(_, gpu)| gpu.sm).min().unwrap_or(0)
    }

    /// A node as a person calls it: `GPU 0`, `NET 1`, `CPU 0`, `PCI 0000:10:00.0`, `NVS`.
    #[must_use]
    pub fn name(&self, id: NodeId) -> String {
        match self.node(id) {
            Node::Gpu(gpu) => format!("GPU {}", gpu.dev),
            Node::Pci(pci) => format!("PCI {}", pci.bus_id),
            Node::Nvs => "NVS".to_owned(),
            Node::Cpu(cpu) => format!("CPU {}", cpu.numa),
            Node::Nic(Nic { bus_id: Some(bus_id) }) => format!("NIC {bus_id}"),
            Node::Nic(Nic { bus_id: None }) => "NIC".to_owned(),
            Node::Net(net) => format!("NET {}", net.dev),
        }
    }

    /// The same system without the nodes that `keep` refuses; the others keep their order.
    #[must_use]
    pub fn filtered(&self, keep: impl Fn(NodeId, &Node) -> bool) -> System {
        let mut system = System::default();
        let kept: Vec<Option<NodeId>> = self
            .nodes()
            .map(|(id, node)| keep(id, node).then(|| system.add(node.clone())))
            .collect();
        for link in &self.links {
            if let (Some(from), Some(to)) = (kept[link.from.0 as usize], kept[link.to.0 as usize]) {
                system.connect_one_way(from, to, link.kind, link.bw);
            }
        }
        system
    }
}
