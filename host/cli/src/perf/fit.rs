//! `ferroccl perf --fit`: the figures of other crates' protocols, as the tuner reckons with them.
//!
//! A protocol's figures are ratios to one of the library's over the same algorithm and ranks, at a size of few bytes and one of many. All
//! are measured in turns, round after round, and the medians count: what else the machine does hits all of them.

use std::fmt::Write as _;
use std::time::Instant;

use ferroccl::device::abi::ProtocolId;
use ferroccl::graph::tuning::ProtocolFigures;
use ferroccl::{Algorithm, CommConfig, Communicator, Device, DeviceBuffer, ReduceOp, Stream};

use super::Failure;
use super::args::PerfArgs;
use super::emulated::Emulator;
use super::operation::Operation;
use super::size::Bytes;
use super::team::Layout;
use crate::registered::{self, registry};

/// Rounds, of which the median counts.
const ROUNDS: usize = 7;

/// Why it cannot be done, if that is so.
pub(super) fn refusal(args: &PerfArgs, layout: Layout) -> Option<&'static str> {
    if !args.fit {
        return None;
    }
    if registry().protocols().next().is_none() {
        return Some(
            "--fit: this command has no protocols of other crates (ferroccl_cli::main_with)",
        );
    }
    if args.collective != Operation::AllReduce || layout.processes > 1 || layout.threads > 1 {
        return Some("--fit: it measures all_reduce, by ranks of one thread of one process");
    }
    (layout.world_size() < 2).then_some("--fit: it takes several ranks (-g)")
}

/// What a protocol takes.
#[derive(Clone, Copy, Debug)]
struct Times {
    protocol: ProtocolId,
    /// Microseconds of a call of few bytes, and of one of many.
    us: [f64; 2],
}

/// Measures, and prints the figures.
pub(super) fn run(
    args: &PerfArgs,
    devices: &[Device],
    emulator: Option<&Emulator>,
) -> Result<String, Failure> {
    let algorithm = args.algorithm.unwrap_or(Algorithm::Ring);
    let emulated = emulator.is_some();
    let small = args.min_bytes.unwrap_or(Bytes(8));
    let large = args.max_bytes.unwrap_or(Bytes(if emulated { 64 << 10 } else { 1 << 20 }));
    let sizes = [small, large].map(|bytes| bytes.0.div_ceil(4).max(1) as usize);
    let mut all = Vec::new();
    for protocol in registered::protocols() {
        match Team::new(devices, algorithm, protocol, sizes[1]) {
            Ok(team) => all.push((protocol, team, [Vec::new(), Vec::new()])),
            // An algorithm of another crate need not have kernels in all protocols.
            Err(error) => crate::complain("perf", format_args!("{protocol}: {error}")),
        }
    }
    // The emulator's clock gives the same each time.
    let rounds = if emulated { 1 } else { ROUNDS };
    for round in 0..=rounds {
        for (_, team, times) in &mut all {
            for (count, times) in sizes.iter().zip(times) {
                let time = team.time(*count, if emulated { 1 } else { args.iters }, emulator)?;
                // The first is a warm-up.
                if round > 0 {
                    times.push(time);
                }
            }
        }
    }
    let times: Vec<Times> = all
        .into_iter()
        .map(|(protocol, _, times)| Times { protocol, us: times.map(median) })
        .collect();
    let mut out = format!(
        "# all_reduce of floats by {algorithm}, {} ranks, medians of {rounds} rounds{}\n# {:>10}  {:>12}  {:>12}\n",
        devices.len(),
        if emulator.is_some_and(|e| e.simulated().is_some()) { ", SIMULATED" } else { "" },
        "protocol",
        format!("{small} (us)"),
        format!("{large} (us)"),
    );
    for Times { protocol, us: [few, many] } in &times {
        let _ = writeln!(out, "  {:>10}  {few:>12.2}  {many:>12.2}", protocol.name());
    }
    out.push_str("#\n# As the tuner may reckon with it (Registry):\n");
    for own in times.iter().filter(|t| matches!(t.protocol, ProtocolId::Own(_))) {
        match figures(own, &times) {
            Some(ProtocolFigures { like, latency, bandwidth }) => {
                let _ = writeln!(
                    out,
                    ".protocol_figures::<{}>(ProtocolFigures {{ like: ProtocolId::{like:?}, latency: {latency:.2}, bandwidth: {bandwidth:.2} }})",
                    own.protocol
                );
            }
            None => {
                let _ = writeln!(
                    out,
                    "# {}: the large size takes no longer than the small one; take a larger one (-e)",
                    own.protocol
                );
            }
        }
    }
    Ok(out)
}

