//! Loads, stores and atomics on their way.

use super::super::alu::Lanes;
use super::super::block::Common;
use super::super::counts::sectors;
use super::super::exec::Env;
use super::super::fault::Trouble;
use super::super::memory::model::lanes;
use super::super::multimem::ReducingLoad;
use super::super::program::{Access, Atomic, Load, Order, Reg, Space};
use super::super::warp::Warp;
use super::super::{access, atomics};
use super::path::{Spent, Wait};
use super::{Clock, ClockEvent, HOST, LINE, Place, Timing};

/// A request under way.
#[derive(Clone, Debug)]
pub(crate) struct RequestInFlight {
    id: u64,
    what: RequestKind,
    mask: u32,
    addresses: [u64; 32],
    pc: u32,
    place: Place,
    bytes: u64,
    acquires: bool,
}

/// What a request does when it has come to its place.
#[derive(Clone, Debug)]
enum RequestKind {
    Load(Load),
    FromAll(Box<ReducingLoad>),
    Atomic(Box<(Atomic, Lanes, Lanes)>),
}

impl RequestKind {
    /// The registers that wait for the answer.
    fn registers(&self) -> impl Iterator<Item = Reg> {
        let (loaded, atomic) = match self {
            RequestKind::Load(load) => (&load.d[..], None),
            RequestKind::FromAll(load) => (&load.d[..], None),
            RequestKind::Atomic(atomic) => (&[][..], atomic.0.d),
        };
        loaded.iter().flatten().copied().chain(atomic)
    }
}

/// The lanes of a mask by where their addresses are.
fn by_place(common: &mut Common, mask: u32, addresses: &[u64; 32]) -> Vec<(Place, u32)> {
    let mut places: Vec<(Place, u32)> = Vec::new();
    for lane in lanes(mask) {
        let place = common.view.place(addresses[lane]);
        match places.iter_mut().find(|(other, _)| *other == place) {
            Some((_, mask)) => *mask |= 1 << lane,
            None => places.push((place, 1 << lane)),
        }
    }
    places
}

/// What an access moves: whole sectors of 32 bytes.
fn moved(mask: u32, addresses: &[u64; 32], access: &Access) -> u64 {
    let wide = u64::from(access.bytes) * u64::from(access.count);
    (sectors(mask, addresses).0 * 32).max(wide)
}

/// Shared memory answers at once; what it takes is the registers'.
pub(crate) fn shared(
    warp: &mut Warp,
    common: &mut Common,
    env: &mut Env<'_>,
    (passes, pc): (u64, u32),
    registers: impl Iterator<Item = Reg>,
) {
    let Some(clock) = env.clock.as_deref_mut() else { return };
    let timing = clock.timing;
    let start = common.sm.memory.max(warp.time.at);
    common.sm.memory = start + timing.cycles(passes.max(1));
    let ready = start + timing.cycles(u64::from(timing.shared_cycles) + passes.saturating_sub(1));
    for register in registers {
        let there = &mut warp.time.ready[usize::from(register)];
        *there = ready.max(*there);
        let wait = Wait { spent: Spent::Shared, pc, cause: None };
        warp.time.makers[usize::from(register)] = clock.trace.as_ref().map(|_| wait);
    }
}

/// A load from global memory sets out, unless L1 has what it loads; whether it has.
pub(crate) fn load(
    warp: &mut Warp,
    common: &mut Common,
    clock: &mut Clock,
    load: &Load,
    (mask, addresses): (u32, &[u64; 32]),
    pc: u32,
) -> bool {
    let weak = load.access.order == Order::Weak;
    let lines = lanes(mask).map(|lane| addresses[lane] / LINE);
    if let Some(there) = common.sm.lines_from(lines).filter(|_| weak) {
        let ready = warp.time.at.max(there) + clock.timing.cycles(clock.timing.l1_cycles.into());
        // Nothing else comes before.
        clock.now = clock.now.max(warp.time.at);
        let wait = clock.trace.as_ref().map(|_| Wait { spent: Spent::L1, pc, cause: None });
        for register in load.d.iter().flatten() {
            let register = usize::from(*register);
            warp.time.ready[register] = warp.time.ready[register].max(ready);
            warp.time.makers[register] = wait;
        }
        return true;
    }
    let what = RequestKind::Load(load.clone());
    set_out(warp, common, clock, what, &load.access, (mask, addresses), pc);
    false
}

