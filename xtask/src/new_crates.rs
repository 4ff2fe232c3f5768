//! What `ferroccl new` makes compiles, and its tests pass.

use std::fs;
use std::process::Command;

use crate::run::root;

/// Makes crates with the command that examples/lab has, and tests each, over what the lab has compiled.
pub(crate) fn test() -> Result<(), String> {
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
        [("protocol", "my_lines"), ("collective", "in_pairs"), ("kernel", "prefix_sum")]
    {
        let new = ["new", kind, name];
        run(Command::new(target.join("debug/lab")).args(new).current_dir(&made))?;
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "--locked"]).current_dir(made.join(name));
        run(cargo.env("CARGO_TARGET_DIR", &target).env("FERROCCL_PTX", "none"))?;
    }
    Ok(())
}
