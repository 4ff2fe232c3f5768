//! What the names in a body mean, scope by scope.

use std::collections::HashMap;

use super::{Pred, Reg};
use crate::syntax::{SyntaxError, Variable};
use crate::types::Type;

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Meaning {
    /// A value register of this type; of 128 bits it is the first of two.
    Value(Reg, Type),
    /// A predicate register.
    Predicate(Pred),
    /// A variable: the address in its space, by its kind.
    Shared(u64),
    Local(u64),
    /// A parameter of the kernel: its offset.
    Parameter(u64),
    /// Number of a module's variable.
    Global(usize),
}

/// Registers of 64 bits that one of a type takes.
fn words(ty: Type) -> u32 {
    ty.bits().div_ceil(64)
}

/// Registers `NAME0` to `NAMEn`, or one alone.
#[derive(Default)]
struct Scope<'a> {
    names: HashMap<&'a str, Meaning>,
    /// By the name without its number: the first register, and how many.
    families: HashMap<&'a str, (Meaning, u32)>,
    labels: HashMap<&'a str, u32>,
}

/// A caller's scopes.
pub(super) struct Hidden<'a>(Vec<Scope<'a>>);

/// The scopes that are open, the innermost last.
#[derive(Default)]
pub(super) struct Names<'a> {
    scopes: Vec<Scope<'a>>,
    pub(super) values: u32,
    pub(super) predicates: u32,
}

impl<'a> Names<'a> {
    pub(super) fn open(&mut self) {
        self.scopes.push(Scope::default());
    }

    pub(super) fn close(&mut self) {
        self.scopes.pop();
    }

    /// Hides all scopes but the outermost: a function sees its module, not its caller.
    pub(super) fn enter(&mut self) -> Hidden<'a> {
        let outer = self.scopes.len().min(1);
        Hidden(self.scopes.split_off(outer))
    }

    /// Takes back what [`Names::enter`] has hidden.
    pub(super) fn leave(&mut self, hidden: Hidden<'a>) {
        self.scopes.truncate(1);
        self.scopes.extend(hidden.0);
    }

    fn innermost(&mut self) -> &mut Scope<'a> {
        if self.scopes.is_empty() {
            self.scopes.push(Scope::default());
        }
        let last = self.scopes.len() - 1;
        &mut self.scopes[last]
    }

    pub(super) fn insert(&mut self, name: &'a str, meaning: Meaning) {
        self.innermost().names.insert(name, meaning);
    }

    pub(super) fn label(&mut self, name: &'a str, number: u32) -> bool {
        self.innermost().labels.insert(name, number).is_none()
    }

    pub(super) fn find_label(&self, name: &str) -> Option<u32> {
        self.scopes.iter().rev().find_map(|scope| scope.labels.get(name).copied())
    }

    /// A register that has no name.
    pub(super) fn fresh(&mut self) -> Reg {
        self.values += 1;
        (self.values - 1) as Reg
    }

    /// Declares the registers of a `.reg`.
    pub(super) fn declare(
        &mut self,
        source: &str,
        variable: &Variable<'a>,
    ) -> Result<(), SyntaxError> {
        let error = |what: String| SyntaxError::new(source, variable.span.start, what);
        let ty = Type::from_name(variable.ty.text)
            .ok_or_else(|| error(format!("there is no type `.{}`", variable.ty)))?;
        if variable.vector != 1 {
            return Err(error(format!("registers of `.{}` are not emulated", variable.ty)));
        }
        for declared in &variable.names {
            let count = declared.count.unwrap_or(1);
            let used = if ty == Type::Pred { &mut self.predicates } else { &mut self.values };
            let first = *used;
            *used = used.saturating_add(count.saturating_mul(words(ty)));
            // Half of the numbers are left for constants.
            if *used > u32::from(Reg::MAX / 2) {
                return Err(error(format!("more than {} registers", Reg::MAX / 2)));
            }
            let meaning = if ty == Type::Pred {
                Meaning::Predicate(first as Pred)
            } else {
                Meaning::Value(first as Reg, ty)
            };
            let scope = self.innermost();
            match declared.count {
                Some(count) => drop(scope.families.insert(declared.name.text, (meaning, count))),
                None => drop(scope.names.insert(declared.name.text, meaning)),
            }
        }
        Ok(())
    }

    /// What a name means where it stands.
    pub(super) fn find(&self, name: &str) -> Option<Meaning> {
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let (family, number) = name.split_at(name.len() - digits);
        self.scopes.iter().rev().find_map(|scope| {
            if let Some(meaning) = scope.names.get(name) {
                return Some(*meaning);
            }
            let number: u32 = number.parse().ok()?;
            let (first, count) = *scope.families.get(family)?;
            if number >= count {
                return None;
            }
            // `declare` has made sure that all numbers fit.
            Some(match first {
                Meaning::Value(reg, ty) => Meaning::Value(reg + (number * words(ty)) as Reg, ty),
                Meaning::Predicate(p) => Meaning::Predicate(p + number as Pred),
                other => other,
            })
        })
    }
}
