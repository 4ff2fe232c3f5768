//! What a rank does with the lines of the others: combines them, or stores them as they are.

use super::{Mesh, RankBlocks};
use crate::abi::{ProtocolId, WaitKind};
use crate::element::Element;
use crate::gpu;
use crate::peers::Among;
use crate::prims::{ConnState, KernelContext, LineFormat, PEERS};
use crate::reduce::Reduction;

/// Units that are in registers at the same time, where they are loaded apart from their flags.
const BATCH: usize = 4;
const _: () = assert!(PEERS == 2 * BATCH);

impl<T: Element, R: Reduction, P: LineFormat> Mesh<T, R, P> {
    /// [`Mesh::reduce`] of so many units of each rank; with `SEND` the result has as many.
    ///
    /// # Safety
    /// All lanes call it with equal arguments; the elements are readable and writable, and `units` those that were sent.
    #[inline(always)]
    pub(super) unsafe fn reduce_lines<const ALL: bool, const SEND: bool>(
        &mut self,
        step: u64,
        (input, output): (*const T, *mut T),
        n: usize,
        units: usize,
    ) {
        let (lane, offset) = (P::lane(), self.slot_of_lane(step));
        let mut to_do = self.units_of(units);
        while let Some((unit, mine)) = to_do.next() {
            // SAFETY: the caller's.
            unsafe {
                let mut own = Self::load(lane, input, n, unit, mine);
                self.reducer.pre_words(P::words_mut(core::slice::from_mut(&mut own)));
                let mut value = own;
                let mut first = 0;
                while first < self.side.nranks {
                    let place = (step, offset, unit, mine);
                    if !self.reduce_some::<ALL>(place, lane, first, own, &mut value) {
                        return;
                    }
                    first += PEERS;
                }
                self.reducer.post_words(P::words_mut(core::slice::from_mut(&mut value)));
                if SEND {
                    let next = self.slot_of_lane(gpu::opaque(step as usize) as u64 + 1);
                    self.send_all(step + 1, lane, next, (unit, mine), value);
                }
                if mine {
                    Self::store(lane, output, n, unit, value);
                }
            }
        }
        if SEND {
            self.fill(step + 1, units);
        }
    }

    /// Waits for a unit of the ranks from `first` on, as many as are looked at together, and combines them with `value`, which
    /// the first of all replaces; for this rank's own stands `own`. `false` after a stop.
    ///
    /// # Safety
    /// All lanes of a warp call it with the same ranks; where `mine`, the unit is one that all send in this step.
    #[inline(always)]
    unsafe fn reduce_some<const ALL: bool>(
        &mut self,
        (step, offset, unit, mine): (u64, usize, usize, bool),
        lane: P::Lane,
        first: usize,
        own: P::Part,
        value: &mut P::Part,
    ) -> bool {
        let n = (self.side.nranks - first).min(PEERS);
        // Computed again for each look: kept, the addresses would fill sixteen registers.
        let here = |i: usize| {
            let unit = gpu::opaque(unit) * P::BYTES;
            self.side.of::<ALL>(first + i, offset).wrapping_add(unit).cast::<u64>()
        };
        let mut watch = P::watch(lane, n, here);
        let mut cx = self.side.cx;
        // SAFETY: the caller's.
        unsafe {
            // One that is still waited for.
            let missing = |cx: &KernelContext| {
                let late = |i: &usize| {
                    first + i != self.side.rank && mine && !P::has_arrived(step, here(*i))
                };
                let any = if self.side.rank == first { 1 } else { 0 };
                let i = (0..gpu::opaque(n)).find(late).unwrap_or(any);
                ConnState::named(&raw mut (*cx.peer((first + i) as u32)).recv, step)
            };
            if P::LANES > 1 {
                let ready = || P::look(step, n, here, &mut watch, mine);
                cx.wait_for_any::<true>(missing, Self::WAIT, step, ready);
            } else {
                let ready = || P::look(step, n, here, &mut watch, mine);
                cx.wait_for_any::<false>(missing, Self::WAIT, step, ready);
            }
            if !cx.stopped {
                macro_rules! batch {
                    ($from:literal) => {
                        let mut parts = [own; BATCH];
                        unroll_4!(n.saturating_sub($from), i => {
                            if mine && first + $from + i != self.side.rank {
                                parts[i] = P::take(&watch, $from + i, here($from + i));
                            }
                        });
                        unroll_4!(n.saturating_sub($from), i => {
                            if first + $from + i == 0 {
                                *value = parts[i];
                            } else {
                                self.reducer.combine_words(
                                    P::words_mut(core::slice::from_mut(value)),
                                    P::words(core::slice::from_ref(&parts[i])),
                                );
                            }
                        });
                    };
                }
                batch!(0);
                batch!(4);
            }
        }
        self.side.cx.stopped = cx.stopped;
        !cx.stopped
    }

    /// What a rank that waits for a unit waits for.
    const WAIT: WaitKind = match P::ID {
        ProtocolId::Ll => WaitKind::LlFlag,
        ProtocolId::Ll128 | ProtocolId::Simple | ProtocolId::Own(_) => WaitKind::Ll128Flag,
    };

    /// [`Mesh::gather`] of so many units of each rank.
    ///
    /// # Safety
    /// All lanes call it with equal arguments; the elements are readable and writable, and `units` those that were sent.
    #[inline(always)]
    pub(super) unsafe fn gather_lines<const ALL: bool>(
        &mut self,
        step: u64,
        output: RankBlocks<*mut T>,
        n: impl Fn(usize) -> usize,
        units: usize,
    ) {
        let (lane, offset) = (P::lane(), self.slot_of_lane(step));
        let mut tasks = self.tasks_of(units);
        while let Some((unit, by, mine)) = tasks.next() {
            let peer = self.side.behind(by);
            // SAFETY: the caller's.
            unsafe {
                let conn = self.side.conn(peer, step);
                let at = self.side.of::<ALL>(peer, offset).wrapping_add(unit * P::BYTES).cast();
                let mut parts = [P::EMPTY];
                if !P::receive(&mut self.side.cx, &conn, lane, at, mine, &mut parts) {
                    return;
                }
                if mine {
                    let to = output.first.wrapping_add(peer * output.stride);
                    Self::store(lane, to, n(peer), unit, parts[0]);
                }
            }
        }
    }
}
