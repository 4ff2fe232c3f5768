//! `ferroccl ptx list`

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, BufWriter, Write as _};
use std::sync::LazyLock;

use clap::Args;
use ferroccl::device::abi::{Algorithm, Collective, DataType, ProtocolId, ReduceOp};
use ferroccl::device::kernels::{self, PtxText};
use ferroccl::ptx;
use ferroccl_ptx::cfg::Cfg;
use ferroccl_ptx::inspect::registers;
use ferroccl_ptx::syntax::Module;
use serde::Serialize;

use super::Failure;
use super::crates::Crate;
use super::kernel::{Text, parsed, says_what_is_read};
use crate::perf::values::one_of;
use crate::registered::{self, registry};

/// List kernels, with their size in instructions and virtual registers
#[derive(Args, Clone, Debug)]
pub(super) struct ListArgs {
    /// Only those with this in their name
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Only those of a collective
    #[arg(long, value_parser = one_of::<Collective>(), ignore_case = true)]
    collective: Option<Collective>,
    /// Only those of an algorithm
    #[arg(long, value_parser = one_of::<Algorithm>(), ignore_case = true)]
    algorithm: Option<Algorithm>,
    /// Only those of a protocol
    #[arg(long, value_parser = one_of::<ProtocolId>(), ignore_case = true)]
    protocol: Option<ProtocolId>,
    /// Only those for an element type; none of what only moves bytes
    #[arg(long = "type", value_name = "TYPE", value_parser = one_of::<DataType>(), ignore_case = true)]
    data_type: Option<DataType>,
    /// Only those that have a reduction, be it with others
    #[arg(long, value_parser = one_of::<ReduceOp>(), ignore_case = true)]
    op: Option<ReduceOp>,
    /// Only those compiled for an architecture
    #[arg(long, value_name = "sm_N", value_parser = super::arch)]
    arch: Option<u32>,
    /// The kernels of a file
    #[arg(long, value_name = "PTX", conflicts_with_all = ["collective", "algorithm", "protocol", "data_type", "op"])]
    file: Option<std::path::PathBuf>,
    /// The kernels that the crate in this folder has made in its last build
    #[arg(long = "crate", value_name = "DIR", conflicts_with_all = ["file", "collective", "algorithm", "protocol", "data_type", "op"])]
    krate: Option<std::path::PathBuf>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// What is told of a kernel.
#[derive(Debug, PartialEq, Serialize)]
struct Row {
    name: String,
    #[serde(flatten)]
    parts: Option<&'static Parts>,
    arch: String,
    /// Bytes of its text.
    bytes: usize,
    instructions: usize,
    /// Virtual registers by type.
    registers: std::collections::BTreeMap<String, u64>,
}

/// What the table says of an embedded kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Parts {
    collective: &'static str,
    algorithm: &'static str,
    /// Nothing where it may be any.
    protocol: Option<&'static str>,
    /// The operators that it has; empty where bytes are only moved.
    ops: Vec<&'static str>,
    /// Nothing where bytes are only moved.
    #[serde(rename = "type")]
    data_type: Option<&'static str>,
}

impl Parts {
    fn of(name: &str) -> Option<&'static Self> {
        static PARTS: LazyLock<HashMap<&str, Parts>> = LazyLock::new(|| {
            let rows = kernels::rows().chain(registry().rows());
            rows.map(|row| (row.kernel.name, Parts::in_table(row))).collect()
        });
        PARTS.get(name)
    }

    fn in_table(row: &kernels::Row) -> Self {
        Parts {
            collective: row.collective.name(),
            algorithm: row.algorithm.name(),
            protocol: row.protocol.map(ProtocolId::name),
            ops: row
                .reduction
                .map_or_else(Vec::new, |(ops, _)| ops.iter().map(|op| op.name()).collect()),
            data_type: row.reduction.map(|(_, data_type)| data_type.name()),
        }
    }
}

