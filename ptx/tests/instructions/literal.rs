//! The operands of a line: integers, floating-point numbers, truth values.

use ferroccl_ptx::types::Type;

use crate::reference::Format;

/// The bits of an operand of this type. Hexadecimal is bits for any type.
pub(crate) fn parse(text: &str, ty: Type) -> Result<u64, String> {
    let bad = || format!("`{text}` is no {ty}");
    let mask = u64::MAX >> (64 - ty.bits());
    if ty == Type::Pred {
        return text.parse::<bool>().map(u64::from).map_err(|_| bad());
    }
    if let Some(digits) = text.strip_prefix("0x") {
        let bits = u64::from_str_radix(&digits.replace('_', ""), 16).map_err(|_| bad())?;
        return if bits & !mask == 0 { Ok(bits) } else { Err(bad()) };
    }
    if ty.is_float() {
        let format = Format::of(ty).ok_or_else(bad)?;
        let x: f64 = text.parse().map_err(|_| bad())?;
        return format.exactly(x).ok_or_else(|| format!("`{text}` is not exact in {ty}"));
    }
    let x: i128 = text.parse().map_err(|_| bad())?;
    let bits = x as u64 & mask;
    let back = if x < 0 { i128::from((bits | !mask) as i64) } else { i128::from(bits) };
    if back == x { Ok(bits) } else { Err(bad()) }
}
