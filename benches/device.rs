//! The primitives on a GPU: `cargo bench --bench device`; `-- hop`, `-- copy` for a part, `-- --quick` for a look.
//! `-- --model FILE` writes a machine for the emulator's clock (`ferroccl perf --runtime ptx --model FILE`): the figures that were
//! measured, marked as that, and those of `--base NAME` (h200-one-gpu) for the rest.
//!
//! Times are the GPU's, between events around a graph of calls, so that no launch of the host is in them; each figure is
//! the median of several rounds. What needs a clock within a kernel is taken from differences instead:
//!
//! | figure | is |
//! |---|---|
//! | a hop | what a ring of 4 ranks takes more than one of 2, by its 4 more hops: 8 bytes, one channel |
//! | a step | what a message of 32 slots takes more than one of 16, by its 16 more slots, on one channel: one send, one receive |
//! | copy loop | the copy of one rank's all-reduce out of place, against the driver's copy on the device |
//! | ring | an all-reduce, against the copies that it cannot do without at the rate of the driver's |
//!
//! In cycles at the most that the multiprocessors' clock does; what it did is for `nvidia-smi` to say.
//! Without a GPU it says what is missing, and is no failure: benches are built everywhere.

use std::process::ExitCode;

use ferroccl::runtime::Settings;
use ferroccl::runtime::cuda::{self, CudaGraph, CudaTimer, GpuInfo};
use ferroccl::runtime::ptx::MachineModel;
use ferroccl::{
    Algorithm, CommConfig, Communicator, Device, DeviceBuffer, ProtocolId, ReduceOp, Result,
    Stream, group,
};

const MIB: usize = 1 << 20;

