//! Gives the library the name by which programs made for NCCL look for it, and makes the PTX of its own kernels. Where there is
//! no compiler for that, or PTX is not wanted, the library goes on without.

use std::path::PathBuf;
use std::{env, fs};

use ferroccl_build::{Builder, Compiler, DeviceCrate, Module, Target};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/kernels.rs");
    println!("cargo::rerun-if-changed=src/ptx.rs");
    println!("cargo::rerun-if-env-changed=FERROCCL_PTX");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    // Its threads run to the end of the process: who closes the library must not unmap their code.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // From the build script of ferroccl-device.
    let device = PathBuf::from(env::var("DEP_FERROCCL_DEVICE_SOURCE")?).join("lib.rs");
    let wanted = env::var("FERROCCL_PTX").ok().is_none_or(|how| how != "none");
    // The library's build script says what to install.
    let compiler = if wanted { Compiler::find().ok() } else { None };
    let text = match compiler {
        Some(compiler) => {
            let device = DeviceCrate::new("ferroccl_device", device).shown_as("device/src");
            let kernels = DeviceCrate::new("ferroccl_one_sided", "src/ptx.rs")
                .shown_as("host/nccl/src")
                .depends_on(device);
            let module = Module::new("one_sided", kernels, Target::sm(80));
            Builder::new(compiler, out.join("cache")).compile(&module)?.text().to_owned()
        }
        None => String::new(),
    };
    fs::write(out.join("one_sided.ptx"), text)?;
    Ok(())
}
