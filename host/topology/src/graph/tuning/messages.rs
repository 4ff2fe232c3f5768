//! What a message between two GPUs takes, and how many channels it is worth.
//!
//! NCCL chooses LL or Simple by a threshold, and channels by the number of peers. The figures here are measured on one H200 with two
//! ranks (`benches/records/2026-11-26-h200.md`). Between GPUs that are joined by links, a link's bandwidth bounds the same.

use ferroccl_device::abi::ProtocolId;

use super::rules::modelled_as;
use super::{Cost, tables};

/// What a launch and the first step take, in microseconds, by protocol: [`tables::BASE`] of a ring with LL, less a step of LL, and
/// the measured hop.
const FIRST: [f64; 3] = [
    tables::BASE[1][0] - tables::STEP[0][1][0] + 1.1,
    tables::BASE[1][0] - tables::STEP[0][1][0] + 1.6,
    tables::BASE[1][0] - tables::STEP[0][1][0] + 6.9,
];
/// What a block moves, in 10^9 bytes a second, by protocol: 2 MiB over one channel, less the launch.
const BLOCK: [f64; 3] = [7.1, 15.1, 24.5];
/// What each further channel takes, in microseconds.
const CHANNEL: f64 = 1.3;

/// Bytes for which two channels are as fast as one, by protocol: what the second takes, one channel needs for half of them. With
/// `n` times as many channels it is `n * n` times as many bytes.
fn worth_two(protocol: ProtocolId) -> u64 {
    (2.0 * CHANNEL * BLOCK[modelled_as(protocol)] * 1e3) as u64
}

/// How many of `most` channels a message takes: a power of two, or all of them; at least 1.
///
/// From `n` channels to `2 n` a message of `b` bytes gains `b / (2 n BLOCK)` and loses `n CHANNEL`.
pub(super) fn channels(protocol: ProtocolId, bytes: u64, most: u32) -> u32 {
    let mut channels = 1;
    while channels < most && bytes >= from(protocol, 2 * channels) {
        channels *= 2;
    }
    channels.min(most.max(1))
}

/// The first size that takes so many channels, a power of two above 1.
fn from(protocol: ProtocolId, channels: u32) -> u64 {
    let half = u64::from(channels / 2);
    worth_two(protocol) * half * half
}

/// The sizes at which a message takes more channels.
pub(super) fn breakpoints(most: u32) -> impl Iterator<Item = u64> {
    let powers = (1..=most.max(1).next_power_of_two().ilog2()).map(|i| 1 << i);
    powers.flat_map(|channels| ProtocolId::ALL.iter().map(move |p| from(*p, channels)))
}

/// The time of a message over `channels` between GPUs of one host, whose links carry `link` with this protocol.
pub(super) fn cost(protocol: ProtocolId, bytes: u64, channels: u32, link: f64) -> Cost {
    let p = modelled_as(protocol);
    let bandwidth = (BLOCK[p] * f64::from(channels)).min(link);
    let latency_us = FIRST[p] + CHANNEL * f64::from(channels - 1);
    Cost { time_us: latency_us + bytes as f64 / bandwidth * 1e-3, latency_us, bandwidth }
}

/// What an all-to-all between GPUs of one host takes by messages of `each` bytes: before its bytes count, and a byte of the call, in
/// microseconds. Each message has as many channels as alone, as far as there are so many, and the link carries all of them. Reckoned from
/// the time of one.
pub(super) fn all_to_all(
    ranks: u32,
    protocol: ProtocolId,
    (each, most): (u64, u32),
    link: f64,
) -> (f64, f64) {
    let (p, others) = (modelled_as(protocol), f64::from(ranks.saturating_sub(1)));
    let blocks = others.max(1.0) * f64::from(channels(protocol, each, most));
    let blocks = blocks.min(f64::from(most.max(1)));
    let bandwidth = (BLOCK[p] * blocks).min(link);
    (FIRST[p] + CHANNEL * (blocks - 1.0), others / f64::from(ranks) / bandwidth * 1e-3)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The record's table of forced channels: the best of it is chosen, or what is within its noise.
    #[test]
    fn a_message_takes_the_channels_that_were_the_fastest() {
        use ProtocolId::{Ll, Ll128, Simple};
        let best = |bytes: u64| {
            let time = |p: &ProtocolId| cost(*p, bytes, channels(*p, bytes, 32), 1e3).time_us;
            let all = [Ll, Ll128, Simple].into_iter();
            let p = all.min_by(|a, b| time(a).total_cmp(&time(b))).unwrap_or(Simple);
            (p, channels(p, bytes, 32))
        };
        assert_eq!(best(8), (Ll, 1));
        assert_eq!(best(4 << 10), (Ll, 1));
        assert_eq!(best(256 << 10), (Ll128, 4));
        assert_eq!(best(2 << 20), (Simple, 8));
        assert_eq!(best(128 << 20), (Simple, 32));
    }

    #[test]
    fn more_bytes_never_take_fewer_channels_and_none_beyond_the_most() {
        for p in ProtocolId::ALL {
            for most in [1, 2, 3, 32, 64] {
                let mut before = 1;
                for bytes in (0..40).map(|i| (1u64 << i) - 1) {
                    let now = channels(*p, bytes, most);
                    assert!((before..=most).contains(&now), "{p}, {most}, {bytes}: {now}");
                    before = now;
                }
                assert_eq!(before, most);
            }
        }
    }
}
