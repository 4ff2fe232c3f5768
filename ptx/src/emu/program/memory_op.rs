//! Instructions that touch memory, or that lanes run together.
//!
//! Source: PTX ISA 9.0, 9.7.9 (data movement), 9.7.13 (parallel synchronization and communication).

use super::decode::{Decoder, Result};
use super::{
    Access, Atomic, Barrier, BarrierKind, Load, Op, Order, Rmw, Scope, Shuffle, Space, Store,
    WarpSync,
};
use crate::emu::alu::{self, Kind, Lanes};
use crate::syntax::{Instruction, Operand};
use crate::types::Type;

/// What the modifiers of a memory instruction say.
struct Said<'a> {
    space: Space,
    order: Option<Order>,
    scope: Option<Scope>,
    count: u8,
    ty: Option<Type>,
    /// What is left: the operation of an atomic.
    rest: Vec<&'a str>,
}

fn order(word: &str) -> Option<Order> {
    Some(match word {
        "weak" => Order::Weak,
        "relaxed" => Order::Relaxed,
        "acquire" => Order::Acquire,
        "release" => Order::Release,
        "acq_rel" => Order::AcqRel,
        "sc" => Order::Sc,
        _ => return None,
    })
}

fn scope(word: &str) -> Option<Scope> {
    Some(match word {
        "cta" => Scope::Cta,
        "cluster" => Scope::Cluster,
        "gpu" | "gl" => Scope::Gpu,
        "sys" => Scope::Sys,
        _ => return None,
    })
}

impl<'a> Decoder<'a> {
    fn said(&self, i: &Instruction<'a>) -> Result<Said<'a>> {
        let mut said = Said {
            space: Space::Generic,
            order: None,
            scope: None,
            count: 1,
            ty: None,
            rest: Vec::new(),
        };
        for modifier in &i.modifiers {
            let word = modifier.text;
            if let Some(order) = order(word) {
                said.order = Some(order);
            } else if let Some(scope) = scope(word) {
                said.scope = Some(scope);
            } else if let Some(ty) = Type::from_name(word) {
                said.ty = Some(ty);
            } else {
                match word {
                    // Volatile is relaxed at system scope (8.3: "the same semantics").
                    "volatile" | "mmio" => {
                        said.order = Some(said.order.unwrap_or(Order::Relaxed));
                        said.scope = Some(Scope::Sys);
                    }
                    "global" | "const" => said.space = Space::Global,
                    "shared" | "shared::cta" => said.space = Space::Shared,
                    "local" => said.space = Space::Local,
                    "param" | "param::entry" => said.space = Space::Param,
                    "v2" => said.count = 2,
                    "v4" => said.count = 4,
                    "v8" => said.count = 8,
                    // How caches are used is no program's business.
                    "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" | "nc" | "noftz" => {}
                    hint if hint.starts_with("L1::") || hint.starts_with("L2::") => {}
                    other => said.rest.push(other),
                }
            }
        }
        Ok(said)
    }

    pub(super) fn memory(&mut self, i: &Instruction<'a>) -> Result<Op> {
        let said = self.said(i)?;
        let ty = said
            .ty
            .filter(|t| t.bits() <= 64 && *t != Type::Pred)
            .ok_or_else(|| self.unknown(i))?;
        let atomic = matches!(i.opcode.text, "atom" | "red");
        let at = match i.opcode.text {
            "ld" | "ldu" | "atom" => 1,
            _ => 0,
        };
        let (base, offset, space) = self.address(self.at(i, at)?, said.space)?;
        let bytes = ty.bytes() as u8;
        let order = said.order.unwrap_or(if atomic { Order::Relaxed } else { Order::Weak });
        // Without a scope an atomic is the GPU's (9.7.13.5).
        let scope = said.scope.unwrap_or(if atomic { Scope::Gpu } else { Scope::Sys });
        let access = Access { space, base, offset, bytes, count: said.count, order, scope };
        if !atomic && !said.rest.is_empty() || u32::from(bytes) * u32::from(said.count) > 32 {
            return Err(self.unknown(i));
        }
        let wrong_count = |this: &Self, n: usize| {
            let what = format!("{} elements are named, `.v{}` has as many", n, said.count);
            Err(this.error(i.span, what))
        };
        match i.opcode.text {
            "ld" | "ldu" => {
                let to = self.at(i, 0)?;
                let list = if let Operand::Vector(list, _) = to {
                    &list[..]
                } else {
                    std::slice::from_ref(to)
                };
                if list.len() != usize::from(said.count) {
                    return wrong_count(self, list.len());
                }
                let width = list.iter().map(|one| self.width(one)).max().unwrap_or(64);
                let d = list
                    .iter()
                    .map(|one| match one {
                        Operand::Sink(_) => Ok(None),
                        one => self.destination(one).map(Some),
                    })
                    .collect::<Result<_>>()?;
                let extend = if ty.is_signed() && ty.bits() < width { width as u8 } else { 0 };
                Ok(Op::Load(Load { access, d, extend }))
            }
            "st" => {
                let from = self.at(i, 1)?;
                let list = if let Operand::Vector(list, _) = from {
                    &list[..]
                } else {
                    std::slice::from_ref(from)
                };
                if list.len() != usize::from(said.count) {
                    return wrong_count(self, list.len());
                }
                let s = list.iter().map(|one| self.value(one, ty)).collect::<Result<_>>()?;
                Ok(Op::Store(Store { access, s }))
            }
            opcode => {
                if said.count != 1 || bytes < 2 {
                    return Err(self.unknown(i));
                }
                let [how] = said.rest[..] else { return Err(self.unknown(i)) };
                let how = match how {
                    "exch" => Rmw::Exchange,
                    "cas" => Rmw::Cas,
                    "inc" => Rmw::Inc,
                    "dec" => Rmw::Dec,
                    how => {
                        let rounding: &[&str] =
                            if ty.is_float() && how == "add" { &["rn"] } else { &[] };
                        let words: Vec<&str> =
                            rounding.iter().copied().chain([ty.name()]).collect();
                        match alu::select(how, &words).map(|alu| alu.kind) {
                            Ok(Kind::Value(run)) if !matches!(how, "sub" | "mul") => {
                                Rmw::Value(run)
                            }
                            _ => return Err(self.unknown(i)),
                        }
                    }
                };
                let d =
                    if opcode == "atom" { Some(self.destination(self.at(i, 0)?)?) } else { None };
                let b = self.value(self.at(i, at + 1)?, ty)?;
                let c = if let Rmw::Cas = how { self.value(self.at(i, at + 2)?, ty)? } else { b };
                Ok(Op::Atomic(Box::new(Atomic { access, d, b, c, how })))
            }
        }
    }

    /// `fence` and `membar`, which is the strongest fence since sm_70 (9.7.13.4).
    pub(super) fn fence(&mut self, i: &Instruction<'a>) -> Result<Op> {
        let said = self.said(i)?;
        let membar = i.opcode.text == "membar";
        if !said.rest.is_empty() || said.scope.is_none() {
            return Err(self.unknown(i));
        }
        let order = if membar { Order::Sc } else { said.order.unwrap_or(Order::AcqRel) };
        Ok(Op::Fence { order, scope: said.scope.unwrap_or(Scope::Sys) })
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
