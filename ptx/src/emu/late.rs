//! Late loads: values that are fetched when they are needed, after what the lane has stored meanwhile.
//!
//! A GPU issues a load and goes on until an instruction needs the register. A memory system may answer as late as that.
//! What may not be overtaken: an instruction that uses the register, one that touches the same memory, and
//! for its own lanes whatever orders memory (fences, barriers, acquiring loads, releasing stores, atomics).

use super::access::{fetch, parts};
use super::block::Common;
use super::exec::Env;
use super::fault::Trouble;
use super::memory::model::lanes;
use super::program::{Access, Load, Op, Space, Store, WarpSync};
use super::warp::Warp;

/// An error comes with the load that it is about.
type Result<T> = std::result::Result<T, (Box<Trouble>, u32)>;

/// Fetches the late loads that an instruction may not come before: those whose registers it uses, those whose memory it
/// touches, and all of its lanes where it orders memory.
pub(crate) fn settle_for(
    warp: &mut Warp,
    common: &mut Common,
    env: &mut Env<'_>,
    pc: u32,
    active: u32,
) -> Result<()> {
    let program = std::sync::Arc::clone(&common.grid.program);
    let op = &program.code[pc as usize].op;
    let orders = match op {
        Op::Fence { .. } | Op::Barrier(_) | Op::Atomic(_) | Op::Multimem(_) => true,
        Op::Mbarrier(_) | Op::AsyncCopy(_) | Op::AsyncWait { .. } | Op::ProxyFence => true,
        Op::Exit | Op::Trap | Op::AssertFail(_) => true,
        Op::WarpSync { how, .. } => matches!(how, WarpSync::Barrier),
        Op::Load(load) => load.access.order.acquires(),
        Op::Store(store) => store.access.order.releases(),
        _ => false,
    };
    let touched = match op {
        Op::Load(Load { access, .. }) | Op::Store(Store { access, .. }) => Some(access),
        _ => None,
    };
    let (now, late) = env.model.as_deref().map_or((0, 0), |model| {
        (model.tick, model.checks.adversity.map_or(0, |a| u64::from(a.late)))
    });
    let used = program.touched(pc);
    let mut i = 0;
    while i < warp.pending.len() {
        let pending = &warp.pending[i];
        let mut settle =
            pending.load.d.iter().flatten().any(|d| used.contains(d)) || pending.since + late < now;
        if let Some(access) = touched.filter(|_| !settle) {
            let reach = |a: &Access| u64::from(a.bytes) * u64::from(a.count);
            settle = parts(warp, common, access, active).iter().any(|(mask, space, addresses)| {
                let alike = (*space == Space::Shared) == pending.shared;
                alike
                    && lanes(*mask & pending.mask).any(|l| {
                        let (a, b) = (addresses[l], pending.addresses[l]);
                        a < b + reach(&pending.load.access) && b < a + reach(access)
                    })
            });
        }
        let mask = if settle {
            u32::MAX
        } else if orders {
            active
        } else {
            0
        };
        if mask & pending.mask == 0 {
            i += 1;
            continue;
        }
        settle_one(warp, common, env, i, mask)?;
        i = 0;
    }
    Ok(())
}

/// Fetches a late load for some lanes, and for those that share a line with them where lines arrive whole.
fn settle_one(
    warp: &mut Warp,
    common: &mut Common,
    env: &mut Env<'_>,
    i: usize,
    mask: u32,
) -> Result<()> {
    let mut pending = warp.pending.swap_remove(i);
    let shift = env.model.as_deref().and_then(|m| m.checks.adversity).map_or(3, |a| a.unit.shift());
    let mut now = mask & pending.mask;
    for lane in lanes(pending.mask & !now) {
        let unit = |l: usize| pending.addresses[l] >> shift;
        if lanes(now).any(|l| unit(l) == unit(lane)) {
            now |= 1 << lane;
        }
    }
    pending.mask &= !now;
    let space = if pending.shared { Space::Shared } else { Space::Global };
    let (load, addresses, pc) = (pending.load.clone(), pending.addresses, pending.pc);
    if pending.mask != 0 {
        warp.pending.push(pending);
    }
    fetch(warp, common, env, &load, now, space, &addresses, pc).map_err(|trouble| (trouble, pc))
}
