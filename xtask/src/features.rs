//! Builds with few features. `cargo check` is all that it takes: what a feature leaves out is missing at compile time.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::run::root;

/// The feature whose build takes CUDA's headers.
pub(crate) const CUDA_CORE: &str = "cuda-core";

/// Where these are: a toolkit that the environment names, or what `scripts/setup cuda` has fetched.
pub(crate) fn cuda_headers() -> Option<PathBuf> {
    let named = ["CUDA_TOOLKIT_PATH", "CUDA_HOME"].into_iter().find_map(env::var_os);
    named.map(PathBuf::from).or_else(|| {
        let fetched = root().join(".toolchain/cuda-headers");
        fetched.exists().then_some(fetched)
    })
}

/// Two sets that have little in common: nothing; GPUs with one algorithm and type. Each takes a quarter of a minute.
pub(crate) fn some() -> Result<(), String> {
    for features in ["", "cuda,tree,half"] {
        check("ferroccl", features)?;
    }
    Ok(())
}

/// Of each package each feature alone, and the default without it.
pub(crate) fn each() -> Result<(), String> {
    for package in packages()? {
        let features = package["features"].as_object().ok_or("a package without features")?;
        let (name, default) = (text(&package["name"]), features.get("default"));
        let default: Vec<String> =
            default.and_then(Value::as_array).into_iter().flatten().map(text).collect();
        for feature in features.keys().filter(|feature| *feature != "default") {
            check(&name, feature)?;
            if default.contains(feature) {
                let others: Vec<_> = default.iter().filter(|other| *other != feature).collect();
                let others: Vec<&str> = others.into_iter().map(String::as_str).collect();
                check(&name, &others.join(","))?;
            }
        }
    }
    Ok(())
}

/// The library itself, not its tests: those need what they test.
fn check(package: &str, features: &str) -> Result<(), String> {
    let headers = cuda_headers();
    if features == CUDA_CORE && headers.is_none() {
        println!("{package} with {features}: not checked, as there are no headers of CUDA");
        return Ok(());
    }
    println!("{package} with {}", if features.is_empty() { "no features" } else { features });
    let mut cargo = Command::new("cargo");
    cargo.args(["check", "--quiet", "--lib", "--package", package, "--no-default-features"]);
    cargo.args(["--features", features]).env("FERROCCL_PTX", "none").current_dir(root());
    cargo.envs(headers.map(|path| ("CUDA_TOOLKIT_PATH", path)));
    let status = cargo.status().map_err(|e| format!("cargo: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{package} with features {features:?}")) }
}

/// The oldest Rust that the manifests promise.
pub(crate) fn rust_version() -> String {
    let packages = packages().unwrap_or_default();
    let root = packages.iter().find(|package| package["name"] == "ferroccl");
    root.map_or_else(String::new, |package| text(&package["rust_version"]))
}

/// What `cargo metadata` says of the workspace's packages.
fn packages() -> Result<Vec<Value>, String> {
    Ok(metadata(&["--no-deps"])?["packages"].as_array().cloned().unwrap_or_default())
}

pub(crate) fn metadata(arguments: &[&str]) -> Result<Value, String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["metadata", "--format-version", "1"]).args(arguments).current_dir(root());
    let output = cargo.output().map_err(|e| format!("cargo metadata: {e}"))?;
    serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
