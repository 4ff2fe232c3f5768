//! Declarations: parameters, variables, and what they start with.
//!
//! Source: PTX ISA 9.0, chapter 5 "State Spaces, Types, and Variables".

use super::decode::{CONSTANT, Decoder, Result};
use super::names::Meaning;
use super::{Reg, Variable as Storage};
use crate::syntax::{Initializer, Span, Variable};
use crate::types::Type;

/// More memory than this is declared by mistake.
const MAX_BYTES: u64 = 1 << 28;
/// As is a larger alignment.
const MAX_ALIGN: u64 = 1 << 16;

impl<'a> Decoder<'_, 'a> {
    /// Bytes of one variable of a declaration, and its alignment; `None` for an array left open.
    pub(super) fn layout(
        &self,
        variable: &Variable<'a>,
        index: usize,
    ) -> Result<(Option<u64>, u64)> {
        let ty = Type::from_name(variable.ty.text).ok_or_else(|| {
            self.error(variable.span, format!("there is no type `.{}`", variable.ty))
        })?;
        let element = u64::from(ty.bytes()) * u64::from(variable.vector);
        let mut bytes = Some(element);
        for dimension in variable.names.get(index).map_or(&[][..], |d| &d.dimensions) {
            bytes = match (bytes, dimension) {
                (Some(bytes), Some(n)) => {
                    let product = bytes.checked_mul(*n).filter(|&b| b <= MAX_BYTES);
                    Some(product.ok_or_else(|| self.error(variable.span, "too large a variable"))?)
                }
                _ => None,
            };
        }
        let align = variable.align.unwrap_or(element);
        if !align.is_power_of_two() || align > MAX_ALIGN {
            let what = format!("an alignment is a power of two up to {MAX_ALIGN}");
            return Err(self.error(variable.span, what));
        }
        Ok((bytes, align))
    }

    pub(super) fn place(&self, end: &mut u64, bytes: u64, align: u64, span: Span) -> Result<u64> {
        let start = end.next_multiple_of(align);
        *end = start + bytes;
        if *end > MAX_BYTES {
            return Err(self.error(span, "too many bytes are declared"));
        }
        Ok(start)
    }

    pub(super) fn parameter(&mut self, variable: &Variable<'a>) -> Result<()> {
        let (bytes, align) = self.layout(variable, 0)?;
        let bytes = bytes.ok_or_else(|| self.error(variable.span, "a parameter without size"))?;
        let mut end = self.parameters;
        let start = self.place(&mut end, bytes, align, variable.span)?;
        self.parameters = end;
        if let Some(declared) = variable.names.first() {
            self.names.insert(declared.name.text, Meaning::Parameter(start));
        }
        Ok(())
    }

    pub(super) fn module_variable(&mut self, variable: &Variable<'a>) -> Result<()> {
        match variable.space.text {
            ".global" | ".const" => {
                for (i, declared) in variable.names.iter().enumerate() {
                    let (bytes, align) = self.layout(variable, i)?;
                    let Some(bytes) = bytes else { continue }; // an `extern` of another module
                    let mut data = vec![0; bytes as usize];
                    if let Some(initializer) = &declared.initializer {
                        let mut at = 0;
                        self.fill(&mut data, &mut at, variable, initializer)?;
                    }
                    self.names.insert(declared.name.text, Meaning::Global(self.globals.len()));
                    self.globals.push(Storage::new(declared.name.text, &data, align as usize));
                }
                Ok(())
            }
            _ => self.variable(variable),
        }
    }

    /// Writes what a variable starts with.
    pub(super) fn fill(
        &self,
        data: &mut [u8],
        at: &mut usize,
        variable: &Variable<'a>,
        with: &Initializer<'a>,
    ) -> Result<()> {
        let ty = Type::from_name(variable.ty.text).unwrap_or(Type::B8);
        let bits: u64 = match with {
            Initializer::List(list) => {
                return list.iter().try_for_each(|one| self.fill(data, at, variable, one));
            }
            Initializer::Integer(v) => *v as u64,
            Initializer::Float(v) if ty.bits() == 32 => (*v as f32).to_bits().into(),
            Initializer::Float(v) => v.to_bits(),
            // Of what was declared before: the address of global memory is the generic one.
            Initializer::Address { name, offset, .. } => match self.names.find(name.text) {
                Some(Meaning::Global(number)) => {
                    let address = self.globals.get(number).map_or(0, Storage::address);
                    address.wrapping_add_signed(*offset)
                }
                _ => {
                    return Err(
                        self.error(name.span(), format!("`{name}` is no variable declared before"))
                    );
                }
            },
        };
        let width = ty.bytes() as usize;
        let target = data.get_mut(*at..*at + width);
        let target =
            target.ok_or_else(|| self.error(variable.span, "more values than elements"))?;
        target.copy_from_slice(&bits.to_le_bytes()[..width]);
        *at += width;
        Ok(())
    }

    /// A variable of a body, or one of the module that is not in global memory.
    pub(super) fn variable(&mut self, variable: &Variable<'a>) -> Result<()> {
        match variable.space.text {
            ".reg" => return self.names.declare(self.source, variable),
            ".shared" | ".shared::cta" | ".local" => {}
            // What is handed to a function lies in the lane's own memory.
            ".param" => {}
            other => return Err(self.error(variable.span, format!("`{other}` is not emulated"))),
        }
        for (i, declared) in variable.names.iter().enumerate() {
            let (bytes, align) = self.layout(variable, i)?;
            let meaning = match bytes {
                Some(bytes) if matches!(variable.space.text, ".local" | ".param") => {
                    let mut end = self.local;
                    let start = self.place(&mut end, bytes, align, variable.span)?;
                    self.local = end;
                    Meaning::Local(start)
                }
                Some(bytes) => {
                    let mut end = self.shared;
                    let start = self.place(&mut end, bytes, align, variable.span)?;
                    self.shared = end;
                    Meaning::Shared(start)
                }
                // What a launch adds: after all that is declared, so known at the end.
                None => {
                    self.constants.push([0; 32]);
                    self.dynamic.push((self.constants.len() - 1, align.max(16)));
                    Meaning::Value(
                        CONSTANT.wrapping_add((self.constants.len() - 1) as Reg),
                        Type::U64,
                    )
                }
            };
            self.names.insert(declared.name.text, meaning);
        }
        Ok(())
    }
}
