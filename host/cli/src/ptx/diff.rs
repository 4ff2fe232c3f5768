//! `ferroccl ptx diff`

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::Args;
use ferroccl_ptx::inspect::{Change, Difference, Listing, differences};
use ferroccl_ptx::isa::Class;
use serde::Serialize;

use super::Failure;
use super::kernel::{From, Kernel};
use super::paint::{Color, Paint};
use super::stats::{Report, report};

/// Compare two kernels: their figures, then their instructions
///
/// Instructions are compared without the numbers of registers and labels. They are printed in the names of the
/// first kernel, counted in the order in which they appear; what only the second has keeps its name and is marked: %r3'.
#[derive(Args, Clone, Debug)]
pub(super) struct DiffArgs {
    /// The first kernel
    #[arg(value_name = "A")]
    first: Option<String>,
    /// The second kernel [default: the first's name, of another file or architecture]
    #[arg(value_name = "B")]
    second: Option<String>,
    #[command(flatten)]
    from: From,
    /// A file of PTX for the second [default: as the first]
    #[arg(long, value_name = "PTX")]
    file2: Option<PathBuf>,
    /// The architecture of the second [default: as the first]
    #[arg(long, value_name = "sm_N", value_parser = super::arch)]
    arch2: Option<u32>,
    /// Lines around differences
    #[arg(long, short = 'U', value_name = "LINES", default_value_t = 3)]
    unified: usize,
    /// Only the figures
    #[arg(long)]
    figures: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    color: Color,
}

/// Two figures of one name.
#[derive(Serialize)]
struct Figure {
    name: String,
    first: f64,
    second: f64,
}

#[derive(Serialize)]
struct Comparison<'c> {
    first: String,
    second: String,
    figures: &'c [Figure],
    differences: Vec<&'c Difference>,
}

pub(super) fn run(args: &DiffArgs) -> Result<(), Failure> {
    let second_from = From {
        file: args.file2.clone().or_else(|| args.from.file.clone()),
        arch: args.arch2.or(args.from.arch),
    };
    let first = args.from.kernel(args.first.as_deref())?;
    let second = second_from.kernel(args.second.as_deref().or(args.first.as_deref()))?;
    let trees = (first.tree()?, second.tree()?);
    let reports = (report(&first, &trees.0)?, report(&second, &trees.1)?);
    let figures = figures(&reports.0, &reports.1);
    let lists = (
        Listing::new(trees.0.function(), &trees.0.cfg(&first)?, &first.text),
        Listing::new(trees.1.function(), &trees.1.cfg(&second)?, &second.text),
    );
    let all = if args.figures { Vec::new() } else { differences(&lists.0, &lists.1) };
    let name = |kernel: &Kernel| format!("{} ({})", kernel.name, kernel.origin);
    let names = (name(&first), name(&second));
    let mut out = io::stdout().lock();
    if args.json {
        let differences = all.iter().filter(|d| d.change != Change::Same).collect();
        let (first, second) = names;
        let all = Comparison { first, second, figures: &figures, differences };
        serde_json::to_writer_pretty(&mut out, &all)?;
        writeln!(out)?;
        return Ok(());
    }
    let paint = args.color.paint();
    let mut text = table(&names, &figures, paint);
    if !args.figures {
        text.push('\n');
        text.push_str(&unified(&names, &all, args.unified, paint));
    }
    out.write_all(text.as_bytes())?;
    Ok(())
}

