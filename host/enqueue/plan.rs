//! The plan of a call: kernel, channels, and each channel's part.

use ferroccl_device::abi::{Algorithm, ChannelWork, MAX_CHANNELS, ProtocolId, Signature, Work};
use ferroccl_device::kernels::{Kernel, left_out, lookup};

use super::Call;
use crate::error::Error;
use crate::graph::tuning::Tuner;

/// What a plan needs to know of a communicator.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Ranks.
    pub ranks: u32,
    /// Channels there are, 1 to [`MAX_CHANNELS`].
    pub channels: u32,
    /// How a call of so many bytes is done.
    pub tuner: Tuner,
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
#[error("no kernel does {call:?} by {algorithm}{}", why(*left_out))]
pub struct PlanError {
    /// The call.
    pub call: Call,
    /// How it was to be done.
    pub algorithm: Algorithm,
    /// The cargo feature that it needs and this build was made without, if that is why.
    pub left_out: Option<&'static str>,
}

fn why(left_out: Option<&'static str>) -> String {
    left_out.map_or(String::new(), |f| format!(": this build is without the cargo feature `{f}`"))
}

impl From<PlanError> for Error {
    fn from(e: PlanError) -> Self {
        match e.left_out {
            Some(_) => Error::Unavailable { what: "kernel".to_owned(), reason: e.to_string() },
            None => Error::argument("op", e.to_string()),
        }
    }
}

impl Plan {
    /// The kernel's argument; `input`, `output` and `comm` are addresses.
    #[must_use]
    pub fn work(&self, comm: u64, input: u64, output: u64, ranks: u32) -> Work {
        Work {
            comm,
            input,
            output,
            scalar: ranks.into(),
            count: self.signature.count,
            root: 0,
            scalar_by_address: 0,
            extra: 0,
            pad: 0,
            signature: self.signature,
            channels: self.parts,
        }
    }
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
    let protocol = shape.tuner.protocol(bytes as u64);
    let kernel =
        lookup(call.collective, algorithm, protocol, call.op, call.data_type).ok_or_else(|| {
            PlanError {
                call: *call,
                algorithm,
                left_out: left_out(call.collective, algorithm, call.data_type),
            }
        })?;
    let channels = if shape.all_channels {
        shape.channels
    } else {
        shape.tuner.channels(bytes as u64, protocol, shape.channels)
    };
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
    use ferroccl_device::abi::{DataType, ReduceOp};

    use super::*;
    use crate::graph::tuning::{Collective, Devices, Settings, Situation};

    #[test]
    fn protocols_follow_size_and_permission() {
        let chosen = |bytes: usize, allowed: &[ProtocolId]| {
            let settings = Settings { protocols: Some(allowed.to_vec()), ..Settings::default() };
            let cores = Situation::new(1, 4, Devices::Cpu { ring: None });
            let tuner = Tuner::new(&cores, Collective::AllReduce, &settings);
            let shape = Shape { ranks: 4, channels: 2, tuner: tuner.clone(), all_channels: false };
            let call = Call {
                collective: ferroccl_device::abi::Collective::AllReduce,
                count: bytes / 4,
                data_type: DataType::F32,
                op: ReduceOp::Sum,
            };
            let plan = plan(&call, &shape, 1).expect("a kernel");
            assert_eq!(plan.protocol, tuner.protocol(bytes as u64));
            (plan.protocol, plan.channels)
        };
        let all = ProtocolId::ALL;
        let (ll, ll128, simple) = (ProtocolId::Ll, ProtocolId::Ll128, ProtocolId::Simple);
        assert_eq!(chosen(8, all), (ll, 1));
        assert_eq!(chosen(512, all), (simple, 1));
        assert_eq!(chosen(1 << 30, all), (simple, 2));
        assert_eq!(chosen(8, &[ll128]), (ll128, 1));
        assert_eq!(chosen(1 << 30, &[ll128, simple]), (simple, 2));
        assert_eq!(chosen(8, &[simple]), (simple, 1));
        assert_eq!(chosen(1 << 30, &[ll]), (ll, 2));
        assert_eq!(chosen(8, &[]), (simple, 1));
    }
}
