//! Paths: how two nodes of a host reach each other, how well, and past what.
//!
//! The **kind** of a path is its worst step, in NCCL's names and order. Of all paths between two nodes the
//! one of the best kind is taken, of those one with the fewest hops, and of those one with the most
//! bandwidth. Three rules bend this:
//!
//! - A path does not go through a GPU, but for one hop by `NVLink` on the way from a GPU to a GPU (**NVB**), nor
//!   through a network port.
//! - Where two GPUs may not write each other's memory ([`Policy`]), data is handed over in a CPU's memory, and
//!   where a card may not reach a GPU's memory, likewise: the path goes by that CPU.
//! - A GPU may send through the GPU that is nearest to a port, if `NVLink` leads there (**PXN**). What arrives at a port
//!   never takes such a way.
//!
//! Pure: a system and a policy in, paths out.

use std::fmt;
use std::str::FromStr;

mod shortest;

use super::policy::Policy;
use super::system::{CpuSet, Link, LinkId, LinkKind, Node, NodeId, System};
pub use shortest::direct;
use shortest::from_node;

/// The worst step of a path, best first.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub enum PathKind {
    /// Nowhere: the node itself, or one memory.
    Loc,
    /// `NVLink`, through switches or not.
    Nvl,
    /// `NVLink` through a GPU in between.
    Nvb,
    /// `NVLink` of a CPU and GPU module.
    C2c,
    /// One PCI switch.
    Pix,
    /// Several PCI switches, but no CPU.
    Pxb,
    /// Through the CPU of the GPU's module, which the GPU reaches by C2C, to a device on that CPU's PCI.
    P2c,
    /// Through a GPU by `NVLink` to a port near that one.
    Pxn,
    /// A CPU's PCI host bridge.
    Phb,
    /// The link between CPUs.
    Sys,
    /// A network.
    Net,
    /// No path.
    Dis,
}

impl PathKind {
    /// All of them, best first.
    pub const ALL: [PathKind; 12] = [
        PathKind::Loc,
        PathKind::Nvl,
        PathKind::Nvb,
        PathKind::C2c,
        PathKind::Pix,
        PathKind::Pxb,
        PathKind::P2c,
        PathKind::Pxn,
        PathKind::Phb,
        PathKind::Sys,
        PathKind::Net,
        PathKind::Dis,
    ];

    /// Its name in NCCL's logs and files.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS"]
            [self as usize]
    }

    /// What one step adds to a path.
    fn of_step(system: &System, link: &Link) -> PathKind {
        match link.kind {
            // A port is its card's: the step to it is no distance.
            LinkKind::Loc | LinkKind::Net if !system.joins_switches(link) => PathKind::Loc,
            LinkKind::Nvl => PathKind::Nvl,
            LinkKind::C2c => PathKind::C2c,
            LinkKind::Sys => PathKind::Sys,
            LinkKind::Pci | LinkKind::Loc | LinkKind::Net => {
                match (system.node(link.from), system.node(link.to)) {
                    (Node::Cpu(_), _) | (_, Node::Cpu(_)) => PathKind::Phb,
                    (Node::Pci(_), Node::Pci(_)) => PathKind::Pxb,
                    _ => PathKind::Pix,
                }
            }
        }
    }
}

impl fmt::Display for PathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Not a kind of path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of LOC NVL NVB C2C PIX PXB P2C PXN PHB SYS NET DIS")]
pub struct PathKindError(pub String);

impl FromStr for PathKind {
    type Err = PathKindError;

    fn from_str(text: &str) -> Result<Self, PathKindError> {
        let known = PathKind::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(text));
        known.ok_or_else(|| PathKindError(text.to_owned()))
    }
}

/// How one node reaches another.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// Its worst step.
    pub kind: PathKind,
    /// Bandwidth of its narrowest link, 10^9 bytes a second.
    pub bw: f64,
    /// Its links, in order.
    pub links: Vec<LinkId>,
}

impl Path {
    /// No path.
    const NONE: Path = Path { kind: PathKind::Dis, bw: 0.0, links: Vec::new() };

    /// Hops: links passed.
    #[must_use]
    pub fn hops(&self) -> usize {
        self.links.len()
    }

