//! `ferroccl ptx stats`

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write as _};

use clap::Args;
use ferroccl_ptx::cfg::{Cfg, LoopId};
use ferroccl_ptx::inspect::{Lines, Place, Stats, stats};
use serde::Serialize;

use super::Failure;
use super::kernel::{From, Kernel, Tree};
use super::paint::{Color, Paint};
use super::sass::{self, SourceLine};
use super::tools::{self, Assembled};

/// Show the figures of a kernel: what its instructions are, what they do to memory, loop by loop
///
/// Instructions are counted as they stand in the text. The figures of a loop are those of an iteration in which
/// each of its blocks runs once, loops within left out; bytes are of one lane. Loads in flight are the most
/// loads from global memory in a block before the first use of a result of any of them. The hot loop is, of
/// those that load from and store to global memory and hold no other such, the one that moves the most bytes an
/// iteration. With ptxas and nvdisasm
/// (scripts/setup installs them) also what the machine code takes, and the hot loop's.
#[derive(Args, Clone, Debug)]
pub(super) struct StatsArgs {
    /// The kernel
    kernel: Option<String>,
    #[command(flatten)]
    from: From,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    color: Color,
}

/// Lines of machine code that are printed.
const SASS_LINES: usize = 120;

/// All there is to tell.
#[derive(Serialize)]
pub(super) struct Report<'k> {
    /// Where the kernel is from.
    pub(super) module: String,
    #[serde(flatten)]
    pub(super) stats: Stats<'k>,
    /// What the assembler makes of it; `None` where there is none.
    pub(super) assembled: Option<Assembled>,
    /// The hot loop as machine code.
    pub(super) hot_sass: Option<Vec<String>>,
}

pub(super) fn run(args: &StatsArgs) -> Result<(), Failure> {
    let kernel = args.from.kernel(args.kernel.as_deref())?;
    let tree = kernel.tree()?;
    let report = report(&kernel, &tree)?;
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        out.write_all(text(&report, args.color.paint()).as_bytes())?;
    }
    Ok(())
}

/// Measures a kernel, with the tools that there are.
pub(super) fn report<'k>(kernel: &Kernel, tree: &Tree<'k>) -> Result<Report<'k>, Failure> {
    let cfg = tree.cfg(kernel)?;
    let lines = Lines::new(&tree.module);
    let stats = stats(tree.function(), &cfg, &lines);
    let mut assembled = if tree.function().entry { tools::assemble(kernel, tree)? } else { None };
    let sass = assembled.as_mut().and_then(|a| a.sass.take());
    let hot_sass = stats.hot.zip(sass).and_then(|(hot, sass)| {
        let own = sources(LoopId(hot), &cfg, &lines);
        // Copies of one loop, in the order of the text.
        let header = stats.loops[hot].header;
        let before = (0..stats.loops.len()).filter(|&i| stats.loops[i].header < header);
        let rank = before.filter(|&i| sources(LoopId(i), &cfg, &lines) == own).count();
        sass::matching(&sass::loops(&sass, &kernel.name), &own, rank).map(|l| l.lines.clone())
    });
    Ok(Report { module: kernel.origin.clone(), stats, assembled, hot_sass })
}

/// The source lines of a loop and of those within.
fn sources(id: LoopId, cfg: &Cfg<'_, '_>, lines: &Lines<'_>) -> BTreeSet<SourceLine> {
    let code = cfg.loops()[id.0].blocks.iter().flat_map(|&block| cfg.code_of(block));
    let places = code.filter_map(|code| code.location.and_then(|loc| lines.place(loc)));
    places.map(|place| (place.file.to_owned(), place.line)).collect()
}

fn text(report: &Report<'_>, paint: Paint) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = head(&mut out, report, paint);
    let _ = memory(&mut out, &report.stats, paint);
    let _ = loops(&mut out, &report.stats, paint);
    let _ = machine(&mut out, report, paint);
    out
}

fn head(out: &mut String, report: &Report<'_>, paint: Paint) -> std::fmt::Result {
    let stats = &report.stats;
    writeln!(out, "{} ({})", paint.bold(stats.name), report.module)?;
    let registers: Vec<String> =
        stats.registers.iter().map(|(ty, n)| format!("{n} {ty}")).collect();
    writeln!(
        out,
        "{} instructions, {} blocks, {} loops; virtual registers: {}\n",
        stats.instructions,
        stats.blocks,
        stats.loops.len(),
        if registers.is_empty() { "none".to_owned() } else { registers.join(", ") }
    )?;
    let mut mix: Vec<_> = stats.mix.iter().collect();
    mix.sort_by_key(|of| (std::cmp::Reverse(of.count), of.of));
    writeln!(out, "{}", paint.bold("instructions     count  share"))?;
    for of in mix {
        let share = 100.0 * f64::from(of.count) / f64::from(stats.instructions.max(1));
        writeln!(out, "{:<15}{:>7}{share:>6.1}%", of.of.name(), of.count)?;
    }
    writeln!(out)
}

