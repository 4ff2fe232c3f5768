//! All waits as a trace that Perfetto and Chrome read: a process for each GPU, a track for each warp, and one for the critical path.
//!
//! The format: "Trace Event Format", of the Catapult project: complete events (`X`) with microseconds, and names of processes and
//! threads as metadata (`M`).

use std::collections::BTreeMap;

use ferroccl::runtime::ptx::{MachineModel, PathStep};
use serde_json::{Value, json};

use super::{Origins, microseconds};

/// The process that stands for the critical path: above all GPUs.
const PATH: u32 = 1 << 20;

/// The trace of a run that begins at `start` picoseconds. Its launch comes first, as long as the model says.
pub(crate) fn document(
    model: &MachineModel,
    start: u64,
    (path, waits): (&[PathStep], &[PathStep]),
    origins: &mut Origins,
) -> Value {
    let launch = f64::from(model.timing.launch_ns) / 1000.0;
    let mut events = Vec::new();
    // By GPU, launch, block and warp.
    let mut tracks: BTreeMap<(u32, u64, u32, u32), usize> = BTreeMap::new();
    let of = |step: &PathStep| (step.gpu, step.site.launch, step.site.block, step.site.warp);
    waits.iter().chain(path).for_each(|step| {
        tracks.insert(of(step), 0);
    });
    for (number, (&(gpu, launch_number, block, warp), track)) in tracks.iter_mut().enumerate() {
        *track = number + 1;
        let name = format!("launch {launch_number}, block {block}, warp {warp}");
        events.push(named("thread_name", gpu, *track, &name));
    }
    let mut gpus: Vec<u32> = tracks.keys().map(|(gpu, ..)| *gpu).collect();
    gpus.dedup();
    for gpu in gpus {
        events.push(named(
            "process_name",
            gpu,
            0,
            &format!("GPU {gpu} ({}, simulated)", model.name),
        ));
        events.push(named("thread_name", gpu, 0, "launch (a figure of the model)"));
        events.push(
            json!({ "ph": "X", "pid": gpu, "tid": 0, "ts": 0.0, "dur": launch, "name": "launch" }),
        );
    }
    events.push(named("process_name", PATH, 0, "critical path (simulated)"));
    let mut event = |step: &PathStep, pid: u32, tid: usize| {
        let origin = origins.of(&step.site);
        let source = origin.as_ref().map(|o| o.line.clone()).or(step.site.source.clone());
        json!({
            "ph": "X", "pid": pid, "tid": tid, "name": step.spent.words(),
            "ts": launch + microseconds(step.start - start), "dur": microseconds(step.end - step.start),
            "args": {
                "gpu": step.gpu, "block": step.site.block, "warp": step.site.warp,
                "kernel": step.site.kernel, "source": source,
                "inlined_through": origin.map(|o| o.calls.clone()).unwrap_or_default(),
                "instruction": step.site.text, "ptx_line": step.site.position.line,
            },
        })
    };
    events.extend(waits.iter().map(|step| event(step, step.gpu, tracks[&of(step)])));
    events.extend(path.iter().map(|step| event(step, PATH, 0)));
    json!({
        "displayTimeUnit": "ns",
        "otherData": { "simulated": true, "model": model.name, "ferroccl": env!("CARGO_PKG_VERSION") },
        "traceEvents": events,
    })
}

fn named(what: &str, pid: u32, tid: usize, name: &str) -> Value {
    json!({ "ph": "M", "pid": pid, "tid": tid, "name": what, "args": { "name": name } })
}
