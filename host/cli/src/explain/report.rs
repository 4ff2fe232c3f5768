//! What is shown of a choice: one size in full, several as a table; JSON has all of it.

use std::fmt;

use ferroccl::graph::tuning::{
    AbsentAlgorithm, Algorithm, Choice, Collective, Cost, Devices, NoChoice, ProtocolId, Selection,
    Situation, absent_cost, algorithms, all_to_all, choose, switches,
};
use ferroccl::graph::{ChannelGraph, NvlsHeads};
use serde::Serialize;

use super::{Failure, Machine};
use crate::perf::size::Bytes;

/// The choices for some sizes.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Of this document's form; a change that readers must know of counts it up.
    version: u32,
    ferroccl: &'static str,
    collective: String,
    machine: String,
    nodes: u32,
    ranks: u32,
    /// Channels that there are.
    channels: u32,
    graphs: Vec<Graph>,
    sizes: Vec<Size>,
    /// Where, among all sizes, the choice changes.
    switch_points: Vec<Switch>,
}

/// A graph in a line.
#[derive(Debug, Serialize)]
struct Graph {
    #[serde(rename = "for")]
    what: &'static str,
    pattern: String,
    channels: usize,
    bw_intra_gbps: f64,
    bw_inter_gbps: f64,
    kind_intra: String,
    kind_inter: String,
}

/// A size and how it is done.
#[derive(Debug, Serialize)]
struct Size {
    bytes: u64,
    algorithm: &'static str,
    /// Whether its figures come from measurements.
    measured: bool,
    protocol: &'static str,
    channels: u32,
    threads: u32,
    chunk_bytes: u64,
    #[serde(flatten)]
    times: Times,
    alternatives: Vec<Other>,
    /// What NCCL has besides, by its model.
    nccl_only: Vec<NcclOnly>,
}

/// An algorithm of NCCL's that FerroCCL does not have.
#[derive(Debug, Serialize)]
struct NcclOnly {
    algorithm: &'static str,
    protocol: &'static str,
    #[serde(flatten)]
    times: Times,
    /// Whether NCCL would take it: no other is faster.
    fastest: bool,
}

/// What a way takes.
#[derive(Clone, Copy, Debug, Serialize)]
struct Times {
    time_us: f64,
    latency_us: f64,
    algbw_gbps: f64,
    busbw_gbps: f64,
}

/// A way that lost.
#[derive(Debug, Serialize)]
struct Other {
    algorithm: &'static str,
    measured: bool,
    protocol: &'static str,
    /// Whether there is such an algorithm for the collective at all; the text shows only those.
    exists: bool,
    /// Whether it may be chosen.
    allowed: bool,
    /// Nothing where it cannot be done.
    #[serde(flatten)]
    times: Option<Times>,
    lost: String,
}

/// From so many bytes on, this way.
#[derive(Debug, Serialize)]
struct Switch {
    bytes: u64,
    algorithm: &'static str,
    /// Nothing for messages, which choose by their own size.
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<&'static str>,
}

/// What an all-to-all that no kernel does has in place of an algorithm, as in the tables of `perf`.
const MESSAGES: &str = "p2p";

/// How an all-to-all is done that no kernel does: by messages, each of a rank's part for another.
fn by_messages(
    machine: &Machine,
    s: &Situation<'_>,
    bytes: u64,
    none: NoChoice,
) -> Result<Choice, NoChoice> {
    let settings = &machine.settings;
    let cost = match none.collective {
        Collective::AllToAll => all_to_all::messages_cost(s, bytes, settings),
        _ => None,
    };
    let Some(cost) = cost else { return Err(none) };
    let message = choose(s, Collective::SendRecv, bytes / u64::from(s.ranks()).max(1), settings)?;
    Ok(Choice { cost, alternatives: none.alternatives, ..message })
}

/// The largest size at which a switch is looked for.
const LARGEST: u64 = 1 << 40;

