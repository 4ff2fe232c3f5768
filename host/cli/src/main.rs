//! The `ferroccl` command.

fn main() -> std::process::ExitCode {
    ferroccl_cli::main()
}
