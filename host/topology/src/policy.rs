//! What may reach what: the decisions that paths alone do not make.

use super::path::PathKind;
use super::system::{Arch, System, Vendor};

/// Whether a ring may leave a host through another port than it came in by (`NCCL_CROSS_NIC`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrossNic {
    /// No: hosts whose ports of one number are on one switch.
    Never,
    /// Yes.
    Always,
    /// When that makes the rings faster.
    IfBetter,
}

/// Which messages leave a host by the card of the GPU that has the receiver's number there (`NCCL_P2P_PXN_LEVEL`), so that
/// cards of one number talk to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessagePxn {
    /// None: each leaves by its sender's own card.
    Never,
    /// Those whose path to that card is [`PathKind::Pxn`].
    OnPath,
    /// Those whose sender reaches that GPU by `NVLink`.
    Always,
}

/// What may be used. [`Policy::default`] is NCCL's.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The farthest two GPUs may be to write each other's memory; `None`: what the CPU is good for.
    pub p2p_level: Option<PathKind>,
    /// The farthest a card may be from a GPU whose memory it reaches; `None`: P2C with `gdr_c2c`, else PXB.
    pub gdr_level: Option<PathKind>,
    /// Whether a card may reach a GPU's memory through the CPU of the GPU's module (`NCCL_NET_GDR_C2C`).
    pub gdr_c2c: bool,
    /// Whether processes of one host may share memory.
    pub shm: bool,
    /// Whether a path may go through a GPU by `NVLink`.
    pub nvb: bool,
    /// Whether a GPU may use a port that is near another one.
    pub pxn: bool,
    /// Whether the GPU near that port may reach it through the CPU of its module (`NCCL_PXN_C2C`).
    pub pxn_c2c: bool,
    /// Which messages leave by another GPU's card.
    pub message_pxn: MessagePxn,
    /// Whether a ring may leave by another port than it came in by.
    pub cross_nic: CrossNic,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            p2p_level: None,
            gdr_level: None,
            gdr_c2c: true,
            shm: true,
            nvb: true,
            pxn: true,
            pxn_c2c: true,
            message_pxn: MessagePxn::Always,
            cross_nic: CrossNic::IfBetter,
        }
    }
}

/// A decision and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The decision.
    pub allowed: bool,
    /// Why, as a clause: "PHB is farther than PXB, ...".
    pub why: String,
}

impl Policy {
    /// Whether two GPUs at this distance may write each other's memory (P2P).
    #[must_use]
    pub fn p2p(&self, system: &System, kind: PathKind) -> Decision {
        let (level, whose) = match self.p2p_level {
            Some(level) => (level, "NCCL_P2P_LEVEL or NCCL_P2P_DISABLE"),
            None => default_p2p(system),
        };
        decide(kind, level, whose)
    }

    /// Whether the card of port `net` may reach the memory of GPU `gpu` at this distance (GPU-direct RDMA);
    /// both by their places in the system's lists.
    #[must_use]
    pub fn gdr(&self, system: &System, gpu: usize, net: usize, kind: PathKind) -> Decision {
        let (gpus, nets) = (system.gpus(), system.nets());
        if !gpus.get(gpu).is_some_and(|(_, gpu)| gpu.gdr) {
            return Decision {
                allowed: false,
                why: "the GPU's driver does not offer it".to_owned(),
            };
        }
        if !nets.get(net).is_some_and(|(_, net)| net.gdr) {
            return Decision {
                allowed: false,
                why: "the card's driver does not offer it".to_owned(),
            };
        }
        self.gdr_at(kind)
    }

    /// The same of a card and a GPU whose drivers offer it.
    #[must_use]
    pub fn gdr_at(&self, kind: PathKind) -> Decision {
        let (level, whose) = match self.gdr_level {
            Some(level) => (level, "NCCL_NET_GDR_LEVEL"),
            None if self.gdr_c2c => (PathKind::P2c, "the default"),
            None => (PathKind::Pxb, "the default without NCCL_NET_GDR_C2C"),
        };
        decide(kind, level, whose)
    }

    /// Whether a GPU at this distance from a port may send through it for others: the port's card has to reach its memory.
    #[must_use]
    pub fn relays(&self, system: &System, gpu: usize, net: usize, kind: PathKind) -> bool {
        let farthest = if self.pxn_c2c { PathKind::P2c } else { PathKind::Pxb };
        kind <= farthest && self.gdr(system, gpu, net, kind).allowed
    }
}

fn decide(kind: PathKind, level: PathKind, whose: &str) -> Decision {
    let allowed = kind <= level;
    let how = if allowed { "no farther than" } else { "farther than" };
    Decision { allowed, why: format!("{kind} is {how} {level} ({whose})") }
}

/// NCCL's defaults (`ncclTopoCheckP2p` in its paths.cc): host bridges of Intel, Zhaoxin and ARM forward what one
/// device writes to another slowly or not at all; AMD's do it well.
fn default_p2p(system: &System) -> (PathKind, &'static str) {
    match system.cpus().first().map(|(_, cpu)| (cpu.arch, cpu.vendor)) {
        Some((Arch::Arm, _)) => (PathKind::Pxb, "the default on ARM"),
        Some((Arch::X86, Vendor::Intel)) => (PathKind::Pxb, "the default on Intel"),
        Some((Arch::X86, Vendor::Zhaoxin)) => (PathKind::Pxb, "the default on Zhaoxin"),
        _ => (PathKind::Sys, "the default"),
    }
}
