//! What a run came to, in figures that do not depend on the machine that ran it.

use std::ops::AddAssign;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Figures of a kernel's run. With one schedule they are the same every time.
        ///
        /// A *request* is an instruction of a warp. What it touches is counted in *sectors* of 32 bytes, which are
        /// what a GPU's L2 cache moves, and in *lines* of 128 bytes, which are what its tags cover (CUDA C++ Best
        /// Practices Guide, "Coalesced Access to Global Memory"; Nsight Compute, "Memory Tables").
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counts {
            /// How many there are.
            pub const LEN: usize = [$(stringify!($name)),*].len();

            /// The values, in order.
            #[must_use]
            pub fn words(&self) -> [u64; Self::LEN] {
                [$(self.$name),*]
            }

            /// From the values in order.
            #[must_use]
            pub fn from_words(words: [u64; Self::LEN]) -> Self {
                let [$($name),*] = words;
                Counts { $($name),* }
            }

            /// Names and values, in order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }

        impl AddAssign for Counts {
            fn add_assign(&mut self, other: Counts) {
                $(self.$name += other.$name;)*
            }
        }
    };
}
counts! {
    /// Instructions of warps.
    warp_instructions,
    /// Instructions of lanes: each warp's by the lanes that ran it.
    lane_instructions,
    /// Requests that load global memory.
    global_loads,
    /// Requests that store to global memory.
    global_stores,
    /// Sectors that they load.
    load_sectors,
    /// Sectors that they store.
    store_sectors,
    /// Lines that loads and stores touch.
    lines,
    /// Bytes that lanes load from global memory.
    bytes_loaded,
    /// Bytes that lanes store there.
    bytes_stored,
    /// Requests of atomics.
    atomics,
    /// Requests to shared memory.
    shared_accesses,
    /// Passes that bank conflicts add to them.
    bank_conflicts,
    /// Fences.
    fences,
    /// Barriers of a block that a warp has come to.
    barriers,
    /// Votes, shuffles, matches and barriers of a warp.
    warp_syncs,
    /// Rounds of loops that only wait for what others store.
    spins,
    /// Branches at which the lanes of a warp parted.
    divergences,
}

/// Counts sectors and lines of the accesses of the lanes of `mask`. None crosses the end of its sector, as accesses are
/// aligned to their size.
pub(crate) fn sectors(mask: u32, addresses: &[u64; 32]) -> (u64, u64) {
    let count = |shift: u32| {
        let mut units = [0; 32];
        let (mut len, mut sorted) = (0usize, true);
        for (lane, &address) in addresses.iter().enumerate() {
            let unit = address >> shift;
            let before = len.checked_sub(1).map(|i| units[i]);
            if mask >> lane & 1 == 0 || before == Some(unit) {
                continue;
            }
            sorted &= before.is_none_or(|b| b < unit);
            units[len] = unit;
            len += 1;
        }
        if sorted {
            return len as u64;
        }
        units[..len].sort_unstable();
        let distinct = units[..len].windows(2).filter(|pair| pair[0] != pair[1]).count();
        distinct as u64 + u64::from(len > 0)
    };
    (count(5), count(7))
}

/// Passes over the 32 banks of 4 bytes that an access to shared memory takes: lanes that want different words of one
/// bank go one after the other. Wide accesses are split into as many lanes as fill 128 bytes at a time.
pub(crate) fn bank_passes(mask: u32, addresses: &[u64; 32], bytes: u64) -> u64 {
    let words = bytes.div_ceil(4).max(1);
    let group = (32 / words).max(1) as usize;
    let mut passes = 0;
    for start in (0..32).step_by(group) {
        let mut wanted: [Vec<u64>; 32] = Default::default();
        for (lane, address) in addresses.iter().enumerate().skip(start).take(group) {
            if mask >> lane & 1 == 0 {
                continue;
            }
            for word in 0..words {
                let word = address / 4 + word;
                let bank = &mut wanted[(word % 32) as usize];
                if !bank.contains(&word) {
                    bank.push(word);
                }
            }
        }
        passes += wanted.iter().map(Vec::len).max().unwrap_or(0) as u64;
    }
    passes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stride(step: u64) -> [u64; 32] {
        std::array::from_fn(|lane| 4096 + lane as u64 * step)
    }

    #[test]
    fn sectors_and_lines_of_known_patterns() {
        assert_eq!(sectors(u32::MAX, &stride(4)), (4, 1));
        assert_eq!(sectors(u32::MAX, &stride(16)), (16, 4));
        assert_eq!(sectors(u32::MAX, &stride(0)), (1, 1));
        assert_eq!(sectors(u32::MAX, &stride(128)), (32, 32));
        assert_eq!(sectors(1, &stride(4)), (1, 1));
        assert_eq!(sectors(0, &stride(4)), (0, 0));
        let mut shifted = stride(4);
        shifted.iter_mut().for_each(|a| *a += 4);
        assert_eq!(sectors(u32::MAX, &shifted), (5, 2));
        let mut backwards = stride(4);
        backwards.reverse();
        assert_eq!(sectors(u32::MAX, &backwards), (4, 1));
    }

    #[test]
    fn banks_of_known_patterns() {
        assert_eq!(bank_passes(u32::MAX, &stride(4), 4), 1);
        assert_eq!(bank_passes(u32::MAX, &stride(8), 4), 2);
        assert_eq!(bank_passes(u32::MAX, &stride(128), 4), 32);
        assert_eq!(bank_passes(u32::MAX, &stride(0), 4), 1);
        assert_eq!(bank_passes(u32::MAX, &stride(16), 16), 4);
    }
}
