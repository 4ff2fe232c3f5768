//! The source lines that kernels carry.

#[path = "../../build/src/lines.rs"]
mod source_lines;

use std::collections::BTreeSet;
use std::path::Path;

use libtest_mimic::{Failed, Trial};

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
\t.reg .b32 \t%r<3>;
\t//@maxntid 512
\t.loc\t2 4 9 // 1:10
\tmov.b32 %r1, 1;
$L__BB0_1:
\t.loc\t2 7 1 // 1:10
\t{ .reg .b32 t; mov.b32 t, %r1; }
\tadd.s32 \t%r1, %r1, 1;
\t@%p1 bra \t$L__BB0_1;
\t.loc\t2 4 9 // 1:12
\tret;
}
\t.file\t1 \"device/src/a.rs\"
\t.file\t2 \"device/src/gpu.rs\"
";

/// Of what the compiler says, what is worth its bytes is left.
pub(crate) fn self_test() -> Trial {
    Trial::test("lines are made short", || {
        let short = source_lines::compact(VERBOSE);
        if short == SHORT { Ok(()) } else { Err(Failed::from(short)) }
    })
}

/// Every file named is one of the device source, and no line is beyond its end; a kernel has many lines.
pub(crate) fn check(text: &str) -> Result<(), String> {
    let mut lengths = vec![0];
    for (i, file) in text.lines().filter_map(|l| l.trim().strip_prefix(".file\t")).enumerate() {
        let name = file.split('"').nth(1).unwrap_or_default();
        if file.split(' ').next() != Some(&(i + 1).to_string()) || !name.starts_with("device/src/")
        {
            return Err(format!(".file {file}"));
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let source = std::fs::read_to_string(&path).map_err(|e| format!("{name}: {e}"))?;
        lengths.push(source.lines().count());
    }
    let mut places = BTreeSet::new();
    for loc in text.lines().filter_map(|l| l.trim().strip_prefix(".loc\t")) {
        let (own, calls) = loc.split_once(" // ").unwrap_or((loc, ""));
        let mut own = own.split(' ');
        let first = (own.next(), own.next());
        let calls = calls.split(' ').filter_map(|call| call.split_once(':'));
        for (file, line) in calls.map(|(f, l)| (Some(f), Some(l))).chain([first]) {
            let number = |n: Option<&str>| n.and_then(|n| n.parse::<usize>().ok());
            let (Some(file), Some(line)) = (number(file), number(line)) else {
                return Err(format!(".loc {loc}"));
            };
            if lengths.get(file).is_none_or(|&length| line > length) {
                return Err(format!(".loc {loc}: there is no such line"));
            }
            places.insert((file, line));
        }
    }
    if places.len() < 100 {
        return Err(format!("names {} source lines", places.len()));
    }
    Ok(())
}
