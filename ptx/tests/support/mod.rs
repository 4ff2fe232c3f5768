//! What several tests use.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::path::{Path, PathBuf};

/// The files of `tests/fixtures` with this extension, by name.
pub(crate) fn fixture_files(extension: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let entries = std::fs::read_dir(&directory).unwrap_or_else(|e| panic!("{directory:?}: {e}"));
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    files.sort();
    files
}

/// The PTX of the fixtures: `vector.sm_80` and its text.
pub(crate) fn fixtures() -> Vec<(String, String)> {
    fixture_files("ptx")
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            let name = path.file_stem().and_then(|s| s.to_str()).expect("names are ASCII");
            (name.to_owned(), text)
        })
        .collect()
}
