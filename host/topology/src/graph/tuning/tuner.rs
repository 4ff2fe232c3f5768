//! The choice from straight lines, computed once for a communicator: a call of 8 bytes can afford to look them up.
//!
//! Between two breakpoints the time of each candidate, an algorithm with a protocol, is linear in the bytes. A [`Tuner`]
//! holds these lines. A choice finds the range of the size, and compares the candidates there that the caller allows.

use std::time::Duration;

use ferroccl_device::abi::{Algorithm, Collective, ProtocolId};

use super::all_to_all;
use super::choose::{allowed, breakpoints};
use super::parallelism::MinimumSize;
use super::{Settings, Situation, is_faster, model};

/// No call is larger.
const LARGEST: u64 = 1 << 62;

/// What [`choose`](super::choose) says, for calls of every collective and size of one communicator: computed once,
/// looked up without allocating.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuner {
    /// The first size of each range, ascending; the first is 0.
    starts: Box<[u64]>,
    /// By [`Collective`].
    tables: Box<[CostTable]>,
    /// By algorithm and protocol. Those of other crates are as many as there are, whether they are registered or not.
    minimum_sizes: Box<[[MinimumSize; ProtocolId::MOST]]>,
    /// See [`Tuner::is_by_messages`].
    messages_from: Option<u64>,
}

/// The candidates of a collective, and their times.
#[derive(Clone, Debug, PartialEq)]
struct CostTable {
    /// The candidates that may be chosen, in NCCL's order; 64 at most.
    candidates: Box<[(Algorithm, ProtocolId)]>,
    /// The time of every candidate, range by range.
    costs: Box<[LinearCost]>,
}

/// A time in microseconds: at the first size of the range, and for each further byte.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LinearCost {
    first: f64,
    per_byte: f64,
}

impl CostTable {
    fn new(
        s: &Situation<'_>,
        collective: Collective,
        settings: &Settings,
        starts: &[u64],
    ) -> CostTable {
        let mut candidates = allowed(s, collective, settings);
        candidates.truncate(u64::BITS as usize);
        let time = |(a, p): (Algorithm, ProtocolId), bytes: u64| {
            // What may be chosen has a time.
            model::cost(s, collective, a, p, bytes, settings)
                .map_or(f64::INFINITY, |cost| cost.time_us)
        };
        let ends = starts.iter().skip(1).map(|next| next - 1).chain([LARGEST]);
        let ranges = starts.iter().zip(ends);
        let costs = ranges.flat_map(|(&start, end)| {
            candidates.iter().map(move |&choice| {
                let first = time(choice, start);
                let length = (end - start).max(1) as f64;
                LinearCost { first, per_byte: (time(choice, end) - first) / length }
            })
        });
        CostTable { costs: costs.collect(), candidates: candidates.into_boxed_slice() }
    }

    /// The fastest candidate for which `open` is true; of equals the first.
    fn best(
        &self,
        range: usize,
        more: u64,
        open: impl Fn(Algorithm, ProtocolId) -> bool,
    ) -> Option<(Algorithm, ProtocolId)> {
        let costs = self.costs.get(range * self.candidates.len()..)?;
        let mut closed = 0u64;
        loop {
            let mut best: Option<(f64, u32, (Algorithm, ProtocolId))> = None;
            for ((cost, &choice), i) in costs.iter().zip(&self.candidates).zip(0u32..) {
                let time = cost.first + more as f64 * cost.per_byte;
                if closed & (1 << i) == 0 && best.is_none_or(|best| is_faster(time, best.0)) {
                    best = Some((time, i, choice));
                }
            }
            // Asked only of what would be taken: it may have to look for a kernel.
            let (_, i, (algorithm, protocol)) = best?;
            if open(algorithm, protocol) {
                return Some((algorithm, protocol));
            }
            closed |= 1 << i;
        }
    }
}