fn memory(out: &mut String, stats: &Stats<'_>, paint: Paint) -> std::fmt::Result {
    if !stats.accesses.is_empty() {
        let title = "memory     space            order     scope    bytes of a lane  count";
        writeln!(out, "{}", paint.bold(title))?;
    }
    for of in &stats.accesses {
        let bytes = match (of.bytes, of.vector) {
            (None, _) => "by a register".to_owned(),
            (Some(bytes), 1) => bytes.to_string(),
            (Some(bytes), n) => format!("{bytes} (v{n})"),
        };
        let scope = of.scope.map_or("", |scope| scope.name());
        writeln!(
            out,
            "{:<10} {:<16} {:<9} {scope:<8} {bytes:>15}{:>7}",
            of.access, of.space, of.order, of.count
        )?;
    }
    let list = |counts: Vec<String>| match counts.is_empty() {
        true => "none".to_owned(),
        false => counts.join(", "),
    };
    let fences = stats.fences.iter().map(|f| {
        let proxy = if f.proxy { "proxy " } else { "" };
        format!("{} x {proxy}{} {}", f.count, f.order, f.scope)
    });
    let barriers = stats.barriers.iter().map(|b| format!("{} x {}", b.count, b.of));
    writeln!(out, "fences: {}", list(fences.collect()))?;
    writeln!(out, "barriers: {}", list(barriers.collect()))?;
    let flight = stats.flight;
    writeln!(out, "loads in flight: {}, {} bytes of a lane\n", flight.loads, flight.bytes)
}

fn loops(out: &mut String, stats: &Stats<'_>, paint: Paint) -> std::fmt::Result {
    if stats.loops.is_empty() {
        return writeln!(out, "no loops");
    }
    let title = "loop          instructions  loaded  stored  bytes/instr.  in flight  source";
    writeln!(out, "{}", paint.bold(title))?;
    let mut order: Vec<usize> = (0..stats.loops.len()).collect();
    order.sort_by_key(|&i| stats.loops[i].header);
    for i in order {
        let of = &stats.loops[i];
        let name = format!("{}B{}", "  ".repeat(of.depth as usize - 1), of.header);
        let bytes = of.global();
        let line = format!(
            "{name:<14}{:>12}{:>8}{:>8}{:>14.2}{:>11}  {}",
            of.instructions,
            bytes.loaded,
            bytes.stored,
            of.bytes_per_instruction,
            of.flight.loads,
            of.place.as_ref().map_or(String::new(), place),
        );
        let hot = stats.hot == Some(i);
        writeln!(out, "{}", if hot { paint.bold(&format!("{line}  <- hot")) } else { line })?;
    }
    writeln!(out)
}

/// `device/src/copy.rs:188 < copy.rs:164`: a line, and the nearest call.
fn place(place: &Place<'_>) -> String {
    let mut text = format!("{}:{}", place.file, place.line);
    if let Some(call) = place.calls.first() {
        let file = call.file.rsplit('/').next().unwrap_or(call.file);
        let _ = write!(text, " < {file}:{}", call.line);
    }
    text
}

fn machine(out: &mut String, report: &Report<'_>, paint: Paint) -> std::fmt::Result {
    let Some(told) = &report.assembled else { return writeln!(out, "{}", tools::HOW_TO_GET) };
    writeln!(
        out,
        "{} {} registers, {}, {}, {} bytes of shared memory, {}, {} bytes of code",
        paint.bold(&format!("ptxas for {}:", told.arch)),
        told.registers,
        match told.spill_store_bytes + told.spill_load_bytes {
            0 => "no spills".to_owned(),
            bytes => format!("{bytes} bytes spilled"),
        },
        match told.stack_bytes {
            0 => "no stack".to_owned(),
            bytes => format!("{bytes} bytes of stack"),
        },
        told.shared_bytes,
        match told.barriers {
            0 => "no barriers".to_owned(),
            1 => "1 barrier".to_owned(),
            n => format!("{n} barriers"),
        },
        told.code_bytes
    )?;
    if let Some(sass) = &report.hot_sass {
        let instructions = sass.iter().filter(|line| !line.ends_with(':')).count();
        writeln!(out, "\n{}", paint.bold(&format!("the hot loop's {instructions} instructions:")))?;
        for line in sass.iter().take(SASS_LINES) {
            writeln!(out, "  {line}")?;
        }
        if sass.len() > SASS_LINES {
            writeln!(out, "  ... ({} lines more: --json has them)", sass.len() - SASS_LINES)?;
        }
    }
    Ok(())
}
