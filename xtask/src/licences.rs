//! Whether every dependency has a licence of those that `deny.toml` allows.
//!
//! cargo-deny looks at more, and takes minutes to install: `cargo xtask nightly` runs it.

use std::fs;

use spdx::{Expression, LicenseReq};

use crate::features::metadata;
use crate::run::root;

pub(crate) fn check() -> Result<(), String> {
    let allowed = allowed()?;
    let may = |asked: &LicenseReq| allowed.contains(&asked.to_string());
    let all = metadata(&["--all-features", "--locked"])?;
    let packages = all["packages"].as_array().ok_or("cargo metadata names no packages")?;
    let mut wrong = Vec::new();
    for package in packages {
        let text = package["license"].as_str().unwrap_or_default();
        let licence = Expression::parse_mode(text, spdx::ParseMode::LAX);
        if !licence.is_ok_and(|licence| licence.evaluate(may)) {
            wrong.push(format!("{} {}: {text:?}", package["name"], package["version"]));
        }
    }
    println!("{} packages", packages.len());
    if wrong.is_empty() { Ok(()) } else { Err(format!("not allowed: {}", wrong.join(", "))) }
}

/// The words in quotation marks of `[licenses]`' list `allow`.
fn allowed() -> Result<Vec<String>, String> {
    let text =
        fs::read_to_string(root().join("deny.toml")).map_err(|e| format!("deny.toml: {e}"))?;
    let list = text.split_once("\nallow = [").and_then(|(_, rest)| rest.split_once(']'));
    let (list, _) = list.ok_or("deny.toml: no list `allow`")?;
    Ok(list.split('"').skip(1).step_by(2).map(str::to_owned).collect())
}
