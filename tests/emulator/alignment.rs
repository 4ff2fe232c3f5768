//! Buffers that begin anywhere: what only moves data moves it in as large words as the addresses allow, whatever these are.

use std::sync::Arc;

use ferroccl::runtime::ptx::{Options, PtxRuntime, Unit, checks};
use ferroccl::{Algorithm, CommConfig, Communicator, Device, DeviceBuffer, ProtocolId, ptx};

use crate::random::Random;

/// Bytes on both sides of what is moved, which nobody may touch.
const GUARD: usize = 32;

/// Gathers `count` bytes of each rank, from `from` bytes behind an aligned address to `to` bytes behind one.
fn gather(
    (ranks, streams): (&[Communicator], &[ferroccl::Stream]),
    device: &Device,
    random: &mut Random,
    (count, from, to): (usize, usize, usize),
) -> Result<(), String> {
    let n = ranks.len();
    let bytes = |random: &mut Random, n| (0..n).map(|_| random.below(256) as u8).collect();
    let inputs: Vec<Vec<u8>> = (0..n).map(|_| bytes(random, from + count)).collect();
    let guarded = vec![0xa5u8; to + n * count + GUARD];
    let outputs: Vec<DeviceBuffer<u8>> = (0..n).map(|_| device.upload(&guarded).unwrap()).collect();
    for r in 0..n {
        let send = device.upload(&inputs[r]).unwrap().slice(from..from + count);
        let recv = outputs[r].slice(to..to + n * count);
        ranks[r].all_gather(&send, &recv, &streams[r]).map_err(|e| e.to_string())?;
    }
    for r in 0..n {
        let got = outputs[r].to_vec(&streams[r]).map_err(|e| e.to_string())?;
        let data = inputs.iter().flat_map(|input| &input[from..]);
        let want: Vec<u8> =
            guarded[..to].iter().chain(data).chain(&guarded[..GUARD]).copied().collect();
        if got != want {
            return Err(format!("rank {r} has another result"));
        }
    }
    Ok(())
}

#[test]
fn bytes_move_at_every_alignment() {
    if let Some(why) = ptx::unavailable() {
        return crate::skip::skip(why);
    }
    let seed = crate::tier::seed().unwrap_or(7);
    let random = &mut Random(seed);
    let ways = ProtocolId::ALL.iter().map(|p| (Algorithm::Ring, *p));
    let mesh = [ProtocolId::Ll, ProtocolId::Simple].map(|p| (Algorithm::OneShot, p));
    for (algorithm, protocol) in ways.chain(mesh) {
        let unit = if protocol == ProtocolId::Ll128 { Unit::Line } else { Unit::Eight };
        let options = Options { checks: Some(checks(unit)), ..Options::seeded(seed) };
        let runtime = PtxRuntime::lockstep(options).with_threads(64).unwrap();
        let device = Device::new(Arc::new(runtime));
        let mut config = CommConfig::default();
        (config.algorithm, config.protocol) = (Some(algorithm), Some(protocol));
        config.slots = Some(2);
        config.buffer_bytes = [Some(4096); 3];
        config.channels = Some(1);
        let ranks = Communicator::init_all_with(&device, 3, &config).unwrap();
        let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
        // What 8, 4, 2 and 1 divide, of addresses and of the distance between blocks.
        for unit in [8, 4, 2, 1] {
            for (from, to) in [(unit, 0), (0, unit), (unit, 16 - unit), (16, 16)] {
                // Less than a round of the block's lanes, and several slots.
                for rounds in [1, random.below(3000) / unit] {
                    let case = (unit * (2 * rounds + 1), from, to);
                    if let Err(why) = gather((&ranks, &streams), &device, random, case) {
                        panic!(
                            "{algorithm} {protocol}, (count, from, to) {case:?}, seed {seed}: {why}"
                        );
                    }
                }
            }
        }
    }
}
