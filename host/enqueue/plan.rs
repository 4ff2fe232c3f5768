//! The plan of a call: kernel, channels, and each channel's part.

use ferroccl_device::abi::{Algorithm, ChannelWork, MAX_CHANNELS, ProtocolId, Signature, Work};
use ferroccl_device::kernels::{Kernel, lookup};

use super::Call;

/// What a plan needs to know of a communicator.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Ranks.
    pub ranks: u32,
    /// Channels there are, 1 to [`MAX_CHANNELS`].
    pub channels: u32,
    /// Which protocols may be chosen, by [`ProtocolId`]; at least one.
    pub protocols: [bool; 3],
    /// Whether `channels` is what every call uses, instead of the most it may use.
    pub all_channels: bool,
}

/// A call, ready to be launched.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What runs.
    pub kernel: Kernel,
    /// The protocol it runs.
    pub protocol: ProtocolId,
    /// Blocks to launch.
    pub channels: u32,
    /// What the neighbours compare.
    pub signature: Signature,
    /// Each channel's part.
    pub parts: [ChannelWork; MAX_CHANNELS],
}

/// A call that no kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no kernel does {0:?}")]
pub struct PlanError(pub Call);

impl Plan {
    /// The kernel's argument; `input`, `output` and `comm` are addresses.
    #[must_use]
    pub fn work(&self, comm: u64, input: u64, output: u64, ranks: u32) -> Work {
        Work {
            comm,
            input,
            output,
            scalar: ranks.into(),
            signature: self.signature,
            channels: self.parts,
        }
    }
}

/// Bytes up to which a call runs LL; above, Simple. Between what 4 and 16 ranks would choose
/// (`benches/records/2026-11-21-foundation.md`, other settings): a lane of its own pays for each LL line, while
/// Simple's barriers cost nothing on a CPU and its data moves by vector copies. LL128 was the fastest at no
/// size; it runs when it is asked for.
const LL_BYTES: usize = 256;

/// Bytes that a channel must have to be worth its launch.
const BYTES_PER_CHANNEL: usize = 32 << 10;

/// The protocol for a message of `bytes`, of those `allowed`: the best, or else the next for larger
/// messages, or else the largest there is. With none allowed, Simple.
#[must_use]
pub fn choose_protocol(bytes: usize, allowed: [bool; 3]) -> ProtocolId {
    let best = if bytes <= LL_BYTES { ProtocolId::Ll } else { ProtocolId::Simple };
    let allowed = || ProtocolId::ALL.iter().copied().filter(|&p| allowed[p as usize]);
    allowed().find(|&p| p >= best).or_else(|| allowed().next_back()).unwrap_or(ProtocolId::Simple)
}

/// How many of `channels` a message of `bytes` is worth; at least 1.
#[must_use]
pub fn choose_channels(bytes: usize, channels: u32) -> u32 {
    let worth = u32::try_from(bytes / BYTES_PER_CHANNEL).unwrap_or(u32::MAX);
    worth.clamp(1, channels.max(1))
}

/// Cuts `count` elements into one contiguous part a channel, all but the last multiples of `grain`.
///
/// Every element is in exactly one part. Parts differ by at most `grain`, but for the last.
#[must_use]
pub fn split(count: usize, channels: u32, grain: usize) -> [ChannelWork; MAX_CHANNELS] {
    let mut parts = [ChannelWork::default(); MAX_CHANNELS];
    let channels = (channels as usize).clamp(1, MAX_CHANNELS);
    let grain = grain.max(1);
    let grains = count.div_ceil(grain);
    let (each, more) = (grains / channels, grains % channels);
    let mut offset = 0;
    for (i, part) in parts.iter_mut().take(channels).enumerate() {
        let n = ((each + usize::from(i < more)) * grain).min(count - offset);
        *part = ChannelWork { offset: offset as u64, count: n as u64 };
        offset += n;
    }
    parts
}

/// Plans a call.
///
/// # Errors
/// [`PlanError`] when no kernel does it.
pub fn plan(call: &Call, shape: &Shape, seq: u64) -> Result<Plan, PlanError> {
    let algorithm = Algorithm::Ring;
    let bytes = call.bytes();
    let protocol = choose_protocol(bytes, shape.protocols);
    let kernel = lookup(call.collective, algorithm, protocol, call.op, call.data_type)
        .ok_or(PlanError(*call))?;
    let channels =
        if shape.all_channels { shape.channels } else { choose_channels(bytes, shape.channels) };
    // Parts start on a cache line of a well-aligned buffer.
    let grain = 128 / call.data_type.size();
    Ok(Plan {
        kernel,
        protocol,
        channels,
        signature: call.signature(seq, algorithm, protocol, channels),
        parts: split(call.count, channels, grain),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_follow_size_and_permission() {
        let all = [true; 3];
        assert_eq!(choose_protocol(8, all), ProtocolId::Ll);
        assert_eq!(choose_protocol(LL_BYTES + 1, all), ProtocolId::Simple);
        assert_eq!(choose_protocol(8, [false, true, true]), ProtocolId::Ll128);
        assert_eq!(choose_protocol(1 << 30, all), ProtocolId::Simple);
        assert_eq!(choose_protocol(8, [false, false, true]), ProtocolId::Simple);
        assert_eq!(choose_protocol(1 << 30, [true, false, false]), ProtocolId::Ll);
        assert_eq!(choose_protocol(8, [false; 3]), ProtocolId::Simple);
    }
}