/// An atomic on global memory sets out, with its operands.
pub(crate) fn atomic(
    warp: &mut Warp,
    common: &mut Common,
    clock: &mut Clock,
    (atomic, b, c): (&Atomic, &Lanes, &Lanes),
    (mask, addresses): (u32, &[u64; 32]),
    pc: u32,
) {
    let what = RequestKind::Atomic(Box::new((atomic.clone(), *b, *c)));
    set_out(warp, common, clock, what, &atomic.access, (mask, addresses), pc);
}

fn set_out(
    warp: &mut Warp,
    common: &mut Common,
    clock: &mut Clock,
    what: RequestKind,
    access: &Access,
    (mask, addresses): (u32, &[u64; 32]),
    pc: u32,
) {
    let gpu = common.grid.device;
    for (place, mask) in by_place(common, mask, addresses) {
        let bytes = moved(mask, addresses, access);
        let at = common.sm.memory.max(warp.time.at);
        common.sm.memory = at + clock.timing.cycles(lines(&clock.timing, bytes));
        // Behind what the block has stored there.
        let before = common.sm.stored_at(place);
        let comes = (at + clock.way(gpu, place)).max(before);
        let what = (what.clone(), access.order.acquires());
        wait_for(warp, common, clock, what, (mask, *addresses), (pc, place, bytes, comes));
    }
}

/// The warp has a request under way, which comes to its place at `comes`.
fn wait_for(
    warp: &mut Warp,
    common: &Common,
    clock: &mut Clock,
    (what, acquires): (RequestKind, bool),
    (mask, addresses): (u32, [u64; 32]),
    (pc, place, bytes, comes): (u32, Place, u64, u64),
) {
    clock.order += 1;
    let id = clock.order;
    clock.push(comes, ClockEvent::Request { block: common.number, warp: warp.index, id });
    for register in what.registers() {
        warp.time.owed[usize::from(register)] += 1;
    }
    warp.time.requests += 1;
    warp.time.acquires += u32::from(acquires);
    let request = RequestInFlight { id, what, mask, addresses, pc, place, bytes, acquires };
    warp.waiting.push(request);
}

/// A load from all members of a multicast object sets out.
pub(crate) fn load_from_all(
    warp: &mut Warp,
    common: &mut Common,
    clock: &mut Clock,
    load: ReducingLoad,
    mask: u32,
    pc: u32,
) {
    let gpu = common.grid.device;
    let addresses = load.members.first().copied().unwrap_or([0; 32]);
    let bytes = moved(mask, &addresses, &load.access);
    let at = common.sm.memory.max(warp.time.at);
    common.sm.memory = at + clock.timing.cycles(lines(&clock.timing, bytes));
    // Behind what the block has stored there.
    let before = members(common, mask, &load.members).into_iter();
    let before = before.map(|(place, _)| common.sm.stored_at(place)).max();
    let comes = (at + clock.way_by_switch()).max(before.unwrap_or(0));
    let acquires = load.access.order.acquires();
    let what = RequestKind::FromAll(Box::new(load));
    wait_for(warp, common, clock, (what, acquires), (mask, addresses), (pc, gpu, bytes, comes));
}

/// A store to all members of a multicast object sets out; when it arrives at each.
pub(crate) fn store_to_all(
    warp: &mut Warp,
    common: &mut Common,
    clock: &mut Clock,
    access: &Access,
    (mask, addresses_of_all): (u32, &[[u64; 32]]),
) -> Vec<u64> {
    let gpu = common.grid.device;
    let Some(addresses) = addresses_of_all.first() else { return Vec::new() };
    let bytes = moved(mask, addresses, access);
    let at = common.sm.memory.max(warp.time.at);
    common.sm.memory = at + clock.timing.cycles(lines(&clock.timing, bytes));
    let members = members(common, mask, addresses_of_all);
    let arrivals = clock.store_to_all(gpu, &members, at, bytes);
    for ((place, _), arrives) in members.iter().zip(&arrivals) {
        common.sm.stores_to(*place, *arrives);
    }
    for (addresses, arrives) in addresses_of_all.iter().zip(&arrivals) {
        sent(warp, common, clock, access, (mask, addresses), (at, *arrives, clock.way_by_switch()));
    }
    arrivals
}

