//! Asynchronous copies, and the barriers in shared memory by which they say that they have ended.
//!
//! A cluster is one block here, so that `shared::cluster` is the block's own shared memory.
//!
//! Source: PTX ISA 9.0, 9.7.9.25 (`cp.async`, `cp.async.bulk`, `cp.reduce.async.bulk`), 9.7.13.15 (`mbarrier`), `st.async`,
//! `red.async`.

use super::decode::{Decoder, Result};
use super::{
    Access, Address, AsyncCopy, AsyncDone, AsyncGroup, AsyncSource, Mbarrier, MbarrierKind, Op,
    Order, Reg, Rmw, Scope, Space,
};
use crate::syntax::{Instruction, Operand};
use crate::types::Type;

impl<'a> Decoder<'_, 'a> {
    /// `cp`: everything but copies of tensors, and to other blocks of a cluster.
    pub(super) fn copy(&mut self, i: &Instruction<'a>) -> Result<Op> {
        let words: Vec<&str> = i.modifiers.iter().map(|m| m.text).collect();
        if i.has("tensor") || i.has("multicast::cluster") || i.has("cp_mask") || i.has("noftz") {
            return Err(self.unknown(i));
        }
        let bulk = i.has("bulk");
        let group = if bulk { AsyncGroup::Bulk } else { AsyncGroup::Small };
        Ok(match &words[..] {
            ["async", "bulk", "prefetch", ..] => Op::Nop,
            ["async", "commit_group"] | ["async", "bulk", "commit_group"] => {
                Op::AsyncCommit { group }
            }
            ["async", "wait_all"] => Op::AsyncWait { group, most: 0, read: false },
            ["async", "wait_group"] | ["async", "bulk", "wait_group", ..] => {
                let Operand::Integer(most, _) = self.at(i, 0)? else {
                    return Err(self.error(i.span, "the number of groups is a constant"));
                };
                let most =
                    u32::try_from(*most).map_err(|_| self.error(i.span, "fewer than no groups"))?;
                Op::AsyncWait { group, most, read: i.has("read") }
            }
            // Its copies so far arrive at a barrier when they have ended.
            ["async", "mbarrier", "arrive", ..] => return Err(self.unknown(i)),
            _ => self.copies(i, bulk)?,
        })
    }

    fn copies(&mut self, i: &Instruction<'a>, bulk: bool) -> Result<Op> {
        let spaces: Vec<Space> = i.modifiers.iter().filter_map(|m| space(m.text)).collect();
        let [to, from] = spaces[..] else { return Err(self.unknown(i)) };
        let to = self.at_address(self.at(i, 0)?, to)?;
        let from = self.at_address(self.at(i, 1)?, from)?;
        let bytes = self.value(self.at(i, 2)?, Type::U32)?;
        let done = if i.has("mbarrier::complete_tx::bytes") {
            AsyncDone::Barrier(self.at_address(self.at(i, 3)?, Space::Shared)?)
        } else {
            AsyncDone::Group(if bulk { AsyncGroup::Bulk } else { AsyncGroup::Small })
        };
        // How much there is to be read, the rest being zeros; not with a cache's policy in its place.
        let given = if !bulk && i.operands.len() == 4 + usize::from(i.has("L2::cache_hint")) {
            Some(self.value(self.at(i, 3)?, Type::U32)?)
        } else {
            None
        };
        let reduce = if i.has("reduce") {
            let last = i.modifiers.last().map_or("", |m| m.text);
            let ty = Type::from_name(last).ok_or_else(|| self.unknown(i))?;
            Some((ty.bytes() as u8, self.rmw(i, ty)?))
        } else {
            None
        };
        let source = AsyncSource::Memory { from, bytes, given };
        Ok(Op::AsyncCopy(Box::new(AsyncCopy { to, source, done, reduce, bulk })))
    }

    /// `st.async` and `red.async`: a value that goes to shared memory, and tells a barrier there.
    pub(super) fn send(&mut self, i: &Instruction<'a>) -> Result<Op> {
        let word = |text: &str| i.has(text);
        if !word("mbarrier::complete_tx::bytes") || word("mmio") {
            return Err(self.unknown(i));
        }
        let ty = i.modifiers.iter().rev().find_map(|m| Type::from_name(m));
        let ty = ty.filter(|ty| matches!(ty.bytes(), 4 | 8)).ok_or_else(|| self.unknown(i))?;
        let to = self.at_address(self.at(i, 0)?, Space::Shared)?;
        let values: Vec<Reg> = match self.at(i, 1)? {
            Operand::Vector(list, _) => {
                list.iter().map(|one| self.value(one, ty)).collect::<Result<_>>()?
            }
            one => vec![self.value(one, ty)?],
        };
        let reduce: Option<(u8, Rmw)> =
            if i.opcode.text == "red" { Some((ty.bytes() as u8, self.rmw(i, ty)?)) } else { None };
        let done = AsyncDone::Barrier(self.at_address(self.at(i, 2)?, Space::Shared)?);
        let source = AsyncSource::Values { values, bytes: ty.bytes() as u8 };
        Ok(Op::AsyncCopy(Box::new(AsyncCopy { to, source, done, reduce, bulk: false })))
    }

    fn at_address(&mut self, operand: &Operand<'a>, space: Space) -> Result<Address> {
        let (base, offset, space) = self.address(operand, space)?;
        Ok(Address { space, base, offset })
    }

    /// `mbarrier`.
    pub(super) fn mbarrier(&mut self, i: &Instruction<'a>) -> Result<Op> {
        let words: Vec<&str> = i.modifiers.iter().map(|m| m.text).collect();
        let what = words.first().copied().unwrap_or_default();
        if i.has("noComplete") {
            return Err(self.unknown(i));
        }
        if what == "pending_count" {
            let (d, s) =
                (self.destination(self.at(i, 0)?)?, self.value(self.at(i, 1)?, Type::B64)?);
            return Ok(Op::Value { run: crate::emu::mbarrier::pending_count, d, s: [s; 4] });
        }
        // Those that hand something back have it first.
        let first =
            usize::from(matches!(what, "arrive" | "arrive_drop" | "test_wait" | "try_wait"));
        // To another block's barrier an arrival hands nothing back.
        let first = if matches!(self.at(i, 0)?, Operand::Address(_)) { 0 } else { first };
        let named = i.modifiers.iter().find_map(|m| space(m.text));
        let place = self.at_address(self.at(i, first)?, named.unwrap_or(Space::Generic))?;
        let relaxed = i.has("relaxed");
        let order = match what {
            _ if relaxed => Order::Relaxed,
            "arrive" | "arrive_drop" => Order::Release,
            "test_wait" | "try_wait" => Order::Acquire,
            "init" | "inval" => Order::Weak,
            _ => Order::Relaxed,
        };
        let scope = if i.has("cluster") { Scope::Cluster } else { Scope::Cta };
        let Address { space, base, offset } = place;
        let access = Access { space, base, offset, bytes: 8, count: 1, order, scope, whole: false };
        let more = |this: &mut Self, n: usize| match i.operands.get(first + n) {
            Some(operand) => this.value(operand, Type::U32),
            None => Ok(this.constant(1)),
        };
        let how = match what {
            "init" => MbarrierKind::Init { count: more(self, 1)? },
            "inval" => MbarrierKind::Invalidate,
            "expect_tx" => MbarrierKind::Expect { bytes: more(self, 1)? },
            "complete_tx" => MbarrierKind::Complete { bytes: more(self, 1)? },
            "arrive" | "arrive_drop" => {
                let d = if first == 0 { None } else { Some(self.destination(self.at(i, 0)?)?) };
                let (count, expect) = if i.has("expect_tx") {
                    (self.constant(1), Some(more(self, 1)?))
                } else {
                    (more(self, 1)?, None)
                };
                MbarrierKind::Arrive { d, count, expect, drops: what == "arrive_drop" }
            }
            "test_wait" | "try_wait" => {
                let parity = i.has("parity");
                let ty = if parity { Type::U32 } else { Type::B64 };
                MbarrierKind::Test {
                    p: self.predicate_destination(self.at(i, 0)?)?,
                    phase: self.value(self.at(i, 2)?, ty)?,
                    parity,
                }
            }
            _ => return Err(self.unknown(i)),
        };
        Ok(Op::Mbarrier(Box::new(Mbarrier { access, how })))
    }
}

fn space(modifier: &str) -> Option<Space> {
    match modifier {
        "shared" | "shared::cta" | "shared::cluster" => Some(Space::Shared),
        "global" => Some(Space::Global),
        _ => None,
    }
}
