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
//! Here the innermost line *of the project* is kept, with a number in a comment that says through which calls the line was
//! inlined. A line is written when it or its calls have changed. The project is the crate with the kernels and those it
//! depends on. Files are named as the crates are ([`DeviceCrate::shown_as`](crate::DeviceCrate::shown_as)), and those of
//! other crates not at all. A module's calls stand at its end, each once: its number, the file and line that it is in, and
//! the number of the call that this line was inlined through, if it was. A kernel has some hundred calls and thousands of
//! lines.
//!
//! ```text
//!     .loc 3 90 20 //12       line 90 of file 3, by call 12
//!     ...
//! //11 1:56                   call 11 is in line 56 of file 1
//! //12 4:88 11                call 12 is in line 88 of file 4, which was inlined through call 11
//! ```
//!
//! Code that is in a kernel many times and never in a hurry is told coarsely
//! ([`DeviceCrate::coarse`](crate::DeviceCrate::coarse)): of the lines that were inlined into a file's function, that of the
//! function is kept.
//!
//! All else that the compiler says in comments goes, and so do its labels for debuggers. A block's label is short, as no
//! other function sees it: `$L45` for `$L__BB3_45`. The instructions stay as they are, one by one.

use std::collections::HashMap;
use std::fmt::Write as _;

/// A place in the source, and the number of the call that it was inlined through, or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    file: usize,
    line: u32,
    column: u32,
    call: usize,
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

/// A call that was inlined: the file and the line that it is in, and the number of the call that this line was inlined
/// through, or 0.
type Call = (usize, u32, usize);

/// The numbers of calls, from 1. A call's number is larger than that of the one it was inlined through.
#[derive(Default)]
struct Calls {
    all: Vec<Call>,
    numbers: HashMap<Call, usize>,
}

impl Calls {
    fn number(&mut self, call: Call) -> usize {
        *self.numbers.entry(call).or_insert_with(|| {
            self.all.push(call);
            self.all.len()
        })
    }
}

/// The text of a module with its lines made short, see above. The names of the project's files begin with one of
/// `project`, directories. Files of `coarse` are told coarsely.
pub(crate) fn compact(asm: &str, project: &[&str], coarse: &[String]) -> String {
    let mut out = String::with_capacity(asm.len() / 3);
    let (mut files, mut calls) = (Files::default(), Calls::default());
    let mut written: Option<Place> = None;
    let mut next: Option<Place> = None;
    for line in asm.lines() {
        let text = line.trim();
        if text.split_whitespace().next() == Some(".loc") {
            // A line of number 0 is nobody's: what is there goes with what was before.
            next = place(text, (project, coarse), &mut files, &mut calls).or(next);
            continue;
        }
        if text.starts_with(".file") || is_debug_label(text) || is_empty_section(text) {
            continue;
        }
        let Some(kept) = without_comment(line) else { continue };
        if is_instruction(kept.trim())
            && let Some(place) = next.take()
            && written
                .is_none_or(|w| (w.file, w.line, w.call) != (place.file, place.line, place.call))
        {
            let _ = write!(out, "\t.loc\t{} {} {}", place.file, place.line, place.column);
            if place.call > 0 {
                let _ = write!(out, " //{}", place.call);
            }
            out.push('\n');
            written = Some(place);
        }
        if text.starts_with('}') {
            (written, next) = (None, None); // a function ends
        }
        push_short(&mut out, kept);
        out.push('\n');
    }
    for (i, name) in files.0.iter().enumerate() {
        let _ = writeln!(out, "\t.file\t{} \"{name}\"", i + 1);
    }
    for (i, (file, line, by)) in calls.all.iter().enumerate() {
        let _ = write!(out, "//{} {file}:{line}", i + 1);
        if *by > 0 {
            let _ = write!(out, " {by}");
        }
        out.push('\n');
    }
    out
}

