//! Operands: registers, constants and addresses.
//!
//! Source: PTX ISA 9.0, chapter 6 "Instruction Operands".

use super::decode::{CONSTANT, Decoder, Result};
use super::names::Meaning;
use super::{Op, Pred, Reg, SHARED_WINDOW, Space, Special, Truth, Variable as Storage};
use crate::syntax::{Instruction, Operand, SyntaxError, Word};
use crate::types::Type;

impl<'a> Decoder<'_, 'a> {
    pub(super) fn at<'i>(&self, i: &'i Instruction<'a>, n: usize) -> Result<&'i Operand<'a>> {
        i.operands
            .get(n)
            .ok_or_else(|| self.error(i.span, format!("`{}` lacks an operand", i.name())))
    }

    /// An instruction in a form that is not emulated.
    pub(super) fn unknown(&self, i: &Instruction<'a>) -> SyntaxError {
        self.error(i.span, format!("`{}` is not emulated", i.name()))
    }

    pub(super) fn constant(&mut self, bits: u64) -> Reg {
        if let Some(&reg) = self.numbers.get(&bits) {
            return reg;
        }
        let reg = CONSTANT.wrapping_add(self.constants.len() as Reg);
        self.constants.push([bits; 32]);
        self.numbers.insert(bits, reg);
        reg
    }

    /// The address of a variable in global memory.
    pub(super) fn global(&mut self, number: usize, offset: i64) -> Reg {
        let address = self.globals.get(number).map_or(0, Storage::address);
        self.constant(address.wrapping_add_signed(offset))
    }

    pub(super) fn meaning(&self, name: Word<'a>) -> Result<Meaning> {
        self.names.find(name.text).ok_or_else(|| {
            let what = if self.functions.contains_key(name.text) {
                format!("the address of `{name}`: calls through a pointer are not emulated")
            } else {
                format!("`{name}` is not declared, and no special register that is emulated")
            };
            self.error(name.span(), what)
        })
    }

    pub(super) fn destination(&mut self, operand: &Operand<'a>) -> Result<Reg> {
        match operand {
            Operand::Name(name) => self.destination_name(*name),
            Operand::Sink(_) => Ok(self.names.fresh()),
            other => Err(self.error(other.span(), "expected a register")),
        }
    }

    pub(super) fn destination_name(&mut self, name: Word<'a>) -> Result<Reg> {
        if name.text == "_" {
            return Ok(self.names.fresh());
        }
        match self.meaning(name)? {
            Meaning::Value(reg, ty) if reg < CONSTANT && ty != Type::B128 => Ok(reg),
            _ => Err(self.error(name.span(), format!("`{name}` is no register of a value"))),
        }
    }

    /// The two registers that a register of 128 bits is, its low half first.
    pub(super) fn halves(&mut self, operand: &Operand<'a>) -> Result<[Reg; 2]> {
        if let Operand::Name(name) = operand
            && let Meaning::Value(reg, Type::B128) = self.meaning(*name)?
        {
            return Ok([reg, reg + 1]);
        }
        Err(self.error(operand.span(), "expected a register of 128 bits"))
    }

    /// Bits of the register that an operand names.
    pub(super) fn width(&self, operand: &Operand<'a>) -> u32 {
        match operand {
            Operand::Name(name) => match self.names.find(name.text) {
                Some(Meaning::Value(_, ty)) => ty.bits(),
                _ => 64,
            },
            _ => 64,
        }
    }

    pub(super) fn predicate(&self, name: Word<'a>) -> Result<Pred> {
        match self.meaning(name)? {
            Meaning::Predicate(p) => Ok(p),
            _ => Err(self.error(name.span(), format!("`{name}` is no predicate"))),
        }
    }

    pub(super) fn predicate_or_sink(&mut self, name: Word<'a>) -> Result<Pred> {
        if name.text == "_" {
            self.names.predicates += 1;
            return Ok((self.names.predicates - 1) as Pred);
        }
        self.predicate(name)
    }

    pub(super) fn predicate_destination(&mut self, operand: &Operand<'a>) -> Result<Pred> {
        match operand {
            Operand::Name(name) => self.predicate(*name),
            Operand::Sink(_) => {
                self.names.predicates += 1;
                Ok((self.names.predicates - 1) as Pred)
            }
            other => Err(self.error(other.span(), "expected a predicate")),
        }
    }

    pub(super) fn truth(&self, operand: &Operand<'a>) -> Result<Truth> {
        match operand {
            Operand::Name(name) => Ok(Truth::Reg(self.predicate(*name)?, false)),
            Operand::Not(name) => Ok(Truth::Reg(self.predicate(*name)?, true)),
            Operand::Integer(v, _) => Ok(Truth::Always(*v != 0)),
            other => Err(self.error(other.span(), "expected a predicate")),
        }
    }

    /// What an instruction reads as a `ty`.
    pub(super) fn value(&mut self, operand: &Operand<'a>, ty: Type) -> Result<Reg> {
        let mask = if ty.bits() >= 64 { u64::MAX } else { (1 << ty.bits()) - 1 };
        let number = |v: f64| match ty {
            Type::F32 | Type::Tf32 => u64::from((v as f32).to_bits()),
            _ => v.to_bits(),
        };
        match operand {
            Operand::Name(name) => {
                if let Some(which) = Special::from_name(name.text) {
                    let d = self.names.fresh();
                    self.emit(None, Op::Special { d, which }, name.span());
                    return Ok(d);
                }
                if name.text == "WARP_SZ" {
                    return Ok(self.constant(32));
                }
                match self.meaning(*name)? {
                    Meaning::Value(_, Type::B128) if ty != Type::B128 => {
                        Err(self.error(name.span(), format!("`{name}` has 128 bits")))
                    }
                    Meaning::Value(reg, _) => Ok(reg),
                    Meaning::Shared(at) | Meaning::Local(at) | Meaning::Parameter(at) => {
                        Ok(self.constant(at))
                    }
                    Meaning::Global(number) => Ok(self.global(number, 0)),
                    Meaning::Predicate(_) => {
                        Err(self.error(name.span(), format!("`{name}` is a predicate")))
                    }
                }
            }
            Operand::Sum(name, offset) => match self.meaning(*name)? {
                Meaning::Shared(at) | Meaning::Local(at) | Meaning::Parameter(at) => {
                    Ok(self.constant(at.wrapping_add_signed(*offset)))
                }
                Meaning::Global(number) => Ok(self.global(number, *offset)),
                _ => Err(self.error(name.span(), "an offset is added to variables alone")),
            },
            Operand::Integer(v, _) => Ok(match ty {
                Type::F32 | Type::F64 => self.constant(number(*v as f64)),
                _ => self.constant(*v as u64 & mask),
            }),
            Operand::Decimal(v, _) => Ok(self.constant(number(*v))),
            Operand::Single(bits, _) if ty == Type::F64 => {
                Ok(self.constant(f64::from(f32::from_bits(*bits)).to_bits()))
            }
            Operand::Single(bits, _) => Ok(self.constant(u64::from(*bits))),
            Operand::Double(bits, _) if ty == Type::F32 => {
                Ok(self.constant(u64::from((f64::from_bits(*bits) as f32).to_bits())))
            }
            Operand::Double(bits, _) => Ok(self.constant(*bits)),
            other => Err(self.error(other.span(), "expected a register or a number")),
        }
    }

    /// The base register, offset and space of an address. A variable's own space counts where none is named.
    pub(super) fn address(
        &mut self,
        operand: &Operand<'a>,
        space: Space,
    ) -> Result<(Reg, i64, Space)> {
        let Operand::Address(address) = operand else {
            return Err(self.error(operand.span(), "expected an address in brackets"));
        };
        let Some(name) = address.base else { return Ok((self.constant(0), address.offset, space)) };
        let fixed = |own: Space, window: u64| {
            if space == Space::Generic { (Space::Generic, window) } else { (own, 0) }
        };
        Ok(match self.meaning(name)? {
            Meaning::Value(reg, _) => (reg, address.offset, space),
            Meaning::Global(number) => (self.global(number, 0), address.offset, Space::Global),
            Meaning::Parameter(at) => (self.constant(at), address.offset, Space::Param),
            Meaning::Shared(at) => {
                let (space, window) = fixed(Space::Shared, SHARED_WINDOW);
                (self.constant(at + window), address.offset, space)
            }
            Meaning::Local(at) => {
                let (space, window) = fixed(Space::Local, super::LOCAL_WINDOW);
                (self.constant(at + window), address.offset, space)
            }
            Meaning::Predicate(_) => {
                return Err(self.error(name.span(), "a predicate is no address"));
            }
        })
    }
}
