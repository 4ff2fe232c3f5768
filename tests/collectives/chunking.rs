//! Properties of how calls are cut: every element in exactly one part, chunk and slice, and in range.

use ferroccl::device::abi::MAX_CHANNELS;
use ferroccl::device::collectives::chunks::RingChunks;
use ferroccl::enqueue::split;
use ferroccl::graph::tuning::{Collective, Devices, Settings, Situation, Tuner};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn parts_cover_the_call(count in 0usize..1 << 20, channels in 0u32..40, grain in 0usize..300) {
        let parts = split(count, channels, grain);
        let used = (channels as usize).clamp(1, MAX_CHANNELS);
        let mut next = 0;
        for (i, part) in parts.iter().enumerate() {
            if i >= used {
                prop_assert_eq!(part.count, 0);
                continue;
            }
            prop_assert_eq!(part.offset, next);
            next += part.count;
            // Only the part that the elements run out in is not whole grains.
            prop_assert!(part.count % grain.max(1) as u64 == 0 || next == count as u64);
        }
        prop_assert_eq!(next, count as u64);
    }

    #[test]
    fn parts_of_huge_calls_do_not_overflow(count in (usize::MAX >> 4)..(usize::MAX >> 3), channels in 1u32..33) {
        let parts = split(count, channels, 32);
        prop_assert_eq!(parts.iter().map(|p| p.count).sum::<u64>(), count as u64);
    }

    #[test]
    fn chunks_cover_the_part(
        count in 0usize..20_000,
        ranks in 0usize..20,
        grains in 0usize..40,
        grain in 0usize..17,
    ) {
        let max = grains * grain.max(1);
        let chunks = RingChunks::new(count, ranks, max, grain);
        let mut seen = vec![0u8; count];
        for round in 0..chunks.rounds() {
            let mut any = false;
            for i in 0..ranks.max(1) {
                let chunk = chunks.chunk(round, i);
                prop_assert!(chunk.end <= count && chunk.len() <= max.max(1));
                any |= !chunk.is_empty();
                for e in chunk {
                    seen[e] += 1;
                }
            }
            prop_assert!(any, "round {} moves nothing", round);
        }
        prop_assert!(seen.iter().all(|&n| n == 1));
    }

    #[test]
    fn a_launch_has_a_channel(bytes in any::<u64>(), channels in 0u32..33, ranks in 0u32..40) {
        let cores = Situation::new(1, ranks, Devices::Cpu { ring: None }).with_channels(channels);
        let tuner = Tuner::new(&cores, &Settings::default());
        for &collective in Collective::ALL {
            for (algorithm, protocol) in tuner.candidates(collective) {
                let n = tuner.channels(collective, bytes, algorithm, protocol, channels);
                prop_assert!(n >= 1 && n <= channels.max(1));
            }
        }
    }
}