    /// Whether there is one.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.kind < PathKind::Dis
    }

    /// This path and another from its end on, as one of this kind.
    fn then(&self, next: &Path, kind: PathKind) -> Path {
        if !self.exists() || !next.exists() {
            return Path::NONE;
        }
        Path {
            kind,
            bw: self.bw.min(next.bw),
            links: self.links.iter().chain(&next.links).copied().collect(),
        }
    }

    /// This path to a CPU, and another from there on.
    fn past_cpu(&self, next: &Path) -> Path {
        self.then(next, past_cpu(self.kind, next.kind))
    }
}

/// The paths between all GPUs, network ports and CPUs of a system, as a policy allows them.
#[derive(Clone, Debug, PartialEq)]
pub struct Paths {
    /// GPUs, then ports, then CPUs.
    nodes: Vec<NodeId>,
    gpus: usize,
    nets: usize,
    /// By place of the start times number of nodes plus place of the end.
    matrix: Vec<Path>,
}

impl Paths {
    /// Computes them.
    #[must_use]
    pub fn new(system: &System, policy: &Policy) -> Paths {
        let gpus: Vec<NodeId> = system.gpus().iter().map(|(id, _)| *id).collect();
        let nets: Vec<NodeId> = system.nets().iter().map(|(id, _)| *id).collect();
        let cpus: Vec<NodeId> = system.cpus().iter().map(|(id, _)| *id).collect();
        let nodes = [&gpus[..], &nets, &cpus].concat();
        let mut matrix = Vec::with_capacity(nodes.len() * nodes.len());
        for &from in &nodes {
            let all = from_node(system, from, policy.nvb);
            matrix.extend(nodes.iter().map(|to| all[to.0 as usize].clone()));
        }
        let mut paths = Paths { nodes, gpus: gpus.len(), nets: nets.len(), matrix };
        paths.through_memory(system, policy);
        paths.through_modules();
        paths.where_cards_reach_no_gpu(system, policy);
        if policy.pxn {
            paths.through_peers(system, policy);
        }
        paths
    }

    fn at(&self, from: usize, to: usize) -> &Path {
        &self.matrix[from * self.nodes.len() + to]
    }

    fn set(&mut self, from: usize, to: usize, path: Path) {
        let n = self.nodes.len();
        self.matrix[from * n + to] = path;
    }

    /// GPUs.
    #[must_use]
    pub fn gpus(&self) -> usize {
        self.gpus
    }

    /// Network ports.
    #[must_use]
    pub fn nets(&self) -> usize {
        self.nets
    }

