//! What `ferroccl new` makes: it compiles, and in the nightly tier its tests pass.

use std::fs;
use std::process::Command;

use crate::run::root;

/// Makes crates with the command that examples/lab has, and has cargo do `what` in each, over what the lab has compiled.
fn each(what: &[&str]) -> Result<(), String> {
    let (root, made) = (root(), root().join("target/new"));
    if made.exists() {
        fs::remove_dir_all(&made).map_err(|error| format!("{}: {error}", made.display()))?;
    }
    fs::create_dir_all(&made).map_err(|error| format!("{}: {error}", made.display()))?;
    let target = root.join("target/lab");
    let run = |command: &mut Command| match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    };
    for (kind, name) in
        [("protocol", "my_lines"), ("collective", "halving"), ("kernel", "prefix_sum")]
    {
        let new = ["new", kind, name];
        run(Command::new(target.join("debug/lab")).args(new).current_dir(&made))?;
        let mut cargo = Command::new("cargo");
        cargo.args(what).current_dir(made.join(name));
        run(cargo.env("CARGO_TARGET_DIR", &target).env("FERROCCL_PTX", "none"))?;
    }
    Ok(())
}

/// They compile, with their PTX.
pub(crate) fn compile() -> Result<(), String> {
    each(&["test", "--no-run", "--locked"])
}

/// Their tests pass.
pub(crate) fn test() -> Result<(), String> {
    each(&["test", "--locked"])
}
