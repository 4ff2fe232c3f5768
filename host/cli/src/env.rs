//! `ferroccl env`: every knob, what it may be and what it is.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use ferroccl::config::Config;

use crate::registered::registry;

/// List the environment variables that the library reads, with their values
#[derive(Args, Clone, Debug)]
pub(crate) struct EnvArgs {
    /// Only what is set
    #[arg(long)]
    set: bool,
}

/// Prints the table; a variable that makes no sense is an error.
pub(crate) fn execute(args: &EnvArgs) -> ExitCode {
    let config = match Config::from_env_with(registry()) {
        Ok(config) => config,
        Err(error) => {
            crate::complain("env", error);
            return ExitCode::FAILURE;
        }
    };
    crate::complain_of_unknown("env", &config);
    match print(args, &config, &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Err(error) => {
            crate::complain("env", format_args!("output: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn print(args: &EnvArgs, config: &Config, out: &mut impl Write) -> io::Result<()> {
    for (knob, value) in config.entries() {
        let is_set = config.is_set(knob.name);
        if args.set && !is_set {
            continue;
        }
        match (is_set, value.as_str()) {
            (true, value) => writeln!(out, "{}={value}", knob.name)?,
            (false, "") => writeln!(out, "{} is not set", knob.name)?,
            (false, value) => writeln!(out, "{} is not set; default {value}", knob.name)?,
        }
        writeln!(out, "    {}", knob.meaning)?;
        writeln!(out, "    legal: {}", knob.legal())?;
    }
    Ok(())
}
