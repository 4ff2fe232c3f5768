//! Compiles a crate of kernels on top of `ferroccl-device`, and prints the PTX.
//!
//! ```text
//! cargo run -p ferroccl-build --example compile -- device/src/lib.rs my_kernels src/kernels/lib.rs
//! ```

use std::path::PathBuf;

use ferroccl_build::{Builder, Compiler, DeviceCrate, Module, Target};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(device), Some(name), Some(root)) =
        (arguments.next(), arguments.next(), arguments.next())
    else {
        return Err("usage: compile DEVICE_LIB_RS CRATE_NAME LIB_RS".into());
    };
    let device = DeviceCrate::new("ferroccl_device", device);
    let kernels = DeviceCrate::new(&name, root).depends_on(device);
    let compiler = Compiler::find()?;
    eprintln!("compiled by {}", compiler.path().display());
    let builder = Builder::new(compiler, PathBuf::from("target/ferroccl-ptx"));
    let ptx = builder.compile(&Module::new(name, kernels, Target::sm(80)))?;
    for warning in ptx.warnings() {
        eprintln!("{warning}");
    }
    print!("{}", ptx.text());
    Ok(())
}