    /// CPUs.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.nodes.len() - self.gpus - self.nets
    }

    /// From a GPU to a GPU; both are local ranks below [`Paths::gpus`].
    #[must_use]
    pub fn gpu_gpu(&self, from: usize, to: usize) -> &Path {
        self.at(from, to)
    }

    /// From a GPU to a port, by their places in [`System::gpus`] and [`System::nets`].
    #[must_use]
    pub fn gpu_net(&self, gpu: usize, net: usize) -> &Path {
        self.at(gpu, self.gpus + net)
    }

    /// From a port to a GPU.
    #[must_use]
    pub fn net_gpu(&self, net: usize, gpu: usize) -> &Path {
        self.at(self.gpus + net, gpu)
    }

    /// From a GPU to a CPU.
    #[must_use]
    pub fn gpu_cpu(&self, gpu: usize, cpu: usize) -> &Path {
        self.at(gpu, self.gpus + self.nets + cpu)
    }

    /// From a CPU to a GPU.
    #[must_use]
    pub fn cpu_gpu(&self, cpu: usize, gpu: usize) -> &Path {
        self.at(self.gpus + self.nets + cpu, gpu)
    }

    /// From a CPU to a port.
    #[must_use]
    pub fn cpu_net(&self, cpu: usize, net: usize) -> &Path {
        self.at(self.gpus + self.nets + cpu, self.gpus + net)
    }

    /// Why two GPUs of a host had better talk over the network: both reach a card behind a PCI switch at most faster than each
    /// other. `None` where they had not. As NCCL's `ncclTopoCheckNet` (`src/graph/paths.cc`).
    #[must_use]
    pub fn faster_by_network(&self, one: usize, other: usize) -> Option<String> {
        let direct = self.gpu_gpu(one, other);
        let to_net = |gpu: usize| {
            let cards = (0..self.nets()).map(|net| self.gpu_net(gpu, net));
            let near = cards.filter(|path| path.kind <= PathKind::Pxb);
            near.map(|path| path.bw).fold(0.0, f64::max)
        };
        let net = to_net(one).min(to_net(other));
        (net > direct.bw).then(|| {
            format!("the network is faster: {net:.1} GB/s, and {:.1} by {}", direct.bw, direct.kind)
        })
    }

    /// Between any two of the nodes; `None` for a node that is no GPU, port or CPU.
    #[must_use]
    pub fn between(&self, from: NodeId, to: NodeId) -> Option<&Path> {
        let place = |id| self.nodes.iter().position(|node| *node == id);
        Some(self.at(place(from)?, place(to)?))
    }

    /// The nodes of the matrix: GPUs, then ports, then CPUs.
    #[must_use]
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// The CPU nearest to a GPU: by kind, then hops, then number. `None` when it reaches none.
    #[must_use]
    pub fn local_cpu(&self, gpu: usize) -> Option<usize> {
        (0..self.cpus())
            .filter(|cpu| self.gpu_cpu(gpu, *cpu).exists())
            .min_by_key(|cpu| (self.gpu_cpu(gpu, *cpu).kind, self.gpu_cpu(gpu, *cpu).hops(), *cpu))
    }

    /// Leads GPUs that may not reach each other's memory past a CPU.
    fn through_memory(&mut self, system: &System, policy: &Policy) {
        let before = self.clone();
        for a in 0..self.gpus {
            let Some(cpu) = before.local_cpu(a) else { continue };
            for b in (0..self.gpus).filter(|b| *b != a) {
                if !policy.p2p(system, before.gpu_gpu(a, b).kind).allowed {
                    let past = before.gpu_cpu(a, cpu).past_cpu(before.cpu_gpu(cpu, b));
                    let path = if policy.shm { past } else { Path::NONE };
                    self.set(a, b, path);
                }
            }
        }
    }

    /// A GPU reaches the ports nearest to it through the CPU of its module, if they are on that CPU's PCI. Other ports stay as
    /// far as they are, so that a GPU that is nearer to them sends (PXN).
    fn through_modules(&mut self) {
        let before = self.clone();
        for gpu in 0..self.gpus {
            let Some(cpu) = before.local_cpu(gpu) else { continue };
            for net in before.local_nets(gpu) {
                let kind = past_cpu(before.gpu_cpu(gpu, cpu).kind, before.cpu_net(cpu, net).kind);
                let n = self.nodes.len();
                for place in [gpu * n + self.gpus + net, (self.gpus + net) * n + gpu] {
                    if kind == PathKind::P2c && self.matrix[place].exists() {
                        self.matrix[place].kind = self.matrix[place].kind.min(kind);
                    }
                }
            }
        }
    }

    /// Leads what a card may not move to or from a GPU's memory itself past the GPU's CPU.
    fn where_cards_reach_no_gpu(&mut self, system: &System, policy: &Policy) {
        let before = self.clone();
        for a in 0..self.gpus {
            let Some(cpu) = before.local_cpu(a) else { continue };
            let (out, back) = (before.gpu_cpu(a, cpu), before.cpu_gpu(cpu, a));
            for net in 0..self.nets {
                let there = before.gpu_net(a, net);
                if !policy.gdr(system, a, net, there.kind).allowed {
                    let past = out.past_cpu(before.cpu_net(cpu, net));
                    self.set(a, self.gpus + net, past);
                    let place = self.gpus + self.nets + cpu;
                    let past = before.at(self.gpus + net, place).past_cpu(back);
                    self.set(self.gpus + net, a, past);
                }
            }
        }
    }

    /// The ports that are nearest to a GPU: of those with the most bandwidth the ones of the best kind (NCCL's
    /// `ncclTopoGetLocal`).
    #[must_use]
    pub fn local_nets(&self, gpu: usize) -> Vec<usize> {
        nearest((0..self.nets).map(|net| self.gpu_net(gpu, net)))
    }

    /// The GPUs that are nearest to a port.
    #[must_use]
    pub fn local_gpus(&self, net: usize) -> Vec<usize> {
        nearest((0..self.gpus).map(|gpu| self.net_gpu(net, gpu)))
    }

    /// The port that a GPU's messages on this channel take, where no graph says which (NCCL's `ncclTopoGetLocalNet`): GPUs
    /// with the same near ports begin at different ones, and where there are more ports than GPUs channels take turns.
    #[must_use]
    pub fn local_net(&self, system: &System, gpu: usize, channel: usize) -> Option<usize> {
        let nets = self.local_nets(gpu);
        let sharing = self.local_gpus(*nets.first()?).len().max(1);
        let dev = system.gpus().get(gpu).map_or(0, |(_, gpu)| gpu.dev as usize);
        let n = nets.len();
        // With a power of two, GPUs that are next to each other begin at ports that are far apart.
        let first = if n.is_power_of_two() { mirrored(dev % n, n) } else { dev % n };
        nets.get((first + channel % n.div_ceil(sharing)) % n).copied()
    }

    /// The GPU that sends through a port for others (NCCL's `ncclTopoGetLocalGpu`): of the nearest the one that itself
    /// takes that port first.
    #[must_use]
    pub fn local_gpu(&self, system: &System, net: usize) -> Option<usize> {
        let near = self.local_gpus(net);
        let takes = |gpu: usize, channel: usize| self.local_net(system, gpu, channel) == Some(net);
        (0..self.nets).find_map(|channel| near.iter().copied().find(|gpu| takes(*gpu, channel)))
    }

    /// The GPU that a way out by [`PathKind::Pxn`] passes, whose rank sends for this one (NCCL's
    /// `ncclTopoGetIntermediateRank`); `None` where the way is of another kind.
    #[must_use]
    pub fn relay(&self, system: &System, gpu: usize, net: usize) -> Option<usize> {
        let path = self.gpu_net(gpu, net);
        if path.kind != PathKind::Pxn {
            return None;
        }
        let place = |id: NodeId| self.nodes[..self.gpus].iter().position(|node| *node == id);
        path.links.iter().rev().find_map(|link| place(system.link(*link).to))
    }

    /// Leads a GPU's way to a far port through the GPU that is nearest to that. Only the way out: NCCL receives locally and
    /// sends remotely, too.
    fn through_peers(&mut self, system: &System, policy: &Policy) {
        let before = self.clone();
        for net in 0..self.nets {
            let Some(peer) = before.local_gpu(system, net) else { continue };
            let leave = before.gpu_net(peer, net);
            if !policy.relays(system, peer, net, leave.kind) {
                continue;
            }
            for gpu in (0..self.gpus).filter(|gpu| *gpu != peer) {
                let (direct, over) = (before.gpu_net(gpu, net), before.gpu_gpu(gpu, peer));
                let better = leave.bw > direct.bw || direct.kind > PathKind::Pxn;
                if over.kind <= PathKind::Nvl && better {
                    self.set(gpu, self.gpus + net, over.then(leave, PathKind::Pxn));
                }
            }
        }
    }
}