impl Report {
    /// Chooses for every size.
    pub(super) fn new(
        machine: &Machine,
        s: &Situation<'_>,
        collective: Collective,
        sizes: &[u64],
    ) -> Result<Report, Failure> {
        let graphs = match s.devices() {
            Devices::Cpu { .. } => Vec::new(),
            Devices::Gpus(gpus) => {
                let all =
                    [("ring", Some(gpus.ring)), ("tree", gpus.tree), ("collnet", gpus.collnet)];
                all.into_iter().filter_map(|(what, graph)| Some(Graph::new(what, graph?))).collect()
            }
        };
        let any_algorithm = *machine.config.algo == Selection::all();
        let nvls = NvlsHeads::new(&machine.system, &machine.paths, s.nodes() > 1);
        // On windows there is an NVLS of ours.
        let windows = machine.settings.windows && s.nodes() == 1;
        let nvls = nvls.filter(|_| !windows);
        let settings = &machine.settings;
        let chosen = |bytes: &u64| {
            let new =
                |choice| Size::new(*bytes, choice, collective, (s, nvls.as_ref(), any_algorithm));
            match choose(s, collective, *bytes, settings) {
                Ok(choice) => Ok(new(&choice)),
                Err(none) => {
                    let size = new(&by_messages(machine, s, *bytes, none)?);
                    let measured = matches!(s.devices(), Devices::Cpu { .. });
                    Ok(Size { algorithm: MESSAGES, measured, ..size })
                }
            }
        };
        let ways = switches(s, collective, settings, 0, LARGEST);
        let mut switch_points: Vec<Switch> = ways
            .into_iter()
            .map(|(bytes, a, p)| Switch { bytes, algorithm: a.name(), protocol: Some(p.name()) })
            .collect();
        if collective == Collective::AllToAll && choose(s, collective, LARGEST, settings).is_err() {
            let from = all_to_all::messages_from(s, settings).unwrap_or(0);
            switch_points.push(Switch { bytes: from, algorithm: MESSAGES, protocol: None });
        }
        Ok(Report {
            version: 1,
            ferroccl: env!("CARGO_PKG_VERSION"),
            collective: collective.to_string(),
            machine: machine.name.clone(),
            nodes: s.nodes(),
            ranks: s.ranks(),
            channels: s.channels(),
            graphs,
            sizes: sizes.iter().map(chosen).collect::<Result<_, Failure>>()?,
            switch_points,
        })
    }

