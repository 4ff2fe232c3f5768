//! Where results go: the table on standard output, JSON to a file, progress on a terminal.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

use ferroccl::config::Config;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::args::PerfArgs;
use super::emulated;
use super::size::Bytes;
use super::sweep::{Step, Sweep};
use super::table::{HEADING, Row, Summary};
use super::team::Layout;
use super::values::RuntimeKind;

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

/// Everything that was asked for and found: the JSON document.
#[derive(Debug, Serialize)]
struct Document<'a> {
    /// Of this document's form; a change that readers must know of counts it up.
    version: u32,
    /// Whether all rows are there that were asked for.
    complete: bool,
    /// Why not.
    error: Option<&'a str>,
    ferroccl: &'static str,
    collective: String,
    runtime: String,
    /// The machine on which times are simulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated_on: Option<&'a str>,
    algorithm: Option<String>,
    protocol: Option<String>,
    channels: Option<u32>,
    processes: u32,
    threads: u32,
    ranks_per_thread: u32,
    iters: u32,
    agg_iters: u32,
    warmup_iters: u32,
    check_iters: u32,
    blocking: bool,
    report_cputime: bool,
    ranks: &'a [RankInfo],
    results: &'a [Row],
    out_of_bounds_values: u64,
    avg_busbw_gbps: f64,
}

/// The one that speaks, in the process of rank 0.
#[derive(Debug)]
pub(crate) struct Report {
    args: PerfArgs,
    env: Config,
    layout: Layout,
    ranks: Vec<RankInfo>,
    rows: Vec<Row>,
    bar: ProgressBar,
}

impl Report {
    /// Opens what is written to; says what will be measured.
    pub(crate) fn begin(
        args: &PerfArgs,
        env: &Config,
        sweep: Sweep,
        layout: Layout,
        ranks: Vec<RankInfo>,
    ) -> io::Result<Self> {
        // Now, not after an hour of measuring: a path that cannot be written is an error at once.
        if let Some(path) = args.json_file() {
            crate::output_file::check(path).map_err(named(path))?;
        }
        let nranks = layout.world_size();
        let work = args.datatype.0.iter().flat_map(|&t| {
            let shapes = args.shapes(sweep, t, nranks);
            shapes.map(move |shape| effort((shape.largest() * t.size()) as u64))
        });
        let times = args.redops().len() * args.roots(nranks).len();
        // Hidden unless standard error is a terminal.
        let bar = ProgressBar::new(work.sum::<u64>().saturating_mul(times as u64));
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent}%, {eta} left") {
            bar.set_style(style);
        }
        let report =
            Report { args: args.clone(), env: env.clone(), layout, ranks, rows: Vec::new(), bar };
        report.say(&report.preamble(sweep))?;
        Ok(report)
    }

    fn preamble(&self, sweep: Sweep) -> String {
        let PerfArgs { iters, agg_iters, warmup_iters, check, .. } = self.args;
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
             validation: {validation} graph: 0\n"
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
        if self.args.blocking {
            text += "# Blocking: each call is waited for before the next\n";
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
        text + HEADING
    }

    /// A line of the table.
    pub(crate) fn row(&mut self, row: Row) -> io::Result<()> {
        self.say(&row.to_string())?;
        self.bar.inc(effort(row.size));
        self.rows.push(row);
        Ok(())
    }

    /// Ends the table and writes the JSON; gives the number of wrong elements.
    pub(crate) fn end(self) -> io::Result<u64> {
        self.bar.finish_and_clear();
        let summary = Summary::of(&self.rows);
        if let Some(counts) = emulated::table(&self.rows) {
            self.say(&counts)?;
        }
        self.say(&summary.to_string())?;
        self.write_json(summary, None)?;
        Ok(summary.wrong)
    }

    /// Ends a measurement that goes no further, for this reason: writes the JSON of the rows that there are, marked as
    /// incomplete. Where there are none, a file from before stays as it was.
    pub(crate) fn end_early(self, reason: &str) -> io::Result<()> {
        self.bar.finish_and_clear();
        if self.rows.is_empty() && !self.args.json_on_stdout() {
            return Ok(());
        }
        self.write_json(Summary::of(&self.rows), Some(reason))
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

    fn document<'a>(&'a self, summary: Summary, error: Option<&'a str>) -> Document<'a> {
        let PerfArgs { iters, agg_iters, warmup_iters, check, .. } = self.args;
        let PerfArgs { algorithm, protocol, channels, blocking, report_cputime, .. } = self.args;
        Document {
            version: 2,
            complete: error.is_none(),
            error,
            ferroccl: env!("CARGO_PKG_VERSION"),
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
            blocking,
            report_cputime,
            ranks: &self.ranks,
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
        self.bar.suspend(|| {
            let mut out = io::stdout().lock();
            writeln!(out, "{text}")?;
            out.flush()
        })
    }
}