/// The kind of a path past a CPU: C2C on one side and PCI on the other is P2C, as NCCL has it (`mergePathType` in its
/// `paths.cc`); else the worse of the two, and a host bridge at least.
fn past_cpu(to: PathKind, from: PathKind) -> PathKind {
    match (to.min(from), to.max(from)) {
        (PathKind::C2c, PathKind::Phb) => PathKind::P2c,
        (PathKind::C2c, PathKind::C2c) => PathKind::C2c,
        (_, worse) => worse.max(PathKind::Phb),
    }
}

/// Which of these paths have the most bandwidth and, of those, the best kind.
fn nearest<'a>(paths: impl Iterator<Item = &'a Path>) -> Vec<usize> {
    let there: Vec<_> = paths.enumerate().filter(|(_, path)| path.exists()).collect();
    let better = |a: &Path, b: &Path| a.bw.total_cmp(&b.bw).then(b.kind.cmp(&a.kind));
    let best = there.iter().map(|(_, path)| *path).max_by(|a, b| better(a, b));
    let as_good = |path: &Path| best.is_some_and(|best| better(path, best).is_eq());
    there.into_iter().filter(|(_, path)| as_good(path)).map(|(i, _)| i).collect()
}

/// `value`, below `n`, with its bits in reverse; `n` is a power of two.
fn mirrored(value: usize, n: usize) -> usize {
    if n == 1 { 0 } else { value.reverse_bits() >> (usize::BITS - n.trailing_zeros()) }
}

/// The cores near a GPU, by its local rank: those of the nearest CPU, where its threads should run and its host
/// memory should lie. Empty where they are not known.
#[must_use]
pub fn affinity(system: &System, paths: &Paths, gpu: usize) -> CpuSet {
    let cpus = system.cpus();
    let near = (gpu < paths.gpus()).then(|| paths.local_cpu(gpu)).flatten();
    near.and_then(|cpu| cpus.get(cpu)).map_or_else(CpuSet::default, |(_, cpu)| cpu.affinity.clone())
}
