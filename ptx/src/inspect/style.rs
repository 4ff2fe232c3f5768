//! The parts of a text, by what they are: for who colours them.

use crate::syntax::{SyntaxError, TokenKind, Word, tokens};

/// What a piece of text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Style {
    /// Blanks and signs.
    Plain,
    /// A comment.
    Comment,
    /// `.reg`, `.visible`.
    Directive,
    /// An opcode that touches memory, with its modifiers.
    Memory,
    /// An opcode that orders or waits: fences, barriers, votes.
    Sync,
    /// An opcode that goes elsewhere.
    Control,
    /// Any other opcode.
    Opcode,
    /// `.global`, `.u32`: of an instruction.
    Modifier,
    /// `.volatile`, `.acquire`, `.gpu`: how an access is ordered.
    Order,
    /// `%r1`.
    Register,
    /// `%tid.x`: it has a dot, or a name of its own.
    Special,
    /// A label, variable or function.
    Name,
    /// A number.
    Number,
    /// `"..."`
    Text,
}

/// The text in pieces, none left out.
///
/// # Errors
/// As [`tokens`].
pub fn styled(source: &str) -> Result<Vec<(Style, Word<'_>)>, SyntaxError> {
    let all = tokens(source)?;
    let mut pieces: Vec<(Style, Word<'_>)> = Vec::with_capacity(all.len());
    let mut first = true; // Nothing of a statement has been yet.
    let mut guard = false;
    let mut instruction = false;
    for token in &all {
        let text = token.word.text;
        let style = match token.kind {
            TokenKind::Blank => {
                // What has no semicolon ends with its line.
                first |= !instruction && text.contains('\n');
                Style::Plain
            }
            TokenKind::Comment => Style::Comment,
            TokenKind::Text => Style::Text,
            TokenKind::Number => Style::Number,
            TokenKind::Dot if instruction && is_order(text) => Style::Order,
            TokenKind::Dot if instruction => Style::Modifier,
            TokenKind::Dot => {
                first = false;
                match pieces.last() {
                    Some((Style::Register, _)) => Style::Special,
                    _ => Style::Directive,
                }
            }
            TokenKind::Name if text.starts_with('%') => {
                if guard {
                    (guard, first) = (false, true);
                }
                if is_special(text) { Style::Special } else { Style::Register }
            }
            TokenKind::Name if first && !text.starts_with('$') => {
                (first, instruction) = (false, true);
                opcode(text)
            }
            TokenKind::Name => Style::Name,
            TokenKind::Sign => {
                match text {
                    "@" => guard = true,
                    ":" => {
                        // What looked like an opcode was a label.
                        if let Some(label) = pieces.iter_mut().rfind(|(s, _)| *s != Style::Plain) {
                            label.0 = Style::Name;
                        }
                        (first, instruction) = (true, false);
                    }
                    ";" => (first, instruction) = (true, false),
                    // Braces within an instruction are a vector's.
                    "{" | "}" if !instruction => first = true,
                    _ => {}
                }
                Style::Plain
            }
        };
        pieces.push((style, token.word));
    }
    Ok(pieces)
}

fn opcode(name: &str) -> Style {
    match name {
        "ld" | "ldu" | "st" | "atom" | "red" | "cp" | "multimem" | "ldmatrix" | "stmatrix"
        | "prefetch" | "prefetchu" => Style::Memory,
        "bar" | "barrier" | "membar" | "fence" | "mbarrier" | "shfl" | "vote" | "match"
        | "redux" | "elect" | "activemask" => Style::Sync,
        "bra" | "brx" | "call" | "ret" | "exit" | "trap" => Style::Control,
        _ => Style::Opcode,
    }
}

fn is_order(modifier: &str) -> bool {
    const ORDERS: [&str; 12] = [
        ".weak",
        ".volatile",
        ".relaxed",
        ".acquire",
        ".release",
        ".acq_rel",
        ".sc",
        ".mmio",
        ".cta",
        ".cluster",
        ".gpu",
        ".sys",
    ];
    ORDERS.contains(&modifier)
}

/// Special registers that have no dot in their names (chapter 10).
fn is_special(name: &str) -> bool {
    const NAMES: [&str; 12] = [
        "%tid", "%ntid", "%ctaid", "%nctaid", "%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid",
        "%gridid", "%clock", "%clock64",
    ];
    NAMES.contains(&name) || name.starts_with("%lanemask_") || name.starts_with("%globaltimer")
}
