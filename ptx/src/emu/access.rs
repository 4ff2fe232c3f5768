//! What warps do with memory: addresses, checks, and the way to the memory system. What is fetched later is in
//! [`late`](super::late).

use std::sync::atomic::Ordering;

use super::alu::Lanes;
use super::block::Common;
use super::clock::requests;
use super::counts::{bank_passes, sectors};
use super::exec::{Env, space_of};
use super::fault::{FaultKind, Trouble};
use super::memory::model::{Request, Target, lanes};
use super::memory::raw;
use super::multimem;
use super::program::{Access, LOCAL_WINDOW, Load, Order, Reg, SHARED_WINDOW, Space, Store};
use super::warp::{Pending, Warp};

pub(crate) type Result<T> = std::result::Result<T, Box<Trouble>>;

/// The most elements of an access (`.v8`).
pub(crate) const MAX_COUNT: usize = 8;

/// The parts of an access: lanes and the space that their addresses are in, made relative to it.
pub(crate) fn parts(
    warp: &Warp,
    common: &Common,
    access: &Access,
    mask: u32,
) -> [(u32, Space, [u64; 32]); 3] {
    let base = warp.read(&common.grid.program, access.base);
    let addresses = base.map(|a| a.wrapping_add_signed(access.offset));
    let nothing = (0, Space::Global, [0; 32]);
    if access.space != Space::Generic {
        return [(mask, access.space, addresses), nothing, nothing];
    }
    if lanes(mask).all(|lane| addresses[lane] < SHARED_WINDOW) {
        return [(mask, Space::Global, addresses), nothing, nothing];
    }
    let part = |space: Space, window: u64| {
        let mask =
            lanes(mask).filter(|&l| space_of(addresses[l]) == space).fold(0, |m, l| m | 1 << l);
        (mask, space, addresses.map(|a| a.wrapping_sub(window)))
    };
    [part(Space::Global, 0), part(Space::Shared, SHARED_WINDOW), part(Space::Local, LOCAL_WINDOW)]
}

/// Whether all addresses are aligned and memory.
pub(crate) fn check(
    common: &mut Common,
    access: &Access,
    mask: u32,
    space: Space,
    addresses: &[u64; 32],
) -> Result<()> {
    let bytes = u64::from(access.bytes) * u64::from(access.count);
    let mut all = 0;
    let (mut least, mut most) = (u64::MAX, 0);
    for lane in lanes(mask) {
        all |= addresses[lane];
        least = least.min(addresses[lane]);
        most = most.max(addresses[lane]);
    }
    if all % bytes != 0 {
        let wrong = lanes(mask).find(|&l| !addresses[l].is_multiple_of(bytes)).unwrap_or(0);
        return Err(Trouble::new(
            FaultKind::Misaligned { address: addresses[wrong], bytes },
            1 << wrong,
        ));
    }
    let limit = match space {
        Space::Shared => common.shared_bytes,
        Space::Local => common.grid.program.local_bytes,
        Space::Param => common.grid.parameters.len(),
        Space::Global | Space::Generic => {
            if common.view.covers(least, most.saturating_add(bytes)) {
                return Ok(());
            }
            for lane in lanes(mask) {
                let address = addresses[lane];
                if !common.view.covers(address, address.saturating_add(bytes)) {
                    let near = common.view.near(address);
                    return Err(Trouble::new(
                        FaultKind::OutOfBounds { address, bytes, near },
                        1 << lane,
                    ));
                }
            }
            return Ok(());
        }
    };
    for lane in lanes(mask) {
        let address = addresses[lane];
        if address.checked_add(bytes).is_none_or(|end| end > limit as u64) {
            let name = match space {
                Space::Shared => "shared memory of the block",
                Space::Local => "local memory of the lane",
                _ => "the kernel's parameters",
            };
            let near = format!("of {limit} bytes of {name}");
            return Err(Trouble::new(FaultKind::OutOfBounds { address, bytes, near }, 1 << lane));
        }
    }
    Ok(())
}

