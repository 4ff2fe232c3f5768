//! `ferroccl check` and `ferroccl watch`: the all-reduce kernels of other crates that this command has, each with its seeds, its size and
//! its simulated times, beside the library's and beside the last time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use ferroccl::conformance::ProtocolTests;
use ferroccl::device::abi::{Collective, DataType, ReduceOp};
use ferroccl::device::kernels::Row;
use ferroccl::runtime::ptx::{MachineModel, Options, PtxRuntime};
use ferroccl::{Algorithm, CommConfig, Communicator, Device, ProtocolId};
use ferroccl_ptx::cfg::Cfg;
use ferroccl_ptx::syntax::parse;
use serde::{Deserialize, Serialize};

use crate::registered::registry;

/// Check the all-reduce kernels of other crates that this command has: seeds on the CPU, instructions, simulated times
#[derive(Args, Clone, Debug)]
pub(crate) struct CheckArgs {
    /// Seeds of the adversary for each kernel
    #[arg(long, value_name = "N", default_value_t = 50)]
    seeds: u64,
    /// The machine of simulated times
    #[arg(long, value_name = "MACHINE", value_parser = crate::model::find, default_value = "h100-nvlink")]
    model: MachineModel,
    /// Compare with what an earlier check has left in this file, if it is there
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Leave the figures in this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Build and check the crate in this folder at each save
///
/// For a crate with this command of its own: cargo run -- watch
#[derive(Args, Clone, Debug)]
pub(crate) struct WatchArgs {
    /// Seeds of the adversary for each kernel
    #[arg(long, value_name = "N", default_value_t = 50)]
    seeds: u64,
    /// End after the first time, with its exit status
    #[arg(long)]
    once: bool,
}

/// Sizes of simulated calls, in bytes.
const SIZES: [usize; 2] = [8, 64 << 10];
/// Ranks of simulated calls.
const RANKS: usize = 2;

/// What there is to say of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Figures {
    /// PTX instructions.
    instructions: Option<u64>,
    /// Instructions of warps that a call of each size runs, all ranks together.
    run: Vec<u64>,
    /// Simulated microseconds of a call of each size.
    us: Vec<f64>,
}

/// By kernel.
type Saved = BTreeMap<String, Figures>;

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(
        "this command has no all-reduce of floats of another crate: ferroccl_cli::main_with, or `ferroccl new`"
    )]
    Nothing,
    #[error(transparent)]
    Library(#[from] ferroccl::Error),
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("output: {0}")]
    Output(#[from] io::Error),
}

/// Checks; the exit code says whether all was right.
pub(crate) fn execute(args: &CheckArgs) -> ExitCode {
    match check(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // Whoever read the table has seen enough.
        Err(Failure::Output(e)) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Err(failure) => {
            crate::complain("check", &failure);
            ExitCode::FAILURE
        }
    }
}

fn check(args: &CheckArgs) -> Result<bool, Failure> {
    let rows: Vec<&Row> = registry().rows().iter().filter(|row| sums_floats(row)).collect();
    if !rows.iter().any(|row| is_own(row)) {
        return Err(Failure::Nothing);
    }
    let last: Saved = args.against.as_deref().map(read).transpose()?.unwrap_or_default();
    let mut out = io::stdout().lock();
    writeln!(out, "{}", head(&args.model.name))?;
    let (mut now, mut right) = (Saved::new(), true);
    for (row, done) in rows.iter().zip(side_by_side(&rows, |row| {
        let seeds = if is_own(row) { seeds(row, args.seeds) } else { Ok(String::new()) };
        figures(row, &args.model).map(|figures| (figures, seeds))
    })) {
        let (figures, seeds) = done?;
        let name = row.kernel.name;
        let words = seeds.as_ref().map_or("WRONG", String::as_str);
        writeln!(out, "{}", line(name, words, &figures, last.get(name)))?;
        if let Err(why) = seeds {
            right = false;
            writeln!(out, "\n{why}")?;
        }
        now.insert(name.to_owned(), figures);
    }
    if let Some(file) = &args.json {
        let text = serde_json::to_vec_pretty(&now).unwrap_or_default();
        let written = crate::output_file::write(file, &text);
        written.map_err(|error| Failure::File { path: file.clone(), error })?;
    }
    Ok(right)
}

/// What `work` gives for each item, in their order, on as many threads as there are cores.
fn side_by_side<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let take = || {
        // Relaxed: it hands out numbers, and publishes nothing.
        let one = || next.fetch_add(1, Ordering::Relaxed);
        std::iter::repeat_with(one).map_while(|i| Some((i, work(items.get(i)?)))).collect()
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let mut all: Vec<(usize, R)> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(take)).collect();
        let mut all: Vec<(usize, R)> = take();
        // A thread that panicked is a panic here, too.
        all.extend(others.into_iter().flat_map(|other| match other.join() {
            Ok(some) => some,
            Err(panic) => std::panic::resume_unwind(panic),
        }));
        all
    });
    all.sort_by_key(|(i, _)| *i);
    all.into_iter().map(|(_, result)| result).collect()
}

