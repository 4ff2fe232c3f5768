//! Kernels of other crates: protocols, algorithms and the rows of their kernels, for the communicators that are given them.
//!
//! ```text
//! Registry (CommConfig::registry) ─┬─► buffers of each protocol in every connection
//!                                  ├─► names: NCCL_PROTO=ll64, NCCL_ALGO=halving
//!                                  ├─► candidates of the tuner, with figures where they are given
//!                                  └─► kernels of the calls for which it was chosen, and their PTX
//! ```

use std::fmt;
use std::sync::Arc;

use ferroccl_device::abi::{
    Algorithm, Collective, DataType, LL_LINE, LL128_LINE, OwnAlgorithm, OwnProtocol, ProtocolId,
    ReduceOp,
};
use ferroccl_device::kernels::{self, Kernel, PtxText, Row, lookup};
use ferroccl_device::prims::{Correct, Ll, Ll128, Protocol, Simple};
use ferroccl_topology::graph::tuning::{AlgorithmFigures, OwnKernels, ProtocolFigures};
use sha2::{Digest as _, Sha256};

use crate::conformance::ProtocolTests;
use crate::error::{Error, Result};

/// Bytes of the name of a protocol or algorithm of another crate, at most.
pub(crate) const NAME_BYTES: usize = 24;

/// Kernels of other crates, which a communicator has beside the library's: see [`CommConfig::registry`](crate::CommConfig::registry).
/// All ranks of a communicator need the same.
///
/// From then on the names work in `NCCL_PROTO` and `NCCL_ALGO`, and calls such as [`Communicator::all_reduce`](crate::Communicator::all_reduce)
/// take the kernels where the settings or the tuner say so. It is a value: cloning it is cheap.
///
/// ```
/// use ferroccl::{CommConfig, Communicator, Device, Registry, ReduceOp};
/// use ferroccl::device::abi::{Algorithm, Collective, ProtocolId};
/// use ferroccl::device::collectives::{AllReduceRing, KernelCode};
/// use ferroccl::device::element::Element;
/// use ferroccl::device::prims::{KernelContext, Ll, Protocol};
/// use ferroccl::device::reduce::{Reduction, Sum};
///
/// /// An algorithm: here the library's ring under another name.
/// struct MyRing;
///
/// impl KernelCode for MyRing {
///     const COLLECTIVE: Collective = Collective::AllReduce;
///     const ALGORITHM: Algorithm = Algorithm::own(0, "MyRing");
///     unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(cx: KernelContext) {
///         // SAFETY: the caller's.
///         unsafe { AllReduceRing::run_block::<T, R, P>(cx) }
///     }
/// }
///
/// ferroccl::device::kernels! {
///     pub static KERNELS;
///     pub SUM = "all_reduce_my_ring_ll_sum_float": MyRing, f32, Sum, Ll;
/// }
///
/// let mut config = CommConfig::default();
/// config.registry = Registry::new().kernels(KERNELS, "");
/// config.algorithm = Some(MyRing::ALGORITHM);
/// let device = Device::cpu();
/// let ranks = Communicator::init_all_with(&device, 2, &config)?;
/// # let (a, b) = (device.stream()?, device.stream()?);
/// # let buffers = [device.upload(&[1.0f32; 4])?, device.upload(&[2.0; 4])?];
/// # for ((rank, stream), buffer) in ranks.iter().zip([&a, &b]).zip(&buffers) {
/// rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream)?; // by MyRing
/// # }
/// # assert_eq!(buffers[0].to_vec(&a)?, [3.0; 4]);
/// # b.synchronize()?;
/// # Ok::<(), ferroccl::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Registry(Arc<Contents>);

#[derive(Clone, Default)]
struct Contents {
    protocols: Vec<RegisteredProtocol>,
    algorithms: Vec<(Algorithm, Figures)>,
    rows: Vec<Row>,
    /// What was wrong with a call of the builder's, for [`Registry::check`].
    wrong: Option<(String, String)>,
}

/// What an algorithm does for so many ranks.
type Figures = fn(u32) -> AlgorithmFigures;

/// A protocol of another crate.
#[derive(Clone, Copy)]
struct RegisteredProtocol {
    protocol: ProtocolId,
    /// Bytes of a connection's buffer.
    bytes: usize,
    /// Bytes of a line, or 0.
    line: usize,
    tests: Option<ProtocolTests>,
    figures: Option<ProtocolFigures>,
}

