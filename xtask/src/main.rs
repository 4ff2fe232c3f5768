//! The project's checks, in three tiers, and its PTX.
//!
//! ```text
//! cargo xtask check      formatting, lints, documentation, unit tests: before every commit
//! cargo xtask test       all that a change must pass: what `scripts/test` and CI run
//! cargo xtask nightly    what takes too long for that
//!
//! cargo xtask ptx NAME           the PTX of one kernel, or of one module
//! cargo xtask package-kernels    all PTX, packed, for a release to carry: docs/building.md
//! cargo xtask install            libnccl.so.2 for programs made for NCCL: docs/nccl.md
//! cargo xtask book               the book, of docs/, by mdBook
//! ```
//!
//! Each step is printed with its command, and at the end with its time. CONTRIBUTING.md says what each tier is for.

mod book;
mod features;
mod install;
mod licences;
mod new_crates;
mod programs;
mod ptx;
mod run;
mod setup;
mod skips;
mod space;
mod tiers;

use std::process::ExitCode;

use clap::{Args, Parser};

use run::Step;

/// FerroCCL's checks.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
enum Arguments {
    /// Formatting, lints, documentation and unit tests: a few minutes
    Check {
        #[command(flatten)]
        which: Which,
    },
    /// All that a change must pass: `check`, feature sets, licences, and all tests
    Test {
        #[command(flatten)]
        which: Which,
        /// Arguments for `cargo test`: a filter, or `--test NAME`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// What takes too long for `test`: sanitizers, Miri, fuzzing, mutants, all feature sets
    Nightly {
        #[command(flatten)]
        which: Which,
    },
    /// Lists the steps of each tier
    Steps,
    /// The PTX of one kernel, or of one module, as it is after an edit
    Ptx(ptx::Which),
    /// Makes all PTX, packed, for a release to carry
    PackageKernels,
    /// Builds libnccl.so.2, and installs it with its header
    Install(install::Where),
    /// Makes the book in target/book, by mdBook
    Book,
}

#[derive(Args)]
struct Which {
    /// Runs this step only; may be given more than once
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
}

impl Which {
    fn of(&self, mut steps: Vec<Step>) -> Vec<Step> {
        if !self.only.is_empty() {
            steps.retain(|step| self.only.iter().any(|name| name == step.name));
            assert!(!steps.is_empty(), "no such step: see `cargo xtask steps`");
        }
        steps
    }
}

fn main() -> ExitCode {
    let passed = match Arguments::parse() {
        Arguments::Check { which } => run::until_one_fails(which.of(tiers::check())),
        Arguments::Test { which, arguments } => {
            run::until_one_fails(which.of(tiers::test(&arguments)))
        }
        Arguments::Nightly { which } => run::every_one(which.of(tiers::nightly())),
        Arguments::Steps => {
            for (tier, steps) in [
                ("check", tiers::check()),
                ("test", tiers::test(&[])),
                ("nightly", tiers::nightly()),
            ] {
                println!("{tier}");
                steps.iter().for_each(|step| println!("  {:12} {}", step.name, step.what));
            }
            true
        }
        Arguments::Ptx(which) => done(ptx::one(&which)),
        Arguments::PackageKernels => done(ptx::package()),
        Arguments::Install(place) => done(install::install(&place)),
        Arguments::Book => done(book::make()),
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Says what went wrong, if anything did.
fn done(result: Result<(), Box<dyn std::error::Error>>) -> bool {
    result.inspect_err(|e| eprintln!("{e}")).is_ok()
}
