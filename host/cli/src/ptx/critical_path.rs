//! `ferroccl ptx critical-path`

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use ferroccl::runtime::ptx::{LaunchSpan, MachineModel, Options, PathStep, PtxRuntime};
use ferroccl::{
    Algorithm, CommConfig, Communicator, Device, DeviceBuffer, ProtocolId, ReduceOp, Stream,
};
use ferroccl_ptx::emu::Lockstep;
use serde_json::json;

use super::Failure;
use super::run::LaunchArgs;
use crate::critical_path::{Origins, Summary, microseconds, trace};
use crate::perf::{Bytes, Operation, one_of};
use crate::registered::{self, registry};

const AFTER_HELP: &str = "\
All times are SIMULATED: of the emulator's clock, on a machine of which a table says what things take \
(ferroccl ptx models). A launch is not part of them; it is shown apart.

With -o the waits of all warps of all blocks and GPUs are written as a trace, a track for each warp: open it in \
ui.perfetto.dev or chrome://tracing.

Examples:
  ferroccl ptx critical-path all_reduce --ranks 8 --size 8 --algo ring --proto ll
  ferroccl ptx critical-path all_reduce --size 1M --model a100 -o trace.json
  ferroccl ptx critical-path --file add.ptx --kernel add --threads 64 --arg f32[128] --arg u32=128";

/// Show where the simulated time of a call goes: what its last warp waited for, and who that waited for
///
/// The call is a collective of floats, out of place; or with --file any kernel.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub(super) struct CriticalPathArgs {
    /// The collective: all_reduce, all_gather, reduce_scatter, broadcast, reduce
    #[arg(value_parser = one_of::<Operation>(), required_unless_present = "file", conflicts_with = "file")]
    collective: Option<Operation>,
    /// The machine: a name, or a file (ferroccl ptx models)
    #[arg(long, value_name = "MACHINE", value_parser = crate::model::find, default_value = "h100-nvlink")]
    model: MachineModel,
    /// Ranks; they take the machine's GPUs in turn
    #[arg(short = 'g', long, value_name = "N", default_value_t = 2, conflicts_with = "file",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: u32,
    /// Bytes of a rank's largest buffer: a number, or of K, M
    #[arg(short, long, value_name = "SIZE", default_value = "8", conflicts_with = "file")]
    size: Bytes,
    /// The algorithm, instead of what the tuner takes
    #[arg(long, value_parser = one_of::<Algorithm>(), ignore_case = true, conflicts_with = "file")]
    algo: Option<Algorithm>,
    /// The protocol, instead of what the tuner takes
    #[arg(long, value_parser = one_of::<ProtocolId>(), ignore_case = true, conflicts_with = "file")]
    proto: Option<ProtocolId>,
    /// Register the buffers as windows, so that calls may be direct
    #[arg(short = 'R', long, conflicts_with = "file")]
    windows: bool,
    /// Calls before the one that is shown; the first one of a communicator opens its connections
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "file")]
    warmup: u32,
    /// The kernel of the file, or a part of its name
    #[arg(long, value_name = "KERNEL", requires = "file")]
    kernel: Option<String>,
    #[command(flatten)]
    launch: LaunchArgs,
    /// Print as JSON: the path with all its steps, and what it comes to
    #[arg(long)]
    json: bool,
    /// Write all waits of all warps as a trace
    #[arg(short, long = "output", value_name = "FILE")]
    output: Option<PathBuf>,
}

/// What has run.
struct Traced {
    what: String,
    span: LaunchSpan,
    path: Vec<PathStep>,
    waits: Vec<PathStep>,
    origins: Origins,
}

pub(super) fn run(args: &CriticalPathArgs) -> Result<(), Failure> {
    let mut traced = match args.collective {
        Some(collective) => call(args, collective)?,
        None => kernel(args)?,
    };
    let summary = Summary::of(&traced.path, &mut traced.origins);
    let Traced { what, span, path, waits, mut origins } = traced;
    if let Some(to) = &args.output {
        let all = trace::document(&args.model, span.start, (&path, &waits), &mut origins);
        let text = serde_json::to_vec(&all)?;
        crate::output_file::write(to, &text)
            .map_err(|source| Failure::File { path: to.clone(), source })?;
    }
    let model = &args.model;
    let (whole, launch) = (microseconds(span.end - span.start), model.timing.launch_ns);
    let out = if args.json {
        let step = |step: &PathStep| {
            json!({
                "gpu": step.gpu, "block": step.site.block, "warp": step.site.warp,
                "what": step.spent.words(), "kernel": step.site.kernel,
                "source": origins.of(&step.site).map(|o| o.line.clone()).or(step.site.source.clone()),
                "instruction": step.site.text, "ptx_line": step.site.position.line,
                "start_us": microseconds(step.start - span.start),
                "end_us": microseconds(step.end - span.start),
            })
        };
        let steps: Vec<_> = path.iter().map(step).collect();
        let all = json!({
            "version": 1, "simulated": true, "model": model.name, "call": what, "us": whole,
            "launch_us": f64::from(launch) / 1000.0, "critical_path": summary, "steps": steps,
        });
        serde_json::to_string_pretty(&all)? + "\n"
    } else {
        let mut out = format!("{what}, SIMULATED on {}: {whole:.2} us", model.name);
        let _ = writeln!(out, ", without the {launch} ns of a launch\n");
        summary.write(&mut out, "", "critical path");
        out
    };
    io::stdout().lock().write_all(out.as_bytes())?;
    Ok(())
}

