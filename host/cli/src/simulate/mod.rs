//! `ferroccl simulate`: what calls would take on a cluster that is described.
//!
//! ```text
//! args      the command line
//! results   the table of times, the links, JSON, the plot
//! what_if   what faults cost
//! ```
//!
//! The simulation itself is the library's (`ferroccl-simulator`).

mod args;
mod results;
mod what_if;

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::CommandFactory;
use clap::error::ErrorKind;
use ferroccl::ProtocolId;
use ferroccl::config::Config;
use ferroccl::graph::tuning::{Collective, algorithms};
use ferroccl::topology::{System, TopologyError};
use ferroccl_simulator::{
    Call, Cluster, FabricShape, FabricSpec, Fault, Options, SWITCH_US, SimulateError, TunerRow,
    tuner_file,
};
use indicatif::{ProgressBar, ProgressStyle};

pub(crate) use args::SimulateArgs;
use results::Results;
use what_if::WhatIf;

use crate::registered::registry;
use crate::source::Source;

/// Why there is no simulation.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Library(#[from] ferroccl::Error),
    #[error(transparent)]
    Topology(#[from] TopologyError),
    #[error(transparent)]
    Simulate(#[from] SimulateError),
    #[error("{path}: {error}")]
    File { path: String, error: io::Error },
    #[error("output: {0}")]
    Output(#[from] io::Error),
    #[error("the plot: {0}")]
    Plot(String),
    #[error(
        "{0} has no GPUs of a known compute capability; --file takes the topology of a host that has, and --assume what it leaves open"
    )]
    NoGpus(String),
    #[error("nothing could be simulated")]
    Nothing,
}

/// Simulates; the exit code says whether there was something to simulate.
pub(crate) fn execute(args: &SimulateArgs) -> ExitCode {
    match simulate(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Output(e)) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Err(failure) => {
            crate::complain("simulate", &failure);
            ExitCode::FAILURE
        }
    }
}

/// A command line that makes no sense ends the program as clap's own errors do.
fn refuse(reason: impl std::fmt::Display) -> ! {
    crate::Cli::command().error(ErrorKind::ValueValidation, reason).exit()
}

/// What all simulations of a command have in common.
struct Setting {
    config: Config,
    system: System,
    fabric: FabricSpec,
    hosts: u32,
    /// What to call the hosts, and the network.
    names: [String; 2],
    options: Options,
    calls: Vec<Call>,
    progress: ProgressBar,
}

impl Setting {
    fn cluster(&self, faults: &[Fault]) -> Result<Cluster, Failure> {
        Ok(Cluster::new(&self.system, self.hosts, &self.config, &self.fabric, faults)?)
    }
}

fn simulate(args: &SimulateArgs) -> Result<(), Failure> {
    let config = Config::from_env_with(registry())?;
    ferroccl::log::init(&config)?;
    let sizes = args.sizes().unwrap_or_else(|reason| refuse(reason));
    for path in [&args.json, &args.plot, &args.trace, &args.tuner, &args.fit, &args.finish]
        .into_iter()
        .flatten()
    {
        if path.as_os_str() != "-" {
            crate::output_file::check(path).map_err(|error| named(path, error))?;
        }
    }
    let system = Source::merged(&args.source.system(&config)?, &config)?;
    if system.min_sm() == 0 {
        return Err(Failure::NoGpus(args.source.name(&config)));
    }
    let system = args.used(&system).unwrap_or_else(|reason| refuse(reason));
    let (fabric, name) = fabric(&args.fabric)?;
    let ways: Vec<_> = match &args.algorithms[..] {
        [] => algorithms(args.collective).iter().map(|a| Some(*a)).collect(),
        some => some.iter().map(|a| Some(*a)).collect(),
    };
    let protocols = match (&args.fit, args.protocol) {
        (Some(_), None) => ProtocolId::ALL.iter().map(|protocol| Some(*protocol)).collect(),
        (_, protocol) => vec![protocol],
    };
    let mut calls = Vec::new();
    for bytes in sizes {
        for algorithm in &ways {
            let call = |protocol: &Option<ProtocolId>| Call {
                collective: args.collective,
                bytes,
                algorithm: *algorithm,
                protocol: *protocol,
            };
            calls.extend(protocols.iter().map(call));
        }
    }
    let options = Options {
        exact_steps: args.steps.unwrap_or(Options::default().exact_steps),
        skew_us: args.skew,
        seed: args.seed,
        trace_steps: if args.trace.is_some() { 200_000 } else { 0 },
        ..Options::default()
    };
    let names = [args.source.name(&config), name];
    let runs = calls.len() * (1 + args.what_if().len());
    let progress = progress(runs as u64);
    let setting =
        Setting { config, system, fabric, hosts: args.nodes, names, options, calls, progress };
    let text = match args.what_if()[..] {
        [] => {
            let results = Results::new(&setting, &args.faults, args.collective)?;
            write_files(args, &setting, &results)?;
            if args.json.is_some() { results.json() } else { results.to_string() }
        }
        ref faults => {
            let what_if = WhatIf::new(&setting, &args.faults, faults)?;
            if args.json.is_some() { what_if.json() } else { what_if.to_string() }
        }
    };
    setting.progress.finish_and_clear();
    match &args.json {
        Some(path) if path.as_os_str() != "-" => write_file(path, &text),
        _ => Ok(io::stdout().lock().write_all(text.as_bytes())?),
    }
}