pub(super) fn run(args: &ListArgs) -> Result<(), Failure> {
    let rows = match (&args.file, &args.krate) {
        (Some(path), _) => of_texts(args, &[Text::of_file(path)?])?,
        (None, Some(dir)) => {
            let texts = Crate::find(dir)?.built()?;
            texts.iter().for_each(|text| says_what_is_read(&text.origin));
            of_texts(args, &texts)?
        }
        (None, None) => embedded(args)?,
    };
    if rows.is_empty() {
        return Err(Failure::Nothing);
    }
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        serde_json::to_writer_pretty(&mut out, &rows)?;
        writeln!(out)?;
    } else {
        out.write_all(table(&rows).as_bytes())?;
    }
    Ok(out.flush()?)
}

impl ListArgs {
    fn wants(&self, name: &str, parts: Option<&Parts>) -> bool {
        let is = |wanted: Option<&'static str>, of: fn(&Parts) -> Option<&'static str>| {
            wanted.is_none_or(|wanted| parts.is_some_and(|p| of(p) == Some(wanted)))
        };
        self.name.as_deref().is_none_or(|part| name.contains(part))
            && is(self.collective.map(Collective::name), |p| Some(p.collective))
            && is(self.algorithm.map(Algorithm::name), |p| Some(p.algorithm))
            && is(self.protocol.map(ProtocolId::name), |p| p.protocol)
            && is(self.data_type.map(DataType::name), |p| p.data_type)
            && self.op.is_none_or(|op| parts.is_some_and(|p| p.ops.contains(&op.name())))
    }
}

/// The kernels of files that are wanted.
fn of_texts(args: &ListArgs, texts: &[Text]) -> Result<Vec<Row>, Failure> {
    let mut all = Vec::new();
    for Text { text, origin } in texts {
        let module = parsed(text, origin)?;
        // A file is for one architecture, and is listed whatever it is; those of a crate may be for several.
        if args.file.is_some() || args.arch.is_none_or(|arch| target(&module) == Some(arch)) {
            all.extend(rows(&module, origin, false, |name| args.wants(name, None))?);
        }
    }
    Ok(all)
}

/// The embedded kernels that are wanted. Those of the library were counted when it was built, and are not unpacked here.
/// The modules of other crates are parsed, side by side.
fn embedded(args: &ListArgs) -> Result<Vec<Row>, Failure> {
    let own = registered::texts();
    if let Some(why) = ptx::unavailable().filter(|_| own.is_empty()) {
        return Err(Failure::NoPtx(why));
    }
    let wants = |name: &str| args.wants(name, Parts::of(name));
    let modules = ptx::modules().iter().filter(|m| args.arch.is_none_or(|arch| arch == m.arch()));
    let kernels = modules.flat_map(|m| m.kernels().iter().zip(m.figures()).map(move |k| (m, k)));
    let wanted = kernels.filter(|(_, (name, _))| wants(name));
    let mut all: Vec<Row> = wanted.map(|(m, (name, figures))| counted(m, name, figures)).collect();
    let read = |text: PtxText| {
        let module = parsed(text.0, registered::ORIGIN)?;
        match args.arch.is_none_or(|arch| target(&module) == Some(arch)) {
            true => rows(&module, registered::ORIGIN, true, wants),
            false => Ok(Vec::new()),
        }
    };
    let read = &read;
    let read: Vec<Result<Vec<Row>, Failure>> = std::thread::scope(|scope| {
        let threads: Vec<_> = own.into_iter().map(|text| scope.spawn(move || read(text))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|rows| rows.expect("reading PTX does not panic")).collect()
    });
    for rows in read {
        all.extend(rows?);
    }
    Ok(all)
}

/// What a module is compiled for.
fn target(module: &Module<'_>) -> Option<u32> {
    module.target.first().and_then(|arch| super::arch(arch.text).ok())
}

/// A kernel of the library, by what was counted when it was built.
fn counted(module: &ptx::Module, name: &str, figures: &ptx::Figures) -> Row {
    Row {
        name: name.to_owned(),
        parts: Parts::of(name),
        arch: format!("sm_{}", module.arch()),
        bytes: figures.bytes,
        instructions: figures.instructions,
        registers: figures.registers.iter().map(|(ty, n)| ((*ty).to_owned(), *n)).collect(),
    }
}

