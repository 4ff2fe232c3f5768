//! The files of a new crate.

use clap::ValueEnum;

/// What a new crate has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// A protocol: how a step crosses a connection
    Protocol,
    /// A collective: an all-reduce in verbs, in any protocol
    Collective,
    /// A kernel that is no call of the library's
    Kernel,
}

impl Kind {
    pub(super) fn words(self) -> &'static str {
        match self {
            Kind::Protocol => "protocol",
            Kind::Collective => "collective",
            Kind::Kernel => "kernel",
        }
    }
}

/// A name as modules, types and constants have it.
pub(super) struct CrateNames {
    /// `my_lines`
    pub snake: String,
    /// `MyLines`
    pub camel: String,
    /// `MY_LINES`
    pub upper: String,
}

impl CrateNames {
    pub(super) fn new(snake: &str) -> Self {
        let camel = snake.split('_').flat_map(|word| {
            let mut letters = word.chars();
            let first = letters.next().map(|c| c.to_ascii_uppercase());
            first.into_iter().chain(letters)
        });
        CrateNames {
            snake: snake.to_owned(),
            camel: camel.collect(),
            upper: snake.to_ascii_uppercase(),
        }
    }

    /// A source of the lab's under this name.
    fn rename(&self, text: &str, [snake, camel, upper]: [&str; 3]) -> String {
        let (before, word) =
            snake.rsplit_once(' ').map_or(("", snake), |(_, word)| ("pub fn ", word));
        text.replace(camel, &self.camel)
            .replace(upper, &self.upper)
            .replace(&format!("{before}{word}"), &format!("{before}{}", self.snake))
    }
}

/// Every file, with its path in the crate. `read` reads one of the lab's.
pub(super) fn all<E>(
    kind: Kind,
    names: &CrateNames,
    sources: &str,
    read: &dyn Fn(&str) -> Result<String, E>,
) -> Result<Vec<(String, String)>, E> {
    let CrateNames { snake, .. } = names;
    let (file, old) = match kind {
        Kind::Protocol => ("src/ll64.rs", ["ll64", "Ll64", "LL64"]),
        Kind::Collective => ("src/halving.rs", ["mod halving", "Halving", "HALVING"]),
        Kind::Kernel => ("src/scan.rs", ["pub fn scan", "Scan", "SCAN"]),
    };
    let source = names.rename(&read(file)?, old);
    let source = source.replace("host::scan", &format!("host::{snake}"));
    let mut manifest = read("Cargo.toml")?;
    for (from, to) in [
        ("ferroccl-lab", snake.as_str()),
        ("name = \"lab\"", &format!("name = \"{snake}\"")),
        ("default-run = \"lab\"", &format!("default-run = \"{snake}\"")),
        ("\"../../", &format!("\"{sources}/")),
        ("\"../..\"", &format!("\"{sources}\"")),
        (
            "Protocols for FerroCCL, written outside of it",
            &format!("A {} for FerroCCL", kind.words()),
        ),
    ] {
        manifest = manifest.replace(from, to);
    }
    // What the lab's manifest says of itself.
    let manifest = manifest
        .split_once("[package]")
        .map_or(manifest.clone(), |(_, rest)| {
            format!(
                "[package]{}",
                rest.replace(
                    "`cargo run -- perf all_reduce --proto ll64`",
                    "`cargo run -- perf all_reduce`"
                )
            )
        })
        .replace("with the lab's kernels", "with the crate's kernels");
    let build = read("build.rs")?
        .replace("lab_kernels", &format!("{snake}_kernels"))
        .replace("\"lab\"", &format!("\"{snake}\""))
        .replace("lab/src", &format!("{snake}/src"))
        .replace("lab.ptx", &format!("{snake}.ptx"));
    let main = read("src/main.rs")?.replace("ferroccl_lab", snake).replace(
        "with the lab's protocols, algorithms and kernels",
        &format!("with this {}", kind.words()),
    );
    Ok(vec![
        ("Cargo.toml".to_owned(), manifest),
        ("build.rs".to_owned(), build),
        // The versions that were tested together.
        ("Cargo.lock".to_owned(), read("Cargo.lock")?.replace("ferroccl-lab", snake)),
        ("rustfmt.toml".to_owned(), read("../../rustfmt.toml")?),
        (".gitignore".to_owned(), "/target\n".to_owned()),
        ("README.md".to_owned(), fill(README, kind, names)),
        ("src/main.rs".to_owned(), main),
        (format!("src/{snake}.rs"), source),
        ("src/lib.rs".to_owned(), fill(LIB, kind, names)),
        ("src/kernels.rs".to_owned(), fill(KERNELS, kind, names)),
        ("src/table.rs".to_owned(), fill(table(kind), kind, names)),
        (format!("tests/{snake}.rs"), fill(tests(kind), kind, names)),
    ])
}

