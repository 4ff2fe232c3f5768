//! Loads, stores and atomics of a warp.

use std::sync::atomic::Ordering;

use super::cell::{Cell, Cells, Read, Store};
use super::clock::{Release, WarpClock};
use super::{Model, lanes};
use crate::emu::alu::Lanes;
use crate::emu::fault::{FaultKind, Trouble};
use crate::emu::memory::raw;
use crate::emu::program::{Order, Scope};

/// An access of the lanes of a warp. Addresses are checked: aligned, and memory.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) warp: u32,
    pub(crate) pc: u32,
    pub(crate) mask: u32,
    pub(crate) addresses: &'a [u64; 32],
    /// Bytes of an element, at most 8.
    pub(crate) bytes: u8,
    /// Elements of a lane.
    pub(crate) count: u8,
    pub(crate) order: Order,
    pub(crate) scope: Scope,
    /// Whether 16 bytes arrive together, whatever the unit of memory.
    pub(crate) whole: bool,
    /// When a load comes by, in virtual time; the end of it where there is none.
    pub(crate) now: u64,
    /// When the stores of which lanes arrive there.
    pub(crate) arrivals: &'a [(u32, u64)],
}

impl Request<'_> {
    fn arrives(&self, lane: usize) -> u64 {
        let of_lane = self.arrivals.iter().find(|(mask, _)| mask >> lane & 1 != 0);
        of_lane.map_or(0, |(_, arrives)| *arrives)
    }

    fn strong(&self) -> Option<Scope> {
        self.order.is_strong().then_some(self.scope)
    }

    /// Each element: its number, lane and address.
    fn elements(&self) -> impl Iterator<Item = (usize, usize, u64)> + use<'_> {
        lanes(self.mask).flat_map(move |lane| {
            (0..usize::from(self.count))
                .map(move |n| (n, lane, self.addresses[lane] + n as u64 * u64::from(self.bytes)))
        })
    }
}

/// Which memory.
pub(crate) enum Target<'a> {
    Global,
    /// A block's own: addresses are offsets.
    Shared {
        data: &'a [u64],
        cells: &'a mut Cells,
    },
}

/// The bytes of its cell that an element covers.
fn mask_of(address: u64, bytes: u8) -> u8 {
    (((1u16 << bytes) - 1) << (address % 8)) as u8
}

/// A mask of bytes as a mask of bits.
fn spread(bytes: u8) -> u64 {
    (0..8).filter(|i| bytes >> i & 1 != 0).fold(0, |bits, i| bits | 0xff << (8 * i))
}

impl Target<'_> {
    fn address(&self, address: u64) -> u64 {
        match self {
            Target::Global => address,
            Target::Shared { data, .. } => data.as_ptr().expose_provenance() as u64 + address,
        }
    }

    fn cell<'c>(&'c mut self, global: &'c mut Cells, address: u64) -> &'c mut Cell {
        match self {
            Target::Global => global.at(address),
            Target::Shared { cells, .. } => cells.at(address),
        }
    }

    /// What memory holds.
    fn read(&self, address: u64, bytes: u8) -> u64 {
        // SAFETY: the address was checked to be mapped and aligned, or lies in the block's own shared memory.
        unsafe { raw::load(self.address(address), bytes, Ordering::Acquire) }
    }

    fn write(&self, address: u64, bytes: u8, value: u64) {
        // SAFETY: as in `read`; shared memory belongs to the block alone, which runs on this thread.
        unsafe { raw::store(self.address(address), bytes, value, Ordering::Release) }
    }
}

/// Whether two strong accesses are each within the other's scope.
fn inclusive(a: (&WarpClock, Scope), b: (&WarpClock, Scope)) -> bool {
    let (Some(x), Some(y)) = (a.0.block(), b.0.block()) else { return false };
    super::inclusive((x, a.1), (y, b.1))
}

impl Model {
    fn clock(&self, slot: u32) -> &WarpClock {
        // Slots are given out by `start_warp` alone.
        &self.warps[slot as usize]
    }

    fn race(&self, address: u64, lane: usize, other: (u32, u32, u32)) -> Box<Trouble> {
        let mut trouble = Trouble::new(FaultKind::Race { address }, 1 << lane);
        trouble.other = self.site(other.0, other.1, other.2);
        trouble
    }

