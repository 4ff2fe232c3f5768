//! Bugs that a compiler, or an author, could make in a kernel's PTX, put into the kernels of this build: each must be
//! caught by a handful of seeds, and the kernel as it is must pass the same seeds. A test that cannot fail
//! proves nothing.

mod common;
mod skip;

use std::sync::Arc;

use common::Random;
use ferroccl::runtime::ptx::{DEFAULT_ARCH, FaultKind, Options, PtxRuntime, Unit, checks, source};
use ferroccl::{CommConfig, Communicator, Device, Error, ProtocolId, ReduceOp, ptx};

/// Enough for every bug below, and to run them all in a minute.
const SEEDS: u64 = 12;

/// How a run went wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wrong {
    /// The checker says so.
    Fault(&'static str),
    /// A result is wrong.
    Result,
    /// The library says so.
    Error(String),
}

/// Two calls in a row on a small group.
fn run(protocol: ProtocolId, text: &str, unit: Unit, seed: u64) -> Result<(), Wrong> {
    let random = &mut Random(seed);
    let options = Options { checks: Some(checks(unit)), most_steps: 20_000_000, ..Options::seeded(seed) };
    let runtime = PtxRuntime::lockstep(options).with_threads(64).unwrap();
    let runtime = runtime.with_source(&kernel(protocol), text).unwrap();
    let device = Device::new(Arc::new(runtime));
    let mut config = CommConfig::default();
    config.protocol = Some(protocol);
    config.slots = Some(2);
    config.buffer_bytes = [Some(1024); 3];
    config.channels = Some(1);
    let nranks = 2 + random.below(3);
    let ranks = Communicator::init_all_with(&device, nranks as u32, &config).unwrap();
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    for _ in 0..2 {
        let count = 100 + random.below(500);
        let inputs: Vec<Vec<f32>> =
            (0..nranks).map(|_| (0..count).map(|_| random.below(1000) as f32).collect()).collect();
        let buffers: Vec<_> = inputs.iter().map(|input| device.upload(input).unwrap()).collect();
        for r in 0..nranks {
            let (buffer, stream) = (&buffers[r], &streams[r]);
            ranks[r].all_reduce(buffer, buffer, ReduceOp::Sum, stream).map_err(wrong)?;
        }
        for r in 0..nranks {
            let got = buffers[r].to_vec(&streams[r]).map_err(wrong)?;
            let want = |i: usize| inputs.iter().map(|input| input[i]).sum::<f32>();
            if (0..count).any(|i| got[i] != want(i)) {
                return Err(Wrong::Result);
            }
        }
    }
    Ok(())
}

fn wrong(error: Error) -> Wrong {
    match error {
        Error::Emulator(fault) => Wrong::Fault(match fault.kind {
            FaultKind::Race { .. } => "race",
            FaultKind::Divergence(_) => "divergence",
            FaultKind::Barrier(_) => "barrier",
            FaultKind::Deadlock => "deadlock",
            FaultKind::OutOfBounds { .. } => "out of bounds",
            FaultKind::Steps(_) => "steps",
            _ => "another",
        }),
        other => Wrong::Error(other.to_string()),
    }
}

fn kernel(protocol: ProtocolId) -> String {
    format!("all_reduce_ring_{}_sum_float", protocol.name().to_lowercase())
}

#[test]
fn explore() {
    for &protocol in ProtocolId::ALL {
        let text = source(&kernel(protocol), DEFAULT_ARCH).unwrap();
        println!("== {protocol}");
        let show = |name: &str, text: &str| {
            let mut by = std::collections::BTreeMap::new();
            for seed in 0..SEEDS {
                if let Err(w) = run(protocol, text, Unit::Line, seed) { *by.entry(format!("{w:?}")).or_insert(0) += 1; }
            }
            println!("{name}: {by:?}");
        };
        show("as it is", &text);
        for (what, with) in [("st.release.sys", "st.relaxed.sys"), ("ld.acquire.sys", "ld.relaxed.sys"), ("st.release.sys", "st.release.gpu"), ("st.volatile.global", "st.global"), ("ld.volatile.global", "ld.global"), ("bar.warp.sync \t-1;", ""), (", -1;", ", 0x0000ffff;")] {
            show(&format!("all {what} -> {with}"), &text.replace(what, with));
        }
        for what in ["bar.sync", "bar.red", "bar.warp.sync", "st.release", "ld.acquire", "vote.sync", "ld.volatile.global.v2"] {
            let n = text.matches(what).count();
            for i in 0..n {
                let (at, _) = text.match_indices(what).nth(i).unwrap();
                let end = at + text[at..].find('\n').unwrap();
                let inst = &text[at..end];
                let ops: Vec<&str> = inst.split(|c: char| c == ' ' || c == ',' || c == '\t' || c == ';').filter(|s| !s.is_empty()).collect();
                let new = match what {
                    "bar.sync" | "bar.warp.sync" => String::new(),
                    "bar.red" => format!("mov.pred {}, {};", ops[1], ops[3]),
                    "vote.sync" => inst.replace("-1;", "0x0000ffff;"),
                    "st.release" => inst.replace("release", "relaxed"),
                    "ld.acquire" => inst.replace("acquire", "relaxed"),
                    _ => inst.replace("ld.volatile", "ld"),
                };
                let line = text[..at].lines().count();
                show(&format!("{i} line {line} {inst} => {new}"), &format!("{}{new}{}", &text[..at], &text[end..]));
            }
        }
    }
}
