//! Multicast objects: one address for the same place in the memory of several GPUs.
//!
//! A switch between GPUs sends a store to all of them, and combines what it loads from all of them. To memory each is an
//! access of its own, by the same lane (PTX ISA 9.0, 9.7.9.14 "multimem").

use super::access::{MAX_COUNT, Result, check, count, look, note_seen, parts, put};
use super::alu::Lanes;
use super::atomics;
use super::block::Common;
use super::clock::requests;
use super::exec::Env;
use super::fault::{FaultKind, Trouble};
use super::memory::model::lanes;
use super::program::{Access, Atomic, Combination, Multimem, MultimemKind, Reg, Space};
use super::warp::Warp;

/// For each member of the multicast object that all lanes' addresses are in, the addresses there. `None` where they are in
/// none, or not all in one.
pub(crate) fn members(
    common: &mut Common,
    access: &Access,
    mask: u32,
    addresses: &[u64; 32],
) -> Option<Vec<[u64; 32]>> {
    let bytes = u64::from(access.bytes) * u64::from(access.count);
    let first = lanes(mask).next()?;
    let multicast = common.view.multicast(addresses[first])?;
    let within = |at: u64| at >= multicast.start && at.saturating_add(bytes) <= multicast.end;
    // Lanes that take no part have any address.
    let there =
        |member: &u64| addresses.map(|at| at.wrapping_sub(multicast.start).wrapping_add(*member));
    lanes(mask)
        .all(|lane| within(addresses[lane]))
        .then(|| multicast.members.iter().map(there).collect())
}

/// An access by `multimem`.
pub(crate) fn multimem(
    warp: &mut Warp,
    common: &mut Common,
    env: &mut Env<'_>,
    multimem: &Multimem,
    mask: u32,
    pc: u32,
) -> Result<()> {
    let access = &multimem.access;
    for (mask, space, addresses) in parts(warp, common, access, mask) {
        if mask == 0 {
            continue;
        }
        let members =
            if space == Space::Global { members(common, access, mask, &addresses) } else { None };
        let Some(members) = members else {
            let lane = lanes(mask).next().unwrap_or(0);
            let what = format!("{:#x} is in no multicast object", addresses[lane]);
            return Err(Trouble::new(FaultKind::Trap(what), mask));
        };
        match &multimem.how {
            MultimemKind::LoadReduce { d, combine } => {
                for addresses in &members {
                    check(common, access, mask, Space::Global, addresses)?;
                }
                count(common, access, mask, Space::Global, &addresses, false);
                let load = ReducingLoad {
                    access: *access,
                    d: d.clone(),
                    combine: *combine,
                    members: members.clone(),
                };
                match env.clock.as_deref_mut() {
                    Some(clock) => requests::load_from_all(warp, common, clock, load, mask, pc),
                    None => load.run(warp, common, env, mask, pc)?,
                }
            }
            MultimemKind::Store(sources) => {
                store(warp, common, env, access, sources, (mask, &members), pc)?;
            }
            MultimemKind::Reduce { b, how } => {
                for addresses in &members {
                    check(common, access, mask, Space::Global, addresses)?;
                }
                common.counts.atomics += 1;
                for (n, b) in b.iter().enumerate() {
                    let access = Access { count: 1, ..*access };
                    let atomic = Atomic { access, d: None, b: *b, c: *b, how: *how };
                    let further = n as u64 * u64::from(access.bytes);
                    for addresses in &members {
                        let addresses = addresses.map(|at| at.wrapping_add(further));
                        atomics::at(warp, common, env, &atomic, (mask, &addresses), pc)?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Stores to all members.
pub(crate) fn store(
    warp: &mut Warp,
    common: &mut Common,
    env: &mut Env<'_>,
    access: &Access,
    sources: &[Reg],
    (mask, members): (u32, &[[u64; 32]]),
    pc: u32,
) -> Result<()> {
    for addresses in members {
        check(common, access, mask, Space::Global, addresses)?;
    }
    if let Some(addresses) = members.first() {
        count(common, access, mask, Space::Global, addresses, true);
    }
    let arrivals = match env.clock.as_deref_mut() {
        Some(clock) => requests::store_to_all(warp, common, clock, access, (mask, members)),
        None => Vec::new(),
    };
    for (n, addresses) in members.iter().enumerate() {
        let arrives = arrivals.get(n).map(|at| (mask, *at));
        let to = (mask, Space::Global, addresses);
        put(warp, common, env, access, sources, to, arrives.as_slice(), pc)?;
    }
    Ok(())
}

/// A load of what all members have, combined.
#[derive(Clone, Debug)]
pub(crate) struct ReducingLoad {
    pub(crate) access: Access,
    pub(crate) d: Vec<Option<Reg>>,
    combine: Combination,
    /// The addresses in each member.
    pub(crate) members: Vec<[u64; 32]>,
}

impl ReducingLoad {
    /// Looks at all members now.
    pub(crate) fn run(
        &self,
        warp: &mut Warp,
        common: &mut Common,
        env: &mut Env<'_>,
        mask: u32,
        pc: u32,
    ) -> Result<()> {
        let elements = usize::from(self.access.count);
        let mut all = Vec::with_capacity(self.members.len());
        for addresses in &self.members {
            let mut values = [[0; 32]; MAX_COUNT];
            let from = (mask, Space::Global, addresses);
            look(warp, common, env, &self.access, from, pc, &mut values[..elements])?;
            all.push(values);
        }
        let mut sums = [[0; 32]; MAX_COUNT];
        for (n, sum) in sums[..elements].iter_mut().enumerate() {
            *sum = self.combine.all(all.iter().map(|values| &values[n]));
        }
        if let Some(addresses) = self.members.first() {
            let at = (mask, Space::Global, addresses);
            note_seen(warp, env, at, pc, &sums[..elements]);
        }
        for (sum, d) in sums.iter().zip(&self.d) {
            if let Some(d) = d {
                warp.write(*d, sum, mask);
            }
        }
        Ok(())
    }
}

/// Runs an instruction of up to two sources.
fn apply(run: fn(&mut Lanes, [&Lanes; 4]), a: &Lanes, b: &Lanes) -> Lanes {
    let mut to = [0; 32];
    run(&mut to, [a, b, b, b]);
    to
}

impl Combination {
    /// The members' values in their order, combined.
    fn all<'v>(self, values: impl Iterator<Item = &'v Lanes>) -> Lanes {
        match self {
            Combination::Each(run) => {
                values.copied().reduce(|a, b| apply(run, &a, &b)).unwrap_or([0; 32])
            }
            Combination::Single { widen, add, narrow, packed } => {
                let values: Vec<_> = values.collect();
                let half = |shift: u32| {
                    let wide = values.iter().map(|value| {
                        let part = value.map(|v| v >> shift & 0xffff);
                        apply(widen, &part, &part)
                    });
                    let sum = wide.reduce(|a, b| apply(add, &a, &b)).unwrap_or([0; 32]);
                    apply(narrow, &sum, &sum).map(|v| (v & 0xffff) << shift)
                };
                let (low, high) = (half(0), if packed { half(16) } else { [0; 32] });
                std::array::from_fn(|lane| low[lane] | high[lane])
            }
        }
    }
}
