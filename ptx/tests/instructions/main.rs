//! Instruction by instruction: what `emu::alu` computes against known values and independent references.
//!
//! * `*.run` files hold known values, a line each: `// run: add.s32 0x7fffffff, 1 = 0x80000000`. [`run`] runs
//!   it by itself and in a kernel of the emulator ([`emulated`]); each file is a trial and reports every wrong line.
//! * The other modules compare with references that share nothing with the code: exact arithmetic in big integers
//!   ([`reference`]), all values of a narrow format, and the manual's pseudo-code followed bit by bit.

/// What a trial runs.
type Test = fn() -> Result<(), String>;

mod bits;
mod conversions;
mod emulated;
mod extrema;
mod integers;
mod literal;
mod names;
mod reference;
mod rng;
mod rounding;
mod run;

use std::path::PathBuf;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    let arguments = Arguments::from_args();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/instructions");
    let mut trials = files(&folder);
    trials.push(Trial::test("every_file_is_read", move || {
        let count = files(&folder).len();
        if count >= 6 { Ok(()) } else { Err(Failed::from(format!("{count} files in {folder:?}"))) }
    }));
    for (name, test) in [
        rounding::TRIALS,
        integers::TRIALS,
        bits::TRIALS,
        conversions::TRIALS,
        extrema::TRIALS,
        names::TRIALS,
    ]
    .concat()
    {
        trials.push(Trial::test(name, move || Ok(test()?)));
    }
    libtest_mimic::run(&arguments, trials).exit();
}

/// A trial for each file of known values.
fn files(folder: &std::path::Path) -> Vec<Trial> {
    let entries = std::fs::read_dir(folder).expect("the folder of this test is there");
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "run"))
        .collect();
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            Trial::test(name.unwrap_or_default(), move || Ok(run::file(&path)?))
        })
        .collect()
}
