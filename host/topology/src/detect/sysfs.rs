//! Small files and directories below a root, read with bounds; what cannot be read is not there.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Bytes of a file that are read: sysfs gives a page at most, and of `/proc/cpuinfo` the first core is enough.
const MOST_BYTES: u64 = 16 << 10;

/// Entries of a directory that are looked at.
const MOST_ENTRIES: usize = 16 << 10;

/// A sysfs, or a directory that stands for one.
pub(super) struct Sys {
    root: PathBuf,
}

impl Sys {
    pub(super) fn new(root: &Path) -> Sys {
        Sys { root: fs::canonicalize(root).unwrap_or_else(|_| root.to_owned()) }
    }

    pub(super) fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    /// The place that a path leads to; `None` where it leads nowhere, in circles or out of the root.
    pub(super) fn real(&self, path: &Path) -> Option<PathBuf> {
        fs::canonicalize(path).ok().filter(|real| real.starts_with(&self.root))
    }
}

/// The text of a file without the space around it; `None` where there is none.
pub(super) fn text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    // An interface that is down fails to be read; what came before the failure is no answer.
    File::open(path).ok()?.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// The names in a directory, sorted.
pub(super) fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .take(MOST_ENTRIES)
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort_unstable_by_key(|name| (numbered(name), name.clone()));
    names
}

/// The number that a name ends with, so that `node10` comes after `node9`.
pub(super) fn numbered(name: &str) -> Option<u32> {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    name.get(name.len() - digits..)?.parse().ok()
}
