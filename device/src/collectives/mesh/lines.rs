//! Lines over the mesh: LL and LL128. A step's values are units of a line format, each with its flag.

use super::units::{Tasks, Units};
use super::{Mesh, MeshProtocol, RankBlocks};
use crate::abi::{MESH_SLOTS, ProtocolId};
use crate::element::Element;
use crate::gpu::{self, WARP};
use crate::peers::Among;
use crate::prims::LineFormat;
use crate::reduce::Reduction;

impl<P: LineFormat> MeshProtocol for P {
    const BUFFER: usize = match P::ID {
        ProtocolId::Ll => 0,
        ProtocolId::Ll128 | ProtocolId::Simple | ProtocolId::Own(_) => 1,
    };
    const TELLS_CALL: bool = false;

    #[inline(always)]
    fn mesh_capacity(slot_bytes: usize) -> usize {
        P::capacity(slot_bytes)
    }

    /// Each lane has loaded its units before the reduction stores there, as both give it the same.
    #[inline(always)]
    unsafe fn spread<T: Element, R: Reduction>(
        mesh: &mut Mesh<T, R, Self>,
        step: u64,
        input: *const T,
        n: usize,
    ) {
        let (lane, offset) = (P::lane(), mesh.slot_of_lane(step));
        let mut to_do = mesh.units_of(mesh.to_send(n, step));
        while let Some((unit, mine)) = to_do.next() {
            // SAFETY: the caller's.
            unsafe {
                let mut part = Mesh::<T, R, P>::load(lane, input, n, unit, mine);
                mesh.reducer.pre_words(P::words_mut(core::slice::from_mut(&mut part)));
                mesh.send_all(step, lane, offset, (unit, mine), part);
            }
        }
    }

    #[inline(always)]
    unsafe fn scatter<T: Element, R: Reduction>(
        mesh: &mut Mesh<T, R, Self>,
        step: u64,
        input: RankBlocks<*const T>,
        n: impl Fn(usize) -> usize,
        most: usize,
    ) {
        let (lane, offset) = (P::lane(), mesh.slot_of_lane(step));
        let mut tasks = mesh.tasks_of(mesh.to_send(most, step));
        while let Some((unit, by, mine)) = tasks.next() {
            // SAFETY: the caller's.
            unsafe {
                let to = mesh.side.to(by, offset);
                let peer = mesh.side.behind(by);
                let data = input.first.wrapping_add(peer * input.stride);
                let mut part = Mesh::<T, R, P>::load(lane, data, n(peer), unit, mine);
                mesh.reducer.pre_words(P::words_mut(core::slice::from_mut(&mut part)));
                mesh.send(step, lane, to, (unit, mine), part);
            }
        }
    }

    #[inline(always)]
    unsafe fn reduce<T: Element, R: Reduction, const ALL: bool, const SEND: bool>(
        mesh: &mut Mesh<T, R, Self>,
        step: u64,
        places: (*const T, *mut T),
        n: usize,
        most: usize,
    ) {
        // SAFETY: the caller's.
        unsafe { mesh.reduce_lines::<ALL, SEND>(step, places, n, Mesh::<T, R, P>::units(most)) }
    }

    #[inline(always)]
    unsafe fn gather<T: Element, R: Reduction, const ALL: bool>(
        mesh: &mut Mesh<T, R, Self>,
        step: u64,
        output: RankBlocks<*mut T>,
        n: impl Fn(usize) -> usize,
        most: usize,
    ) {
        // SAFETY: the caller's.
        unsafe { mesh.gather_lines::<ALL>(step, output, n, Mesh::<T, R, P>::units(most)) }
    }
}

impl<T: Element, R: Reduction, P: LineFormat> Mesh<T, R, P> {
    /// Elements of a unit.
    const PER_UNIT: usize = P::DATA / size_of::<T>();

    /// Units of a chunk: one at least, so that whoever receives a step knows of every other rank.
    #[inline(always)]
    fn units(n: usize) -> usize {
        n.div_ceil(Self::PER_UNIT).max(1)
    }

    /// Where this lane's part of unit 0 of the slot of a step is, behind the address of a table.
    #[inline(always)]
    pub(super) fn slot_of_lane(&self, step: u64) -> usize {
        self.slot(step) + P::offsets().1
    }

    /// This warp's units of a slot that has so many.
    #[inline(always)]
    pub(super) fn units_of(&self, units: usize) -> Units {
        let row = (WARP as usize) / P::LANES;
        let in_row = gpu::lane_id() as usize / P::LANES;
        let (warp, warps) =
            (self.side.cx.tid() / WARP as usize, self.side.cx.lanes() / WARP as usize);
        // Where lanes vote, all lanes of the warp come along.
        let past = if P::LANES > 1 { units + in_row } else { units };
        Units { next: warp * row + in_row, units, past, by: warps * row }
    }

