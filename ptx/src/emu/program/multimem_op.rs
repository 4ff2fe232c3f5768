//! Accesses to multicast objects: `multimem`.
//!
//! Source: PTX ISA 9.0, 9.7.9.14 `multimem.ld_reduce`, `multimem.st`, `multimem.red`.

use super::decode::{Decoder, Result};
use super::memory_op::OPERATIONS;
use super::{Combination, Multimem, MultimemKind, Op, Space};
use crate::emu::alu::{self, Kind, Lanes};
use crate::isa;
use crate::syntax::Instruction;
use crate::types::Type;

impl<'a> Decoder<'_, 'a> {
    pub(super) fn multimem(&mut self, i: &Instruction<'a>) -> Result<Op> {
        // Copies of whole blocks into multicast objects.
        if i.has("async") {
            return Err(self.unknown(i));
        }
        let said = isa::memory(i).ok_or_else(|| self.unknown(i))?;
        let loads = said.access == isa::Access::Load;
        let (access, ty) = self.access(i, &said, usize::from(loads))?;
        if !matches!(access.space, Space::Global | Space::Generic) {
            return Err(self.unknown(i));
        }
        let how = if loads {
            MultimemKind::LoadReduce {
                d: self.destinations(i, 0, &said)?,
                combine: self.combine_all(i, ty)?,
            }
        } else {
            let from = self.sources(i, 1, &said)?;
            match said.access {
                isa::Access::Store => MultimemKind::Store(from),
                _ => MultimemKind::Reduce { b: from, how: self.rmw(i, ty)? },
            }
        };
        Ok(Op::Multimem(Box::new(Multimem { access, how })))
    }

    fn combine_all(&mut self, i: &Instruction<'a>, ty: Type) -> Result<Combination> {
        let how = i.modifiers.iter().map(|m| m.text).find(|m| OPERATIONS.contains(m));
        let how = how.ok_or_else(|| self.unknown(i))?;
        if !i.has("acc::f32") {
            // `.acc::f16` is for types of 8 bits.
            return if i.has("acc::f16") {
                Err(self.unknown(i))
            } else {
                Ok(Combination::Each(self.combination(i, how, ty)?))
            };
        }
        let (one, packed) = match ty {
            Type::F16 | Type::F16x2 => (Type::F16, ty == Type::F16x2),
            Type::Bf16 | Type::Bf16x2 => (Type::Bf16, ty == Type::Bf16x2),
            _ => return Err(self.unknown(i)),
        };
        if how != "add" {
            return Err(self.unknown(i));
        }
        let function = |opcode: &str, words: &[&str]| -> Result<fn(&mut Lanes, [&Lanes; 4])> {
            match alu::select(opcode, words).map(|alu| alu.kind) {
                Ok(Kind::Value(run)) => Ok(run),
                _ => Err(self.unknown(i)),
            }
        };
        Ok(Combination::Single {
            widen: function("cvt", &["f32", one.name()])?,
            add: function("add", &["rn", "f32"])?,
            narrow: function("cvt", &["rn", one.name(), "f32"])?,
            packed,
        })
    }
}
