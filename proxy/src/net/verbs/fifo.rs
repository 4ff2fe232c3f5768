//! The FIFO: the buffers that the receiver announces for the next messages.
//!
//! It lies at the sender, and the receiver writes it by RDMA: a ring of entries, one for each buffer. An entry is eight words:
//!
//! ```text
//! address | bytes | key, tag << 32 | count, key << 32 | keys | 0 | number + 1 | check
//! ```
//!
//! There is a key for each port of the receiver, four at most. The buffers of a request have adjacent entries, each with their count. The entries of successive requests are adjacent, too,
//! so that one write announces several requests. There is an entry for every buffer that may be under way, so an entry is
//! overwritten only after its request is done. The bytes of a write may become visible in any order: the check word says
//! whether an entry is complete.

use std::sync::atomic::{AtomicU64, Ordering};

use super::memory::Keys;
use crate::net::MAX_REQUESTS;

/// Buffers of a request at most: NCCL's `NCCL_NET_IB_MAX_RECVS` (`net_ib.cc`).
pub(super) const MAX_RECEIVES: usize = 8;

/// Words of an entry: a line of most caches.
const ENTRY: usize = 8;
/// Bytes of an entry.
pub(super) const ENTRY_BYTES: usize = 8 * ENTRY;

/// Entries of a FIFO.
pub(super) const ENTRIES: usize = MAX_REQUESTS * MAX_RECEIVES;
/// Words of a FIFO.
pub(super) const FIFO: usize = ENTRIES * ENTRY;
/// Words for the sizes of messages that share a request.
pub(super) const SIZES: usize = MAX_REQUESTS * MAX_RECEIVES;

/// How device writes are read, and words made that it reads. No ordering of ours has a part in that: the device's write is
/// seen or not, and a work request is handed over by a barrier of the driver's.
const DEVICE: Ordering = Ordering::Relaxed;

/// The place of an entry.
pub(super) fn place(number: u64) -> usize {
    (number % ENTRIES as u64) as usize
}

/// The first of the sizes of a request.
pub(super) fn sizes(sequence: u64) -> usize {
    (sequence % MAX_REQUESTS as u64) as usize * MAX_RECEIVES
}

pub(super) fn load(word: &AtomicU64) -> u64 {
    word.load(DEVICE)
}

pub(super) fn store(word: &AtomicU64, value: u64) {
    word.store(value, DEVICE);
}

/// A buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// By the receiver's port.
    pub(super) keys: Keys,
    pub(super) tag: u32,
    /// Buffers of its request.
    pub(super) count: u32,
    /// Which entry it is, from 0.
    pub(super) number: u64,
}

impl Entry {
    fn words(&self) -> [u64; ENTRY] {
        let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let [a, b, c, d] = self.keys;
        let (tag, count) = (two(a, self.tag), two(self.count, b));
        let first = [self.address, self.bytes, tag, count, two(c, d), 0, self.number + 1];
        let mut words = [0; ENTRY];
        words[..ENTRY - 1].copy_from_slice(&first);
        words[ENTRY - 1] = check(&first);
        words
    }

    /// Writes it where the device takes it from.
    pub(super) fn put(&self, words: &[AtomicU64]) {
        let places = words.iter().skip(place(self.number) * ENTRY);
        places.zip(self.words()).for_each(|(place, word)| store(place, word));
    }

    /// An entry, if the receiver has written it; an error if what is there is a later one.
    pub(super) fn get(words: &[AtomicU64], number: u64) -> Result<Option<Entry>, String> {
        let Some(words) = words.get(place(number) * ENTRY..).and_then(<[_]>::first_chunk) else {
            return Ok(None);
        };
        let words: &[AtomicU64; ENTRY] = words;
        if load(&words[ENTRY - 2]) <= number {
            return Ok(None);
        }
        let words = words.each_ref().map(load);
        if words[ENTRY - 1] != check(&words[..ENTRY - 1]) {
            return Ok(None); // a part of it
        }
        if words[ENTRY - 2] != number + 1 {
            let theirs = words[ENTRY - 2].wrapping_sub(1);
            return Err(format!("it gives buffer {theirs}, where {number} is due"));
        }
        Ok(Some(Entry {
            address: words[0],
            bytes: words[1],
            keys: [words[2], words[3] >> 32, words[4], words[4] >> 32].map(|word| word as u32),
            tag: (words[2] >> 32) as u32,
            count: words[3] as u32,
            number,
        }))
    }
}

/// The check word of other words (FNV-1a over words, with their places mixed by a rotation).
fn check(words: &[u64]) -> u64 {
    words.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, word| {
        (sum.rotate_left(23) ^ word).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// What fuzzing gives the FIFO.
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz {
    use super::*;

    /// Words that a receiver writes: with the first byte, their check is right.
    pub(crate) fn fifo(data: &[u8]) {
        let &[mode, number, ref data @ ..] = data else { return };
        let mut words = [0; ENTRY];
        let places = words.iter_mut().zip(data.chunks(8));
        places.for_each(|(word, bytes)| {
            *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        });
        if mode & 1 != 0 {
            words[ENTRY - 1] = check(&words[..ENTRY - 1]);
        }
        let fifo: Vec<AtomicU64> = (0..FIFO).map(|_| AtomicU64::new(0)).collect();
        let first = place(number.into()) * ENTRY;
        fifo[first..].iter().zip(words).for_each(|(place, word)| store(place, word));
        match Entry::get(&fifo, number.into()) {
            Ok(Some(entry)) => {
                assert_eq!(entry.number, u64::from(number));
                assert_eq!(entry.words()[..5], words[..5]);
            }
            Ok(None) => assert!(words[6] <= number.into() || words[7] != check(&words[..7])),
            Err(_) => assert_eq!(words[7], check(&words[..7])),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words() -> Vec<AtomicU64> {
        (0..FIFO).map(|_| AtomicU64::new(0)).collect()
    }

    proptest! {
        /// In whatever order words come: an entry is had when all have, and not before.
        #[test]
        fn an_entry_is_whole_or_not_there(
            address: u64, bytes: u64, keys: Keys, tag: u32, count in 1u32..=8, number in 0u64..1000,
            order in Just((0..ENTRY).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let entry = Entry { address, bytes, keys, tag, count, number };
            let (staged, fifo) = (words(), words());
            if let Some(before) = number.checked_sub(ENTRIES as u64) {
                Entry { number: before, ..entry }.put(&fifo);
            }
            entry.put(&staged);
            let first = place(number) * ENTRY;
            for word in order {
                if let Ok(Some(there)) = Entry::get(&fifo, number) {
                    prop_assert_eq!(there, entry, "what is missing was there already");
                }
                store(&fifo[first + word], load(&staged[first + word]));
            }
            prop_assert_eq!(Entry::get(&fifo, number), Ok(Some(entry)));
            prop_assert_eq!(Entry::get(&fifo, number + 1), Ok(None));
            prop_assert_eq!(Entry::get(&fifo, number + ENTRIES as u64), Ok(None));
        }
    }

    #[test]
    fn a_later_entry_is_an_error() {
        let fifo = words();
        Entry { number: 40 + ENTRIES as u64, count: 1, ..Entry::default() }.put(&fifo);
        let error = Entry::get(&fifo, 40).unwrap_err();
        assert_eq!(error, "it gives buffer 296, where 40 is due");
    }
}