/// What a verbose `.loc` says; `None` where it has no line of the project.
fn place<'a>(
    loc: &'a str,
    (project, coarse): (&[&str], &[String]),
    files: &mut Files<'a>,
    calls: &mut Calls,
) -> Option<Place> {
    let (_, chain) = loc.split_once("//")?;
    // The outermost first.
    let frames = chain.split(" @[ ").collect::<Vec<_>>().into_iter().rev().filter_map(|frame| {
        let frame = frame.trim().trim_end_matches([']', ' ']);
        let (rest, column) = frame.rsplit_once(':')?;
        let (name, line) = rest.rsplit_once(':')?;
        let place = (name, line.parse::<u32>().ok()?, column.parse::<u32>().ok()?);
        (within(name, project) && place.1 > 0).then_some(place)
    });
    let (mut place, mut enough) = (None, false);
    for (name, line, column) in frames {
        if enough {
            break;
        }
        let call = place.map_or(0, |o: Place| calls.number((o.file, o.line, o.call)));
        place = Some(Place { file: files.number(name), line, column, call });
        enough = coarse.iter().any(|file| file == name);
    }
    place
}

/// Appends a line with short labels, and one blank where the compiler lines operands up by two.
fn push_short(out: &mut String, line: &str) {
    const LABEL: &str = "$L__BB";
    let mut rest = line;
    while let Some(at) = rest.find([' ', '$']) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let number = from.strip_prefix(LABEL).and_then(|label| label.split_once('_'));
        rest = match number {
            Some((function, rest)) if function.bytes().all(|b| b.is_ascii_digit()) => {
                out.push_str("$L");
                rest
            }
            _ if from.starts_with(" \t") => &from[1..],
            _ => {
                out.push_str(&from[..1]);
                &from[1..]
            }
        };
    }
    out.push_str(rest);
}

