//! `ferroccl ptx models`

use std::fmt::Write as _;
use std::io::{self, Write as _};

use clap::Args;
use ferroccl::runtime::ptx::{ASSUMED, MachineModel, Timing};

use super::Failure;
use crate::model;

const AFTER_HELP: &str = "\
A file has all figures, each with its value and its source. Change what is measured, and give it to --model:

  ferroccl ptx models h100-nvlink --json > mine.json
  ferroccl perf all_reduce --runtime ptx --model mine.json -g 2

ferroccl bench --runtime cuda --write-model FILE writes such a file from what it measures on a GPU.";

/// Show the machines whose times the emulator's clock goes by, and where each figure is from
///
/// Without a name, all of them. A time that comes of these figures is a simulation.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub(super) struct ModelsArgs {
    /// A machine, or a file of one
    #[arg(value_name = "MACHINE", value_parser = model::find)]
    model: Option<MachineModel>,
    /// Print as a file for --model
    #[arg(long, requires = "model")]
    json: bool,
}

pub(super) fn run(args: &ModelsArgs) -> Result<(), Failure> {
    let out = match &args.model {
        None => list(),
        Some(model) if args.json => serde_json::to_string_pretty(model)? + "\n",
        Some(model) => table(model),
    };
    io::stdout().lock().write_all(out.as_bytes())?;
    Ok(())
}

/// Figures of a machine that nobody has measured: all whose source says so.
fn assumed(model: &MachineModel) -> usize {
    Timing::FIGURES.iter().filter(|(name, _)| model.source(name).starts_with(ASSUMED)).count()
}

fn list() -> String {
    let mut out = format!("{:<14} {:>5} {:>5}  figures\n", "machine", "GPUs", "SMs");
    for model in MachineModel::ALL {
        let (all, assumed) = (Timing::FIGURES.len(), assumed(model));
        let MachineModel { name, gpus, sms, .. } = model;
        let _ = writeln!(out, "{name:<14} {gpus:>5} {sms:>5}  {all}, of which {assumed} assumed");
    }
    out
}

fn table(model: &MachineModel) -> String {
    let MachineModel { name, gpus, sms, capability, .. } = model;
    let mut out = format!("{name}: {gpus} GPUs of {sms} SMs, sm_{capability}\n");
    for (figure, what) in Timing::FIGURES {
        let value = model.timing.figure(figure).unwrap_or_default();
        let _ = writeln!(out, "\n{figure:<17} {value:>6}  {}", what.trim());
        let _ = writeln!(out, "{:25} {}", "", model.source(figure));
    }
    out
}
