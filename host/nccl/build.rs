//! Gives the library the name by which programs made for NCCL look for it, and makes the PTX of its own kernels. Where there is
//! no compiler for that, or PTX is not wanted, the library goes on without.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/kernels.rs");
    println!("cargo::rerun-if-changed=src/ptx.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    // Its threads run to the end of the process: who closes the library must not unmap their code.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    ferroccl_build::compile_own_kernels("one_sided", "src/ptx.rs", "host/nccl/src")
}
