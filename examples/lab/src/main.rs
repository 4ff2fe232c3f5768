//! The `ferroccl` command with the lab's protocols, algorithms and kernels.

fn main() -> std::process::ExitCode {
    ferroccl_cli::main_with(ferroccl_lab::registry())
}
