//! From text to tokens. Every byte of the source is in exactly one token.
//!
//! Source: PTX ISA 9.0, 4.1 (format), 4.4 (identifiers), 4.5 (constants).

use super::{SyntaxError, Word};

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Spaces and ends of lines.
    Blank,
    /// `// ...` or `/* ... */`.
    Comment,
    /// A name: `ld`, `%rd1`, `$L__BB0_1`, `_`.
    Name,
    /// A dot and what follows: `.global`, `.shared::cta`, `.v2`, `.2d`.
    Dot,
    /// A number, in any notation.
    Number,
    /// `"..."`
    Text,
    /// A sign of one or two characters: `[`, `+`, `<<`.
    Sign,
}

/// A piece of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// What it is.
    pub kind: TokenKind,
    /// Its text, and where it stands.
    pub word: Word<'a>,
}

/// The longest source: positions are 32 bits.
const MAX_BYTES: usize = u32::MAX as usize / 2;

/// The tokens of `source`, blanks and comments included: their texts in a row are the source.
///
/// # Errors
/// A character that nothing begins with; a comment or a text without end.
///
/// ```
/// use ferroccl_ptx::syntax::{TokenKind, tokens};
///
/// let source = "ld.global.u32 %r1, [%rd1+4]; // a load";
/// let tokens = tokens(source)?;
/// assert_eq!(tokens.iter().map(|t| t.word.text).collect::<String>(), source);
/// assert_eq!(tokens[1].kind, TokenKind::Dot);
/// # Ok::<(), ferroccl_ptx::syntax::SyntaxError>(())
/// ```
pub fn tokens(source: &str) -> Result<Vec<Token<'_>>, SyntaxError> {
    if source.len() > MAX_BYTES {
        return Err(SyntaxError::new("", 0, format!("{} bytes are too many", source.len())));
    }
    let bytes = source.as_bytes();
    let mut tokens = Vec::with_capacity(source.len() / 4);
    let mut at = 0;
    while at < bytes.len() {
        let (kind, len) = token(&bytes[at..]).map_err(|what| error(source, at, what))?;
        let text = source.get(at..at + len).ok_or_else(|| error(source, at, Fault::Character))?;
        // `MAX_BYTES` fit 32 bits.
        tokens.push(Token { kind, word: Word { text, start: at as u32 } });
        at += len;
    }
    Ok(tokens)
}

/// What can be wrong with a token.
enum Fault {
    Character,
    Comment,
    Text,
}

fn error(source: &str, at: usize, fault: Fault) -> SyntaxError {
    let what = match fault {
        Fault::Character => {
            let character = source[..].get(at..).and_then(|s| s.chars().next());
            format!("nothing in PTX begins with {:?}", character.unwrap_or('\u{fffd}'))
        }
        Fault::Comment => "a comment that does not end: `*/` is missing".to_owned(),
        Fault::Text => "a text that does not end on its line: `\"` is missing".to_owned(),
    };
    SyntaxError::new(source, at as u32, what)
}

const fn in_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$')
}

/// How many bytes from the start satisfy `is`.
fn run(bytes: &[u8], is: impl Fn(u8) -> bool) -> usize {
    bytes.iter().position(|&b| !is(b)).unwrap_or(bytes.len())
}

/// Kind and length of the token at the start of `rest`, which is not empty.
fn token(rest: &[u8]) -> Result<(TokenKind, usize), Fault> {
    let next = rest.get(1).copied().unwrap_or(0);
    Ok(match rest[0] {
        b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c => {
            (TokenKind::Blank, run(rest, |b| matches!(b, b' ' | 0x09..=0x0d)))
        }
        b'/' if next == b'/' => (TokenKind::Comment, run(rest, |b| b != b'\n')),
        b'/' if next == b'*' => {
            let end = rest[2..].windows(2).position(|w| w == b"*/").ok_or(Fault::Comment)?;
            (TokenKind::Comment, end + 4)
        }
        b'"' => {
            let len = run(&rest[1..], |b| b != b'"' && b != b'\n');
            if rest.get(1 + len) != Some(&b'"') {
                return Err(Fault::Text);
            }
            (TokenKind::Text, len + 2)
        }
        b'0'..=b'9' => (TokenKind::Number, number(rest)),
        // `.5` is a number, `.2d` is not.
        b'.' if next.is_ascii_digit() && !names_dimension(&rest[1..]) => {
            (TokenKind::Number, number(rest))
        }
        b'.' if in_name(next) => (TokenKind::Dot, dotted(rest)),
        b'%' if in_name(next) => (TokenKind::Name, 1 + run(&rest[1..], in_name)),
        b if in_name(b) => (TokenKind::Name, run(rest, in_name)),
        a => {
            const TWO: [&[u8; 2]; 8] = [b"<<", b">>", b"<=", b">=", b"==", b"!=", b"&&", b"||"];
            let two = TWO.iter().any(|sign| **sign == [a, next]);
            match a {
                _ if two => (TokenKind::Sign, 2),
                b'(' | b')' | b'[' | b']' | b'{' | b'}' | b'<' | b'>' | b',' | b';' | b':'
                | b'@' | b'!' | b'|' | b'&' | b'^' | b'~' | b'+' | b'-' | b'*' | b'/' | b'%'
                | b'=' | b'?' => (TokenKind::Sign, 1),
                _ => return Err(Fault::Character),
            }
        }
    })
}

/// Whether digits are followed by a letter that is not an exponent's: the `2d` of `.2d`, the `16x64b` of a shape.
fn names_dimension(after_dot: &[u8]) -> bool {
    let digits = run(after_dot, |b| b.is_ascii_digit());
    let letter = after_dot.get(digits).copied().unwrap_or(b' ');
    in_name(letter) && !matches!(letter, b'e' | b'E')
}

/// `.a` or `.a::b::c`, whose colons belong to it.
fn dotted(rest: &[u8]) -> usize {
    let mut len = 1 + run(&rest[1..], in_name);
    while rest[len..].starts_with(b"::") && rest.get(len + 2).is_some_and(|&b| in_name(b)) {
        len += 2 + run(&rest[len + 2..], in_name);
    }
    len
}

/// An integer, with its `U`; or a decimal fraction, with its exponent; or `0f` and `0d` with bits.
fn number(rest: &[u8]) -> usize {
    let digits = run(rest, |b| b.is_ascii_digit());
    let after = |n: usize| rest.get(n).copied().unwrap_or(b' ');
    // 0x.. 0b.. 0f.. 0d.. and octals are letters and digits in a row.
    if rest[0] == b'0'
        && digits == 1
        && after(1).is_ascii_alphabetic()
        && !matches!(after(1), b'e' | b'E')
    {
        return run(rest, |b| b.is_ascii_alphanumeric());
    }
    let mut len = digits;
    if after(len) == b'.' && !after(len + 1).is_ascii_alphabetic() {
        len += 1 + run(&rest[len + 1..], |b| b.is_ascii_digit());
    }
    if matches!(after(len), b'e' | b'E') {
        let sign = usize::from(matches!(after(len + 1), b'+' | b'-'));
        let exponent = run(&rest[(len + 1 + sign).min(rest.len())..], |b| b.is_ascii_digit());
        if exponent > 0 {
            return len + 1 + sign + exponent;
        }
    }
    if matches!(after(len), b'U' | b'u') { len + 1 } else { len }
}
