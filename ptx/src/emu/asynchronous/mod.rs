//! Asynchronous copies (`cp.async`, `cp.async.bulk`, `st.async`, `red.async`): issued by a lane, done some time later.
//!
//! ```text
//! issue ─► pending: has to read ─► pending: has to write ─► a barrier gets its bytes, or its group has one less to wait for
//! ```
//!
//! To the memory model each copy is an agent of its own. It knows what its lane knew when it was issued, of which a bulk copy
//! sees only what came before a `fence.proxy.async`; and others know what it has done once they have waited for it: at a
//! barrier, or for its group (PTX ISA 9.0, chapter 8 "Proxies" and "Asynchronous Operations", 9.7.9.25).
//!
//! When they are done: under an adversary at any time before they are waited for, in virtual time when they have arrived, and
//! else at once.

mod data;

use std::collections::HashMap;

use self::data::{read, write};
use super::access::Result;
use super::block::Common;
use super::clock::{ClockEvent, requests};
use super::exec::{Env, space_of};
use super::fault::{FaultKind, Trouble};
use super::mbarrier;
use super::memory::model::{Knowledge, lanes};
use super::program::{
    Address, AsyncCopy, AsyncDone, AsyncGroup, AsyncSource, LOCAL_WINDOW, Rmw, SHARED_WINDOW, Space,
};
use super::warp::Warp;

pub(crate) use data::put_words;

/// The lane of a warp.
type Issuer = (u32, usize);

/// The copies of a block.
#[derive(Default)]
pub(crate) struct Copies {
    pending: Vec<CopyInFlight>,
    /// What copies that have ended have done, until their lane waits for their group.
    finished: Vec<Finished>,
    /// How many groups each lane has.
    groups: HashMap<(u32, usize, AsyncGroup), u32>,
    /// Where the copies of each warp are in the memory model.
    slots: HashMap<u32, u32>,
    issued: u64,
    /// When all of them are over, in virtual time.
    pub(crate) over: u64,
}

/// A copy under way.
struct CopyInFlight {
    id: u64,
    issuer: Issuer,
    pc: u32,
    /// The agent in the memory model: slot and lane.
    agent: (u32, usize),
    to: (Space, u64),
    bytes: u32,
    reduce: Option<(u8, Rmw)>,
    done: CopyDone,
    stage: Stage,
    /// What it had done when it had read.
    read: Knowledge,
    /// When it has read, and when it is known that it has written, in virtual time.
    times: (u64, u64),
}

#[derive(Clone, Copy)]
enum CopyDone {
    /// The barrier at this address of shared memory.
    Barrier(u64),
    /// A group; without a number it is not committed.
    Group(AsyncGroup, Option<u32>),
}

enum Stage {
    /// From where, and how many bytes, the rest of it being zeros.
    Reads((Space, u64), u32),
    Writes(Vec<u8>),
}

struct Finished {
    issuer: Issuer,
    kind: AsyncGroup,
    group: Option<u32>,
    read: Knowledge,
    written: Knowledge,
}

/// More of what ended copies have done is not kept apart.
const KEPT: usize = 64;

impl Copies {
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The slots of the memory model that are in use.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> {
        self.slots.values().copied()
    }
}

fn fault(what: &str, lane: usize) -> Box<Trouble> {
    Trouble::new(FaultKind::Trap(what.to_owned()), 1 << lane)
}

/// The space and the address in it of each lane.
fn resolve(warp: &Warp, common: &Common, place: &Address) -> [(Space, u64); 32] {
    let base = warp.read(&common.grid.program, place.base);
    base.map(|base| {
        let at = base.wrapping_add_signed(place.offset);
        match place.space {
            Space::Generic => match space_of(at) {
                Space::Shared => (Space::Shared, at - SHARED_WINDOW),
                Space::Local => (Space::Local, at - LOCAL_WINDOW),
                space => (space, at),
            },
            space => (space, at),
        }
    })
}

