//! Compiles `src/kernels.rs`, and only that, to PTX. Without a compiler for GPUs it says what to install, and the crate goes on without:
//! everything but the emulator's tests needs none.

use std::path::PathBuf;
use std::{env, fs};

use ferroccl_build::{Builder, Compiler, DeviceCrate, Module, Target, cache_dir};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=src");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // From the build script of ferroccl-device.
    let device = PathBuf::from(env::var("DEP_FERROCCL_DEVICE_SOURCE")?).join("lib.rs");
    let text = match Compiler::find() {
        Ok(compiler) => {
            let device = DeviceCrate::new("ferroccl_device", device).shown_as("device/src");
            let kernels = DeviceCrate::new("lab_kernels", "src/kernels.rs")
                .shown_as("lab/src")
                .depends_on(device);
            let module = Module::new("lab", kernels, Target::sm(80));
            Builder::new(compiler, cache_dir(&out)).compile(&module)?.text().to_owned()
        }
        Err(error) => {
            println!("cargo::warning=no PTX: {error}");
            String::new()
        }
    };
    fs::write(out.join("lab.ptx"), text)?;
    Ok(())
}
