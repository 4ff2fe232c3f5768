//! A warp: 32 lanes, their registers, and where each of them is.
//!
//! Lanes that are at one place run together: a *fragment*. A branch that lanes disagree about splits a
//! fragment in two; fragments that meet become one again. Of several the one that is furthest behind in the
//! text runs first, so that it can catch up with the others (Diamos et al., "SIMD Re-Convergence at Thread Frontiers",
//! MICRO 2011); from time to time the others get a turn, so that lanes may wait for each other, as they may on a GPU since
//! Volta.

use super::alu::Lanes;
use super::clock::WarpTime;
use super::clock::requests::RequestInFlight;
use super::memory::model::lanes;
use super::program::{CONSTANT, Load, Pred, Program, Reg, Truth};

/// Lanes at one place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fragment {
    pub(crate) pc: u32,
    pub(crate) mask: u32,
    pub(crate) park: Park,
}

/// Whether a fragment can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Park {
    Runs,
    /// At an instruction that all lanes of the warp, or of a mask, run together: waits for the others.
    Gathers,
    /// At a barrier of the block; it has arrived.
    Barrier(u8),
}

/// A load whose value has not been asked for.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) load: Load,
    pub(crate) mask: u32,
    pub(crate) addresses: [u64; 32],
    pub(crate) pc: u32,
    /// The step at which it was issued.
    pub(crate) since: u64,
    pub(crate) shared: bool,
}

/// A warp.
pub(crate) struct Warp {
    pub(crate) index: u32,
    /// Its place in the memory model.
    pub(crate) slot: u32,
    pub(crate) registers: Vec<Lanes>,
    pub(crate) predicates: Vec<u32>,
    pub(crate) carry: u32,
    pub(crate) local: Vec<u64>,
    pub(crate) fragments: Vec<Fragment>,
    /// Lanes that have not exited.
    pub(crate) live: u32,
    pub(crate) pending: Vec<Pending>,
    /// Whether it has done something that others may see, or seen something new.
    pub(crate) progress: bool,
    /// What each load has read last, as a hash: whether something new is seen.
    pub(crate) seen: std::collections::HashMap<u32, u64>,
    /// Whether it has loaded something since the last progress.
    pub(crate) looked: bool,
    /// Instructions since the last progress.
    pub(crate) idle: u64,
    /// The time until which it sleeps.
    pub(crate) sleeps_until: u64,
    /// Its virtual time, and its requests under way.
    pub(crate) time: WarpTime,
    pub(crate) waiting: Vec<RequestInFlight>,
    picks: u32,
    /// Lanes that wait at a barrier in shared memory, and for how many turns others of the warp go first: `mbarrier.try_wait` may suspend
    /// its lanes.
    suspended: (u32, u32),
}

/// Turns that others of a warp have while lanes wait at a barrier in shared memory.
const SUSPENDED: u32 = 16;

/// How often a fragment that is not the one furthest behind gets a turn.
const FAIRNESS: u32 = 32;

impl Warp {
    pub(crate) fn new(program: &Program, index: u32, mask: u32, slot: u32) -> Self {
        Warp {
            index,
            slot,
            registers: vec![[0; 32]; program.registers],
            predicates: vec![0; program.predicates],
            carry: 0,
            local: vec![0; (program.local_bytes * 32).div_ceil(8)],
            fragments: vec![Fragment { pc: 0, mask, park: Park::Runs }],
            live: mask,
            pending: Vec::new(),
            progress: true,
            seen: std::collections::HashMap::new(),
            looked: false,
            idle: 0,
            sleeps_until: 0,
            time: WarpTime::default(),
            waiting: Vec::new(),
            picks: 0,
            suspended: (0, 0),
        }
    }

