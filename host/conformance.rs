//! What a protocol has to pass, for the crate that it is written in.
//!
//! [`conformance!`](crate::conformance!) makes tests of it:
//!
//! ```
//! use ferroccl::device::prims::{Correct, Ll128};
//!
//! ferroccl::conformance! { ll128: Ll128<Correct>; }
//! ```
//!
//! Each is of all-reduces, by a ring unless `=> Algorithm` names another crate's, of sizes from nothing to several slots, by few ranks
//! with few small slots:
//!
//! * in every way that small calls can go by PTX's memory model ([`ProtocolTests::verify`]);
//! * under a scheduler and a memory that delay and reorder whatever the protocol's orders allow ([`Adversity`]), with a look for races;
//! * beside calls of the library's protocols on the same connections, whose data looks like flags;
//! * over a network, of which the same adversary is a part;
//! * without one of the ranks, and with calls that differ: whoever waits gives up, with an error.
//!
//! The CPU has one lane a block. A barrier that is missing is for the emulator to find (`ProtocolTests::emulated`).
//!
//! A failing seed is printed, and `FERROCCL_SEED=n` runs that one alone. A test that cannot fail says nothing: break a rule of the
//! protocol and see that [`ProtocolTests::noticed`] has a seed.

mod drawing;
mod explain;
mod pipeline;
mod ranks;
mod verify;

pub use explain::Explanation;
use pipeline::Pipeline;
use ranks::{Random, Ranks, words};
pub use verify::{Bounds, Counterexample, Verification, VerifiedCalls};

use std::sync::{Arc, mpsc};
use std::time::Duration;

use ferroccl_device::abi::{LL128_LINE, ProtocolId};
use ferroccl_device::collectives::{AllReduceRing, KernelCode};
use ferroccl_device::kernels::Row;
use ferroccl_device::prims::Protocol;
use ferroccl_device::reduce::Sum;
use ferroccl_proxy::net::LocalNet;

use crate::runtime::cpu::{Adversity, CpuRuntime};
use crate::{
    CommConfig, Communicator, Device, DeviceBuffer, Error, KernelSpec, ReduceOp, Registry, Stream,
};

/// How long calls may go on that are to fail.
const PATIENCE: Duration = Duration::from_secs(60);

/// The tests of a protocol, by a kernel of it.
#[derive(Clone, Copy, Debug)]
pub struct ProtocolTests {
    row: Row,
    protocol: ProtocolId,
    /// Bytes of a line, or 0.
    line: usize,
    /// [`Pipeline`], and elements of a slot of [`SMALL_SLOT`].
    pipeline: Option<(Row, usize)>,
}

/// Bytes of the smallest slot: two lines of LL128.
const SMALL_SLOT: usize = 2 * LL128_LINE;

/// How large a run is at most.
#[derive(Clone, Copy, Debug)]
struct Limits {
    ranks: usize,
    calls: usize,
    elements: usize,
    channels: u32,
}

impl Limits {
    const NONE: Self = Limits { ranks: 5, calls: 4, elements: 600, channels: 2 };

    /// What is tried to have a smaller run that goes wrong, each on top of what was found.
    const SMALLER: [fn(Self) -> Self; 13] = [
        |all| Limits { channels: 1, ..all },
        |all| Limits { ranks: 2, ..all },
        |all| Limits { ranks: 3, ..all },
        |all| Limits { calls: 1, ..all },
        |all| Limits { calls: 2, ..all },
        |all| Limits { elements: all.elements.min(300), ..all },
        |all| Limits { elements: all.elements.min(100), ..all },
        |all| Limits { elements: all.elements.min(64), ..all },
        |all| Limits { elements: all.elements.min(32), ..all },
        |all| Limits { elements: all.elements.min(16), ..all },
        |all| Limits { elements: all.elements.min(8), ..all },
        |all| Limits { elements: all.elements.min(4), ..all },
        |all| Limits { elements: all.elements.min(2), ..all },
    ];
}

/// Seeds that are wrong, of which one is looked for that can be explained by two accesses.
const EXPLAINED: usize = 8;

/// Seeds that are tried for each smaller run.
const SHRINKING: u64 = 60;

