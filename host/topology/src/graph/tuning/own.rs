//! What the tuner knows of protocols and algorithms of other crates.
//!
//! A protocol is described beside one of the library's: the same steps, each so many times as long; the same bytes, so many times as
//! fast. Both run over the same links, so that the ratio, measured once, is good for other machines and algorithms. An algorithm is
//! described by the steps that a call takes one after the other and the bytes that a rank sends.

use ferroccl_device::abi::{Algorithm, Collective, OwnAlgorithm, OwnProtocol, ProtocolId};

use super::Cost;

/// A protocol's times beside those of one of the library's, by the same algorithm.
///
/// `ferroccl perf --fit` measures them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProtocolFigures {
    /// One of the library's; what else there is counts as [`ProtocolId::Simple`].
    pub like: ProtocolId,
    /// How much longer a call of few bytes takes: 1 is as long.
    pub latency: f64,
    /// How much more bytes it moves in the same time: 1 is as many.
    pub bandwidth: f64,
}

impl Default for ProtocolFigures {
    /// As Simple.
    fn default() -> Self {
        ProtocolFigures { like: ProtocolId::Simple, latency: 1.0, bandwidth: 1.0 }
    }
}

impl ProtocolFigures {
    /// The cost of a call, from that of the protocol that it is like.
    fn apply(&self, cost: Cost, bytes: u64) -> Cost {
        let latency_us = cost.latency_us * self.latency;
        let rest = (cost.time_us - cost.latency_us) / self.bandwidth;
        let bandwidth = if rest > 0.0 { bytes as f64 / rest * 1e-3 } else { cost.bandwidth };
        Cost { time_us: latency_us + rest, latency_us, bandwidth }
    }

    /// Whether they are figures that a machine can have.
    #[must_use]
    pub fn are_possible(&self) -> bool {
        [self.latency, self.bandwidth].iter().all(|x| x.is_finite() && *x > 0.0)
    }
}

/// What an algorithm does for a call of a number of ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AlgorithmFigures {
    /// Steps one after the other: of a ring's all-reduce 2 (n - 1).
    pub steps: f64,
    /// Bytes that a rank sends for each byte of the call: of a ring's all-reduce 2 (n - 1) / n.
    pub sent: f64,
}

impl AlgorithmFigures {
    /// What is taken where nothing is known: a step with all bytes.
    const UNKNOWN: Self = AlgorithmFigures { steps: 1.0, sent: 1.0 };

    /// Whether they are figures that an algorithm can have.
    #[must_use]
    pub fn are_possible(&self) -> bool {
        [self.steps, self.sent].iter().all(|x| x.is_finite() && *x > 0.0)
    }
}

/// The kernels of other crates that a communicator has, and what is known of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OwnKernels {
    /// What there are kernels for: those of the library's algorithms in other protocols, and of other algorithms.
    pub kernels: Vec<(Collective, Algorithm, ProtocolId)>,
    /// By number. A protocol without figures runs where `NCCL_PROTO` names it.
    pub protocols: [Option<ProtocolFigures>; OwnProtocol::MOST as usize],
    /// By number. An algorithm without figures runs where `NCCL_ALGO` names it.
    pub algorithms: [Option<AlgorithmFigures>; OwnAlgorithm::MOST as usize],
}

impl OwnKernels {
    /// Whether there is a kernel.
    #[must_use]
    pub fn has(&self, collective: Collective, algorithm: Algorithm, protocol: ProtocolId) -> bool {
        self.kernels.contains(&(collective, algorithm, protocol))
    }

    /// Whether the model has figures of an algorithm.
    #[must_use]
    pub fn knows_algorithm(&self, algorithm: Algorithm) -> bool {
        match algorithm {
            Algorithm::Own(own) => self.of_algorithm(own).is_some(),
            _ => true,
        }
    }

    /// Whether it has figures of a protocol.
    #[must_use]
    pub fn knows_protocol(&self, protocol: ProtocolId) -> bool {
        match protocol {
            ProtocolId::Own(own) => self.of_protocol(own).is_some(),
            _ => true,
        }
    }

    /// The same where the caller has asked for an algorithm: it may be chosen, whether there are figures of it or not.
    #[must_use]
    pub fn with_asked(mut self, algorithm: Option<Algorithm>) -> Self {
        if let Some(Algorithm::Own(own)) = algorithm
            && let Some(place) = self.algorithms.get_mut(usize::from(own.number()))
        {
            place.get_or_insert(AlgorithmFigures::UNKNOWN);
        }
        self
    }

    /// The figures of an algorithm: a single step of all bytes where there are none.
    pub(super) fn algorithm(&self, algorithm: Algorithm) -> AlgorithmFigures {
        let own = match algorithm {
            Algorithm::Own(own) => self.of_algorithm(own),
            _ => None,
        };
        own.unwrap_or(AlgorithmFigures::UNKNOWN)
    }

