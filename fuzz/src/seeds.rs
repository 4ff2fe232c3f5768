//! Gives a target its seeds in an ordinary test: as they are, cut off anywhere, and with bytes changed by a fixed sequence.

use std::path::Path;

/// Changed inputs of each seed.
const CHANGED: usize = 300;

/// A target's name, and its function.
type Target = (&'static str, fn(&[u8]));

/// Replays the seeds of targets.
pub(crate) fn replay(targets: &[Target]) {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let fuzz = fuzz.map(|above| above.join("fuzz/seeds")).find(|seeds| seeds.is_dir());
    let fuzz = fuzz.expect("fuzz/seeds is in the repository");
    // SplitMix64, of which the numbers are always the same.
    let mut state = 0u64;
    let mut random = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) as usize
    };
    for (target, run) in targets {
        let mut seeds: Vec<_> = std::fs::read_dir(fuzz.join(target))
            .unwrap_or_else(|error| panic!("{target}: {error}"))
            .map(|entry| entry.unwrap().path())
            .collect();
        seeds.sort();
        assert!(!seeds.is_empty(), "{target} has no seeds");
        for path in seeds {
            println!("{}", path.display());
            let seed = std::fs::read(&path).unwrap();
            run(&seed);
            for _ in 0..CHANGED {
                let mut input = seed.clone();
                for _ in 0..random() % 4 {
                    let place = random() % (input.len() + 1);
                    match random() % 3 {
                        0 => input.insert(place, random() as u8),
                        _ if place == input.len() => drop(input.pop()),
                        1 => input[place] = random() as u8,
                        _ => drop(input.remove(place)),
                    }
                }
                if random().is_multiple_of(4) {
                    input.truncate(random() % (input.len() + 1));
                }
                run(&input);
            }
        }
    }
}