    /// This lane's part of a unit of `n` elements at `data`.
    ///
    /// # Safety
    /// `n` elements are readable.
    #[inline(always)]
    pub(super) unsafe fn load(
        lane: P::Lane,
        data: *const T,
        n: usize,
        unit: usize,
        mine: bool,
    ) -> P::Part {
        if !mine {
            return P::EMPTY;
        }
        let at = data.wrapping_byte_add(unit * P::DATA + P::offsets().0);
        let left = n.saturating_sub(unit * Self::PER_UNIT);
        // SAFETY: the caller's.
        unsafe {
            if P::LANES == 1 && left >= Self::PER_UNIT && is_aligned::<T, P>(at) {
                P::load::<T, true>(lane, at, left)
            } else {
                P::load::<T, false>(lane, at, left)
            }
        }
    }

    /// The reverse of [`Mesh::load`].
    ///
    /// # Safety
    /// `n` elements are writable.
    #[inline(always)]
    pub(super) unsafe fn store(lane: P::Lane, data: *mut T, n: usize, unit: usize, part: P::Part) {
        let at = data.wrapping_byte_add(unit * P::DATA + P::offsets().0);
        let left = n.saturating_sub(unit * Self::PER_UNIT);
        // SAFETY: the caller's.
        unsafe {
            if P::LANES == 1 && left >= Self::PER_UNIT && is_aligned::<T, P>(at.cast_const()) {
                P::store::<T, true>(lane, at, part, left);
            } else {
                P::store::<T, false>(lane, at, part, left);
            }
        }
    }

    /// Units to send of a slot with data of so many elements.
    #[inline(always)]
    fn to_send(&self, n: usize, step: u64) -> usize {
        if P::fills_slot(step, MESH_SLOTS) { self.slot_bytes() / P::BYTES } else { Self::units(n) }
    }

    /// This warp's rows of a slot of so many units, each for each of the others, which come in turn.
    #[inline(always)]
    pub(super) fn tasks_of(&self, units: usize) -> Tasks {
        let row = (WARP as usize) / P::LANES;
        let (warp, warps) =
            (self.side.cx.tid() / WARP as usize, self.side.cx.lanes() / WARP as usize);
        let others = self.side.nranks - 1;
        Tasks {
            unit: warp / others * row + gpu::lane_id() as usize / P::LANES,
            peer: warp % others,
            by: (warps / others * row, warps % others),
            row,
            others,
            units,
            past: if P::LANES > 1 { units.next_multiple_of(row) } else { units },
        }
    }

    /// Stores this lane's part of a unit in a slot, whose unit 0 it has at `to`.
    ///
    /// # Safety
    /// All lanes of the warp call it, for a slot that has been read.
    #[inline(always)]
    pub(super) unsafe fn send(
        &self,
        step: u64,
        lane: P::Lane,
        to: *mut u8,
        (unit, mine): (usize, bool),
        part: P::Part,
    ) {
        if P::LANES > 1 {
            // Lanes that took different branches so far store together from here on: a line is whole only if it is one
            // store of the warp.
            gpu::sync_warp();
        }
        if mine {
            // SAFETY: the caller's.
            unsafe { P::send(step, lane, to.wrapping_add(unit * P::BYTES).cast(), part) }
        }
    }

    /// Stores this lane's part of a unit in all others' slots of a step, which are at `offset`.
    ///
    /// # Safety
    /// As [`Mesh::send`].
    #[inline(always)]
    pub(super) unsafe fn send_all(
        &self,
        step: u64,
        lane: P::Lane,
        offset: usize,
        unit: (usize, bool),
        part: P::Part,
    ) {
        // SAFETY: the caller's.
        self.side.for_all((0, 1), offset, |to| unsafe { self.send(step, lane, to, unit, part) });
    }

    /// Sends units behind those of a step without data to all others, if it has to fill its slots.
    #[inline(always)]
    pub(super) fn fill(&self, step: u64, units: usize) {
        if !P::fills_slot(step, MESH_SLOTS) {
            return;
        }
        let (lane, offset) = (P::lane(), self.slot_of_lane(step));
        let mut to_do = self.units_of(self.slot_bytes() / P::BYTES);
        while let Some((unit, mine)) = to_do.next() {
            // SAFETY: the unit is inside the slot, which has been read.
            unsafe { self.send_all(step, lane, offset, (unit, mine && unit >= units), P::EMPTY) };
        }
    }
}

/// Whether a unit at `at` can be moved at once.
#[inline(always)]
fn is_aligned<T, P: LineFormat>(at: *const T) -> bool {
    gpu::UNALIGNED_PACKS || at.addr().is_multiple_of(P::ALIGN)
}
