//! Random numbers that a seed brings back.

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Bits that are often runs of ones or zeros, or few: where carries and widths go wrong.
    pub(crate) fn bits(&mut self, width: u32) -> u64 {
        let all = u64::MAX >> (64 - width);
        let x = self.next();
        all & match self.below(6) {
            0 => x,
            1 => 1 << (x % u64::from(width)),
            2 => (1u64 << (x % u64::from(width))).wrapping_sub(1),
            3 => !((1u64 << (x % u64::from(width))).wrapping_sub(1)),
            4 => [0, all, all >> 1, (all >> 1) + 1, 1, all - 1][(x % 6) as usize],
            _ => x >> self.below(64),
        }
    }
}

/// The seed of a test: FERROCCL_SEED, or one that is always the same. Failures print it.
pub(crate) fn seed() -> u64 {
    std::env::var("FERROCCL_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_260_101)
}
