//! `ferroccl perf`: nccl-tests' measurements, with its flags, its table and its checks.
//!
//! ```text
//! args, values  the command line             sweep, size   which sizes
//! team          ranks, processes, threads    data          what goes in and must come out
//! planned       which algorithm, protocol and channels
//! operation     sizes and bandwidths         region      where data lie, and what must be there
//! interrupted   the record of a measurement that goes no further
//! measure       fill, warm up, time, check   iterations    the spread of single iterations
//! table         what a line looks like       report        what is shown and written
//! document      JSON and CSV                 page          the page for a browser
//! recorded      results from before          compare       them beside these
//! limit         the speed of copies        progress      how far it is
//! memory        what it takes                accepted      flags without effect
//! fit           figures for the tuner
//! emulated      the PTX emulator's settings and figures
//! gpus          GPUs: whose they are, their clocks, graphs
//! ```
//!
//! Every thread of every process runs [`measure::run`] in step; the thread of rank 0 also reports. The
//! first thread that fails ends its process: no other can come further than its next barrier.

mod accepted;
mod args;
mod compare;
mod data;
mod document;
mod emulated;
mod fit;
mod gpus;
mod interrupted;
mod iterations;
mod limit;
mod measure;
mod memory;
mod operation;
mod page;
mod planned;
mod progress;
mod recorded;
mod region;
mod report;
pub(crate) mod size;
pub(crate) mod sweep;
mod table;
mod team;
pub(crate) mod values;

use std::any::Any;
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::CommandFactory;
use clap::error::ErrorKind;
use ferroccl::config::Config;
use ferroccl::launcher::RankEnv;
use ferroccl::{CommConfig, Device};

pub(crate) use args::PerfArgs;
use emulated::Emulator;
use measure::SweepEvent;
use memory::ProcessMemory;
pub(crate) use operation::Operation;
use report::{RankInfo, Report};
pub(crate) use size::Bytes;
use sweep::Sweep;
use team::{Layout, Member};
use values::Root;
pub(crate) use values::one_of;

use crate::machine;
use crate::registered::registry;

/// Why a measurement ended early.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Library(#[from] ferroccl::Error),
    /// The same, with what lies at the addresses in it.
    #[error("{0}")]
    Named(String),
    #[error("output: {0}")]
    Output(#[from] io::Error),
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    #[error("a measuring thread panicked: {0}")]
    Panic(String),
}

/// Measures; the exit code says whether all was right.
pub(crate) fn execute(args: &PerfArgs) -> ExitCode {
    let sweep = args.sweep();
    match measure_all(args, sweep) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        // Whoever read the table has seen enough.
        Err(Failure::Output(e)) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Err(failure) => {
            crate::complain("perf", &failure);
            ExitCode::FAILURE
        }
    }
}

/// Measures everything; gives the number of wrong elements that this process knows of.
fn measure_all(args: &PerfArgs, sweep: Sweep) -> Result<u64, Failure> {
    let env = Config::from_env_with(registry())?;
    ferroccl::log::init(&env)?;
    let launched = RankEnv::from_env()?;
    let (process, processes) = launched.as_ref().map_or((0, 1), |env| (env.rank, env.world_size));
    if processes > 1 {
        crate::complain_as(format_args!("rank {process}"));
    }
    // `ferroccl run` has said it for all.
    if process == 0 && std::env::var_os("FERROCCL_UNIQUE_ID").is_none() {
        crate::complain_of_unknown("perf", &env);
    }
    let layout = Layout::new(process, processes, args.threads, args.ranks_per_thread)?;
    let ranks = layout.world_size();
    if let Root::Rank(root) = args.root
        && root >= ranks
    {
        let reason = format!("root {root} (-r) is none of the {ranks} ranks");
        refuse(layout, reason);
    }
    let refused = args.conflict().map(str::to_owned);
    let refused = refused
        .or_else(|| args.collective.refuses(ranks))
        .or_else(|| planned::refusal_of_flags(args));
    let refused = refused.or_else(|| fit::refusal(args, layout).map(str::to_owned));
    if let Some(reason) = refused {
        refuse(layout, reason);
    }
    let emulator = emulated::runtime(args, layout)?;
    let devices = gpus::devices(args, layout)?;
    let devices = devices.unwrap_or_else(|| {
        let ranks = layout.local_ranks();
        let emulated = emulator.as_ref().map(|emulator| emulator.devices(ranks));
        emulated.unwrap_or_else(|| vec![Device::cpu(); ranks as usize])
    });
    if args.fit {
        let figures = fit::run(args, &devices, emulator.as_ref())?;
        io::stdout().lock().write_all(figures.as_bytes())?;
        return Ok(0);
    }
    let mut config = CommConfig::default();
    config.protocol = args.protocol;
    config.algorithm = args.algorithm;
    config.channels = args.channels;
    config.registry = registry().clone();
    config.timeout = (args.timeout > 0).then(|| Duration::from_secs(args.timeout.into()));
    let processes = team::processes(launched.as_ref(), &env)?;
    let parallel = args.parallel_init;
    let before = memory::resident();
    let comms = team::connect(layout, processes.as_ref(), &devices, &env, &config, parallel)?;
    if let Some(comm) = comms.first() {
        if let Some(reason) = planned::refusal(args, &env, sweep, comm) {
            // Processes that are still joining must not find that another has gone.
            if let Some(processes) = &processes {
                processes.barrier().map_err(ferroccl::Error::from)?;
            }
            refuse(layout, reason);
        }
        if layout.process == 0 {
            let unused = planned::unused_filters(args, &env, sweep, comm);
            unused.iter().for_each(|words| crate::complain("perf", words));
        }
    }
    let memory = ProcessMemory::connected(before, layout.local_ranks());
    let team = Member::team(layout, comms, processes)?;

    let report = interrupted::Shared::default();
    if layout.process == 0 && args.writes_files() {
        interrupted::watch(&report).map_err(Failure::Thread)?;
    }
    let (outcomes, outcome) = mpsc::channel();
    for member in team {
        let (args, emulator, outcomes) = (args.clone(), emulator.clone(), outcomes.clone());
        let (env, report) = (env.clone(), report.clone());
        let work = move || {
            let emulator = emulator.as_ref();
            let work = AssertUnwindSafe(|| {
                measure_as(&member, &args, &env, emulator, sweep, memory, &report)
            });
            let result =
                catch_unwind(work).unwrap_or_else(|panic| Err(Failure::Panic(words(&*panic))));
            let result = result.map_err(|failure| named(failure, &member));
            // Nobody listens any more once another thread has failed.
            let _ = outcomes.send(result);
        };
        thread::Builder::new().name("perf".into()).spawn(work).map_err(Failure::Thread)?;
    }
    drop(outcomes);
    // The first failure is returned at once: threads that wait for the failed one never end.
    let outcome = outcome.iter().try_fold(0, |wrong, one| Ok(wrong + one?));
    outcome.inspect_err(|failure: &Failure| report.end_early(&failure.to_string()))
}

