//! The FIFO: where the receiver says which buffers the next messages go to.
//!
//! It lies at the sender, and the receiver writes it by RDMA: [`MAX_REQUESTS`] places, taken in turn, each for the buffers of
//! one request. An entry is eight words:
//!
//! ```text
//! address | bytes | key, tag << 32 | count | 0 | 0 | sequence + 1 | check
//! ```
//!
//! A place is taken again when its request is done, which the sender has a part in: so nothing is overwritten unread. The
//! order in which a write's bytes become visible nobody promises; that an entry is whole, its check says.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::net::MAX_REQUESTS;

/// Buffers of a request at most: NCCL's `NCCL_NET_IB_MAX_RECVS` (`net_ib.cc`).
pub(super) const MAX_RECEIVES: usize = 8;

/// Words of an entry: a line of most caches.
const ENTRY: usize = 8;
/// Bytes of an entry.
pub(super) const ENTRY_BYTES: usize = 8 * ENTRY;

/// Words of a FIFO.
pub(super) const FIFO: usize = MAX_REQUESTS * MAX_RECEIVES * ENTRY;
/// Words for the sizes of messages that share a request.
pub(super) const SIZES: usize = MAX_REQUESTS * MAX_RECEIVES;

/// How device writes are read, and words made that it reads. No ordering of ours has a part in that: the device's write is
/// seen or not, and a work request is handed over by a barrier of the driver's.
const DEVICE: Ordering = Ordering::Relaxed;

/// The first word of an entry.
pub(super) fn entry(sequence: u64, buffer: usize) -> usize {
    ((sequence % MAX_REQUESTS as u64) as usize * MAX_RECEIVES + buffer) * ENTRY
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
    pub(super) key: u32,
    pub(super) tag: u32,
    /// Buffers of its request.
    pub(super) count: u32,
    /// Which request it is of, from 0.
    pub(super) sequence: u64,
}

impl Entry {
    fn words(&self) -> [u64; ENTRY] {
        let keys = u64::from(self.key) | u64::from(self.tag) << 32;
        let first = [self.address, self.bytes, keys, self.count.into(), 0, 0, self.sequence + 1];
        let mut words = [0; ENTRY];
        words[..ENTRY - 1].copy_from_slice(&first);
        words[ENTRY - 1] = check(&first);
        words
    }

    /// Writes it where the device takes it from.
    pub(super) fn put(&self, words: &[AtomicU64], buffer: usize) {
        let places = words.iter().skip(entry(self.sequence, buffer));
        places.zip(self.words()).for_each(|(place, word)| store(place, word));
    }

    /// The buffer of a request, if the receiver has named it; an error if what is there is of a later one.
    pub(super) fn get(
        words: &[AtomicU64],
        sequence: u64,
        buffer: usize,
    ) -> Result<Option<Entry>, String> {
        let Some(places) = words.get(entry(sequence, buffer)..).and_then(<[_]>::first_chunk) else {
            return Ok(None);
        };
        let places: &[AtomicU64; ENTRY] = places;
        let there = load(&places[ENTRY - 2]);
        if there <= sequence {
            return Ok(None);
        }
        let words = places.each_ref().map(load);
        if words[ENTRY - 1] != check(&words[..ENTRY - 1]) {
            return Ok(None); // a part of it
        }
        if words[ENTRY - 2] != sequence + 1 {
            let theirs = words[ENTRY - 2].wrapping_sub(1);
            return Err(format!("it gives buffers for message {theirs}, where {sequence} is due"));
        }
        Ok(Some(Entry {
            address: words[0],
            bytes: words[1],
            key: words[2] as u32,
            tag: (words[2] >> 32) as u32,
            count: words[3] as u32,
            sequence,
        }))
    }
}

/// A word that says that others belong together (FNV-1a over words, with their places mixed by a rotation).
fn check(words: &[u64]) -> u64 {
    words.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, word| {
        (sum.rotate_left(23) ^ word).wrapping_mul(0x0000_0100_0000_01b3)
    })
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
            address: u64, bytes: u64, key: u32, tag: u32, count in 1u32..=8, buffer in 0usize..8,
            sequence in 0u64..100, order in Just((0..ENTRY).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let entry = Entry { address, bytes, key, tag, count, sequence };
            let (staged, fifo) = (words(), words());
            if let Some(before) = sequence.checked_sub(MAX_REQUESTS as u64) {
                Entry { sequence: before, ..entry }.put(&fifo, buffer);
            }
            entry.put(&staged, buffer);
            let first = super::entry(sequence, buffer);
            for place in order {
                if let Ok(Some(there)) = Entry::get(&fifo, sequence, buffer) {
                    prop_assert_eq!(there, entry, "what is missing was there already");
                }
                store(&fifo[first + place], load(&staged[first + place]));
            }
            prop_assert_eq!(Entry::get(&fifo, sequence, buffer), Ok(Some(entry)));
            prop_assert_eq!(Entry::get(&fifo, sequence + 1, buffer), Ok(None));
            prop_assert_eq!(Entry::get(&fifo, sequence + MAX_REQUESTS as u64, buffer), Ok(None));
        }
    }

    #[test]
    fn an_entry_of_a_later_message_is_an_error() {
        let fifo = words();
        Entry { sequence: 40, count: 1, ..Entry::default() }.put(&fifo, 0);
        let error = Entry::get(&fifo, 8, 0).unwrap_err();
        assert_eq!(error, "it gives buffers for message 40, where 8 is due");
    }
}
