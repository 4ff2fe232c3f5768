//! The choice as straight lines: what a call of 8 bytes can afford.
//!
//! Between two bends the time of each way is a straight line over the bytes. A [`Tuner`] has these lines, so that a
//! choice is a search for the range and a glance at each line, whatever the caller still rules out.

use super::choose::{Worth, allowed, bends};
use super::{Algorithm, Collective, Settings, Situation, is_faster, model};
use crate::device::abi::ProtocolId;

/// No call is larger.
const LARGEST: u64 = 1 << 62;

/// What [`choose`](super::choose) says, for calls of every collective and size of one communicator: computed once,
/// looked up without allocating.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuner {
    /// Where the lines begin, ascending; the first is 0.
    starts: Box<[u64]>,
    /// By [`Collective`].
    tables: Box<[Table]>,
    /// What a call has to bring, by algorithm and protocol.
    worth: Box<[[Worth; 3]]>,
}

/// The ways of a collective.
#[derive(Clone, Debug, PartialEq)]
struct Table {
    /// Those that may be chosen, in NCCL's order; 32 at most.
    ways: Box<[(Algorithm, ProtocolId)]>,
    /// For each range every way's line.
    lines: Box<[Line]>,
}

/// A time in microseconds: at the first byte of the range, and for each byte more.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    first: f64,
    byte: f64,
}

impl Table {
    fn new(
        s: &Situation<'_>,
        collective: Collective,
        settings: &Settings,
        starts: &[u64],
    ) -> Table {
        let ways = allowed(s, collective, settings);
        let time = |(a, p): (Algorithm, ProtocolId), bytes: u64| {
            // What may be chosen has a time.
            model::cost(s, collective, a, p, bytes, settings)
                .map_or(f64::INFINITY, |cost| cost.time_us)
        };
        let ends = starts.iter().skip(1).map(|next| next - 1).chain([LARGEST]);
        let ranges = starts.iter().zip(ends);
        let lines = ranges.flat_map(|(&start, end)| {
            ways.iter().map(move |&way| {
                let first = time(way, start);
                let length = (end - start).max(1) as f64;
                Line { first, byte: (time(way, end) - first) / length }
            })
        });
        Table { lines: lines.collect(), ways: ways.into_boxed_slice() }
    }

    /// The first of the fastest ways that are open.
    fn best(
        &self,
        range: usize,
        more: u64,
        open: impl Fn(Algorithm, ProtocolId) -> bool,
    ) -> Option<(Algorithm, ProtocolId)> {
        let lines = self.lines.get(range * self.ways.len()..)?;
        let mut closed = 0u32;
        loop {
            let mut best: Option<(f64, u32, (Algorithm, ProtocolId))> = None;
            for ((line, &way), i) in lines.iter().zip(&self.ways).zip(0u32..) {
                let time = line.first + more as f64 * line.byte;
                if closed & (1 << i) == 0 && best.is_none_or(|best| is_faster(time, best.0)) {
                    best = Some((time, i, way));
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
    /// use ferroccl::ProtocolId;
    /// use ferroccl::graph::tuning::*;
    ///
    /// let cores = Situation::new(1, 4, Devices::Cpu { ring: None });
    /// let tuner = Tuner::new(&cores, &Settings::default());
    /// let all = Collective::AllReduce;
    /// // Where there are kernels for rings alone:
    /// let way = |bytes| tuner.way(all, bytes, |algorithm, _| algorithm == Algorithm::Ring);
    /// assert_eq!(way(8), Some((Algorithm::Ring, ProtocolId::Ll)));
    /// assert_eq!(way(1 << 20), Some((Algorithm::Ring, ProtocolId::Simple)));
    /// assert_eq!(tuner.way(all, 8, |_, _| false), None);
    /// assert_eq!(tuner.channels(all, 1 << 20, Algorithm::Ring, ProtocolId::Simple, 2), 2);
    /// ```
    #[must_use]
    pub fn new(s: &Situation<'_>, settings: &Settings) -> Tuner {
        let starts = bends(s, settings, 0, LARGEST);
        let table = |collective: &Collective| Table::new(s, *collective, settings, &starts);
        let tables = Collective::ALL.iter().map(table).collect();
        let worth = |algorithm: &Algorithm| {
            // In the order of their indices.
            [ProtocolId::Ll, ProtocolId::Ll128, ProtocolId::Simple]
                .map(|p| Worth::new(s, *algorithm, p, settings))
        };
        let worth = Algorithm::ALL.iter().map(worth).collect();
        Tuner { starts: starts.into_boxed_slice(), tables, worth }
    }

    /// The same with one protocol, by rings, for all calls, whatever the settings are: for kernels that the table has
    /// not.
    #[must_use]
    pub fn only(&self, protocol: ProtocolId) -> Tuner {
        let table = |_| Table {
            ways: Box::new([(Algorithm::Ring, protocol)]),
            lines: Box::new([Line { first: 0.0, byte: 0.0 }]),
        };
        Tuner {
            starts: Box::new([0]),
            tables: Collective::ALL.iter().map(table).collect(),
            worth: self.worth.clone(),
        }
    }

    /// The fastest way to do a call of `bytes` (see [`predict`](super::predict)) that is `open`; `None` when none is.
    ///
    /// `open` says what the settings do not: whether there is a kernel for the operator and type, and whether this
    /// communicator has the edges. It must say the same on all ranks.
    #[must_use]
    pub fn way(
        &self,
        collective: Collective,
        bytes: u64,
        open: impl Fn(Algorithm, ProtocolId) -> bool,
    ) -> Option<(Algorithm, ProtocolId)> {
        let range = self.starts.partition_point(|start| *start <= bytes).checked_sub(1)?;
        let more = bytes - self.starts.get(range)?;
        self.tables.get(collective as usize)?.best(range, more, open)
    }

    /// How many of `channels` a call of `bytes` done this way is worth; at least 1.
    #[must_use]
    pub fn channels(
        &self,
        _collective: Collective,
        bytes: u64,
        algorithm: Algorithm,
        protocol: ProtocolId,
        channels: u32,
    ) -> u32 {
        self.worth(algorithm, protocol).map_or(1, |worth| worth.channels(bytes, channels))
    }

    /// How many threads a block of a call of `bytes` has that may use `channels`; 1 on the CPU.
    ///
    /// ```
    /// use ferroccl::ProtocolId;
    /// use ferroccl::graph::tuning::*;
    ///
    /// let cores = Situation::new(1, 4, Devices::Cpu { ring: None });
    /// let tuner = Tuner::new(&cores, &Settings::default());
    /// assert_eq!(tuner.threads(1 << 20, Algorithm::Ring, ProtocolId::Simple, 2), 1);
    /// ```
    #[must_use]
    pub fn threads(
        &self,
        bytes: u64,
        algorithm: Algorithm,
        protocol: ProtocolId,
        channels: u32,
    ) -> u32 {
        self.worth(algorithm, protocol).map_or(1, |worth| worth.parallelism(bytes, channels).1)
    }

    fn worth(&self, algorithm: Algorithm, protocol: ProtocolId) -> Option<&Worth> {
        self.worth.get(algorithm as usize).map(|all| &all[protocol as usize])
    }

    /// The ways that the settings leave for a collective, in NCCL's order.
    pub fn ways(
        &self,
        collective: Collective,
    ) -> impl Iterator<Item = (Algorithm, ProtocolId)> + '_ {
        self.tables.get(collective as usize).into_iter().flat_map(|t| t.ways.iter().copied())
    }
}
