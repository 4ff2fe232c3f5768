//! Where results go: the table on standard output, JSON, comma-separated values and a page to files, progress on a terminal.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

use ferroccl::config::Config;
use jiff::Timestamp;
use serde::Serialize;

use super::args::PerfArgs;
use super::document::{self, MeasuredOn, PerfDocument};
use super::limit::{self, CopySpeed};
use super::memory::ProcessMemory;
use super::progress::{CallCount, PerfProgress};
use super::recorded::{Measurement, ReadError};
use super::size::Bytes;
use super::sweep::{Step, Sweep};
use super::table::{Row, Summary, TableForm};
use super::team::Layout;
use super::values::{Blocking, RuntimeKind};
use super::{compare, emulated, page};

/// What a size adds to the progress: its bytes, and something for what does not depend on them.
fn effort(bytes: u64) -> u64 {
    bytes.saturating_add(64 << 10).min(1 << 40)
}

/// The error with the path in front.
fn named(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |e| io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

/// Who a rank is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct RankInfo {
    /// Its number.
    pub(crate) rank: u32,
    /// The process it is in.
    pub(crate) pid: u32,
    /// The machine.
    pub(crate) host: String,
    /// Its number among the devices of that machine's process.
    pub(crate) device: u32,
    /// What the device is.
    pub(crate) name: String,
}

/// The one that speaks, in the process of rank 0.
#[derive(Debug)]
pub(crate) struct Report {
    args: PerfArgs,
    env: Config,
    layout: Layout,
    ranks: Vec<RankInfo>,
    rows: Vec<Row>,
    form: TableForm,
    progress: PerfProgress,
    /// When it began.
    began: Timestamp,
    /// What `--compare` names.
    other: Option<Measurement>,
    limit: Option<CopySpeed>,
    memory: ProcessMemory,
}

impl Report {
    /// Opens what is written to; says what will be measured.
    pub(crate) fn begin(
        args: &PerfArgs,
        env: &Config,
        sweep: Sweep,
        (layout, ranks): (Layout, Vec<RankInfo>),
        memory: ProcessMemory,
    ) -> io::Result<Self> {
        // Now, not after an hour of measuring: a path that cannot be written, or read, is an error at once.
        for path in
            args.json_file().into_iter().chain(args.csv.as_deref()).chain(args.report.as_deref())
        {
            crate::output_file::check(path).map_err(named(path))?;
        }
        let other = args.compare.as_deref().map(|path| {
            Measurement::read(path).map_err(|e| match e {
                ReadError::Io(e) => named(path)(e),
                other => named(path)(io::Error::new(io::ErrorKind::InvalidData, other)),
            })
        });
        let other = other.transpose()?;
        let nranks = layout.world_size();
        let work = args.datatype.0.iter().flat_map(|&t| {
            let shapes = args.shapes(sweep, t, nranks);
            shapes.map(move |shape| effort((shape.largest() * t.size()) as u64))
        });
        let times = (args.redops().len() * args.roots(nranks).len()) as u64;
        let work = work.sum::<u64>().saturating_mul(times);
        let cycles = Some(u64::from(args.run_cycles)).filter(|cycles| *cycles > 0);
        let progress = PerfProgress::new(cycles.map(|cycles| work.saturating_mul(cycles)));
        let terminal = console::Term::stdout();
        // A terminal that says how wide it is. Open MPI's is none, and says nothing.
        let size = terminal.size_checked().filter(|_| terminal.is_term());
        let width = size.map(|(_, columns)| usize::from(columns));
        let form = TableForm::new(width, args.per_iter_timing(), args.report_timestamps);
        let (args, env) = (args.clone(), env.clone());
        let (rows, began, limit) = (Vec::new(), Timestamp::now(), None);
        let report =
            Report { args, env, layout, ranks, rows, form, progress, began, other, limit, memory };
        report.say(&report.preamble(sweep))?;
        Ok(report)
    }