/// What came of a run that went wrong.
enum Wrong {
    Plain(String),
    Explained(Box<Explanation>),
}

impl Wrong {
    fn error(self) -> String {
        match self {
            Wrong::Plain(error) => error,
            Wrong::Explained(why) => why.wrong,
        }
    }
}

impl ProtocolTests {
    /// A protocol, by a ring.
    #[must_use]
    pub fn of<P: Protocol>() -> Self {
        Self::by::<P, AllReduceRing>()
    }

    /// A protocol by an algorithm, which does an all-reduce.
    #[must_use]
    pub fn by<P: Protocol, A: KernelCode>() -> Self {
        let row = Row::of::<A, f32, Sum, P>("conformance");
        let pipeline = Row::of::<Pipeline, u8, Sum, P>("conformance, pipeline");
        let pipeline = Some((pipeline, P::capacity(SMALL_SLOT) / size_of::<f32>()));
        ProtocolTests { row, protocol: P::ID, line: P::LINE, pipeline }
    }

    /// A kernel that sums floats in an all-reduce, with the bytes of its protocol's lines, or 0.
    #[must_use]
    pub fn of_row(row: Row, line: usize) -> Self {
        let protocol = row.protocol.unwrap_or(ProtocolId::Simple);
        ProtocolTests { row, protocol, line, pipeline: None }
    }

    /// Calls under an adversary.
    ///
    /// # Errors
    /// What went wrong: an element, a race, a deadlock.
    pub fn under_adversary(&self, seed: u64) -> Result<(), String> {
        self.limited(seed, Limits::NONE, false).map_err(Wrong::error)
    }

    /// Why a seed below `most` is wrong, if one is: the smallest run that is found to go wrong, the two accesses that nothing orders, who
    /// stored and loaded what when, and which order would have forbidden it. Of the first seeds that are wrong it is one with two such
    /// accesses, if there is one.
    #[must_use]
    pub fn explain(&self, most: u64) -> Option<Explanation> {
        let wrong = (0..most).filter(|seed| self.under_adversary(*seed).is_err());
        let mut first = None;
        // Most rules that are broken let some seed wait for ever, which says less than two accesses.
        for seed in wrong.take(EXPLAINED) {
            let why = self.shrunk(seed);
            if why.as_ref().is_some_and(|why| why.svg().is_some()) {
                return why;
            }
            first = first.or(why);
        }
        first
    }

    /// [`ProtocolTests::explain`] of a seed that is wrong.
    fn shrunk(&self, first: u64) -> Option<Explanation> {
        let fails = |seed: u64, limits| self.limited(seed, limits, false).is_err();
        let (mut seed, mut limits) = (first, Limits::NONE);
        for smaller in Limits::SMALLER {
            let tried = smaller(limits);
            // The run that went wrong first; and others, as what is left out may be what it took.
            let found = [seed].into_iter().chain(0..SHRINKING).find(|seed| fails(*seed, tried));
            if let Some(found) = found {
                (seed, limits) = (found, tried);
            }
        }
        match self.limited(seed, limits, true) {
            Err(Wrong::Explained(explanation)) => Some(*explanation),
            _ => None,
        }
    }

    /// Calls under an adversary, of at most this size.
    fn limited(&self, seed: u64, limits: Limits, explain: bool) -> Result<(), Wrong> {
        let random = &mut Random(seed);
        let mut config = self.config(random);
        config.channels = config.channels.map(|channels| channels.min(limits.channels));
        self.run((seed, limits, explain), &config, random, |_| true)
    }

    /// Calls among others of one of the library's protocols, over the same connections.
    ///
    /// # Errors
    /// As [`ProtocolTests::under_adversary`].
    pub fn beside(&self, other: ProtocolId, seed: u64) -> Result<(), String> {
        let random = &mut Random(seed);
        let mut config = self.config(random);
        config.protocol = Some(other);
        let run = (seed, Limits::NONE, false);
        let wrong = self.run(run, &config, random, |random| random.chance(50));
        wrong.map_err(Wrong::error)
    }

