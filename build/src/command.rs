//! Running compilers.

use std::io;
use std::path::Path;
use std::process::{Command, Output};

use crate::{Error, Result};

/// rustc without what cargo and rustup say to the host's compiler. `RUSTC_BOOTSTRAP` lets a stable one use
/// the features that PTX needs.
pub(crate) fn rustc(path: &Path) -> Command {
    let mut command = Command::new(path);
    for name in [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTUP_TOOLCHAIN",
    ] {
        command.env_remove(name);
    }
    command.env("RUSTC_BOOTSTRAP", "1");
    command
}

/// What a command prints, if it succeeds.
pub(crate) fn printed(command: &mut Command) -> Option<String> {
    let out = output(command).ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Runs a compiler. Inside of the result is what it says: warnings, or the errors that it failed with.
pub(crate) fn run(command: &mut Command) -> Result<std::result::Result<String, String>> {
    let out = output(command)
        .map_err(|source| Error::Run { rustc: command.get_program().into(), source })?;
    let log = String::from_utf8_lossy(&out.stderr).into_owned();
    Ok(if out.status.success() { Ok(log) } else { Err(log) })
}

/// Runs a command that ends when this process does.
fn output(command: &mut Command) -> io::Result<Output> {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::process::CommandExt as _;
        let parent = std::process::id();
        // SAFETY: between `fork` and `exec` only two system calls are made; neither allocates nor locks.
        unsafe { command.pre_exec(move || linux::end_with(parent)) };
    }
    command.output()
}

/// Ends this process when the one that started it ends. A build script that calls it does not outlive a cargo that is
/// killed. The compilers that this crate runs end with the process that runs them in any case. Does nothing but on
/// Linux.
///
/// # Errors
///
/// The process that started this one has ended already.
pub fn end_with_parent() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    linux::end_with(std::os::unix::process::parent_id())?;
    Ok(())
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io;

    /// Has the kernel kill this process when the thread that started it ends, which is of process `parent`.
    pub(super) fn end_with(parent: u32) -> io::Result<()> {
        // SAFETY: sets a property of this process; the argument is a signal, as the option wants it (prctl(2)).
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // The parent may have ended before: then this process has another one by now.
        if std::os::unix::process::parent_id() == parent {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::ESRCH))
        }
    }
}