fn rows(
    module: &Module<'_>,
    origin: &str,
    embedded: bool,
    wants: impl Fn(&str) -> bool,
) -> Result<Vec<Row>, Failure> {
    let arch = module.target.first().map_or(String::new(), |arch| arch.text.to_owned());
    let kernels = module.entries().filter(|f| f.body.is_some() && wants(f.name.text));
    kernels
        .map(|function| {
            let cfg = Cfg::new(function).map_err(|e| Failure::Syntax {
                origin: origin.to_owned(),
                source: e.at(module.source),
            })?;
            let registers = registers(function).into_iter();
            Ok(Row {
                name: function.name.text.to_owned(),
                parts: if embedded { Parts::of(function.name.text) } else { None },
                arch: arch.clone(),
                bytes: function.span.range().len(),
                instructions: cfg.code.len(),
                registers: registers.map(|(ty, n)| (ty.to_owned(), n)).collect(),
            })
        })
        .collect()
}

fn table(rows: &[Row]) -> String {
    let name = rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max(6);
    type Column = (&'static str, fn(&Parts) -> String);
    const COLUMNS: [Column; 5] = [
        ("collective", |p| p.collective.into()),
        ("algo", |p| p.algorithm.into()),
        ("proto", |p| p.protocol.unwrap_or("-").into()),
        ("op", |p| if p.ops.is_empty() { "-".into() } else { p.ops.join(",") }),
        ("type", |p| p.data_type.unwrap_or("-").into()),
    ];
    let parts: Vec<&Parts> = rows.iter().filter_map(|row| row.parts).collect();
    // Each once, as there are hundreds of rows.
    let widths = COLUMNS.map(|(title, of)| {
        parts.iter().map(|p| of(p).len()).chain([title.len()]).max().unwrap_or(0)
    });
    let columns = || COLUMNS.iter().zip(widths);
    let mut out = String::new();
    let _ = write!(out, "{:name$}  ", "kernel");
    for ((title, _), width) in columns().filter(|_| !parts.is_empty()) {
        let _ = write!(out, "{title:<width$}  ");
    }
    let _ = writeln!(out, "arch    PTX bytes  instructions  registers");
    for row in rows {
        let _ = write!(out, "{:name$}  ", row.name);
        if let Some(parts) = row.parts {
            for ((_, of), width) in columns() {
                let _ = write!(out, "{:<width$}  ", of(parts));
            }
        }
        let registers: Vec<String> =
            row.registers.iter().map(|(ty, n)| format!("{n} {ty}")).collect();
        let registers = registers.join(", ");
        let (arch, bytes, instructions) = (&row.arch, row.bytes, row.instructions);
        let _ = writeln!(out, "{arch:<6}  {bytes:>9}  {instructions:>12}  {registers}");
    }
    let _ = writeln!(out, "{} kernels", rows.len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kernel_is_for_is_in_the_table() {
        let parts = Parts::of("all_reduce_ring_ll128_sum_float").expect("in every build");
        assert_eq!((parts.collective, parts.algorithm), ("all_reduce", "Ring"));
        assert_eq!((parts.protocol, &parts.ops[..]), (Some("LL128"), &["sum"][..]));
        assert_eq!(parts.data_type, Some("float"));
        let parts = Parts::of("all_reduce_ring_ll_any_float").expect("in every build");
        assert_eq!(parts.ops, ["prod", "min", "max", "mulsum"]);
        assert_eq!(Parts::of("vector_add"), None);
    }

    /// What was counted while the kernels were made is what the parser counts.
    #[test]
    fn quick_figures_are_those_of_the_parser() {
        if let Some(why) = ptx::unavailable() {
            return println!("skipped: no PTX: {why}");
        }
        for module in ptx::modules() {
            let parsed = parsed(module.text(), "").expect("rustc has written it");
            let slow = rows(&parsed, "", true, |_| true).expect("and its labels are there");
            let quick = module.kernels().iter().zip(module.figures());
            let quick: Vec<Row> = quick.map(|(name, f)| counted(module, name, f)).collect();
            assert_eq!(quick, slow, "{module}");
        }
    }
}
