//! Waits for what `scripts/test` has installed while other steps ran.

use std::env;
use std::process::Command;

use crate::run::{is_strict, root};

/// Set by `scripts/test`. Whoever runs `cargo xtask test` installs for himself.
const BESIDE: &str = "FERROCCL_TEST_SETUP";

/// Says what is missing. That is an error where nothing may be skipped.
pub(crate) fn wait() -> Result<(), String> {
    if env::var_os(BESIDE).is_none() {
        return Ok(());
    }
    let mut setup = Command::new(root().join("scripts/setup"));
    let status = setup.arg("wait").status().map_err(|e| format!("scripts/setup: {e}"))?;
    if status.success() || !is_strict() {
        return Ok(());
    }
    Err("scripts/setup could not install all: .toolchain/setup.log".to_owned())
}
