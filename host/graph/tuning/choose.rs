//! The choice: the fastest way of those that may be chosen, and as many channels and threads as the call is worth.

use super::{
    Algorithm, Collective, Cost, Devices, Prediction, Settings, Situation, cpu, is_faster, model,
    predict, rules, tables,
};
use crate::device::abi::ProtocolId;

/// How a call is done.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: ProtocolId,
    /// Channels: blocks of each rank.
    pub channels: u32,
    /// Threads of a block; 1 on a CPU device.
    pub threads: u32,
    /// Bytes of data that a rank hands on at once in a channel, at most: its share of the channel's buffer.
    pub chunk_bytes: u64,
    /// What it takes.
    pub cost: Cost,
    /// All other ways, and why each was not chosen.
    pub alternatives: Vec<Alternative>,
}

/// A way that was not chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternative {
    /// What the model says of it.
    pub prediction: Prediction,
    /// Why it lost, as a clause.
    pub lost: String,
}

/// No way to do a call may be chosen.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("nothing may do {collective}: {}", reasons(.alternatives))]
pub struct NoChoice {
    /// The call.
    pub collective: Collective,
    /// All ways, and why none was chosen.
    pub alternatives: Vec<Alternative>,
}

fn reasons(alternatives: &[Alternative]) -> String {
    // Of an algorithm whose protocols all have one reason, once.
    let one = |all: &[Alternative]| match all {
        [first, rest @ ..] if rest.iter().all(|a| a.lost == first.lost) => {
            vec![format!("{}: {}", first.prediction.algorithm, first.lost)]
        }
        all => {
            let each = |a: &Alternative| {
                format!("{} with {}: {}", a.prediction.algorithm, a.prediction.protocol, a.lost)
            };
            all.iter().map(each).collect()
        }
    };
    let same = |a: &Alternative, b: &Alternative| a.prediction.algorithm == b.prediction.algorithm;
    alternatives.chunk_by(same).flat_map(one).collect::<Vec<_>>().join("; ")
}

/// Every way to do a call, in NCCL's order: of two equals the first is taken.
fn ways() -> impl Iterator<Item = (Algorithm, ProtocolId)> {
    let protocols = |a: &'static Algorithm| ProtocolId::ALL.iter().map(move |p| (*a, *p));
    Algorithm::ALL.iter().flat_map(protocols)
}

/// The ways that may be chosen, whatever the size.
pub(super) fn allowed(
    s: &Situation<'_>,
    collective: Collective,
    settings: &Settings,
) -> Vec<(Algorithm, ProtocolId)> {
    let open = |(a, p): &(Algorithm, ProtocolId)| {
        rules::impossible(s, collective, *a, *p).is_none()
            && rules::forbidden(s, collective, *a, *p, settings).is_none()
    };
    ways().filter(open).collect()
}

/// The fastest of some ways; `None` when there are none.
fn fastest(
    s: &Situation<'_>,
    collective: Collective,
    bytes: u64,
    settings: &Settings,
    ways: &[(Algorithm, ProtocolId)],
) -> Option<(Algorithm, ProtocolId)> {
    let timed = ways.iter().filter_map(|&(a, p)| {
        let cost = model::cost(s, collective, a, p, bytes, settings)?;
        Some((cost.time_us, (a, p)))
    });
    timed.reduce(|best, new| if is_faster(new.0, best.0) { new } else { best }).map(|(_, way)| way)
}

