//! What a user's kernel is given to communicate by itself: values that are passed by value.

use super::abi;

abi! {
    /// A communicator as a kernel of the user's has it (NCCL's `ncclDevComm`): a value for the kernel's argument, on every rank its own.
    /// What it leads to is kept by the host's `DeviceCommunicator`.
    ///
    /// Each rank has words that the others write to:
    ///
    /// ```text
    /// barriers x ranks    inbox: how often a rank has come to a barrier            written by that rank
    /// signals  x ranks    how many signals a rank has sent                         written by that rank
    /// barriers            how often this rank has been at a barrier                its own
    /// signals  x ranks    how many signals of a rank this rank has waited for      its own
    /// signals             how many of any rank                                     its own
    /// ```
    #[derive(Default)]
    pub struct DeviceComm {
        /// Address of the [`Comm`](super::Comm).
        pub comm: u64,
        /// Address of this rank's words.
        pub words: u64,
        /// Address of the [`WindowPeers`](super::WindowPeers) of the words.
        pub peers: u64,
        /// This rank.
        pub rank: u32,
        /// Ranks of the communicator.
        pub ranks: u32,
        /// Barriers that it has.
        pub barriers: u32,
        /// Signals that it has.
        pub signals: u32,
    }
}

impl DeviceComm {
    /// How many words a rank has.
    #[must_use]
    pub const fn words(ranks: u32, barriers: u32, signals: u32) -> usize {
        let (ranks, barriers, signals) = (ranks as usize, barriers as usize, signals as usize);
        barriers * (ranks + 1) + signals * (2 * ranks + 1)
    }

    /// Where a rank finds how often `from` has come to a barrier.
    #[inline(always)]
    #[must_use]
    pub const fn arrival(&self, barrier: u32, from: u32) -> usize {
        (barrier * self.ranks + from) as usize
    }

    /// Where a rank finds how many signals `from` has sent.
    #[inline(always)]
    #[must_use]
    pub const fn sent(&self, signal: u32, from: u32) -> usize {
        ((self.barriers + signal) * self.ranks + from) as usize
    }

    /// Where a rank counts how often it has been at a barrier.
    #[inline(always)]
    #[must_use]
    pub const fn meetings(&self, barrier: u32) -> usize {
        ((self.barriers + self.signals) * self.ranks + barrier) as usize
    }

    /// Where a rank counts the signals of `from` that it has waited for.
    #[inline(always)]
    #[must_use]
    pub const fn taken(&self, signal: u32, from: u32) -> usize {
        let before = (self.barriers + self.signals) * self.ranks + self.barriers;
        (before + signal * self.ranks + from) as usize
    }

    /// Where a rank counts the signals of any rank that it has waited for.
    #[inline(always)]
    #[must_use]
    pub const fn taken_of_any(&self, signal: u32) -> usize {
        self.taken(self.signals, 0) + signal as usize
    }
}

abi! {
    /// A window as a kernel of the user's has it: this rank's buffer, and where the others' are.
    #[derive(Default)]
    pub struct DeviceWindow {
        /// Address of this rank's buffer.
        pub address: u64,
        /// Its bytes.
        pub bytes: u64,
        /// Address of the [`WindowPeers`](super::WindowPeers) of the buffer.
        pub peers: u64,
    }
}

const _: () = assert!(size_of::<DeviceComm>() == 40 && size_of::<DeviceWindow>() == 24);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_of_one_thing() {
        for (ranks, barriers, signals) in [(1, 1, 1), (2, 3, 0), (3, 0, 2), (8, 5, 7)] {
            let comm = DeviceComm { ranks, barriers, signals, ..DeviceComm::default() };
            let mut seen = std::vec::Vec::new();
            for barrier in 0..barriers {
                seen.extend((0..ranks).map(|from| comm.arrival(barrier, from)));
                seen.push(comm.meetings(barrier));
            }
            for signal in 0..signals {
                for from in 0..ranks {
                    seen.extend([comm.sent(signal, from), comm.taken(signal, from)]);
                }
                seen.push(comm.taken_of_any(signal));
            }
            seen.sort_unstable();
            let words = DeviceComm::words(ranks, barriers, signals);
            assert_eq!(seen, (0..words).collect::<std::vec::Vec<_>>());
        }
    }
}
