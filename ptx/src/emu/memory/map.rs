//! Which addresses are memory.
//!
//! Addresses of global memory are those of the process that runs the emulator. Kernels may touch what has
//! been mapped, and nothing else.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::emu::clock::{HOST, Place};

/// A range of addresses that kernels may touch.
#[derive(Clone, Debug)]
struct Region {
    start: u64,
    end: u64,
    name: Arc<str>,
    number: u64,
    place: Place,
}

/// Addresses of a multicast object: an access goes to the same place behind each member's start.
#[derive(Clone, Debug)]
pub(crate) struct Multicast {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Where the members' memory begins.
    pub(crate) members: Arc<[u64]>,
    name: Arc<str>,
    number: u64,
}

/// All regions of a machine.
#[derive(Debug, Default)]
pub(crate) struct Map {
    /// By start. Replaced whole at each change.
    regions: RwLock<Arc<Vec<Region>>>,
    multicasts: RwLock<Arc<Vec<Multicast>>>,
    /// Changes so far: who holds the regions of an older one looks again.
    generation: AtomicU64,
}

impl Map {
    /// Adds a region; its number takes it back.
    pub(crate) fn add(&self, start: u64, bytes: u64, name: &str, place: Place) -> u64 {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let number = self.generation.load(Ordering::Relaxed);
        let (end, name) = (start.saturating_add(bytes), name.into());
        let region = Region { start, end, name, number, place };
        let at = regions.partition_point(|r| r.start <= start);
        Arc::make_mut(&mut regions).insert(at, region);
        // Pairs with the acquire in `View::find`.
        self.generation.store(number + 1, Ordering::Release);
        number
    }

    /// Adds a multicast object; its number takes it back.
    pub(crate) fn add_multicast(&self, start: u64, bytes: u64, members: &[u64], name: &str) -> u64 {
        let _regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let mut multicasts = self.multicasts.write().unwrap_or_else(PoisonError::into_inner);
        let number = self.generation.load(Ordering::Relaxed);
        let (end, name) = (start.saturating_add(bytes), name.into());
        let multicast = Multicast { start, end, members: members.into(), name, number };
        Arc::make_mut(&mut multicasts).push(multicast);
        // Pairs with the acquire in `View::find`.
        self.generation.store(number + 1, Ordering::Release);
        number
    }

    pub(crate) fn remove(&self, number: u64) {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        Arc::make_mut(&mut regions).retain(|r| r.number != number);
        let mut multicasts = self.multicasts.write().unwrap_or_else(PoisonError::into_inner);
        if multicasts.iter().any(|m| m.number == number) {
            Arc::make_mut(&mut multicasts).retain(|m| m.number != number);
        }
        let generation = self.generation.load(Ordering::Relaxed);
        self.generation.store(generation + 1, Ordering::Release);
    }
}

/// A reader's copy of the map, with the region that was found last.
#[derive(Debug)]
pub(crate) struct View {
    map: Arc<Map>,
    regions: Arc<Vec<Region>>,
    multicasts: Arc<Vec<Multicast>>,
    generation: u64,
    last: (u64, u64),
    /// Where the region that was found last is.
    place: Place,
}

impl View {
    pub(crate) fn new(map: &Arc<Map>) -> Self {
        let (regions, multicasts, last) = (Arc::default(), Arc::default(), (0, 0));
        let (map, generation, place) = (Arc::clone(map), u64::MAX, HOST);
        View { map, regions, multicasts, generation, last, place }
    }

    /// Whether all of `start..end` is in one region.
    #[inline]
    pub(crate) fn covers(&mut self, start: u64, end: u64) -> bool {
        let fresh = self.map.generation.load(Ordering::Acquire) == self.generation;
        (fresh && self.last.0 <= start && end <= self.last.1) || self.find(start, end)
    }

    #[cold]
    fn find(&mut self, start: u64, end: u64) -> bool {
        let generation = self.map.generation.load(Ordering::Acquire);
        if generation != self.generation {
            let regions = self.map.regions.read().unwrap_or_else(PoisonError::into_inner);
            self.regions = Arc::clone(&regions);
            let multicasts = self.map.multicasts.read().unwrap_or_else(PoisonError::into_inner);
            self.multicasts = Arc::clone(&multicasts);
            (self.generation, self.last) = (generation, (0, 0));
        }
        let at = self.regions.partition_point(|r| r.start <= start);
        // One mapping may be known twice, so a few are looked at.
        let found = self.regions[..at].iter().rev().take(8).find(|r| end <= r.end);
        if let Some(region) = found {
            (self.last, self.place) = ((region.start, region.end), region.place);
        }
        found.is_some() && start <= end
    }

    /// Where the memory at an address is.
    pub(crate) fn place(&mut self, address: u64) -> Place {
        if self.covers(address, address + 1) { self.place } else { HOST }
    }

    /// The multicast object that an address is in.
    pub(crate) fn multicast(&mut self, address: u64) -> Option<&Multicast> {
        // Looks for changes.
        self.covers(address, address);
        self.multicasts.iter().find(|m| (m.start..m.end).contains(&address))
    }

    /// What lies at or next to an address that is not covered.
    pub(crate) fn near(&self, address: u64) -> String {
        if let Some(m) = self.multicasts.iter().find(|m| (m.start..m.end).contains(&address)) {
            return format!("of the multicast object {}, from which only `multimem` loads", m.name);
        }
        let at = self.regions.partition_point(|r| r.start <= address);
        let before = self.regions[..at].iter().max_by_key(|r| r.end);
        let after = self.regions.get(at);
        let size = |r: &Region| r.end - r.start;
        match (before, after) {
            (Some(r), _) if address < r.end => {
                format!(
                    "{} bytes before the end of {} of {} bytes",
                    r.end - address,
                    r.name,
                    size(r)
                )
            }
            (Some(r), a) if a.is_none_or(|a| a.start - address >= address - r.end) => {
                format!(
                    "{} bytes after the end of {} of {} bytes",
                    address - r.end,
                    r.name,
                    size(r)
                )
            }
            (_, Some(r)) => {
                format!("{} bytes before {} of {} bytes", r.start - address, r.name, size(r))
            }
            _ => "where the device has no memory".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_mapped_is_covered() {
        let map = Arc::new(Map::default());
        let mut view = View::new(&map);
        assert!(!view.covers(1000, 1004));
        let a = map.add(1000, 16, "a", 3);
        let b = map.add(1016, 16, "b", HOST);
        let twice = map.add(1000, 16, "a", 3);
        assert!(view.covers(1000, 1016) && view.covers(1012, 1016) && view.covers(1016, 1032));
        assert!(!view.covers(1012, 1020), "across two allocations");
        assert!(!view.covers(999, 1000) && !view.covers(1032, 1033) && !view.covers(1020, 1033));
        assert_eq!(view.near(1040), "8 bytes after the end of b of 16 bytes");
        assert_eq!(view.near(990), "10 bytes before a of 16 bytes");
        assert_eq!([1003, 1020, 5].map(|at| view.place(at)), [3, HOST, HOST]);
        map.remove(a);
        assert!(view.covers(1000, 1001));
        map.remove(twice);
        assert!(!view.covers(1000, 1001), "freed");
        map.remove(b);
        assert!(!view.covers(1016, 1017));
    }
}
