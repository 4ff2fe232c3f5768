//! All-gathers by recursive doubling: who sends what to whom, without a socket or a clock.
//!
//! ```text
//! 6 ranks     in        round 0        round 1        out
//!   0      0 ◄─ 4      0 ◄──► 1      0 ◄──► 2      0 ──► 4        4 ranks double what they hold in each round;
//!   1      1 ◄─ 5                    1 ◄──► 3      1 ──► 5        the 2 beyond them give their block to one of these,
//!   2                  2 ◄──► 3                                   and get all others back
//!   3
//! ```
//!
//! In round `k` a rank exchanges all it holds with the rank at distance `2^k` whose number differs in bit `k` alone. So each pair
//! needs one connection, which carries something in both directions. Where `n` is no power of two, the ranks from the largest
//! power of two below it on take part through the rank that is so far before them. That is `ceil(log2 n)` rounds for a power of
//! two and one more for other numbers, and at most `n * ceil(log2 n)` messages in all. Dissemination (Bruck) has no such extra
//! round, but two partners in each, and thus twice the connections and open files.
//!
//! Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH" (2005), section 4.
//!
//! What is said in one call in one direction of a connection is one message: the call's number, then for each rank, ascending,
//! the length of its block (4 bytes, little-endian) and the block. It comes in pieces where it is longer than a
//! [`wire`](super::wire) message may be.

use std::collections::VecDeque;

use super::blocks::GatheredBlocks;
use super::wire::MAX_DATA;

/// Bytes of a call's number.
const NUMBER: usize = 4;
/// Bytes of a block's length.
const LENGTH: usize = 4;

/// The largest power of two that is at most `nranks`: so many ranks double what they hold.
fn core(nranks: u32) -> u32 {
    1 << nranks.max(1).ilog2()
}

/// The ranks that `rank` exchanges blocks with, each once.
pub(super) fn partners(rank: u32, nranks: u32) -> Vec<u32> {
    let core = core(nranks);
    if rank >= core {
        return vec![rank - core];
    }
    let beyond = (rank + core < nranks).then_some(rank + core);
    beyond.into_iter().chain((0..core.ilog2()).map(|k| rank ^ (1 << k))).collect()
}

/// A partner's turn.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// The partner's place among [`partners`].
    place: usize,
    /// What this rank sends, and what it receives: the blocks of these ranks.
    sends: Option<Whose>,
    receives: Option<Whose>,
}

/// Whose blocks.
#[derive(Clone, Copy, Debug)]
enum Whose {
    /// Of one rank.
    Of(u32),
    /// Of all but one.
    AllBut(u32),
    /// Of `count` ranks from `first` on, and of those beyond the core that take part through them.
    Group { first: u32, count: u32 },
}

impl Whose {
    /// The ranks, ascending.
    fn ranks(self, nranks: u32) -> impl Iterator<Item = u32> {
        let core = core(nranks);
        let (some, others) = match self {
            Whose::Of(one) => (one..one + 1, 0..0),
            Whose::AllBut(one) => (0..one, one + 1..nranks),
            Whose::Group { first, count } => {
                let beyond = |rank: u32| (core + rank).min(nranks);
                (first..first + count, beyond(first)..beyond(first + count))
            }
        };
        some.chain(others)
    }
}

/// What `rank` does in a call, in this order.
fn steps(rank: u32, nranks: u32) -> Vec<Step> {
    let core = core(nranks);
    let step = |place, sends, receives| Step { place, sends, receives };
    if rank >= core {
        return vec![step(0, Some(Whose::Of(rank)), Some(Whose::AllBut(rank)))];
    }
    let beyond = (rank + core < nranks).then_some(rank + core);
    let first_place = usize::from(beyond.is_some());
    let rounds = (0..core.ilog2()).map(|k| {
        let group = |rank: u32| Whose::Group { first: rank >> k << k, count: 1 << k };
        step(first_place + k as usize, Some(group(rank)), Some(group(rank ^ (1 << k))))
    });
    let into = beyond.map(|beyond| step(0, None, Some(Whose::Of(beyond))));
    let out = beyond.map(|beyond| step(0, Some(Whose::AllBut(beyond)), None));
    into.into_iter().chain(rounds).chain(out).collect()
}

/// Why what a partner said has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misplaced {
    /// It is not made as it must be.
    Malformed,
    /// It is of another call than the partner can be in.
    Call {
        /// The call that it is of.
        theirs: u32,
    },
}

/// What comes from one partner.
#[derive(Debug, Default)]
struct Inbox {
    /// The call that the next piece is of.
    call: u32,
    /// Of that call.
    heard: Heard,
    /// Of the calls before it which this rank has not got to.
    whole: VecDeque<Heard>,
}

/// Blocks as they have come, each behind its length.
#[derive(Debug, Default)]
struct Heard {
    bytes: Vec<u8>,
    /// Where the blocks that are whole begin and end.
    places: Vec<(usize, usize)>,
}

/// The blocks of the call that is made, as far as this rank has them.
#[derive(Debug)]
struct Gathered {
    bytes: Vec<u8>,
    /// By rank: where its block begins and ends.
    places: Vec<Option<(usize, usize)>>,
}

impl Gathered {
    fn block(&self, rank: u32) -> Option<&[u8]> {
        let (start, end) = self.places[rank as usize]?;
        self.bytes.get(start..end)
    }
}

/// The all-gathers of a rank, one after the other.
#[derive(Debug)]
pub(super) struct AllGathers {
    rank: u32,
    nranks: u32,
    /// The longest block.
    longest: usize,
    steps: Vec<Step>,
    /// By place. With the number of blocks that a partner sends in a call.
    inboxes: Vec<(Inbox, usize)>,
    /// The call that is made, or that is next.
    call: u32,
    /// Of the call that is made.
    gathered: Option<Gathered>,
    /// The step that the call is at, and whether this has sent.
    next: usize,
    sent: bool,
}

