//! Atomics of warps.

use super::access::{Result, check, parts, place, request};
use super::alu::Lanes;
use super::block::Common;
use super::clock::requests;
use super::exec::Env;
use super::fault::{FaultKind, Trouble};
use super::memory::model::{Target, lanes};
use super::memory::raw;
use super::program::{Access, Atomic, Rmw, Space};
use super::warp::Warp;

/// Atomics: one lane after the other.
pub(crate) fn atomic(
    warp: &mut Warp,
    common: &mut Common,
    env: &mut Env<'_>,
    atomic: &Atomic,
    mask: u32,
    pc: u32,
) -> Result<()> {
    let access = &atomic.access;
    for (mask, space, addresses) in parts(warp, common, access, mask) {
        if mask == 0 {
            continue;
        }
        check(common, access, mask, space, &addresses)?;
        common.counts.atomics += 1;
        if space == Space::Global {
            at(warp, common, env, atomic, (mask, &addresses), pc)?;
            continue;
        }
        if space == Space::Shared && env.clock.is_some() {
            let passes = u64::from(mask.count_ones());
            requests::shared(warp, common, env, (passes, pc), atomic.d.into_iter());
        }
        let (b, c) = operands(warp, common, atomic);
        update(warp, common, env, (atomic, &b, &c), (mask, space, &addresses), pc)?;
    }
    Ok(())
}

/// An atomic at addresses of global memory, which are checked; in virtual time it sets out.
pub(crate) fn at(
    warp: &mut Warp,
    common: &mut Common,
    env: &mut Env<'_>,
    atomic: &Atomic,
    (mask, addresses): (u32, &[u64; 32]),
    pc: u32,
) -> Result<()> {
    let (b, c) = operands(warp, common, atomic);
    if let Some(clock) = env.clock.as_deref_mut() {
        requests::atomic(warp, common, clock, (atomic, &b, &c), (mask, addresses), pc);
        return Ok(());
    }
    update(warp, common, env, (atomic, &b, &c), (mask, Space::Global, addresses), pc)
}

fn operands(warp: &Warp, common: &Common, atomic: &Atomic) -> (Lanes, Lanes) {
    let program = &common.grid.program;
    (*warp.read(program, atomic.b), *warp.read(program, atomic.c))
}

/// Changes memory, and gives the lanes what was there.
pub(crate) fn update(
    warp: &mut Warp,
    common: &mut Common,
    env: &mut Env<'_>,
    (atomic, b, c): (&Atomic, &Lanes, &Lanes),
    (mask, space, addresses): (u32, Space, &[u64; 32]),
    pc: u32,
) -> Result<()> {
    let access = &atomic.access;
    let new = |lane: usize, old: u64| apply(atomic.how, old, b[lane], c[lane], access.bytes);
    let to = (mask, space, addresses);
    let (old, changed) = modify(warp.slot, common, env, access, to, pc, new)?;
    warp.progress |= changed;
    if let Some(d) = atomic.d {
        warp.write(d, &old, mask);
    }
    Ok(())
}

/// Changes memory at once, for each lane in its turn; what was there, and whether anything has changed. `slot` is who does it, to the
/// memory model.
pub(crate) fn modify(
    slot: u32,
    common: &mut Common,
    env: &mut Env<'_>,
    access: &Access,
    (mask, space, addresses): (u32, Space, &[u64; 32]),
    pc: u32,
    mut new: impl FnMut(usize, u64) -> u64,
) -> Result<(Lanes, bool)> {
    let mut old = [0; 32];
    let mut changed = false;
    match (space, env.model.as_deref_mut()) {
        (Space::Param | Space::Local, _) => {
            return Err(Trouble::new(
                FaultKind::Trap("an atomic in local memory".to_owned()),
                mask,
            ));
        }
        (_, Some(model)) => {
            let request = request(slot, pc, mask, addresses, access);
            model.changed = false;
            if space == Space::Shared {
                let mut target = Target::Shared { data: &common.shared, cells: &mut common.cells };
                model.update(&request, &mut target, &mut old, new)?;
            } else {
                model.update(&request, &mut Target::Global, &mut old, new)?;
            }
            changed = model.changed;
        }
        (space, None) => {
            let start = if space == Space::Shared { place(&common.shared, 0) } else { 0 };
            for lane in lanes(mask) {
                // SAFETY: mapped (the contract of `Machine::map`) or the block's own, and aligned, by `check`.
                old[lane] = unsafe {
                    raw::update(start + addresses[lane], access.bytes, |old| {
                        let new = new(lane, old);
                        changed |= new != old;
                        new
                    })
                };
            }
        }
    }
    Ok((old, changed))
}

/// What an atomic makes of a value.
pub(crate) fn apply(how: Rmw, old: u64, b: u64, c: u64, bytes: u8) -> u64 {
    let keep = u64::MAX >> (64 - 8 * u32::from(bytes));
    let new = match how {
        Rmw::Exchange => b,
        Rmw::Cas => {
            if old == b & keep {
                c
            } else {
                old
            }
        }
        Rmw::Inc => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        Rmw::Dec => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
        Rmw::Value(run) => {
            let (mut to, zero): (Lanes, Lanes) = ([0; 32], [0; 32]);
            run(&mut to, [&[old; 32], &[b; 32], &zero, &zero]);
            to[0]
        }
    };
    new & keep
}
