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
//! Each is of ring all-reduces, of sizes from nothing to several slots, by few ranks with few small slots:
//!
//! * under a scheduler and a memory that delay and reorder whatever the protocol's orders allow ([`Adversity`]), with a look for races;
//! * beside calls of the library's protocols on the same connections, whose data looks like flags;
//! * over a network, of which the same adversary is a part.
//!
//! The CPU has one lane a block. A barrier that is missing is for the emulator to find (`ProtocolTests::emulated`).
//!
//! A failing seed is printed, and `FERROCCL_SEED=n` runs that one alone. A test that cannot fail says nothing: break a rule of the
//! protocol and see that [`ProtocolTests::noticed`] has a seed.

use std::sync::Arc;

use ferroccl_device::abi::ProtocolId;
use ferroccl_device::collectives::AllReduceRing;
use ferroccl_device::kernels::Kernel;
use ferroccl_device::prims::Protocol;
use ferroccl_device::reduce::Sum;
use ferroccl_proxy::net::LocalNet;

use crate::runtime::cpu::{Adversity, CpuRuntime};
use crate::{CommConfig, Communicator, Device, DeviceBuffer, OwnBuffers, ReduceOp, Stream};

/// The tests of a protocol, by a kernel of it.
#[derive(Clone, Copy, Debug)]
pub struct ProtocolTests {
    kernel: Kernel,
    protocol: ProtocolId,
}

/// What calls move.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Data {
    /// Small integers, whose sums are exact.
    Integers,
    /// Small numbers as the bits of floats: words that look like flags.
    Flags,
}

impl ProtocolTests {
    /// A protocol.
    #[must_use]
    pub fn of<P: Protocol>() -> Self {
        let kernel = Kernel::of::<AllReduceRing, f32, Sum, P>("conformance");
        ProtocolTests { kernel, protocol: P::ID }
    }

    /// Calls under an adversary.
    ///
    /// # Errors
    /// What went wrong: an element, a race, a deadlock.
    pub fn under_adversary(&self, seed: u64) -> Result<(), String> {
        let random = &mut Random(seed);
        let config = self.config(random);
        self.run(seed, &config, random, |_| true)
    }

