//! An instruction in a kernel of its own: operands loaded, the instruction, results stored, on a warp of the emulator.

use std::fmt::Write;
use std::sync::Arc;

use ferroccl_ptx::emu::alu::{Alu, Kind, Lanes};
use ferroccl_ptx::emu::{Launch, Lockstep, Machine, Options, Program};
use ferroccl_ptx::types::Type;

use crate::run::operands;

/// Where an instruction finds its sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sources {
    /// In registers, loaded from memory.
    Registers,
    /// In the instruction, as far as constants of their types are written so: those of lane 0.
    Immediates,
}

/// The bits of a register for a type: there are none of 8.
fn width(ty: Type) -> u32 {
    ty.bits().max(16)
}

/// A constant as PTX writes it, if there are constants of the type.
fn immediate(bits: u64, ty: Type) -> Option<String> {
    match ty {
        Type::F32 => Some(format!("0f{bits:08X}")),
        Type::F64 => Some(format!("0d{bits:016X}")),
        Type::Pred => None,
        ty if ty.is_float() || width(ty) != ty.bits() => None,
        _ => Some(format!("{bits:#x}")),
    }
}

/// The kernel: source `i` of thread `t` is word `32 i + t` of the buffer, and result `i` takes its place.
fn kernel(name: &str, alu: &Alu, sources: &[Lanes], from: Sources) -> String {
    let (sources_of, results_of) = operands(alu);
    let carry = matches!(alu.kind, Kind::Carry(_));
    let mut text = String::from(
        ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p) {\n\
         .reg .b64 %p, %t;\n.reg .b32 %tid, %one, %flag;\n.reg .pred %carry;\n",
    );
    let mut body = String::new();
    let mut arguments = Vec::new();
    for (i, &ty) in sources_of.iter().enumerate() {
        let bits = width(ty);
        let at = 256 * i;
        // A look-up table is a constant in any case.
        let constant = from == Sources::Immediates || name.starts_with("lop3") && i == 3;
        if constant && let Some(text) = immediate(sources[i][0], ty) {
            arguments.push(text);
            continue;
        }
        if ty == Type::Pred {
            let _ = writeln!(text, ".reg .b32 %w{i};\n.reg .pred %s{i};");
            let _ = writeln!(body, "ld.global.b32 %w{i}, [%p+{at}];\nsetp.ne.b32 %s{i}, %w{i}, 0;");
            if carry && i == alu.sources {
                // All ones plus one carries; zero plus one does not.
                body.push_str("selp.b32 %flag, 0xffffffff, 0, %s");
                let _ = writeln!(body, "{i};\nadd.cc.u32 %flag, %flag, 1;");
                continue;
            }
        } else {
            let _ = writeln!(text, ".reg .b{bits} %s{i};");
            let _ = writeln!(body, "ld.global.b{bits} %s{i}, [%p+{at}];");
        }
        arguments.push(format!("%s{i}"));
    }
    let to = results_of[0];
    let bits = width(to);
    let kind = if to == Type::Pred { "pred".to_string() } else { format!("b{bits}") };
    let _ = writeln!(text, ".reg .{kind} %d;");
    let _ = writeln!(body, "{name} %d, {};", arguments.join(", "));
    if carry {
        body.push_str("addc.u32 %flag, 0, 0;\nst.global.b32 [%p+256], %flag;\n");
    }
    if to == Type::Pred {
        body.push_str("selp.b32 %one, 1, 0, %d;\nst.global.b32 [%p], %one;\n");
    } else {
        let _ = writeln!(body, "st.global.b{bits} [%p], %d;");
    }
    text.push_str("ld.param.u64 %p, [p];\nmov.u32 %tid, %tid.x;\nmul.wide.u32 %t, %tid, 8;\n");
    text.push_str("add.s64 %p, %p, %t;\n");
    text + &body + "ret;\n}\n"
}

/// Runs the instruction on 32 threads. Bits beyond a result's type are cut off: an 8-bit result stands in 16.
pub(crate) fn warp(
    name: &str,
    alu: &Alu,
    sources: &[Lanes],
    from: Sources,
) -> Result<Vec<Lanes>, String> {
    let text = kernel(name, alu, sources, from);
    let program = Program::load(&text, "k").map_err(|e| format!("{e}\n{text}"))?;
    // The results, stored over the sources, are two at most; words of a thread's own alone are touched.
    let mut memory = vec![0u64; 32 * 8].into_boxed_slice();
    for (lanes, words) in sources.iter().zip(memory.chunks_exact_mut(32)) {
        words.copy_from_slice(lanes);
    }
    let machine = Machine::new();
    let address = memory.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: the memory outlives the mapping, which is dropped before it is looked at again.
    let mapping = unsafe { machine.map(address, 8 * memory.len(), "the operands") };
    let launch = Launch::new(&Arc::new(program), 1, 32, address.to_le_bytes().to_vec());
    let grid = machine.launch(launch).map_err(|e| e.to_string())?;
    let mut schedule = Lockstep::new(Options::plain());
    schedule.start(&grid);
    schedule.run().map_err(|fault| format!("{fault}\n{text}"))?;
    drop((schedule, grid, mapping));
    let (_, results_of) = operands(alu);
    let results = results_of.iter().enumerate().map(|(i, ty)| {
        let bits = if *ty == Type::Pred { 32 } else { ty.bits() };
        std::array::from_fn(|lane| {
            // SAFETY: memory of our own; volatile, as the kernel changed it behind the compiler's back.
            let word = unsafe { std::ptr::read_volatile(&raw const memory[32 * i + lane]) };
            word & u64::MAX >> (64 - bits)
        })
    });
    Ok(results.collect())
}