impl Tuner {
    /// Of a communicator's calls.
    ///
    /// ```
    /// use ferroccl_topology::graph::tuning::*;
    ///
    /// let cores = Situation::new(1, 4, Devices::Cpu { ring: None });
    /// let tuner = Tuner::new(&cores, &Settings::default());
    /// let all = Collective::AllReduce;
    /// // Where there are kernels for rings alone:
    /// let fastest = |bytes| tuner.fastest(all, bytes, |algorithm, _| algorithm == Algorithm::Ring);
    /// assert_eq!(fastest(8), Some((Algorithm::Ring, ProtocolId::Ll)));
    /// assert_eq!(fastest(1 << 20), Some((Algorithm::Ring, ProtocolId::Simple)));
    /// assert_eq!(tuner.fastest(all, 8, |_, _| false), None);
    /// assert_eq!(tuner.channels(all, 1 << 20, Algorithm::Ring, ProtocolId::Simple, 2), 2);
    /// ```
    #[must_use]
    pub fn new(s: &Situation<'_>, settings: &Settings) -> Tuner {
        let starts = breakpoints(s, settings, 0, LARGEST);
        let table = |collective: &Collective| CostTable::new(s, *collective, settings, &starts);
        let tables = Collective::ALL.iter().map(table).collect();
        let protocol = |index| ProtocolId::from_index(index as u64).unwrap_or(ProtocolId::Simple);
        let minimum_sizes =
            (0..Algorithm::MOST as u64).filter_map(Algorithm::from_index).map(|a| {
                // In the order of their indices.
                std::array::from_fn(|p| MinimumSize::new(s, a, protocol(p), settings))
            });
        let minimum_sizes = minimum_sizes.collect();
        let messages_from = all_to_all::messages_from(s, settings);
        Tuner { starts: starts.into_boxed_slice(), tables, minimum_sizes, messages_from }
    }

    /// The same with rings and one protocol for all calls, whatever the settings are: for kernels that are not in the
    /// table.
    #[must_use]
    pub fn only(&self, protocol: ProtocolId) -> Tuner {
        let table = |_| CostTable {
            candidates: Box::new([(Algorithm::Ring, protocol)]),
            costs: Box::new([LinearCost { first: 0.0, per_byte: 0.0 }]),
        };
        Tuner {
            starts: Box::new([0]),
            tables: Collective::ALL.iter().map(table).collect(),
            minimum_sizes: self.minimum_sizes.clone(),
            messages_from: self.messages_from,
        }
    }

    /// The fastest algorithm and protocol for a call of `bytes` (see [`predict`](super::predict)) for which `open` is true;
    /// `None` when there is none.
    ///
    /// `open` says what the settings do not: whether there is a kernel for the operator and type, and whether this
    /// communicator has the edges. It must say the same on all ranks. An all-to-all may be faster by messages, which are not among
    /// what is compared: see [`Tuner::is_by_messages`].
    #[must_use]
    pub fn fastest(
        &self,
        collective: Collective,
        bytes: u64,
        open: impl Fn(Algorithm, ProtocolId) -> bool,
    ) -> Option<(Algorithm, ProtocolId)> {
        let range = self.starts.partition_point(|start| *start <= bytes).checked_sub(1)?;
        let more = bytes - self.starts.get(range)?;
        self.tables.get(collective as usize)?.best(range, more, open)
    }

    /// Whether a call of `bytes` is faster as a group of sends and receives than by this algorithm: an all-to-all, as far as
    /// [`messages_from`](super::all_to_all::messages_from) says.
    ///
    /// ```
    /// use ferroccl_topology::graph::tuning::*;
    ///
    /// let cores = Situation::new(1, 4, Devices::Cpu { ring: None });
    /// let algorithms = Selection::parse("ring,oneshot", &[])?;
    /// let tuner = Tuner::new(&cores, &Settings { algorithms, ..Settings::default() });
    /// let messages = |bytes| tuner.is_by_messages(Collective::AllToAll, bytes, Algorithm::OneShot);
    /// assert!(!messages(512) && messages(64 << 20));
    /// # Ok::<(), String>(())
    /// ```
    #[must_use]
    pub fn is_by_messages(&self, collective: Collective, bytes: u64, algorithm: Algorithm) -> bool {
        all_to_all::is_by_messages((collective, algorithm), bytes, self.messages_from)
    }

    /// The same, but an all-to-all is a group of sends and receives where it is for `other`: which it is has to be known before a
    /// call is made, and so before it is known who makes it.
    ///
    /// ```
    /// use ferroccl_topology::graph::tuning::*;
    ///
    /// let of = |algorithms: &str| -> Result<Tuner, String> {
    ///     let cores = Situation::new(1, 4, Devices::Cpu { ring: None });
    ///     let algorithms = Selection::parse(algorithms, &[])?;
    ///     Ok(Tuner::new(&cores, &Settings { algorithms, ..Settings::default() }))
    /// };
    /// let by_messages = |tuner: &Tuner| {
    ///     tuner.is_by_messages(Collective::AllToAll, 64 << 20, Algorithm::OneShot)
    /// };
    /// let (one, other) = (of("oneshot,linear")?, of("ring,oneshot")?);
    /// assert!(!by_messages(&one) && by_messages(&other));
    /// assert!(by_messages(&one.with_messages_of(&other)));
    /// # Ok::<(), String>(())
    /// ```
    #[must_use]
    pub fn with_messages_of(mut self, other: &Tuner) -> Tuner {
        self.messages_from = other.messages_from;
        self
    }