    /// The library's protocol whose figures are taken, and what becomes of a cost.
    pub(super) fn modelled(
        &self,
        protocol: ProtocolId,
    ) -> (ProtocolId, impl Fn(Cost, u64) -> Cost + use<>) {
        let figures = match protocol {
            ProtocolId::Own(own) => Some(self.of_protocol(own).unwrap_or_default()),
            _ => None,
        };
        let like = match figures.map(|figures| figures.like) {
            None => protocol,
            Some(ProtocolId::Own(_)) => ProtocolId::Simple,
            Some(like) => like,
        };
        (like, move |cost, bytes| figures.map_or(cost, |figures| figures.apply(cost, bytes)))
    }

    fn of_algorithm(&self, own: OwnAlgorithm) -> Option<AlgorithmFigures> {
        self.algorithms.get(usize::from(own.number())).copied().flatten()
    }

    fn of_protocol(&self, own: OwnProtocol) -> Option<ProtocolFigures> {
        self.protocols.get(usize::from(own.number())).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Devices, Selection, Settings, Situation, choose, predict};
    use super::*;

    const LL64: ProtocolId = ProtocolId::own(0, "LL64");
    const DOUBLING: Algorithm = Algorithm::own(0, "Doubling");

    fn settings() -> Settings {
        let all = Collective::AllReduce;
        let kernels = vec![
            (all, Algorithm::Ring, LL64),
            (all, DOUBLING, ProtocolId::Ll),
            (Collective::Barrier, Algorithm::Ring, LL64),
        ];
        Settings { own: OwnKernels { kernels, ..OwnKernels::default() }, ..Settings::default() }
    }

    #[test]
    fn times_are_those_of_the_like() {
        let cores = Situation::new(1, 4, Devices::Cpu { ring: None });
        let mut settings = settings();
        let figures = ProtocolFigures { like: ProtocolId::Ll, latency: 2.0, bandwidth: 4.0 };
        settings.own.protocols[0] = Some(figures);
        let time = |p, bytes| {
            let (all, ring) = (Collective::AllReduce, Algorithm::Ring);
            predict(&cores, all, ring, p, bytes, &settings).cost.unwrap()
        };
        let (ll, own) = (time(ProtocolId::Ll, 1 << 20), time(LL64, 1 << 20));
        assert_eq!(own.latency_us, 2.0 * ll.latency_us);
        let rest = (own.time_us - own.latency_us) / (ll.time_us - ll.latency_us);
        assert!((rest - 0.25).abs() < 1e-9, "{rest}");
    }

    #[test]
    fn what_has_no_figures_runs_where_it_is_named() {
        let cores = Situation::new(1, 4, Devices::Cpu { ring: None });
        let all = Collective::AllReduce;
        let mut settings = settings();
        let how = |settings: &Settings| {
            let choice = choose(&cores, all, 8, settings).unwrap();
            (choice.algorithm, choice.protocol)
        };
        let unasked = how(&settings);
        assert!(unasked.1 != LL64 && unasked.0 != DOUBLING);
        let said = predict(&cores, all, Algorithm::Ring, LL64, 8, &settings).why_not.unwrap();
        assert_eq!(said, "the model has no figures of it, and NCCL_PROTO does not name it");
        settings.protocols = Selection::only(LL64);
        assert_eq!(how(&settings), (Algorithm::Ring, LL64));
        settings.protocols = Selection::all();
        settings.algorithms = Selection::only(DOUBLING);
        assert_eq!(how(&settings), (DOUBLING, ProtocolId::Ll));
        // By a caller who names the algorithm, and the settings the protocol.
        settings.own.kernels.push((all, DOUBLING, LL64));
        settings.own = settings.own.with_asked(Some(DOUBLING));
        (settings.algorithms, settings.protocols) = (Selection::all(), Selection::only(LL64));
        let asked = predict(&cores, all, DOUBLING, LL64, 8, &settings).why_not;
        assert_eq!(asked, None);
        (settings.protocols, settings.own) = (Selection::all(), self::settings().own);
        // Few enough steps, and it is taken by itself.
        settings.algorithms = Selection::all();
        settings.own.algorithms[0] = Some(AlgorithmFigures { steps: 1e-9, sent: 1e-9 });
        assert_eq!(how(&settings), (DOUBLING, ProtocolId::Ll));
    }

    #[test]
    fn what_has_no_kernel_is_not_taken() {
        let cores = Situation::new(1, 4, Devices::Cpu { ring: None });
        let settings = Settings { protocols: Selection::only(LL64), ..settings() };
        let none = choose(&cores, Collective::AllGather, 8, &settings).unwrap_err().to_string();
        assert!(none.contains("not allowed by NCCL_PROTO"), "{none}");
        let tree = predict(&cores, Collective::AllReduce, Algorithm::Tree, LL64, 8, &settings);
        assert_eq!(tree.why_not.as_deref(), Some("there is no kernel of LL64 for it"));
    }
}
