//! The `ferroccl` command: `cargo run --example ferroccl -- run -n 4 -- target/debug/train`. Where it is installed, it is just `ferroccl`.

fn main() -> std::process::ExitCode {
    ferroccl_cli::main()
}
