//! Tests that need what a machine may lack.

/// Says why a test does not run. Where everything must run (`FERROCCL_TEST_ALL`, set by `scripts/test`, which
/// installs what can be), that is a failure.
pub(crate) fn skip(why: &str) {
    assert!(std::env::var_os("FERROCCL_TEST_ALL").is_none(), "cannot run: {why}");
    eprintln!("skipped: {why}");
}
