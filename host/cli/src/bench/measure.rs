//! What `ferroccl bench` measures.
//!
//! What a kernel of a call takes is in differences of calls, so that neither the launch nor the host is in it:
//!
//! | figure | is |
//! |---|---|
//! | a hop | what an all-reduce of 8 bytes takes more around a ring of 4 ranks than of 2, by the 4 more hops, on one channel |
//! | a step | what a message of 32 slots takes more than one of 16, by the 16 more slots, on one channel: a send and a receive |
//!
//! Barriers, signals, puts, copies and reductions are kernels of [this command's own](super::kernels), which do one thing again and
//! again: what it takes more to do it often than not at all.

use ferroccl::device::abi::ProtocolId;
use ferroccl::device::kernels::UserKernel;
use ferroccl::{
    Algorithm, CommConfig, Communicator, Device, DeviceBuffer, DeviceCommConfig, Grid, ReduceOp,
    Result, Stream, group,
};

use super::Failure;
use super::kernels::{self, BenchArgument};
use super::place::{Effort, Place};
use crate::registered::registry;

/// One thing that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum What {
    /// From rank to rank: 8 bytes, by protocol
    Hop,
    /// A slot, sent and received, by protocol
    Step,
    /// The same to another host, by a proxy and sockets on this machine: CPU only
    Post,
    /// A barrier of all ranks within a kernel
    Barrier,
    /// A signal within a kernel
    Signal,
    /// A copy into another rank's memory, with a signal
    Put,
    /// A copy within a rank
    Copy,
    /// All ranks' buffers, combined in each rank's memory
    Reduce,
}

impl What {
    pub(crate) const ALL: [What; 8] = [
        What::Hop,
        What::Step,
        What::Post,
        What::Barrier,
        What::Signal,
        What::Put,
        What::Copy,
        What::Reduce,
    ];

    /// The kernel that does it, for what is no call.
    fn kernel(self) -> Option<UserKernel<BenchArgument>> {
        match self {
            What::Hop | What::Step | What::Post => None,
            What::Barrier => Some(kernels::BARRIER),
            What::Signal => Some(kernels::SIGNAL),
            What::Put => Some(kernels::PUT),
            What::Copy => Some(kernels::COPY),
            What::Reduce => Some(kernels::REDUCE),
        }
    }

    /// Whether it is of data, of any size.
    fn has_size(self) -> bool {
        matches!(self, What::Put | What::Copy | What::Reduce)
    }

    /// How often a kernel does it for each time that it is told to: a signal goes there and back.
    fn per_time(self) -> f64 {
        if self == What::Signal { 2.0 } else { 1.0 }
    }
}

/// What is to be measured, of each kind.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) effort: Effort,
    pub(super) protocols: Vec<ProtocolId>,
    /// Ranks that meet, and whose buffers are combined.
    pub(super) ranks: usize,
    /// Blocks of a kernel that does one thing again and again.
    pub(super) blocks: u32,
    /// Of a rank's buffer.
    pub(super) sizes: Vec<u64>,
    pub(super) ptx: &'static str,
}

/// A figure.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Figure {
    pub(super) what: What,
    #[serde(serialize_with = "by_name")]
    pub(super) protocol: Option<ProtocolId>,
    pub(super) ranks: usize,
    pub(super) bytes: u64,
    /// Microseconds, of each round; their median.
    pub(super) rounds: Vec<f64>,
    pub(super) us: f64,
}

fn by_name<S: serde::Serializer>(
    protocol: &Option<ProtocolId>,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    match protocol {
        Some(protocol) => serializer.serialize_some(protocol.name()),
        None => serializer.serialize_none(),
    }
}

impl Figure {
    /// Of each round what `more` takes more than `less`, by so many things.
    fn of_difference(
        (what, protocol): (What, Option<ProtocolId>),
        (ranks, bytes): (usize, u64),
        (more, less): (&[f64], &[f64]),
        things: f64,
    ) -> Self {
        let rounds: Vec<f64> =
            more.iter().zip(less).map(|(more, less)| (more - less) / things).collect();
        let us = median(&rounds);
        Figure { what, protocol, ranks, bytes, rounds, us }
    }

    /// 10^9 bytes a second, of data.
    pub(super) fn rate(&self) -> Option<f64> {
        let counts =
            self.us > 0.0 && !matches!(self.what, What::Hop | What::Barrier | What::Signal);
        counts.then(|| self.bytes as f64 * 1e-3 / self.us)
    }
}