    /// Looks for stores that race with an access.
    fn check_stores(
        &self,
        request: &Request<'_>,
        lane: usize,
        address: u64,
        cell: &Cell,
    ) -> Result<(), Box<Trouble>> {
        let bytes = mask_of(address, request.bytes);
        let mine = self.clock(request.warp);
        for store in cell.stores.iter().rev() {
            if store.bytes & bytes == 0 {
                continue;
            }
            if mine.sees(request.warp, lane, store.warp, store.lane.into(), store.time) {
                // What it replaced was compared with it.
                if store.bytes & bytes == bytes {
                    break;
                }
                continue;
            }
            let strong = match (request.strong(), store.strong) {
                (Some(a), Some(b)) => inclusive((mine, a), (self.clock(store.warp), b)),
                _ => false,
            };
            if !strong {
                return Err(self.race(address, lane, (store.warp, 1 << store.lane, store.pc)));
            }
        }
        Ok(())
    }

    /// Looks for loads that race with a store.
    fn check_reads(
        &self,
        request: &Request<'_>,
        lane: usize,
        address: u64,
        cell: &Cell,
    ) -> Result<(), Box<Trouble>> {
        let bytes = mask_of(address, request.bytes);
        let mine = self.clock(request.warp);
        for read in cell.reads.iter().filter(|read| read.bytes & bytes != 0) {
            if let (Some(a), Some(b)) = (request.strong(), read.strong)
                && inclusive((mine, a), (self.clock(read.warp), b))
            {
                continue;
            }
            for theirs in lanes(read.lanes) {
                if !mine.ordered(request.warp, lane, read.warp, theirs, read.time) {
                    return Err(self.race(address, lane, (read.warp, 1 << theirs, read.pc)));
                }
            }
        }
        Ok(())
    }

    /// Loads: element `n` of lane `l` goes to `to[n][l]`.
    pub(crate) fn load(
        &mut self,
        request: &Request<'_>,
        target: &mut Target<'_>,
        to: &mut [Lanes],
    ) -> Result<(), Box<Trouble>> {
        let mut global = std::mem::replace(&mut self.global, Cells::new(true));
        let result = self.load_from(request, target, &mut global, to);
        self.global = global;
        result
    }

    fn load_from(
        &mut self,
        request: &Request<'_>,
        target: &mut Target<'_>,
        global: &mut Cells,
        to: &mut [Lanes],
    ) -> Result<(), Box<Trouble>> {
        let unit = self.checks.adversity.map_or(3, |a| a.unit.shift());
        // What is seen together: of whole accesses at least 16 bytes, whose own units' floors all count.
        let shift = if request.whole { unit.max(4) } else { unit };
        let units_of =
            |together: u64| (together << (shift - unit))..((together + 1) << (shift - unit));
        // Of each unit, the store that must be seen, and those after it that may be.
        let mut units: Vec<Visible> = Vec::new();
        for (_, lane, address) in request.elements() {
            let cell = target.cell(global, address);
            let bytes = mask_of(address, request.bytes);
            if self.checks.uninitialised && cell.unwritten & bytes != 0 {
                return Err(Trouble::new(FaultKind::Uninitialised { address }, 1 << lane));
            }
            if self.checks.races {
                self.check_stores(request, lane, address, cell)?;
            }
            if self.checks.adversity.is_some() && !cell.stores.is_empty() {
                let unit = address >> shift;
                let at = units.iter().rposition(|u| u.unit == unit).unwrap_or_else(|| {
                    let floors = &self.clock(request.warp).floors;
                    let floor = units_of(unit).filter_map(|unit| Some(floors.get(&unit)?.0));
                    let floor = floor.max().unwrap_or(0);
                    units.push(Visible { unit, must: floor, may: Vec::new(), chosen: u64::MAX });
                    units.len() - 1
                });
                self.visible(request, lane, bytes, cell, &mut units[at]);
            }
        }
        for unit in &mut units {
            unit.chosen = self.choose(unit);
        }
        for (n, lane, address) in request.elements() {
            let unit = units.iter().rfind(|u| u.unit == address >> shift);
            let now = unit.map_or(u64::MAX, |unit| unit.chosen);
            let bytes = mask_of(address, request.bytes);
            let mut value = target.read(address, request.bytes) << (8 * (address % 8));
            let cell = target.cell(global, address);
            let mut head = None;
            for store in cell.stores.iter().rev().filter(|store| store.bytes & bytes != 0) {
                if store.sequence > now || store.arrives > request.now {
                    let older = spread(store.bytes);
                    value = value & !older | store.old & older;
                } else {
                    head = head.or(Some(store));
                }
            }
            let released = head.filter(|_| request.order.is_strong()).and_then(|store| {
                let release = store.release.as_ref()?;
                let theirs = (self.clock(store.warp), release.scope);
                inclusive((self.clock(request.warp), request.scope), theirs)
                    .then(|| (release.knows.clone(), theirs.0.block()))
            });
            if self.checks.races {
                let time = self.clock(request.warp).clock;
                let strong = request.strong();
                cell.note(Read {
                    warp: request.warp,
                    lanes: 1 << lane,
                    bytes,
                    strong,
                    time,
                    pc: request.pc,
                });
            }
            let value = value >> (8 * (address % 8));
            to[n][lane] =
                if request.bytes == 8 { value } else { value & ((1 << (8 * request.bytes)) - 1) };
            if let Some((knows, by)) = released {
                let warp = &mut self.warps[request.warp as usize];
                if request.order.acquires() {
                    warp.learn(lane, &knows);
                } else {
                    warp.acquire_later(lane, &knows, by);
                }
            }
        }
        let (tick, late) = (self.tick, self.checks.adversity.map_or(0, |a| u64::from(a.late)));
        let floors = &mut self.warps[request.warp as usize].floors;
        for together in units.iter().filter(|unit| unit.chosen != u64::MAX) {
            for unit in units_of(together.unit) {
                floors.insert(unit, (together.chosen, tick));
            }
        }
        if floors.len() > 4096 {
            // What was read before all that may still be hidden was stored binds nobody any more.
            floors.retain(|_, (_, when)| *when + late >= tick);
        }
        Ok(())
    }