    /// Calls over a network: every rank is on a host of its own.
    ///
    /// # Errors
    /// As [`ProtocolTests::under_adversary`].
    pub fn over_network(&self, seed: u64) -> Result<(), String> {
        let random = &mut Random(seed);
        let mut config = self.config(random);
        (config.p2p, config.shm) = (Some(false), Some(false));
        config.net = Some(Arc::new(LocalNet::default()));
        let run = (seed, Limits::NONE, false);
        let wrong = self.run(run, &config, random, |random| random.chance(80));
        wrong.map_err(Wrong::error)
    }

    /// A call that one rank does not make: the others must end with an error, by the budget of their waits.
    ///
    /// # Errors
    /// What went wrong: a call that ended well, or not at all.
    pub fn without_a_rank(&self) -> Result<(), String> {
        let budget = Duration::from_millis(300);
        let config = CommConfig { timeout: Some(budget), ..self.config(&mut Random(0)) };
        let ranks = Ranks::new(Device::cpu(), 3, &config)?;
        let buffers: Vec<DeviceBuffer<f32>> =
            (0..2).map(|_| ranks.device.alloc(500).map_err(words)).collect::<Result<_, _>>()?;
        for ((rank, stream), buffer) in ranks.ranks.iter().zip(&ranks.streams).zip(&buffers) {
            self.launch(rank, buffer, buffer, stream).map_err(words)?;
        }
        let (ended, end) = mpsc::channel();
        let streams: Vec<Stream> = ranks.streams[..2].to_vec();
        std::thread::spawn(move || {
            let results: Vec<_> = streams.iter().map(Stream::synchronize).collect();
            let _ = ended.send(results); // nobody waits any more
        });
        let results = end.recv_timeout(PATIENCE);
        let results = results.map_err(|_| format!("calls go on for {PATIENCE:?} after that"))?;
        match results.iter().position(Result::is_ok) {
            Some(rank) => Err(format!("rank {rank} ended well, without rank 2")),
            None => Ok(()),
        }
    }