impl AllGathers {
    /// Those of `rank`, with blocks of at most `longest` bytes.
    pub(super) fn new(rank: u32, nranks: u32, longest: usize) -> Self {
        let steps = steps(rank, nranks);
        let comes = |place| {
            let receives = steps.iter().filter(|step| step.place == place);
            receives.filter_map(|step| Some(step.receives?.ranks(nranks).count())).sum()
        };
        let places = partners(rank, nranks).len();
        let inboxes = (0..places).map(|place| (Inbox::default(), comes(place))).collect();
        AllGathers {
            rank,
            nranks,
            longest,
            steps,
            inboxes,
            call: 0,
            gathered: None,
            next: 0,
            sent: false,
        }
    }

    /// The same later: with blocks of at most `longest` bytes.
    pub(super) fn limited(self, longest: usize) -> Self {
        AllGathers { longest, ..self }
    }

    /// The number of the call that is made, or that is next.
    pub(super) fn call(&self) -> u32 {
        self.call
    }

    /// Begins the next call.
    pub(super) fn begin(&mut self, mine: Vec<u8>) {
        let mut places = vec![None; self.nranks as usize];
        places[self.rank as usize] = Some((0, mine.len()));
        self.gathered = Some(Gathered { bytes: mine, places });
    }

    /// Whether something of this partner is still to come before the call is over.
    pub(super) fn wants(&self, place: usize) -> bool {
        self.inboxes[place].0.call == self.call
    }

    /// The partner that the call waits for.
    pub(super) fn waits_for(&self) -> Option<usize> {
        self.gathered.as_ref()?;
        self.steps.get(self.next).map(|step| step.place)
    }

    /// Takes a piece of what a partner says.
    ///
    /// # Errors
    /// [`Misplaced`] when no partner in good order says it. It holds no more than came, and of no more than two calls.
    pub(super) fn hear(&mut self, place: usize, piece: &[u8]) -> Result<(), Misplaced> {
        let (number, piece) = piece.split_first_chunk::<NUMBER>().ok_or(Misplaced::Malformed)?;
        let theirs = u32::from_le_bytes(*number);
        let (inbox, count) = &mut self.inboxes[place];
        // A partner can be one call ahead: it cannot end that without this rank.
        if theirs != inbox.call || theirs.wrapping_sub(self.call) > 1 {
            return Err(Misplaced::Call { theirs });
        }
        if piece.is_empty() {
            return Err(Misplaced::Malformed);
        }
        let Heard { bytes, places } = &mut inbox.heard;
        bytes.extend_from_slice(piece);
        let mut at = places.last().map_or(0, |(_, end)| *end);
        while let Some((length, behind)) = bytes[at..].split_first_chunk::<LENGTH>() {
            let length = u32::from_le_bytes(*length) as usize;
            if length > self.longest || places.len() == *count {
                return Err(Misplaced::Malformed);
            }
            if length > behind.len() {
                break;
            }
            let start = at + LENGTH;
            at = start + length;
            places.push((start, at));
        }
        if places.len() == *count {
            if at < bytes.len() {
                return Err(Misplaced::Malformed);
            }
            inbox.whole.push_back(std::mem::take(&mut inbox.heard));
            inbox.call = inbox.call.wrapping_add(1);
        }
        Ok(())
    }

    /// Goes as far as it can: what is to be sent next, in pieces, and to the partner at which place.
    pub(super) fn advance(&mut self) -> Option<(usize, Vec<Vec<u8>>)> {
        let gathered = self.gathered.as_mut()?;
        while let Some(Step { place, sends, receives }) = self.steps.get(self.next).copied() {
            if let Some(sends) = sends.filter(|_| !self.sent) {
                self.sent = true;
                let said = sends.ranks(self.nranks).filter_map(|rank| gathered.block(rank));
                return Some((place, pieces(self.call, said)));
            }
            if let Some(receives) = receives {
                // It is of this call: one that is ahead has said all of this call before.
                let came = self.inboxes[place].0.whole.pop_front()?;
                let before = gathered.bytes.len();
                gathered.bytes.extend_from_slice(&came.bytes);
                for (rank, (start, end)) in receives.ranks(self.nranks).zip(came.places) {
                    gathered.places[rank as usize] = Some((before + start, before + end));
                }
            }
            self.next += 1;
            self.sent = false;
        }
        None
    }

    /// Ends the call, if all has come: every rank's block.
    pub(super) fn finish(&mut self) -> Option<GatheredBlocks> {
        if self.next < self.steps.len() {
            return None;
        }
        let Gathered { bytes, places } = self.gathered.take()?;
        let places: Option<_> = places.into_iter().collect();
        (self.next, self.sent) = (0, false);
        self.call = self.call.wrapping_add(1);
        Some(GatheredBlocks::at(bytes, places?))
    }
}

/// Blocks as one message of a call, in pieces.
fn pieces<'a>(call: u32, blocks: impl Iterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let mut said = call.to_le_bytes().to_vec();
    for block in blocks {
        // At most MAX_DATA.
        said.extend_from_slice(&(block.len() as u32).to_le_bytes());
        said.extend_from_slice(block);
    }
    if said.len() <= MAX_DATA {
        return vec![said];
    }
    let piece = |piece: &[u8]| [&call.to_le_bytes(), piece].concat();
    said[NUMBER..].chunks(MAX_DATA - NUMBER).map(piece).collect()
}

#[cfg(test)]
#[path = "doubling/tests.rs"]
mod tests;
