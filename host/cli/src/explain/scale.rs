//! Times of ring and tree against the number of hosts: what a tree is worth at scale.

use std::fmt;

use ferroccl::ProtocolId;
use ferroccl::graph::tuning::Selection;
use ferroccl::graph::tuning::{Algorithm, Collective, Settings, Situation, predict};
use serde::Serialize;

use super::report::{size, time};
use super::{Failure, Machine};
use crate::plot::{Curve, Plot};

/// Hosts at most, unless asked otherwise: 24,576 GPUs, 8 a host.
const HOSTS: u32 = 3072;

/// What is published for NCCL 2.4: NVIDIA's blog "Massively Scale Your Deep Learning Training with NCCL 2.4" (2019),
/// on Summit.
const PUBLISHED_GAIN: f64 = 180.0;

/// The times for some sizes.
#[derive(Debug, Serialize)]
pub(super) struct Scale {
    version: u32,
    collective: String,
    machine: String,
    ranks_per_node: u32,
    curves: Vec<Curves>,
}

/// One size.
#[derive(Debug, Serialize)]
struct Curves {
    bytes: u64,
    points: Vec<Point>,
}

/// One number of hosts.
#[derive(Clone, Copy, Debug, Serialize)]
struct Point {
    nodes: u32,
    ring: Option<Way>,
    tree: Option<Way>,
}

/// An algorithm with its best protocol.
#[derive(Clone, Copy, Debug, Serialize)]
struct Way {
    #[serde(serialize_with = "by_name")]
    protocol: ProtocolId,
    time_us: f64,
}

fn by_name<S: serde::Serializer>(protocol: &ProtocolId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(protocol)
}

impl Point {
    /// How many times as long the ring takes.
    fn gain(&self) -> Option<f64> {
        Some(self.ring?.time_us / self.tree.filter(|tree| tree.time_us > 0.0)?.time_us)
    }
}

/// `8 B`, `1 KiB`.
fn words(bytes: u64) -> String {
    let short = size(bytes);
    match short.strip_suffix(|unit: char| unit.is_ascii_uppercase()) {
        Some(number) => format!("{number} {}iB", &short[number.len()..]),
        None => format!("{short} B"),
    }
}

