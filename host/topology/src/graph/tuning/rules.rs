//! What may not be done, and why: conditions that no time outweighs.
//!
//! The rules are NCCL 2.30.7's (`ncclTopoTuneModel` in its tuning.cc). One is left out: it depends on the CUDA
//! release (11.8 with two ranks of sm_90).

use ferroccl_device::abi::{Algorithm, Collective, ProtocolId};

#[cfg(doc)]
use super::OwnKernels;
use super::bandwidth::bandwidth_of_channel;
use super::{Devices, Gpus, Settings, Situation, tables};
use crate::PathKind;
use crate::graph::ChannelGraph;

/// A channel of less, 10^9 bytes a second, counts as broken: a kilobyte a second.
pub(super) const LEAST_BW: f64 = 1e-6;

impl Gpus<'_> {
    /// Whether each two of so many GPUs are as near as neighbours of the ring: lines over the mesh go between all of them.
    pub(super) fn all_near(&self, ranks: u32) -> bool {
        self.nvswitch || ranks <= 2 || self.ring.kind_intra == PathKind::Loc
    }

    /// The graph that an algorithm runs on.
    pub(super) fn graph(&self, algorithm: Algorithm) -> Option<&ChannelGraph> {
        match algorithm {
            // Those that no search is made for go over the ring's links.
            Algorithm::Ring
            | Algorithm::Hierarchical
            | Algorithm::OneShot
            | Algorithm::TwoShot
            | Algorithm::Direct
            | Algorithm::Nvls
            | Algorithm::Bruck
            | Algorithm::Chain
            | Algorithm::Doubling
            | Algorithm::Linear
            | Algorithm::Own(_) => Some(self.ring),
            Algorithm::Tree => self.tree,
            Algorithm::CollnetDirect | Algorithm::CollnetChain => self.collnet,
        }
    }
}

/// The row of a protocol in tables. Another crate's has been replaced by the one that it is like ([`OwnKernels::modelled`]); where it
/// has not, it counts as Simple.
pub(super) const fn modelled_as(protocol: ProtocolId) -> usize {
    match protocol {
        ProtocolId::Own(_) => ProtocolId::Simple.index(),
        known => known.index(),
    }
}

/// The algorithms of a collective, whatever the machine.
#[must_use]
pub fn algorithms(collective: Collective) -> &'static [Algorithm] {
    use Algorithm::{
        Bruck, Chain, CollnetChain, CollnetDirect, Direct, Doubling, Hierarchical, Linear, Nvls,
        OneShot, Ring, Tree, TwoShot,
    };
    match collective {
        Collective::AllReduce | Collective::Barrier => &[
            Tree,
            Ring,
            CollnetDirect,
            CollnetChain,
            Hierarchical,
            OneShot,
            TwoShot,
            Direct,
            Nvls,
            Chain,
            Doubling,
        ],
        Collective::AllGather => &[Ring, Bruck, OneShot, Direct, Nvls, Linear],
        Collective::ReduceScatter => &[Ring, Bruck, OneShot, Direct, Nvls, Chain, Linear],
        Collective::Broadcast => &[Tree, Ring, Linear],
        Collective::Reduce => &[Tree, Ring, Chain],
        Collective::SendRecv => &[Ring],
        // Otherwise it is a group of sends and receives.
        Collective::AllToAll => &[OneShot, Direct, Linear],
    }
}

/// Why a call cannot be done with this algorithm and protocol; `None` when it can.
pub(super) fn impossible(
    s: &Situation<'_>,
    collective: Collective,
    algorithm: Algorithm,
    protocol: ProtocolId,
    settings: &Settings,
) -> Option<String> {
    let collnet = matches!(algorithm, Algorithm::CollnetDirect | Algorithm::CollnetChain);
    if s.ranks() == 1 && (algorithm, protocol) != (Algorithm::Ring, ProtocolId::Simple) {
        return Some("a single rank only copies".to_owned());
    }
    let own = (matches!(algorithm, Algorithm::Own(_)), matches!(protocol, ProtocolId::Own(_)));
    if (own.0 || own.1) && !settings.own.has(collective, algorithm, protocol) {
        return Some(format!("there is no kernel of {protocol} for it"));
    }
    if !own.0 && !algorithms(collective).contains(&algorithm) {
        return Some(match (algorithm, collective) {
            (Algorithm::CollnetDirect, Collective::AllGather | Collective::ReduceScatter) => {
                "needs a network that gathers and scatters, which is not modelled".to_owned()
            }
            _ => format!("no {algorithm} does {collective}"),
        });
    }
    if collnet && protocol != ProtocolId::Simple {
        return Some(format!("a network that reduces knows no {protocol}"));
    }
    if (algorithm.is_over_mesh() || algorithm == Algorithm::Linear) && !s.has_mesh() {
        let why = "ranks do not all reach each other's memory, or memory of one host";
        return Some(why.to_owned());
    }
    if algorithm.is_on_windows() {
        if protocol != ProtocolId::Simple {
            return Some(format!("{algorithm} moves plain data, as Simple does"));
        }
        if collective == Collective::Barrier {
            return Some("a barrier has no buffers of the caller's".to_owned());
        }
    }
    let none = || Some("there is no network that reduces".to_owned());
    let Devices::Gpus(gpus) = s.devices() else {
        let here = match algorithm {
            Algorithm::CollnetDirect => s.collnet,
            Algorithm::CollnetChain => false,
            _ => true,
        };
        return if here { None } else { none() };
    };
    if collnet && s.nodes() == 1 {
        return Some("a single node: there is no network between the ranks".to_owned());
    }
    let Some(graph) = gpus.graph(algorithm) else {
        return if collnet {
            none()
        } else {
            Some(format!("no {} was found", algorithm.name().to_lowercase()))
        };
    };
    if algorithm == Algorithm::Nvls
        && let Some(why) = no_multicast(s, gpus)
    {
        return Some(why);
    }
    if algorithm == Algorithm::CollnetDirect && !gpus.nvswitch {
        return Some("needs GPUs that are joined by switches".to_owned());
    }
    if algorithm == Algorithm::CollnetDirect && s.local_ranks() > tables::COLLNET_DIRECT_GPUS {
        let most = tables::COLLNET_DIRECT_GPUS;
        return Some(format!("{} ranks of a node; {most} at most", s.local_ranks()));
    }
    // Also where it is no number.
    let moves = bandwidth_of_channel(graph, s.nodes(), algorithm) >= LEAST_BW;
    let usable = s.ranks() == 1 || (moves && !graph.channels.is_empty());
    (!usable).then(|| "its channels have no bandwidth".to_owned())
}