/// The middle one.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Measures one thing; `report` gets its figures as they come.
pub(super) fn measure(
    place: &Place,
    plan: &Plan,
    what: What,
    report: &mut dyn FnMut(Figure),
) -> std::result::Result<(), Failure> {
    match what.kernel() {
        Some(kernel) => {
            let sizes: &[u64] = if what.has_size() { &plan.sizes } else { &[0] };
            for &bytes in sizes {
                report(of_kernel(place, plan, (what, kernel), bytes)?);
            }
        }
        None => {
            for &protocol in &plan.protocols {
                if what != What::Hop && matches!(protocol, ProtocolId::Own(_)) {
                    continue; // messages are in the library's protocols
                }
                report(match what {
                    What::Hop => hop(place, plan.effort, protocol)?,
                    _ => step(place, plan.effort, (what, protocol))?,
                });
            }
        }
    }
    Ok(())
}

/// Ranks, with a stream each.
struct Ranks {
    ranks: Vec<Communicator>,
    streams: Vec<Stream>,
}

impl Ranks {
    fn new(devices: &[Device], config: &CommConfig) -> Result<Self> {
        let ranks = Communicator::init_all_on(devices, config)?;
        let streams = devices.iter().map(Device::stream).collect::<Result<_>>()?;
        Ok(Ranks { ranks, streams })
    }

    fn streams(&self) -> Vec<&Stream> {
        self.streams.iter().collect()
    }
}

/// A ring of one channel, of one protocol.
fn ring(protocol: ProtocolId) -> CommConfig {
    let mut config = CommConfig::default();
    (config.protocol, config.algorithm) = (Some(protocol), Some(Algorithm::Ring));
    config.channels = Some(1);
    config.registry = registry().clone();
    config
}

fn hop(place: &Place, effort: Effort, protocol: ProtocolId) -> Result<Figure> {
    let of = |n: usize| -> Result<Vec<f64>> {
        let devices = place.devices(n)?;
        let ranks = Ranks::new(&devices, &ring(protocol))?;
        let buffers = devices.iter().map(|device| device.alloc::<f32>(2));
        let buffers = buffers.collect::<Result<Vec<_>>>()?;
        place.time((effort.rounds, effort.calls), &ranks.streams(), &|| {
            for ((rank, buffer), stream) in ranks.ranks.iter().zip(&buffers).zip(&ranks.streams) {
                rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream)?;
            }
            Ok(())
        })
    };
    // A ring has 2 (n - 1) hops.
    let (more, less) = (of(4)?, of(2)?);
    Ok(Figure::of_difference((What::Hop, Some(protocol)), (2, 8), (&more, &less), 4.0))
}

/// Bytes of data of a slot.
fn slot_data(device: &Device, protocol: ProtocolId) -> usize {
    let (buffers, slots) = device.runtime().buffers();
    let slots = slots as usize;
    match protocol {
        // Half of an LL line is flags, of an LL128 line a sixteenth.
        ProtocolId::Ll => buffers[0] / slots / 2,
        ProtocolId::Ll128 => buffers[1] / slots / 128 * 120,
        ProtocolId::Simple => buffers[2] / slots,
        ProtocolId::Own(_) => 0, // messages are not sent by it
    }
}

fn step(place: &Place, effort: Effort, (what, protocol): (What, ProtocolId)) -> Result<Figure> {
    let devices = place.devices(2)?;
    let mut config = ring(protocol);
    if what == What::Post {
        // Nothing but the network is left.
        (config.p2p, config.shm) = (Some(false), Some(false));
    }
    let ranks = Ranks::new(&devices, &config)?;
    let data = slot_data(&devices[0], protocol).max(1);
    let of = |steps: usize| -> Result<Vec<f64>> {
        let buffers: [DeviceBuffer<u8>; 2] =
            [devices[0].alloc(steps * data)?, devices[1].alloc(steps * data)?];
        let calls = if what == What::Post { effort.calls.div_ceil(10) } else { effort.calls };
        place.time((effort.rounds, calls), &ranks.streams(), &|| {
            group(|| {
                ranks.ranks[0].send(&buffers[0], 1, &ranks.streams[0])?;
                ranks.ranks[1].recv(&buffers[1], 0, &ranks.streams[1])
            })
        })
    };
    let (more, less) = (of(32)?, of(16)?);
    let size = (2, data as u64);
    Ok(Figure::of_difference((what, Some(protocol)), size, (&more, &less), 16.0))
}

