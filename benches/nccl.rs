//! Our all-reduce beside NCCL's own kernels, both in simulated time: the same emulator, clock and machine.
//!
//! ```text
//! scripts/nccl-kernels bench                              all of it, some 20 minutes
//! scripts/nccl-kernels bench --ranks 2 --bytes 8,64K      a part
//! scripts/nccl-kernels bench --paths                      what ours and NCCL's wait for, at 8 B and 1 MiB
//! ```
//!
//! NCCL's are the symmetric kernels of its library (`ptx/tests/nccl`), whose PTX is for sm_120, with the blocks that NCCL's model
//! gives them on Hopper. Kernels that copy in bulk are there for comparison: NCCL takes them from sm_100 on, and when asked to.
//! Ours are what the tuner chooses, and the best of ring, tree, one-shot and two-shot in each protocol, and of direct; all on buffers
//! that are registered as windows, as NCCL's are. Each time is of a second call,
//! without launches. **All times are simulated**: no GPU has confirmed them.

#[path = "../ptx/tests/nccl/symmetric.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod symmetric;

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Parser;
use ferroccl::runtime::ptx::{MachineModel, Options, PathStep, PtxRuntime, totals};
use ferroccl::{Algorithm, CommConfig, Communicator, Device, ProtocolId, ReduceOp, ptx};
use ferroccl_ptx::emu::Program;

use symmetric::{Call, Group, MAX_BLOCKS, TMA_SHARED};

/// Compares all-reduce kernels in simulated time.
#[derive(Parser)]
struct Args {
    /// Numbers of ranks
    #[arg(long, value_delimiter = ',', default_value = "2,4,8")]
    ranks: Vec<u32>,
    /// Sizes: bytes, or with K or M
    #[arg(long, value_delimiter = ',', value_parser = size, default_value = "8,1K,16K,64K,256K,1M,4M,16M,64M")]
    bytes: Vec<usize>,
    /// Above this size our protocols and algorithms are not all tried, but only what the tuner chooses
    #[arg(long, value_parser = size, default_value = "1M")]
    all_up_to: usize,
    /// The critical paths of both instead of the table
    #[arg(long)]
    paths: bool,
    /// The machine whose GPUs are simulated
    #[arg(long, default_value = "h100-nvlink")]
    model: String,
    /// The folder with NCCL's PTX, if not FERROCCL_NCCL_PTX says it
    #[arg(long)]
    kernels: Option<PathBuf>,
    /// What cargo passes; it changes nothing
    #[arg(long, hide = true)]
    bench: bool,
}

fn size(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    digits.parse::<usize>().map(|n| n * unit).map_err(|e| format!("{text}: {e}"))
}

