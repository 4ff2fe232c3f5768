//! What an asynchronous copy reads and writes, as its agent in the memory model, or in memory as the host has it.

use std::sync::atomic::Ordering;

use super::super::access::{self, Result, place};
use super::super::alu::Lanes;
use super::super::atomics::{apply, modify};
use super::super::block::Common;
use super::super::exec::Env;
use super::super::memory::model::{Request, Target, lanes};
use super::super::memory::raw;
use super::super::program::{Access, Order, Rmw, Scope, Space};
use super::{CopyInFlight, check, targets};

/// The widest element of a copy that lies at these addresses: 8 bytes, or what their alignment allows.
fn element(addresses: [u64; 2], bytes: u64) -> u8 {
    let bits = addresses[0] | addresses[1] | bytes | 8;
    1 << bits.trailing_zeros()
}

/// A request of a copy's agent for so many elements.
fn request<'a>(
    copy: &CopyInFlight,
    env: &Env<'_>,
    addresses: &'a [u64; 32],
    (bytes, count): (u8, u8),
) -> Request<'a> {
    let (warp, lane) = copy.agent;
    let now = env.clock.as_deref().map_or(u64::MAX, |clock| clock.now);
    Request {
        warp,
        pc: copy.pc,
        mask: 1 << lane,
        addresses,
        bytes,
        count,
        order: Order::Weak,
        scope: Scope::Cta,
        whole: false,
        now,
        arrivals: &[],
    }
}

/// Elements that are moved at a time.
const AT_ONCE: usize = 8;

pub(super) fn read(
    common: &mut Common,
    env: &mut Env<'_>,
    copy: &CopyInFlight,
    (space, start): (Space, u64),
    data: &mut [u8],
) -> Result<()> {
    let size = element([start, 0], data.len() as u64);
    let wide = usize::from(size);
    let lane = copy.agent.1;
    for (n, part) in data.chunks_mut(wide * AT_ONCE).enumerate() {
        let at = start + (n * wide * AT_ONCE) as u64;
        let count = part.len() / wide;
        let mut values = [[0; 32]; AT_ONCE];
        if env.model.is_some() {
            let mut addresses = [0; 32];
            addresses[lane] = at;
            let request = request(copy, env, &addresses, (size, count as u8));
            let Some(model) = env.model.as_deref_mut() else { return Ok(()) };
            let values = &mut values[..count];
            if space == Space::Shared {
                let mut target = Target::Shared { data: &common.shared, cells: &mut common.cells };
                model.load(&request, &mut target, values)?;
            } else {
                model.load(&request, &mut Target::Global, values)?;
            }
        } else {
            let base = if space == Space::Shared { place(&common.shared, at) } else { at };
            for (i, value) in values[..count].iter_mut().enumerate() {
                let at = base + (i * wide) as u64;
                // SAFETY: mapped or the block's own, and aligned, by `check` when it was issued.
                value[lane] = unsafe { raw::load(at, size, Ordering::Relaxed) };
                if let Some(clock) = env.clock.as_deref().filter(|_| space != Space::Shared) {
                    let by = common.number;
                    value[lane] = clock.in_flight.load(by, at, size, value[lane], clock.now);
                }
            }
        }
        for (part, value) in part.chunks_mut(wide).zip(&values) {
            part.copy_from_slice(&value[lane].to_le_bytes()[..wide]);
        }
    }
    Ok(())
}

pub(super) fn write(
    common: &mut Common,
    env: &mut Env<'_>,
    copy: &CopyInFlight,
    data: &[u8],
) -> Result<()> {
    let (space, start) = copy.to;
    let starts = if space == Space::Global { targets(common, start) } else { vec![start] };
    for start in starts {
        // What a member of a multicast object has there may have been freed.
        check(common, (space, start), data.len() as u64, 1, true, copy.issuer.1)?;
        match copy.reduce {
            Some(how) => reduce(common, env, copy, (space, start), data, how)?,
            None => write_to(common, env, copy, (space, start), data)?,
        }
    }
    Ok(())
}

fn write_to(
    common: &mut Common,
    env: &mut Env<'_>,
    copy: &CopyInFlight,
    (space, start): (Space, u64),
    data: &[u8],
) -> Result<()> {
    let size = element([start, 0], data.len() as u64);
    let wide = usize::from(size);
    let lane = copy.agent.1;
    let value = |part: &[u8]| {
        let mut bytes = [0; 8];
        bytes[..part.len()].copy_from_slice(part);
        u64::from_le_bytes(bytes)
    };
    for (n, part) in data.chunks(wide * AT_ONCE).enumerate() {
        let at = start + (n * wide * AT_ONCE) as u64;
        if env.model.is_some() {
            let mut addresses = [0; 32];
            addresses[lane] = at;
            let mut values = [[0; 32]; AT_ONCE];
            let count = part.len() / wide;
            for (to, part) in values.iter_mut().zip(part.chunks(wide)) {
                to[lane] = value(part);
            }
            let request = request(copy, env, &addresses, (size, count as u8));
            let Some(model) = env.model.as_deref_mut() else { return Ok(()) };
            let values: [&Lanes; AT_ONCE] = values.each_ref();
            if space == Space::Shared {
                let mut target = Target::Shared { data: &common.shared, cells: &mut common.cells };
                model.store(&request, &mut target, &values[..count])?;
            } else {
                model.store(&request, &mut Target::Global, &values[..count])?;
            }
        } else {
            let base = if space == Space::Shared { place(&common.shared, at) } else { at };
            for (i, part) in part.chunks(wide).enumerate() {
                // SAFETY: as in `read`.
                unsafe {
                    raw::store(base + (i * wide) as u64, size, value(part), Ordering::Release);
                };
            }
        }
    }
    Ok(())
}

/// `cp.reduce.async.bulk`, `red.async`: each element for itself, relaxed.
fn reduce(
    common: &mut Common,
    env: &mut Env<'_>,
    copy: &CopyInFlight,
    (space, start): (Space, u64),
    data: &[u8],
    (bytes, how): (u8, Rmw),
) -> Result<()> {
    let (slot, lane) = copy.agent;
    let (order, scope) = (Order::Relaxed, Scope::Gpu);
    let access = Access { space, base: 0, offset: 0, bytes, count: 1, order, scope, whole: false };
    for (i, part) in data.chunks(usize::from(bytes)).enumerate() {
        let mut operand = [0; 8];
        operand[..part.len()].copy_from_slice(part);
        let b = u64::from_le_bytes(operand);
        let mut addresses = [0; 32];
        addresses[lane] = start + i as u64 * u64::from(bytes);
        let to = (1 << lane, space, &addresses);
        let new = |_: usize, old: u64| apply(how, old, b, b, bytes);
        modify(slot, common, env, &access, to, copy.pc, new)?;
    }
    Ok(())
}

/// A plain store of a word of each lane to shared memory.
pub(crate) fn put_words(
    slot: u32,
    common: &mut Common,
    env: &mut Env<'_>,
    access: &Access,
    (mask, _, addresses): (u32, Space, &[u64; 32]),
    words: &Lanes,
    pc: u32,
) -> Result<()> {
    if let Some(model) = env.model.as_deref_mut() {
        let request = access::request(slot, pc, mask, addresses, access);
        let mut target = Target::Shared { data: &common.shared, cells: &mut common.cells };
        return model.store(&request, &mut target, &[words]);
    }
    for lane in lanes(mask) {
        let at = place(&common.shared, addresses[lane]);
        // SAFETY: the block's own, and aligned, by `check`.
        unsafe { raw::store(at, access.bytes, words[lane], Ordering::Relaxed) };
    }
    Ok(())
}