/// A kernel that does its thing `calls` times, less one that does nothing.
fn of_kernel(
    place: &Place,
    plan: &Plan,
    (what, kernel): (What, UserKernel<BenchArgument>),
    bytes: u64,
) -> std::result::Result<Figure, Failure> {
    let n = match what {
        What::Signal | What::Put => 2,
        What::Copy => 1,
        _ => plan.ranks,
    };
    let devices = place.devices(n)?;
    let ranks = Ranks::new(&devices, &CommConfig::default())?;
    let count = (bytes / size_of::<f32>() as u64).max(1);
    let alloc = |device: &Device| device.alloc_shared::<f32>(count as usize);
    let buffers = devices.iter().map(alloc).collect::<Result<Vec<_>>>()?;
    for (r, (buffer, stream)) in buffers.iter().zip(&ranks.streams).enumerate() {
        let values: Vec<f32> = (0..count as usize).map(|i| value(r, i)).collect();
        buffer.copy_from(&values, stream)?;
        stream.synchronize()?;
    }
    let own = devices.iter().map(alloc).collect::<Result<Vec<_>>>()?;
    let windows = Communicator::register_windows(ranks.ranks.iter().zip(&buffers))?;
    let mut config = DeviceCommConfig::default();
    (config.barriers, config.signals) = (plan.blocks, plan.blocks);
    let comms = Communicator::device_comms(&ranks.ranks, &config)?;
    let kernel = if plan.ptx.is_empty() { kernel } else { kernel.with_ptx(plan.ptx) };
    let grid = Grid { blocks: plan.blocks, threads: 512 };
    for comm in &comms {
        comm.prepare(&kernel, grid)?;
    }
    let calls = u64::from(plan.effort.calls);
    let times = match what.has_size() {
        // Large ones often enough, and not for minutes.
        true => calls.min((64 << 20) / bytes.max(1)).max(2),
        // What takes a tenth of a microsecond is to be more than a launch differs by.
        false if !place.is_simulated() => 50 * calls,
        false => calls,
    };
    let of = |times: u64| {
        place.time((plan.effort.rounds, 1), &ranks.streams(), &|| {
            for r in 0..n {
                let (comm, window) = (comms[r].value(), windows[r].value()?);
                let argument = BenchArgument { comm, window, own: own[r].address(), count, times };
                // SAFETY: the buffers have `count` elements, and are kept until the streams were waited for, as `time` does.
                unsafe { comms[r].launch(&kernel, grid, &argument, &ranks.streams[r])? };
            }
            Ok(())
        })
    };
    let (less, more) = (of(0)?, of(times)?);
    if what.has_size() {
        check((what, n), (&buffers, &own), &ranks.streams)?;
    }
    let things = times as f64 * what.per_time();
    Ok(Figure::of_difference((what, None), (n, bytes), (&more, &less), things))
}

/// What a rank's buffer has at the beginning: sums of few are exact.
fn value(rank: usize, i: usize) -> f32 {
    ((i + 3 * rank) % 31) as f32
}

/// That a kernel has done what was measured.
fn check(
    (what, ranks): (What, usize),
    (buffers, own): (&[DeviceBuffer<f32>], &[DeviceBuffer<f32>]),
    streams: &[Stream],
) -> std::result::Result<(), Failure> {
    let wanted = |r: usize, i: usize| match what {
        What::Put => value(0, i),
        What::Reduce => (0..ranks).map(|r| value(r, i)).sum(),
        _ => value(r, i),
    };
    let results = if what == What::Put { buffers } else { own };
    for (r, (result, stream)) in results.iter().zip(streams).enumerate() {
        let got = result.to_vec(stream)?;
        if let Some(i) = (0..got.len()).find(|i| got[*i] != wanted(r, *i)) {
            let (name, got, wanted) = (super::output::name(what), got[i], wanted(r, i));
            return Err(Failure::Wrong(format!(
                "{name}: element {i} of rank {r} is {got}, not {wanted}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_taken_round_by_round() {
        let figure = Figure::of_difference(
            (What::Put, None),
            (2, 4000),
            (&[12.0, 40.0, 14.0], &[4.0, 5.0, 4.0]),
            2.0,
        );
        assert_eq!(figure.rounds, [4.0, 17.5, 5.0]);
        assert_eq!((figure.us, figure.rate()), (5.0, Some(0.8)));
        let figure = Figure { us: -0.5, ..figure };
        assert_eq!(figure.rate(), None);
    }
}