    fn preamble(&self, sweep: Sweep) -> String {
        let PerfArgs { iters, agg_iters, warmup_iters, check, cudagraph, .. } = self.args;
        let Layout { threads, per_thread, .. } = self.layout;
        let Sweep { min: Bytes(min), max: Bytes(max), step } = sweep;
        let step = match step {
            Step::Add(Bytes(bytes)) => format!("{bytes}(bytes)"),
            Step::Times(factor) => format!("{factor}(factor)"),
        };
        let validation = u32::from(check > 0);
        let mut text = format!(
            "# nThread {threads} nGpus {per_thread} minBytes {min} maxBytes {max} step: {step} \
             warmup iters: {warmup_iters} iters: {iters} agg iters: {agg_iters} \
             validation: {validation} graph: {cudagraph}\n"
        );
        let or_auto = |value: Option<String>| value.unwrap_or_else(|| "auto".into());
        let filter = |name: &str, list: &dyn Display| {
            self.env.is_set(name).then(|| format!("{list} ({name})"))
        };
        let algorithm = self.args.algorithm.map(|a| a.to_string());
        let protocol = self.args.protocol.map(|p| p.to_string());
        text += &format!(
            "# ferroccl {} {} algorithm: {} protocol: {} channels: {}\n",
            env!("CARGO_PKG_VERSION"),
            self.args.collective,
            or_auto(algorithm.or_else(|| filter("NCCL_ALGO", &self.env.algo))),
            or_auto(protocol.or_else(|| filter("NCCL_PROTO", &self.env.proto))),
            or_auto(self.args.channels.map(|c| c.to_string())),
        );
        text += match self.args.blocking {
            Blocking::Nothing => "",
            Blocking::Call => "# Blocking: each call is waited for before the next\n",
            Blocking::CallAndRanks => {
                "# Blocking: each call is waited for, and then all ranks, before the next\n"
            }
            Blocking::Iteration => {
                "# Blocking: each iteration is waited for, and then, untimed, all ranks, before the next\n"
            }
        };
        let asked = self.args.accepted.asked();
        if !asked.is_empty() {
            text += &format!("# Without effect: {}\n", asked.join(", "));
        }
        if self.args.report_cputime {
            text += "# Times are of enqueueing a call\n";
        }
        match (self.args.runtime, &self.args.model) {
            (RuntimeKind::Ptx, Some(model)) => {
                let nanoseconds = model.timing.launch_ns;
                text += &format!(
                    "# Times are SIMULATED: kernels in virtual time on {} ({} GPUs), without the {nanoseconds} ns of a launch\n",
                    model.name, model.gpus
                );
            }
            (RuntimeKind::Ptx, None) => {
                text += "# Times are the emulator's, and say nothing of a GPU's\n";
            }
            _ => {}
        }
        text += "#\n# Using devices\n";
        for RankInfo { rank, pid, host, device, name } in &self.ranks {
            text += &format!(
                "#  Rank {rank:>2} Group  0 Pid {pid:>6} on {host:>10} device {device:>2} {name}\n"
            );
        }
        text + &self.form.heading()
    }

    /// What counts the calls of a size.
    pub(crate) fn calls(&self) -> std::sync::Arc<CallCount> {
        self.progress.calls()
    }

    /// A size begins.
    pub(crate) fn begin_size(&self, bytes: u64) {
        self.progress.begin(effort(bytes));
    }

    /// A line of the table.
    pub(crate) fn row(&mut self, row: Row) -> io::Result<()> {
        self.progress.end();
        self.say(&self.form.row(&row))?;
        self.rows.push(row);
        Ok(())
    }

    /// Ends the table and writes the files; gives the number of wrong elements.
    pub(crate) fn end(mut self) -> io::Result<u64> {
        self.progress.finish();
        let summary = Summary::of(&self.rows);
        if let Some(counts) = emulated::table(&self.rows) {
            self.say(&counts)?;
        }
        self.say(&summary.to_string())?;
        if self.args.report.is_some() && self.args.runtime == RuntimeKind::Cpu {
            self.limit = limit::of_copies(self.args.collective, self.layout.world_size());
        }
        self.show(summary, None)?;
        self.write_files(summary, None)?;
        Ok(summary.wrong)
    }

