//! All-to-alls as groups of sends and receives: what they take, and from which size on they are faster than kernels of all-to-alls.

use ferroccl_device::abi::{Algorithm, Collective, ProtocolId};

use super::choose::allowed;
use super::{Cost, Devices, Settings, Situation, cpu, is_faster, messages, model, processes};

/// The largest size that is looked at, in bytes. What is chosen for it is chosen for all beyond.
const LARGEST: u64 = 1 << 40;

/// Whether an algorithm is compared with messages. A call on windows moves every byte once, and is not.
fn is_compared(collective: Collective, algorithm: Algorithm) -> bool {
    collective == Collective::AllToAll && !algorithm.is_on_windows()
}

/// The first size of an all-to-all, in bytes of a rank's buffer, for which a group of sends and receives is faster than by any algorithm
/// that needs no windows; `None` when it never is, or when `NCCL_ALGO` leaves out rings, as which messages count.
///
/// ```
/// use ferroccl_topology::graph::tuning::*;
///
/// let cores = Situation::new(1, 4, Devices::Cpu { ring: None });
/// let of = |list| {
///     let algorithms = Selection::parse(list, &[])?;
///     Ok::<_, String>(all_to_all::messages_from(&cores, &Settings { algorithms, ..Settings::default() }))
/// };
/// assert!(of("ring,oneshot")?.is_some_and(|bytes| (64 << 10..1 << 20).contains(&bytes)));
/// assert_eq!(of("oneshot")?, None);
/// # Ok::<(), String>(())
/// ```
#[must_use]
pub fn messages_from(s: &Situation<'_>, settings: &Settings) -> Option<u64> {
    let collective = Collective::AllToAll;
    let mut ways = allowed(s, collective, settings);
    ways.retain(|(algorithm, _)| is_compared(collective, *algorithm));
    if ways.is_empty() || !settings.allows(collective, Algorithm::Ring) {
        return None;
    }
    let loses = |bytes: u64| {
        let time = |&(a, p): &(Algorithm, ProtocolId)| {
            Some(model::cost(s, collective, a, p, bytes, settings)?.time_us)
        };
        let least = ways.iter().filter_map(time).fold(f64::INFINITY, f64::min);
        messages_cost(s, bytes, settings).is_some_and(|cost| is_faster(cost.time_us, least))
    };
    // What costs more for each byte always loses from some size on.
    let first = (0..=LARGEST.ilog2()).map(|i| 1 << i).find(|bytes| loses(*bytes))?;
    let (mut below, mut above) = (first / 2, first);
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        if loses(middle) { above = middle } else { below = middle }
    }
    Some(above)
}

/// Whether a call of `bytes` is faster as a group of sends and receives than by `algorithm`.
pub(super) fn is_by_messages(
    (collective, algorithm): (Collective, Algorithm),
    bytes: u64,
    messages_from: Option<u64>,
) -> bool {
    is_compared(collective, algorithm) && messages_from.is_some_and(|from| bytes >= from)
}

/// What an all-to-all of one host takes as a group of sends and receives; `None` for several hosts, for which nobody has measured it.
///
/// ```
/// use ferroccl_topology::graph::tuning::*;
///
/// let cores = Situation::new(1, 4, Devices::Cpu { ring: None });
/// let time = |bytes| all_to_all::messages_cost(&cores, bytes, &Settings::default()).map(|cost| cost.time_us);
/// assert!(time(8) < time(1 << 20));
/// ```
#[must_use]
pub fn messages_cost(s: &Situation<'_>, bytes: u64, settings: &Settings) -> Option<Cost> {
    if s.nodes() > 1 {
        return None;
    }
    let channels = settings.channels(s.channels());
    let (latency_us, a_byte) = match s.devices() {
        Devices::Cpu { .. } => match s.places(Collective::AllToAll, bytes) {
            Some(places) => processes::messages_cost(s, places, channels, bytes),
            None => cpu::messages_cost(s, channels, bytes),
        },
        Devices::Gpus(gpus) => {
            let each = (bytes / u64::from(s.ranks()), channels);
            let link = |p| model::link(s, gpus, p);
            let cost = |p: &ProtocolId| messages::all_to_all(s.ranks(), *p, each, link(*p));
            let time = |(latency, a_byte): (f64, f64)| latency + bytes as f64 * a_byte;
            let all = ProtocolId::ALL.iter().map(cost);
            all.min_by(|a, b| time(*a).total_cmp(&time(*b)))?
        }
    };
    let bandwidth = if a_byte > 0.0 { 1e-3 / a_byte } else { crate::speed::LOC };
    Some(Cost { time_us: latency_us + bytes as f64 * a_byte, latency_us, bandwidth })
}
