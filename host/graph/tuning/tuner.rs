//! The choice as thresholds: what a call of 8 bytes can afford.

use super::choose::{bytes_a_channel, switches};
use super::{Algorithm, Collective, Settings, Situation};
use crate::device::abi::ProtocolId;

/// No call is larger.
const LARGEST: u64 = 1 << 62;

/// What [`choose`](super::choose) says of rings, for calls of every size of one communicator: computed once, looked
/// up without allocating.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuner {
    /// From so many bytes on, this protocol; ascending.
    from: Box<[(u64, ProtocolId)]>,
    /// Bytes that a channel must have, by protocol.
    a_channel: [u64; 3],
}

impl Tuner {
    /// Of a communicator's calls. Rings only: no other algorithm has kernels. Without anything that may be chosen it
    /// is Simple.
    ///
    /// ```
    /// use ferroccl::ProtocolId;
    /// use ferroccl::graph::tuning::*;
    ///
    /// let cores = Situation::new(1, 4, Devices::Cpu { ring: None });
    /// let tuner = Tuner::new(&cores, Collective::AllReduce, &Settings::default());
    /// assert_eq!(tuner.protocol(8), ProtocolId::Ll);
    /// assert_eq!(tuner.protocol(1 << 20), ProtocolId::Simple);
    /// ```
    #[must_use]
    pub fn new(s: &Situation<'_>, collective: Collective, settings: &Settings) -> Tuner {
        let settings = Settings { algorithms: Some(vec![Algorithm::Ring]), ..settings.clone() };
        let ways = switches(s, collective, &settings, 0, LARGEST);
        let a_channel = [ProtocolId::Ll, ProtocolId::Ll128, ProtocolId::Simple]
            .map(|p| bytes_a_channel(s, Algorithm::Ring, p, &settings).max(1));
        Tuner { from: ways.iter().map(|way| (way.0, way.2)).collect(), a_channel }
    }

    /// The same with one protocol for all calls.
    #[must_use]
    pub fn only(&self, protocol: ProtocolId) -> Tuner {
        Tuner { from: Box::new([(0, protocol)]), a_channel: self.a_channel }
    }

    /// The protocol of a call of `bytes`.
    #[must_use]
    pub fn protocol(&self, bytes: u64) -> ProtocolId {
        let begun = self.from.iter().take_while(|(from, _)| *from <= bytes);
        begun.last().map_or(ProtocolId::Simple, |(_, protocol)| *protocol)
    }

    /// How many of `channels` a call of `bytes` with this protocol is worth; at least 1.
    #[must_use]
    pub fn channels(&self, bytes: u64, protocol: ProtocolId, channels: u32) -> u32 {
        let worth = u32::try_from(bytes / self.a_channel[protocol as usize]).unwrap_or(u32::MAX);
        worth.clamp(1, channels.max(1))
    }
}