/// The figures of a protocol beside the one of the library's that it is most like. `None` where the sizes do not tell.
fn figures(own: &Times, all: &[Times]) -> Option<ProtocolFigures> {
    let bytes = |times: &Times| times.us[1] - times.us[0];
    let beside = |other: &Times| {
        let (latency, bandwidth) = (own.us[0] / other.us[0], bytes(other) / bytes(own));
        ProtocolFigures { like: other.protocol, latency, bandwidth }
    };
    let far = |f: &ProtocolFigures| f.latency.ln().abs() + f.bandwidth.ln().abs();
    let librarys = all.iter().filter(|times| !matches!(times.protocol, ProtocolId::Own(_)));
    let possible = librarys.map(beside).filter(ProtocolFigures::are_possible);
    possible.min_by(|a, b| far(a).total_cmp(&far(b)))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Ranks that use one protocol.
struct Team {
    ranks: Vec<Communicator>,
    streams: Vec<Stream>,
    buffers: Vec<DeviceBuffer<f32>>,
}

impl Team {
    fn new(
        devices: &[Device],
        algorithm: Algorithm,
        protocol: ProtocolId,
        count: usize,
    ) -> ferroccl::Result<Self> {
        let mut config = CommConfig::default();
        (config.algorithm, config.protocol) = (Some(algorithm), Some(protocol));
        config.registry = registry().clone();
        let ranks = Communicator::init_all_on(devices, &config)?;
        let streams = devices.iter().map(Device::stream).collect::<ferroccl::Result<_>>()?;
        let buffers = devices.iter().map(|device| device.alloc(count));
        Ok(Team { ranks, streams, buffers: buffers.collect::<ferroccl::Result<_>>()? })
    }

    /// Microseconds of a call.
    fn time(&self, count: usize, calls: u32, emulator: Option<&Emulator>) -> ferroccl::Result<f64> {
        if let Some(emulator) = emulator {
            emulator.reset();
        }
        let begun = Instant::now();
        for _ in 0..calls {
            for ((rank, stream), buffer) in self.ranks.iter().zip(&self.streams).zip(&self.buffers)
            {
                let buffer = buffer.slice(0..count);
                rank.all_reduce(&buffer, &buffer, ReduceOp::Sum, stream)?;
            }
        }
        self.streams.iter().try_for_each(Stream::synchronize)?;
        let seconds = emulator.and_then(Emulator::simulated);
        let seconds = seconds.unwrap_or_else(|| begun.elapsed().as_secs_f64());
        Ok(seconds * 1e6 / f64::from(calls))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protocol_is_like_the_one_whose_times_are_near() {
        let times = |protocol, few: f64, many: f64| Times { protocol, us: [few, many] };
        let own = times(ProtocolId::own(0, "LL64"), 6.0, 56.0);
        let all = [
            times(ProtocolId::Ll, 5.0, 105.0),
            times(ProtocolId::Ll128, 8.0, 48.0),
            times(ProtocolId::Simple, 20.0, 40.0),
            own,
        ];
        let found = figures(&own, &all).unwrap();
        assert_eq!((found.like, found.latency, found.bandwidth), (ProtocolId::Ll128, 0.75, 0.8));
        let flat = times(ProtocolId::own(0, "LL64"), 6.0, 6.0);
        assert_eq!(figures(&flat, &all), None);
    }
}