    /// What a call of `bytes` takes with this algorithm and protocol; zero for what the settings do not allow.
    #[must_use]
    pub fn time(
        &self,
        collective: Collective,
        bytes: u64,
        (algorithm, protocol): (Algorithm, ProtocolId),
    ) -> Duration {
        let mut all = self.times(collective, bytes);
        let us = all.find(|(a, p, _)| (*a, *p) == (algorithm, protocol)).map_or(0.0, |(.., us)| us);
        Duration::try_from_secs_f64(us * 1e-6).unwrap_or_default()
    }

    /// All that the settings allow for a call of `bytes`, with the microseconds that each takes, in NCCL's order.
    ///
    /// ```
    /// use ferroccl_topology::graph::tuning::*;
    ///
    /// let cores = Situation::new(1, 4, Devices::Cpu { ring: None });
    /// let tuner = Tuner::new(&cores, &Settings::default());
    /// let least = |bytes| tuner.times(Collective::AllReduce, bytes).map(|(_, _, us)| us).fold(f64::MAX, f64::min);
    /// assert!(least(8) < least(1 << 20));
    /// ```
    pub fn times(
        &self,
        collective: Collective,
        bytes: u64,
    ) -> impl Iterator<Item = (Algorithm, ProtocolId, f64)> + '_ {
        let range = self.starts.partition_point(|start| *start <= bytes).saturating_sub(1);
        let more = bytes.saturating_sub(self.starts.get(range).copied().unwrap_or(0)) as f64;
        let table = self.tables.get(collective as usize).into_iter();
        table.flat_map(move |table| {
            let costs = table.costs.get(range * table.candidates.len()..).unwrap_or(&[]);
            let timed = table.candidates.iter().zip(costs);
            timed.map(move |(&(a, p), cost)| (a, p, cost.first + more * cost.per_byte))
        })
    }

    /// How many of `channels` a call of `bytes` uses with this algorithm and protocol; at least 1.
    #[must_use]
    pub fn channels(
        &self,
        collective: Collective,
        bytes: u64,
        algorithm: Algorithm,
        protocol: ProtocolId,
        channels: u32,
    ) -> u32 {
        self.minimum_size(algorithm, protocol)
            .map_or(1, |minimum| minimum.channels(collective, bytes, channels))
    }

    /// The blocks of a kernel that transfers the messages of a group, of so many bytes together; `most` at most, and at least 1. On
    /// CPU devices there is one for each 32 KiB, and no more of them than channels.
    ///
    /// ```
    /// use ferroccl_topology::graph::tuning::{Devices, Settings, Situation, Tuner};
    ///
    /// let cores = Situation::new(1, 4, Devices::Cpu { ring: None }).with_channels(2);
    /// let tuner = Tuner::new(&cores, &Settings::default());
    /// assert_eq!(tuner.message_blocks(3 * 512, 16), 1);
    /// assert_eq!(tuner.message_blocks(3 << 20, 16), 2);
    /// ```
    #[must_use]
    pub fn message_blocks(&self, bytes: u64, most: u32) -> u32 {
        let any = self.minimum_sizes[Algorithm::Ring.index()][ProtocolId::Simple.index()];
        any.message_blocks(bytes, most)
    }

    /// How many threads a block of a call of `bytes` has that may use `channels`; 1 on the CPU.
    ///
    /// ```
    /// use ferroccl_topology::graph::tuning::*;
    ///
    /// let cores = Situation::new(1, 4, Devices::Cpu { ring: None });
    /// let tuner = Tuner::new(&cores, &Settings::default());
    /// let all = Collective::AllReduce;
    /// assert_eq!(tuner.threads(all, 1 << 20, Algorithm::Ring, ProtocolId::Simple, 2), 1);
    /// ```
    #[must_use]
    pub fn threads(
        &self,
        collective: Collective,
        bytes: u64,
        algorithm: Algorithm,
        protocol: ProtocolId,
        channels: u32,
    ) -> u32 {
        self.minimum_size(algorithm, protocol)
            .map_or(1, |minimum| minimum.parallelism(collective, bytes, channels).1)
    }

    fn minimum_size(&self, algorithm: Algorithm, protocol: ProtocolId) -> Option<&MinimumSize> {
        self.minimum_sizes.get(algorithm.index())?.get(protocol.index())
    }

    /// The algorithms and protocols that the settings allow for a collective, in NCCL's order.
    pub fn candidates(
        &self,
        collective: Collective,
    ) -> impl Iterator<Item = (Algorithm, ProtocolId)> + '_ {
        self.tables.get(collective as usize).into_iter().flat_map(|t| t.candidates.iter().copied())
    }
}
