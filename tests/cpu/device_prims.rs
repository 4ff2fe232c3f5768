//! Primitives of a user's kernel, under a scheduler and a memory that are as unhelpful as the rules allow, and in every way.

use std::sync::Arc;

use ferroccl::device::abi::ProtocolId;
use ferroccl::device::orders::{self, Published, Side};
use ferroccl::runtime::cpu::{Adversity, CpuRuntime};
use ferroccl::{ChannelPeers, Device, DeviceChannels};

use crate::pipes::PIPES;
use crate::pipes_run;
use crate::random::Random;

const SEEDS: u64 = 200;

/// Channels with as few and as small slots as there can be.
fn tight(count: u32, peers: ChannelPeers, slots: u32) -> DeviceChannels {
    let mut channels = DeviceChannels::new(count, peers);
    channels.slots = slots;
    for protocol in [ProtocolId::Ll, ProtocolId::Ll128, ProtocolId::Simple] {
        channels = channels.with_slot_bytes(protocol, 256);
    }
    channels
}

fn run(seed: u64, weaken: Option<(Published, Side)>) -> Result<(), String> {
    let mut random = Random(seed);
    let adversity = Adversity { races: true, weaken, ..Adversity::new(seed) };
    let runtime = Arc::new(CpuRuntime::seeded(adversity));
    let devices = vec![Device::new(runtime.clone()); 1 + random.below(4)];
    let (blocks, rounds) = (1 + random.below(3) as u32, 1 + random.below(4));
    let count = [0, 1, 2, random.below(40), random.below(300)][random.below(5)];
    let all = random.below(2) == 0;
    let peers = if all { ChannelPeers::All } else { ChannelPeers::Ring };
    let channels = tight(blocks, peers, 2 + random.below(6) as u32);
    pipes_run::run(&devices, &PIPES, (blocks, count, rounds), (channels, all, 3))?;
    runtime.race().map_or(Ok(()), Err)
}

#[test]
fn pipes_survive() {
    ferroccl::conformance::seeds(SEEDS, |seed| run(seed, None));
}

#[test]
fn every_weakened_order_is_caught() {
    for word in [orders::TAIL, orders::HEAD] {
        for side in [Side::Release, Side::Acquire] {
            let caught =
                (0..SEEDS).find_map(|seed| Some((seed, run(seed, Some((word, side))).err()?)));
            println!("{} {side:?}: {caught:?}", word.name());
            assert!(caught.is_some(), "no seed below {SEEDS} notices {} {side:?}", word.name());
        }
    }
}