/// Whether bytes are memory that copies may touch, and aligned.
fn check(
    common: &mut Common,
    (space, at): (Space, u64),
    bytes: u64,
    align: u64,
    writes: bool,
    lane: usize,
) -> Result<()> {
    if !at.is_multiple_of(align) {
        let kind = FaultKind::Misaligned { address: at, bytes: align };
        return Err(Trouble::new(kind, 1 << lane));
    }
    let end = at.saturating_add(bytes);
    let near = match space {
        Space::Shared if end <= common.shared_bytes as u64 => return Ok(()),
        Space::Shared => format!("of {} bytes of shared memory of the block", common.shared_bytes),
        Space::Global if common.view.covers(at, end) => return Ok(()),
        Space::Global => {
            let multicast = common.view.multicast(at).filter(|m| writes && end <= m.end);
            if multicast.is_some() {
                return Ok(());
            }
            common.view.near(at)
        }
        _ => return Err(fault("an asynchronous copy of other than global or shared memory", lane)),
    };
    Err(Trouble::new(FaultKind::OutOfBounds { address: at, bytes, near }, 1 << lane))
}

/// Issues a copy of each lane.
pub(crate) fn issue(
    warp: &mut Warp,
    common: &mut Common,
    env: &mut Env<'_>,
    copy: &AsyncCopy,
    mask: u32,
    pc: u32,
) -> Result<()> {
    let to = resolve(warp, common, &copy.to);
    let program = std::sync::Arc::clone(&common.grid.program);
    for lane in lanes(mask) {
        let of = |r| warp.read(&program, r)[lane];
        let low = |r| of(r) & u64::from(u32::MAX);
        // Bulk copies are of whole 16 bytes, the others of 4, 8 or 16.
        let (stage, bytes) = match &copy.source {
            AsyncSource::Memory { from, bytes, given } => {
                let (bytes, from) = (low(*bytes), resolve(warp, common, from)[lane]);
                let fits = if copy.bulk { bytes % 16 == 0 } else { matches!(bytes, 4 | 8 | 16) };
                if !fits {
                    return Err(fault(&format!("an asynchronous copy of {bytes} bytes"), lane));
                }
                let given = given.map_or(bytes, low);
                if given > bytes {
                    return Err(fault(&format!("{given} of {bytes} bytes are to be copied"), lane));
                }
                let align = if copy.bulk { 16 } else { bytes };
                check(common, from, given, align, false, lane)?;
                (Stage::Reads(from, given as u32), bytes as u32)
            }
            AsyncSource::Values { values, bytes } => {
                let bytes_of = |r| of(r).to_le_bytes()[..usize::from(*bytes)].to_vec();
                let data: Vec<u8> = values.iter().flat_map(|r| bytes_of(*r)).collect();
                let len = data.len() as u32;
                (Stage::Writes(data), len)
            }
        };
        let align = if copy.bulk { 16 } else { u64::from(bytes).min(16) };
        check(common, to[lane], bytes.into(), align, true, lane)?;
        let done = match &copy.done {
            AsyncDone::Group(kind) => CopyDone::Group(*kind, None),
            AsyncDone::Barrier(barrier) => {
                let (space, at) = resolve(warp, common, barrier)[lane];
                if space != Space::Shared {
                    return Err(fault("an `mbarrier` outside of shared memory", lane));
                }
                check(common, (space, at), 8, 8, true, lane)?;
                CopyDone::Barrier(at)
            }
        };
        common.copies.issued += 1;
        let id = common.copies.issued;
        let agent = begin(warp, common, env, lane, copy.bulk);
        let issuer = (warp.index, lane);
        let (reduce, read, times) = (copy.reduce, Knowledge::default(), (0, 0));
        let to = to[lane];
        let mut pending =
            CopyInFlight { id, issuer, pc, agent, to, bytes, reduce, done, stage, read, times };
        if env.clock.is_some() {
            set_out(warp, common, env, &mut pending);
        }
        common.copies.pending.push(pending);
        let adversary = env.model.as_deref().is_some_and(|m| m.checks.adversity.is_some());
        if env.clock.is_none() && !adversary {
            while !common.copies.is_empty() {
                advance(common, env, 0)?;
            }
        }
    }
    warp.progress = true;
    Ok(())
}

/// The agent of a copy that a lane issues now.
fn begin(
    warp: &Warp,
    common: &mut Common,
    env: &mut Env<'_>,
    lane: usize,
    bulk: bool,
) -> (u32, usize) {
    let copy = (common.copies.issued % 32) as usize;
    let Some(model) = env.model.as_deref_mut() else { return (0, copy) };
    let slots = &mut common.copies.slots;
    let slot = *slots.entry(warp.index).or_insert_with(|| model.start_copies(warp.slot));
    model.start_copy((slot, copy), (warp.slot, lane), bulk);
    (slot, copy)
}

