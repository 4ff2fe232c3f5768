//! The choice: the fastest algorithm and protocol of those that may be chosen, with channels and threads by size.

use ferroccl_device::abi::{Algorithm, Collective, ProtocolId};

use super::all_to_all;
use super::parallelism::MinimumSize;
use super::rules::modelled_as;
use super::{
    Cost, Devices, Prediction, Settings, Situation, cpu, is_faster, model, predict, rules, tables,
};

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
    /// All other algorithms and protocols, and why each was not chosen.
    pub alternatives: Vec<Alternative>,
}

/// An algorithm and protocol that were not chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternative {
    /// What the model says of it.
    pub prediction: Prediction,
    /// Why it lost, as a clause.
    pub lost: String,
}

/// No algorithm and protocol may be chosen for a call.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("nothing may do {collective}: {}{}", reasons(.alternatives), instead(.collective))]
pub struct NoChoice {
    /// The call.
    pub collective: Collective,
    /// All algorithms and protocols, and why none was chosen.
    pub alternatives: Vec<Alternative>,
}

/// How a call is made for which nothing may be chosen.
fn instead(collective: &Collective) -> &'static str {
    match collective {
        Collective::AllToAll => "; so it is made of sends and receives (sendrecv)",
        _ => "",
    }
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

/// Every algorithm with every protocol, in NCCL's order, and then what other crates have kernels for. Of two that are equally fast the
/// first is chosen.
fn candidates(
    collective: Collective,
    settings: &Settings,
) -> impl Iterator<Item = (Algorithm, ProtocolId)> + '_ {
    let protocols = |a: &'static Algorithm| ProtocolId::ALL.iter().map(move |p| (*a, *p));
    let own = settings.own.kernels.iter().filter(move |kernel| kernel.0 == collective);
    Algorithm::ALL.iter().flat_map(protocols).chain(own.map(|kernel| (kernel.1, kernel.2)))
}

/// The candidates that may be chosen for a call of any size.
pub(super) fn allowed(
    s: &Situation<'_>,
    collective: Collective,
    settings: &Settings,
) -> Vec<(Algorithm, ProtocolId)> {
    let open = |(a, p): &(Algorithm, ProtocolId)| {
        rules::impossible(s, collective, *a, *p, settings).is_none()
            && rules::forbidden(s, collective, *a, *p, settings).is_none()
    };
    candidates(collective, settings).filter(open).collect()
}

/// The first size that a group of sends and receives is faster for.
fn messages_from(s: &Situation<'_>, collective: Collective, settings: &Settings) -> Option<u64> {
    (collective == Collective::AllToAll).then(|| all_to_all::messages_from(s, settings)).flatten()
}

/// The fastest of `candidates`; `None` when there are none, or when a group of messages is faster.
fn fastest(
    s: &Situation<'_>,
    collective: Collective,
    bytes: u64,
    settings: &Settings,
    (candidates, messages_from): (&[(Algorithm, ProtocolId)], Option<u64>),
) -> Option<(Algorithm, ProtocolId)> {
    let open = |(a, _): &&(Algorithm, ProtocolId)| {
        !all_to_all::is_by_messages((collective, *a), bytes, messages_from)
    };
    let timed = candidates.iter().filter(open).filter_map(|&(a, p)| {
        let cost = model::cost(s, collective, a, p, bytes, settings)?;
        Some((cost.time_us, (a, p)))
    });
    timed
        .reduce(|best, new| if is_faster(new.0, best.0) { new } else { best })
        .map(|(_, choice)| choice)
}

/// Chooses how a call of `bytes` (see [`predict`]) is done.
///
/// ```
/// use ferroccl_topology::graph::tuning::*;
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
/// [`NoChoice`] when the settings exclude every algorithm and protocol.
pub fn choose(
    s: &Situation<'_>,
    collective: Collective,
    bytes: u64,
    settings: &Settings,
) -> Result<Choice, NoChoice> {
    let messages_from = messages_from(s, collective, settings);
    let open = allowed(s, collective, settings);
    let chosen = fastest(s, collective, bytes, settings, (&open, messages_from));
    let mut best = None;
    let mut others = Vec::new();
    for (a, p) in candidates(collective, settings) {
        let prediction = predict(s, collective, a, p, bytes, settings);
        match prediction.cost {
            Some(cost) if chosen == Some((a, p)) => best = Some((a, p, cost)),
            _ => others.push(prediction),
        }
    }
    let best_time = best.map(|(_, _, cost)| cost.time_us);
    let lost = |prediction: Prediction| {
        let way = (collective, prediction.algorithm);
        let by_messages = all_to_all::is_by_messages(way, bytes, messages_from);
        let lost = match &prediction.why_not {
            Some(why) => why.clone(),
            // What is on windows may be faster than both.
            None if by_messages && best.is_none() => "slower than sends and receives".to_owned(),
            None => slower(&prediction, best_time),
        };
        Alternative { prediction, lost }
    };
    let alternatives = others.into_iter().map(lost).collect();
    let Some((algorithm, protocol, cost)) = best else {
        return Err(NoChoice { collective, alternatives });
    };
    let most = settings.channels(s.channels());
    let minimum = MinimumSize::new(s, algorithm, protocol, settings);
    let (channels, threads) = minimum.parallelism(collective, bytes, most);
    let chunk_bytes = chunk(s, collective, algorithm, protocol, settings);
    Ok(Choice { algorithm, protocol, channels, threads, chunk_bytes, cost, alternatives })
}

