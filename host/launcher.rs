//! Which rank this process is, as its launcher tells through the environment; and which core a launcher gives it ([`CoreBinding`]).
//!
//! | launcher | rank, size | on the host | the ranks find each other by |
//! |---|---|---|---|
//! | `ferroccl run` | `FERROCCL_RANK`, `FERROCCL_WORLD_SIZE` | `FERROCCL_LOCAL_RANK`, `FERROCCL_LOCAL_SIZE` | `FERROCCL_UNIQUE_ID` |
//! | `torchrun` | `RANK`, `WORLD_SIZE` | `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | `MASTER_ADDR`, `MASTER_PORT` |
//! | Open MPI | `OMPI_COMM_WORLD_RANK`, `_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK`, `_LOCAL_SIZE` | the job's id, on one host |
//! | MPICH and others | `PMI_RANK`, `PMI_SIZE` | `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` or `PMI_LOCAL_RANK`, `PMI_LOCAL_SIZE` | as below |
//! | Slurm's `srun` | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS` | `SLURM_LOCALID`, `SLURM_STEP_TASKS_PER_NODE` | the step's first host |
//! | Kubernetes | `JOB_COMPLETION_INDEX`, `WORLD_SIZE` | a rank a pod | what the job says |
//!
//! The first launcher of this table whose rank and size are set counts; the inner of two launchers comes
//! first. (Kubernetes gives the pods of an Indexed Job their numbers; `WORLD_SIZE`, from the job's description,
//! makes them ranks. The name of a pod is known once it runs, so a lookup is tried as long as ranks may take to find
//! each other.) With any of them `FERROCCL_UNIQUE_ID`, then `NCCL_COMM_ID`, then `MASTER_ADDR` with `MASTER_PORT`
//! say where to meet, if they are set. All that is derived is a rendezvous (see
//! [`UniqueId::rendezvous`](ferroccl_bootstrap::UniqueId::rendezvous)) of [`SPAN`] ports, of which rank 0 takes
//! the first that is free; nothing is written to a disk, and nothing remains. `torchrun` itself listens on
//! `MASTER_PORT`, so the ports begin after that one. What `FERROCCL_SECRET` or `FERROCCL_SECRET_FILE` says is part of what a
//! rendezvous is derived from: the rest of it is no secret. Without it, ranks that meet at a loopback address have a random
//! secret from rank 0 (see [`RankEnv::unique_id`]).
//!
//! Reading is a pure function of the variables. What is half set or contradicts itself is an error that names
//! the variable.

mod binding;
mod host_secret;
mod variables;

use std::fmt::{self, Display};
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

pub use self::binding::CoreBinding;
use self::variables::{Env, Job, LAUNCHERS, Number, check_range, invalid};
use crate::config::Config;
use crate::error::{Error, Result};
use ferroccl_bootstrap::{CommId, UniqueId};

/// Ports that a derived rendezvous may use.
pub const SPAN: u8 = 16;

/// Between two lookups of a name that is not there yet.
const LOOKUPS: Duration = Duration::from_millis(500);

/// Who started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `ferroccl run`.
    Ferroccl,
    /// `torchrun`.
    Torchrun,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// MPICH's, Intel's or another `mpiexec` that speaks PMI.
    Pmi,
    /// Slurm's `srun`.
    Slurm,
    /// A pod of a Kubernetes Indexed Job.
    Kubernetes,
}

impl Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Ferroccl => "ferroccl run",
            Launcher::Torchrun => "torchrun",
            Launcher::OpenMpi => "mpirun (Open MPI)",
            Launcher::Pmi => "mpiexec (PMI)",
            Launcher::Slurm => "srun (Slurm)",
            Launcher::Kubernetes => "Kubernetes",
        })
    }
}

/// How the ranks find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdSource {
    /// `FERROCCL_UNIQUE_ID`.
    Given(Box<UniqueId>),
    /// `NCCL_COMM_ID`.
    CommId(CommId),
    /// Derived from what all ranks know.
    Rendezvous {
        /// Where rank 0 runs: a name or an address.
        host: String,
        /// The first port to try.
        port: u16,
        /// What makes this job different from others.
        seed: String,
    },
    /// Nothing says it; why, and what to set.
    Unknown(String),
}

/// This process's place among those started together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankEnv {
    /// Its rank.
    pub rank: u32,
    /// Ranks of the job.
    pub world_size: u32,
    /// Its place among the ranks of its host.
    pub local_rank: u32,
    /// Ranks on its host.
    pub local_size: u32,
    /// Who said so.
    pub launcher: Launcher,
    /// How the ranks find each other.
    pub id_source: IdSource,
}

