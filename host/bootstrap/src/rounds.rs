//! How many messages one after the other a group takes: for whoever reckons what coming together costs, as `ferroccl simulate` does.
//!
//! The numbers stand here alone; what they are of takes them from here, or is compared with them.

use std::time::Duration;

/// Rounds of an [all-gather](crate::Bootstrap::all_gather) of so many ranks, by recursive doubling: the binary logarithm, and for a
/// number that is no power of two a round before and one behind for the ranks beyond the largest one below it.
#[must_use]
pub fn gather_rounds(nranks: u32) -> u32 {
    let nranks = nranks.max(1);
    nranks.ilog2() + if nranks.is_power_of_two() { 0 } else { 2 }
}

/// Messages one after the other until a rank is connected with another, or with a root, and has its answer: TCP's two, hello,
/// challenge and proof of the handshake, behind which a rank says who it is, and the answer to that.
pub const CONNECT_MESSAGES: u32 = 6;

/// Connections that a rank makes one after the other until it has its links: to the root, and then all others at once.
pub const RING_CONNECTIONS: u32 = 2;

/// How often news are passed on, at most, until all of so many ranks have them that are left in a row: they come from both ends.
#[must_use]
pub fn news_hops(left: u32) -> u32 {
    left.saturating_sub(1).div_ceil(2)
}

/// How long a neighbour that closes nothing is silent, at most, until TCP gives it up: where ranks have agreed on no
/// [`Heartbeat`](crate::Heartbeat).
pub const KEEP_ALIVE_LIMIT: Duration = ferroccl_handshake::stream::KEEPALIVE_LIMIT;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bootstrap, Settings, UniqueId};

    #[test]
    fn news_come_from_both_ends() {
        assert_eq!([1, 2, 3, 4, 24, 25].map(news_hops), [0, 1, 1, 2, 12, 12]);
        assert_eq!([0, 1, 2, 3, 16, 24].map(gather_rounds), [0, 0, 1, 3, 4, 6]);
    }

    /// Ranks count their all-gathers: that of the addresses is the first.
    #[test]
    fn all_gathers_are_counted() {
        let id = UniqueId::listening_at(([127, 0, 0, 1], 0).into()).unwrap();
        let settings = Settings::default();
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let (id, settings) = (&id, &settings);
                scope.spawn(move || {
                    let group = Bootstrap::connect(id, rank, 3, settings).unwrap();
                    assert_eq!(group.gathers(), 1);
                    group.barrier().unwrap();
                    assert_eq!(group.gathers(), 2);
                });
            }
        });
    }
}
