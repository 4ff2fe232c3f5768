//! Source lines in PTX: of what the compiler says on them, what is worth its bytes.
//!
//! LLVM 22 writes a `.loc` for each change of line or column, and almost all of them name the innermost of a
//! dozen inlined functions: a wrapper of an instruction, or `core`'s `ptr::add`. The way there it tells only
//! in comments, when asked to be verbose; `inlined_at`, with which PTX could say it, it does not know, and
//! that would ask for PTX 7.2 (CUDA 11.2) of drivers that now do with 7.0 (CUDA 11.0):
//!
//! ```text
//!     .loc 5 863 18       // /.../core/src/ptr/const_ptr.rs:863:18 @[ device/src/prims/ll.rs:90:20 @[ ... ] ]
//! ```
//!
//! Here the innermost line *of the project* is kept, with the calls that led to it in a comment, the nearest
//! first; a line is written when it or the way to it has changed. Files are named relative to the project,
//! and those outside of it not at all:
//!
//! ```text
//!     .loc 3 90 20 // 4:88 4:41 1:56
//! ```
//!
//! All else that the compiler says in comments goes, and so do its labels for debuggers. The instructions
//! stay as they are, one by one.

use std::fmt::Write as _;

/// What the names of the project's files begin with, as the compiler is given them.
const PROJECT: &str = "device/";

/// A place in the source, and the calls it was inlined through, the nearest first.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    file: usize,
    line: u32,
    column: u32,
    calls: Vec<(usize, u32)>,
}

/// The numbers that `.loc` has for files.
#[derive(Default)]
struct Files<'a>(Vec<&'a str>);

impl<'a> Files<'a> {
    fn number(&mut self, name: &'a str) -> usize {
        let known = self.0.iter().position(|known| *known == name);
        known.unwrap_or_else(|| {
            self.0.push(name);
            self.0.len() - 1
        }) + 1
    }
}

/// The text of a module with its lines made short, see above.
pub(crate) fn compact(asm: &str) -> String {
    let mut out = String::with_capacity(asm.len() / 3);
    let mut files = Files::default();
    let mut written: Option<Place> = None;
    let mut next: Option<Place> = None;
    for line in asm.lines() {
        let text = line.trim();
        if text.starts_with(".loc") {
            // A line of number 0 is nobody's: what is there goes with what was before.
            next = place(text, &mut files).or(next);
            continue;
        }
        if text.starts_with(".file") || is_debug_label(text) || is_empty_section(text) {
            continue;
        }
        let Some(kept) = without_comment(line) else { continue };
        if is_instruction(kept.trim())
            && let Some(place) = next.take()
            && written.as_ref().is_none_or(|w| {
                (w.file, w.line, &w.calls) != (place.file, place.line, &place.calls)
            })
        {
            let _ = write!(out, "\t.loc\t{} {} {}", place.file, place.line, place.column);
            for (i, (file, line)) in place.calls.iter().enumerate() {
                let _ = write!(out, "{}{file}:{line}", if i == 0 { " // " } else { " " });
            }
            out.push('\n');
            written = Some(place);
        }
        if text.starts_with('}') {
            (written, next) = (None, None); // a function ends
        }
        out.push_str(kept);
        out.push('\n');
    }
    for (i, name) in files.0.iter().enumerate() {
        let _ = writeln!(out, "\t.file\t{} \"{name}\"", i + 1);
    }
    out
}

/// What a verbose `.loc` says; `None` where it has no line of the project.
fn place<'a>(loc: &'a str, files: &mut Files<'a>) -> Option<Place> {
    let (_, chain) = loc.split_once("//")?;
    let mut frames = chain.split(" @[ ").filter_map(|frame| {
        let frame = frame.trim().trim_end_matches([']', ' ']);
        let (rest, column) = frame.rsplit_once(':')?;
        let (name, line) = rest.rsplit_once(':')?;
        let place = (name, line.parse::<u32>().ok()?, column.parse::<u32>().ok()?);
        (name.starts_with(PROJECT) && place.1 > 0).then_some(place)
    });
    let (name, line, column) = frames.next()?;
    let file = files.number(name);
    let calls = frames.map(|(name, line, _)| (files.number(name), line)).collect();
    Some(Place { file, line, column, calls })
}

/// Whether a line has an instruction: it is no label, directive or brace alone.
fn is_instruction(text: &str) -> bool {
    match text.bytes().next() {
        Some(b'@') => true,
        Some(b'{') => text.len() > 1, // { .reg .b32 t; mov.b64 {t, %r1}, %rd1; }
        Some(first) => first.is_ascii_alphabetic() && !text.ends_with(':'),
        None => false,
    }
}

/// `$L__tmp7:`, `$L__func_begin0:`: for sections that are not there.
fn is_debug_label(text: &str) -> bool {
    let label = text.strip_prefix("$L__").and_then(|rest| rest.split_once(':'));
    label.is_some_and(|(name, _)| {
        ["tmp", "func_begin", "func_end"].iter().any(|kind| {
            name.strip_prefix(kind).is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
        })
    })
}

/// `.section .debug_macinfo { }`
fn is_empty_section(text: &str) -> bool {
    text.starts_with(".section") && text.ends_with('}')
}

/// A line without its comment; `None` where it is nothing else. What the device source says to `finish`
/// (`//@`) stays.
fn without_comment(line: &str) -> Option<&str> {
    let Some(at) = line.find("//").filter(|&at| !line[at..].starts_with("//@")) else {
        return Some(line);
    };
    let before = line[..at].trim_end();
    (!before.is_empty()).then_some(before)
}