    pub(super) fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

impl Graph {
    fn new(what: &'static str, graph: &ChannelGraph) -> Graph {
        Graph {
            what,
            pattern: graph.pattern.to_string(),
            channels: graph.channels.len(),
            bw_intra_gbps: graph.bw_intra,
            bw_inter_gbps: graph.bw_inter,
            kind_intra: graph.kind_intra.to_string(),
            kind_inter: graph.kind_inter.to_string(),
        }
    }
}

impl Times {
    fn new(cost: &Cost, bytes: u64, collective: Collective, ranks: u32) -> Times {
        let algbw = cost.algbw(bytes);
        Times {
            time_us: cost.time_us,
            latency_us: cost.latency_us,
            algbw_gbps: algbw,
            busbw_gbps: algbw * collective.bus_factor(ranks),
        }
    }
}

impl Size {
    fn new(
        bytes: u64,
        choice: &Choice,
        collective: Collective,
        (s, nvls, any_algorithm): (&Situation<'_>, Option<&NvlsHeads>, bool),
    ) -> Size {
        let times = |cost: &Cost| Times::new(cost, bytes, collective, s.ranks());
        let mut alternatives: Vec<Other> = choice
            .alternatives
            .iter()
            .map(|a| Other {
                algorithm: a.prediction.algorithm.name(),
                measured: s.is_measured(collective, a.prediction.algorithm)
                    && !matches!(a.prediction.protocol, ProtocolId::Own(_)),
                protocol: a.prediction.protocol.name(),
                exists: matches!(a.prediction.algorithm, Algorithm::Own(_))
                    || algorithms(collective).contains(&a.prediction.algorithm),
                allowed: a.prediction.why_not.is_none(),
                times: a.prediction.cost.as_ref().map(times),
                lost: a.lost.clone(),
            })
            .collect();
        // What may be chosen first, then what could be done; the fastest first.
        let key = |o: &Other| (!o.allowed, o.times.map_or(f64::INFINITY, |times| times.time_us));
        alternatives.sort_by(|a, b| {
            let (a, b) = (key(a), key(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        });
        let cost = |a: AbsentAlgorithm| Some((a, absent_cost(s, nvls, collective, a, bytes)?));
        let absent: Vec<_> = AbsentAlgorithm::ALL.into_iter().filter_map(cost).collect();
        // NCCL has some of our algorithms, and no list of the user's leaves it the others.
        let others = choice.alternatives.iter().map(|a| &a.prediction);
        let others = others.filter(|p| p.why_not.is_none() && is_nccls(p.algorithm));
        let chosen = is_nccls(choice.algorithm).then_some(choice.cost);
        let ours = others.filter_map(|p| p.cost).chain(chosen);
        let least = ours.chain(absent.iter().map(|(_, cost)| *cost));
        let least = least.map(|cost| cost.time_us).fold(f64::INFINITY, f64::min);
        let nccl_only = absent.iter().map(|(algorithm, cost)| NcclOnly {
            algorithm: algorithm.name(),
            protocol: ProtocolId::Simple.name(),
            times: times(cost),
            fastest: any_algorithm && cost.time_us <= least,
        });
        Size {
            bytes,
            nccl_only: nccl_only.collect(),
            algorithm: choice.algorithm.name(),
            measured: s.is_measured(collective, choice.algorithm)
                && !matches!(choice.protocol, ProtocolId::Own(_)),
            protocol: choice.protocol.name(),
            channels: choice.channels,
            threads: choice.threads,
            chunk_bytes: choice.chunk_bytes,
            times: times(&choice.cost),
            alternatives,
        }
    }
}

/// Whether NCCL has this algorithm, too.
fn is_nccls(algorithm: Algorithm) -> bool {
    use Algorithm::{CollnetChain, CollnetDirect, Ring, Tree};
    matches!(algorithm, Ring | Tree | CollnetDirect | CollnetChain)
}

/// Some size in the largest unit that makes it a whole number.
pub(super) fn size(bytes: u64) -> String {
    Bytes(bytes).to_string()
}

/// A time in seven columns, whatever its size.
pub(super) fn time(us: f64) -> String {
    let digits = match us {
        us if us >= 10_000.0 => 0,
        us if us >= 100.0 => 1,
        _ => 2,
    };
    format!("{us:.digits$}")
}

fn plural(n: u32, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { collective, machine, nodes, ranks, channels, .. } = self;
        let (ranks, nodes) = (plural(*ranks, "rank"), plural(*nodes, "host"));
        writeln!(
            f,
            "# {collective}: {ranks} on {nodes}, {machine}, {}",
            plural(*channels, "channel")
        )?;
        for g in &self.graphs {
            let Graph { what, pattern, channels, bw_intra_gbps, bw_inter_gbps, .. } = g;
            write!(f, "# {what}: {channels} x {bw_intra_gbps:.1} GB/s by {}", g.kind_intra)?;
            if self.nodes > 1 {
                write!(f, ", {bw_inter_gbps:.1} to the network by {}", g.kind_inter)?;
            }
            writeln!(f, " ({pattern})")?;
        }
        match &self.sizes[..] {
            [one] => one.in_full(f),
            all => self.table(f, all),
        }
    }
}

impl Size {
    fn in_full(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Size { algorithm, protocol, chunk_bytes, .. } = self;
        writeln!(f, "#")?;
        writeln!(
            f,
            "# {}: {algorithm} with {protocol}, {} of {}, chunks of at most {}",
            size(self.bytes),
            plural(self.channels, "channel"),
            plural(self.threads, "thread"),
            size(*chunk_bytes)
        )?;
        writeln!(f, "#")?;
        let columns = |time, latency, algbw, busbw, names: [&str; 2]| {
            let [algorithm, protocol] = names;
            format!(
                "# {algorithm:>13}  {protocol:>8}  {time:>7}  {latency:>7}  {algbw:>6}  {busbw:>6}"
            )
        };
        let names = columns("time", "latency", "algbw", "busbw", ["algorithm", "protocol"]);
        writeln!(f, "{names}")?;
        writeln!(f, "{}", columns("(us)", "(us)", "(GB/s)", "(GB/s)", ["", ""]))?;
        let name = marked(algorithm, self.measured);
        line(f, &name, protocol, Some(&self.times), "chosen")?;
        for o in self.alternatives.iter().filter(|o| o.exists) {
            line(f, &marked(o.algorithm, o.measured), o.protocol, o.times.as_ref(), &o.lost)?;
        }
        for n in &self.nccl_only {
            let lack = lack(n.algorithm);
            let why = if n.fastest { format!("NCCL would take it; {lack}") } else { lack.into() };
            line(f, n.algorithm, n.protocol, Some(&n.times), &why)?;
        }
        let others = self.alternatives.iter().filter(|o| o.exists);
        if !self.measured || others.into_iter().any(|o| !o.measured) {
            writeln!(f, "{FOOTNOTE}")?;
        }
        Ok(())
    }
}

/// What an algorithm's star means.
const FOOTNOTE: &str = "# *: reckoned from its steps and bytes, not from measurements of it";

/// The name of an algorithm, with a star where nobody has measured it.
fn marked(name: &str, measured: bool) -> String {
    format!("{name}{}", if measured { "" } else { "*" })
}

fn line(
    f: &mut fmt::Formatter<'_>,
    algorithm: &str,
    protocol: &str,
    times: Option<&Times>,
    why: &str,
) -> fmt::Result {
    write!(f, "  {algorithm:>13}  {protocol:>8}")?;
    match times {
        Some(Times { time_us, latency_us, algbw_gbps, busbw_gbps }) => {
            write!(f, "  {:>7}  {:>7}", time(*time_us), time(*latency_us))?;
            write!(f, "  {algbw_gbps:>6.2}  {busbw_gbps:>6.2}")?;
        }
        None => write!(f, "  {0:>7}  {0:>7}  {0:>6}  {0:>6}", "-")?,
    }
    writeln!(f, "  {why}")
}

impl Report {
    fn table(&self, f: &mut fmt::Formatter<'_>, sizes: &[Size]) -> fmt::Result {
        writeln!(f, "#")?;
        let columns = |names: [&str; 8]| {
            let [size, algorithm, protocol, channels, threads, time, algbw, busbw] = names;
            format!(
                "#{size:>9}  {algorithm:>13}  {protocol:>8}  {channels:>8}  {threads:>7}  {time:>7}  {algbw:>6}  {busbw:>6}"
            )
        };
        let names =
            ["size", "algorithm", "protocol", "channels", "threads", "time", "algbw", "busbw"];
        writeln!(f, "{}  next best", columns(names))?;
        writeln!(f, "{}", columns(["", "", "", "", "", "(us)", "(GB/s)", "(GB/s)"]))?;
        for s in sizes {
            let Times { time_us, algbw_gbps, busbw_gbps, .. } = s.times;
            let name = marked(s.algorithm, s.measured);
            write!(f, "{:>10}  {name:>13}  {:>8}", size(s.bytes), s.protocol)?;
            write!(f, "  {:>8}  {:>7}  {:>7}", s.channels, s.threads, time(time_us))?;
            write!(f, "  {algbw_gbps:>6.2}  {busbw_gbps:>6.2}")?;
            match s.alternatives.first().filter(|next| next.allowed) {
                Some(next) => {
                    let name = marked(next.algorithm, next.measured);
                    writeln!(f, "  {name} {}: {}", next.protocol, next.lost)?;
                }
                None => writeln!(f, "  none")?,
            }
        }
        let stars = |s: &Size| !s.measured || s.alternatives.first().is_some_and(|o| !o.measured);
        if sizes.iter().any(stars) {
            writeln!(f, "{FOOTNOTE}")?;
        }
        writeln!(f, "#")?;
        for algorithm in AbsentAlgorithm::ALL.map(AbsentAlgorithm::name) {
            let takes =
                |s: &&Size| s.nccl_only.iter().any(|n| n.fastest && n.algorithm == algorithm);
            let taken: Vec<String> = sizes.iter().filter(takes).map(|s| size(s.bytes)).collect();
            if !taken.is_empty() {
                let (taken, lack) = (taken.join(", "), lack(algorithm));
                writeln!(f, "# NCCL would take {algorithm} for {taken}, by its model; {lack}")?;
            }
        }
        for Switch { bytes, algorithm, protocol } in &self.switch_points {
            let how = protocol.map_or_else(
                || "sends and receives".to_owned(),
                |protocol| format!("{algorithm} with {protocol}"),
            );
            writeln!(f, "# from {bytes} bytes on: {how}")?;
        }
        Ok(())
    }
}

/// What this library lacks of an algorithm of NCCL's.
fn lack(algorithm: &str) -> &'static str {
    if algorithm == AbsentAlgorithm::Nvls.name() {
        "here only on windows"
    } else {
        "not implemented"
    }
}
