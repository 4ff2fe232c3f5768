//! What each launcher sets, and what is read from it.

use std::fmt::Display;

use sha2::{Digest, Sha256};

use super::{IdSource, Launcher};
use crate::error::{Error, Result};
use ferroccl_bootstrap::{CommId, UniqueId};

/// Derived ports begin here: above what services use by habit...
const FIRST_PORT: u16 = 15_000;
/// ... and end below 32768, where Linux begins to hand out ports by itself (`ip_local_port_range`).
const PORTS: u16 = 17_000;

/// The variables of one launcher.
pub(super) struct Names {
    pub rank: &'static [&'static str],
    pub size: &'static [&'static str],
    pub local_rank: &'static [&'static str],
    pub local_size: &'static [&'static str],
}

/// In the order in which they are looked for.
pub(super) const LAUNCHERS: &[(Launcher, Names)] = &[
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
    pub(super) fn apply(&self, launcher: Launcher, env: &Env<'_>) -> bool {
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
pub(super) struct Number {
    pub name: &'static str,
    pub value: u32,
}

/// What is known when the place to meet is looked for.
pub(super) struct Job {
    pub world_size: u32,
    pub local_size: u32,
}

impl Job {
    fn is_on_one_host(&self) -> bool {
        self.local_size == self.world_size
    }
}

pub(super) fn invalid(name: &str, value: impl Display, reason: impl Into<String>) -> Error {
    Error::InvalidSetting { name: name.to_owned(), value: value.to_string(), reason: reason.into() }
}

pub(super) fn check_range(rank: &Number, size: &Number) -> Result<()> {
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
pub(super) struct Env<'a>(pub &'a dyn Fn(&str) -> Option<String>);

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

    pub(super) fn first_number(&self, names: &[&'static str]) -> Result<Option<Number>> {
        names.iter().find_map(|name| self.number(name).transpose()).transpose()
    }

    pub(super) fn required(&self, names: &[&'static str]) -> Result<Number> {
        self.first_number(names)?.ok_or_else(|| {
            invalid(names[0], "", "not set, while other variables of the same launcher are")
        })
    }

    /// No launcher was found; half of one is an error.
    pub(super) fn refuse_half_set(&self) -> Result<()> {
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

    pub(super) fn id_source(&self, launcher: Launcher, job: &Job) -> Result<IdSource> {
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
    pub(super) fn slurm_local_size(&self) -> Result<Option<Number>> {
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
pub(super) fn derived_port(seed: &str) -> u16 {
    let digest: [u8; 32] = Sha256::digest(seed.as_bytes()).into();
    FIRST_PORT + u16::from_le_bytes([digest[0], digest[1]]) % PORTS
}

/// The first host of a Slurm node list: `n01` of `n[01-04,07],x3`.
pub(super) fn first_host(list: &str) -> Option<String> {
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