/// A bulk load sets out: when it reads there, and when all has come.
pub(crate) fn bulk_load(
    warp: &Warp,
    common: &mut Common,
    clock: &mut Clock,
    from: u64,
    bytes: u64,
) -> (u64, u64) {
    let (gpu, place) = (common.grid.device, common.view.place(from));
    let at = common.sm.memory.max(warp.time.at);
    common.sm.memory = at + clock.timing.cycles(lines(&clock.timing, bytes));
    let before = common.sm.stored_at(place);
    let comes = (at + clock.way(gpu, place)).max(before);
    let read = clock.read(place, comes, bytes, from / LINE..(from + bytes).div_ceil(LINE));
    let streams = clock.timing.cycles(lines(&clock.timing, bytes));
    (read, clock.moved(place, gpu, read, bytes).max(read + clock.way(place, gpu) + streams))
}

/// A bulk store out of shared memory sets out, to these addresses of global memory, or to none to shared memory: when it has read,
/// when all has arrived, and when that is known.
pub(crate) fn bulk_store(
    warp: &Warp,
    common: &mut Common,
    clock: &mut Clock,
    to: &[u64],
    bytes: u64,
) -> (u64, u64, u64) {
    let gpu = common.grid.device;
    let timing = clock.timing;
    let at = common.sm.memory.max(warp.time.at);
    let takes = timing.cycles(bytes.div_ceil(u64::from(timing.sm_bytes.max(1))).max(1));
    let read = at + timing.cycles(timing.shared_cycles.into()) + takes;
    common.sm.memory = at + timing.cycles(lines(&timing, bytes));
    match to {
        [] => (read, read + takes, read + takes),
        [one] => {
            let place = common.view.place(*one);
            let lines = *one / LINE..(one + bytes).div_ceil(LINE);
            let arrives = clock.store((gpu, place), read, bytes, lines);
            (read, arrives, arrives + clock.way(gpu, place))
        }
        all => {
            let member = |at: &u64| {
                (common.view.place(*at), (at / LINE..(at + bytes).div_ceil(LINE)).collect())
            };
            let members: Vec<_> = all.iter().map(member).collect();
            let arrivals = clock.store_to_all(gpu, &members, read, bytes);
            let arrives = arrivals.into_iter().max().unwrap_or(read);
            (read, arrives, arrives + clock.way_by_switch())
        }
    }
}

/// Where each member's memory is, and its lines.
fn members(common: &mut Common, mask: u32, all: &[[u64; 32]]) -> Vec<(Place, Vec<u64>)> {
    let first = lanes(mask).next().unwrap_or(0);
    let member = |addresses: &[u64; 32]| {
        let lines = lanes(mask).map(|lane| addresses[lane] / LINE).collect();
        (common.view.place(addresses[first]), lines)
    };
    all.iter().map(member).collect()
}

/// Cycles for which bytes keep an SM's way to L2 busy.
fn lines(timing: &Timing, bytes: u64) -> u64 {
    bytes.div_ceil(u64::from(timing.l2_bytes.max(1))).max(1)
}

/// A store to global memory sets out; when it arrives at each place.
pub(crate) fn store(
    warp: &mut Warp,
    common: &mut Common,
    clock: &mut Clock,
    access: &Access,
    (mask, addresses): (u32, &[u64; 32]),
) -> Vec<(u32, u64)> {
    let gpu = common.grid.device;
    let by_place = by_place(common, mask, addresses).into_iter();
    let all = by_place.map(|(place, mask)| {
        let bytes = moved(mask, addresses, access);
        let at = common.sm.memory.max(warp.time.at);
        common.sm.memory = at + clock.timing.cycles(lines(&clock.timing, bytes));
        let lines = lanes(mask).map(|lane| addresses[lane] / LINE);
        let arrives = clock.store((gpu, place), at, bytes, lines);
        let way = clock.way(gpu, place);
        common.sm.stores_to(place, arrives);
        sent(warp, common, clock, access, (mask, addresses), (at, arrives, way));
        (mask, arrives)
    });
    all.collect()
}