/// Why a candidate that may be chosen was not.
fn slower(prediction: &Prediction, best: Option<f64>) -> String {
    match (prediction.cost, best) {
        (Some(cost), Some(best)) if best > 0.0 && cost.time_us > best => {
            format!("{:.2} times slower", cost.time_us / best)
        }
        (Some(_), _) => "no faster".to_owned(),
        (None, _) => "cannot be done".to_owned(),
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
        Devices::Cpu { .. } => (cpu::BUFFER_BYTES.map(|bytes| bytes as u64), u64::from(cpu::SLOTS)),
        Devices::Gpus(_) => (tables::BUFFERS, tables::STEPS),
    };
    let at_once = match (s.devices(), algorithm, protocol, collective) {
        (Devices::Cpu { .. }, ..) | (_, _, _, Collective::Broadcast | Collective::Reduce) => 1,
        (_, Algorithm::Ring, ProtocolId::Simple, _) => tables::CHUNK_STEPS,
        _ => 1,
    };
    let (protocol, _) = settings.own.modelled(protocol);
    let p = modelled_as(protocol);
    let bytes = settings.buffers[p].unwrap_or(buffers[p]) / steps * at_once;
    match protocol {
        ProtocolId::Ll => bytes / 2,
        ProtocolId::Ll128 => bytes / 128 * 120,
        ProtocolId::Simple | ProtocolId::Own(_) => bytes,
    }
}

/// The first size of each range in which all times are linear in the bytes, ascending, from `from` on.
pub(super) fn breakpoints(s: &Situation<'_>, settings: &Settings, from: u64, to: u64) -> Vec<u64> {
    let channels = settings.channels(s.channels());
    let mut starts = match s.devices() {
        Devices::Cpu { .. } => cpu::breakpoints(s, channels),
        Devices::Gpus(_) => model::breakpoints(s, channels),
    };
    starts.extend(s.place_changes());
    if let Some(fitted) = settings.fitted.as_ref().filter(|fitted| fitted.is_for(s)) {
        starts.extend(fitted.starts());
    }
    starts.retain(|start| (from + 1..=to).contains(start));
    starts.push(from);
    starts.sort_unstable();
    starts.dedup();
    starts
}

/// Where the choice changes: the sizes from `from` to `to` at which another candidate becomes the fastest, each with that
/// candidate; the first is `from`. Empty when nothing may be chosen. It ends with the last size that something may be chosen for: larger
/// all-to-alls are groups of sends and receives.
///
/// Between two breakpoints all times are linear in the bytes. The least of straight lines is concave: what is the fastest
/// at both ends of such a range is so throughout, and what is the fastest at one end is so up to a single point.
#[must_use]
pub fn switches(
    s: &Situation<'_>,
    collective: Collective,
    settings: &Settings,
    from: u64,
    to: u64,
) -> Vec<(u64, Algorithm, ProtocolId)> {
    let candidates = allowed(s, collective, settings);
    let messages_from = messages_from(s, collective, settings);
    let at = |bytes: u64| fastest(s, collective, bytes, settings, (&candidates, messages_from));
    let mut starts = breakpoints(s, settings, from, to);
    starts.extend(messages_from.filter(|start| (from + 1..=to).contains(start)));
    starts.sort_unstable();
    starts.dedup();
    let ends = starts.iter().skip(1).map(|next| next - 1).chain([to]);
    let mut found: Vec<(u64, Algorithm, ProtocolId)> = Vec::new();
    for (&start, end) in starts.iter().zip(ends) {
        let mut low = start;
        loop {
            let Some(choice) = at(low) else { return found };
            if found.last().is_none_or(|last| (last.1, last.2) != choice) {
                found.push((low, choice.0, choice.1));
            }
            if low >= end || at(end) == Some(choice) {
                break;
            }
            // The first size at which another candidate is the fastest.
            let (mut below, mut above) = (low, end);
            while above - below > 1 {
                let middle = below + (above - below) / 2;
                if at(middle) == Some(choice) { below = middle } else { above = middle }
            }
            low = above;
        }
    }
    found
}
