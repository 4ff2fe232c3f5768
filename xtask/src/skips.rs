//! Tests that did not run, and why: they write it to a file, as what a passing test prints is not shown.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::{fs, io};

use crate::run::root;

/// The variable that names the file to the tests (`tests/support/skip.rs`); a line is a test and a reason, with a tab between.
pub(crate) const FILE: &str = "FERROCCL_SKIPPED";

pub(crate) fn path() -> PathBuf {
    root().join("target/skipped-tests.txt")
}

pub(crate) fn forget() -> Result<(), String> {
    match fs::remove_file(path()) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e.to_string()),
        _ => fs::create_dir_all(root().join("target")).map_err(|e| e.to_string()),
    }
}

pub(crate) fn tell() -> Result<(), String> {
    let Ok(text) = fs::read_to_string(path()) else { return Ok(()) };
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (test, why) in text.lines().filter_map(|line| line.split_once('\t')) {
        reasons.entry(why).or_default().push(test);
    }
    for (why, tests) in reasons {
        println!("\nskipped: {why}\n  {}", tests.join("\n  "));
    }
    Ok(())
}