/// Chooses how a call of `bytes` (see [`predict`]) is done.
///
/// ```
/// use ferroccl::ProtocolId;
/// use ferroccl::graph::tuning::*;
///
/// let cores = Situation::new(1, 4, Devices::Cpu { ring: None });
/// let choice = choose(&cores, Collective::AllReduce, 1 << 20, &Settings::default())?;
/// assert_eq!((choice.algorithm, choice.protocol), (Algorithm::Ring, ProtocolId::Simple));
/// let ring = |a: &&Alternative| a.prediction.algorithm == Algorithm::Ring;
/// assert!(choice.alternatives.iter().find(ring).is_some_and(|a| a.lost.contains("times slower")));
/// # Ok::<(), NoChoice>(())
/// ```
///
/// # Errors
/// [`NoChoice`] when no way may be chosen: the settings leave none.
pub fn choose(
    s: &Situation<'_>,
    collective: Collective,
    bytes: u64,
    settings: &Settings,
) -> Result<Choice, NoChoice> {
    let chosen = fastest(s, collective, bytes, settings, &allowed(s, collective, settings));
    let mut best = None;
    let mut others = Vec::new();
    for (a, p) in ways() {
        let prediction = predict(s, collective, a, p, bytes, settings);
        match prediction.cost {
            Some(cost) if chosen == Some((a, p)) => best = Some((a, p, cost)),
            _ => others.push(prediction),
        }
    }
    let best_time = best.map(|(_, _, cost)| cost.time_us);
    let lost = |prediction: Prediction| {
        let lost = prediction.why_not.clone().unwrap_or_else(|| slower(&prediction, best_time));
        Alternative { prediction, lost }
    };
    let alternatives = others.into_iter().map(lost).collect();
    let Some((algorithm, protocol, cost)) = best else {
        return Err(NoChoice { collective, alternatives });
    };
    let most = settings.channels(s.channels());
    let worth = Worth::new(s, algorithm, protocol, settings);
    let (channels, threads) = worth.parallelism(bytes, most);
    let chunk_bytes = chunk(s, collective, algorithm, protocol, settings);
    Ok(Choice { algorithm, protocol, channels, threads, chunk_bytes, cost, alternatives })
}

/// Why a way that may be chosen was not.
fn slower(prediction: &Prediction, best: Option<f64>) -> String {
    match (prediction.cost, best) {
        (Some(cost), Some(best)) if best > 0.0 && cost.time_us > best => {
            format!("{:.2} times slower", cost.time_us / best)
        }
        (Some(_), _) => "no faster".to_owned(),
        (None, _) => "cannot be done".to_owned(),
    }
}

/// Threads of a block at most.
fn most_threads(
    s: &Situation<'_>,
    algorithm: Algorithm,
    protocol: ProtocolId,
    settings: &Settings,
) -> u32 {
    if matches!(algorithm, Algorithm::CollnetDirect | Algorithm::CollnetChain) {
        return tables::MAX_THREADS;
    }
    let most = tables::MAX_THREADS_BY_PROTOCOL[protocol as usize];
    let (asked, least) = match protocol {
        ProtocolId::Ll128 => (settings.ll128_threads, most / 4),
        ProtocolId::Ll | ProtocolId::Simple => (settings.threads, 2 * tables::WARP),
    };
    let slow = |ring: &crate::graph::ChannelGraph| {
        ring.bw_intra * ring.channels.len() as f64 <= tables::SLOW_RING
    };
    let default = match s.devices() {
        Devices::Gpus(gpus)
            if (algorithm, protocol) == (Algorithm::Ring, ProtocolId::Simple)
                && slow(gpus.ring) =>
        {
            tables::SLOW_RING_THREADS
        }
        _ => most,
    };
    // Whole warps.
    asked.map_or(default, |n| (n / tables::WARP * tables::WARP).clamp(least, most))
}

/// Bytes that each thread of each channel must have.
fn bytes_a_thread(s: &Situation<'_>, algorithm: Algorithm, protocol: ProtocolId) -> u64 {
    let bytes = tables::BYTES_A_THREAD[protocol as usize];
    match (algorithm, protocol) {
        (Algorithm::Ring, ProtocolId::Ll) => bytes * u64::from(s.ranks()),
        (Algorithm::CollnetDirect | Algorithm::CollnetChain, _) => tables::BYTES_A_THREAD_COLLNET,
        _ => bytes,
    }
}

/// What a call has to bring before it takes another channel, or another thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Worth {
    algorithm: Algorithm,
    protocol: ProtocolId,
    /// Bytes for each channel.
    a_channel: u64,
    /// Bytes for each thread of each channel.
    a_thread: u64,
    /// Threads of a block at most; 1 on the CPU.
    threads: u32,
}

impl Worth {
    pub(super) fn new(
        s: &Situation<'_>,
        algorithm: Algorithm,
        protocol: ProtocolId,
        settings: &Settings,
    ) -> Self {
        let (threads, a_thread) = match s.devices() {
            Devices::Cpu { .. } => (1, cpu::BYTES_A_CHANNEL),
            Devices::Gpus(_) => (
                most_threads(s, algorithm, protocol, settings),
                bytes_a_thread(s, algorithm, protocol),
            ),
        };
        let a_channel = (u64::from(threads) * a_thread).max(1);
        Worth { algorithm, protocol, a_channel, a_thread, threads }
    }

    /// How many of `most` channels a call takes; at least 1.
    pub(super) fn channels(&self, bytes: u64, most: u32) -> u32 {
        u32::try_from(bytes / self.a_channel).unwrap_or(u32::MAX).clamp(1, most.max(1))
    }

