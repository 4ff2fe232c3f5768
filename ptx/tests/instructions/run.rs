//! One instruction run on a warp, and the files of known values.

use std::fmt::Write;
use std::path::Path;

use ferroccl_ptx::emu::alu::{Alu, Combine, Kind, Lanes, select};
use ferroccl_ptx::types::Type;

use crate::emulated::{self, Sources};
use crate::literal;
use crate::rng::Rng;

/// An instruction's name in parts.
pub(crate) fn name(text: &str) -> (&str, Vec<&str>) {
    let mut parts = text.split('.');
    (parts.next().unwrap_or_default(), parts.collect())
}

/// The arithmetic of a name.
pub(crate) fn selected(text: &str) -> Result<Alu, String> {
    let (opcode, modifiers) = name(text);
    select(opcode, &modifiers).map_err(|e| e.to_string())
}

/// The types of an instruction's operands, as the lines write them: a predicate to combine with or the carry flag comes
/// last.
pub(crate) fn operands(alu: &Alu) -> (Vec<Type>, Vec<Type>) {
    let mut from = alu.from[..alu.sources].to_vec();
    let mut to = vec![alu.to];
    match alu.kind {
        Kind::Carry(_) => {
            from.push(Type::Pred);
            to.push(Type::Pred);
        }
        Kind::Compare(_, combine) if combine != Combine::No => from.push(Type::Pred),
        Kind::Compare(..) | Kind::Value(_) => {}
    }
    (from, to)
}

/// How an instruction is run without a kernel: on 32 lanes of each source, as [`operands`] lists them, giving those of
/// the destinations. This is the only function that knows of `alu`'s shape.
pub(crate) fn warp(alu: &Alu, sources: &[Lanes]) -> Vec<Lanes> {
    // Whatever was in the destination must not matter, nor what stands in sources that are none.
    let mut d = [0xdead_beef_dead_beef; 32];
    let none = [0xbad0_bad0_bad0_bad0; 32];
    let source = |i: usize| if i < alu.sources { &sources[i] } else { &none };
    let operands = [source(0), source(1), source(2), source(3)];
    let mask =
        |lanes: &Lanes| (0..32).fold(0u32, |mask, i| mask | u32::from(lanes[i] & 1 != 0) << i);
    let unmask = |mask: u32| std::array::from_fn(|i| u64::from(mask >> i & 1));
    match alu.kind {
        Kind::Value(f) => {
            f(&mut d, operands);
            vec![d]
        }
        Kind::Carry(f) => {
            let mut flags = mask(&sources[alu.sources]);
            f(&mut d, operands, &mut flags);
            vec![d, unmask(flags)]
        }
        Kind::Compare(f, combine) => {
            let truths = f(operands);
            let with = sources.get(alu.sources).map_or(0, mask);
            let truths = match combine {
                Combine::No => truths,
                Combine::And => truths & with,
                Combine::Or => truths | with,
                Combine::Xor => truths ^ with,
            };
            vec![std::array::from_fn(|i| if truths >> i & 1 != 0 { alu.truth() } else { 0 })]
        }
    }
}

/// Operands of a warp: these in one lane, random ones in the others.
fn among_others(alu: &Alu, values: &[u64], at: usize, rng: &mut Rng) -> Vec<Lanes> {
    let (from, _) = operands(alu);
    let lanes = from.iter().zip(values).map(|(ty, &value)| {
        std::array::from_fn(|i| if i == at { value } else { rng.bits(ty.bits()) })
    });
    lanes.collect()
}