    /// Ends a measurement that goes no further, for this reason: writes the files of the rows that there are, marked as
    /// incomplete. Where there are none, files from before stay as they were.
    pub(crate) fn end_early(self, reason: &str) -> io::Result<()> {
        self.progress.finish();
        if self.rows.is_empty() && !self.args.json_on_stdout() {
            return Ok(());
        }
        let summary = Summary::of(&self.rows);
        self.write_files(summary, Some(reason))
    }

    /// The comparison, and how much memory there was.
    fn show(&self, summary: Summary, error: Option<&str>) -> io::Result<()> {
        if let (Some(other), Some(path)) = (&self.other, &self.args.compare) {
            let now = self.recorded(summary, error)?;
            self.say(&compare::table(&now, other, &path.display().to_string()))?;
        }
        if self.args.memory {
            self.say(&self.memory.to_string())?;
        }
        Ok(())
    }

    /// This measurement, as it is read from its JSON.
    fn recorded(&self, summary: Summary, error: Option<&str>) -> io::Result<Measurement> {
        let document = serde_json::to_value(self.document(summary, error))?;
        Measurement::from_json(&document).map_err(io::Error::other)
    }

    fn write_files(&self, summary: Summary, error: Option<&str>) -> io::Result<()> {
        self.write_json(summary, error)?;
        if let Some(path) = &self.args.csv {
            let text = document::csv(&self.rows).map_err(io::Error::other)?;
            crate::output_file::write(path, &text).map_err(named(path))?;
        }
        if let Some(path) = &self.args.report {
            let now = self.recorded(summary, error)?;
            let name = self.args.compare.as_ref().map(|path| path.display().to_string());
            let page = page::html(&now, self.other.as_ref().zip(name.as_deref()), error);
            crate::output_file::write(path, page.as_bytes()).map_err(named(path))?;
        }
        Ok(())
    }

    fn write_json(&self, summary: Summary, error: Option<&str>) -> io::Result<()> {
        let Some(path) = &self.args.json else { return Ok(()) };
        let mut text = serde_json::to_vec_pretty(&self.document(summary, error))?;
        text.push(b'\n');
        if self.args.json_on_stdout() {
            let mut out = io::stdout().lock();
            out.write_all(&text)?;
            return out.flush();
        }
        crate::output_file::write(path, &text).map_err(named(path))
    }

    fn document<'a>(&'a self, summary: Summary, error: Option<&'a str>) -> PerfDocument<'a> {
        let PerfArgs { iters, agg_iters, warmup_iters, check, .. } = self.args;
        let PerfArgs { algorithm, protocol, channels, blocking, report_cputime, .. } = self.args;
        PerfDocument {
            version: 2,
            complete: error.is_none(),
            error,
            ferroccl: env!("CARGO_PKG_VERSION"),
            measured: self.began.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            machine: MeasuredOn::this(),
            settings: document::settings(),
            collective: self.args.collective.to_string(),
            runtime: self.args.runtime.to_string(),
            simulated_on: self.args.model.as_ref().map(|model| &*model.name),
            algorithm: algorithm.map(|a| a.to_string()),
            protocol: protocol.map(|p| p.to_string()),
            channels,
            processes: self.layout.processes,
            threads: self.layout.threads,
            ranks_per_thread: self.layout.per_thread,
            iters,
            agg_iters,
            warmup_iters,
            check_iters: check,
            blocking: blocking != Blocking::Nothing,
            report_cputime,
            ranks: &self.ranks,
            busbw_of_copies: self.limit.as_ref(),
            results: &self.rows,
            out_of_bounds_values: summary.wrong,
            avg_busbw_gbps: summary.avg_busbw,
        }
    }

    /// Prints lines of the table, unless JSON has taken its place.
    fn say(&self, text: &str) -> io::Result<()> {
        if self.args.json_on_stdout() {
            return Ok(());
        }
        self.progress.suspend(|| {
            let mut out = io::stdout().lock();
            writeln!(out, "{text}")?;
            out.flush()
        })
    }
}
