//! A link, or a memory, that moves one thing after the other.
//!
//! What it moves is reserved when that sets out, which is before it comes, and before other things are known that come earlier, by a
//! shorter way. So time is divided into slots, each of which has what is left of it: what comes takes what is left from its
//! time on, and is not held up by what comes after it.

use std::collections::VecDeque;

/// A slot of time, in picoseconds: as exact as the order of what is moved is.
const SLOT: u64 = 20_000;

#[derive(Clone, Copy, Debug)]
struct Slot {
    taken: u64,
    /// No slot before this one has anything left, from here on.
    next: u64,
}

/// When something is free.
#[derive(Debug, Default)]
pub(super) struct Rate {
    /// The number of the first slot that is kept.
    first: u64,
    slots: VecDeque<Slot>,
}

impl Rate {
    /// Takes so much time from `at` on: when that begins and ends. It is `now`; what is over is forgotten.
    pub(super) fn take(&mut self, now: u64, at: u64, takes: u64) -> (u64, u64) {
        self.forget(now / SLOT);
        let mut number = self.free(at / SLOT);
        let begin = at.max(number * SLOT + self.slot(number).taken);
        let (mut left, mut end) = (takes, begin + takes);
        loop {
            let slot = self.slot(number);
            let piece = left.min(SLOT - slot.taken);
            slot.taken += piece;
            left -= piece;
            if left == 0 {
                end = end.max(number * SLOT + slot.taken);
                break;
            }
            number = self.free(number);
        }
        (begin, end)
    }

    fn forget(&mut self, past: u64) {
        while self.first < past {
            if self.slots.pop_front().is_none() {
                self.first = past;
                return;
            }
            self.first += 1;
        }
    }

    fn slot(&mut self, number: u64) -> &mut Slot {
        let at = number.saturating_sub(self.first) as usize;
        while self.slots.len() <= at {
            let next = self.first + self.slots.len() as u64;
            self.slots.push_back(Slot { taken: 0, next });
        }
        &mut self.slots[at]
    }

    /// The first slot from one on that has something left.
    fn free(&mut self, from: u64) -> u64 {
        let from = from.max(self.first);
        let mut number = from;
        loop {
            let slot = *self.slot(number);
            if slot.taken < SLOT {
                break;
            }
            number = slot.next.max(number + 1);
        }
        self.slot(from).next = number;
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_earlier_is_not_held_up_by_what_comes_later() {
        let mut rate = Rate::default();
        assert_eq!(rate.take(0, 1_000_000, 5_000), (1_000_000, 1_005_000));
        assert_eq!(rate.take(0, 200_000, 5_000), (200_000, 205_000), "known later, and earlier");
        assert_eq!(rate.take(0, 1_000_000, 5_000), (1_005_000, 1_010_000), "one after the other");
        // More than a slot: the rest is in the next ones, and who comes meanwhile is behind it.
        assert_eq!(rate.take(0, 1_010_000, 50_000), (1_010_000, 1_060_000));
        assert_eq!(rate.take(0, 1_020_000, 1_000).0, 1_060_000);
        assert_eq!(rate.take(2_000_000, 2_000_000, 1), (2_000_000, 2_000_001));
        assert_eq!(rate.slots.len(), 1, "what is over is forgotten");
    }

    #[test]
    fn no_more_is_moved_than_there_is_time_for() {
        let mut rate = Rate::default();
        let ends = (0..10_000).map(|i| rate.take(0, (i * 7919) % 1_000_000, 1_000).1);
        let last = ends.max().unwrap_or(0);
        assert!((10_000_000..10_000_000 + 2 * SLOT).contains(&last), "{last}");
    }
}