    /// Calls of different lengths: every rank must end with an error.
    ///
    /// # Errors
    /// What went wrong: a call that ended well, a deadlock.
    pub fn differing(&self, seed: u64) -> Result<(), String> {
        let random = &mut Random(seed);
        let config = self.config(random);
        let runtime = Arc::new(CpuRuntime::seeded(Adversity::new(seed)));
        let n = 2 + random.below(3);
        let ranks = Ranks::new(Device::new(runtime), n, &config)?;
        let (count, more, odd) = (1 + random.below(300), 1 + random.below(300), random.below(n));
        let mut buffers: Vec<DeviceBuffer<f32>> = Vec::new();
        for (r, (rank, stream)) in ranks.ranks.iter().zip(&ranks.streams).enumerate() {
            let buffer = ranks.device.alloc(if r == odd { count + more } else { count });
            let buffer = buffer.map_err(words)?;
            self.launch(rank, &buffer, &buffer, stream).map_err(words)?;
            buffers.push(buffer);
        }
        for (r, stream) in ranks.streams.iter().enumerate() {
            match stream.synchronize() {
                Ok(()) => return Err(format!("rank {r} ended well, and rank {odd} had more")),
                Err(error @ Error::Kernel(_)) if error.to_string().contains("deadlock") => {
                    return Err(format!("rank {r}: {error}"));
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// The kernel, as a call of one rank.
    fn launch(
        &self,
        rank: &Communicator,
        send: &DeviceBuffer<f32>,
        recv: &DeviceBuffer<f32>,
        stream: &Stream,
    ) -> crate::Result<()> {
        let spec = KernelSpec::new(self.row, send.len());
        // SAFETY: the kernel is an all-reduce of f32, of as many elements as the buffers have.
        unsafe { rank.launch(&spec, send, recv, ReduceOp::Sum, stream) }
    }

    /// The first seed below `most` under whose adversary something goes wrong, and what: for protocols that are wrong on purpose.
    #[must_use]
    pub fn noticed(&self, most: u64) -> Option<(u64, String)> {
        (0..most).find_map(|seed| Some((seed, self.under_adversary(seed).err()?)))
    }

    /// Calls of the kernel's PTX in the emulator under all its checks: `entry` of the module `text`, a ring all-reduce that sums floats.
    ///
    /// # Errors
    /// As [`ProtocolTests::under_adversary`], and what else the emulator finds.
    #[cfg(feature = "emulator")]
    pub fn emulated(
        &self,
        entry: &'static str,
        text: &'static str,
        seed: u64,
    ) -> Result<(), String> {
        use crate::comm::name_addresses;
        use crate::runtime::ptx::{Options, PtxRuntime, Unit, checks};
        use ferroccl_device::kernels::{Kernel, PtxText};

        let random = &mut Random(seed);
        let checks = Some(checks(Unit::Eight));
        let options = Options { checks, most_steps: 50_000_000, ..Options::seeded(seed) };
        let runtime = PtxRuntime::lockstep(options).with_threads(64).map_err(words)?;
        let config = self.config(random);
        let ranks = Ranks::new(Device::new(Arc::new(runtime)), 2 + random.below(3), &config)?;
        let kernel = Kernel { name: entry, ptx: Some(PtxText(text)), ..self.row.kernel };
        let row = Row { kernel, ..self.row };
        let calls = (0..3).try_for_each(|_| {
            let elements = random.below(600);
            ranks.call(Some(row), elements, random)
        });
        calls.map_err(|wrong| {
            let name = |address| {
                let named = ranks.ranks.iter().find_map(|rank| rank.place_of(address));
                named.or_else(|| ranks.buffer_at(address))
            };
            name_addresses(&wrong, &name)
        })
    }

    /// Small slots, and few.
    fn config(&self, random: &mut Random) -> CommConfig {
        let registry = match self.protocol {
            ProtocolId::Own(_) => Registry::new().protocol_id(self.protocol, 2048, self.line),
            _ => Registry::new(),
        };
        CommConfig {
            slots: Some(2 + random.below(3) as u32),
            buffer_bytes: [Some(2048); 3],
            registry,
            channels: Some(1 + random.below(2) as u32),
            // Every other one begins just before LL's flags repeat.
            first_step: if random.chance(50) { (1 << 31) - 6 } else { 0 },
            ..CommConfig::default()
        }
    }

    /// Several calls on a CPU with an adversary, each by the protocol that is tested if `whose` says so.
    fn run(
        &self,
        (seed, limits, explain): (u64, Limits, bool),
        config: &CommConfig,
        random: &mut Random,
        mut whose: impl FnMut(&mut Random) -> bool,
    ) -> Result<(), Wrong> {
        let adversity = Adversity { races: true, history: explain, ..Adversity::new(seed) };
        let runtime = Arc::new(CpuRuntime::seeded(adversity));
        let n = (2 + random.below(4)).min(limits.ranks);
        let ranks = Ranks::new(Device::new(runtime.clone()), n, config).map_err(Wrong::Plain)?;
        let calls = 4.min(limits.calls);
        let mut elements = 0;
        let result = (0..calls).try_for_each(|_| {
            let own = whose(random).then_some(self.row);
            elements = random.below(600).min(limits.elements);
            ranks.call(own, elements, random)
        });
        let result = result.and_then(|()| runtime.race().map_or(Ok(()), Err));
        result.map_err(|wrong| {
            if !explain {
                return Wrong::Plain(wrong);
            }
            let count =
                |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
            let run = format!(
                "seed {seed}, {}, {} of {} at most, {}",
                count(n, "rank"),
                count(calls, "call"),
                count(limits.elements.min(599), "element"),
                count(config.channels.unwrap_or(1) as usize, "channel")
            );
            let name = |address| ranks.name(address);
            let events = runtime.history();
            let why = Explanation::new(run, wrong, &events, runtime.conflict(), &name);
            Wrong::Explained(Box::new(why))
        })
    }
}

/// Runs a test with seeds from 0 on, or with the one of `FERROCCL_SEED`. `FERROCCL_TEST_SEEDS` says how many times as many.
///
/// # Panics
/// At the first that fails, with its number: it is for tests.
pub fn seeds(most: u64, test: impl Fn(u64) -> Result<(), String>) {
    let one = std::env::var("FERROCCL_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let times = std::env::var("FERROCCL_TEST_SEEDS").ok().and_then(|times| times.parse().ok());
    let most = most.saturating_mul(times.unwrap_or(1));
    let all = one.map_or(0..most, |seed| seed..seed + 1);
    for seed in all {
        if let Err(wrong) = test(seed) {
            panic!("seed {seed} (FERROCCL_SEED={seed} runs it alone): {wrong}");
        }
    }
}

/// [`seeds`] of calls under an adversary; where one goes wrong, an explanation is printed first, and its drawing is written as SVG to the
/// file that `FERROCCL_DRAWING` names.
///
/// # Panics
/// As [`seeds`].
pub fn seeds_explained(most: u64, tests: ProtocolTests) {
    seeds(most, |seed| {
        tests.under_adversary(seed).inspect_err(|_| {
            let Some(why) = tests.explain(seed + 1) else { return };
            eprintln!("{why}");
            if let (Some(file), Some(svg)) = (std::env::var_os("FERROCCL_DRAWING"), why.svg())
                && let Err(error) = std::fs::write(&file, svg)
            {
                eprintln!("{}: {error}", file.display());
            }
        })
    });
}

/// States that are tried of each call: some seconds.
const TRIED_STATES: u64 = 100_000;

/// [Verifies](ProtocolTests::verify) a protocol within the usual bounds, as far as that goes in some seconds.
///
/// # Panics
/// At a run that goes wrong, with its explanation: it is for tests.
pub fn in_every_way(tests: ProtocolTests) {
    for calls in Bounds::USUAL {
        let bounds = Bounds { most_states: TRIED_STATES, ..Bounds::of(calls) };
        if matches!(calls, VerifiedCalls::Pipeline(_)) && tests.pipeline.is_none() {
            continue;
        }
        let found = tests.verify(&bounds, None).unwrap_or_else(|error| panic!("{bounds}: {error}"));
        println!("{bounds}: {:?}", found.checked);
        if let Some(wrong) = found.counterexample {
            panic!("{}", wrong.explanation);
        }
    }
}

/// Tests of protocols, a module of them for each: see [the module](mod@crate::conformance).
///
/// With `ptx: (ENTRY, TEXT)` the PTX of a ring all-reduce that sums floats is run, too; not where the text is empty, as where there
/// was no compiler for it.
#[macro_export]
macro_rules! conformance {
    (@tests $protocol:ty) => {
        $crate::conformance::ProtocolTests::of::<$protocol>()
    };
    (@tests $protocol:ty => $algorithm:ty) => {
        $crate::conformance::ProtocolTests::by::<$protocol, $algorithm>()
    };
    ($($name:ident: $protocol:ty $(=> $algorithm:ty)? $(, ptx: ($entry:expr, $text:expr))?;)*) => { $(
        mod $name {
            #[allow(unused_imports, reason = "for the protocol's type")]
            use super::*;
            #[allow(unused_imports, reason = "without tests")]
            use $crate::conformance::{ProtocolTests, seeds};

            #[cfg(test)] // as the tests are, which doctests leave out
            fn tests() -> ProtocolTests {
                $crate::conformance!(@tests $protocol $(=> $algorithm)?)
            }

            #[test]
            fn is_right_under_an_adversary() {
                $crate::conformance::seeds_explained(300, tests());
            }

            #[test]
            fn is_right_in_every_way_that_small_calls_can_go() {
                $crate::conformance::in_every_way(tests());
            }

            #[test]
            fn takes_nothing_for_its_own_that_others_left() {
                for &other in $crate::ProtocolId::ALL {
                    seeds(60, |seed| tests().beside(other, seed));
                }
            }

            #[test]
            fn goes_over_a_network() {
                seeds(60, |seed| tests().over_network(seed));
            }

            #[test]
            fn ends_when_a_rank_stays_away() {
                tests().without_a_rank().unwrap();
            }

            #[test]
            fn ends_when_ranks_make_different_calls() {
                seeds(50, |seed| tests().differing(seed));
            }

            $(
                #[test]
                fn has_ptx_that_is_right_in_the_emulator() {
                    let (entry, text): (&'static str, &str) = ($entry, $text);
                    if text.is_empty() {
                        return println!("skipped: there is no PTX");
                    }
                    seeds(20, |seed| tests().emulated(entry, text, seed));
                }
            )?
        }
    )* };
}
