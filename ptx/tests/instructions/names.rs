//! Names of instructions, right and wrong.

use ferroccl_ptx::types::Type;

use crate::Test;
use crate::rng::{Rng, seed};
use crate::run::{lane, operands, selected};

pub(crate) const TRIALS: &[(&str, Test)] = &[("any_name_is_selected_or_refused", names)];

/// Names put together at random: no panic, no value wider than its type, and what is refused says why.
fn names() -> Result<(), String> {
    const OPCODES: &str = "add sub mul mad fma div abs neg min max mul24 mad24 sad rem dp4a dp2a \
        addc subc madc rcp sqrt rsqrt sin cos lg2 ex2 tanh copysign testp setp set slct and or xor \
        not cnot lop3 shl shr shf popc clz bfind fns brev bfe bfi bmsk szext prmt mov cvta cvt bra";
    const MODIFIERS: &str = "rn rz rm rp rna rni rzi rmi rpi ftz sat relu satfinite approx full cc \
        lo hi wide l r clamp wrap shiftamt NaN xorsign abs eq ne lt ltu num nan and xor finite f4e \
        to global pack s4 shared bogus";
    let opcodes: Vec<&str> = OPCODES.split_whitespace().collect();
    let modifiers: Vec<&str> = MODIFIERS.split_whitespace().collect();
    let seed = seed() + 6;
    let mut rng = Rng(seed);
    let mut there = 0;
    for _ in 0..400_000 {
        let mut name = opcodes[rng.below(opcodes.len() as u64) as usize].to_string();
        for _ in 0..rng.below(3) {
            name = format!("{name}.{}", modifiers[rng.below(modifiers.len() as u64) as usize]);
        }
        for _ in 0..rng.below(3) {
            name += &Type::ALL[rng.below(Type::ALL.len() as u64) as usize].to_string();
        }
        match selected(&name) {
            Err(why) if why.contains('`') => {}
            Err(why) => return Err(format!("{name}: `{why}` names nothing")),
            Ok(alu) => {
                there += 1;
                let (from, _) = operands(&alu);
                let values: Vec<u64> = from.iter().map(|ty| rng.bits(ty.bits())).collect();
                lane(&alu, &values)
                    .map_err(|e| format!("{name} of {values:x?}: {e} (seed {seed})"))?;
            }
        }
    }
    if there > 5_000 { Ok(()) } else { Err(format!("only {there} of the names are there")) }
}
