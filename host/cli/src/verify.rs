//! `ferroccl verify`: protocols in every way that small calls can go.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use ferroccl::ProtocolId;
use ferroccl::conformance::{Bounds, Counterexample, ProtocolTests, Verification, VerifiedCalls};
use ferroccl::device::orders::{Published, Side};
use ferroccl::device::prims::{Ll, Ll128, Rules, Simple};
use serde::Serialize;

use crate::perf::values::one_of;
use crate::registered::{self, registry};

const AFTER_HELP: &str = "\
The kernels run on the CPU, again and again, each time another way, until there is no other: every block may go on, and every load \
of a word may see each store that PTX's memory model leaves to it. Accesses to data must be in an order; no wait may last for ever; \
results must be right. What is right then is so for calls of this size. A block has one lane: barriers within a block are for the \
emulator (`ferroccl perf --runtime ptx`).

The order of LL128's flag stands for what the protocol assumes of a GPU: that a line of 128 bytes arrives whole.

An all-reduce of 2 ranks has 2 steps, of 3 ranks 4. In a pipeline rank 0 sends as far ahead as slots allow. With more ranks, calls or \
steps there are many times as many ways: 2 all-reduces of Simple by 3 ranks are not done in a quarter of an hour.

Examples:
  ferroccl verify                                all protocols: 2 all-reduces, and a pipeline of 3 steps
  ferroccl verify LL128 --weaken                 what each memory order is for: what goes wrong without
  ferroccl verify Simple --pipeline 6 --slots 4
  ferroccl verify LL --all-reduces 1 --ranks 3
  ferroccl verify LL128 --weaken --explain --svg race.svg";

/// Try every way that small calls of a protocol can go, by PTX's memory model
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP, after_help = "What is tried, and examples: --help")]
pub(crate) struct VerifyArgs {
    /// Protocols [default: all]
    #[arg(value_name = "PROTOCOL", ignore_case = true, value_parser = one_of::<ProtocolId>())]
    protocols: Vec<ProtocolId>,
    /// So many all-reduces, one behind the other [default: 2, and a pipeline]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    all_reduces: Option<u32>,
    /// A broadcast through the slots of so many steps [default: 3, and all-reduces]
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u32).range(1..=64))]
    pipeline: Option<u32>,
    /// Ranks
    #[arg(short = 'g', long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=8))]
    ranks: u32,
    /// Slots of a connection
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=16))]
    slots: u32,
    /// Begin just before LL's flags repeat
    #[arg(long)]
    wraps: bool,
    /// Relax each memory order in turn, and break each rule of the library's protocols
    #[arg(long)]
    weaken: bool,
    /// Say of each run that goes wrong which accesses are in no order, with a drawing
    #[arg(long)]
    explain: bool,
    /// Draw the first race that is found
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write what was found as JSON, - for standard output instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Give up with so many states
    #[arg(long, value_name = "N", default_value_t = 20_000_000)]
    most_states: u64,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Refused(String),
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("output: {0}")]
    Output(#[from] io::Error),
}

/// What was found of one protocol in one way to call it.
#[derive(Debug, Serialize)]
struct Found {
    protocol: String,
    calls: String,
    /// What was relaxed or broken.
    without: Option<String>,
    executions: u64,
    states: u64,
    runs: u64,
    seconds: f64,
    complete: bool,
    wrong: Option<String>,
}