impl RankEnv {
    /// What this process's environment says; `None` when it was not started as one of several ranks.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] naming a variable that is missing, makes no sense, or contradicts another.
    pub fn from_env() -> Result<Option<Self>> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// The same through `get`, which is given a variable's name.
    ///
    /// # Errors
    /// As [`RankEnv::from_env`].
    pub fn from_lookup(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let env = Env(&get);
        let Some((launcher, names)) =
            LAUNCHERS.iter().find(|(launcher, names)| names.apply(*launcher, &env))
        else {
            return env.refuse_half_set().map(|()| None);
        };
        let rank = env.required(names.rank)?;
        let world_size = env.required(names.size)?;
        let local_rank = env.first_number(names.local_rank)?;
        let local_size = match launcher {
            Launcher::Slurm => env.slurm_local_size()?,
            _ => env.first_number(names.local_size)?,
        };
        check_range(&rank, &world_size)?;
        // Of one host: the local numbers are the global ones, unless somebody says otherwise.
        let (local_rank, local_size) = match (local_rank, local_size) {
            (Some(r), Some(s)) => (r, s),
            (Some(r), None) if *launcher == Launcher::Ferroccl || r.value == rank.value => {
                (r, world_size.clone())
            }
            (Some(r), None) => {
                let size = r.value.saturating_add(1); // at least; nothing says more
                let name = names.local_size.first().copied().unwrap_or(r.name);
                (r, Number { name, value: size })
            }
            (None, _) if *launcher == Launcher::Kubernetes => {
                (Number { value: 0, ..rank }, Number { value: 1, ..world_size })
            }
            (None, s) => (rank.clone(), s.unwrap_or_else(|| world_size.clone())),
        };
        check_range(&local_rank, &local_size)?;
        if local_size.value > world_size.value {
            let reason = format!("more than {}={}", world_size.name, world_size.value);
            return Err(invalid(local_size.name, local_size.value, reason));
        }
        let job = Job { world_size: world_size.value, local_size: local_size.value };
        let id_source = env.id_source(*launcher, &job)?;
        Ok(Some(RankEnv {
            rank: rank.value,
            world_size: world_size.value,
            local_rank: local_rank.value,
            local_size: local_size.value,
            launcher: *launcher,
            id_source,
        }))
    }

    /// The id of the job's ranks: the same on every rank, without a word between them but for one case.
    ///
    /// That case is a job that meets at a loopback address without a secret of its user's (`FERROCCL_SECRET`). Its rank 0 takes
    /// a random secret and gives it to the other ranks over a Unix socket, whose ends must be processes of one user; all ranks
    /// call this, in any order. So no other user of the host can pose as one of them, as everybody could who knows a port.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when nothing says where to meet, with what to set; [`Error::System`] when a host
    /// name cannot be looked up; in a pod, not within [`Config::bootstrap_timeout`]. [`Error::Bootstrap`] when rank 0 has not
    /// called this within that time, in the case above.
    pub fn unique_id(&self, config: &Config) -> Result<UniqueId> {
        let limit = config.bootstrap_timeout;
        let deadline = Instant::now() + limit;
        let public = loop {
            match self.look_up(config) {
                Err(Error::System { .. })
                    if self.launcher == Launcher::Kubernetes && Instant::now() < deadline =>
                {
                    thread::sleep(LOOKUPS);
                }
                result => break result?,
            }
        };
        match &self.id_source {
            IdSource::Given(_) => Ok(public), // it has a secret
            _ if config.secret().is_some() => Ok(public.mixed_with(config.secret())),
            _ if self.meets_at_loopback() && self.world_size > 1 => {
                let secret = host_secret::of_job(&public, self.rank, self.world_size, limit)?;
                Ok(public.mixed_with(Some(&secret)))
            }
            _ => Ok(public),
        }
    }

    /// The id as everybody can make it who knows what the launcher says, if names can be looked up now.
    fn look_up(&self, config: &Config) -> Result<UniqueId> {
        let family = config.socket_family;
        match &self.id_source {
            IdSource::Given(id) => Ok(**id),
            IdSource::CommId(comm_id) => Ok(UniqueId::from_comm_id(comm_id, family)?),
            IdSource::Rendezvous { host, port, seed } => {
                Ok(UniqueId::rendezvous_at(host, *port, SPAN, family, seed.as_bytes())?)
            }
            IdSource::Unknown(reason) => Err(Error::Unavailable {
                what: "a place where the ranks find each other".to_owned(),
                reason: reason.clone(),
            }),
        }
    }

    /// Whether all ranks were told to meet at a loopback address: a network namespace has its own. A name that some host knows
    /// as such an address is none here, as other hosts may know it as another.
    fn meets_at_loopback(&self) -> bool {
        match &self.id_source {
            IdSource::CommId(comm_id) => comm_id.is_loopback(),
            // RFC 6761, section 6.3
            IdSource::Rendezvous { host, .. } => {
                host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
            }
            IdSource::Given(_) | IdSource::Unknown(_) => false,
        }
    }
}

#[cfg(test)]
mod tests;
