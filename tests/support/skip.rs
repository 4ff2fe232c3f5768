//! Tests that need what a machine may lack.

use std::io::Write as _;

/// Says why a test does not run: to `cargo xtask test`, which prints it at the end, and to who runs the test by hand. Where
/// everything must run (`FERROCCL_TEST_ALL`, set in CI), that is a failure.
pub(crate) fn skip(why: &str) {
    assert!(std::env::var_os("FERROCCL_TEST_ALL").is_none(), "cannot run: {why}");
    eprintln!("skipped: {why}");
    let Some(file) = std::env::var_os("FERROCCL_SKIPPED") else { return };
    let thread = std::thread::current();
    let line = format!("{}\t{}\n", thread.name().unwrap_or("a test"), why.replace('\n', "; "));
    let file = std::fs::File::options().create(true).append(true).open(file);
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the file for reasons");
}
