//! Makes the PTX of `ferroccl bench`'s own kernels. Where there is no compiler for it, or PTX is not wanted, the command goes on without.

use std::path::PathBuf;
use std::{env, fs};

use ferroccl_build::{Builder, Compiler, DeviceCrate, Module, Target};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=src/bench");
    println!("cargo::rerun-if-env-changed=FERROCCL_PTX");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // From the build script of ferroccl-device.
    let device = PathBuf::from(env::var("DEP_FERROCCL_DEVICE_SOURCE")?).join("lib.rs");
    let wanted = env::var("FERROCCL_PTX").ok().is_none_or(|how| how != "none");
    // The library's build script says what to install.
    let compiler = if wanted { Compiler::find().ok() } else { None };
    let text = match compiler {
        Some(compiler) => {
            let device = DeviceCrate::new("ferroccl_device", device).shown_as("device/src");
            let kernels = DeviceCrate::new("ferroccl_bench", "src/bench/ptx.rs")
                .shown_as("host/cli/src/bench")
                .depends_on(device);
            let module = Module::new("bench", kernels, Target::sm(80));
            Builder::new(compiler, out.join("cache")).compile(&module)?.text().to_owned()
        }
        None => String::new(),
    };
    fs::write(out.join("bench.ptx"), text)?;
    Ok(())
}
