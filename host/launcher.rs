//! Which rank this process is, as its launcher tells through the environment.
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
//! rendezvous is derived from: the rest of it is no secret.
//!
//! Reading is a pure function of the variables. What is half set or contradicts itself is an error that names
//! the variable.

use std::fmt::{self, Display};
use std::thread;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::config::Config;
use crate::error::{Error, Result};
use ferroccl_bootstrap::{CommId, UniqueId};

/// Ports that a derived rendezvous may use.
pub const SPAN: u8 = 16;

/// Derived ports begin here: above what services use by habit...
const FIRST_PORT: u16 = 15_000;
/// ... and end below 32768, where Linux begins to hand out ports by itself (`ip_local_port_range`).
const PORTS: u16 = 17_000;

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

    /// The id of the job's ranks: the same on every rank, without a word between them.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when nothing says where to meet, with what to set; [`Error::System`] when a host
    /// name cannot be looked up; in a pod, not within [`Config::bootstrap_timeout`].
    pub fn unique_id(&self, config: &Config) -> Result<UniqueId> {
        let deadline = Instant::now() + config.bootstrap_timeout;
        loop {
            match self.look_up(config) {
                Err(Error::System { .. })
                    if self.launcher == Launcher::Kubernetes && Instant::now() < deadline =>
                {
                    thread::sleep(LOOKUPS);
                }
                result => return result,
            }
        }
    }

    /// The id, if names can be looked up now.
    fn look_up(&self, config: &Config) -> Result<UniqueId> {
        match &self.id_source {
            IdSource::Given(id) => Ok(**id),
            IdSource::CommId(comm_id) => {
                let id = UniqueId::from_comm_id(comm_id, config.socket_family)?;
                Ok(id.mixed_with(config.secret()))
            }
            IdSource::Rendezvous { host, port, seed } => {
                let family = config.socket_family;
                let id = UniqueId::rendezvous_at(host, *port, SPAN, family, seed.as_bytes())?;
                Ok(id.mixed_with(config.secret()))
            }
            IdSource::Unknown(reason) => Err(Error::Unavailable {
                what: "a place where the ranks find each other".to_owned(),
                reason: reason.clone(),
            }),
        }
    }
}

/// The variables of one launcher.
struct Names {
    rank: &'static [&'static str],
    size: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_size: &'static [&'static str],
}

/// In the order in which they are looked for.
const LAUNCHERS: &[(Launcher, Names)] = &[
    (
        Launcher::Ferroccl,
        Names {
            rank: &["FERROCCL_RANK"],
            size: &["FERROCCL_WORLD_SIZE"],
            local_rank: &["FERROCCL_LOCAL_RANK"],
            local_size: &["FERROCCL_LOCAL_SIZE"],
        },
    ),
    (
        Launcher::Torchrun,
        Names {
            rank: &["RANK"],
            size: &["WORLD_SIZE"],
            local_rank: &["LOCAL_RANK"],
            local_size: &["LOCAL_WORLD_SIZE"],
        },
    ),
    (
        Launcher::OpenMpi,
        Names {
            rank: &["OMPI_COMM_WORLD_RANK"],
            size: &["OMPI_COMM_WORLD_SIZE"],
            local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
            local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        },
    ),
    (
        Launcher::Pmi,
        Names {
            rank: &["PMI_RANK"],
            size: &["PMI_SIZE"],
            local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK"],
            local_size: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
        },
    ),
    (
        Launcher::Slurm,
        Names {
            rank: &["SLURM_PROCID"],
            size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
            local_rank: &["SLURM_LOCALID"],
            local_size: &[],
        },
    ),
    (
        Launcher::Kubernetes,
        Names {
            rank: &["JOB_COMPLETION_INDEX"],
            size: &["WORLD_SIZE"],
            local_rank: &[],
            local_size: &[],
        },
    ),
];

impl Names {
    /// Whether this launcher started us. Names that nobody else uses count alone, so that one that is missing
    /// is noticed; `RANK` and `WORLD_SIZE` are anybody's, and count together. So do a pod's number and its
    /// job's size: pods that have numbers may have nothing to do with each other.
    fn apply(&self, launcher: Launcher, env: &Env<'_>) -> bool {
        let any = |names: &[&str]| names.iter().any(|name| env.text(name).is_some());
        match launcher {
            Launcher::Torchrun | Launcher::Kubernetes => any(self.rank) && any(self.size),
            // Slurm sets the rank in a batch script too, of which there is one. Only a step has several.
            Launcher::Slurm => any(self.rank) && any(SLURM_STEP),
            _ => any(self.rank) || any(self.size),
        }
    }
}