macro_rules! broken {
    ($(#[$m:meta])* $name:ident, $rule:ident) => {
        $(#[$m])*
        struct $name;
        impl Rules for $name {
            const $rule: bool = false;
        }
    };
}
broken!(
    /// Slots are filled again before they are read.
    NoCredit,
    WAIT_FOR_CREDIT
);
broken!(
    /// Of a line of LL one half is looked at.
    OneFlag,
    CHECK_BOTH_FLAGS
);

/// The library's protocols with a rule broken each.
fn broken(protocol: ProtocolId) -> Vec<(&'static str, ProtocolTests)> {
    const CREDIT: &str = "waiting for credit";
    match protocol {
        ProtocolId::Simple => vec![(CREDIT, ProtocolTests::of::<Simple<NoCredit>>())],
        ProtocolId::Ll128 => vec![(CREDIT, ProtocolTests::of::<Ll128<NoCredit>>())],
        ProtocolId::Ll => vec![
            (CREDIT, ProtocolTests::of::<Ll<NoCredit>>()),
            ("a line's second flag", ProtocolTests::of::<Ll<OneFlag>>()),
        ],
        ProtocolId::Own(_) => Vec::new(),
    }
}

/// Verifies; the exit code says whether all protocols are right, and everything was tried.
pub(crate) fn execute(args: &VerifyArgs) -> ExitCode {
    match verify(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // Whoever read the table has seen enough.
        Err(Failure::Output(e)) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Err(failure) => {
            crate::complain("verify", &failure);
            ExitCode::FAILURE
        }
    }
}

/// What is printed and kept meanwhile.
struct Report<'a> {
    args: &'a VerifyArgs,
    /// Whether the table is printed.
    table: bool,
    all: Vec<Found>,
    svg: Option<String>,
}

fn verify(args: &VerifyArgs) -> Result<bool, Failure> {
    let protocols =
        if args.protocols.is_empty() { registered::protocols() } else { args.protocols.clone() };
    let usual = args.all_reduces.is_none() && args.pipeline.is_none();
    let named = args.all_reduces.map(VerifiedCalls::AllReduces).into_iter();
    let named = named.chain(args.pipeline.map(VerifiedCalls::Pipeline));
    let calls: Vec<VerifiedCalls> = if usual { Bounds::USUAL.to_vec() } else { named.collect() };
    let to_stdout = args.json.as_ref().is_some_and(|file| file.as_os_str() == "-");
    let mut report = Report { args, table: !to_stdout, all: Vec::new(), svg: None };
    report.line("Every way that calls can go, by PTX's memory model. Blocks have one lane.\n")?;
    let mut right = true;
    for protocol in protocols {
        let tests = registry().tests_of(protocol).ok_or_else(|| {
            Failure::Refused(format!("{} was registered without its type", protocol.name()))
        })?;
        let broken = if args.weaken { broken(protocol) } else { Vec::new() };
        for &calls in &calls {
            let mut bounds = Bounds::of(calls);
            (bounds.ranks, bounds.slots, bounds.wraps) = (args.ranks, args.slots, args.wraps);
            bounds.most_states = args.most_states;
            let found = report.tried(protocol, (&tests, None), &bounds, None)?;
            right &= found.counterexample.is_none() && found.checked.complete;
            if !args.weaken {
                continue;
            }
            for order in found.orders {
                report.tried(protocol, (&tests, None), &bounds, Some(order))?;
            }
            for (rule, tests) in &broken {
                report.tried(protocol, (tests, Some(rule)), &bounds, None)?;
            }
        }
    }
    let file = |path: &PathBuf, text: &[u8]| {
        let written = crate::output_file::write(path, text);
        written.map_err(|error| Failure::File { path: path.clone(), error })
    };
    if let Some(path) = &args.json {
        let text = serde_json::to_vec_pretty(&report.all).unwrap_or_default();
        if to_stdout { io::stdout().lock().write_all(&text)? } else { file(path, &text)? }
    }
    match (&args.svg, &report.svg) {
        (Some(path), Some(svg)) => file(path, svg.as_bytes())?,
        (Some(path), None) => {
            let reason = "no race was found that could be drawn; --weaken makes some";
            return Err(Failure::Refused(format!("{}: {reason}", path.display())));
        }
        (None, _) => {}
    }
    Ok(right)
}

impl Report<'_> {
    fn line(&self, text: impl std::fmt::Display) -> Result<(), Failure> {
        if self.table { Ok(writeln!(io::stdout().lock(), "{text}")?) } else { Ok(()) }
    }

    /// Tries one protocol within these bounds, with a memory order relaxed or a rule broken or neither, and says what was found.
    fn tried(
        &mut self,
        protocol: ProtocolId,
        (tests, rule): (&ProtocolTests, Option<&str>),
        bounds: &Bounds,
        order: Option<(Published, Side)>,
    ) -> Result<Verification, Failure> {
        let begun = Instant::now();
        let found = tests.verify(bounds, order).map_err(Failure::Refused)?;
        let seconds = begun.elapsed().as_secs_f64();
        let order = order.map(|(word, side)| {
            let side = if side == Side::Release { "release" } else { "acquire" };
            format!("the {side} of the {}", word.name())
        });
        let without = rule.map(str::to_owned).or(order);
        let wrong = found.counterexample.as_ref();
        let verdict = match wrong {
            Some(Counterexample { wrong, .. }) => format!("wrong: {wrong}"),
            None if !found.checked.complete => "not all tried".to_owned(),
            None if without.is_some() => "makes no difference here".to_owned(),
            None => "right".to_owned(),
        };
        let (executions, states) = (found.checked.executions, found.checked.states);
        match &without {
            Some(what) => self.line(format_args!("  without {what:<36} {verdict}"))?,
            None => {
                self.line(format_args!("{:<8} {bounds}: {verdict}", protocol.name()))?;
                self.line(format_args!(
                    "  {executions} executions, {states} states, {seconds:.2} s"
                ))?;
            }
        }
        if let Some(wrong) = wrong {
            if self.args.explain || without.is_none() {
                self.line(format_args!("\n{}", wrong.explanation))?;
            }
            if self.svg.is_none() {
                self.svg = wrong.explanation.svg();
            }
        }
        self.all.push(Found {
            protocol: protocol.name().to_owned(),
            calls: bounds.to_string(),
            without,
            executions,
            states,
            runs: found.checked.runs,
            seconds,
            complete: found.checked.complete,
            wrong: wrong.map(|wrong| wrong.wrong.to_string()),
        });
        Ok(found)
    }
}
