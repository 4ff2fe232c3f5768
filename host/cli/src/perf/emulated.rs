//! The PTX emulator in `ferroccl perf`: its settings, and the figures of a call.
//!
//! The figures are of one call on all ranks. In lockstep, which is the default, they are the same every time
//! and everywhere: they say what the kernels do, not how long it takes. With `--model` the times are simulated: of a clock in the
//! emulator, on a machine of which a table says what things take.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use clap::CommandFactory;
use clap::error::ErrorKind;
use ferroccl::config::Config;
use ferroccl::runtime::ptx::{self, Counts, KernelCounts, Options, PtxRuntime, Unit, WarpSchedule};
use ferroccl::{Device, Error, Result};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::args::PerfArgs;
use super::table::Row;
use super::team::{Layout, Member};
use super::values::{PtxSchedule, RuntimeKind};
use crate::critical_path::{Origins, Summary};
use crate::registered;

/// The emulator that ranks run on.
#[derive(Clone, Debug)]
pub(crate) struct Emulator {
    /// Its GPUs: one, but for a machine of several.
    runtimes: Vec<Arc<PtxRuntime>>,
    /// What is to be printed of critical paths, where they are wanted.
    paths: Option<Arc<Mutex<String>>>,
    schedule: PtxSchedule,
    threads: u32,
}

/// The emulator that the command line asks for; flags that do not go together end the program as clap's own
/// errors do.
pub(crate) fn runtime(args: &PerfArgs, layout: Layout) -> Result<Option<Emulator>> {
    let refuse = |reason: &str| -> ! {
        crate::Cli::command().error(ErrorKind::ArgumentConflict, reason).exit()
    };
    if args.runtime != RuntimeKind::Ptx {
        if args.ptx_schedule.is_some() || args.seed.is_some() || args.checks || args.model.is_some()
        {
            refuse("--ptx-schedule, --seed, --checks and --model are for --runtime ptx");
        }
        return Ok(None);
    }
    let alone = layout.processes == 1 && layout.threads == 1;
    let usual = if alone { PtxSchedule::Lockstep } else { PtxSchedule::Threads };
    let schedule = args.ptx_schedule.unwrap_or(usual);
    let runtimes = match schedule {
        PtxSchedule::Lockstep if !alone => {
            refuse("the lockstep schedule is for ranks of one thread of one process: -g, not -t")
        }
        PtxSchedule::Lockstep => match &args.model {
            Some(model) => PtxRuntime::simulated_with(model.clone(), options(args)),
            None => vec![PtxRuntime::lockstep(options(args))],
        },
        PtxSchedule::Threads if args.model.is_some() => {
            refuse("--model is for the lockstep schedule: ranks of one thread of one process")
        }
        PtxSchedule::Threads if args.seed.is_some() || args.checks => {
            refuse("--seed and --checks are for the lockstep schedule")
        }
        PtxSchedule::Threads => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            vec![PtxRuntime::on_threads(Config::from_env()?.workers.map_or(cores, |n| n as usize))]
        }
    };
    if let Some(why) = ferroccl::ptx::unavailable().filter(|_| registered::texts().is_empty()) {
        let (what, reason) = ("the ptx runtime".to_owned(), why.to_owned());
        return Err(Error::Unavailable { what, reason });
    }
    let threads = Config::from_env()?.ptx_threads;
    let runtimes = runtimes.into_iter().map(|runtime| Ok(Arc::new(runtime.from_env()?)));
    let runtimes = runtimes.collect::<Result<_>>()?;
    let paths = args.critical_path.then(Arc::default);
    Ok(Some(Emulator { runtimes, paths, schedule, threads }))
}

fn options(args: &PerfArgs) -> Options {
    let trace = args.critical_path;
    let plain = Options { trace, ..Options::plain() };
    match (args.checks, args.seed) {
        (false, None) => plain,
        (false, Some(seed)) => Options { seed, schedule: WarpSchedule::Random, ..plain },
        (true, seed) => {
            let checks = Some(ptx::checks(Unit::Line));
            Options { checks, trace, ..Options::seeded(seed.unwrap_or(0)) }
        }
    }
}

impl Emulator {
    /// The devices of so many ranks, in turn.
    pub(crate) fn devices(&self, ranks: u32) -> Vec<Device> {
        let gpus = self.runtimes.iter().cycle().take(ranks as usize);
        gpus.map(|gpu| Device::new(gpu.clone())).collect()
    }

