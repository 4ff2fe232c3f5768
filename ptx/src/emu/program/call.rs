//! Calls: the function is put in where it is called.
//!
//! That needs no stack and no convention for registers, and a loop over the code finds its way through. It cannot be
//! done for recursion and for calls through a pointer, which are errors.
//!
//! Source: PTX ISA 9.0, 7.1 "Function Declarations and Definitions", 9.7.12.5 `call`.

use super::decode::{Decoder, Result};
use super::names::Meaning;
use super::{Op, Pred};
use crate::syntax::{Instruction, Operand, Variable, Word};

/// More instructions than this are an explosion of functions that call functions.
const MAX_CODE: usize = 1 << 20;

impl<'a> Decoder<'_, 'a> {
    pub(super) fn call(&mut self, i: &Instruction<'a>, guard: Option<(Pred, bool)>) -> Result<()> {
        let (returned, name, given) = match &i.operands[..] {
            [Operand::List(returned, _), Operand::Name(name), Operand::List(given, _), ..] => {
                (&returned[..], *name, &given[..])
            }
            [Operand::List(returned, _), Operand::Name(name)] => (&returned[..], *name, &[][..]),
            [Operand::Name(name), Operand::List(given, _), ..] => (&[][..], *name, &given[..]),
            [Operand::Name(name)] => (&[][..], *name, &[][..]),
            _ => return Err(self.error(i.span, "a call names a function")),
        };
        let function = match self.functions.get(name.text) {
            Some(function) => *function,
            None if name.text == "__assertfail" => return self.assert_fail(i, guard, given),
            None if self.names.find(name.text).is_some() => {
                return Err(self.error(name.span(), "calls through a pointer are not emulated"));
            }
            None => return Err(self.error(name.span(), format!("there is no function `{name}`"))),
        };
        // A declaration may stand before the definition, under the same name.
        let Some(body) = &function.body else {
            return Err(self.error(name.span(), format!("`{name}` has no body here")));
        };
        if self.calls.iter().any(|(outer, _)| *outer == name.text) {
            return Err(self
                .error(name.span(), format!("`{name}` calls itself: recursion is not emulated")));
        }
        if (returned.len(), given.len()) != (function.returns.len(), function.parameters.len()) {
            let what = format!(
                "`{name}` takes {} parameters and returns {}, not {} and {}",
                function.parameters.len(),
                function.returns.len(),
                given.len(),
                returned.len()
            );
            return Err(self.error(i.span, what));
        }
        if self.code_len() > MAX_CODE {
            return Err(self.error(i.span, "too much code, with all calls put in"));
        }
        // What the caller hands over, before its names are out of sight.
        let mut bound = Vec::new();
        for (formal, actual) in
            function.parameters.iter().chain(&function.returns).zip(given.iter().chain(returned))
        {
            let Operand::Name(actual) = actual else {
                return Err(self.error(
                    actual.span(),
                    "only variables and registers are handed to a function here",
                ));
            };
            bound.push(self.bind(formal, *actual)?);
        }
        self.labels.push(None);
        let end = self.labels.len() as u32 - 1;
        if let Some((p, negated)) = guard {
            self.emit(Some((p, !negated)), Op::Branch { target: end }, i.span);
        }
        let hidden = self.names.enter();
        self.names.open();
        for (name, meaning) in bound {
            self.names.insert(name.text, meaning);
        }
        self.calls.push((function.name.text, end));
        let result = self.block(body);
        self.calls.pop();
        self.names.leave(hidden);
        result?;
        self.labels[end as usize] = Some(self.code_len() as u32);
        Ok(())
    }

    /// The function that `assert` of CUDA C++ calls: message, file, line, function and the size of a character (CUDA C++
    /// Programming Guide, "Assertion").
    fn assert_fail(
        &mut self,
        i: &Instruction<'a>,
        guard: Option<(Pred, bool)>,
        given: &[Operand<'a>],
    ) -> Result<()> {
        let mut at = [0; 4];
        for (at, operand) in at.iter_mut().zip(given) {
            let Operand::Name(name) = operand else { return Err(self.unknown(i)) };
            let Meaning::Local(place) = self.meaning(*name)? else { return Err(self.unknown(i)) };
            *at = place;
        }
        if given.len() != 5 {
            return Err(self.unknown(i));
        }
        self.emit(guard, Op::AssertFail(at), i.span);
        Ok(())
    }

    /// What a parameter means within the function: the caller's own variable or register.
    fn bind(&mut self, formal: &Variable<'a>, actual: Word<'a>) -> Result<(Word<'a>, Meaning)> {
        let Some(declared) = formal.names.first() else {
            return Err(self.error(formal.span, "a parameter without a name"));
        };
        let meaning = self.meaning(actual)?;
        let fits = match formal.space.text {
            ".param" => matches!(meaning, Meaning::Local(_) | Meaning::Parameter(_)),
            _ => matches!(meaning, Meaning::Value(..) | Meaning::Predicate(_)),
        };
        if !fits {
            return Err(self.error(
                actual.span(),
                format!("`{actual}` is not what `{}` is declared as", declared.name),
            ));
        }
        Ok((declared.name, meaning))
    }
}
