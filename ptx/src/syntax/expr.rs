//! Constants and the expressions made of them, which are computed as they are read.
//!
//! Source: PTX ISA 9.0, 4.5.1 (integer constants), 4.5.2 (floating-point constants), 4.5.4 to 4.5.6 (constant
//! expressions and how integer ones are evaluated: 64 bits, signed unless an operand is unsigned).

use super::parser::Parser;
use super::{Span, SyntaxError, TokenKind, Word};

/// A constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Constant {
    Integer(i128),
    Decimal(f64),
    Single(u32),
    Double(u64),
}

/// An integer while an expression is computed: 64 bits, and whether they are unsigned.
#[derive(Clone, Copy)]
struct Int {
    bits: u64,
    unsigned: bool,
}

impl Int {
    fn value(self) -> i128 {
        if self.unsigned { self.bits.into() } else { (self.bits as i64).into() }
    }

    fn truth(truth: bool) -> Self {
        Int { bits: truth.into(), unsigned: false }
    }
}

/// Deeper nesting than this is no honest program's.
const MAX_DEPTH: u32 = 64;

impl<'a> Parser<'a> {
    /// A constant: one number, or an expression of integers.
    pub(super) fn constant(&mut self) -> Result<(Constant, Span), SyntaxError> {
        let start = self.start();
        let negative = self.peek_sign("-");
        let number = if negative { self.peek_nth(1) } else { self.peek() };
        if let Some(token) = number.filter(|t| t.kind == TokenKind::Number)
            && let Some(constant) = float(token.word.text)
        {
            self.advance();
            if negative {
                self.advance();
            }
            let constant = match constant {
                Constant::Decimal(v) if negative => Constant::Decimal(-v),
                Constant::Single(v) if negative => Constant::Single(v ^ (1 << 31)),
                Constant::Double(v) if negative => Constant::Double(v ^ (1 << 63)),
                other => other,
            };
            return Ok((constant, self.since(start)));
        }
        let value = self.conditional(0)?.value();
        Ok((Constant::Integer(value), self.since(start)))
    }

    /// An integer expression.
    pub(super) fn integer(&mut self) -> Result<i128, SyntaxError> {
        Ok(self.conditional(0)?.value())
    }

    /// Whether what follows begins a constant.
    pub(super) fn at_constant(&self) -> bool {
        self.peek().is_some_and(|t| match t.kind {
            TokenKind::Number => true,
            TokenKind::Name => t.word.text == "WARP_SZ",
            TokenKind::Sign => matches!(t.word.text, "-" | "+" | "~" | "("),
            _ => false,
        })
    }

    fn conditional(&mut self, depth: u32) -> Result<Int, SyntaxError> {
        let condition = self.binary(0, depth)?;
        if !self.take_sign("?") {
            return Ok(condition);
        }
        let yes = self.conditional(self.deeper(depth)?)?;
        self.expect_sign(":")?;
        let no = self.conditional(self.deeper(depth)?)?;
        Ok(if condition.bits != 0 { yes } else { no })
    }

    fn deeper(&self, depth: u32) -> Result<u32, SyntaxError> {
        if depth < MAX_DEPTH { Ok(depth + 1) } else { Err(self.error("nested too deeply")) }
    }

    /// Operators from the level `level` of precedence on, left to right.
    fn binary(&mut self, level: usize, depth: u32) -> Result<Int, SyntaxError> {
        /// From the loosest to the tightest, as in C.
        const LEVELS: [&[&str]; 10] = [
            &["||"],
            &["&&"],
            &["|"],
            &["^"],
            &["&"],
            &["==", "!="],
            &["<", "<=", ">", ">="],
            &["<<", ">>"],
            &["+", "-"],
            &["*", "/", "%"],
        ];
        let Some(signs) = LEVELS.get(level) else { return self.unary(depth) };
        let mut left = self.binary(level + 1, depth)?;
        while let Some(sign) = self.peek().filter(|t| t.kind == TokenKind::Sign)
            && signs.contains(&sign.word.text)
        {
            self.advance();
            let right = self.binary(level + 1, depth)?;
            left = compute(sign.word.text, left, right)
                .ok_or_else(|| self.error_at(sign.word.start, "division by zero"))?;
        }
        Ok(left)
    }