/// Counts an access.
pub(crate) fn count(
    common: &mut Common,
    access: &Access,
    mask: u32,
    space: Space,
    addresses: &[u64; 32],
    stores: bool,
) {
    let bytes = u64::from(access.bytes) * u64::from(access.count);
    let counts = &mut common.counts;
    match space {
        Space::Global | Space::Generic => {
            let (sectors, lines) = sectors(mask, addresses);
            let moved = bytes * u64::from(mask.count_ones());
            counts.lines += lines;
            if stores {
                counts.global_stores += 1;
                counts.store_sectors += sectors;
                counts.bytes_stored += moved;
            } else {
                counts.global_loads += 1;
                counts.load_sectors += sectors;
                counts.bytes_loaded += moved;
            }
        }
        Space::Shared => {
            counts.shared_accesses += 1;
            counts.bank_conflicts += bank_passes(mask, addresses, bytes).saturating_sub(1);
        }
        Space::Local | Space::Param => {}
    }
}

/// Loads. With late loads the value may be fetched later.
pub(crate) fn load(
    warp: &mut Warp,
    common: &mut Common,
    env: &mut Env<'_>,
    load: &Load,
    mask: u32,
    pc: u32,
) -> Result<()> {
    for (mask, space, addresses) in parts(warp, common, &load.access, mask) {
        if mask == 0 {
            continue;
        }
        check(common, &load.access, mask, space, &addresses)?;
        count(common, &load.access, mask, space, &addresses, false);
        let modelled = matches!(space, Space::Global | Space::Shared);
        match (space, env.clock.as_deref_mut()) {
            (Space::Global, Some(clock)) => {
                let in_l1 = requests::load(warp, common, clock, load, (mask, &addresses), pc);
                if !in_l1 {
                    continue;
                }
            }
            (Space::Shared, Some(_)) => {
                let wide = u64::from(load.access.bytes) * u64::from(load.access.count);
                let passes = bank_passes(mask, &addresses, wide);
                requests::shared(warp, common, env, (passes, pc), load.d.iter().flatten().copied());
            }
            _ => {}
        }
        let timed = env.clock.is_some();
        if let Some(model) = env.model.as_deref_mut().filter(|_| modelled && !timed)
            && !load.access.order.acquires()
            && model.checks.adversity.is_some_and(|a| a.late_loads)
            && model.random.one_in(2)
        {
            let (since, shared) = (model.tick, space == Space::Shared);
            warp.pending.push(Pending { load: load.clone(), mask, addresses, pc, since, shared });
            continue;
        }
        fetch(warp, common, env, load, mask, space, &addresses, pc)?;
    }
    Ok(())
}

/// Fetches the values of a load.
pub(crate) fn fetch(
    warp: &mut Warp,
    common: &mut Common,
    env: &mut Env<'_>,
    load: &Load,
    mask: u32,
    space: Space,
    addresses: &[u64; 32],
    pc: u32,
) -> Result<()> {
    let access = &load.access;
    let mut values = [[0u64; 32]; MAX_COUNT];
    let values = &mut values[..usize::from(access.count)];
    look(warp, common, env, access, (mask, space, addresses), pc, values)?;
    note_seen(warp, env, (mask, space, addresses), pc, values);
    let bits = 8 * u32::from(access.bytes);
    for (value, d) in values.iter_mut().zip(&load.d) {
        let Some(d) = d else { continue };
        if load.extend != 0 {
            let keep = u64::MAX >> (64 - u32::from(load.extend));
            value
                .iter_mut()
                .for_each(|v| *v = ((*v << (64 - bits)) as i64 >> (64 - bits)) as u64 & keep);
        }
        warp.write(*d, value, mask);
    }
    Ok(())
}