/// The times of a collective on `hosts` hosts like `system`, as text: what `ferroccl explain --simulate` has below its own.
pub(crate) fn beside(
    (system, name): (&System, &str),
    config: &Config,
    hosts: u32,
    collective: Collective,
    sizes: &[u64],
) -> Result<String, String> {
    let fabric = FabricSpec::default();
    let names = [name.to_owned(), fabric.to_string()];
    let ways = algorithms(collective).iter().map(|algorithm| Some(*algorithm));
    let call = |bytes: u64, algorithm| Call { collective, bytes, algorithm, protocol: None };
    let calls: Vec<Call> = sizes
        .iter()
        .flat_map(|bytes| ways.clone().map(move |algorithm| call(*bytes, algorithm)))
        .collect();
    let progress = progress(calls.len() as u64);
    let (config, system, options) = (config.clone(), system.clone(), Options::default());
    let setting = Setting { config, system, fabric, hosts, names, options, calls, progress };
    let results = Results::new(&setting, &[], collective).map_err(|failure| failure.to_string())?;
    setting.progress.finish_and_clear();
    Ok(results.to_string())
}

/// The files beside the text.
fn write_files(args: &SimulateArgs, setting: &Setting, results: &Results) -> Result<(), Failure> {
    if let Some(path) = &args.plot {
        write_file(path, &results.svg()?)?;
    }
    if let Some(path) = &args.trace {
        // Of the last size the fastest way that was simulated step by step.
        let last = results.fastest().into_iter().rev().find(|outcome| !outcome.trace.is_empty());
        write_file(path, &last.ok_or(Failure::Nothing)?.trace_json())?;
    }
    if let Some(path) = &args.tuner {
        let rows: Vec<_> = results
            .fastest()
            .into_iter()
            .map(|outcome| TunerRow { hosts: setting.hosts, outcome })
            .collect();
        write_file(path, &tuner_file(&rows))?;
    }
    if let Some(path) = &args.fit {
        write_file(path, &results.fitted_json())?;
    }
    if let Some(path) = &args.finish {
        write_file(path, &results.finish_csv())?;
    }
    Ok(())
}

/// The network that is asked for, and what to call it: one of the built-in shapes, or a file.
fn fabric(text: &str) -> Result<(FabricSpec, String), Failure> {
    match text.parse::<FabricSpec>() {
        Ok(spec) => {
            let name = spec.to_string();
            Ok((spec, name))
        }
        Err(_) if Path::new(text).exists() => {
            let read = std::fs::read_to_string(text);
            let shape = FabricShape::File(read.map_err(|error| named(Path::new(text), error))?);
            Ok((FabricSpec { shape, switch_us: SWITCH_US }, text.to_owned()))
        }
        Err(error) => Err(error.into()),
    }
}

/// A bar on a terminal, which says how many of the runs are done.
fn progress(runs: u64) -> ProgressBar {
    if !io::stderr().is_terminal() || runs < 2 {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {pos} of {len} simulated, {msg}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(runs).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn named(path: &Path, error: io::Error) -> Failure {
    Failure::File { path: path.display().to_string(), error }
}

fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    crate::output_file::write(path, text.as_bytes()).map_err(|error| named(path, error))
}