/// A template with the names put in.
fn fill(template: &str, kind: Kind, names: &CrateNames) -> String {
    let (registry, use_it) = match kind {
        Kind::Protocol => (
            "Registry::new().protocol::<@Camel@>(256 << 10).kernels(KERNELS, PTX)",
            "use @snake@::@Camel@;\n",
        ),
        Kind::Collective => ("Registry::new().kernels(KERNELS, PTX)", ""),
        // What is launched by itself is for no call.
        Kind::Kernel => ("Registry::new()", ""),
    };
    let more = match kind {
        Kind::Kernel => "",
        _ => {
            "cargo run -- watch       # at each save: seeds, instructions and simulated times, beside the library's\n\
             cargo run -- perf all_reduce -g 4 -e 4K\ncargo run -- ptx list @snake@\n"
        }
    };
    template
        .replace("@registry@", registry)
        .replace("@use@", use_it)
        .replace("@more@", more)
        .replace("@what@", kind.words())
        .replace("@Camel@", &names.camel)
        .replace("@UPPER@", &names.upper)
        .replace("@snake@", &names.snake)
}

const README: &str = "\
# @snake@

A @what@ for FerroCCL: `src/@snake@.rs`. Its kernels are a row each in `src/table.rs`, for the host and for the GPU.

```sh
cargo test               # the suite: on the CPU under an adversary, over a network, as PTX in the emulator
@more@```

PTX takes Debian's `rustc-web` and `rust-web-src`, or a nightly with `rust-src`. Without, the crate is built and tested for the CPU.
";

const LIB: &str = "\
//! A @what@ for FerroCCL.

pub mod @snake@;
mod table;

pub use table::*;

use ferroccl::Registry;
@use@
/// What communicators and the command are given.
#[must_use]
pub fn registry() -> Registry {
    @registry@
}

