//! `ferroccl new`: a crate with a protocol, a collective or a kernel of one's own to begin with.
//!
//! What it begins with are the sources of `examples/lab` in the repository that this command was built from, under another name: they
//! compile, they are tested, and their comments explain them. The rest of the crate is in [`files`].

mod files;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Args;

use files::{CrateNames, Kind};

const AFTER_HELP: &str = "\
The crate is a workspace of its own, with the command: in it, `cargo test` runs the suite, `cargo run -- perf ...` measures, \
`cargo run -- watch` checks the kernels at each save.

Examples:
  ferroccl new protocol my_lines         lines of data and a flag, with the suite and broken rules
  ferroccl new collective halving        an all-reduce in verbs, with the suite
  ferroccl new kernel prefix_sum         a kernel that is launched by itself";

/// Make a crate with a protocol, a collective or a kernel of your own to begin with
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct NewArgs {
    /// What it is to have
    #[arg(value_enum)]
    kind: Kind,
    /// Its name, and the crate's: lower case, digits and _
    #[arg(value_name = "NAME", value_parser = name)]
    name: String,
    /// Where the crate is made; it must not be there yet [default: a folder NAME here]
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,
    /// The sources of FerroCCL that it depends on, and begins with
    #[arg(long, value_name = "FOLDER", default_value = crate::REPOSITORY, hide_default_value = true)]
    sources: PathBuf,
}

/// Reads a name.
fn name(text: &str) -> Result<String, String> {
    let begins = text.starts_with(|c: char| c.is_ascii_lowercase());
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if !begins || !text.chars().all(good) || text.len() > 24 {
        return Err(
            "a name begins with a letter, has lower case letters, digits and _, and 24 at most"
                .into(),
        );
    }
    if ["ll", "ll128", "simple", "ferroccl", "test"].contains(&text) {
        return Err("this name is taken".into());
    }
    Ok(text.to_owned())
}

/// Why there is no crate.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{} is there already", .0.display())]
    There(PathBuf),
    #[error(
        "{} does not have the sources of FerroCCL ({error}): --sources says where they are",
        path.display()
    )]
    NoSources { path: PathBuf, error: io::Error },
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
}

pub(crate) fn execute(args: &NewArgs) -> ExitCode {
    match make(args) {
        Ok(text) => {
            let _ = io::stdout().lock().write_all(text.as_bytes()); // nobody has to read it
            ExitCode::SUCCESS
        }
        Err(failure) => {
            crate::complain("new", &failure);
            ExitCode::FAILURE
        }
    }
}

fn make(args: &NewArgs) -> Result<String, Failure> {
    let to = args.to.clone().unwrap_or_else(|| PathBuf::from(&args.name));
    if to.exists() {
        return Err(Failure::There(to));
    }
    let no_sources = |path: &Path| {
        let path = path.to_owned();
        move |error| Failure::NoSources { path, error }
    };
    let sources = args.sources.canonicalize().map_err(no_sources(&args.sources))?;
    let read = |file: &str| {
        let path = sources.join("examples/lab").join(file);
        fs::read_to_string(&path).map_err(no_sources(&path))
    };
    let names = CrateNames::new(&args.name);
    // All is read before anything is written.
    let all = files::all(args.kind, &names, &sources.display().to_string(), &read)?;
    for (file, text) in &all {
        let path = to.join(file);
        let written = path.parent().map_or(Ok(()), fs::create_dir_all);
        written
            .and_then(|()| fs::write(&path, text))
            .map_err(|error| Failure::File { path, error })?;
    }
    // CrateNames of other lengths break other lines. It can be read without, too.
    let _ = Command::new("cargo").arg("fmt").current_dir(&to).stderr(Stdio::null()).status();
    let mut text = format!(
        "{to} has a {} to begin with: src/{}.rs\n\n  cd {to}\n  cargo test            the suite, on the CPU and in the emulator\n",
        args.kind.words(),
        args.name,
        to = to.display()
    );
    if args.kind != Kind::Kernel {
        text += "  cargo run -- watch    at each save: seeds, instructions and simulated times, beside the library's\n";
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_names() {
        for good in ["a", "my_lines", "ll64", "x9"] {
            assert_eq!(name(good), Ok(good.to_owned()));
        }
        for bad in ["", "9x", "My", "a-b", "ll128", "a_name_that_is_much_too_long_"] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }
}
