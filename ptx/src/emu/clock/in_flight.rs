//! What stores on their way hide: the values that are still there for who comes before them.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

/// By 8 bytes, the stores that have not arrived, in the order in which they were issued.
#[derive(Debug, Default)]
pub(crate) struct StoresInFlight {
    cells: HashMap<u64, Cell, BuildHasherDefault<CellHasher>>,
    /// When cells' stores arrive that were issued one after the other and arrive together: times and places in `batches`.
    arrivals: BinaryHeap<Reverse<(u64, usize)>>,
    batches: Vec<Vec<u64>>,
    /// Batches that are empty.
    free: Vec<usize>,
    /// The batch of the last store, and when it arrives.
    open: Option<(u64, usize)>,
}

/// The stores to a cell: seldom more than one.
#[derive(Debug)]
struct Cell {
    first: StoreInFlight,
    later: Vec<StoreInFlight>,
}

/// What a store on its way replaces.
#[derive(Clone, Copy, Debug)]
struct StoreInFlight {
    /// The block that stores.
    by: u64,
    arrives: u64,
    /// The bytes of the cell.
    bytes: u64,
    old: u64,
}

/// Cells are numbers that lie close together.
#[derive(Default)]
pub(crate) struct CellHasher(u64);

impl Hasher for CellHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

/// The bits of `bytes` bytes at an address, in its cell.
fn bits(address: u64, bytes: u8) -> u64 {
    (u64::MAX >> (64 - 8 * u32::from(bytes).clamp(1, 8))) << (8 * (address % 8))
}

impl StoresInFlight {
    /// A store of at most 8 bytes by a block, which replaces `old`, arrives then.
    pub(crate) fn store(&mut self, by: u64, address: u64, bytes: u8, old: u64, arrives: u64) {
        let cell = address / 8;
        let (bytes, old) = (bits(address, bytes), old << (8 * (address % 8)));
        let hidden = StoreInFlight { by, arrives, bytes, old };
        match self.cells.entry(cell) {
            Entry::Occupied(mut there) => there.get_mut().later.push(hidden),
            Entry::Vacant(place) => {
                place.insert(Cell { first: hidden, later: Vec::new() });
            }
        }
        let batch = match self.open {
            Some((at, batch)) if at == arrives => batch,
            _ => {
                let batch = self.free.pop().unwrap_or(self.batches.len());
                if batch == self.batches.len() {
                    self.batches.push(Vec::new());
                }
                self.arrivals.push(Reverse((arrives, batch)));
                self.open = Some((arrives, batch));
                batch
            }
        };
        self.batches[batch].push(cell);
    }

    /// What a load by a block that comes at `now` sees where memory holds `value`. What the block itself has stored it sees: both pass
    /// the same L1.
    pub(crate) fn load(&self, by: u64, address: u64, bytes: u8, value: u64, now: u64) -> u64 {
        let Some(Cell { first, later }) = self.cells.get(&(address / 8)) else { return value };
        let shift = 8 * (address % 8);
        let (mut value, mut own) = (value << shift, 0);
        for store in later.iter().rev().chain([first]) {
            if store.by == by {
                own |= store.bytes;
            } else if store.arrives > now {
                let hides = store.bytes & !own;
                value = value & !hides | store.old & hides;
            }
        }
        (value & bits(address, bytes)) >> shift
    }

    /// Forgets what has arrived.
    pub(crate) fn forget(&mut self, now: u64) {
        while let Some(&Reverse((arrives, batch))) = self.arrivals.peek()
            && arrives <= now
        {
            self.arrivals.pop();
            self.open = self.open.filter(|(_, open)| *open != batch);
            for cell in self.batches[batch].drain(..) {
                // A cell may be in a batch twice.
                let Entry::Occupied(mut there) = self.cells.entry(cell) else { continue };
                let Cell { first, later } = there.get_mut();
                later.retain(|store| store.arrives > now);
                if first.arrives <= now {
                    if later.is_empty() {
                        there.remove();
                    } else {
                        *first = later.remove(0);
                    }
                }
            }
            self.free.push(batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_its_way_is_not_seen() {
        let mut stores = StoresInFlight::default();
        // Memory held 0x11 in four bytes, then 0x22, then in one byte of them 0x33.
        stores.store(1, 0x104, 4, 0x11, 50);
        stores.store(1, 0x104, 1, 0x22, 70);
        let seen = |stores: &StoresInFlight, now| stores.load(2, 0x104, 4, 0x33, now);
        assert_eq!([seen(&stores, 49), seen(&stores, 50), seen(&stores, 70)], [0x11, 0x22, 0x33]);
        assert_eq!(stores.load(2, 0x100, 4, 7, 0), 7, "its neighbour");
        assert_eq!(stores.load(2, 0x100, 8, 0x33 << 32 | 9, 0), 0x11 << 32 | 9);
        stores.forget(60);
        assert_eq!(seen(&stores, 60), 0x22);
        stores.forget(70);
        assert!(stores.cells.is_empty() && stores.arrivals.is_empty());
        assert_eq!(stores.free.len(), stores.batches.len());
    }

    /// Also where others' stores to the same bytes are on their way.
    #[test]
    fn a_block_sees_what_it_has_stored() {
        let mut stores = StoresInFlight::default();
        // Memory held 0x1111; block 1 stored 0x22 in its first byte, then block 2 0x33 in both.
        stores.store(1, 0x100, 1, 0x11, 90);
        stores.store(2, 0x100, 2, 0x1122, 80);
        let seen = |by| stores.load(by, 0x100, 2, 0x3333, 10);
        assert_eq!([seen(1), seen(2), seen(3)], [0x1122, 0x3333, 0x1111]);
    }

    /// What is issued first may arrive last, from further away.
    #[test]
    fn stores_arrive_in_any_order_and_are_forgotten() {
        let mut stores = StoresInFlight::default();
        for (old, arrives) in [(1, 90), (2, 70), (3, 80)] {
            stores.store(1, 0x200, 8, old, arrives);
            stores.store(1, 0x300, 8, old, arrives);
        }
        for (now, seen) in [(60, 1), (75, 1), (85, 1), (90, 4)] {
            stores.forget(now);
            assert_eq!(
                [0x200, 0x300].map(|at| stores.load(2, at, 8, 4, now)),
                [seen; 2],
                "at {now}"
            );
        }
        assert!(stores.cells.is_empty() && stores.arrivals.is_empty());
        assert_eq!(stores.free.len(), stores.batches.len());
    }
}