    /// Joins fragments that are at one place, and picks the one to run: the one furthest behind, unless `other`
    /// says which.
    pub(crate) fn pick(&mut self, other: Option<u64>) -> Option<usize> {
        let mut i = 0;
        while i < self.fragments.len() {
            let one = self.fragments[i];
            let other = self.fragments[..i].iter().position(|f| {
                f.pc == one.pc
                    && !matches!(f.park, Park::Barrier(_))
                    && !matches!(one.park, Park::Barrier(_))
            });
            match other {
                Some(other) => {
                    self.fragments.remove(i);
                    self.fragments[other].mask |= one.mask;
                    // Whoever waited there for the others looks again.
                    self.fragments[other].park = Park::Runs;
                }
                None => i += 1,
            }
        }
        let runs = |f: &&Fragment| f.park == Park::Runs;
        let count = self.fragments.iter().filter(runs).count();
        if count == 0 {
            return None;
        }
        self.picks = self.picks.wrapping_add(1);
        let (waits, turns) = self.suspended;
        if turns > 0 && count > 1 && other.is_none() {
            self.suspended.1 -= 1;
            let goes = |f: &&Fragment| f.park == Park::Runs && f.mask & waits == 0;
            let first = self.fragments.iter().filter(goes).map(|f| f.pc).min();
            if let Some(pc) = first {
                return self.fragments.iter().position(|f| goes(&f) && f.pc == pc);
            }
        }
        let runnable = self.fragments.iter().enumerate().filter(|(_, f)| f.park == Park::Runs);
        if let Some(other) = other.filter(|_| count > 1) {
            runnable.map(|(i, _)| i).nth((other % count as u64) as usize)
        } else if count > 1 && self.picks.is_multiple_of(FAIRNESS) {
            runnable.map(|(i, _)| i).nth((self.picks / FAIRNESS) as usize % count)
        } else {
            runnable.min_by_key(|(_, f)| f.pc).map(|(i, _)| i)
        }
    }

    /// These lanes wait for something that others of the warp may have to do.
    pub(crate) fn suspend(&mut self, mask: u32) {
        self.suspended = (mask, SUSPENDED);
    }

    /// Ends lanes.
    pub(crate) fn exit(&mut self, mask: u32) {
        self.live &= !mask;
        self.progress = true;
        for fragment in &mut self.fragments {
            fragment.mask &= !mask;
        }
        self.fragments.retain(|f| f.mask != 0);
    }

    pub(crate) fn truth(&self, truth: Truth) -> u32 {
        match truth {
            Truth::Reg(p, negated) => {
                let value = self.predicates[usize::from(p)];
                if negated { !value } else { value }
            }
            Truth::Always(truth) => {
                if truth {
                    u32::MAX
                } else {
                    0
                }
            }
        }
    }

    pub(crate) fn set_predicate(&mut self, p: Pred, value: u32, mask: u32) {
        let p = &mut self.predicates[usize::from(p)];
        *p = *p & !mask | value & mask;
    }

    #[inline(always)]
    pub(crate) fn read<'r>(&'r self, program: &'r Program, r: Reg) -> &'r Lanes {
        if r & CONSTANT != 0 {
            &program.constants[usize::from(r & !CONSTANT)]
        } else {
            &self.registers[usize::from(r)]
        }
    }

    #[inline(always)]
    pub(crate) fn write(&mut self, r: Reg, value: &Lanes, mask: u32) {
        let register = &mut self.registers[usize::from(r)];
        if mask == u32::MAX {
            *register = *value;
        } else {
            for lane in 0..32 {
                // All ones where the lane counts.
                let keep = u64::from(mask >> lane & 1).wrapping_sub(1);
                register[lane] = register[lane] & keep | value[lane] & !keep;
            }
        }
    }

    /// The value that all lanes of a mask have; `None` where they differ.
    pub(crate) fn uniform(&self, program: &Program, r: Reg, mask: u32) -> Option<u64> {
        let values = self.read(program, r);
        let mut all = lanes(mask).map(|lane| values[lane]);
        let first = all.next()?;
        all.all(|v| v == first).then_some(first)
    }
}
