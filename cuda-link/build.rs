//! Writes the functions of `symbols.txt` as assembly: each jumps to where its entry of a table says. An entry begins as the
//! address of code that has the function looked up (`{resolve}` of `src/lib.rs`), with the call's arguments set aside.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=symbols.txt");
    let symbols = fs::read_to_string("symbols.txt")?;
    let symbols: Vec<&str> = symbols.split_whitespace().collect();
    let machine = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let (entry, resolve): (fn(usize, &str) -> String, _) = match machine.as_str() {
        "x86_64" => (x86_64, X86_64_RESOLVE),
        "aarch64" => (aarch64, AARCH64_RESOLVE),
        // `src/lib.rs` says so in a better place.
        _ => (|_, _| String::new(), ""),
    };
    let mut text = format!(".text\n{resolve}");
    // A table that the linker may relocate, and that is written to at run time.
    let mut table = String::from(".data\n.balign 8\n.globl ferroccl_cuda_link_table\n");
    table.push_str(".hidden ferroccl_cuda_link_table\nferroccl_cuda_link_table:\n");
    let mut names = String::from("[\n");
    for (i, symbol) in symbols.iter().enumerate() {
        text.push_str(&entry(i, symbol));
        let _ = writeln!(table, " .quad .Lferroccl_first_{i}");
        let _ = writeln!(names, "    \"{symbol}\",");
    }
    names.push(']');
    // Cargo sets OUT_DIR.
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("trampolines.s"), format!("{text}{table}.text\n"))?;
    fs::write(out.join("names.rs"), names)
}

/// One function. Hidden: the program's own calls come here, and what is opened at run time, the driver first of all, does
/// not see them.
fn x86_64(i: usize, symbol: &str) -> String {
    format!(
        "\
.globl {symbol}
.hidden {symbol}
.type {symbol},@function
{symbol}:
 jmp *ferroccl_cuda_link_table+{at}(%rip)
.Lferroccl_first_{i}:
 pushq ${i}
 jmp .Lferroccl_resolve
.size {symbol}, .-{symbol}
",
        at = 8 * i
    )
}

/// The System V calling convention: arguments are in six integer registers and eight vector registers, and in %al the number
/// of the latter; the others are on the stack, where they stay. The pushes leave the stack on a multiple of 16:
/// return address, number, seven registers and 136 bytes.
const X86_64_RESOLVE: &str = "\
.Lferroccl_resolve:
 pushq %rdi
 pushq %rsi
 pushq %rdx
 pushq %rcx
 pushq %r8
 pushq %r9
 pushq %rax
 movq 56(%rsp), %rdi
 subq $136, %rsp
 movups %xmm0, (%rsp)
 movups %xmm1, 16(%rsp)
 movups %xmm2, 32(%rsp)
 movups %xmm3, 48(%rsp)
 movups %xmm4, 64(%rsp)
 movups %xmm5, 80(%rsp)
 movups %xmm6, 96(%rsp)
 movups %xmm7, 112(%rsp)
 callq {resolve}
 movq %rax, %r11
 movups (%rsp), %xmm0
 movups 16(%rsp), %xmm1
 movups 32(%rsp), %xmm2
 movups 48(%rsp), %xmm3
 movups 64(%rsp), %xmm4
 movups 80(%rsp), %xmm5
 movups 96(%rsp), %xmm6
 movups 112(%rsp), %xmm7
 addq $136, %rsp
 popq %rax
 popq %r9
 popq %r8
 popq %rcx
 popq %rdx
 popq %rsi
 popq %rdi
 addq $8, %rsp
 jmp *%r11
";

/// One function; x16 and x17 are there for this (`IP0`, `IP1`).
fn aarch64(i: usize, symbol: &str) -> String {
    format!(
        "\
.globl {symbol}
.hidden {symbol}
.type {symbol},%function
{symbol}:
 adrp x16, ferroccl_cuda_link_table+{at}
 ldr x16, [x16, :lo12:ferroccl_cuda_link_table+{at}]
 br x16
.Lferroccl_first_{i}:
 mov w17, #{i}
 b .Lferroccl_resolve
.size {symbol}, .-{symbol}
",
        at = 8 * i
    )
}

/// AAPCS64: arguments are in x0 to x7 and v0 to v7, the place of a result in x8; the others are on the stack, where they stay.
const AARCH64_RESOLVE: &str = "\
.Lferroccl_resolve:
 stp x29, x30, [sp, #-224]!
 mov x29, sp
 stp x0, x1, [sp, #16]
 stp x2, x3, [sp, #32]
 stp x4, x5, [sp, #48]
 stp x6, x7, [sp, #64]
 str x8, [sp, #80]
 stp q0, q1, [sp, #96]
 stp q2, q3, [sp, #128]
 stp q4, q5, [sp, #160]
 stp q6, q7, [sp, #192]
 mov w0, w17
 bl {resolve}
 mov x16, x0
 ldp x0, x1, [sp, #16]
 ldp x2, x3, [sp, #32]
 ldp x4, x5, [sp, #48]
 ldp x6, x7, [sp, #64]
 ldr x8, [sp, #80]
 ldp q0, q1, [sp, #96]
 ldp q2, q3, [sp, #128]
 ldp q4, q5, [sp, #160]
 ldp q6, q7, [sp, #192]
 ldp x29, x30, [sp], #224
 br x16
";
