//! `ferroccl ptx list`

use std::fmt::Write as _;
use std::io::{self, Write as _};

use clap::Args;
use ferroccl::device::abi::{DataType, ProtocolId, ReduceOp};
use ferroccl::ptx;
use ferroccl_ptx::cfg::Cfg;
use ferroccl_ptx::inspect::registers;
use ferroccl_ptx::syntax::Module;
use serde::Serialize;

use super::Failure;
use super::kernel::{parsed, read};
use crate::perf::values::one_of;

/// List kernels, with their size in instructions and virtual registers
#[derive(Args, Clone, Debug)]
pub(super) struct ListArgs {
    /// Only those with this in their name
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Only those of a collective (all_reduce)
    #[arg(long, value_name = "COLLECTIVE")]
    collective: Option<String>,
    /// Only those of an algorithm (ring)
    #[arg(long)]
    algorithm: Option<String>,
    /// Only those of a protocol
    #[arg(long, value_parser = one_of::<ProtocolId>(), ignore_case = true)]
    protocol: Option<ProtocolId>,
    /// Only those for an element type
    #[arg(long = "type", value_name = "TYPE", value_parser = one_of::<DataType>(), ignore_case = true)]
    data_type: Option<DataType>,
    /// Only those of a reduction
    #[arg(long, value_parser = one_of::<ReduceOp>(), ignore_case = true)]
    op: Option<ReduceOp>,
    /// Only those compiled for an architecture
    #[arg(long, value_name = "sm_N", value_parser = super::arch)]
    arch: Option<u32>,
    /// The kernels of a file
    #[arg(long, value_name = "PTX", conflicts_with_all = ["collective", "algorithm", "protocol", "data_type", "op"])]
    file: Option<std::path::PathBuf>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// What is told of a kernel.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    #[serde(flatten)]
    parts: Option<Parts>,
    arch: String,
    /// Bytes of its text.
    bytes: usize,
    instructions: usize,
    /// Virtual registers by type.
    registers: std::collections::BTreeMap<String, u64>,
}

/// What the name of an embedded kernel says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Parts {
    collective: String,
    algorithm: String,
    protocol: String,
    op: String,
    #[serde(rename = "type")]
    data_type: String,
}

impl Parts {
    /// `all_reduce_ring_ll128_sum_float`
    fn of(name: &str) -> Option<Self> {
        let mut parts = name.rsplitn(5, '_').map(str::to_owned);
        let (data_type, op) = (parts.next()?, parts.next()?);
        let (protocol, algorithm) = (parts.next()?, parts.next()?);
        Some(Parts { collective: parts.next()?, algorithm, protocol, op, data_type })
    }
}

pub(super) fn run(args: &ListArgs) -> Result<(), Failure> {
    let rows = match &args.file {
        Some(path) => {
            let text = read(path)?;
            let origin = path.display().to_string();
            rows(&parsed(&text, &origin)?, &origin, false, |name| args.wants(name, None))?
        }
        None => embedded(args)?,
    };
    if rows.is_empty() {
        return Err(Failure::Nothing);
    }
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &rows)?;
        writeln!(out)?;
    } else {
        out.write_all(table(&rows).as_bytes())?;
    }
    Ok(())
}

impl ListArgs {
    fn wants(&self, name: &str, parts: Option<&Parts>) -> bool {
        let is = |wanted: Option<String>, of: fn(&Parts) -> &String| {
            wanted.is_none_or(|wanted| parts.is_some_and(|p| of(p).eq_ignore_ascii_case(&wanted)))
        };
        self.name.as_deref().is_none_or(|part| name.contains(part))
            && is(self.collective.clone(), |p| &p.collective)
            && is(self.algorithm.clone(), |p| &p.algorithm)
            && is(self.protocol.map(|p| p.to_string()), |p| &p.protocol)
            && is(self.data_type.map(|t| t.to_string()), |p| &p.data_type)
            && is(self.op.map(|o| o.to_string()), |p| &p.op)
    }
}

/// The embedded kernels that are wanted. Only modules that have one are read, side by side.
fn embedded(args: &ListArgs) -> Result<Vec<Row>, Failure> {
    if let Some(why) = ptx::unavailable() {
        return Err(Failure::NoPtx(why));
    }
    let wants = |name: &str| args.wants(name, Parts::of(name).as_ref());
    let modules: Vec<&ptx::Module> = ptx::modules()
        .iter()
        .filter(|m| args.arch.is_none_or(|arch| arch == m.arch()))
        .filter(|m| m.entries().any(|(name, _)| wants(name)))
        .collect();
    let read = |module: &&ptx::Module| {
        let origin = module.to_string();
        rows(&parsed(module.text(), &origin)?, &origin, true, wants)
    };
    let all: Vec<Result<Vec<Row>, Failure>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            modules.iter().map(|module| scope.spawn(move || read(module))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|rows| rows.expect("reading PTX does not panic")).collect()
    });
    Ok(all.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
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
    let parts: Vec<&Parts> = rows.iter().filter_map(|row| row.parts.as_ref()).collect();
    let widest = |title: &str, of: fn(&Parts) -> &String| {
        parts.iter().map(|p| of(p).len()).chain([title.len()]).max().unwrap_or(0)
    };
    type Column = (&'static str, fn(&Parts) -> &String);
    const COLUMNS: [Column; 5] = [
        ("collective", |p| &p.collective),
        ("algo", |p| &p.algorithm),
        ("proto", |p| &p.protocol),
        ("op", |p| &p.op),
        ("type", |p| &p.data_type),
    ];
    let mut out = String::new();
    let _ = write!(out, "{:name$}  ", "kernel");
    for (title, of) in COLUMNS.iter().filter(|_| !parts.is_empty()) {
        let _ = write!(out, "{title:<0$}  ", widest(title, *of));
    }
    let _ = writeln!(out, "arch    PTX bytes  instructions  registers");
    for row in rows {
        let _ = write!(out, "{:name$}  ", row.name);
        if let Some(parts) = &row.parts {
            for (title, of) in &COLUMNS {
                let _ = write!(out, "{:<1$}  ", of(parts), widest(title, *of));
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
    fn names_are_told_apart_from_their_end() {
        let parts = Parts::of("all_reduce_ring_ll128_sum_float").expect("has five parts");
        assert_eq!((parts.collective.as_str(), parts.algorithm.as_str()), ("all_reduce", "ring"));
        assert_eq!((parts.protocol.as_str(), parts.op.as_str()), ("ll128", "sum"));
        assert_eq!(parts.data_type, "float");
        assert_eq!(Parts::of("vector_add"), None);
    }
}
