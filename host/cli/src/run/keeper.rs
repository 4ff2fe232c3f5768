//! The keeper: leader of the job's process group, which it does not let outlive the launcher.
//!
//! Only the end of a pipe is sure to be noticed however a launcher ends, kill -9 included, and only a
//! group reaches the processes that ranks have started. A rank is told of its launcher's end by the kernel
//! too (`PR_SET_PDEATHSIG`), so that it ends even if someone has killed the keeper.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigHandler, Signal, kill, killpg, raise, signal};
use nix::unistd::{Pid, getpgrp, getpid, getppid};

/// The hidden subcommand that is the keeper.
pub(crate) const NAME: &str = "__keeper";

/// The launcher's hold on a job: as long as this lives, so may the job.
#[derive(Debug)]
pub(super) struct Keeper {
    /// Not waited for before the end: so its id names the group, and no other, all the time.
    process: Child,
}

impl Keeper {
    /// Starts a keeper in a group of its own.
    pub(super) fn start() -> io::Result<Self> {
        // Ourselves, even if the file has been replaced meanwhile.
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("ferroccl")
            .arg(NAME)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0);
        // SAFETY: between fork and exec only async-signal-safe functions may run; signal is one. It installs
        // no function.
        unsafe {
            command.pre_exec(|| {
                // What ends the ranks must not end their keeper. Ignored signals stay so through exec.
                for number in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
                    signal(number, SigHandler::SigIgn)?;
                }
                Ok(())
            });
        }
        Ok(Keeper { process: command.spawn()? })
    }

    /// Makes what `command` starts one of the group, which ends with this process.
    pub(super) fn adopt(&self, command: &mut Command) {
        let launcher = getpid();
        command.process_group(self.group().as_raw());
        // SAFETY: between fork and exec only async-signal-safe functions may run; prctl, getppid and
        // raise are system calls and nothing else.
        unsafe {
            command.pre_exec(move || {
                set_pdeathsig(Signal::SIGKILL)?;
                // The launcher may have ended before the call above: nobody would tell.
                if getppid() != launcher {
                    raise(Signal::SIGKILL)?;
                }
                Ok(())
            });
        }
    }

    /// Sends a signal to every process of the group.
    pub(super) fn signal(&self, signal: Signal) {
        // The group's id is taken as long as its leader is not waited for; that nobody is left is no error.
        let _ = killpg(self.group(), signal);
    }

    /// Kills the group.
    pub(super) fn release(&mut self) {
        self.process.stdin = None;
        self.signal(Signal::SIGKILL); // should someone have killed or stopped the keeper
    }

    fn group(&self) -> Pid {
        Pid::from_raw(self.process.id().cast_signed())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.release();
        let _ = self.process.wait(); // it was ours and is killed: nothing else can come of it
    }
}

/// The keeper's life.
pub(crate) fn keep() -> ExitCode {
    let mut stdin = io::stdin().lock();
    let mut nothing = [0; 64];
    // Until the pipe ends, or breaks, which is the same to us.
    while stdin.read(&mut nothing).is_ok_and(|read| read > 0) {}
    // Only as leader of a group: who calls this by hand keeps his shell.
    if getpgrp() == getpid() {
        let _ = kill(Pid::from_raw(0), Signal::SIGKILL); // this process too
    }
    ExitCode::SUCCESS
}
