//! The cores near a rank's GPU: where its communicator is made, so that the host's memory lies there, and where the proxy thread
//! runs.
//!
//! ```text
//! topology ─► the host's first rank ─► all ranks: the cores of each GPU ─► those that this process may use
//!                     (HostFindings)                    │
//!             PinnedThread: the thread that makes a communicator, until that is done
//!             ProxyCores: the proxy thread, as long as there are communicators
//! ```
//!
//! As NCCL's `ncclTopoGetCpuAffinity` (`src/graph/topo.cc`) and its use in `src/init.cc` and `src/proxy.cc`, but that all
//! communicators of a process have one proxy thread, which runs on the cores of any of them.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use ferroccl_topology::CpuSet;
use nix::errno::Errno;
use nix::sched::{sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use tracing::{info, warn};

use super::graphs::HostFindings;
use super::nodes::Nodes;
use crate::config::Config;
use crate::transport::PeerInfo;
use crate::{log, runtime};

/// The cores that a rank's threads are to run on: those near its GPU, of those that the calling thread may use
/// (`NCCL_IGNORE_CPU_AFFINITY`: of all). Empty where nothing is known, or none is left.
pub(super) fn cores_of(rank: u32, nodes: &Nodes, all: &[HostFindings], env: &Config) -> CpuSet {
    let Some(near) = near(rank, nodes, all) else { return CpuSet::default() };
    let cores = match (env.ignore_cpu_affinity, own_cores()) {
        (false, Ok(own)) => near.iter().filter(|core| own.contains(*core)).collect(),
        (false, Err(error)) => {
            warn!(target: log::INIT, "rank {rank}: its threads stay where they are: {error}");
            CpuSet::default()
        }
        (true, _) => near,
    };
    if !cores.is_empty() {
        info!(target: log::INIT, "Setting affinity for rank {rank} to {cores}");
    }
    cores
}

/// What the first rank of a rank's host says of the cores near its GPU.
fn near(rank: u32, nodes: &Nodes, all: &[HostFindings]) -> Option<CpuSet> {
    let host = nodes.members().iter().find(|ranks| ranks.contains(&rank))?;
    let place = host.iter().position(|other| *other == rank)?;
    all.get(host[0] as usize)?.cores.get(place).cloned()
}

/// The cores that the calling thread may use.
pub(crate) fn own_cores() -> nix::Result<CpuSet> {
    let set = sched_getaffinity(Pid::from_raw(0))?;
    Ok((0..nix::sched::CpuSet::count()).filter(|core| set.is_set(*core).unwrap_or(false)).collect())
}

/// The processes of `peers`, and the cores that they may use, all together; as many cores as processes where one does not know its own.
/// For ranks of one host: the numbers of cores of several hosts are not told apart.
pub(super) fn processes_and_cores(peers: &[PeerInfo]) -> (u32, u32) {
    let processes: HashSet<u64> = peers.iter().map(|peer| peer.process).collect();
    let cores: HashSet<usize> = peers.iter().flat_map(|peer| peer.cores.iter()).collect();
    let unknown = peers.iter().any(|peer| peer.cores.is_empty());
    let cores = if unknown { processes.len() } else { cores.len() };
    (processes.len() as u32, cores as u32)
}

/// Has a thread run on these cores; 0 is the calling one.
fn set_cores(thread: i32, cores: &CpuSet) -> nix::Result<()> {
    let mut set = nix::sched::CpuSet::new();
    // What the system's type has no room for is left out.
    cores.iter().for_each(|core| set.set(core).unwrap_or_default());
    sched_setaffinity(Pid::from_raw(thread), &set)
}

/// The calling thread runs on some cores until this is dropped.
#[derive(Debug)]
pub(crate) struct PinnedThread {
    before: Option<CpuSet>,
}

impl PinnedThread {
    /// Where `cores` is empty nothing changes.
    pub(super) fn to(cores: &CpuSet) -> Self {
        if cores.is_empty() {
            return PinnedThread { before: None };
        }
        Self::try_to(cores)
            .inspect_err(|error| say(cores, *error))
            .unwrap_or(PinnedThread { before: None })
    }

    /// # Errors
    /// When the system refuses it; nothing has changed then.
    pub(crate) fn try_to(cores: &CpuSet) -> nix::Result<Self> {
        let before = own_cores()?;
        set_cores(0, cores)?;
        Ok(PinnedThread { before: Some(before) })
    }
}

impl Drop for PinnedThread {
    fn drop(&mut self) {
        if let Some(before) = &self.before
            && let Err(error) = set_cores(0, before)
        {
            say(before, error);
        }
    }
}

fn say(cores: &CpuSet, error: Errno) {
    warn!(target: log::INIT, "no thread is put on the cores {cores}: {error}");
}

/// The cores of each communicator of this process, by number; empty of one whose GPU's are not known.
static COMMUNICATORS: Mutex<(u64, Vec<(u64, CpuSet)>)> = Mutex::new((0, Vec::new()));

/// The proxy thread runs on a communicator's cores, too, until this is dropped.
#[derive(Debug)]
pub(super) struct ProxyCores(u64);

impl ProxyCores {
    pub(super) fn new(cores: &CpuSet) -> Self {
        let mut communicators = COMMUNICATORS.lock().unwrap_or_else(PoisonError::into_inner);
        communicators.0 += 1;
        let number = communicators.0;
        communicators.1.push((number, cores.clone()));
        let known = !cores.is_empty();
        apply(&communicators.1, known);
        ProxyCores(number)
    }
}

impl Drop for ProxyCores {
    fn drop(&mut self) {
        let mut communicators = COMMUNICATORS.lock().unwrap_or_else(PoisonError::into_inner);
        let of_this = |(number, _): &(u64, CpuSet)| *number == self.0;
        let at = communicators.1.iter().position(of_this);
        let known = at.is_some_and(|at| !communicators.1.swap_remove(at).1.is_empty());
        apply(&communicators.1, known);
    }
}

/// Where the proxy thread is to run, after the communicators have changed by one whose cores are `known`.
fn apply(communicators: &[(u64, CpuSet)], known: bool) {
    let any = communicators.iter().any(|(_, cores)| !cores.is_empty());
    // A program without topology has its threads where it has put them.
    if known || any {
        let cores = communicators.iter().map(|(_, cores)| cores);
        let all = cores.clone().all(|cores| !cores.is_empty());
        let cores = cores.flat_map(CpuSet::iter).collect::<CpuSet>();
        runtime::put_proxy_on(Some(cores).filter(|cores| all && !cores.is_empty()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(rank: u32, process: u64, cores: &[usize]) -> PeerInfo {
        PeerInfo {
            rank,
            pid: 1,
            process,
            space: 0,
            device: None,
            host: "host".to_owned(),
            pid_namespace: String::new(),
            cores: cores.iter().copied().collect(),
        }
    }

    #[test]
    fn cores_of_several_processes_are_counted_once_each() {
        // Two ranks of one process, and a process that is bound to one of the same cores and one more.
        let shared = [peer(0, 1, &[0, 40]), peer(1, 1, &[0, 40]), peer(2, 2, &[40, 41])];
        assert_eq!(processes_and_cores(&shared), (2, 3));
        // A launcher that binds each process to a core of its own.
        let bound = [0, 1, 2, 3].map(|i| peer(i, i.into(), &[i as usize]));
        assert_eq!(processes_and_cores(&bound), (4, 4));
        // Who does not know its cores may have any.
        let unknown = [peer(0, 1, &[0]), peer(1, 2, &[]), peer(2, 3, &[0])];
        assert_eq!(processes_and_cores(&unknown), (3, 3));
        let own = own_cores().unwrap();
        assert!(!own.is_empty());
    }
}