/// All figures that either has.
fn figures(first: &Report<'_>, second: &Report<'_>) -> Vec<Figure> {
    let mut all: Vec<Figure> = Vec::new();
    let mut add = |name: &str, of: &dyn Fn(&Report<'_>) -> f64| {
        let (first, second) = (of(first), of(second));
        if first != 0.0 || second != 0.0 {
            all.push(Figure { name: name.to_owned(), first, second });
        }
    };
    add("instructions", &|r| r.stats.instructions.into());
    for class in Class::ALL {
        let count =
            |r: &Report<'_>| r.stats.mix.iter().find(|c| c.of == *class).map_or(0, |c| c.count);
        add(&format!("  {class}"), &|r| count(r).into());
    }
    add("blocks", &|r| r.stats.blocks.into());
    add("loops", &|r| r.stats.loops.len() as f64);
    let registers = |r: &Report<'_>, ty: &str| r.stats.registers.get(ty).copied().unwrap_or(0);
    let types: std::collections::BTreeSet<&str> =
        first.stats.registers.keys().chain(second.stats.registers.keys()).copied().collect();
    for ty in types {
        add(&format!("virtual registers {ty}"), &|r| registers(r, ty) as f64);
    }
    add("loads in flight", &|r| r.stats.flight.loads.into());
    let hot = |r: &Report<'_>, of: &dyn Fn(&ferroccl_ptx::inspect::LoopStats<'_>) -> f64| {
        r.stats.hot.map_or(0.0, |i| of(&r.stats.loops[i]))
    };
    add("hot loop: instructions", &|r| hot(r, &|l| l.instructions.into()));
    add("hot loop: bytes loaded", &|r| hot(r, &|l| l.global().loaded as f64));
    add("hot loop: bytes stored", &|r| hot(r, &|l| l.global().stored as f64));
    add("hot loop: bytes/instr.", &|r| hot(r, &|l| l.bytes_per_instruction));
    add("hot loop: loads in flight", &|r| hot(r, &|l| l.flight.loads.into()));
    if let (Some(_), Some(_)) = (&first.assembled, &second.assembled) {
        let told = |r: &Report<'_>, of: fn(&super::tools::Assembled) -> f64| {
            r.assembled.as_ref().map_or(0.0, of)
        };
        add("registers", &|r| told(r, |a| a.registers.into()));
        add("bytes spilled", &|r| told(r, |a| (a.spill_store_bytes + a.spill_load_bytes).into()));
        add("bytes of stack", &|r| told(r, |a| a.stack_bytes.into()));
        add("bytes of shared memory", &|r| told(r, |a| a.shared_bytes.into()));
        add("bytes of code", &|r| told(r, |a| a.code_bytes as f64));
        let sass = |r: &Report<'_>| {
            r.hot_sass.iter().flatten().filter(|line| !line.ends_with(':')).count()
        };
        add("hot loop: SASS instructions", &|r| sass(r) as f64);
    }
    all
}

fn table(names: &(String, String), figures: &[Figure], paint: Paint) -> String {
    let mut out = format!("A: {}\nB: {}\n\n", names.0, names.1);
    let title = format!("{:<28}{:>10}{:>10}{:>10}", "", "A", "B", "B - A");
    let _ = writeln!(out, "{}", paint.bold(&title));
    for Figure { name, first, second } in figures {
        let number = |v: f64| if v.fract() == 0.0 { format!("{v}") } else { format!("{v:.2}") };
        let change = second - first;
        let told = match change {
            0.0 => String::new(),
            _ if change > 0.0 => format!("+{}", number(change)),
            _ => number(change),
        };
        let line = format!("{name:<28}{:>10}{:>10}{told:>10}", number(*first), number(*second));
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

/// A unified diff with so many lines of context.
fn unified(names: &(String, String), all: &[Difference], context: usize, paint: Paint) -> String {
    let changed: Vec<usize> = (0..all.len()).filter(|&i| all[i].change != Change::Same).collect();
    if changed.is_empty() {
        return "the instructions are the same\n".to_owned();
    }
    let mut out = format!(
        "{}\n{}\n",
        paint.removed(&format!("--- {}", names.0)),
        paint.added(&format!("+++ {}", names.1))
    );
    let mut at = 0;
    while at < changed.len() {
        // A hunk goes on while the next change is so near that contexts meet.
        let mut last = at;
        while changed.get(last + 1).is_some_and(|next| next - changed[last] <= 2 * context + 1) {
            last += 1;
        }
        let start = changed[at].saturating_sub(context);
        let end = (changed[last] + context + 1).min(all.len());
        let hunk = &all[start..end];
        let range = |of: fn(&Difference) -> Option<usize>| {
            let count = hunk.iter().filter_map(of).count();
            // Of an empty range the line before is told, as diff does.
            let first = hunk.iter().find_map(of);
            let before = || all[..start].iter().rev().find_map(of).unwrap_or(0);
            format!("{},{count}", first.unwrap_or_else(before))
        };
        let title = format!("@@ -{} +{} @@", range(|d| d.old), range(|d| d.new));
        let _ = writeln!(out, "{}", paint.dim(&title));
        for line in hunk {
            let _ = match line.change {
                Change::Same => writeln!(out, " {}", line.text),
                Change::Removed => writeln!(out, "{}", paint.removed(&format!("-{}", line.text))),
                Change::Added => writeln!(out, "{}", paint.added(&format!("+{}", line.text))),
            };
        }
        at = last + 1;
    }
    out
}
