//! Registers of a warp, shared by virtual registers that are not needed at the same time.
//!
//! Compilers number a register for each value they make, thousands for a kernel, and leave it to the assembler to
//! share real ones. A warp's registers should stay in the cache of the core that runs it, so they are shared here too:
//! a linear scan (Poletto and Sarkar, "Linear Scan Register Allocation", 1999) over intervals that cover all places
//! where a register is live.

use super::control::successors;
use super::decode::CONSTANT;
use super::{Program, Reg, Use};

/// A set of registers.
#[derive(Clone, PartialEq, Eq)]
struct Set(Vec<u64>);

impl Set {
    fn new(len: usize) -> Self {
        Set(vec![0; len.div_ceil(64)])
    }
    fn insert(&mut self, i: usize) {
        self.0[i / 64] |= 1 << (i % 64);
    }
    fn remove(&mut self, i: usize) {
        self.0[i / 64] &= !(1 << (i % 64));
    }
    fn unite(&mut self, other: &Set) -> bool {
        let mut grown = false;
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            grown |= *b & !*a != 0;
            *a |= b;
        }
        grown
    }
    fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(word, &bits)| {
            (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| word * 64 + bit)
        })
    }
}

/// Which of the two kinds of registers is looked at.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Value,
    Predicate,
}

/// Gives registers their slots.
pub(super) fn allocate(program: &mut Program) {
    program.registers = share(program, Kind::Value, program.registers);
    program.predicates = share(program, Kind::Predicate, program.predicates);
}

/// Calls `f` with each register of `kind` of an instruction.
fn visit(program: &mut Program, pc: usize, kind: Kind, f: &mut impl FnMut(&mut Reg, Use)) {
    let nothing = &mut |_: &mut Reg, _: Use| {};
    let inst = &mut program.code[pc];
    match kind {
        Kind::Value => inst.visit(
            &mut |r, how| {
                if *r < CONSTANT {
                    f(r, how);
                }
            },
            nothing,
        ),
        Kind::Predicate => inst.visit(nothing, f),
    }
}

fn share(program: &mut Program, kind: Kind, count: usize) -> usize {
    let intervals = intervals(program, kind, count);
    let mut order: Vec<usize> = (0..count).filter(|&r| intervals[r].is_some()).collect();
    order.sort_by_key(|&r| intervals[r]);
    let mut slots = vec![0; count];
    let mut free: Vec<Reg> = Vec::new();
    let mut active: std::collections::BTreeSet<(usize, Reg)> = std::collections::BTreeSet::new();
    let mut used = 0;
    for register in order {
        let Some((start, end)) = intervals[register] else { continue };
        while let Some(&(over, slot)) = active.first()
            && over < start
        {
            active.pop_first();
            free.push(slot);
        }
        let slot = free.pop().unwrap_or_else(|| {
            used += 1;
            used - 1
        });
        active.insert((end, slot));
        slots[register] = slot;
    }
    for pc in 0..program.code.len() {
        visit(program, pc, kind, &mut |r, _| *r = slots[usize::from(*r)]);
    }
    usize::from(used)
}

/// For each register the first and the last instruction at which it is live or written.
fn intervals(program: &mut Program, kind: Kind, count: usize) -> Vec<Option<(usize, usize)>> {
    let len = program.code.len();
    // Blocks: from a leader, or what follows a branch, to the next.
    let mut starts: Vec<usize> = (0..len)
        .filter(|&pc| {
            pc == 0
                || program.leaders[pc]
                || !matches!(successors(program, pc - 1), ([Some(n), None], []) if n == pc)
        })
        .collect();
    starts.push(len);
    let block_of = |pc: usize| starts.partition_point(|&start| start <= pc) - 1;
    let blocks = starts.len() - 1;
    let mut reads = vec![Set::new(count); blocks];
    let mut kills = vec![Set::new(count); blocks];
    let mut intervals: Vec<Option<(usize, usize)>> = vec![None; count];
    for block in 0..blocks {
        for pc in starts[block]..starts[block + 1] {
            let guarded = program.code[pc].guard.is_some();
            let (reads, kills) = (&mut reads[block], &mut kills[block]);
            visit(program, pc, kind, &mut |r, how| {
                let r = usize::from(*r);
                let seen = intervals[r].get_or_insert((pc, pc));
                *seen = (seen.0.min(pc), seen.1.max(pc));
                match how {
                    Use::Read if kills.0[r / 64] >> (r % 64) & 1 == 0 => reads.insert(r),
                    // A guarded write leaves what other lanes have.
                    Use::Write if !guarded => kills.insert(r),
                    _ => {}
                }
            });
        }
    }
    let following: Vec<Vec<usize>> = (0..blocks)
        .map(|block| {
            let (near, far) = successors(program, starts[block + 1] - 1);
            near.into_iter()
                .flatten()
                .chain(far.iter().map(|&t| t as usize))
                .map(block_of)
                .collect()
        })
        .collect();
    let mut live_in = reads.clone();
    let mut live_out = vec![Set::new(count); blocks];
    let mut changed = true;
    while changed {
        changed = false;
        for block in (0..blocks).rev() {
            for &next in &following[block] {
                changed |= live_out[block].unite(&live_in[next]);
            }
            let mut through = live_out[block].clone();
            for killed in kills[block].iter() {
                through.remove(killed);
            }
            changed |= live_in[block].unite(&through);
        }
    }
    for block in 0..blocks {
        let (first, last) = (starts[block], starts[block + 1] - 1);
        for r in live_in[block].iter() {
            let seen = intervals[r].get_or_insert((first, first));
            seen.0 = seen.0.min(first);
            seen.1 = seen.1.max(first);
        }
        for r in live_out[block].iter() {
            let seen = intervals[r].get_or_insert((last, last));
            seen.0 = seen.0.min(last);
            seen.1 = seen.1.max(last);
        }
    }
    intervals
}
