//! What is wrong with a text, and where.

use std::fmt;

/// A place in a text, both counted from 1; columns are characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Line.
    pub line: u32,
    /// Column.
    pub column: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// The place of byte `at` of `source`; the end when it lies beyond.
#[must_use]
pub fn position(source: &str, at: u32) -> Position {
    let bytes = source.as_bytes();
    let before = &bytes[..(at as usize).min(bytes.len())];
    let line = before.iter().filter(|&&b| b == b'\n').count() + 1;
    let start = before.iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
    // Bytes that start a character.
    let column = before[start..].iter().filter(|&&b| b & 0xc0 != 0x80).count() + 1;
    Position { line: clamp(line), column: clamp(column) }
}

/// The whole line that byte `at` stands in, without its end.
#[must_use]
pub fn line_of(source: &str, at: u32) -> &str {
    let at = (at as usize).min(source.len());
    let bytes = source.as_bytes();
    let start = bytes[..at].iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
    let end = bytes[at..].iter().position(|&b| b == b'\n').map_or(source.len(), |i| at + i);
    source.get(start..end).unwrap_or_default().trim_end_matches('\r')
}

fn clamp(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// A text that is no PTX.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {at}: {what}\n  {line}")]
pub struct SyntaxError {
    /// Where.
    pub at: Position,
    /// What was found, and what should stand there.
    pub what: String,
    /// The line, without its indentation.
    pub line: String,
}

impl SyntaxError {
    /// An error at byte `at`.
    #[must_use]
    pub fn new(source: &str, at: u32, what: impl Into<String>) -> Self {
        let line: String = line_of(source, at).trim().chars().take(120).collect();
        SyntaxError { at: position(source, at), what: what.into(), line }
    }
}
