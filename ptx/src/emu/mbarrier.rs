//! Barriers in shared memory (`mbarrier`): they count arrivals, and the bytes of asynchronous copies.
//!
//! A phase ends when all arrivals have come and as many bytes as are expected; then the next one begins. What the 8 bytes of
//! a barrier hold is the machine's own affair (9.7.13.15.1 "opaque"); here:
//!
//! ```text
//! 63 initialised | 62 phase | 61..40 bytes still expected, signed | 39..20 arrivals of a phase | 19..0 of them still to come
//! ```
//!
//! Source: PTX ISA 9.0, 9.7.13.15 "mbarrier", of which the limits of counts are, too.

use super::access::{Result, check, look, note_seen, parts};
use super::alu::Lanes;
use super::asynchronous;
use super::atomics::modify;
use super::block::Common;
use super::clock::requests;
use super::exec::Env;
use super::fault::{FaultKind, Trouble};
use super::memory::model::lanes;
use super::program::{Access, Mbarrier, MbarrierKind, Order, Scope, Space};
use super::warp::Warp;

/// The largest count of arrivals, and of bytes: 2^20 - 1.
const MOST: u64 = (1 << 20) - 1;
const INITIALISED: u64 = 1 << 63;
const PHASE: u64 = 1 << 62;

/// A barrier's state, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    odd: bool,
    /// Bytes that are expected and have not come; negative where they come first.
    bytes: i64,
    arrivals: u64,
    pending: u64,
}

impl State {
    fn of(word: u64) -> std::result::Result<State, String> {
        if word & INITIALISED == 0 {
            return Err("no barrier has been initialised here (`mbarrier.init`)".to_owned());
        }
        Ok(State {
            odd: word & PHASE != 0,
            bytes: (word << 2) as i64 >> 42,
            arrivals: word >> 20 & MOST,
            pending: word & MOST,
        })
    }

    fn word(self) -> u64 {
        let bytes = (self.bytes as u64 & ((1 << 22) - 1)) << 40;
        let phase = if self.odd { PHASE } else { 0 };
        INITIALISED | phase | bytes | self.arrivals << 20 | self.pending
    }

    fn init(count: u64) -> std::result::Result<State, String> {
        if !(1..=MOST).contains(&count) {
            return Err(format!("a barrier for {count} arrivals; 1 to {MOST} are possible"));
        }
        Ok(State { odd: false, bytes: 0, arrivals: count, pending: count })
    }

    fn expect(mut self, bytes: i64) -> std::result::Result<State, String> {
        self.bytes += bytes;
        if self.bytes.unsigned_abs() > MOST {
            return Err(format!("the barrier expects {} bytes; {MOST} are possible", self.bytes));
        }
        Ok(self)
    }

    fn arrive(mut self, count: u64, drops: bool) -> std::result::Result<State, String> {
        let pending = self.pending.checked_sub(count).filter(|_| count > 0);
        self.pending = pending.ok_or_else(|| {
            format!("{count} arrivals at a barrier that waits for {}", self.pending)
        })?;
        if drops {
            self.arrivals = self.arrivals.saturating_sub(1);
        }
        Ok(self)
    }

    /// Goes on to the next phase if this one is over.
    fn settle(mut self) -> State {
        if self.pending == 0 && self.bytes == 0 {
            self.odd = !self.odd;
            self.pending = self.arrivals;
        }
        self
    }
}

/// `mbarrier.pending_count`.
pub(crate) fn pending_count(to: &mut Lanes, [state, ..]: [&Lanes; 4]) {
    *to = state.map(|word| word & MOST);
}

fn fault(what: String, mask: u32) -> Box<Trouble> {
    Trouble::new(FaultKind::Trap(what), mask)
}

/// An instruction on barriers.
pub(crate) fn mbarrier(
    warp: &mut Warp,
    common: &mut Common,
    env: &mut Env<'_>,
    barrier: &Mbarrier,
    mask: u32,
    pc: u32,
) -> Result<()> {
    let access = &barrier.access;
    for (mask, space, addresses) in parts(warp, common, access, mask) {
        if mask == 0 {
            continue;
        }
        if space != Space::Shared {
            return Err(fault("an `mbarrier` outside of shared memory".to_owned(), mask));
        }
        check(common, access, mask, space, &addresses)?;
        common.counts.shared_accesses += 1;
        if env.clock.is_some() {
            let d = match &barrier.how {
                MbarrierKind::Arrive { d, .. } => *d,
                _ => None,
            };
            let passes = u64::from(mask.count_ones());
            requests::shared(warp, common, env, (passes, pc), d.into_iter());
        }
        at(warp, common, env, barrier, (mask, &addresses), pc)?;
    }
    Ok(())
}