/// How much of everything.
#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    /// Calls in a graph.
    calls: usize,
    /// Bytes of large buffers.
    large: usize,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    // What cargo and libtest would say.
    let quick = words.iter().any(|word| word == "--quick" || word == "--test");
    let after = |flag: &str| {
        let at = words.iter().position(|word| word == flag)?;
        words.get(at + 1).map(String::as_str)
    };
    let (model, base) = (after("--model"), after("--base"));
    let parts: Vec<&str> = words
        .iter()
        .map(String::as_str)
        .filter(|word| !word.starts_with('-') && Some(*word) != model && Some(*word) != base)
        .collect();
    let base = base.unwrap_or("h200-one-gpu");
    let Some(mut machine) = MachineModel::find(base) else {
        eprintln!("device: --base {base}: there is no such machine");
        return ExitCode::FAILURE;
    };
    let effort = if quick {
        Effort { rounds: 3, calls: 5, large: MIB }
    } else {
        Effort { rounds: 11, calls: 100, large: 256 * MIB }
    };
    let device = match Device::cuda(0) {
        Ok(device) => device,
        Err(error) => {
            println!("# not run: {error}");
            return ExitCode::SUCCESS;
        }
    };
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|p| part.contains(p));
    let done = measure(&device, effort, &wanted, &mut machine)
        .map_err(|error| error.to_string())
        .and_then(|()| model.map_or(Ok(()), |path| write(path, &machine)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("device: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes a machine as a file.
fn write(path: &str, machine: &MachineModel) -> std::result::Result<(), String> {
    let text = serde_json::to_string_pretty(machine).map_err(|error| error.to_string())?;
    std::fs::write(path, text + "\n").map_err(|error| format!("{path}: {error}"))
}

/// Marks a figure of a machine as measured.
fn measured(machine: &mut MachineModel, figure: &str, value: f64, how: &str) -> Result<()> {
    let source = format!("measured on {} by benches/device: {how}", machine.name);
    machine
        .replace(figure, value.round().max(1.0) as u32, &source)
        .map_err(|error| ferroccl::Error::argument("figure", error.to_string()))
}

fn measure(
    device: &Device,
    effort: Effort,
    wanted: &dyn Fn(&str) -> bool,
    machine: &mut MachineModel,
) -> Result<()> {
    let info = cuda::shared(0, &Settings::default())?.info()?;
    println!(
        "# {} (sm_{}, {} multiprocessors, {:.2} GHz), driver of CUDA {}.{}, FerroCCL {}",
        info.name,
        info.compute_capability,
        info.multiprocessors,
        f64::from(info.clock_khz) / 1e6,
        info.driver_version / 1000,
        info.driver_version % 1000 / 10,
        env!("CARGO_PKG_VERSION"),
    );
    machine.name = info.name.clone().into();
    (machine.gpus, machine.sms) = (1, info.multiprocessors);
    machine.capability = info.compute_capability;
    let clock_mhz = f64::from(info.clock_khz) / 1000.0;
    measured(machine, "clock_mhz", clock_mhz, "the most that the driver says")?;
    if wanted("hop") {
        println!("\n| one hop of 8 bytes | us | cycles |\n|---|---|---|");
        for &protocol in ProtocolId::ALL {
            let us = hop(device, effort, protocol)?;
            println!("| {protocol} | {us:.2} | {:.0} |", cycles(&info, us));
        }
    }
    if wanted("step") {
        println!(
            "\n| one step (a slot sent and received) | bytes | us | cycles | GB/s |\n|---|---|---|---|---|"
        );
        for &protocol in ProtocolId::ALL {
            let (us, bytes) = step(device, effort, protocol)?;
            let rate = bytes as f64 / us * 1e-3;
            println!("| {protocol} | {bytes} | {us:.2} | {:.0} | {rate:.1} |", cycles(&info, us));
        }
    }
    if wanted("copy") || wanted("ring") {
        let driver = driver_copy(device, effort)?;
        println!(
            "\n| {} MiB | GB/s copied | of the driver's copy |\n|---|---|---|",
            effort.large / MIB
        );
        println!("| the driver's copy on the device | {driver:.0} | 1.00 |");
        // What is copied is read and written.
        measured(machine, "dram_gbs", 2.0 * driver, "the driver's copy, read and written")?;
        if wanted("copy") {
            let ours = copy_loop(device, effort)?;
            println!("| copy loop | {ours:.0} | {:.2} |", ours / driver);
        }
        if wanted("ring") {
            for ranks in [2, 4, 8] {
                for &protocol in ProtocolId::ALL {
                    let rate = ring(device, effort, ranks, protocol)?;
                    println!(
                        "| ring all-reduce, {ranks} ranks, {protocol} | {rate:.0} | {:.2} |",
                        rate / driver
                    );
                }
            }
        }
    }
    Ok(())
}

fn cycles(info: &GpuInfo, us: f64) -> f64 {
    us * f64::from(info.clock_khz) * 1e-3
}

/// Microseconds of one of `calls` calls that `enqueue` puts into the streams, captured in a graph: the median of rounds.
fn time(effort: Effort, streams: &[&Stream], enqueue: impl Fn() -> Result<()>) -> Result<f64> {
    let graph = CudaGraph::capture(streams, || (0..effort.calls).try_for_each(|_| enqueue()))?;
    let mut times = Vec::new();
    for round in 0..=effort.rounds {
        let timer = CudaTimer::start(streams[0])?;
        graph.launch(streams[0])?;
        timer.stop(streams[0])?;
        streams[0].synchronize()?;
        // The first one warms up.
        if round > 0 {
            times.push(timer.seconds()? * 1e6 / effort.calls as f64);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Ranks on the GPU, with a stream each.
struct Ranks {
    ranks: Vec<Communicator>,
    streams: Vec<Stream>,
}

impl Ranks {
    fn new(device: &Device, n: u32, protocol: ProtocolId, channels: Option<u32>) -> Result<Self> {
        let mut config = CommConfig::default();
        (config.protocol, config.algorithm) = (Some(protocol), Some(Algorithm::Ring));
        config.channels = channels;
        let ranks = Communicator::init_all_with(device, n, &config)?;
        let streams = ranks.iter().map(|_| device.stream()).collect::<Result<_>>()?;
        Ok(Ranks { ranks, streams })
    }

    fn streams(&self) -> Vec<&Stream> {
        self.streams.iter().collect()
    }

    fn all_reduce(&self, effort: Effort, buffers: &[DeviceBuffer<f32>]) -> Result<f64> {
        time(effort, &self.streams(), || {
            for ((rank, buffer), stream) in self.ranks.iter().zip(buffers).zip(&self.streams) {
                rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream)?;
            }
            Ok(())
        })
    }
}

fn hop(device: &Device, effort: Effort, protocol: ProtocolId) -> Result<f64> {
    let of = |n: u32| {
        let ranks = Ranks::new(device, n, protocol, Some(1))?;
        let buffers = (0..n).map(|_| device.alloc(2)).collect::<Result<Vec<_>>>()?;
        ranks.all_reduce(effort, &buffers)
    };
    // A ring has 2 (n - 1) hops.
    Ok((of(4)? - of(2)?) / 4.0)
}

/// Microseconds of a step, and its bytes.
fn step(device: &Device, effort: Effort, protocol: ProtocolId) -> Result<(f64, usize)> {
    let ranks = Ranks::new(device, 2, protocol, Some(1))?;
    let (buffers, slots) = device.runtime().buffers();
    let slot = buffers[protocol.index()] / slots as usize;
    // Without the flags.
    let data = match protocol {
        ProtocolId::Ll => slot / 2,
        ProtocolId::Ll128 => slot / 128 * 120,
        ProtocolId::Simple | ProtocolId::Own(_) => slot,
    };
    let of = |steps: usize| {
        let buffers = [device.alloc::<u8>(steps * data)?, device.alloc::<u8>(steps * data)?];
        time(effort, &ranks.streams(), || {
            group(|| {
                ranks.ranks[0].send(&buffers[0], 1, &ranks.streams[0])?;
                ranks.ranks[1].recv(&buffers[1], 0, &ranks.streams[1])
            })
        })
    };
    Ok(((of(32)? - of(16)?) / 16.0, data))
}

fn driver_copy(device: &Device, effort: Effort) -> Result<f64> {
    let stream = device.stream()?;
    let [from, to] = [device.alloc::<u8>(effort.large)?, device.alloc::<u8>(effort.large)?];
    let us = time(effort, &[&stream], || cuda::copy(&from, &to, &stream))?;
    Ok(effort.large as f64 / us * 1e-3)
}

fn copy_loop(device: &Device, effort: Effort) -> Result<f64> {
    let rank = Ranks::new(device, 1, ProtocolId::Simple, None)?;
    let count = effort.large / size_of::<f32>();
    let [from, to] = [device.alloc::<f32>(count)?, device.alloc::<f32>(count)?];
    let us = time(effort, &rank.streams(), || {
        rank.ranks[0].all_reduce(&from, &to, ReduceOp::Sum, &rank.streams[0])
    })?;
    Ok(effort.large as f64 / us * 1e-3)
}

/// What a ring copies: each rank in each of its 2 (n - 1) steps an n-th of the buffer.
fn ring(device: &Device, effort: Effort, n: u32, protocol: ProtocolId) -> Result<f64> {
    let ranks = Ranks::new(device, n, protocol, None)?;
    let count = effort.large / size_of::<f32>();
    let buffers = (0..n).map(|_| device.alloc::<f32>(count)).collect::<Result<Vec<_>>>()?;
    let fewer = Effort { calls: effort.calls.div_ceil(10), ..effort };
    let us = ranks.all_reduce(fewer, &buffers)?;
    Ok(2.0 * f64::from(n - 1) * effort.large as f64 / us * 1e-3)
}