    /// Channels, and threads of a block, as NCCL lowers them for small calls (`topoGetAlgoInfo` in its enqueue.cc): first
    /// channels, then threads.
    pub(super) fn parallelism(&self, bytes: u64, most: u32) -> (u32, u32) {
        let channels = self.channels(bytes, most);
        if self.threads == 1 {
            return (channels, 1);
        }
        let mut threads = self.threads;
        while self.algorithm != Algorithm::CollnetDirect
            && threads.is_multiple_of(4 * tables::WARP)
            && bytes < u64::from(channels) * u64::from(threads) * self.a_thread
        {
            threads /= 2;
        }
        // A tree goes up and down at once: its blocks are always full.
        let threads = match (self.algorithm, self.protocol) {
            (Algorithm::Tree, _) => tables::MAX_THREADS,
            (Algorithm::Ring, ProtocolId::Simple) => threads + tables::SYNC_THREADS[0],
            _ => threads,
        };
        (channels, threads.clamp(3 * tables::WARP, tables::MAX_THREADS))
    }
}

/// Bytes of data of a chunk: a part of the channel's buffer, less the flags.
fn chunk(
    s: &Situation<'_>,
    collective: Collective,
    algorithm: Algorithm,
    protocol: ProtocolId,
    settings: &Settings,
) -> u64 {
    let (buffers, steps) = match s.devices() {
        Devices::Cpu { .. } => {
            let (bytes, slots) = crate::comm::default_buffers();
            (bytes.map(|bytes| bytes as u64), u64::from(slots))
        }
        Devices::Gpus(_) => (tables::BUFFERS, tables::STEPS),
    };
    let at_once = match (s.devices(), algorithm, protocol, collective) {
        (Devices::Cpu { .. }, ..) | (_, _, _, Collective::Broadcast | Collective::Reduce) => 1,
        (_, Algorithm::Ring, ProtocolId::Simple, _) => tables::CHUNK_STEPS,
        _ => 1,
    };
    let p = protocol as usize;
    let bytes = settings.buffers[p].unwrap_or(buffers[p]) / steps * at_once;
    match protocol {
        ProtocolId::Ll => bytes / 2,
        ProtocolId::Ll128 => bytes / 128 * 120,
        ProtocolId::Simple => bytes,
    }
}

/// The sizes between which all times are linear in the bytes: each is the first of a range, ascending, from `from` on.
pub(super) fn bends(s: &Situation<'_>, settings: &Settings, from: u64, to: u64) -> Vec<u64> {
    let channels = settings.channels(s.channels());
    let mut starts = match s.devices() {
        Devices::Cpu { .. } => cpu::bends(s, channels),
        Devices::Gpus(_) => model::bends(s, channels),
    };
    starts.retain(|start| (from + 1..=to).contains(start));
    starts.push(from);
    starts.sort_unstable();
    starts.dedup();
    starts
}

/// Where the choice changes: the sizes from `from` to `to` at which another way becomes the fastest, each with that
/// way; the first is `from`. Empty when nothing may be chosen.
///
/// Between two bends all times are linear in the bytes. The least of straight lines is concave: what is the fastest
/// at both ends of such a range is so throughout, and what is the fastest at one end is so up to a single point.
#[must_use]
pub fn switches(
    s: &Situation<'_>,
    collective: Collective,
    settings: &Settings,
    from: u64,
    to: u64,
) -> Vec<(u64, Algorithm, ProtocolId)> {
    let ways = allowed(s, collective, settings);
    let at = |bytes: u64| fastest(s, collective, bytes, settings, &ways);
    let starts = bends(s, settings, from, to);
    let ends = starts.iter().skip(1).map(|next| next - 1).chain([to]);
    let mut found: Vec<(u64, Algorithm, ProtocolId)> = Vec::new();
    for (&start, end) in starts.iter().zip(ends) {
        let mut low = start;
        loop {
            let Some(way) = at(low) else { return Vec::new() };
            if found.last().is_none_or(|last| (last.1, last.2) != way) {
                found.push((low, way.0, way.1));
            }
            if low >= end || at(end) == Some(way) {
                break;
            }
            // The first size at which another way is the fastest.
            let (mut below, mut above) = (low, end);
            while above - below > 1 {
                let middle = below + (above - below) / 2;
                if at(middle) == Some(way) { below = middle } else { above = middle }
            }
            low = above;
        }
    }
    found
}