/// The results of one lane's operands, whichever lane it is and whatever the others hold.
pub(crate) fn lane(alu: &Alu, values: &[u64]) -> Result<Vec<u64>, String> {
    let (_, to) = operands(alu);
    let mut rng = Rng(values.iter().fold(0, |sum, v| sum.rotate_left(7) ^ v));
    let mut results: Option<Vec<u64>> = None;
    for at in [0, 1, 15, 16, 31] {
        let sources = among_others(alu, values, at, &mut rng);
        let out = warp(alu, &sources);
        for (lanes, ty) in out.iter().zip(&to) {
            if let Some(wide) = lanes.iter().find(|&&l| l & !(u64::MAX >> (64 - ty.bits())) != 0) {
                return Err(format!("{wide:#x} is not zero-extended from {ty}"));
            }
        }
        let here: Vec<u64> = out.iter().map(|lanes| lanes[at]).collect();
        match &results {
            None => results = Some(here),
            Some(before) if *before == here => {}
            Some(before) => return Err(format!("lane 0 gives {before:#x?}, lane {at} {here:#x?}")),
        }
    }
    results.ok_or_else(|| "no lane was run".to_string())
}

/// The results of a lane in a kernel of the emulator, its operands in registers and once more written as constants.
fn emulated(name: &str, alu: &Alu, values: &[u64]) -> Result<[Vec<u64>; 2], String> {
    let mut rng = Rng(7);
    let mut all = [Vec::new(), Vec::new()];
    for (from, results) in [Sources::Registers, Sources::Immediates].into_iter().zip(&mut all) {
        let sources = among_others(alu, values, 0, &mut rng);
        let out = emulated::warp(name, alu, &sources, from)?;
        *results = out.iter().map(|lanes| lanes[0]).collect();
    }
    Ok(all)
}

/// Runs every line of a file.
pub(crate) fn file(path: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut report = String::new();
    let mut lines = 0;
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        let Some(case) = line.strip_prefix("// run:") else {
            if !line.is_empty() && !line.starts_with("//") {
                let _ = writeln!(report, "{}:{}: neither comment nor case", path.display(), i + 1);
            }
            continue;
        };
        lines += 1;
        if let Err(why) = self::case(case.trim()) {
            let _ = writeln!(report, "{}:{}: {case}: {why}", path.display(), i + 1);
        }
    }
    if lines == 0 {
        report.push_str("no case in the file");
    }
    if report.is_empty() { Ok(()) } else { Err(report) }
}

/// Runs `NAME SOURCE, SOURCE = RESULT, RESULT`, or checks that `NAME = unsupported MODIFIER`.
fn case(text: &str) -> Result<(), String> {
    let (left, right) = text.split_once(" = ").ok_or("no ` = `")?;
    let (name, sources) = left.split_once(' ').unwrap_or((left, ""));
    if let Some(what) = right.trim().strip_prefix("unsupported") {
        return match selected(name) {
            Err(e) if e.contains(&format!("`{}`", what.trim())) => Ok(()),
            Err(e) => Err(format!("the error is: {e}")),
            Ok(_) => Err("it is there".to_string()),
        };
    }
    let alu = selected(name)?;
    let (from, to) = operands(&alu);
    let sources = values(sources, &from)?;
    let expected = values(right, &to)?;
    let got = lane(&alu, &sources)?;
    let same = |got: &[u64]| {
        got.iter().zip(&expected).zip(&to).all(|((&got, &expected), ty)| match ty {
            Type::Pred => (got != 0) == (expected != 0),
            _ => got == expected,
        })
    };
    if !same(&got) {
        return Err(format!("got {got:#x?}"));
    }
    let [registers, immediates] = emulated(name, &alu, &sources)?;
    if !same(&registers) {
        return Err(format!("got {registers:#x?} in a kernel"));
    }
    if !same(&immediates) {
        return Err(format!("got {immediates:#x?} in a kernel, with constants"));
    }
    Ok(())
}

fn values(text: &str, types: &[Type]) -> Result<Vec<u64>, String> {
    let parts: Vec<&str> = text.split(',').map(str::trim).filter(|p| !p.is_empty()).collect();
    if parts.len() != types.len() {
        return Err(format!("{} operands for the types {types:?}", parts.len()));
    }
    parts.iter().zip(types).map(|(part, &ty)| literal::parse(part, ty)).collect()
}