fn options() -> Options {
    Options { trace: true, ..Options::plain() }
}

/// A kernel of a file, on the machine's first GPU.
fn kernel(args: &CriticalPathArgs) -> Result<Traced, Failure> {
    let ready = args.launch.prepare(args.kernel.as_deref())?;
    let options = Options { clock: Some(args.model.timing), ..options() };
    let mut schedule = Lockstep::new(options);
    schedule.start(&ready.grid);
    schedule.run()?;
    let span = schedule.launch_span(ready.grid.number()).unwrap_or_default();
    let (path, waits) = (schedule.critical_path(span.start), schedule.waits(span.start));
    let origins = Origins::of_text(&ready.name, &ready.text);
    Ok(Traced { what: ready.name, span, path, waits, origins })
}

/// A call of a collective on all ranks, after others that are not looked at.
fn call(args: &CriticalPathArgs, collective: Operation) -> Result<Traced, Failure> {
    let own = !registered::texts().is_empty();
    if let Some(why) = ferroccl::ptx::unavailable().filter(|_| !own) {
        return Err(Failure::NoPtx(why));
    }
    let runtimes = PtxRuntime::simulated_with(args.model.clone(), options()).into_iter();
    let gpus: Vec<_> =
        runtimes.map(|gpu| Ok(Arc::new(gpu.from_env()?))).collect::<ferroccl::Result<_>>()?;
    let devices: Vec<Device> =
        gpus.iter().cycle().take(args.ranks as usize).map(|gpu| Device::new(gpu.clone())).collect();
    let mut config = CommConfig::default();
    (config.algorithm, config.protocol) = (args.algo, args.proto);
    config.registry = registry().clone();
    let ranks = Communicator::init_all_on(&devices, &config)?;
    let count = args.size.0.div_ceil(size_of::<f32>() as u64) as usize;
    let shape = collective.shape(count, ferroccl::DataType::F32, args.ranks);
    let streams = devices.iter().map(Device::stream).collect::<ferroccl::Result<Vec<_>>>()?;
    let buffers = devices
        .iter()
        .map(|device| Ok([device.alloc_shared(shape.send)?, device.alloc_shared(shape.recv)?]));
    let buffers = buffers.collect::<ferroccl::Result<Vec<[DeviceBuffer<f32>; 2]>>>()?;
    for ([send, _], stream) in buffers.iter().zip(&streams) {
        send.copy_from(&vec![1.0; shape.send], stream)?;
    }
    let mut windows = Vec::new();
    for side in 0..if args.windows { 2 } else { 0 } {
        let of_ranks = ranks.iter().zip(buffers.iter().map(|buffers| &buffers[side]));
        windows.extend(Communicator::register_windows(of_ranks)?);
    }
    for warmed in 0..=args.warmup {
        if warmed == args.warmup {
            gpus[0].reset_counts();
        }
        for ((rank, buffers), stream) in ranks.iter().zip(&buffers).zip(&streams) {
            enqueue(collective, rank, buffers, stream)?;
        }
        streams.iter().try_for_each(Stream::synchronize)?;
    }
    let (path, waits) = (gpus[0].critical_path()?, gpus[0].waits()?);
    let span = gpus[0].simulated_span().unwrap_or_default();
    let bytes = shape.largest() * size_of::<f32>();
    let what = format!("{collective} of {bytes} bytes, {} ranks", args.ranks);
    Ok(Traced { what, span, path, waits, origins: Origins::default() })
}

fn enqueue(
    collective: Operation,
    rank: &Communicator,
    [send, recv]: &[DeviceBuffer<f32>; 2],
    stream: &Stream,
) -> Result<(), Failure> {
    match collective {
        Operation::AllReduce => rank.all_reduce(send, recv, ReduceOp::Sum, stream)?,
        Operation::AllGather => rank.all_gather(send, recv, stream)?,
        Operation::ReduceScatter => rank.reduce_scatter(send, recv, ReduceOp::Sum, stream)?,
        Operation::Broadcast => rank.broadcast(send, recv, 0, stream)?,
        Operation::Reduce => rank.reduce(send, recv, ReduceOp::Sum, 0, stream)?,
        other => return Err(Failure::NotTraced(other.to_string())),
    }
    Ok(())
}
