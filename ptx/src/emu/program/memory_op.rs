//! Instructions that touch memory, or that lanes run together.
//!
//! Source: PTX ISA 9.0, 9.7.9 (data movement), 9.7.13 (parallel synchronization and communication).

use super::decode::{Decoder, Result};
use super::{
    Access, Atomic, Barrier, BarrierKind, Load, Op, Order, Reg, Rmw, Scope, Shuffle, Space, Store,
    WarpSync,
};
use crate::emu::alu::{self, Kind, Lanes};
use crate::isa;
use crate::syntax::{Instruction, Operand};
use crate::types::Type;

/// The operations of atomics (9.7.13.5).
pub(super) const OPERATIONS: [&str; 10] =
    ["exch", "cas", "inc", "dec", "add", "min", "max", "and", "or", "xor"];

impl<'a> Decoder<'_, 'a> {
    pub(super) fn memory(&mut self, i: &Instruction<'a>) -> Result<Op> {
        let said = isa::memory(i).ok_or_else(|| self.unknown(i))?;
        let loads = matches!(i.opcode.text, "ld" | "ldu");
        let at = usize::from(!matches!(said.access, isa::Access::Store | isa::Access::Reduce));
        let (access, ty) = self.access(i, &said, at)?;
        if loads {
            let d = self.destinations(i, 0, &said)?;
            let width = self.elements(i, 0)?.iter().map(|one| self.width(one)).max().unwrap_or(64);
            let extend = if ty.is_signed() && ty.bits() < width { width as u8 } else { 0 };
            return Ok(Op::Load(Load { access, d, extend }));
        }
        if i.opcode.text == "st" {
            return Ok(Op::Store(Store { access, s: self.sources(i, 1, &said)? }));
        }
        if said.vector != 1 || ty.bytes() < 2 || access.whole {
            return Err(self.unknown(i));
        }
        let how = self.rmw(i, ty)?;
        let d =
            if i.opcode.text == "atom" { Some(self.destination(self.at(i, 0)?)?) } else { None };
        let b = self.value(self.at(i, at + 1)?, ty)?;
        let c = if let Rmw::Cas = how { self.value(self.at(i, at + 2)?, ty)? } else { b };
        Ok(Op::Atomic(Box::new(Atomic { access, d, b, c, how })))
    }

    /// The access of an instruction whose operand `at` is the address, and the type of its elements.
    pub(super) fn access(
        &mut self,
        i: &Instruction<'a>,
        said: &isa::Memory,
        at: usize,
    ) -> Result<(Access, Type)> {
        let copies = matches!(said.access, isa::Access::Copy { .. });
        let ty = said.ty.filter(|ty| !copies && *ty != Type::Pred);
        let ty = ty.ok_or_else(|| self.unknown(i))?;
        let space = match said.space {
            isa::Space::Generic => Space::Generic,
            isa::Space::Global | isa::Space::Const => Space::Global,
            // A cluster is one block.
            isa::Space::Shared | isa::Space::Cluster => Space::Shared,
            isa::Space::Local => Space::Local,
            isa::Space::Param => Space::Param,
        };
        // 128 bits are two elements of 64 that arrive together.
        let whole = ty == Type::B128;
        if ty.bytes() * said.vector > 32 || whole && said.vector != 1 {
            return Err(self.unknown(i));
        }
        let (base, offset, space) = self.address(self.at(i, at)?, space)?;
        let access = Access {
            space,
            base,
            offset,
            bytes: if whole { 8 } else { ty.bytes() as u8 },
            count: if whole { 2 } else { said.vector as u8 },
            order: if said.order == Order::Volatile { Order::Relaxed } else { said.order },
            scope: said.scope.unwrap_or(Scope::Sys),
            whole,
        };
        Ok((access, ty))
    }

    /// The elements that operand `n` names: those of a vector, or itself.
    fn elements<'i>(&self, i: &'i Instruction<'a>, n: usize) -> Result<&'i [Operand<'a>]> {
        let operand = self.at(i, n)?;
        Ok(if let Operand::Vector(list, _) = operand {
            &list[..]
        } else {
            std::slice::from_ref(operand)
        })
    }

    fn check_count(&self, i: &Instruction<'a>, n: usize, said: &isa::Memory) -> Result<()> {
        if n == said.vector as usize {
            return Ok(());
        }
        let what = format!("{n} elements are named, `.v{}` has as many", said.vector);
        Err(self.error(i.span, what))
    }

    /// The registers of operand `n` that a load writes.
    pub(super) fn destinations(
        &mut self,
        i: &Instruction<'a>,
        n: usize,
        said: &isa::Memory,
    ) -> Result<Vec<Option<Reg>>> {
        let list = self.elements(i, n)?;
        self.check_count(i, list.len(), said)?;
        if said.ty == Some(Type::B128) {
            return Ok(self.halves(self.at(i, n)?)?.map(Some).to_vec());
        }
        list.iter()
            .map(|one| match one {
                Operand::Sink(_) => Ok(None),
                one => self.destination(one).map(Some),
            })
            .collect()
    }

    /// The registers of operand `n` that a store reads.
    pub(super) fn sources(
        &mut self,
        i: &Instruction<'a>,
        n: usize,
        said: &isa::Memory,
    ) -> Result<Vec<Reg>> {
        let list = self.elements(i, n)?;
        self.check_count(i, list.len(), said)?;
        let ty = said.ty.ok_or_else(|| self.unknown(i))?;
        if ty == Type::B128 {
            return Ok(self.halves(self.at(i, n)?)?.to_vec());
        }
        list.iter().map(|one| self.value(one, ty)).collect()
    }

    /// What an instruction makes of the old value and its operand.
    pub(super) fn rmw(&mut self, i: &Instruction<'a>, ty: Type) -> Result<Rmw> {
        let how = i.modifiers.iter().map(|m| m.text).find(|m| OPERATIONS.contains(m));
        Ok(match how.ok_or_else(|| self.unknown(i))? {
            "exch" => Rmw::Exchange,
            "cas" => Rmw::Cas,
            "inc" => Rmw::Inc,
            "dec" => Rmw::Dec,
            how => Rmw::Value(self.combination(i, how, ty)?),
        })
    }

    /// The function of an operation on two elements.
    pub(super) fn combination(
        &mut self,
        i: &Instruction<'a>,
        how: &str,
        ty: Type,
    ) -> Result<fn(&mut Lanes, [&Lanes; 4])> {
        let rounding: &[&str] = if ty.is_float() && how == "add" { &["rn"] } else { &[] };
        let words: Vec<&str> = rounding.iter().copied().chain([ty.name()]).collect();
        match alu::select(how, &words).map(|alu| alu.kind) {
            Ok(Kind::Value(run)) if !matches!(how, "sub" | "mul") => Ok(run),
            _ => Err(self.unknown(i)),
        }
    }

    /// `fence` and `membar`, which is the strongest fence since sm_70 (9.7.13.4).
    pub(super) fn fence(&mut self, i: &Instruction<'a>) -> Result<Op> {
        match isa::fence(i) {
            // Towards the asynchronous proxy; with a scope it orders for others, too, which no kernel here needs.
            Some(_) if i.has("proxy") && i.has("async") => Ok(Op::ProxyFence),
            // There is one address for a place but for multicast objects, whose accesses are the members' own.
            Some(_) if i.has("proxy") && i.has("alias") => Ok(Op::Nop),
            Some(fence) if i.has("mbarrier_init") => {
                Ok(Op::Fence { order: fence.order, scope: fence.scope })
            }
            Some(fence) if !fence.proxy && i.modifiers.len() <= 2 => {
                Ok(Op::Fence { order: fence.order, scope: fence.scope })
            }
            _ => Err(self.unknown(i)),
        }
    }

    pub(super) fn sync(&mut self, i: &Instruction<'a>) -> Result<Op> {
        let words: Vec<&str> =
            i.modifiers.iter().map(|m| m.text).filter(|m| !matches!(*m, "cta")).collect();
        match (i.opcode.text, &words[..]) {
            ("bar", ["warp", "sync"]) => {
                let mask = self.value(self.at(i, 0)?, Type::B32)?;
                Ok(Op::WarpSync { mask, how: WarpSync::Barrier })
            }
            ("bar" | "barrier", words) => self.barrier(i, words),
            ("vote", ["sync", how, _]) => {
                let p = self.truth(self.at(i, 1)?)?;
                let to = self.at(i, 0)?;
                let how = match *how {
                    "all" => WarpSync::VoteAll(self.predicate_destination(to)?, p),
                    "any" => WarpSync::VoteAny(self.predicate_destination(to)?, p),
                    "uni" => WarpSync::VoteUni(self.predicate_destination(to)?, p),
                    "ballot" => WarpSync::Ballot(self.destination(to)?, p),
                    _ => return Err(self.unknown(i)),
                };
                Ok(Op::WarpSync { mask: self.value(self.at(i, 2)?, Type::B32)?, how })
            }
            ("shfl", ["sync", kind, "b32"]) => {
                let kind = match *kind {
                    "up" => Shuffle::Up,
                    "down" => Shuffle::Down,
                    "bfly" => Shuffle::Butterfly,
                    "idx" => Shuffle::Index,
                    _ => return Err(self.unknown(i)),
                };
                let (d, valid) = match self.at(i, 0)? {
                    Operand::Pair(d, p) => {
                        (self.destination_name(*d)?, Some(self.predicate_or_sink(*p)?))
                    }
                    one => (self.destination(one)?, None),
                };
                let [a, b, c] =
                    [1, 2, 3].map(|n| self.at(i, n).and_then(|o| self.value(o, Type::B32)));
                let how = WarpSync::Shuffle { kind, d, valid, a: a?, b: b?, c: c? };
                Ok(Op::WarpSync { mask: self.value(self.at(i, 4)?, Type::B32)?, how })
            }
            ("match", [how, "sync", ty]) => {
                let ty = Type::from_name(ty).ok_or_else(|| self.unknown(i))?;
                let a = self.value(self.at(i, 1)?, ty)?;
                let how = match (*how, self.at(i, 0)?) {
                    ("any", d) => WarpSync::MatchAny { d: self.destination(d)?, a },
                    ("all", Operand::Pair(d, p)) => WarpSync::MatchAll {
                        d: self.destination_name(*d)?,
                        p: Some(self.predicate_or_sink(*p)?),
                        a,
                    },
                    ("all", d) => WarpSync::MatchAll { d: self.destination(d)?, p: None, a },
                    _ => return Err(self.unknown(i)),
                };
                Ok(Op::WarpSync { mask: self.value(self.at(i, 2)?, Type::B32)?, how })
            }
            ("redux", ["sync", how, rest @ ..]) => {
                let ty = rest.last().copied().unwrap_or_default();
                let run: fn(&mut Lanes, [&Lanes; 4]) =
                    match alu::select(how, &[ty]).map(|alu| alu.kind) {
                        Ok(Kind::Value(run)) if rest.len() == 1 => run,
                        _ => return Err(self.unknown(i)),
                    };
                let ty = Type::from_name(ty).ok_or_else(|| self.unknown(i))?;
                let (d, a) = (self.destination(self.at(i, 0)?)?, self.value(self.at(i, 1)?, ty)?);
                let how = WarpSync::Reduce { run, d, a };
                Ok(Op::WarpSync { mask: self.value(self.at(i, 2)?, Type::B32)?, how })
            }
            ("elect", ["sync"]) => {
                let Operand::Pair(d, p) = self.at(i, 0)? else { return Err(self.unknown(i)) };
                let d = if d.text == "_" { None } else { Some(self.destination_name(*d)?) };
                let how = WarpSync::Elect { d, p: self.predicate_or_sink(*p)? };
                Ok(Op::WarpSync { mask: self.value(self.at(i, 1)?, Type::B32)?, how })
            }
            _ => Err(self.unknown(i)),
        }
    }

    /// `bar` is `barrier` with `.aligned` (9.7.13.1).
    fn barrier(&mut self, i: &Instruction<'a>, words: &[&str]) -> Result<Op> {
        let aligned = i.opcode.text == "bar" || words.contains(&"aligned");
        let words: Vec<&str> = words.iter().copied().filter(|w| *w != "aligned").collect();
        let count = i.operands.len();
        // In front of the barrier's number a reduction has its result, and behind all else what is reduced.
        let reduces = words.first() == Some(&"red");
        let (first, last) = if reduces { (1, count.saturating_sub(1)) } else { (0, count) };
        let id = self.value(self.at(i, first)?, Type::U32)?;
        let threads = if last > first + 1 {
            Some(self.value(self.at(i, first + 1)?, Type::U32)?)
        } else {
            None
        };
        if last > first + 2 {
            return Err(self.error(i.span, "too many operands"));
        }
        let how = match words[..] {
            ["sync"] => BarrierKind::Sync,
            ["arrive"] if threads.is_some() => BarrierKind::Arrive,
            ["arrive"] => return Err(self.error(i.span, "an arrival needs the number of threads")),
            ["red", how, _] => {
                let p = self.truth(self.at(i, last)?)?;
                let to = self.at(i, 0)?;
                match how {
                    "popc" => BarrierKind::Popc(self.destination(to)?, p),
                    "and" => BarrierKind::And(self.predicate_destination(to)?, p),
                    "or" => BarrierKind::Or(self.predicate_destination(to)?, p),
                    _ => return Err(self.unknown(i)),
                }
            }
            _ => return Err(self.unknown(i)),
        };
        Ok(Op::Barrier(Box::new(Barrier { id, threads, aligned, how })))
    }
}
