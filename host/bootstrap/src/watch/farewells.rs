//! Ranks that have left, as news of them are passed on around the ring: many in one message.
//!
//! When all of a group's ranks leave, each of them has news of each other to pass on. One after the other these would be as many
//! messages as there are pairs of ranks.

use std::time::{Duration, Instant};

use super::super::wire::{MAX_LEFT, Message};

/// How long news of ranks that have left wait behind the last such news, for others to go with them. The first do not wait, so that
/// those of one rank get around as quickly as anything else. Not measured: long beside the time of a message, and short for
/// somebody who waits for a rank that has left.
pub(super) const TOGETHER: Duration = Duration::from_millis(50);

/// What one neighbour is to be told.
#[derive(Debug, Default)]
pub(super) struct Farewells {
    waiting: Vec<u32>,
    /// When the last were told.
    told: Option<Instant>,
}

impl Farewells {
    /// A rank has left.
    pub(super) fn add(&mut self, rank: u32) {
        self.waiting.push(rank);
    }

    /// When those that wait are to be told, if there are any.
    pub(super) fn due(&self) -> Option<Instant> {
        let first = self.told.map_or_else(Instant::now, |told| told + TOGETHER);
        (!self.waiting.is_empty()).then_some(first)
    }

    /// All that wait, to be told now.
    pub(super) fn take(&mut self) -> Vec<Message> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        self.told = Some(Instant::now());
        let all = std::mem::take(&mut self.waiting);
        all.chunks(MAX_LEFT).map(|peers| Message::Left { peers: peers.to_vec() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_at_once_and_the_next_together() {
        let mut farewells = Farewells::default();
        assert_eq!((farewells.due(), farewells.take()), (None, vec![]));
        farewells.add(7);
        assert!(farewells.due().is_some_and(|due| due <= Instant::now()));
        assert_eq!(farewells.take(), [Message::Left { peers: vec![7] }]);
        let told = Instant::now();
        for rank in 0..=MAX_LEFT as u32 {
            farewells.add(rank);
        }
        let due = farewells.due().unwrap();
        assert!(due <= told + TOGETHER && due > told - TOGETHER, "{due:?} {told:?}");
        let peers: Vec<u32> = (0..MAX_LEFT as u32).collect();
        let all = [Message::Left { peers }, Message::Left { peers: vec![MAX_LEFT as u32] }];
        assert_eq!(farewells.take(), all);
        assert_eq!(farewells.due(), None);
    }
}