/// A store has set out at `at`, and arrives; when that is known is `way` later.
fn sent(
    warp: &Warp,
    common: &mut Common,
    clock: &mut Clock,
    access: &Access,
    (mask, addresses): (u32, &[u64; 32]),
    (at, arrives, way): (u64, u64, u64),
) {
    common.sm.stored = common.sm.stored.max(arrives + way);
    let Some(trace) = &mut clock.trace else { return };
    let from = ((common.number, warp.index), common.grid.device);
    for lane in lanes(mask) {
        let wide = u64::from(access.bytes) * u64::from(access.count);
        let cells = addresses[lane] / 8..=(addresses[lane] + wide - 1) / 8;
        cells.for_each(|cell| trace.stores(from, cell, (at, arrives)));
    }
}

/// A request has come to its place: it is done there, and its answer goes back.
pub(crate) fn arrive(
    warp: &mut Warp,
    common: &mut Common,
    env: &mut Env<'_>,
    id: u64,
) -> Result<(), (Box<Trouble>, u32)> {
    let Some(at) = warp.waiting.iter().position(|waiting| waiting.id == id) else { return Ok(()) };
    let waiting = warp.waiting.remove(at);
    let RequestInFlight { what, mask, addresses, pc, place, bytes, acquires, .. } = waiting;
    let gpu = common.grid.device;
    let mut back = 0;
    let mut wait = None;
    if let Some(clock) = env.clock.as_deref_mut() {
        let extra = match &what {
            RequestKind::Load(_) | RequestKind::FromAll(_) => 0,
            RequestKind::Atomic(_) => clock.timing.cycles(clock.timing.atomic_cycles.into()),
        };
        back = if let RequestKind::FromAll(load) = &what {
            let members = members(common, mask, &load.members);
            clock.load_from_all(gpu, &members, clock.now, bytes)
        } else {
            let lines = lanes(mask).map(|lane| addresses[lane] / LINE);
            let answered = clock.read(place, clock.now, bytes, lines) + extra;
            match place {
                place if place == gpu => answered + clock.way(gpu, gpu),
                place => clock.moved(place, gpu, answered, bytes),
            }
        };
        if let Some(trace) = &mut clock.trace {
            let spent = match place {
                _ if matches!(what, RequestKind::FromAll(_)) => Spent::Peer,
                HOST => Spent::Host,
                place if place == gpu => Spent::L2,
                _ => Spent::Peer,
            };
            let cells: Vec<u64> = lanes(mask).map(|lane| addresses[lane] / 8).collect();
            let by = ((common.number, warp.index), pc);
            let cause = trace.looks(by, &cells, clock.now, (gpu, place));
            wait = Some(Wait { spent, pc, cause });
        }
    }
    match &what {
        RequestKind::Load(load) => {
            if load.access.order == Order::Weak {
                common.sm.keep_lines(lanes(mask).map(|lane| addresses[lane] / LINE), back);
            }
            access::fetch(warp, common, env, load, mask, Space::Global, &addresses, pc)
        }
        RequestKind::FromAll(load) => load.run(warp, common, env, mask, pc),
        RequestKind::Atomic(atomic) => {
            let (atomic, b, c) = &**atomic;
            atomics::update(
                warp,
                common,
                env,
                (atomic, b, c),
                (mask, Space::Global, &addresses),
                pc,
            )
        }
    }
    .map_err(|trouble| (trouble, pc))?;
    let time = &mut warp.time;
    for register in what.registers() {
        let register = usize::from(register);
        time.owed[register] -= 1;
        if back >= time.ready[register] {
            (time.ready[register], time.makers[register]) = (back, wait);
        }
    }
    time.requests -= 1;
    time.waits = false;
    if back >= time.answered {
        (time.answered, time.answer) = (back, wait);
    }
    if acquires {
        common.sm.forget_lines();
        time.acquires -= 1;
        time.memory = time.memory.max(back);
    }
    Ok(())
}