/// A copy sets out in virtual time: when it will have read, and written.
fn set_out(warp: &mut Warp, common: &mut Common, env: &mut Env<'_>, copy: &mut CopyInFlight) {
    let Some(clock) = env.clock.as_deref_mut() else { return };
    let bytes = u64::from(copy.bytes);
    let (read, write, known) = match copy.stage {
        Stage::Reads((Space::Global, from), _) => {
            let (read, back) = requests::bulk_load(warp, common, clock, from, bytes);
            (read, back, back)
        }
        _ => {
            let to = match copy.to {
                (Space::Global, at) => targets(common, at),
                _ => Vec::new(),
            };
            requests::bulk_store(warp, common, clock, &to, bytes)
        }
    };
    copy.times = (read, known);
    common.copies.over = common.copies.over.max(known);
    let (block, warp, id) = (common.number, warp.index, copy.id);
    for at in [read, write] {
        clock.push(at, ClockEvent::Copy { block, warp, id });
    }
}

/// The addresses that a store to one goes to.
fn targets(common: &mut Common, at: u64) -> Vec<u64> {
    match common.view.multicast(at) {
        Some(multicast) => multicast.members.iter().map(|m| m + (at - multicast.start)).collect(),
        None => vec![at],
    }
}

/// A copy has come as far as its time says.
pub(crate) fn arrive(common: &mut Common, env: &mut Env<'_>, id: u64) -> Result<()> {
    match common.copies.pending.iter().position(|copy| copy.id == id) {
        Some(at) => advance(common, env, at),
        None => Ok(()),
    }
}

/// Under an adversary: perhaps some copy gets on.
pub(crate) fn drift(common: &mut Common, env: &mut Env<'_>) -> Result<()> {
    if common.copies.is_empty() || env.clock.is_some() {
        return Ok(());
    }
    let count = common.copies.pending.len() as u64;
    let Some(model) = env.model.as_deref_mut() else { return Ok(()) };
    if !model.random.one_in(4) {
        return Ok(());
    }
    let at = model.random.below(count) as usize;
    advance(common, env, at)
}

/// As [`drift`], more often: somebody waits.
pub(crate) fn advance_some(common: &mut Common, env: &mut Env<'_>) -> Result<()> {
    let count = common.copies.pending.len() as u64;
    let Some(model) = env.model.as_deref_mut() else { return Ok(()) };
    if count == 0 || !model.random.one_in(2) {
        return Ok(());
    }
    let at = model.random.below(count) as usize;
    advance(common, env, at)
}

/// All copies of a block end, whose warps have ended.
pub(crate) fn finish(common: &mut Common, env: &mut Env<'_>) -> Result<()> {
    while !common.copies.is_empty() && env.clock.is_none() {
        let count = common.copies.pending.len() as u64;
        let at = env.model.as_deref_mut().map_or(0, |model| model.random.below(count) as usize);
        advance(common, env, at)?;
    }
    Ok(())
}

/// A copy reads, or writes.
fn advance(common: &mut Common, env: &mut Env<'_>, at: usize) -> Result<()> {
    let mut copy = common.copies.pending.remove(at);
    let (pc, (warp, lane)) = (copy.pc, copy.issuer);
    // It is about who has issued the copy; the agent's lane in the model is none of a warp's.
    let told = |mut trouble: Box<Trouble>| {
        trouble.lanes = 1 << lane;
        trouble.at = Some((warp, pc));
        trouble
    };
    match std::mem::replace(&mut copy.stage, Stage::Writes(Vec::new())) {
        Stage::Reads(from, given) => {
            let mut data = vec![0; copy.bytes as usize];
            read(common, env, &copy, from, &mut data[..given as usize]).map_err(told)?;
            copy.stage = Stage::Writes(data);
            if let Some(model) = env.model.as_deref_mut() {
                copy.read = model.copied(copy.agent);
            }
            common.copies.pending.insert(at, copy);
        }
        Stage::Writes(data) => {
            write(common, env, &copy, &data).map_err(told)?;
            match copy.done {
                CopyDone::Barrier(barrier) => {
                    // Whoever learns of the end sees what was written, by whichever proxy; and the barrier needs no proxy fence
                    // behind its initialisation. NVIDIA's CUDA C++ Programming Guide has one there, CUTLASS and NCCL do without.
                    if let Some(model) = env.model.as_deref_mut() {
                        model.fence_proxy(copy.agent.0, 1 << copy.agent.1);
                    }
                    let done = (barrier, copy.bytes);
                    mbarrier::complete(copy.agent, common, env, done, pc).map_err(told)?;
                }
                CopyDone::Group(kind, group) => {
                    let Some(model) = env.model.as_deref_mut() else { return Ok(()) };
                    let (issuer, read) = (copy.issuer, copy.read);
                    let written = model.copied(copy.agent);
                    let finished = &mut common.copies.finished;
                    finished.push(Finished { issuer, kind, group, read, written });
                    if finished.len() > KEPT {
                        merge(finished);
                    }
                }
            }
        }
    }
    Ok(())
}