/// Whether it does what is measured here.
fn sums_floats(row: &Row) -> bool {
    let protocol = row.protocol.unwrap_or(ProtocolId::Simple);
    let found = Row::find(
        std::slice::from_ref(row),
        Collective::AllReduce,
        row.algorithm,
        protocol,
        ReduceOp::Sum,
        DataType::F32,
    );
    found.is_some()
}

fn is_own(row: &Row) -> bool {
    matches!(row.algorithm, Algorithm::Own(_)) || matches!(row.protocol, Some(ProtocolId::Own(_)))
}

/// Runs seeds; how many, or what is wrong with the first that is.
fn seeds(row: &Row, most: u64) -> Result<String, String> {
    let line = row.protocol.and_then(|protocol| registry().line_of(protocol)).unwrap_or(0);
    let tests = ProtocolTests::of_row(*row, line as usize);
    let begun = Instant::now();
    let wrong = (0..most).find_map(|seed| Some((seed, tests.under_adversary(seed).err()?)));
    match wrong {
        None => Ok(format!("{most} in {:.1} s", begun.elapsed().as_secs_f64())),
        Some((seed, wrong)) => Err(tests
            .explain(seed + 1)
            .map_or_else(|| format!("seed {seed}: {wrong}"), |why| why.to_string())),
    }
}

/// What the PTX of a kernel is and does; nothing where there is none.
fn figures(row: &Row, model: &MachineModel) -> Result<Figures, Failure> {
    let Some(text) = row.kernel.ptx else { return Ok(Figures::default()) };
    let instructions = parse(text.0).ok().and_then(|module| {
        let entry = module.entries().find(|entry| entry.name.text == row.kernel.name)?;
        Some(Cfg::new(entry).ok()?.code.len() as u64)
    });
    let mut figures = Figures { instructions, ..Figures::default() };
    for bytes in SIZES {
        let gpus = PtxRuntime::simulated_with(model.clone(), Options::plain()).into_iter();
        let gpus: Vec<Arc<PtxRuntime>> = gpus.map(Arc::new).collect();
        let devices: Vec<Device> =
            gpus.iter().cycle().take(RANKS).map(|gpu| Device::new(gpu.clone())).collect();
        let mut config = CommConfig::default();
        (config.algorithm, config.protocol) = (Some(row.algorithm), row.protocol);
        config.registry = registry().clone();
        let ranks = Communicator::init_all_on(&devices, &config)?;
        let streams = devices.iter().map(Device::stream).collect::<ferroccl::Result<Vec<_>>>()?;
        let buffers = devices.iter().map(|device| device.upload(&vec![1.0f32; bytes / 4]));
        let buffers = buffers.collect::<ferroccl::Result<Vec<_>>>()?;
        // The first call opens connections.
        for _ in 0..2 {
            gpus[0].reset_counts();
            for ((rank, stream), buffer) in ranks.iter().zip(&streams).zip(&buffers) {
                rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream)?;
            }
            streams.iter().try_for_each(ferroccl::Stream::synchronize)?;
        }
        let counts = gpus[0].counts();
        figures.run.push(counts.iter().map(|one| one.counts.warp_instructions).sum());
        let time = gpus[0].simulated_time().unwrap_or_default();
        figures.us.push(time.as_secs_f64() * 1e6);
    }
    Ok(figures)
}

/// What an earlier check has left; nothing where there is no file.
fn read(file: &Path) -> Result<Saved, Failure> {
    match std::fs::read(file) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Saved::new()),
        Err(error) => Err(Failure::File { path: file.to_owned(), error }),
    }
}

fn head(model: &str) -> String {
    format!(
        "# all-reduces of floats, sums; seeds on the CPU; PTX of {RANKS} ranks SIMULATED on {model}; (what it was before)\n\
         # {:<44}  {:>14}  {:>14}  {:>20}  {:>20}  {:>16}  {:>16}",
        "kernel", "seeds", "instructions", "run, 8 B", "run, 64 KiB", "8 B (us)", "64 KiB (us)"
    )
}