/// What memory shows the lanes: element `n` of lane `l` goes to `values[n][l]`.
pub(crate) fn look(
    warp: &mut Warp,
    common: &mut Common,
    env: &mut Env<'_>,
    access: &Access,
    (mask, space, addresses): (u32, Space, &[u64; 32]),
    pc: u32,
    values: &mut [Lanes],
) -> Result<()> {
    let wide = u64::from(access.bytes);
    match (space, env.model.as_deref_mut()) {
        (Space::Param, _) => {
            for (n, values) in values.iter_mut().enumerate() {
                for lane in lanes(mask) {
                    let at = (addresses[lane] + n as u64 * wide) as usize;
                    let mut bytes = [0; 8];
                    bytes[..wide as usize]
                        .copy_from_slice(&common.grid.parameters[at..at + wide as usize]);
                    values[lane] = u64::from_le_bytes(bytes);
                }
            }
        }
        (Space::Local, _) => {
            for (n, values) in values.iter_mut().enumerate() {
                for lane in lanes(mask) {
                    let at = local(common, lane, addresses[lane]) + n as u64 * wide;
                    // SAFETY: within the warp's own local memory, checked and aligned.
                    values[lane] = unsafe {
                        raw::load(place(&warp.local, at), access.bytes, Ordering::Relaxed)
                    };
                }
            }
        }
        (_, Some(model)) => {
            let now = env.clock.as_deref().map_or(u64::MAX, |clock| clock.now);
            let request = Request { now, ..request(warp.slot, pc, mask, addresses, access) };
            if space == Space::Shared {
                let mut target = Target::Shared { data: &common.shared, cells: &mut common.cells };
                model.load(&request, &mut target, values)?;
            } else {
                model.load(&request, &mut Target::Global, values)?;
            }
        }
        (space, None) => {
            let start = if space == Space::Shared { place(&common.shared, 0) } else { 0 };
            // A line's flag is in its last bytes, as in LL128, so those are read first; stores go the other way.
            let order =
                if access.order == Order::Weak { Ordering::Relaxed } else { Ordering::Acquire };
            let mut rest = mask;
            while rest != 0 {
                let lane = 31 - rest.leading_zeros() as usize;
                rest &= !(1 << lane);
                for (n, values) in values.iter_mut().enumerate().rev() {
                    let at = start + addresses[lane] + n as u64 * wide;
                    // SAFETY: mapped (the contract of `Machine::map`) or the block's own, and aligned, by `check`.
                    values[lane] = unsafe { raw::load(at, access.bytes, order) };
                    if let Some(clock) = env.clock.as_deref().filter(|_| space != Space::Shared) {
                        let by = common.number;
                        values[lane] =
                            clock.in_flight.load(by, at, access.bytes, values[lane], clock.now);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Notes what was seen: something new is progress.
pub(crate) fn note_seen(
    warp: &mut Warp,
    env: &Env<'_>,
    (mask, space, addresses): (u32, Space, &[u64; 32]),
    pc: u32,
    values: &[Lanes],
) {
    if !env.watch || !matches!(space, Space::Global | Space::Shared) {
        return;
    }
    let mut hash = 0u64;
    for lane in lanes(mask) {
        for v in [addresses[lane]].into_iter().chain(values.iter().map(|values| values[lane])) {
            hash = (hash.rotate_left(7) ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }
    warp.progress |= warp.seen.insert(pc, hash) != Some(hash);
    warp.looked = true;
}

pub(crate) fn request<'a>(
    warp: u32,
    pc: u32,
    mask: u32,
    addresses: &'a [u64; 32],
    access: &Access,
) -> Request<'a> {
    let Access { bytes, count, order, scope, whole, .. } = *access;
    let (now, arrivals) = (u64::MAX, &[][..]);
    Request { warp, pc, mask, addresses, bytes, count, order, scope, whole, now, arrivals }
}

/// The process's address of byte `at` of a block's own memory.
pub(crate) fn place(memory: &[u64], at: u64) -> u64 {
    memory.as_ptr().expose_provenance() as u64 + at
}

/// Where a lane's local memory has an address.
pub(crate) fn local(common: &Common, lane: usize, address: u64) -> u64 {
    (lane * common.grid.program.local_bytes) as u64 + address
}

/// Stores.
pub(crate) fn store(
    warp: &mut Warp,
    common: &mut Common,
    env: &mut Env<'_>,
    store: &Store,
    mask: u32,
    pc: u32,
) -> Result<()> {
    let access = &store.access;
    for (mask, space, addresses) in parts(warp, common, access, mask) {
        if mask == 0 {
            continue;
        }
        if let Err(trouble) = check(common, access, mask, space, &addresses) {
            // PTX leaves a store to a multicast object undefined. GPUs send it to all members, as NCCL's kernels expect.
            let members = if space == Space::Global {
                multimem::members(common, access, mask, &addresses)
            } else {
                None
            };
            let Some(members) = members else { return Err(trouble) };
            multimem::store(warp, common, env, access, &store.s, (mask, &members), pc)?;
            continue;
        }
        count(common, access, mask, space, &addresses, true);
        let mut arrivals = Vec::new();
        match (space, env.clock.as_deref_mut()) {
            (Space::Global, Some(clock)) => {
                arrivals = requests::store(warp, common, clock, access, (mask, &addresses));
            }
            (Space::Shared, Some(_)) => {
                let wide = u64::from(access.bytes) * u64::from(access.count);
                let passes = bank_passes(mask, &addresses, wide);
                requests::shared(warp, common, env, (passes, pc), std::iter::empty());
            }
            _ => {}
        }
        let to = (mask, space, &addresses);
        put(warp, common, env, access, &store.s, to, &arrivals, pc)?;
    }
    Ok(())
}

/// Changes memory: element `n` of lane `l` becomes what register `sources[n]` of the lane has.
pub(crate) fn put(
    warp: &mut Warp,
    common: &mut Common,
    env: &mut Env<'_>,
    access: &Access,
    sources: &[Reg],
    (mask, space, addresses): (u32, Space, &[u64; 32]),
    arrivals: &[(u32, u64)],
    pc: u32,
) -> Result<()> {
    let program = std::sync::Arc::clone(&common.grid.program);
    let wide = u64::from(access.bytes);
    match (space, env.model.as_deref_mut()) {
        (Space::Param, _) => {
            return Err(Trouble::new(FaultKind::Trap("a store to a parameter".to_owned()), mask));
        }
        (Space::Local, _) => {
            for (n, s) in sources.iter().enumerate() {
                let values = *warp.read(&program, *s);
                for lane in lanes(mask) {
                    let at = local(common, lane, addresses[lane]) + n as u64 * wide;
                    // SAFETY: within the warp's own local memory, checked and aligned.
                    unsafe {
                        raw::store(
                            place(&warp.local, at),
                            access.bytes,
                            values[lane],
                            Ordering::Relaxed,
                        );
                    };
                }
            }
        }
        (_, Some(model)) => {
            let request = request(warp.slot, pc, mask, addresses, access);
            let request = Request { arrivals, ..request };
            let nothing = [0; 32];
            let mut from = [&nothing; MAX_COUNT];
            for (from, s) in from.iter_mut().zip(sources) {
                *from = warp.read(&program, *s);
            }
            let from = &from[..sources.len()];
            model.changed = false;
            if space == Space::Shared {
                let mut target = Target::Shared { data: &common.shared, cells: &mut common.cells };
                model.store(&request, &mut target, from)?;
            } else {
                model.store(&request, &mut Target::Global, from)?;
            }
            warp.progress |= model.changed;
        }
        (space, None) => {
            warp.progress = true;
            let start = if space == Space::Shared { place(&common.shared, 0) } else { 0 };
            let order =
                if access.order == Order::Weak { Ordering::Relaxed } else { Ordering::Release };
            let nothing = [0; 32];
            let mut from: [&Lanes; MAX_COUNT] = [&nothing; MAX_COUNT];
            for (from, s) in from.iter_mut().zip(sources) {
                *from = warp.read(&program, *s);
            }
            if let Some(clock) = env.clock.as_deref_mut() {
                let by = common.number;
                for (lanes_there, arrives) in arrivals {
                    for lane in lanes(*lanes_there) {
                        for n in 0..sources.len() as u64 {
                            let at = addresses[lane] + n * wide;
                            // SAFETY: as below.
                            let old = unsafe { raw::load(at, access.bytes, Ordering::Relaxed) };
                            clock.in_flight.store(by, at, access.bytes, old, *arrives);
                        }
                    }
                }
            }
            for lane in lanes(mask) {
                for (n, from) in from[..sources.len()].iter().enumerate() {
                    let at = start + addresses[lane] + n as u64 * wide;
                    // SAFETY: mapped (the contract of `Machine::map`) or the block's own, and aligned, by `check`.
                    unsafe { raw::store(at, access.bytes, from[lane], order) };
                }
            }
        }
    }
    Ok(())
}
