//! Where the stand-in for a driver is (`tests/cuda/driver`). It is an example of the library, as only an example is both a
//! shared library and built by `cargo test` without being asked for.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;
use std::{fs, io};

/// The stand-in's library. It must be there, and newer than its source: cargo does not build it for one test alone.
pub(crate) fn library() -> &'static PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let library = example("libfake_cuda.so");
        let made = fs::metadata(&library).and_then(|metadata| metadata.modified());
        let how = "cargo build --package ferroccl --example fake_cuda";
        let made = made.unwrap_or_else(|e| panic!("{}: {e}: {how}", library.display()));
        assert!(edited().unwrap() <= made, "{} is older than its source: {how}", library.display());
        library
    })
}

/// An example of this profile: `target/PROFILE/examples/NAME`. This is `target/PROFILE/deps/TEST-HASH`.
pub(crate) fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("examples").join(name)
}

/// When the stand-in's source was last changed.
fn edited() -> io::Result<SystemTime> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().find(|dir| dir.join("Cargo.lock").is_file()).unwrap_or(here);
    let mut last = SystemTime::UNIX_EPOCH;
    for file in fs::read_dir(root.join("tests/cuda/driver"))? {
        last = last.max(file?.metadata()?.modified()?);
    }
    Ok(last)
}