    /// Which stores of a cell a lane must see, and which it may.
    fn visible(
        &self,
        request: &Request<'_>,
        lane: usize,
        bytes: u8,
        cell: &Cell,
        unit: &mut Visible,
    ) {
        let mine = self.clock(request.warp);
        for store in cell.stores.iter().filter(|store| store.bytes & bytes != 0) {
            let must = store.due <= self.tick
                || mine.sees(request.warp, lane, store.warp, store.lane.into(), store.time);
            if must {
                unit.must = unit.must.max(store.sequence);
            }
            unit.may.push(store.sequence);
        }
    }

    /// The last store of a unit that a load sees.
    fn choose(&mut self, unit: &mut Visible) -> u64 {
        unit.may.retain(|&sequence| sequence > unit.must);
        if unit.may.is_empty() {
            return u64::MAX;
        }
        unit.may.sort_unstable();
        unit.may.dedup();
        match self.random.below(unit.may.len() as u64 + 1) {
            0 => unit.must,
            n => unit.may[n as usize - 1],
        }
    }

    /// Stores `from[n][l]` to element `n` of lane `l`.
    pub(crate) fn store(
        &mut self,
        request: &Request<'_>,
        target: &mut Target<'_>,
        from: &[&Lanes],
    ) -> Result<(), Box<Trouble>> {
        let mut global = std::mem::replace(&mut self.global, Cells::new(true));
        let mut sequences = Sequences::default();
        let mut result = Ok(());
        for (n, lane, address) in request.elements() {
            let cell = target.cell(&mut global, address);
            if self.checks.races {
                result = self
                    .check_stores(request, lane, address, cell)
                    .and_then(|()| self.check_reads(request, lane, address, cell));
                if result.is_err() {
                    break;
                }
            }
            let own = self.release(request, lane, address, cell);
            let (sequence, due) = self.sequence(&mut sequences, address, request.whole);
            self.put(
                request,
                lane,
                address,
                from[n][lane],
                (own.clone(), own),
                (sequence, due),
                target,
                &mut global,
            );
        }
        self.global = global;
        if request.order.releases() {
            self.warps[request.warp as usize].clock += 1;
        }
        result
    }

    /// What a strong store of a lane releases (8.8, release patterns): what it knows; what it knew at its last fence that releases;
    /// or what its last store there released, which a strong store that follows goes on to release.
    fn release(
        &self,
        request: &Request<'_>,
        lane: usize,
        address: u64,
        cell: &Cell,
    ) -> Option<Release> {
        let warp = self.clock(request.warp);
        if request.order.releases() {
            let knows = warp.snapshot(request.warp, lane);
            return Some(Release { knows, scope: request.scope });
        }
        if !request.order.is_strong() {
            return None;
        }
        let bytes = mask_of(address, request.bytes);
        let ours = |store: &&Store| {
            (store.warp, usize::from(store.lane)) == (request.warp, lane)
                && store.bytes & bytes != 0
        };
        let before = cell.stores.iter().rev().find(ours).and_then(|store| store.own.as_ref());
        let (knows, scope) = match (warp.fence_release(lane), before) {
            (Some(fence), Some(before)) if fence.scope == before.scope => {
                let mut knows = fence.knows.clone();
                knows.join(&before.knows);
                (knows, fence.scope)
            }
            // The one towards more: what the other knows may be for fewer.
            (Some(fence), Some(before)) if fence.scope < before.scope => {
                (before.knows.clone(), before.scope)
            }
            (Some(one), _) | (None, Some(one)) => (one.knows.clone(), one.scope),
            (None, None) => return None,
        };
        Some(Release { knows, scope: scope.min(request.scope) })
    }