/// Whether a file is in one of some directories.
fn within(name: &str, directories: &[&str]) -> bool {
    let mut rests = directories.iter().filter_map(|dir| name.strip_prefix(dir));
    rests.any(|rest| rest.starts_with('/'))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What rustc says of a few instructions when it is verbose.
    const VERBOSE: &str = "\
\t// .globl\tk                          // -- Begin function k
.visible .entry k()                     // @k
{
\t.reg .b32 \t%r<3>;
$L__func_begin0:
\t.loc\t1 9 0                           // device/src/a.rs:9:0
\t.loc\t2 4 9                           // device/src/gpu.rs:4:9 @[ device/src/a.rs:10:5 ]
// %bb.0:
\t// begin inline asm
\t//@maxntid 512
\t// end inline asm
\tmov.b32 %r1, 1;
$L__tmp0:
\t.loc\t3 863 18                        // /rust/library/core/src/ptr.rs:863:18 @[ device/src/gpu.rs:7:1 @[ device/src/a.rs:10:5 ] ]
$L__BB0_1:                              // =>This Inner Loop Header: Depth=1
\t{ .reg .b32 t; mov.b32 t, %r1; }
\t.loc\t3 864 18                        // /rust/library/core/src/ptr.rs:864:18 @[ device/src/gpu.rs:7:3 @[ device/src/a.rs:10:5 ] ]
\tadd.s32 \t%r1, %r1, 1;
\t.loc\t2 0 9                           // device/src/gpu.rs:0:9
\t@%p1 bra \t$L__BB0_1;
\t.loc\t2 4 9                           // device/src/gpu.rs:4:9 @[ device/src/a.rs:12:5 ]
\tret;
$L__tmp1:
$L__func_end0:
                                        // -- End function
}
\t.file\t1 \"/home/somebody/device/src/a.rs\"
\t.section\t.debug_macinfo\t{\t}
";

    const SHORT: &str = "\
.visible .entry k()
{
\t.reg .b32\t%r<3>;
\t//@maxntid 512
\t.loc\t2 4 9 //1
\tmov.b32 %r1, 1;
$L1:
\t.loc\t2 7 1 //1
\t{ .reg .b32 t; mov.b32 t, %r1; }
\tadd.s32\t%r1, %r1, 1;
\t@%p1 bra\t$L1;
\t.loc\t2 4 9 //2
\tret;
}
\t.file\t1 \"device/src/a.rs\"
\t.file\t2 \"device/src/gpu.rs\"
//1 1:10
//2 1:12
";

    #[test]
    fn of_what_the_compiler_says_what_is_worth_its_bytes_is_left() {
        assert_eq!(compact(VERBOSE, &["device/src"], &[]), SHORT);
    }

    #[test]
    fn a_call_stands_once_however_many_lines_came_through_it() {
        let asm = "{\n\
            \t.loc\t7 1 2 // d/x.rs:1:2 @[ d/y.rs:3:4 @[ d/z.rs:8:1 ] ]\n\tret;\n\
            \t.loc\t7 2 2 // d/x.rs:2:2 @[ d/y.rs:3:9 @[ d/z.rs:8:1 ] ]\n\tret;\n\
            \t.loc\t7 2 2 // d/x.rs:2:2 @[ d/y.rs:3:4 @[ d/z.rs:9:1 ] ]\n\tret;\n}\n";
        let short = "{\n\t.loc\t3 1 2 //2\n\tret;\n\t.loc\t3 2 2 //2\n\tret;\n\t.loc\t3 2 2 //4\n\tret;\n}\n\
            \t.file\t1 \"d/z.rs\"\n\t.file\t2 \"d/y.rs\"\n\t.file\t3 \"d/x.rs\"\n\
            //1 1:8\n//2 2:3 1\n//3 1:9\n//4 2:3 3\n";
        assert_eq!(compact(asm, &["d"], &[]), short);
    }

    #[test]
    fn of_a_file_that_is_told_coarsely_the_outermost_line_is_kept() {
        let asm = "{\n\
            \t.loc\t7 1 2 // d/x.rs:1:2 @[ d/slow.rs:3:4 @[ d/slow.rs:5:1 @[ d/z.rs:8:1 ] ] ]\n\tret;\n\
            \t.loc\t7 2 2 // d/slow.rs:5:2 @[ d/z.rs:8:1 ]\n\tret;\n}\n";
        let short = "{\n\t.loc\t2 5 1 //1\n\tret;\n\tret;\n}\n\
            \t.file\t1 \"d/z.rs\"\n\t.file\t2 \"d/slow.rs\"\n//1 1:8\n";
        assert_eq!(compact(asm, &["d"], &["d/slow.rs".into()]), short);
    }

    /// Which arrays that are indexed by what is only known at run time need.
    #[test]
    fn local_memory_stays_declared() {
        let asm = "{\n\t.local .align 8 .b8 \t__local_depot0[80];\n\t.loc\t1 2 3\n\tret;\n}\n";
        assert_eq!(
            compact(asm, &[], &[]),
            "{\n\t.local .align 8 .b8\t__local_depot0[80];\n\tret;\n}\n"
        );
    }

    #[test]
    fn lines_of_all_crates_at_hand_are_kept_and_no_others() {
        let asm = "{\n\t.loc\t7 1 2 // a/srcs/x.rs:1:2 @[ a/src/x.rs:3:4 @[ b/src/lib.rs:8:1 ] ]\n\tret;\n}\n";
        let both = "{\n\t.loc\t2 3 4 //1\n\tret;\n}\n\t.file\t1 \"b/src/lib.rs\"\n\t.file\t2 \"a/src/x.rs\"\n//1 1:8\n";
        assert_eq!(compact(asm, &["b/src", "a/src"], &[]), both);
        let one = "{\n\t.loc\t1 8 1\n\tret;\n}\n\t.file\t1 \"b/src/lib.rs\"\n";
        assert_eq!(compact(asm, &["b/src"], &[]), one);
    }
}