impl Registry {
    /// Nothing but the library's own.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With a protocol of another crate: every connection of a communicator gets a buffer of so many bytes for it, which is divided into
    /// the slots and which no other protocol reads or writes. It is zeroed when it is made, and its flags are only ever those of this
    /// protocol.
    #[must_use]
    pub fn protocol<P: Protocol>(self, buffer_bytes: usize) -> Self {
        let tests = Some(ProtocolTests::of::<P>());
        self.with_protocol(P::ID, buffer_bytes, P::LINE, tests)
    }

    /// [`Registry::protocol`] by its id, with the bytes of a line.
    pub(crate) fn protocol_id(self, protocol: ProtocolId, bytes: usize, line: usize) -> Self {
        self.with_protocol(protocol, bytes, line, None)
    }

    fn with_protocol(
        self,
        protocol: ProtocolId,
        bytes: usize,
        line: usize,
        tests: Option<ProtocolTests>,
    ) -> Self {
        let registered = RegisteredProtocol { protocol, bytes, line, tests, figures: None };
        self.with(|all| all.protocols.push(registered))
    }

    /// The tests of a protocol: one of the library's, or one that [`Registry::protocol`] has added.
    #[must_use]
    pub fn tests_of(&self, protocol: ProtocolId) -> Option<ProtocolTests> {
        match protocol {
            ProtocolId::Ll => Some(ProtocolTests::of::<Ll<Correct>>()),
            ProtocolId::Ll128 => Some(ProtocolTests::of::<Ll128<Correct>>()),
            ProtocolId::Simple => Some(ProtocolTests::of::<Simple<Correct>>()),
            ProtocolId::Own(_) => {
                self.0.protocols.iter().find(|known| known.protocol == protocol)?.tests
            }
        }
    }

    /// Bytes of a protocol's lines; `None` where it has none.
    #[must_use]
    pub fn line_of(&self, protocol: ProtocolId) -> Option<u32> {
        let own = || self.0.protocols.iter().find(|known| known.protocol == protocol);
        let bytes = match protocol {
            ProtocolId::Ll => LL_LINE,
            ProtocolId::Ll128 => LL128_LINE,
            ProtocolId::Simple => 0,
            ProtocolId::Own(_) => own().map_or(0, |known| known.line),
        };
        u32::try_from(bytes).ok().filter(|bytes| *bytes > 0)
    }

    /// What the tuner reckons with for a protocol that was added before: then it is chosen where it is the fastest. Without, it runs
    /// where `NCCL_PROTO` or [`CommConfig::protocol`](crate::CommConfig::protocol) names it. `ferroccl perf --fit` measures them.
    #[must_use]
    pub fn protocol_figures<P: Protocol>(self, figures: ProtocolFigures) -> Self {
        self.with(|all| {
            let known = all.protocols.iter_mut().find(|known| known.protocol == P::ID);
            match known {
                Some(known) => known.figures = Some(figures),
                None => all.wrong("figures", P::ID, "of a protocol that was added before"),
            }
        })
    }

    /// What the tuner reckons with for an algorithm, for each number of ranks; as [`Registry::protocol_figures`], with `NCCL_ALGO`.
    #[must_use]
    pub fn algorithm_figures(self, algorithm: Algorithm, figures: Figures) -> Self {
        self.with(|all| all.algorithms.push((algorithm, figures)))
    }

    /// With kernels ([`kernels!`](ferroccl_device::kernels!), [`protocol_kernels!`](ferroccl_device::protocol_kernels!)), and `ptx`, a
    /// module that has their entries: what a GPU and the emulator run. It is empty where there is none; the kernels run on CPU devices
    /// then. A kernel that has the name of one of the library's brings its PTX along, for builds of the library without.
    #[must_use]
    pub fn kernels(self, rows: &[Row], ptx: &'static str) -> Self {
        self.with(|all| {
            let ptx = (!ptx.is_empty()).then_some(PtxText(ptx));
            all.rows.extend(rows.iter().map(|row| {
                let kernel = Kernel { ptx: row.kernel.ptx.or(ptx), ..row.kernel };
                Row { kernel, ..*row }
            }));
        })
    }

    fn with(mut self, change: impl FnOnce(&mut Contents)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Whether there is nothing in it, and nothing was wrong with what was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Contents { protocols, algorithms, rows, wrong } = &*self.0;
        protocols.is_empty() && algorithms.is_empty() && rows.is_empty() && wrong.is_none()
    }