/// The kernels as PTX of sm_80; empty where there was no compiler for it.
pub const PTX: &str = include_str!(concat!(env!(\"OUT_DIR\"), \"/@snake@.ptx\"));
";

const KERNELS: &str = "\
//! The kernels as a crate of PTX entries. Cargo does not know it: `build.rs` compiles it.
#![no_std]
#![feature(abi_ptx)]

mod @snake@;
mod table;
";

/// The kernels of a crate.
fn table(kind: Kind) -> &'static str {
    match kind {
        Kind::Protocol => {
            "\
//! The kernels, a row each: a constant for the host, an entry for the GPU.

use ferroccl_device::collectives::{AllGatherRing, AllReduceRing};
use ferroccl_device::prims::{Ll, Ll128, Simple};
use ferroccl_device::reduce::{AnyFloat, Sum};

use crate::@snake@::@Camel@;

ferroccl_device::kernels! {
    /// All of them.
    pub static KERNELS;
    /// Sums of floats around a ring.
    pub ALL_REDUCE = \"all_reduce_ring_@snake@_sum_float\": AllReduceRing, f32, Sum, @Camel@;
    /// The other operators.
    pub ALL_REDUCE_ANY = \"all_reduce_ring_@snake@_any_float\": AllReduceRing, f32, AnyFloat, @Camel@;
    /// A ring all-gather, of any type.
    pub ALL_GATHER = \"all_gather_ring_@snake@\": AllGatherRing, u8, Sum, @Camel@;
    /// The library's protocols, to compare with.
    pub LL = \"all_reduce_ring_ll_sum_float\": AllReduceRing, f32, Sum, Ll;
    /// LL128.
    pub LL128 = \"all_reduce_ring_ll128_sum_float\": AllReduceRing, f32, Sum, Ll128;
    /// Simple.
    pub SIMPLE = \"all_reduce_ring_simple_sum_float\": AllReduceRing, f32, Sum, Simple;
}
"
        }
        Kind::Collective => {
            "\
//! The kernels, a row each: a constant for the host, an entry for the GPU.

use ferroccl_device::collectives::AllReduceRing;
use ferroccl_device::prims::{Ll, Simple};
use ferroccl_device::reduce::Sum;

use crate::@snake@::AllReduce@Camel@;

ferroccl_device::kernels! {
    /// All of them.
    pub static KERNELS;
    /// Sums of floats in LL.
    pub @UPPER@_LL = \"all_reduce_@snake@_ll_sum_float\": AllReduce@Camel@, f32, Sum, Ll;
    /// The same in Simple.
    pub @UPPER@_SIMPLE = \"all_reduce_@snake@_simple_sum_float\": AllReduce@Camel@, f32, Sum, Simple;
    /// The library's ring, to compare with.
    pub RING_LL = \"all_reduce_ring_ll_sum_float\": AllReduceRing, f32, Sum, Ll;
}
"
        }
        Kind::Kernel => {
            "\
//! The kernels, a row each: a constant for the host, an entry for the GPU.

use ferroccl_device::prims::Ll;
use ferroccl_device::reduce::Sum;

use crate::@snake@::@Camel@;

ferroccl_device::kernels! {
    /// Of floats, in LL. It is launched by itself, and not registered for calls.
    pub @UPPER@ = \"@snake@_ll_sum_float\": @Camel@, f32, Sum, Ll;
}
"
        }
    }
}

/// The tests of a crate.
fn tests(kind: Kind) -> &'static str {
    match kind {
        Kind::Protocol => {
            "\
//! The protocol under the library's suite, and with rules broken: a suite that finds nothing then says nothing.
//!
//! A failing seed is printed and explained; `FERROCCL_SEED=n` runs that one alone.

use @snake@::@snake@::{@Camel@, @Camel@Rules};
use @snake@::{ALL_REDUCE, PTX};
use ferroccl::conformance::ProtocolTests;
use ferroccl_device::prims::{Correct, Rules};

ferroccl::conformance! {
    suite: @Camel@<Correct>, ptx: (ALL_REDUCE.kernel.name, PTX);
}

/// Stores the flag before its data.
struct FlagFirst;

impl Rules for FlagFirst {}

impl @Camel@Rules for FlagFirst {
    const FLAG_LAST: bool = false;
}

#[test]
fn a_broken_rule_is_noticed_and_explained() {
    let why = ProtocolTests::of::<@Camel@<FlagFirst>>().explain(200).expect(\"it is wrong\");
    println!(\"{why}\");
    assert!(why.to_string().contains(\"has stored the flag F before the data D\"));
}
"
        }
        Kind::Collective => {
            "\
//! The collective under the library's suite, in two protocols.
//!
//! A failing seed is printed and explained; `FERROCCL_SEED=n` runs that one alone.

use @snake@::@snake@::AllReduce@Camel@;
use @snake@::{@UPPER@_LL, @UPPER@_SIMPLE, PTX};
use ferroccl_device::prims::{Ll, Simple};

ferroccl::conformance! {
    ll: Ll => AllReduce@Camel@, ptx: (@UPPER@_LL.kernel.name, PTX);
    simple: Simple => AllReduce@Camel@, ptx: (@UPPER@_SIMPLE.kernel.name, PTX);
}
"
        }
        Kind::Kernel => {
            "\
//! The kernel on the CPU under adversaries, and as PTX in the emulator.

use std::sync::Arc;

use @snake@::@snake@::@snake@;
use @snake@::{PTX, registry};
use ferroccl::conformance::seeds;
use ferroccl::runtime::cpu::{Adversity, CpuRuntime};
use ferroccl::runtime::ptx::{Options, PtxRuntime, Unit, checks};
use ferroccl::{CommConfig, Communicator, Device};

/// A call on a device, all of whose elements are checked: every rank gets the sum of its values and those of all ranks before it.
fn is_right(device: &Device, ranks: u32, count: usize) -> Result<(), String> {
    let mut config = CommConfig::default();
    (config.slots, config.buffer_bytes) = (Some(2), [Some(2048); 3]);
    config.registry = registry();
    let ranks = Communicator::init_all_with(device, ranks, &config).map_err(|e| e.to_string())?;
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    let value = |rank: usize, i: usize| ((i + 3 * rank) % 16) as f32;
    let input = |rank| (0..count).map(|i| value(rank, i)).collect::<Vec<_>>();
    let sends: Vec<_> = (0..ranks.len()).map(|r| device.upload(&input(r)).unwrap()).collect();
    let recvs: Vec<_> = ranks.iter().map(|_| device.alloc(count).unwrap()).collect();
    for (r, (rank, stream)) in ranks.iter().zip(&streams).enumerate() {
        @snake@(rank, &sends[r], &recvs[r], stream).map_err(|e| e.to_string())?;
    }
    for (r, stream) in streams.iter().enumerate() {
        let got = recvs[r].to_vec(stream).map_err(|e| format!(\"rank {r}: {e}\"))?;
        for (i, got) in got.into_iter().enumerate() {
            let want: f32 = (0..=r).map(|rank| value(rank, i)).sum();
            if got != want {
                return Err(format!(\"rank {r}, element {i} of {count}: {got}, not {want}\"));
            }
        }
    }
    Ok(())
}

#[test]
fn is_right_under_an_adversary() {
    seeds(100, |seed| {
        let adversity = Adversity { races: true, ..Adversity::new(seed) };
        let runtime = Arc::new(CpuRuntime::seeded(adversity));
        is_right(&Device::new(runtime.clone()), 2 + (seed % 4) as u32, 1 + 7 * seed as usize)?;
        runtime.race().map_or(Ok(()), Err)
    });
}

#[test]
fn has_ptx_that_is_right_in_the_emulator() {
    if PTX.is_empty() {
        return println!(\"skipped: there is no PTX\");
    }
    seeds(10, |seed| {
        let options = Options { checks: Some(checks(Unit::Eight)), ..Options::seeded(seed) };
        let runtime = PtxRuntime::lockstep(options).with_threads(64).unwrap();
        is_right(&Device::new(Arc::new(runtime)), 2 + (seed % 3) as u32, 1 + 67 * seed as usize)
    });
}
"
        }
    }
}