/// A failure whose addresses are named by the ranks that know them.
fn named(failure: Failure, member: &Member) -> Failure {
    let Failure::Library(error) = &failure else { return failure };
    let text = error.to_string();
    let named = member.ranks.iter().fold(text.clone(), |named, rank| {
        if named == text { rank.comm.name_addresses(&text) } else { named }
    });
    if named == text { failure } else { Failure::Named(named) }
}

/// Ends the program as a bad command line does. Every process finds the same, and the first one says it.
fn refuse(layout: Layout, reason: String) -> ! {
    if layout.process == 0 {
        let mut command = crate::Cli::command();
        command.build();
        let perf = command.find_subcommand_mut("perf");
        if let Some(perf) = perf {
            perf.error(ErrorKind::ValueValidation, reason).exit();
        }
    }
    std::process::exit(2)
}

/// A thread's part: who is there, then the measurements, reported if it leads.
fn measure_as(
    member: &Member,
    args: &PerfArgs,
    env: &Config,
    emulator: Option<&Emulator>,
    sweep: Sweep,
    memory: ProcessMemory,
    report: &interrupted::Shared,
) -> Result<u64, Failure> {
    let usual =
        || emulator.map_or_else(|| format!("[cpu] {}", machine::cpu_name()), Emulator::name);
    let name = |device: &Device| gpus::name(device).unwrap_or_else(usual);
    let names: Vec<String> = member.ranks.iter().map(|rank| name(rank.comm.device())).collect();
    let ranks = introduce(member, &names)?;
    if member.leads() {
        *report.lock() = Some(Report::begin(args, env, sweep, (member.layout(), ranks), memory)?);
    }
    let calls = report.lock().as_ref().map(Report::calls).unwrap_or_default();
    measure::run(member, args, emulator, sweep, &calls, &mut |stage| {
        let mut report = report.lock();
        let Some(report) = report.as_mut() else { return Ok(()) };
        match stage {
            SweepEvent::Begin(bytes) => report.begin_size(bytes),
            SweepEvent::Row(row) => report.row(*row)?,
        }
        Ok::<(), Failure>(())
    })?;
    if !member.leads() {
        return Ok(0);
    }
    let mut report = report.lock();
    let wrong = report.take().map_or(Ok(0), |report| report.end().map_err(Failure::from))?;
    let paths = emulator.map_or_else(String::new, Emulator::paths);
    if !paths.is_empty() {
        let head = "# Critical paths (SIMULATED): what would have to be faster for the calls to end sooner";
        let text = format!("{head}\n{paths}");
        match &args.json {
            // A document on standard output is alone there.
            Some(file) if file.as_os_str() == "-" => {
                io::stderr().lock().write_all(text.as_bytes())?;
            }
            _ => io::stdout().lock().write_all(text.as_bytes())?,
        }
    }
    Ok(wrong)
}

/// Bytes in which a thread introduces each of its ranks to the others: its process, host and device.
const CARD: usize = 256;

/// Who the ranks are.
fn introduce(member: &Member, devices: &[String]) -> Result<Vec<RankInfo>, Failure> {
    let layout = member.layout();
    let words: Vec<u64> = devices
        .iter()
        .flat_map(|device| {
            let mut card = format!("{}\n{}\n{device}", std::process::id(), machine::host_name());
            card.truncate(card.floor_char_boundary(CARD));
            let mut words = [0u64; CARD / 8];
            bytemuck::cast_slice_mut(&mut words)[..card.len()].copy_from_slice(card.as_bytes());
            words
        })
        .collect();
    let threads = member.all_gather(&words)?;
    let cards = threads.iter().flat_map(|cards| cards.chunks(CARD / 8));
    let ranks = cards.zip(0u32..).map(|(card, rank)| {
        let text = String::from_utf8_lossy(bytemuck::cast_slice(card));
        let mut lines = text.trim_end_matches('\0').splitn(3, '\n').map(str::to_owned);
        let mut line = || lines.next().unwrap_or_default();
        let (pid, host, name) = (line().parse().unwrap_or(0), line(), line());
        RankInfo { rank, pid, host, device: rank % layout.local_ranks(), name }
    });
    Ok(ranks.collect())
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