    /// The protocols, in the order in which they were added.
    pub fn protocols(&self) -> impl Iterator<Item = ProtocolId> + '_ {
        self.0.protocols.iter().map(|known| known.protocol)
    }

    /// The algorithms that are not the library's, in the order of their first kernels.
    #[must_use]
    pub fn algorithms(&self) -> Vec<Algorithm> {
        let mut all: Vec<Algorithm> = Vec::new();
        for row in &self.0.rows {
            if matches!(row.algorithm, Algorithm::Own(_)) && !all.contains(&row.algorithm) {
                all.push(row.algorithm);
            }
        }
        all
    }

    /// The kernels.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.0.rows
    }

    /// Numbers, names and bytes of the protocols' buffers.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = (OwnProtocol, usize)> + '_ {
        self.0.protocols.iter().filter_map(|known| match known.protocol {
            ProtocolId::Own(own) => Some((own, known.bytes)),
            _ => None,
        })
    }

    /// Whether connections have buffers for a protocol.
    pub(crate) fn has_buffers(&self, protocol: ProtocolId) -> bool {
        !matches!(protocol, ProtocolId::Own(_)) || self.protocols().any(|known| known == protocol)
    }

    /// The kernel of a call: of the library's table, or where algorithm or protocol are of another crate, of its rows.
    #[must_use]
    pub fn lookup(
        &self,
        collective: Collective,
        algorithm: Algorithm,
        protocol: ProtocolId,
        op: ReduceOp,
        data_type: DataType,
    ) -> Option<Kernel> {
        match (algorithm, protocol) {
            (Algorithm::Own(_), _) | (_, ProtocolId::Own(_)) => {
                let rows = &self.0.rows;
                let row = Row::find(rows, collective, algorithm, protocol, op, data_type);
                row.map(|row| row.kernel)
            }
            _ => {
                let kernel = lookup(collective, algorithm, protocol, op, data_type)?;
                // A row of the same name brings its PTX along.
                let own = self.0.rows.iter().find(|row| row.kernel.name == kernel.name);
                Some(Kernel { ptx: own.and_then(|row| row.kernel.ptx), ..kernel })
            }
        }
    }

    /// What the tuner needs to know, for so many ranks.
    #[must_use]
    pub fn own_kernels(&self, ranks: u32) -> OwnKernels {
        let mut all = OwnKernels::default();
        let algorithms = [Algorithm::ALL, &self.algorithms()].concat();
        let protocols: Vec<_> = ProtocolId::ALL.iter().copied().chain(self.protocols()).collect();
        for &collective in Collective::ALL {
            for &algorithm in &algorithms {
                for &protocol in &protocols {
                    let own = matches!(algorithm, Algorithm::Own(_))
                        || matches!(protocol, ProtocolId::Own(_));
                    let serves = |row: &Row| {
                        row.serves(collective, algorithm)
                            && row.protocol.is_none_or(|p| p == protocol)
                    };
                    if own && self.0.rows.iter().any(serves) {
                        all.kernels.push((collective, algorithm, protocol));
                    }
                }
            }
        }
        for known in &self.0.protocols {
            if let ProtocolId::Own(own) = known.protocol
                && let Some(place) = all.protocols.get_mut(usize::from(own.number()))
            {
                *place = known.figures;
            }
        }
        for (algorithm, figures) in &self.0.algorithms {
            if let Algorithm::Own(own) = algorithm
                && let Some(place) = all.algorithms.get_mut(usize::from(own.number()))
            {
                *place = Some(figures(ranks));
            }
        }
        all
    }

    /// A number that is the same on two ranks if what they have registered is, for so many ranks.
    pub(crate) fn digest(&self, ranks: u32) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let mut hash = Sha256::new();
        let mut word = |text: String| hash.update(format!("{text}\n"));
        for known in &self.0.protocols {
            let RegisteredProtocol { protocol, bytes, figures, .. } = known;
            word(format!("{} {protocol} {bytes} {figures:?}", protocol.index()));
        }
        for (algorithm, figures) in &self.0.algorithms {
            word(format!("{} {algorithm} {:?}", algorithm.index(), figures(ranks)));
        }
        for row in &self.0.rows {
            let (protocol, name) = (row.protocol.map(ProtocolId::index), row.kernel.name);
            word(format!("{} {} {protocol:?} {name}", row.collective, row.algorithm.index()));
        }
        let digest = hash.finalize();
        digest.iter().take(8).fold(0, |word, byte| word << 8 | u64::from(*byte))
    }

    /// Checks what was registered.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] when a protocol or algorithm is one of the library's, or has a number or name that cannot be had or
    /// that another has; when a kernel's protocol was not added, or figures cannot be.
    pub fn check(&self) -> Result<()> {
        if let Some((value, range)) = &self.0.wrong {
            return Err(setting("registry", value, range));
        }
        let mut protocols: Vec<(u8, &'static str)> = Vec::new();
        for known in &self.0.protocols {
            let ProtocolId::Own(own) = known.protocol else {
                return Err(setting("protocol", known.protocol, "a protocol of another crate"));
            };
            let is_the_librarys = own.name().parse::<ProtocolId>().is_ok();
            let which = ("protocol", OwnProtocol::MOST, is_the_librarys);
            check_name(which, (own.number(), own.name()), &mut protocols)?;
            if known.figures.is_some_and(|figures| !figures.are_possible()) {
                let value = format!("{:?}", known.figures);
                return Err(setting("protocol_figures", value, "finite and more than 0"));
            }
        }
        let mut algorithms = Vec::new();
        for algorithm in self.algorithms() {
            let Algorithm::Own(own) = algorithm else { continue };
            let is_the_librarys = own.name().parse::<Algorithm>().is_ok();
            let which = ("algorithm", OwnAlgorithm::MOST, is_the_librarys);
            check_name(which, (own.number(), own.name()), &mut algorithms)?;
        }
        for (algorithm, figures) in &self.0.algorithms {
            if !self.algorithms().contains(algorithm) {
                let range = "of an algorithm of another crate that has kernels";
                return Err(setting("algorithm_figures", algorithm, range));
            }
            let few = (2..=8).find(|ranks| !figures(*ranks).are_possible());
            if let Some(ranks) = few {
                let value = format!("{algorithm}: {:?} of {ranks} ranks", figures(ranks));
                return Err(setting("algorithm_figures", value, "finite and more than 0"));
            }
        }
        for row in &self.0.rows {
            let name = row.kernel.name;
            let own = matches!(row.algorithm, Algorithm::Own(_));
            match row.protocol {
                Some(protocol) if !self.has_buffers(protocol) => {
                    let range = format!("of a protocol that was added: {protocol} was not");
                    return Err(setting("kernels", name, &range));
                }
                Some(ProtocolId::Own(_)) => {}
                _ if own || kernels::all().any(|kernel| kernel.name == name) => {}
                _ => {
                    let range = "of a protocol or an algorithm of another crate, or called as the library's own kernel is";
                    return Err(setting("kernels", name, range));
                }
            }
        }
        Ok(())
    }
}

