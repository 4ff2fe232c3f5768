//! Bodies: blocks, labels, instructions and their operands.

use super::expr::Constant;
use super::parser::{Parser, is_linkage, is_space};
use super::{
    Address, Block, Directive, Guard, Instruction, Operand, Statement, SyntaxError, TokenKind, Word,
};

/// Deeper nesting than this is no honest program's.
const MAX_DEPTH: u32 = 64;

impl<'a> Parser<'a> {
    /// `{ ... }`
    pub(super) fn block(&mut self, depth: u32) -> Result<Block<'a>, SyntaxError> {
        if depth > MAX_DEPTH {
            return Err(self.error("blocks nested too deeply"));
        }
        let start = self.start();
        self.expect_sign("{")?;
        let mut statements = Vec::new();
        loop {
            if self.take_sign(";") {
                continue;
            }
            if self.take_sign("}") {
                break;
            }
            if self.peek_sign("{") {
                statements.push(Statement::Block(self.block(depth + 1)?));
                continue;
            }
            statements.push(self.statement()?);
        }
        Ok(Block { statements, span: self.since(start) })
    }

    fn statement(&mut self) -> Result<Statement<'a>, SyntaxError> {
        let start = self.start();
        let Some(token) = self.peek() else { return Err(self.expected("`}`")) };
        match token.kind {
            TokenKind::Dot if is_space(token.word.text) || is_linkage(token.word.text) => {
                let linkage = is_linkage(token.word.text).then_some(token.word);
                if linkage.is_some() {
                    self.advance();
                }
                let variable = self.variable(start, linkage)?;
                self.expect_sign(";")?;
                Ok(Statement::Variable(variable))
            }
            TokenKind::Dot => self.body_directive().map(Statement::Directive),
            TokenKind::Name if self.peek_nth(1).is_some_and(|t| t.word.text == ":") => {
                self.advance();
                self.advance();
                Ok(Statement::Label(token.word))
            }
            TokenKind::Name => self.instruction(start, None).map(Statement::Instruction),
            TokenKind::Sign if token.word.text == "@" => {
                self.advance();
                let negated = self.take_sign("!");
                let register = self.name("a predicate")?;
                let guard = Some(Guard { negated, register });
                self.instruction(start, guard).map(Statement::Instruction)
            }
            _ => Err(self.expected("an instruction, a declaration or `}`")),
        }
    }

    /// `.loc`, `.pragma "x";`, and the lists after a label: `.branchtargets A, B;`, `.callprototype ...;`.
    fn body_directive(&mut self) -> Result<Directive<'a>, SyntaxError> {
        let start = self.start();
        let name = self.dot("a directive")?;
        let mut arguments = Vec::new();
        match name.text {
            ".loc" => arguments = self.arguments(name),
            ".pragma" | ".branchtargets" | ".calltargets" | ".callprototype" => {
                while let Some(token) = self.peek().filter(|t| t.word.text != ";") {
                    if matches!(token.word.text, "{" | "}") {
                        return Err(self.expected("`;`"));
                    }
                    if token.kind != TokenKind::Sign || token.word.text != "," {
                        arguments.push(token.word);
                    }
                    self.advance();
                }
            }
            _ => return Err(self.error_at(start, format!("there is no directive `{name}` here"))),
        }
        let span = self.since(start);
        if name.text != ".loc" {
            self.expect_sign(";")?;
        }
        Ok(Directive { name, arguments, span })
    }

    fn instruction(
        &mut self,
        start: u32,
        guard: Option<Guard<'a>>,
    ) -> Result<Instruction<'a>, SyntaxError> {
        let opcode = self.name("an instruction")?;
        if opcode.starts_with(['%', '$']) {
            return Err(self.error_at(opcode.start, format!("`{opcode}` is no instruction")));
        }
        let mut modifiers = Vec::with_capacity(4);
        while let Some(token) = self.peek().filter(|t| t.kind == TokenKind::Dot) {
            self.advance();
            modifiers.push(Word { text: &token.word.text[1..], start: token.word.start + 1 });
        }
        let mut operands = Vec::with_capacity(4);
        if !self.peek_sign(";") {
            loop {
                operands.push(self.operand(0)?);
                if !self.take_sign(",") {
                    break;
                }
            }
        }
        self.expect_sign(";")?;
        Ok(Instruction { guard, opcode, modifiers, operands, span: self.since(start) })
    }

    fn operand(&mut self, depth: u32) -> Result<Operand<'a>, SyntaxError> {
        if depth > 4 {
            return Err(self.error("operands nested too deeply"));
        }
        let start = self.start();
        let Some(token) = self.peek() else { return Err(self.expected("an operand")) };
        // Parentheses begin an expression, or the list of a call.
        let list = token.word.text == "("
            && self.peek_nth(1).is_some_and(|t| {
                t.word.text == ")" || (t.kind == TokenKind::Name && t.word.text != "WARP_SZ")
            });
        if list {
            self.advance();
            let operands = self.operands_until(")", depth)?;
            return Ok(Operand::List(operands, self.since(start)));
        }
        if self.at_constant() {
            let (constant, span) = self.constant()?;
            return Ok(match constant {
                Constant::Integer(v) => Operand::Integer(v, span),
                Constant::Decimal(v) => Operand::Decimal(v, span),
                Constant::Single(v) => Operand::Single(v, span),
                Constant::Double(v) => Operand::Double(v, span),
            });
        }
        if self.take_sign("[") {
            return self.address(start).map(Operand::Address);
        }
        if self.take_sign("{") {
            let operands = self.operands_until("}", depth)?;
            return Ok(Operand::Vector(operands, self.since(start)));
        }
        if self.take_sign("!") {
            return Ok(Operand::Not(self.name("a predicate")?));
        }
        if token.kind != TokenKind::Name {
            return Err(self.expected("an operand"));
        }
        let name = self.qualified()?;
        if self.take_sign("|") {
            return Ok(Operand::Pair(name, self.qualified()?));
        }
        if name.text == "_" {
            return Ok(Operand::Sink(name.span()));
        }
        if self.peek_sign("+") || self.peek_sign("-") {
            return Ok(Operand::Sum(name, self.offset()?));
        }
        Ok(Operand::Name(name))
    }

    /// A name with what follows its dot: `%tid.x`, `%v.r`.
    fn qualified(&mut self) -> Result<Word<'a>, SyntaxError> {
        let name = self.name("a name")?;
        match self.peek() {
            Some(t) if t.kind == TokenKind::Dot && t.word.start == name.span().end => {
                self.advance();
                let range = name.start as usize..t.word.span().end as usize;
                // Both are pieces of the source, side by side.
                Ok(Word { text: self.source.get(range).unwrap_or(name.text), start: name.start })
            }
            _ => Ok(name),
        }
    }

    fn operands_until(&mut self, end: &str, depth: u32) -> Result<Vec<Operand<'a>>, SyntaxError> {
        let mut operands = Vec::new();
        while !self.peek_sign(end) {
            operands.push(self.operand(depth + 1)?);
            if !self.take_sign(",") {
                break;
            }
        }
        self.expect_sign(end)?;
        Ok(operands)
    }

    /// What follows `[`.
    fn address(&mut self, start: u32) -> Result<Address<'a>, SyntaxError> {
        let (mut base, mut offset) = (None, 0);
        if self.at_constant() {
            let value = self.integer()?;
            let fit = i64::try_from(value).or_else(|_| u64::try_from(value).map(|v| v as i64));
            offset = fit.map_err(|_| self.error_at(start, format!("{value} is no address")))?;
        } else {
            base = Some(self.qualified()?);
            offset += self.offset()?;
        }
        let mut coordinates = Vec::new();
        while self.take_sign(",") {
            coordinates.push(self.operand(1)?);
        }
        self.expect_sign("]")?;
        Ok(Address { base, offset, coordinates, span: self.since(start) })
    }
}
