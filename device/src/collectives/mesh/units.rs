//! Which units of a slot a lane has, and for whom.

/// A warp's rows of a slot for each of the others.
pub(super) struct Tasks {
    pub unit: usize,
    pub peer: usize,
    /// How far the next task is: units, and peers.
    pub by: (usize, usize),
    pub row: usize,
    pub others: usize,
    pub units: usize,
    pub past: usize,
}

impl Tasks {
    /// The next unit of this lane, for which of the others it is, and whether there is one: other lanes of the warp may have
    /// some left.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Option<(usize, usize, bool)> {
        let (unit, peer) = (self.unit, self.peer);
        self.unit += self.by.0;
        self.peer += self.by.1;
        if self.peer >= self.others {
            self.peer -= self.others;
            self.unit += self.row;
        }
        (unit < self.past).then_some((unit, peer, unit < self.units))
    }
}

/// A warp's units of a slot.
pub(super) struct Units {
    pub next: usize,
    pub units: usize,
    pub past: usize,
    pub by: usize,
}

impl Units {
    /// The next unit of this lane, and whether there is one: other lanes of the warp may have some left.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Option<(usize, bool)> {
        let unit = self.next;
        self.next += self.by;
        (unit < self.past).then_some((unit, unit < self.units))
    }
}
