//! What is remembered of 8 bytes of memory.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::clock::Release;
use crate::emu::program::Scope;

/// A store.
#[derive(Clone, Debug)]
pub(super) struct Store {
    pub(super) warp: u32,
    pub(super) lane: u8,
    /// The bytes it wrote: bit `i` is byte `i` of the cell.
    pub(super) bytes: u8,
    /// Towards whom it is strong; `None` for a weak one.
    pub(super) strong: Option<Scope>,
    pub(super) time: u32,
    pub(super) pc: u32,
    /// Its place in the order of all stores; shared by what becomes visible together.
    pub(super) sequence: u64,
    /// The step from which on everybody sees it.
    pub(super) due: u64,
    /// When it arrives, in virtual time.
    pub(super) arrives: u64,
    /// What stood there before.
    pub(super) old: u64,
    pub(super) release: Option<Release>,
    /// Of that, what its lane has released itself: not what an atomic passes on.
    pub(super) own: Option<Release>,
}

/// Loads of a warp at one time of its clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub(super) warp: u32,
    pub(super) lanes: u32,
    pub(super) bytes: u8,
    pub(super) strong: Option<Scope>,
    pub(super) time: u32,
    pub(super) pc: u32,
}

/// 8 bytes, aligned.
#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    /// In order; the last one is what memory holds.
    pub(super) stores: Vec<Store>,
    pub(super) reads: Vec<Read>,
    /// Bytes that nobody has written.
    pub(super) unwritten: u8,
}

/// Stores kept of a cell. A lane that should have seen one that was dropped sees a later one instead.
const HISTORY: usize = 12;

impl Cell {
    pub(super) fn push(&mut self, store: Store) {
        self.unwritten &= !store.bytes;
        // All of them have been compared with the store.
        self.reads.retain(|read| read.bytes & !store.bytes != 0);
        if self.stores.len() >= HISTORY {
            self.stores.remove(0);
        }
        self.stores.push(store);
    }

    pub(super) fn note(&mut self, read: Read) {
        for other in &mut self.reads {
            let alike =
                other.warp == read.warp && other.bytes == read.bytes && other.strong == read.strong;
            if alike && other.time == read.time && other.pc == read.pc {
                other.lanes |= read.lanes;
                return;
            }
            if alike {
                other.lanes &= !read.lanes;
            }
        }
        self.reads.retain(|other| other.lanes != 0);
        self.reads.push(read);
    }
}

/// Cells of a page.
const PAGE: usize = 64;

/// The cells of a memory, made as they are touched.
pub(crate) struct Cells {
    pages: HashMap<u64, Box<[Cell; PAGE]>, BuildHasherDefault<Multiply>>,
    /// Whether memory that was never heard of has been written.
    written: bool,
}

impl Cells {
    pub(crate) fn new(written: bool) -> Self {
        Cells { pages: HashMap::default(), written }
    }

    /// The cell of an address.
    pub(super) fn at(&mut self, address: u64) -> &mut Cell {
        let (page, index) = (address / 8 / PAGE as u64, (address / 8) as usize % PAGE);
        let written = self.written;
        let page = self.pages.entry(page).or_insert_with(|| {
            let unwritten = if written { 0 } else { u8::MAX };
            Box::new(std::array::from_fn(|_| Cell { unwritten, ..Cell::default() }))
        });
        &mut page[index]
    }

    pub(super) fn uninitialised(&mut self, start: u64, bytes: u64) {
        for address in start..start.saturating_add(bytes) {
            self.at(address).unwritten |= 1 << (address % 8);
        }
    }

    /// Forgets who accessed what; but not what nobody has written.
    pub(super) fn forget_records(&mut self) {
        self.pages.retain(|_, page| {
            let keep = page.iter().any(|cell| cell.unwritten != 0);
            if keep {
                for cell in page.iter_mut() {
                    cell.stores.clear();
                    cell.reads.clear();
                }
            }
            keep
        });
    }
}

/// A hash for numbers of pages: one multiplication (Knuth's, by 2^64 over the golden ratio).
#[derive(Default)]
pub(crate) struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}