    /// When a store takes place in the order of all, and when everybody sees it.
    fn sequence(&mut self, known: &mut Sequences, address: u64, whole: bool) -> (u64, u64) {
        let (shift, late) = self.checks.adversity.map_or((3, 0), |a| (a.unit.shift(), a.late));
        let shift = if whole { shift.max(4) } else { shift };
        let unit = address >> shift;
        if let Some(&(_, sequence, due)) = known.0.iter().rev().find(|(u, ..)| *u == unit) {
            return (sequence, due);
        }
        self.sequence += 1;
        // Half of them are seen soon, so that a run gets on.
        let late = u64::from(late) >> if self.random.below(2) == 0 { 0 } else { 5 };
        let due = self.tick + self.random.below(late + 1);
        known.0.push((unit, self.sequence, due));
        (self.sequence, due)
    }

    fn put(
        &mut self,
        request: &Request<'_>,
        lane: usize,
        address: u64,
        value: u64,
        (release, own): (Option<Release>, Option<Release>),
        (sequence, due): (u64, u64),
        target: &mut Target<'_>,
        global: &mut Cells,
    ) {
        let before = target.read(address, request.bytes);
        target.write(address, request.bytes, value);
        self.changed |= target.read(address, request.bytes) != before;
        let store = Store {
            warp: request.warp,
            lane: lane as u8,
            bytes: mask_of(address, request.bytes),
            strong: request.strong(),
            time: self.clock(request.warp).clock,
            pc: request.pc,
            sequence,
            due,
            arrives: request.arrives(lane),
            old: before << (8 * (address % 8)),
            release,
            own,
        };
        target.cell(global, address).push(store);
    }

    /// Changes the element of each lane, one after the other; what was there goes to `old`.
    pub(crate) fn update(
        &mut self,
        request: &Request<'_>,
        target: &mut Target<'_>,
        old: &mut Lanes,
        mut new: impl FnMut(usize, u64) -> u64,
    ) -> Result<(), Box<Trouble>> {
        let mut global = std::mem::replace(&mut self.global, Cells::new(true));
        let mut result = Ok(());
        for (_, lane, address) in request.elements() {
            let cell = target.cell(&mut global, address);
            let bytes = mask_of(address, request.bytes);
            if self.checks.uninitialised && cell.unwritten & bytes != 0 {
                result = Err(Trouble::new(FaultKind::Uninitialised { address }, 1 << lane));
                break;
            }
            if self.checks.races {
                result = self
                    .check_stores(request, lane, address, cell)
                    .and_then(|()| self.check_reads(request, lane, address, cell));
                if result.is_err() {
                    break;
                }
            }
            // An atomic reads the latest store, and passes on what that released (8.8: a chain of atomics).
            let head = cell.stores.iter().rfind(|store| store.bytes & bytes != 0);
            let inherited = head.and_then(|store| {
                let release = store.release.as_ref()?;
                let theirs = (self.clock(store.warp), release.scope);
                inclusive((self.clock(request.warp), request.scope), theirs)
                    .then(|| (release.clone(), theirs.0.block()))
            });
            let own = self.release(request, lane, address, cell);
            let mut release = own.clone();
            if let Some((inherited, by)) = inherited {
                let warp = &mut self.warps[request.warp as usize];
                if request.order.acquires() {
                    warp.learn(lane, &inherited.knows);
                } else {
                    warp.acquire_later(lane, &inherited.knows, by);
                }
                release = Some(match release {
                    None => inherited,
                    Some(mut own) => {
                        own.knows.join(&inherited.knows);
                        own
                    }
                });
            }
            let before = target.read(address, request.bytes);
            old[lane] = before;
            let value = new(lane, before);
            let at = self.sequence(&mut Sequences::default(), address, request.whole);
            self.put(request, lane, address, value, (release, own), at, target, &mut global);
        }
        self.global = global;
        if request.order.releases() {
            self.warps[request.warp as usize].clock += 1;
        }
        result
    }
}

/// A unit that is loaded.
struct Visible {
    unit: u64,
    must: u64,
    may: Vec<u64>,
    chosen: u64,
}

/// The units that an instruction has stored to: number, sequence, due.
#[derive(Default)]
struct Sequences(Vec<(u64, u64, u64)>);
