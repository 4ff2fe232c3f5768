//! Makes the PTX of `ferroccl bench`'s own kernels. Where there is no compiler for it, or PTX is not wanted, the command goes on without.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=src/bench");
    ferroccl_build::compile_own_kernels("bench", "src/bench/ptx.rs", "host/cli/src/bench")
}
