//! A GPU's L2, and the memory behind it.
//!
//! L2 holds the lines that were used last, in the order in which they came. What a run uses first is there, as from a run before,
//! until L2 is full: so calls of sizes that fit take what they take when repeated, which is how they are measured. From then on a
//! line that is not there is loaded from memory, and the oldest goes; one that was written is stored.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use super::in_flight::CellHasher;
use super::rate::Rate;
use super::{LINE, Timing};

/// L2 of a GPU.
#[derive(Debug, Default)]
pub(super) struct L2 {
    /// What it moves.
    rate: Rate,
    /// Until when memory is busy.
    memory: u64,
    /// The lines that it has, and whether they were written.
    lines: HashMap<u64, bool, BuildHasherDefault<CellHasher>>,
    order: VecDeque<u64>,
}

impl L2 {
    /// When these bytes of lines are there that are asked for at `at`; it is `now`.
    pub(super) fn read(
        &mut self,
        timing: &Timing,
        (now, at): (u64, u64),
        bytes: u64,
        lines: impl Iterator<Item = u64>,
    ) -> u64 {
        let (start, _) = self.rate.take(now, at, Timing::moving(bytes, timing.l2_gbs));
        let mut there = start;
        for line in lines {
            if self.keep(timing, line, false, start) {
                let begins = self.memory.max(start);
                self.memory = begins + Timing::moving(LINE, timing.dram_gbs);
                let further = timing.dram_cycles.saturating_sub(timing.l2_cycles);
                there = there.max(begins + timing.cycles(further.into()));
            }
        }
        there
    }

    /// When these bytes of lines have come that come at `at`; it is `now`.
    pub(super) fn write(
        &mut self,
        timing: &Timing,
        (now, at): (u64, u64),
        bytes: u64,
        lines: impl Iterator<Item = u64>,
    ) -> u64 {
        let (start, _) = self.rate.take(now, at, Timing::moving(bytes, timing.l2_write_gbs));
        for line in lines {
            self.keep(timing, line, true, start);
        }
        // What has to make room first is waited for.
        let further = timing.dram_cycles.saturating_sub(timing.l2_cycles);
        start.max(self.memory.saturating_sub(timing.cycles(further.into())))
    }

    /// L2 has this line from now on; whether it was elsewhere.
    fn keep(&mut self, timing: &Timing, line: u64, written: bool, now: u64) -> bool {
        let full = self.order.len() as u64 >= (u64::from(timing.l2_mib) << 20) / LINE;
        match self.lines.entry(line) {
            Entry::Occupied(mut there) => {
                *there.get_mut() |= written;
                return false;
            }
            Entry::Vacant(place) => place.insert(written),
        };
        self.order.push_back(line);
        if full
            && let Some(oldest) = self.order.pop_front()
            && self.lines.remove(&oldest) == Some(true)
        {
            self.memory = self.memory.max(now) + Timing::moving(LINE, timing.dram_gbs);
        }
        full
    }
}

#[cfg(test)]
mod tests {
    use super::super::H100_NVLINK;
    use super::*;

    #[test]
    fn what_was_used_last_is_there_and_what_was_written_is_stored() {
        let timing = Timing { l2_mib: 1, ..H100_NVLINK };
        let most = (1 << 20) / LINE;
        let mut l2 = L2::default();
        let far = timing.cycles(u64::from(timing.dram_cycles - timing.l2_cycles));
        let read =
            |l2: &mut L2, line, at| l2.read(&timing, (at, at), LINE, [line].into_iter()) - at;
        for line in 0..most {
            assert_eq!(read(&mut l2, line, line * 1_000_000), 0, "there until L2 is full");
        }
        let at = 10_u64.pow(12);
        assert_eq!(read(&mut l2, most, at), far, "no more room: from memory");
        assert_eq!(read(&mut l2, 1, 2 * at), 0, "still there");
        assert_eq!(read(&mut l2, 0, 3 * at), far, "the oldest had gone for it");
        let before = l2.memory;
        l2.write(&timing, (4 * at, 4 * at), LINE, [2].into_iter());
        assert_eq!(l2.memory, before, "it has that line, and nobody goes");
        read(&mut l2, most + 1, 5 * at); // line 2 goes, and is stored first
        let line = Timing::moving(LINE, timing.dram_gbs);
        assert_eq!(l2.memory, 5 * at + 2 * line);
    }
}
