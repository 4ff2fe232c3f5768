//! `ferroccl ptx diff`

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use ferroccl_ptx::inspect::{Change, Difference, Listing, differences};
use ferroccl_ptx::isa::Class;
use serde::Serialize;

use super::Failure;
use super::commit::History;
use super::kernel::{From, Kernel};
use super::paint::{Color, Paint};
use super::stats::{Report, report};

/// Compare two kernels: their figures, then their instructions
///
/// Instructions are compared without the numbers of registers and labels. They are printed in the names of the
/// first kernel, counted in the order in which they appear; what only the second has keeps its name and is marked: %r3'.
///
/// With --commit the first is the kernel as a commit has it, and the second as the working tree has it, or another commit.
/// Both are made now, the commit's in a temporary git worktree: those of FerroCCL by cargo xtask ptx, those of another crate by
/// its build script. What is compiled for it stays in target/ferroccl-commits.
#[derive(Args, Clone, Debug)]
pub(super) struct DiffArgs {
    /// The first kernel
    #[arg(value_name = "A")]
    first: Option<String>,
    /// The second kernel [default: the first's name, of another file, architecture or commit]
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
    /// Compare A as this commit has it, in the checkout here or of --crate [B: by default in the working tree]
    #[arg(long, value_name = "REV", requires = "first", conflicts_with_all = ["file", "file2", "arch2"])]
    commit: Option<String>,
    /// The commit of B
    #[arg(long, value_name = "REV", requires = "commit")]
    commit2: Option<String>,
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
    let (first, second) = kernels(args)?;
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

/// What is compared.
fn kernels(args: &DiffArgs) -> Result<(Kernel, Kernel), Failure> {
    let (name, from) = (args.first.as_deref(), &args.from);
    let name2 = args.second.as_deref().or(name);
    let Some(revision) = &args.commit else {
        let second = From {
            file: args.file2.clone().or_else(|| from.file.clone()),
            krate: from.krate.clone().filter(|_| args.file2.is_none()),
            arch: args.arch2.or(from.arch),
        };
        return Ok((from.kernel(name)?, second.kernel(name2)?));
    };
    let history = History::open(from.krate.as_deref().unwrap_or(Path::new(".")))?;
    let commit = history.commit(revision)?;
    let commit2 = args.commit2.as_deref().map(|revision| history.commit(revision)).transpose()?;
    let (name, name2) = (name.unwrap_or_default(), name2.unwrap_or_default());
    let first = history.at(&commit, name, from.arch)?;
    let second = match commit2 {
        Some(commit) => history.at(&commit, name2, from.arch)?,
        None => history.in_working_tree(name2, from.arch)?,
    };
    Ok((first, second))
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