/// Set in the steps that `srun` starts, not in the batch script around them.
const SLURM_STEP: &[&str] =
    &["SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS"];

/// A number and the variable it came from.
#[derive(Clone)]
struct Number {
    name: &'static str,
    value: u32,
}

/// What is known when the place to meet is looked for.
struct Job {
    world_size: u32,
    local_size: u32,
}

impl Job {
    fn is_on_one_host(&self) -> bool {
        self.local_size == self.world_size
    }
}

fn invalid(name: &str, value: impl Display, reason: impl Into<String>) -> Error {
    Error::InvalidSetting { name: name.to_owned(), value: value.to_string(), reason: reason.into() }
}

fn check_range(rank: &Number, size: &Number) -> Result<()> {
    if size.value == 0 {
        return Err(invalid(size.name, 0, "there is at least one rank"));
    }
    if rank.value >= size.value {
        let reason = format!("not below {}={}", size.name, size.value);
        return Err(invalid(rank.name, rank.value, reason));
    }
    Ok(())
}

/// The environment.
struct Env<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Env<'_> {
    /// A variable's value; what is set to nothing is not set.
    fn text(&self, name: &str) -> Option<String> {
        (self.0)(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    fn number(&self, name: &'static str) -> Result<Option<Number>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let value = text.parse().map_err(|_| invalid(name, &text, "not a number of a rank"))?;
        Ok(Some(Number { name, value }))
    }

    fn first_number(&self, names: &[&'static str]) -> Result<Option<Number>> {
        names.iter().find_map(|name| self.number(name).transpose()).transpose()
    }

    fn required(&self, names: &[&'static str]) -> Result<Number> {
        self.first_number(names)?.ok_or_else(|| {
            invalid(names[0], "", "not set, while other variables of the same launcher are")
        })
    }

    /// No launcher was found; half of one is an error.
    fn refuse_half_set(&self) -> Result<()> {
        for (set, missing) in [("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")] {
            if let Some(value) = self.text(set) {
                return Err(invalid(missing, "", format!("not set, while {set}={value} is")));
            }
        }
        if let Some(rank) = self.text("PMIX_RANK") {
            let reason = format!(
                "not set, and PMIX_RANK={rank} alone does not say how many ranks there are"
            );
            return Err(invalid("OMPI_COMM_WORLD_SIZE", "", reason));
        }
        Ok(())
    }

    fn id_source(&self, launcher: Launcher, job: &Job) -> Result<IdSource> {
        if let Some(text) = self.text("FERROCCL_UNIQUE_ID") {
            let id = text
                .parse::<UniqueId>()
                .map_err(|e| invalid("FERROCCL_UNIQUE_ID", "...", e.to_string()))?;
            return Ok(IdSource::Given(Box::new(id)));
        }
        if let Some(text) = self.text("NCCL_COMM_ID") {
            let parsed = text.parse::<CommId>();
            let comm_id = parsed.map_err(|e| {
                invalid("NCCL_COMM_ID", &text, format!("{e}; legal: {}", CommId::FORM))
            })?;
            return Ok(IdSource::CommId(comm_id));
        }
        if let Some(rendezvous) = self.master(launcher)? {
            return Ok(rendezvous);
        }
        let derived = match launcher {
            Launcher::Slurm => self.slurm_step(job),
            Launcher::OpenMpi | Launcher::Pmi if job.is_on_one_host() => self.mpi_job(),
            _ => None,
        };
        Ok(derived.unwrap_or_else(|| {
            let why = match launcher {
                Launcher::Ferroccl => "FERROCCL_UNIQUE_ID is not set",
                Launcher::OpenMpi | Launcher::Pmi if !job.is_on_one_host() => {
                    "the ranks are on several hosts, and mpirun does not say where rank 0 is"
                }
                Launcher::Kubernetes => "the job does not say where its pod 0 is",
                _ => "the launcher's variables do not identify the job",
            };
            IdSource::Unknown(format!(
                "{why}; set NCCL_COMM_ID=host:port to where rank 0 runs and a free port there, on every rank"
            ))
        }))
    }

    /// `MASTER_ADDR` and `MASTER_PORT`, both or none.
    fn master(&self, launcher: Launcher) -> Result<Option<IdSource>> {
        let (host, port) = match (self.text("MASTER_ADDR"), self.text("MASTER_PORT")) {
            (Some(host), Some(port)) => (host, port),
            (None, None) if launcher != Launcher::Torchrun => return Ok(None),
            // Anybody may have set one of them for another purpose; only torchrun promises both.
            _ if launcher != Launcher::Torchrun => return Ok(None),
            (None, _) => {
                return Err(invalid("MASTER_ADDR", "", "not set, while RANK and WORLD_SIZE are"));
            }
            (_, None) => {
                return Err(invalid("MASTER_PORT", "", "not set, while RANK and WORLD_SIZE are"));
            }
        };
        let first = port.parse::<u16>().ok().filter(|p| *p > 0).and_then(|p| p.checked_add(1));
        let first =
            first.ok_or_else(|| invalid("MASTER_PORT", &port, "not a port from 1 to 65534"))?;
        let run = self.text("TORCHELASTIC_RUN_ID").unwrap_or_default();
        let restart = self.text("TORCHELASTIC_RESTART_COUNT").unwrap_or_default();
        let seed = format!("master {host}:{port} run {run} restart {restart}");
        Ok(Some(IdSource::Rendezvous { host, port: first, seed }))
    }

    /// A job of one host, known by what its launcher gives every rank alike.
    fn mpi_job(&self) -> Option<IdSource> {
        let known: Vec<String> = [
            "OMPI_MCA_orte_precondition_transports", // a random key of the job, in Open MPI 4
            "OMPI_MCA_ess_base_jobid",
            "OMPI_MCA_orte_hnp_uri",
            "PMIX_NAMESPACE",
            "PMIX_SERVER_URI4",
            "PMIX_SERVER_URI2",
            "PMI_JOBID",
        ]
        .iter()
        .filter_map(|name| Some(format!("{name}={}", self.text(name)?)))
        .collect();
        if known.is_empty() {
            return None;
        }
        let seed = format!("mpi {}", known.join(" "));
        Some(IdSource::Rendezvous { host: "127.0.0.1".to_owned(), port: derived_port(&seed), seed })
    }

    /// A step of Slurm: rank 0 is on its first host.
    fn slurm_step(&self, job: &Job) -> Option<IdSource> {
        let id = self.text("SLURM_JOB_ID").or_else(|| self.text("SLURM_JOBID"))?;
        let step =
            self.text("SLURM_STEP_ID").or_else(|| self.text("SLURM_STEPID")).unwrap_or_default();
        let seed = format!("slurm job {id} step {step}");
        let host = if job.is_on_one_host() {
            "127.0.0.1".to_owned()
        } else {
            let names = ["SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"];
            first_host(&names.iter().find_map(|name| self.text(name))?)?
        };
        Some(IdSource::Rendezvous { host, port: derived_port(&seed), seed })
    }

    /// Ranks on this node: of `4(x2),3` for the nodes 0, 1 and 2, the one of `SLURM_NODEID`.
    fn slurm_local_size(&self) -> Result<Option<Number>> {
        let tasks = "SLURM_STEP_TASKS_PER_NODE";
        let node = self.number("SLURM_NODEID")?.map_or(0, |n| n.value);
        let Some(text) = self.text(tasks) else { return Ok(None) };
        let bad = || invalid(tasks, &text, "not a list like 4(x2),3");
        let mut left = node;
        for part in text.split(',') {
            let (count, times) = match part.split_once("(x") {
                Some((count, times)) => (count, times.strip_suffix(')').ok_or_else(bad)?),
                None => (part, "1"),
            };
            let (count, times): (u32, u32) =
                (count.parse().map_err(|_| bad())?, times.parse().map_err(|_| bad())?);
            if left < times {
                return Ok(Some(Number { name: tasks, value: count }));
            }
            left -= times;
        }
        Err(invalid(tasks, &text, format!("it says nothing of SLURM_NODEID={node}")))
    }
}

/// The port that a job of this seed begins at. Two jobs may get the same one: they know each other by their
/// secrets, and each takes another port of its span.
fn derived_port(seed: &str) -> u16 {
    let digest: [u8; 32] = Sha256::digest(seed.as_bytes()).into();
    FIRST_PORT + u16::from_le_bytes([digest[0], digest[1]]) % PORTS
}

/// The first host of a Slurm node list: `n01` of `n[01-04,07],x3`.
fn first_host(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (prefix, rest) = list.split_at(end);
    let Some(ranges) = rest.strip_prefix('[') else { return Some(prefix.to_owned()) };
    let (ranges, after) = ranges.split_once(']')?;
    let first = ranges.split([',', '-']).next()?;
    let suffix = after.split(',').next()?;
    // A second bracket (two-dimensional names) begins the same way.
    let suffix = if suffix.contains('[') || after.starts_with('[') {
        first_host(after)?
    } else {
        suffix.to_owned()
    };
    Some(format!("{prefix}{first}{suffix}"))
}

#[cfg(test)]
#[path = "launcher_tests.rs"]
mod tests;