    /// Calls among others of one of the library's protocols, over the same connections.
    ///
    /// # Errors
    /// As [`ProtocolTests::under_adversary`].
    pub fn beside(&self, other: ProtocolId, seed: u64) -> Result<(), String> {
        let random = &mut Random(seed);
        let mut config = self.config(random);
        config.protocol = Some(other);
        self.run(seed, &config, random, |random| random.chance(50))
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
        self.run(seed, &config, random, |random| random.chance(80))
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
    pub fn emulated(&self, entry: &'static str, text: &str, seed: u64) -> Result<(), String> {
        use crate::runtime::ptx::{Options, PtxRuntime, Unit, checks};
        let random = &mut Random(seed);
        let checks = Some(checks(Unit::Eight));
        let options = Options { checks, most_steps: 50_000_000, ..Options::seeded(seed) };
        let runtime = PtxRuntime::lockstep(options).with_threads(64).map_err(words)?;
        let runtime = runtime.with_source(entry, text).map_err(words)?;
        let config = self.config(random);
        let ranks = Ranks::new(Device::new(Arc::new(runtime)), 2 + random.below(3), &config)?;
        let kernel = Kernel { name: entry, ..self.kernel };
        (0..3).try_for_each(|_| ranks.call(Some((kernel, self.protocol)), random))
    }

    /// Small slots, and few.
    fn config(&self, random: &mut Random) -> CommConfig {
        let own = match self.protocol {
            ProtocolId::Own(protocol) => Some(OwnBuffers { protocol, bytes: 2048 }),
            _ => None,
        };
        CommConfig {
            slots: Some(2 + random.below(3) as u32),
            buffer_bytes: [Some(2048); 3],
            own_buffers: own.into_iter().collect(),
            channels: Some(1 + random.below(2) as u32),
            // Every other one begins just before LL's flags repeat.
            first_step: if random.chance(50) { (1 << 31) - 6 } else { 0 },
            ..CommConfig::default()
        }
    }

    /// Several calls on a CPU with an adversary, each by the protocol that is tested if `whose` says so.
    fn run(
        &self,
        seed: u64,
        config: &CommConfig,
        random: &mut Random,
        mut whose: impl FnMut(&mut Random) -> bool,
    ) -> Result<(), String> {
        let adversity = Adversity { races: true, ..Adversity::new(seed) };
        let runtime = Arc::new(CpuRuntime::seeded(adversity));
        let ranks = Ranks::new(Device::new(runtime.clone()), 2 + random.below(4), config)?;
        for _ in 0..4 {
            let own = whose(random).then_some((self.kernel, self.protocol));
            ranks.call(own, random)?;
        }
        runtime.race().map_or(Ok(()), Err)
    }
}

/// Runs a test with seeds from 0 on, or with the one of `FERROCCL_SEED`.
///
/// # Panics
/// At the first that fails, with its number: it is for tests.
pub fn seeds(most: u64, test: impl Fn(u64) -> Result<(), String>) {
    let one = std::env::var("FERROCCL_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let all = one.map_or(0..most, |seed| seed..seed + 1);
    for seed in all {
        if let Err(wrong) = test(seed) {
            panic!("seed {seed} (FERROCCL_SEED={seed} runs it alone): {wrong}");
        }
    }
}

/// Tests of protocols, a module of them for each: see [the module](mod@crate::conformance).
///
/// With `ptx: (ENTRY, TEXT)` the PTX of a ring all-reduce that sums floats is run, too; not where the text is empty, as where there
/// was no compiler for it.
#[macro_export]
macro_rules! conformance {
    ($($name:ident: $protocol:ty $(, ptx: ($entry:expr, $text:expr))?;)*) => { $(
        mod $name {
            #[allow(unused_imports, reason = "for the protocol's type")]
            use super::*;
            use $crate::conformance::{ProtocolTests, seeds};

            #[test]
            fn is_right_under_an_adversary() {
                seeds(500, |seed| ProtocolTests::of::<$protocol>().under_adversary(seed));
            }

            #[test]
            fn takes_nothing_for_its_own_that_others_left() {
                for &other in $crate::ProtocolId::ALL {
                    seeds(100, |seed| ProtocolTests::of::<$protocol>().beside(other, seed));
                }
            }

            #[test]
            fn goes_over_a_network() {
                seeds(100, |seed| ProtocolTests::of::<$protocol>().over_network(seed));
            }

            $(
                #[test]
                fn has_ptx_that_is_right_in_the_emulator() {
                    let (entry, text): (&'static str, &str) = ($entry, $text);
                    if text.is_empty() {
                        return println!("skipped: there is no PTX");
                    }
                    seeds(20, |seed| ProtocolTests::of::<$protocol>().emulated(entry, text, seed));
                }
            )?
        }
    )* };
}

/// Ranks of one process.
struct Ranks {
    device: Device,
    ranks: Vec<Communicator>,
    streams: Vec<Stream>,
}

impl Ranks {
    fn new(device: Device, n: usize, config: &CommConfig) -> Result<Self, String> {
        let ranks = Communicator::init_all_with(&device, n as u32, config).map_err(words)?;
        let streams = ranks.iter().map(|_| device.stream());
        let streams = streams.collect::<crate::Result<_>>().map_err(words)?;
        Ok(Ranks { device, ranks, streams })
    }

    /// An all-reduce by a kernel, or as the library does it, of which every element is checked.
    fn call(&self, by: Option<(Kernel, ProtocolId)>, random: &mut Random) -> Result<(), String> {
        let count = random.below(600);
        let data = if by.is_some() { Data::Integers } else { Data::Flags };
        let mut value = |i: usize| match data {
            Data::Integers => random.below(1000) as f32,
            Data::Flags if i.is_multiple_of(2) => f32::from_bits(random.below(40) as u32),
            Data::Flags => 0.0,
        };
        let mut input = || (0..count).map(&mut value).collect();
        let inputs: Vec<Vec<f32>> = self.ranks.iter().map(|_| input()).collect();
        let mut outputs: Vec<DeviceBuffer<f32>> = Vec::new();
        for ((rank, stream), input) in self.ranks.iter().zip(&self.streams).zip(&inputs) {
            let send = self.device.upload(input).map_err(words)?;
            let recv = self.device.alloc(count).map_err(words)?;
            match by {
                // SAFETY: the kernel is the ring all-reduce of f32.
                Some((kernel, protocol)) => unsafe {
                    rank.all_reduce_with(kernel, protocol, &send, &recv, ReduceOp::Sum, stream)
                },
                None => rank.all_reduce(&send, &recv, ReduceOp::Sum, stream),
            }
            .map_err(words)?;
            outputs.push(recv);
        }
        for (r, (output, stream)) in outputs.iter().zip(&self.streams).enumerate() {
            let got = output.to_vec(stream).map_err(|error| format!("rank {r}: {error}"))?;
            for (i, got) in got.into_iter().enumerate() {
                let want: f32 = inputs.iter().map(|input| input[i]).sum();
                if got != want {
                    return Err(format!("rank {r}, element {i} of {count}: {got}, not {want}"));
                }
            }
        }
        Ok(())
    }
}

fn words(error: crate::Error) -> String {
    error.to_string()
}

/// Numbers that a seed gives.
struct Random(u64);

impl Random {
    /// Knuth's multiplier for 64 bits (MMIX), of which the upper bits are good.
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }

    /// True so many times of a hundred.
    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}