impl Contents {
    fn wrong(&mut self, what: &str, which: ProtocolId, range: &str) {
        self.wrong.get_or_insert((format!("{what} of {which}"), range.to_owned()));
    }
}

/// Checks a number and a name against those that were there before.
fn check_name(
    (what, most, is_the_librarys): (&str, u8, bool),
    (number, name): (u8, &'static str),
    seen: &mut Vec<(u8, &'static str)>,
) -> Result<()> {
    if number >= most {
        return Err(setting(what, number, &format!("numbers 0 to {}", most - 1)));
    }
    let good = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    if name.is_empty() || name.len() > NAME_BYTES || !name.chars().all(good) || is_the_librarys {
        let range = format!(
            "a name of 1 to {NAME_BYTES} letters, digits, - and _ that none of the library's has"
        );
        return Err(setting(what, format!("{name:?}"), &range));
    }
    let alike = |other: &&(u8, &str)| other.0 == number || other.1.eq_ignore_ascii_case(name);
    if let Some((number_of_other, other)) = seen.iter().find(alike) {
        let range = format!("another number and name than {other} (number {number_of_other})");
        return Err(setting(what, format!("{name} (number {number})"), &range));
    }
    seen.push((number, name));
    Ok(())
}

fn setting(what: &str, value: impl ToString, range: &str) -> Error {
    Error::InvalidSetting {
        name: format!("CommConfig::registry, {what}"),
        value: value.to_string(),
        reason: format!("must be {range}"),
    }
}

/// The names of what it has.
impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kernels: Vec<&str> = self.0.rows.iter().map(|row| row.kernel.name).collect();
        f.debug_struct("Registry")
            .field("protocols", &self.protocols().map(ProtocolId::name).collect::<Vec<_>>())
            .field("kernels", &kernels)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroccl_device::collectives::{AllReduceRing, KernelCode};
    use ferroccl_device::element::Element;
    use ferroccl_device::prims::{KernelContext, Ll, Simple};
    use ferroccl_device::reduce::{Reduction, Sum};

    struct Mine;

    impl KernelCode for Mine {
        const COLLECTIVE: Collective = Collective::AllReduce;
        const ALGORITHM: Algorithm = Algorithm::own(1, "Mine");
        unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(cx: KernelContext) {
            // SAFETY: the caller's.
            unsafe { AllReduceRing::run_block::<T, R, P>(cx) }
        }
    }

    const LL64: ProtocolId = ProtocolId::own(0, "LL64");

    fn row(algorithm: Algorithm, protocol: ProtocolId) -> Row {
        let row = Row::of::<Mine, f32, Sum, Ll>("k");
        Row { algorithm, protocol: Some(protocol), ..row }
    }

    #[test]
    fn a_kernel_is_found_by_what_it_does() {
        let rows = [Row::of::<Mine, f32, Sum, Ll>("mine"), row(Algorithm::Tree, LL64)];
        let registry = Registry::new().protocol_id(LL64, 1 << 20, 64).kernels(&rows, "// PTX");
        registry.check().unwrap();
        let find = |c, a, p| registry.lookup(c, a, p, ReduceOp::Sum, DataType::F32);
        let (all, reduce) = (Collective::AllReduce, Collective::Reduce);
        let mine = find(all, Mine::ALGORITHM, ProtocolId::Ll).unwrap();
        assert_eq!((mine.name, mine.ptx), ("mine", Some(PtxText("// PTX"))));
        assert!(find(all, Mine::ALGORITHM, ProtocolId::Simple).is_none());
        // The tree's all-reduce reduces, too.
        assert!(find(reduce, Algorithm::Tree, LL64).is_some());
        assert!(find(reduce, Algorithm::Ring, LL64).is_none());
        assert!(find(all, Algorithm::Ring, ProtocolId::Simple).is_some(), "the library's");
        let own = registry.own_kernels(4);
        assert!(
            own.has(all, Mine::ALGORITHM, ProtocolId::Ll) && own.has(reduce, Algorithm::Tree, LL64)
        );
        assert!(own.has(Collective::Barrier, Algorithm::Tree, LL64));
        assert!(!own.has(Collective::AllGather, Mine::ALGORITHM, ProtocolId::Ll));
    }

    #[test]
    fn nonsense_is_named() {
        let protocol =
            |number, name| Registry::new().protocol_id(ProtocolId::own(number, name), 4096, 0);
        let kernels = |row| Registry::new().kernels(&[row], "");
        let figures = ProtocolFigures { bandwidth: 0.0, ..ProtocolFigures::default() };
        let nan = |_| AlgorithmFigures { steps: f64::NAN, sent: 1.0 };
        for (registry, why) in [
            (protocol(5, "LL64"), "protocol=5: must be numbers 0 to 4"),
            (protocol(0, ""), "protocol=\"\": must be a name of 1 to 24"),
            (protocol(0, "ll128"), "that none of the library's has"),
            (protocol(0, "a,b"), "letters, digits"),
            (protocol(0, "A").protocol_id(ProtocolId::own(0, "B"), 1, 0), "than A (number 0)"),
            (protocol(0, "A").protocol_id(ProtocolId::own(1, "a"), 1, 0), "than A (number 0)"),
            (Registry::new().protocol::<Simple>(4096), "protocol=Simple"),
            (kernels(row(Algorithm::Ring, LL64)), "LL64 was not"),
            (kernels(row(Algorithm::Ring, ProtocolId::Ll)), "called as the library's own"),
            (kernels(row(Algorithm::own(4, "X"), ProtocolId::Ll)), "algorithm=4"),
            (
                Registry::new().protocol_figures::<Ll>(figures),
                "figures of LL: must be of a protocol",
            ),
            (Registry::new().algorithm_figures(Mine::ALGORITHM, nan), "that has kernels"),
            (
                kernels(row(Mine::ALGORITHM, ProtocolId::Ll))
                    .algorithm_figures(Mine::ALGORITHM, nan),
                "algorithm_figures=Mine: AlgorithmFigures { steps: NaN",
            ),
        ] {
            assert!(!registry.is_empty(), "a communicator would not look at it: {why}");
            let error = registry.check().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn what_differs_has_another_digest() {
        let one = Registry::new().protocol_id(LL64, 4096, 0);
        let digests = [
            Registry::new().digest(4),
            one.digest(4),
            Registry::new().protocol_id(LL64, 8192, 0).digest(4),
            one.clone().kernels(&[row(Algorithm::Ring, LL64)], "").digest(4),
            one.kernels(&[row(Algorithm::Tree, LL64)], "").digest(4),
        ];
        for (i, digest) in digests.iter().enumerate() {
            assert!(!digests[..i].contains(digest), "{digests:?}");
        }
    }
}