/// The first compute capability whose GPUs know `multimem` (PTX ISA 9.0, 9.7.9.14).
const MULTICAST_SM: u32 = 90;

/// Why GPUs have no multicast objects; `None` when they may.
fn no_multicast(s: &Situation<'_>, gpus: &Gpus<'_>) -> Option<String> {
    if gpus.min_sm < MULTICAST_SM {
        return Some(format!("sm_{} has no multicast objects; sm_{MULTICAST_SM} has", gpus.min_sm));
    }
    if !gpus.nvswitch {
        return Some("multicast objects need GPUs that are joined by switches".to_owned());
    }
    let shared = s.ranks() > 1 && gpus.ring.kind_intra == PathKind::Loc;
    shared.then(|| "a GPU is in a multicast object once, and ranks share one".to_owned())
}

/// Why this algorithm and protocol may not be chosen although they can do the call; `None` when they may.
pub(super) fn forbidden(
    s: &Situation<'_>,
    collective: Collective,
    algorithm: Algorithm,
    protocol: ProtocolId,
    settings: &Settings,
) -> Option<String> {
    if s.ranks() == 1 {
        // There is nothing to choose.
        return None;
    }
    if algorithm.is_on_windows() && !settings.windows {
        return Some("the buffers are in no window".to_owned());
    }
    if algorithm == Algorithm::Nvls && settings.no_multicast {
        return Some("NCCL_NVLS_ENABLE is 0".to_owned());
    }
    if !settings.allows(collective, algorithm) {
        return Some("not allowed by NCCL_ALGO".to_owned());
    }
    if !settings.allows_protocol(collective, protocol) {
        return Some("not allowed by NCCL_PROTO".to_owned());
    }
    let unnamed =
        |what: &str| Some(format!("the model has no figures of it, and {what} does not name it"));
    let plain_over_mesh = matches!(algorithm, Algorithm::OneShot | Algorithm::TwoShot)
        && protocol == ProtocolId::Simple;
    if plain_over_mesh
        && matches!(s.devices(), Devices::Gpus(_))
        && !settings.algorithms.names(collective)
    {
        return unnamed("NCCL_ALGO");
    }
    if !settings.own.knows_algorithm(algorithm) && !settings.algorithms.names(collective) {
        return unnamed("NCCL_ALGO");
    }
    if !settings.own.knows_protocol(protocol) && !settings.protocols.names(collective) {
        return unnamed("NCCL_PROTO");
    }
    if !settings.allows_order(collective, algorithm) {
        return Some("not in the order of the ranks, as FERROCCL_DETERMINISTIC asks".to_owned());
    }
    if protocol == ProtocolId::Ll128
        && !settings.protocols.names(collective)
        && let Err(why) = ll128_is_safe(settings, s, algorithm)
    {
        return Some(format!("LL128 is not safe: {why}"));
    }
    None
}

/// Whether LL128 may be trusted: its flag vouches for the 120 bytes before it only where a warp's store of 128 bytes
/// arrives as a whole or in order.
///
/// On GPUs that is so over `NVLink`, and through PCI switches to a card, from Volta on. On CPU devices it is so by the
/// flag's store and load, which are a release and an acquire.
pub(super) fn ll128_is_safe(
    settings: &Settings,
    s: &Situation<'_>,
    algorithm: Algorithm,
) -> Result<(), String> {
    let Devices::Gpus(gpus) = s.devices() else { return Ok(()) };
    let Some(graph) = gpus.graph(algorithm) else { return Ok(()) };
    if gpus.min_sm < 70 {
        return Err(format!("sm_{} does not keep stores of 128 bytes whole", gpus.min_sm));
    }
    if gpus.min_sm != gpus.max_sm && gpus.min_sm < 90 {
        return Err(format!("GPUs of sm_{} and sm_{} are mixed", gpus.min_sm, gpus.max_sm));
    }
    if graph.kind_intra > PathKind::Nvb {
        return Err(format!("GPUs reach each other by {}, farther than NVB", graph.kind_intra));
    }
    let far = gpus.min_sm >= 90 && !settings.no_ll128_c2c;
    if algorithm.is_over_mesh() && !gpus.all_near(s.ranks()) {
        return Err("not each two GPUs are joined by NVLink".to_owned());
    }
    let farthest = if far { PathKind::Pxn } else { PathKind::Pxb };
    if s.nodes() > 1 && graph.kind_inter > farthest {
        return Err(format!(
            "GPUs reach the network by {}, farther than {farthest}",
            graph.kind_inter
        ));
    }
    Ok(())
}
