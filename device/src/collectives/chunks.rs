//! How a channel's part of a call is cut into chunks: pure arithmetic, the same on every rank.

use core::ops::Range;

/// A part of `count` elements on its way round a ring of `ranks`.
///
/// The part is done in rounds. A round is `ranks` chunks of at most `max` elements; chunk `i` of a round
/// is the one that rank `i` finishes. The last round is cut evenly, so that a short message is still the
/// work of all ranks.
///
/// ```
/// use ferroccl_device::collectives::chunks::RingChunks;
///
/// let chunks = RingChunks::new(1000, 4, 64, 4);
/// let first: Vec<_> = (0..4).map(|i| chunks.chunk(0, i)).collect();
/// assert_eq!(first, [0..64, 64..128, 128..192, 192..256]);
/// assert_eq!(chunks.rounds(), 4);
/// assert_eq!(chunks.chunk(3, 3), 948..1000);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RingChunks {
    count: usize,
    ranks: usize,
    max: usize,
    grain: usize,
}

impl RingChunks {
    /// `max` is the largest chunk and `grain` what the chunks of the last round are a multiple of (as far
    /// as there are elements): both in elements, and `max` a multiple of `grain`. Neither they nor `ranks`
    /// may be 0: a 0 counts as 1.
    #[inline(always)]
    #[must_use]
    pub const fn new(count: usize, ranks: usize, max: usize, grain: usize) -> Self {
        const fn one(n: usize) -> usize {
            if n == 0 { 1 } else { n }
        }
        RingChunks { count, ranks: one(ranks), max: one(max), grain: one(grain) }
    }

    /// The number of rounds; 0 when there are no elements.
    #[inline(always)]
    #[must_use]
    pub const fn rounds(&self) -> usize {
        self.count.div_ceil(self.max * self.ranks)
    }

    /// A round; empty when there are fewer.
    #[inline(always)]
    #[must_use]
    pub const fn round(&self, round: usize) -> Round {
        self.starting(round * self.max * self.ranks)
    }

    /// The round after another.
    #[inline(always)]
    #[must_use]
    pub const fn next(&self, round: &Round) -> Round {
        self.starting(round.base + self.max * self.ranks)
    }

    #[inline(always)]
    const fn starting(&self, base: usize) -> Round {
        let left = self.count.saturating_sub(base);
        let mut size = self.max;
        if left < self.max * self.ranks {
            let even = left.div_ceil(self.ranks * self.grain) * self.grain;
            if even < size {
                size = even;
            }
        }
        Round { base, size, count: self.count }
    }

    /// [`Round::chunk`] of a round.
    #[inline(always)]
    #[must_use]
    pub const fn chunk(&self, round: usize, i: usize) -> Range<usize> {
        self.round(round).chunk(i)
    }
}

/// One round of a [`RingChunks`].
#[derive(Clone, Copy, Debug)]
pub struct Round {
    base: usize,
    size: usize,
    count: usize,
}

impl Round {
    /// Whether nothing is left for this round.
    #[inline(always)]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.base >= self.count
    }

    /// Where it begins.
    #[inline(always)]
    #[must_use]
    pub const fn start(&self) -> usize {
        self.base
    }

    /// Elements of a chunk, but for the last ones.
    #[inline(always)]
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// The elements of chunk `i`; may be empty at the end.
    #[inline(always)]
    #[must_use]
    pub const fn chunk(&self, i: usize) -> Range<usize> {
        let from = self.base + i * self.size;
        let from = if from < self.count { from } else { self.count };
        let to = from + self.size;
        from..if to < self.count { to } else { self.count }
    }
}