fn named(bytes: usize) -> String {
    match bytes {
        b if b >= 1 << 20 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

/// A kernel of NCCL's: its name without type, and whether a switch reduces or sends to all.
const KERNELS: [(&str, bool); 5] = [
    ("AGxLL_R", false),
    ("AGxLLMC_R", true),
    ("RSxLD_AGxST", false),
    ("RSxLDMC_AGxSTMC", true),
    ("RSxTmaLD_AGxTmaST", false),
];

/// A simulated time in microseconds, what was waited for, and how the call is done.
struct Timed {
    time: f64,
    path: Vec<PathStep>,
    how: String,
}

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let args = Args::parse();
    if let Some(why) = ptx::unavailable() {
        return Err(format!("this build has no PTX: {why}").into());
    }
    let model =
        MachineModel::find(&args.model).ok_or_else(|| format!("no model {}", args.model))?;
    let named = args.kernels.clone().or(std::env::var_os("FERROCCL_NCCL_PTX").map(PathBuf::from));
    let Some(folder) = named else {
        // Benches are run by `cargo bench` as a whole, too.
        println!("# not run: NCCL's kernels are not here (scripts/nccl-kernels bench)");
        return Ok(());
    };
    let nccl = Nccl::load(&folder)?;
    println!(
        "All-reduce, f32 sum, out of place, on the model {}: **simulated** microseconds of a second call,",
        args.model
    );
    println!("without launches.");
    if args.paths { paths(&args, &model, &nccl) } else { table(&args, &model, &nccl) }
}

fn table(args: &Args, model: &MachineModel, nccl: &Nccl) -> Outcome<()> {
    println!();
    print!("| ranks | size |");
    KERNELS.iter().for_each(|(name, _)| print!(" NCCL {name} |"));
    println!(
        " NCCL's best | ours, chosen | chosen | ours, best | best | ours, best / NCCL's best |"
    );
    println!("|--:|--:|{}--:|--:|---|--:|---|--:|", "--:|".repeat(KERNELS.len()));
    for &ranks in &args.ranks {
        for &bytes in &args.bytes {
            let mut row = format!("| {ranks} | {} |", named(bytes));
            let mut best = f64::INFINITY;
            for (name, switches) in KERNELS {
                if large(bytes, name) {
                    row.push_str(" - |");
                    continue;
                }
                let timed = nccl.run(name, ranks, bytes, model, false)?;
                // Bulk copies are not what NCCL does on Hopper, nor switches for two ranks (`hasLsaMultimem`).
                if !name.contains("Tma") && (ranks > 2 || !switches) {
                    best = best.min(timed.time);
                }
                let _ = write!(row, " {:.2} ({}) |", timed.time, timed.how);
            }
            let chosen = ours(ranks, bytes, model, None, false)?;
            let mut ours_best = (chosen.time, chosen.how.clone());
            if bytes <= args.all_up_to {
                for choice in choices() {
                    let Ok(timed) = ours(ranks, bytes, model, Some(choice), false) else {
                        continue;
                    };
                    if timed.time < ours_best.0 {
                        ours_best = (timed.time, timed.how);
                    }
                }
            }
            let _ = write!(
                row,
                " {best:.2} | {:.2} | {} | {:.2} | {} | {:.2} |",
                chosen.time,
                chosen.how,
                ours_best.0,
                ours_best.1,
                ours_best.0 / best
            );
            println!("{row}");
        }
    }
    Ok(())
}

/// Whether a call is too large for a kernel of lines with flags, which is made for small ones.
fn large(bytes: usize, kernel: &str) -> bool {
    bytes > 1 << 20 && kernel.contains("LL")
}

fn choices() -> impl Iterator<Item = (Algorithm, ProtocolId)> {
    use Algorithm::{Direct, Nvls, OneShot, Ring, Tree, TwoShot};
    let algorithms = [Ring, Tree, OneShot, TwoShot, Direct, Nvls];
    let all = algorithms.into_iter().flat_map(|a| ProtocolId::ALL.iter().map(move |&p| (a, p)));
    // NCCL's kernels over the mesh are of lines, and what is direct is not.
    all.filter(|(a, p)| match a {
        OneShot | TwoShot => *p != ProtocolId::Simple,
        Direct | Nvls => *p == ProtocolId::Simple,
        _ => true,
    })
}

fn paths(args: &Args, model: &MachineModel, nccl: &Nccl) -> Outcome<()> {
    for &ranks in &args.ranks {
        for &bytes in &args.bytes {
            println!("\n## {ranks} ranks, {}\n", named(bytes));
            println!("| kernel | time | the critical path, longest part first |");
            println!("|---|--:|---|");
            for (name, _) in KERNELS {
                if large(bytes, name) {
                    continue;
                }
                show(&format!("NCCL {name}"), &nccl.run(name, ranks, bytes, model, true)?);
            }
            for (algorithm, protocol) in choices() {
                let timed = ours(ranks, bytes, model, Some((algorithm, protocol)), true)?;
                show(&format!("ours, {}", timed.how), &timed);
            }
        }
    }
    Ok(())
}

fn show(name: &str, timed: &Timed) {
    let parts = totals(&timed.path).into_iter().take(6).map(|(spent, times, time)| {
        format!("{} {:.2} in {times}", spent.words(), time as f64 / 1e6)
    });
    println!("| {name} | {:.2} | {} |", timed.time, parts.collect::<Vec<_>>().join("; "));
}

/// NCCL's all-reduce kernels.
struct Nccl(Vec<(&'static str, Arc<Program>)>);

impl Nccl {
    fn load(folder: &Path) -> Outcome<Self> {
        let mut kernels = Vec::new();
        let folder_of = |e| format!("{}: {e}", folder.display());
        for entry in std::fs::read_dir(folder).map_err(folder_of)? {
            let text = std::fs::read_to_string(entry?.path())?;
            for (name, _) in KERNELS {
                let part = format!("DevKernel_AllReduce_{name}_sum_f32");
                let line = text.lines().find(|l| l.contains(".entry ") && l.contains(&part));
                if let Some(entry) = line.and_then(|line| line.rsplit(' ').next()) {
                    let program = Program::load(&text, entry.trim_end_matches('('))?;
                    kernels.push((name, Arc::new(program)));
                }
            }
        }
        if kernels.len() < KERNELS.len() {
            return Err(format!("{}: not all kernels are there", folder.display()).into());
        }
        Ok(Nccl(kernels))
    }

    fn run(
        &self,
        name: &str,
        ranks: u32,
        bytes: usize,
        model: &MachineModel,
        trace: bool,
    ) -> Outcome<Timed> {
        let program = self.0.iter().find(|(of, _)| *of == name);
        let (_, program) = program.ok_or_else(|| format!("no kernel {name}"))?;
        let mut group = Group::new(ranks, bytes, bytes)?;
        for rank in 0..ranks {
            group.set_input(rank, &1.0f32.to_le_bytes().repeat(bytes / 4));
        }
        let shared = if name.contains("Tma") { TMA_SHARED } else { 0 };
        let blocks = blocks(name, ranks, bytes);
        let call = Call { count: bytes / 4, element: 4, blocks, shared, scalar: 0 };
        let options = Options { trace, ..Options::simulated(model.timing) };
        group.run(program, &call, options).map_err(|e| e.to_string())?;
        let ran = group.run(program, &call, options).map_err(|e| e.to_string())?;
        let sum = (ranks as f32).to_le_bytes();
        if group.output(0, bytes).chunks_exact(4).any(|got| got != sum) {
            return Err(format!("{name}: a wrong sum").into());
        }
        let end = ran.spans.iter().map(|span| span.end).max().unwrap_or(0);
        Ok(Timed { time: end as f64 / 1e6, path: ran.path, how: ran.blocks.to_string() })
    }
}

/// How many blocks NCCL gives a kernel on Hopper: the fewest with which its model is within 2.5 % of the most (NCCL 2.30.7,
/// sym_kernels.cc: `queryModel_lsa`, whose figures these are; 64 channels at most, 16 GPUs' worth of heads for switches).
fn blocks(kernel: &str, ranks: u32, bytes: usize) -> u32 {
    const GB: f64 = (1u64 << 30) as f64 / 1e6;
    let (n, bytes) = (f64::from(ranks), bytes as f64);
    let (bus, multiplier, most) = match kernel {
        "AGxLL_R" => (n * bytes * 9.0, 1.0, MAX_BLOCKS),
        "AGxLLMC_R" => (n * bytes * 9.0, 1.1, MAX_BLOCKS),
        "RSxLDMC_AGxSTMC" => (bytes / n + bytes, n, 16u32.div_ceil(ranks)),
        _ => (2.0 * bytes * (n - 1.0) / n, 1.0, MAX_BLOCKS),
    };
    let base = if kernel.contains("LL") { 4.5 } else { 7.8 };
    let (each, peak) = (65.0 * GB, if kernel == "RSxLDMC_AGxSTMC" { 480.0 } else { 320.0 } * GB);
    let time = |blocks: u32| {
        // A smooth minimum of what the blocks move and what the links do, and a smooth maximum of 0 and what is beyond a microsecond.
        let moved = f64::from(blocks) * each * multiplier;
        let rate = peak - each * (((peak / each).exp() - 1.0) * (-moved / each).exp()).ln_1p();
        let beyond = bus / rate - 1.0;
        base + if beyond >= 100.0 { beyond } else { beyond.exp().ln_1p() }
    };
    (1..most).find(|blocks| time(*blocks) <= 1.025 * time(most)).unwrap_or(most)
}

/// A call of ours: the tuner's choice, or this one.
fn ours(
    ranks: u32,
    bytes: usize,
    model: &MachineModel,
    choice: Option<(Algorithm, ProtocolId)>,
    trace: bool,
) -> Outcome<Timed> {
    let options = Options { trace, ..Options::plain() };
    let gpus: Vec<_> =
        PtxRuntime::simulated_with(model.clone(), options).into_iter().map(Arc::new).collect();
    let devices: Vec<_> = (0..ranks as usize)
        .map(|rank| Device::new(Arc::clone(&gpus[rank % gpus.len()]) as Arc<_>))
        .collect();
    let mut config = CommConfig::default();
    (config.algorithm, config.protocol) = choice.unzip();
    let group = Communicator::init_all_on(&devices, &config)?;
    let data = vec![1.0f32; bytes / 4];
    let mut members = Vec::new();
    for (rank, device) in group.iter().zip(&devices) {
        members.push((
            rank,
            device.stream()?,
            device.alloc_shared::<f32>(data.len())?,
            device.alloc_shared::<f32>(data.len())?,
        ));
    }
    let mut windows = Vec::new();
    for (_, stream, send, _) in &members {
        send.copy_from(&data, stream)?;
    }
    let sends = members.iter().map(|(rank, _, send, _)| (*rank, send));
    windows.extend(Communicator::register_windows(sends)?);
    let receives = members.iter().map(|(rank, _, _, recv)| (*rank, recv));
    windows.extend(Communicator::register_windows(receives)?);
    for _ in 0..2 {
        gpus.iter().for_each(|gpu| gpu.reset_counts());
        for (rank, stream, send, recv) in &members {
            rank.all_reduce(send, recv, ReduceOp::Sum, stream)?;
        }
        members.iter().try_for_each(|(_, stream, ..)| stream.synchronize())?;
    }
    let time = gpus[0].simulated_time().ok_or("nothing has run")?;
    let path = gpus[0].critical_path()?;
    let (_, stream, _, recv) = &members[0];
    if recv.to_vec(stream)?.iter().any(|got| *got != ranks as f32) {
        return Err("a wrong sum of ours".into());
    }
    let (collective, data_type) = (ferroccl::Collective::AllReduce, ferroccl::DataType::F32);
    let op = ReduceOp::Sum;
    let call = ferroccl::enqueue::CollectiveCall {
        collective,
        count: data.len(),
        data_type,
        op,
        root: None,
    };
    let plan = group[0].plan_in_windows(&call)?;
    let how = format!("{} {}, {}", plan.algorithm, plan.protocol, plan.channels);
    Ok(Timed { time: time.as_secs_f64() * 1e6, path, how })
}