/// The two oldest of one lane become one, which is waited for as the later one.
fn merge(finished: &mut Vec<Finished>) {
    let first = finished.remove(0);
    let same = |other: &&mut Finished| other.issuer == first.issuer && other.kind == first.kind;
    match finished.iter_mut().find(same) {
        Some(next) => {
            next.read.join(&first.read);
            next.written.join(&first.written);
        }
        None => finished.push(first),
    }
}

/// The uncommitted copies of each lane become a group.
pub(crate) fn commit(warp: &mut Warp, common: &mut Common, kind: AsyncGroup, mask: u32) {
    let copies = &mut common.copies;
    for lane in lanes(mask) {
        let issuer = (warp.index, lane);
        let number = copies.groups.entry((warp.index, lane, kind)).or_default();
        for copy in copies.pending.iter_mut().filter(|copy| copy.issuer == issuer) {
            if let CopyDone::Group(of, group @ None) = &mut copy.done
                && *of == kind
            {
                *group = Some(*number);
            }
        }
        for one in copies.finished.iter_mut().filter(|f| f.issuer == issuer && f.kind == kind) {
            one.group = one.group.or(Some(*number));
        }
        *number += 1;
    }
}

/// Waits until of each lane's groups no more than `most` are under way; only for what they read if `reads`. Otherwise until
/// when there is to be waited, in virtual time.
pub(crate) fn wait(
    warp: &mut Warp,
    common: &mut Common,
    env: &mut Env<'_>,
    (kind, most, reads): (AsyncGroup, u32, bool),
    mask: u32,
) -> Result<Option<u64>> {
    let limit = |common: &Common, lane: usize| {
        let groups = common.copies.groups.get(&(warp.index, lane, kind)).copied().unwrap_or(0);
        groups.saturating_sub(most)
    };
    let waits_for = |common: &Common, copy: &CopyInFlight| {
        let (of, lane) = copy.issuer;
        let CopyDone::Group(is, Some(group)) = copy.done else { return false };
        let read = reads && matches!(copy.stage, Stage::Writes(_));
        let named = of == warp.index && mask >> lane & 1 != 0 && is == kind;
        named && group < limit(common, lane) && !read
    };
    loop {
        let left: Vec<usize> = (0..common.copies.pending.len())
            .filter(|at| waits_for(common, &common.copies.pending[*at]))
            .collect();
        if left.is_empty() {
            break;
        }
        if env.clock.is_some() {
            let time = |at: &usize| {
                let (read, known) = common.copies.pending[*at].times;
                if reads { read } else { known }
            };
            return Ok(left.iter().map(time).max());
        }
        let count = left.len() as u64;
        let one = env.model.as_deref_mut().map_or(0, |model| model.random.below(count) as usize);
        advance(common, env, left[one])?;
    }
    if let Some(model) = env.model.as_deref_mut() {
        for lane in lanes(mask) {
            let limit = limit(common, lane);
            let mine = |f: &Finished| {
                let over = f.group.is_some_and(|group| group < limit);
                f.issuer == (warp.index, lane) && f.kind == kind && over
            };
            for one in common.copies.finished.iter().filter(|f| mine(f)) {
                model.learn(warp.slot, lane, if reads { &one.read } else { &one.written });
            }
            for copy in &common.copies.pending {
                let over = matches!(copy.done, CopyDone::Group(is, Some(group)) if is == kind && group < limit);
                if reads && over && copy.issuer == (warp.index, lane) {
                    model.learn(warp.slot, lane, &copy.read);
                }
            }
            common.copies.finished.retain(|f| reads || !mine(f));
        }
    }
    warp.progress = true;
    Ok(None)
}
