//! Tells the build scripts of crates that depend on this one what it takes to compile it for GPUs:
//!
//! | | |
//! |---|---|
//! | `DEP_FERROCCL_DEVICE_SOURCE` | the directory of `lib.rs` |
//! | `DEP_FERROCCL_DEVICE_MODULES` | the modules of PTX that the features ask for, separated by spaces, each as `90:all_reduce_ring_half:native_bf16,native_fp8:family="all_reduce_ring":...`: compute capability, name, the `cfg`s of the device crate, and those of the crate of entries, `kernels/entries.rs` |

use std::env;

#[path = "build/modules.rs"]
mod modules;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    let here = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    // Absolute: where this crate was moved with its target directory, the file is not there, and this runs again.
    println!("cargo::rerun-if-changed={here}/src/kernels/lists.rs");
    println!("cargo::metadata=source={here}/src");
    let feature = |name: &str| {
        env::var_os(format!("CARGO_FEATURE_{}", name.to_uppercase().replace('-', "_"))).is_some()
    };
    let modules: Vec<String> = modules::all(feature)
        .iter()
        .map(|m| format!("{}:{}:{}:{}", m.arch, m.name(), m.has.join(","), m.cfgs().join(":")))
        .collect();
    println!("cargo::metadata=modules={}", modules.join(" "));
}