    /// Its figures, which all GPUs share.
    fn figures(&self) -> &PtxRuntime {
        &self.runtimes[0]
    }

    /// Notes where the time of a call has gone, which `what` names.
    pub(crate) fn note_path(&self, what: &str) -> Result<()> {
        if let Some(paths) = &self.paths {
            let path = self.figures().critical_path()?;
            let mut paths = paths.lock().unwrap_or_else(PoisonError::into_inner);
            paths.push_str("#\n");
            Summary::of(&path, &mut Origins::default()).write(&mut paths, "# ", what);
        }
        Ok(())
    }

    /// What was noted of critical paths.
    pub(crate) fn paths(&self) -> String {
        let paths = self.paths.as_ref().map(|paths| paths.lock());
        paths
            .map_or_else(String::new, |paths| paths.unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Seconds that everything has taken since figures were begun, in virtual time.
    pub(crate) fn simulated(&self) -> Option<f64> {
        self.figures().simulated_time().map(|time| time.as_secs_f64())
    }

    /// Begins figures anew.
    pub(crate) fn reset(&self) {
        self.figures().reset_counts();
    }

    /// What stands for the device's name.
    pub(crate) fn name(&self) -> String {
        let arch = ptx::DEFAULT_ARCH;
        format!("[ptx] sm_{arch}, {} threads a block, {}", self.threads, self.schedule)
    }

    /// Starts counting; every thread calls it.
    pub(crate) fn begin(&self, member: &Member) -> Result<()> {
        if member.speaks_for_process() {
            self.figures().reset_counts();
        }
        member.barrier()
    }

    /// The figures of one of `calls` calls, all ranks of all processes together; every thread calls it, when
    /// its ranks are done. A call delivers `delivered` bytes, all ranks together.
    pub(crate) fn end(
        &self,
        member: &Member,
        calls: u64,
        delivered: u64,
    ) -> Result<Option<CallCounts>> {
        member.barrier()?;
        let mut kernel = None;
        let mut sum = Counts::default();
        if member.speaks_for_process() {
            for one in self.figures().counts() {
                let KernelCounts { kernel: name, counts, .. } = one;
                kernel = kernel.or(Some(name));
                sum += counts;
            }
        }
        let mut total = Counts::default();
        for words in member.all_gather(&sum.words())? {
            let words =
                words.try_into().map_err(|_| Error::argument("counts", "of another size"))?;
            total += Counts::from_words(words);
        }
        let counts = Counts::from_words(total.words().map(|n| n / calls.max(1)));
        let moved = (counts.bytes_loaded + counts.bytes_stored) as f64;
        let moved_per_byte = moved / delivered.max(1) as f64;
        Ok(kernel.map(|kernel| CallCounts { kernel, counts, moved_per_byte }))
    }
}

/// What one call came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CallCounts {
    /// What ran.
    pub(crate) kernel: &'static str,
    /// The figures, all ranks together.
    pub(crate) counts: Counts,
    /// Bytes that lanes load from and store to global memory, all ranks together, for each byte that a rank gets.
    pub(crate) moved_per_byte: f64,
}

impl Serialize for CallCounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kernel", self.kernel)?;
        map.serialize_entry("moved_per_byte", &self.moved_per_byte)?;
        for (name, value) in self.counts.iter() {
            map.serialize_entry(name, &value)?;
        }
        map.end()
    }
}

/// The table of figures; `None` where nothing was counted.
pub(crate) fn table(rows: &[Row]) -> Option<String> {
    let mut text = String::from(
        "#\n# Figures of one call, all ranks together. moved: bytes loaded and stored for each byte delivered\n\
         #       size  place  instructions  ld sectors  st sectors   moved  barriers     spins  kernel",
    );
    let mut any = false;
    for row in rows {
        for (place, cell) in [("out", Some(row.out_of_place)), ("in", row.in_place)] {
            let counts = cell.and_then(|cell| cell.counts);
            let Some(CallCounts { kernel, counts: c, moved_per_byte }) = counts else {
                continue;
            };
            any = true;
            let _ = write!(
                text,
                "\n#{:>11}  {place:>5}  {:>12}  {:>10}  {:>10}  {moved_per_byte:>6.2}  {:>8}  {:>8}  {kernel}",
                row.size, c.warp_instructions, c.load_sectors, c.store_sectors, c.barriers, c.spins
            );
        }
    }
    any.then_some(text)
}
