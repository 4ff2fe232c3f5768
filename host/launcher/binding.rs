//! Cores for the ranks that a launcher starts as processes of one host.

use std::fmt::{self, Display};
use std::io;
use std::process::{Child, Command};
use std::str::FromStr;

use ferroccl_topology::CpuSet;

use crate::comm::affinity::{PinnedThread, own_cores};

/// What cores a launcher gives to the ranks of a host.
///
/// The system may start three of four ranks on one of two cores. All ranks then wait for these three, which take turns, until the system
/// moves one, after up to a second. In runs of a third of a second, 4 bound processes on 2 cores took a quarter less for small
/// all-reduces than unbound ones, and 8 a fifth less. In runs of three seconds bound and unbound ones took the same time
/// (`benches/records/2026-11-28-bound-ranks.md`). Open MPI's `mpirun --bind-to` has the last two under these names, and as its default
/// binds nobody where ranks outnumber cores.
///
/// ```
/// use std::process::Command;
///
/// use ferroccl::launcher::CoreBinding;
///
/// # fn main() -> std::io::Result<()> {
/// let binding: CoreBinding = "core".parse().expect("a binding");
/// let mut ranks = Vec::new();
/// for local_rank in 0..2 {
///     ranks.push(binding.spawn(&mut Command::new("true"), local_rank, 2)?);
/// }
/// for mut rank in ranks {
///     assert!(rank.wait()?.success());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CoreBinding {
    /// As [`CoreBinding::Core`] where there are more ranks than cores, else as [`CoreBinding::None`].
    #[default]
    Auto,
    /// The system decides where ranks run.
    None,
    /// Each rank has a core, in turn.
    Core,
}

impl CoreBinding {
    /// All, in the order of their documentation.
    pub const ALL: [CoreBinding; 3] = [CoreBinding::Auto, CoreBinding::None, CoreBinding::Core];

    /// Starts a rank's process, one of `local_size` on this host, on the core that is its own, of those that the calling thread may use.
    /// The threads that it starts run there, too.
    ///
    /// # Errors
    /// As [`Command::spawn`], or when the system does not say or set the cores of a thread.
    pub fn spawn(
        self,
        command: &mut Command,
        local_rank: u32,
        local_size: u32,
    ) -> io::Result<Child> {
        if self == CoreBinding::None {
            return command.spawn();
        }
        let cores: Vec<usize> = own_cores()?.iter().collect();
        let Some(core) = self.core_of(&cores, local_rank, local_size) else {
            return command.spawn();
        };
        // A process has the cores of the thread that starts it.
        let bound = PinnedThread::try_to(&[core].into_iter().collect::<CpuSet>())?;
        let child = command.spawn();
        drop(bound);
        child
    }

    /// The core of a rank among these.
    fn core_of(self, cores: &[usize], local_rank: u32, local_size: u32) -> Option<usize> {
        let binds = match self {
            CoreBinding::Auto => local_size as usize > cores.len(),
            CoreBinding::None => false,
            CoreBinding::Core => true,
        };
        let turn = (local_rank as usize).checked_rem(cores.len())?;
        binds.then(|| cores[turn])
    }
}

impl Display for CoreBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CoreBinding::Auto => "auto",
            CoreBinding::None => "none",
            CoreBinding::Core => "core",
        })
    }
}

impl FromStr for CoreBinding {
    type Err = String;

    /// By its name, as [`Display`] has it; else what there is.
    fn from_str(name: &str) -> Result<Self, String> {
        let named = CoreBinding::ALL.into_iter().find(|binding| binding.to_string() == name);
        named.ok_or_else(|| "ranks can be bound to: auto, none, core".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_take_turns_on_cores_where_they_outnumber_them() {
        let cores = [3, 5];
        let of = |binding: CoreBinding, size| {
            (0..size).map(|rank| binding.core_of(&cores, rank, size)).collect::<Vec<_>>()
        };
        assert_eq!(of(CoreBinding::Auto, 3), [Some(3), Some(5), Some(3)]);
        assert_eq!(of(CoreBinding::Auto, 2), [None, None]);
        assert_eq!(of(CoreBinding::Core, 1), [Some(3)]);
        assert_eq!(of(CoreBinding::None, 3), [None, None, None]);
        assert_eq!(CoreBinding::Core.core_of(&[], 0, 1), None);
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for binding in CoreBinding::ALL {
            assert_eq!(binding.to_string().parse(), Ok(binding));
        }
        assert!("socket".parse::<CoreBinding>().unwrap_err().contains("auto, none, core"));
    }

    /// The thread that starts ranks may run where it could before, and a rank on its core.
    #[test]
    fn a_rank_is_bound_and_its_launcher_is_not() {
        let before: Vec<usize> = own_cores().unwrap().iter().collect();
        let mut command = Command::new("grep");
        command.args(["Cpus_allowed_list", "/proc/self/status"]);
        command.stdout(std::process::Stdio::piped());
        let last = before.len() as u32 - 1;
        let child = CoreBinding::Core.spawn(&mut command, last, last + 1).unwrap();
        let text = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(text.split_whitespace().last(), Some(&*before[last as usize].to_string()));
        assert_eq!(own_cores().unwrap().iter().collect::<Vec<_>>(), before);
    }
}