fn at(
    warp: &mut Warp,
    common: &mut Common,
    env: &mut Env<'_>,
    barrier: &Mbarrier,
    (mask, addresses): (u32, &[u64; 32]),
    pc: u32,
) -> Result<()> {
    let access = &barrier.access;
    let to = (mask, Space::Shared, addresses);
    let read = |warp: &Warp, common: &Common, r| *warp.read(&common.grid.program, r);
    match &barrier.how {
        MbarrierKind::Init { count } => {
            let counts = read(warp, common, *count);
            let mut words = [0; 32];
            for lane in lanes(mask) {
                let state = State::init(counts[lane] & u64::from(u32::MAX));
                words[lane] = state.map_err(|what| fault(what, 1 << lane))?.word();
            }
            asynchronous::put_words(warp.slot, common, env, access, to, &words, pc)?;
        }
        MbarrierKind::Invalidate => {
            asynchronous::put_words(warp.slot, common, env, access, to, &[0; 32], pc)?;
        }
        MbarrierKind::Arrive { d, count, expect, drops } => {
            let counts = read(warp, common, *count);
            let bytes = expect.map_or([0; 32], |bytes| read(warp, common, bytes));
            let arrive = |lane: usize, state: State| {
                let state = state.expect((bytes[lane] & u64::from(u32::MAX)) as i64)?;
                state.arrive(counts[lane] & u64::from(u32::MAX), *drops)
            };
            let old = change(warp.slot, common, env, access, to, pc, arrive)?;
            if let Some(d) = d {
                warp.write(*d, &old, mask);
            }
        }
        MbarrierKind::Expect { bytes } | MbarrierKind::Complete { bytes } => {
            let bytes = read(warp, common, *bytes);
            let completes = matches!(barrier.how, MbarrierKind::Complete { .. });
            let expect = |lane: usize, state: State| {
                let bytes = (bytes[lane] & u64::from(u32::MAX)) as i64;
                state.expect(if completes { -bytes } else { bytes })
            };
            change(warp.slot, common, env, access, to, pc, expect)?;
        }
        MbarrierKind::Test { p, phase, parity } => {
            let phases = read(warp, common, *phase);
            let mut values = [[0; 32]];
            look(warp, common, env, access, to, pc, &mut values)?;
            note_seen(warp, env, to, pc, &values);
            let mut over = 0;
            for lane in lanes(mask) {
                let now = State::of(values[0][lane]).map_err(|what| fault(what, 1 << lane))?;
                let odd = if *parity { phases[lane] & 1 != 0 } else { phases[lane] & PHASE != 0 };
                over |= u32::from(now.odd != odd) << lane;
            }
            warp.set_predicate(*p, over, mask);
            if over & mask != mask {
                warp.suspend(mask & !over);
            }
            if let Some(clock) = env.clock.as_deref() {
                let ready = warp.time.at + clock.timing.cycles(clock.timing.shared_cycles.into());
                warp.time.set_predicate(*p, ready);
            } else if over & mask != mask {
                // Who waits for a copy lets it get on.
                asynchronous::advance_some(common, env)?;
            }
            return Ok(());
        }
    }
    warp.progress = true;
    Ok(())
}

/// Changes the barrier of each lane; what they were is returned.
fn change(
    slot: u32,
    common: &mut Common,
    env: &mut Env<'_>,
    access: &Access,
    (mask, space, addresses): (u32, Space, &[u64; 32]),
    pc: u32,
    how: impl Fn(usize, State) -> std::result::Result<State, String>,
) -> Result<Lanes> {
    let mut wrong = None;
    let next = |lane: usize, word: u64| match State::of(word).and_then(|state| how(lane, state)) {
        Ok(state) => state.settle().word(),
        Err(what) => {
            wrong.get_or_insert((what, lane));
            word
        }
    };
    let (old, _) = modify(slot, common, env, access, (mask, space, addresses), pc, next)?;
    match wrong {
        Some((what, lane)) => Err(fault(what, 1 << lane)),
        None => Ok(old),
    }
}

/// So many bytes of a copy have come, which is agent `lane` of `slot`: `mbarrier.complete_tx`, after all that it has done.
pub(crate) fn complete(
    (slot, lane): (u32, usize),
    common: &mut Common,
    env: &mut Env<'_>,
    (address, bytes): (u64, u32),
    pc: u32,
) -> Result<()> {
    let (order, scope) = (Order::Release, Scope::Cta);
    let access = Access {
        space: Space::Shared,
        base: 0,
        offset: 0,
        bytes: 8,
        count: 1,
        order,
        scope,
        whole: false,
    };
    let mut addresses = [0; 32];
    addresses[lane] = address;
    let to = (1 << lane, Space::Shared, &addresses);
    let expect = |_: usize, state: State| state.expect(-i64::from(bytes));
    change(slot, common, env, &access, to, pc, expect).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_ends_when_all_have_come_and_all_bytes() {
        let state = State::init(2).unwrap();
        assert_eq!(State::of(state.word()), Ok(state));
        let state = state.expect(MOST as i64).unwrap().arrive(1, false).unwrap().settle();
        assert_eq!(State::of(state.word()), Ok(state));
        let state = state.arrive(1, true).unwrap().settle();
        assert!(!state.odd, "bytes are to come");
        let early = State::init(1).unwrap().expect(-5).unwrap();
        assert_eq!(State::of(early.word()).unwrap().bytes, -5);
        let state = state.expect(-(MOST as i64)).unwrap().settle();
        assert_eq!(
            state,
            State { odd: true, bytes: 0, arrivals: 1, pending: 1 },
            "one has dropped out"
        );
        assert!(state.arrive(2, false).is_err() && state.arrive(0, false).is_err());
        assert!(state.expect(1 + MOST as i64).is_err() && State::init(0).is_err());
        assert!(State::of(0).is_err());
    }
}