/// 1, 2, 3, 4, 6, 8, 12, ... and `most`.
fn hosts(most: u32) -> Vec<u32> {
    let doubled = |from: u32| std::iter::successors(Some(from), |n| n.checked_mul(2));
    let mut all: Vec<u32> =
        doubled(1).chain(doubled(3)).filter(|n| *n < most).chain([most]).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The best protocol for an algorithm, whatever `NCCL_ALGO` says: both are compared.
fn best(
    s: &Situation<'_>,
    collective: Collective,
    algorithm: Algorithm,
    bytes: u64,
    settings: &Settings,
) -> Option<Way> {
    let ways = ProtocolId::ALL.iter().filter_map(|&protocol| {
        let prediction = predict(s, collective, algorithm, protocol, bytes, settings);
        let cost = prediction.cost.filter(|_| prediction.why_not.is_none())?;
        Some(Way { protocol, time_us: cost.time_us })
    });
    ways.min_by(|a, b| a.time_us.total_cmp(&b.time_us))
}

impl Scale {
    /// Predicts for 1 to `most` hosts.
    pub(super) fn new(
        machine: &Machine,
        collective: Collective,
        sizes: &[u64],
        most: Option<u32>,
    ) -> Result<Scale, Failure> {
        let settings = Settings { algorithms: Selection::all(), ..machine.settings.clone() };
        let (one, more) = (machine.graphs(1)?, machine.graphs(2)?);
        let at = |nodes: u32, bytes: u64| {
            let s = machine.situation(if nodes == 1 { &one } else { &more }, nodes);
            let best = |algorithm| best(&s, collective, algorithm, bytes, &settings);
            Point { nodes, ring: best(Algorithm::Ring), tree: best(Algorithm::Tree) }
        };
        let hosts = hosts(most.unwrap_or(HOSTS));
        let curves = |bytes: &u64| Curves {
            bytes: *bytes,
            points: hosts.iter().map(|nodes| at(*nodes, *bytes)).collect(),
        };
        Ok(Scale {
            version: 1,
            collective: collective.to_string(),
            machine: machine.name.clone(),
            ranks_per_node: machine.local_ranks,
            curves: sizes.iter().map(curves).collect(),
        })
    }

    pub(super) fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// The plot: a colour a size, rings as lines and trees as dots on a line.
    pub(super) fn svg(&self) -> Result<String, Failure> {
        let mut all = Vec::new();
        for (colour, curves) in self.curves.iter().enumerate() {
            let bytes = words(curves.bytes);
            for (name, tree) in [("ring", false), ("tree", true)] {
                let pick =
                    |p: &Point| Some((p.nodes.into(), if tree { p.tree } else { p.ring }?.time_us));
                let points: Vec<(f64, f64)> = curves.points.iter().filter_map(pick).collect();
                if !points.is_empty() {
                    let (label, radius) = (format!("{bytes} {name}"), if tree { 3 } else { 0 });
                    all.push(Curve { label, colour, radius, points });
                }
            }
        }
        let caption =
            format!("{} on hosts of {}: {}", self.collective, self.ranks_per_node, self.machine);
        let plot = Plot { caption, x: "hosts", y: "predicted time (us)", curves: all };
        plot.svg().map_err(Failure::Plot)
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scale { collective, machine, ranks_per_node, .. } = self;
        writeln!(f, "# {collective}: hosts of {ranks_per_node} ranks, {machine}")?;
        writeln!(f, "# predicted times of ring and tree, each with its best protocol")?;
        for Curves { bytes, points } in &self.curves {
            writeln!(f, "#\n# {}", words(*bytes))?;
            writeln!(f, "#   hosts    ranks       ring (us)            tree (us)    ring / tree")?;
            for p in points {
                let ranks = u64::from(p.nodes) * u64::from(*ranks_per_node);
                write!(f, "{:>9}  {ranks:>7}", p.nodes)?;
                for way in [p.ring, p.tree] {
                    match way {
                        Some(Way { protocol, time_us }) => {
                            write!(f, "  {:>10} {protocol:<8}", time(time_us))?;
                        }
                        None => write!(f, "  {:>10} {:<8}", "-", "")?,
                    }
                }
                match p.gain() {
                    Some(gain) => writeln!(f, "  {gain:>11.2}")?,
                    None => writeln!(f, "  {:>11}", "-")?,
                }
            }
        }
        self.why(f)
    }
}

impl Scale {
    /// What the numbers say next to the published one, which they are not.
    fn why(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = |curves: &Curves| {
            let point = *curves.points.last()?;
            Some((curves.bytes, point, point.gain()?))
        };
        let Some((bytes, point, gain)) =
            self.curves.iter().filter_map(last).max_by(|a, b| a.2.total_cmp(&b.2))
        else {
            return Ok(());
        };
        let ranks = (u64::from(point.nodes) * u64::from(self.ranks_per_node)).max(1);
        let (Some(ring), Some(tree)) = (point.ring, point.tree) else { return Ok(()) };
        let (ring, tree) = (ring.time_us, tree.time_us);
        writeln!(
            f,
            "#\n# With {ranks} ranks a tree gains a factor of {gain:.0} at most, at {}.",
            words(bytes)
        )?;
        writeln!(
            f,
            "# Measured with NCCL 2.4: a factor of {PUBLISHED_GAIN:.0} with 24,576 GPUs of Summit, 6 V100 a host."
        )?;
        writeln!(f, "# The two are not of one kind:")?;
        let up = u64::from(self.ranks_per_node).saturating_sub(1) + u64::from(point.nodes.ilog2());
        writeln!(
            f,
            "# - The model counts steps, 2 x {} of the ring and 2 x {up} of the tree, by the figures",
            ranks - 1
        )?;
        writeln!(
            f,
            "#   of a later release and of this machine. Over several hosts each step of a ring is at least"
        )?;
        writeln!(f, "#   a message of a proxy: 1 us, or 2 us with AMD's CPUs.")?;
        // (ring + more) / (tree + more) is the published factor.
        let more = (ring - PUBLISHED_GAIN * tree) / (PUBLISHED_GAIN - 1.0);
        if more > 0.0 {
            writeln!(
                f,
                "# - It knows nothing of waiting: for ranks that start late, cores that do other things, far"
            )?;
            writeln!(
                f,
                "#   switches, messages that meet. {} us of that in both would make {PUBLISHED_GAIN:.0} of {gain:.0}: little for",
                time(more)
            )?;
            writeln!(
                f,
                "#   the ring's {} us, and much for the tree's {} us.",
                time(ring),
                time(tree)
            )?;
        }
        writeln!(
            f,
            "# - With the size the gain goes: then the bytes take longer than the steps, and a tree's longer"
        )?;
        writeln!(f, "#   than a ring's.")
    }
}