/// The line of a kernel.
fn line(name: &str, seeds: &str, now: &Figures, last: Option<&Figures>) -> String {
    let counted = |now: Option<u64>, last: Option<u64>| match (now, last) {
        (None, _) => "-".to_owned(),
        (Some(now), Some(last)) if now != last => format!("{now} ({last})"),
        (Some(now), _) => now.to_string(),
    };
    let timed = |now: Option<f64>, last: Option<f64>| match (now, last) {
        (None, _) => "-".to_owned(),
        (Some(now), Some(last)) if (now - last).abs() >= 0.005 => format!("{now:.2} ({last:.2})"),
        (Some(now), _) => format!("{now:.2}"),
    };
    let mut text = format!("  {name:<44}  {seeds:>14}");
    let was = |of: fn(&Figures) -> Option<u64>| last.and_then(of);
    let _ = write!(text, "  {:>14}", counted(now.instructions, was(|f| f.instructions)));
    for i in 0..SIZES.len() {
        let last = last.and_then(|last| last.run.get(i).copied());
        let _ = write!(text, "  {:>20}", counted(now.run.get(i).copied(), last));
    }
    for i in 0..SIZES.len() {
        let last = last.and_then(|last| last.us.get(i).copied());
        let _ = write!(text, "  {:>16}", timed(now.us.get(i).copied(), last));
    }
    text
}

/// Builds and checks at each save.
pub(crate) fn watch(args: &WatchArgs) -> ExitCode {
    // Before the first build: afterwards this file is another.
    let Ok(command) = std::env::current_exe() else {
        crate::complain("watch", "this command does not know where it is");
        return ExitCode::FAILURE;
    };
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| ".".into(), PathBuf::from);
    if !folder.join("Cargo.toml").exists() {
        crate::complain("watch", format_args!("{}: there is no Cargo.toml", folder.display()));
        return ExitCode::FAILURE;
    }
    let file = std::env::temp_dir().join(format!("ferroccl-watch-{}.json", std::process::id()));
    let release = command.components().any(|part| part.as_os_str() == "release");
    let mut seen = None;
    loop {
        let newest = newest(&folder);
        if seen == Some(newest) {
            std::thread::sleep(Duration::from_millis(200));
            continue;
        }
        seen = Some(newest);
        let begun = Instant::now();
        let mut build = std::process::Command::new("cargo");
        build.args(["build", "--quiet"]).current_dir(&folder);
        if release {
            build.arg("--release");
        }
        let mut checking = std::process::Command::new(&command);
        checking.args(["check", "--seeds", &args.seeds.to_string()]);
        checking.arg("--against").arg(&file).arg("--json").arg(&file);
        let good = [build, checking].iter_mut().all(|step| {
            step.status()
                .inspect_err(|error| crate::complain("watch", error))
                .is_ok_and(|s| s.success())
        });
        let seconds = begun.elapsed().as_secs_f64();
        let verdict = if good { "all is right" } else { "NOT right" };
        if writeln!(io::stdout(), "# {verdict} after {seconds:.1} s\n").is_err() {
            return ExitCode::FAILURE; // nobody reads it any more
        }
        if args.once {
            let _ = std::fs::remove_file(&file); // it is a temporary file, and may not be there
            return if good { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
    }
}

/// When a file of a crate's sources was changed last.
fn newest(folder: &Path) -> SystemTime {
    let mut last = SystemTime::UNIX_EPOCH;
    let mut all = vec![folder.join("Cargo.toml"), folder.join("build.rs"), folder.join("src")];
    while let Some(path) = all.pop() {
        let Ok(about) = std::fs::metadata(&path) else { continue };
        if about.is_dir() {
            let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
            all.extend(entries.map(|entry| entry.path()));
        } else {
            last = last.max(about.modified().unwrap_or(SystemTime::UNIX_EPOCH));
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_changed_is_shown_beside_what_it_was() {
        let now = Figures { instructions: Some(10), run: vec![100, 200], us: vec![5.0, 8.25] };
        let last = Figures { instructions: Some(12), us: vec![5.0, 9.0], ..now.clone() };
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let text = line("k", "100 in 0.5 s", &now, Some(&last));
        let wanted =
            ["k", "100", "in", "0.5", "s", "10", "(12)", "100", "200", "5.00", "8.25", "(9.00)"];
        assert_eq!(words(&text), wanted);
        let text = line("k", "", &Figures::default(), None);
        assert_eq!(words(&text), ["k", "-", "-", "-", "-", "-"]);
    }

    #[test]
    fn what_is_done_side_by_side_is_in_order() {
        let items: Vec<usize> = (0..100).collect();
        assert_eq!(
            side_by_side(&items, |i| i * 2),
            items.iter().map(|i| i * 2).collect::<Vec<_>>()
        );
        assert!(side_by_side(&[0; 0], |i| *i).is_empty());
    }

    #[test]
    fn the_newest_source_counts() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(newest(folder.path()), SystemTime::UNIX_EPOCH);
        std::fs::create_dir(folder.path().join("src")).unwrap();
        std::fs::write(folder.path().join("src/a.rs"), "").unwrap();
        assert!(newest(folder.path()) > SystemTime::UNIX_EPOCH);
    }
}