    fn unary(&mut self, depth: u32) -> Result<Int, SyntaxError> {
        let depth = self.deeper(depth)?;
        if self.take_sign("-") {
            let v = self.unary(depth)?;
            return Ok(Int { bits: v.bits.wrapping_neg(), ..v });
        }
        if self.take_sign("+") {
            return self.unary(depth);
        }
        if self.take_sign("~") {
            let v = self.unary(depth)?;
            return Ok(Int { bits: !v.bits, ..v });
        }
        if self.take_sign("!") {
            return Ok(Int::truth(self.unary(depth)?.bits == 0));
        }
        if self.take_sign("(") {
            // A cast: (.s64) or (.u64).
            if let Some(cast) = self.peek().filter(|t| t.kind == TokenKind::Dot) {
                let unsigned = match cast.word.text {
                    ".s64" => false,
                    ".u64" => true,
                    _ => return Err(self.error("a cast is (.s64) or (.u64)")),
                };
                self.advance();
                self.expect_sign(")")?;
                return Ok(Int { unsigned, ..self.unary(depth)? });
            }
            let v = self.conditional(depth)?;
            self.expect_sign(")")?;
            return Ok(v);
        }
        let Some(token) = self.peek() else { return Err(self.error("expected a number")) };
        let value = match token.kind {
            TokenKind::Number => literal(token.word)
                .ok_or_else(|| self.error(format!("{:?} is no integer", token.word.text)))?,
            TokenKind::Name if token.word.text == "WARP_SZ" => Int { bits: 32, unsigned: false },
            _ => return Err(self.error(format!("expected a number, found {:?}", token.word.text))),
        };
        self.advance();
        Ok(value)
    }
}

/// `None` for a division by zero.
fn compute(sign: &str, a: Int, b: Int) -> Option<Int> {
    let unsigned = a.unsigned || b.unsigned;
    let int = |bits| Some(Int { bits, unsigned });
    let (x, y) = (a.bits, b.bits);
    let (i, j) = (x as i64, y as i64);
    let shift = u32::try_from(y).unwrap_or(u32::MAX);
    match sign {
        "+" => int(x.wrapping_add(y)),
        "-" => int(x.wrapping_sub(y)),
        "*" => int(x.wrapping_mul(y)),
        "/" | "%" if y == 0 => None,
        "/" if unsigned => int(x / y),
        "/" => int(i.wrapping_div(j) as u64),
        "%" if unsigned => int(x % y),
        "%" => int(i.wrapping_rem(j) as u64),
        "<<" => Some(Int { bits: x.checked_shl(shift).unwrap_or(0), ..a }),
        ">>" if a.unsigned => Some(Int { bits: x.checked_shr(shift).unwrap_or(0), ..a }),
        ">>" => Some(Int { bits: (i >> shift.min(63)) as u64, ..a }),
        "&" => int(x & y),
        "|" => int(x | y),
        "^" => int(x ^ y),
        "&&" => Some(Int::truth(x != 0 && y != 0)),
        "||" => Some(Int::truth(x != 0 || y != 0)),
        "==" => Some(Int::truth(x == y)),
        "!=" => Some(Int::truth(x != y)),
        "<" => Some(Int::truth(if unsigned { x < y } else { i < j })),
        "<=" => Some(Int::truth(if unsigned { x <= y } else { i <= j })),
        ">" => Some(Int::truth(if unsigned { x > y } else { i > j })),
        _ => Some(Int::truth(if unsigned { x >= y } else { i >= j })),
    }
}

/// An integer literal: decimal, `0x`, `0b`, octal, with a `U` or without.
fn literal(word: Word<'_>) -> Option<Int> {
    let text = word.text;
    let (digits, marked) = match text.strip_suffix(['U', 'u']) {
        Some(digits) => (digits, true),
        None => (text, false),
    };
    let radix = |prefix: [&str; 2], radix| {
        let digits = digits.strip_prefix(prefix[0]).or_else(|| digits.strip_prefix(prefix[1]))?;
        Some(u64::from_str_radix(digits, radix).ok())
    };
    let bits = radix(["0x", "0X"], 16)
        .or_else(|| radix(["0b", "0B"], 2))
        .or_else(|| {
            (digits.len() > 1 && digits.starts_with('0'))
                .then(|| u64::from_str_radix(digits, 8).ok())
        })
        .unwrap_or_else(|| digits.parse().ok())?;
    // What does not fit 63 bits is unsigned (4.5.1).
    Some(Int { bits, unsigned: marked || bits > i64::MAX as u64 })
}

/// A floating-point literal: bits after `0f` or `0d`, or a decimal fraction.
fn float(text: &str) -> Option<Constant> {
    let bits = |prefixes: [&str; 2], digits: usize| {
        let hex = text.strip_prefix(prefixes[0]).or_else(|| text.strip_prefix(prefixes[1]))?;
        (hex.len() == digits).then(|| u64::from_str_radix(hex, 16).ok()).flatten()
    };
    if let Some(bits) = bits(["0f", "0F"], 8) {
        return Some(Constant::Single(bits as u32));
    }
    if let Some(bits) = bits(["0d", "0D"], 16) {
        return Some(Constant::Double(bits));
    }
    let decimal = text.contains('.') || (!text.starts_with("0x") && text.contains(['e', 'E']));
    decimal.then(|| text.parse().ok().map(Constant::Decimal)).flatten()
}
