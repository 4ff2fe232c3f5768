//! Whether the disk has room for a run: compilers name what they could not write, not what fills the disk.

use std::fs;
use std::path::Path;

use nix::sys::statvfs::statvfs;

use crate::run::root;

/// Gigabytes that `target` holds after `cargo xtask test` in a fresh clone, rounded up.
const NEEDED: u64 = 8;

const GIGABYTE: u64 = 1_000_000_000;

/// `Err` if what is free and what `target` holds already are less than a run takes.
pub(crate) fn check() -> Result<(), String> {
    let disk = statvfs(&root()).map_err(|e| format!("statvfs of the project's folder: {e}"))?;
    let free = disk.blocks_available() * disk.fragment_size();
    println!("{} GB free", free / GIGABYTE);
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder),
        None => root().join("target"),
    };
    if free + bytes_of(&target) >= NEEDED * GIGABYTE {
        return Ok(());
    }
    Err(format!(
        "a run takes {NEEDED} GB, and the disk has {} GB free: `cargo clean` here, or in other clones, makes room",
        free / GIGABYTE
    ))
}

/// What the files of a folder take; what cannot be read counts as nothing.
fn bytes_of(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)))
        .map(|(path, data)| if data.is_dir() { bytes_of(&path) } else { data.len() })
        .sum()
}
