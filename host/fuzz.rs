//! What fuzzing gives the library, and what must hold: see `fuzz/README.md`. No part of the public interface.

use std::collections::HashMap;

pub use crate::comm::fuzz::{reports, setup};
use crate::config::{Config, KNOBS, unknown_variables};
use crate::launcher::RankEnv;

/// Variables: lines, of which the first byte says which one it is, and the rest its value.
fn variables<'a>(data: &'a [u8], names: &[&'static str]) -> HashMap<&'static str, &'a str> {
    let Ok(text) = str::from_utf8(data) else { return HashMap::new() };
    let variable = |line: &'a str| {
        let first = line.chars().next()?;
        let name = names[first as usize % names.len()];
        Some((name, &line[first.len_utf8()..]))
    };
    text.lines().filter_map(variable).collect()
}

fn another(c: char) -> char {
    if c == 'x' { 'y' } else { 'x' }
}

/// Settings.
pub fn settings(data: &[u8]) {
    let names: Vec<_> = KNOBS.iter().map(|knob| knob.name).collect();
    let given = variables(data, &names);
    let read = |given: &HashMap<&str, &str>| {
        Config::from_lookup(|name| given.get(name).map(|&text| text.to_owned()))
    };
    let config = match read(&given) {
        Ok(config) => config,
        Err(error) => {
            // Nothing of a secret is shown if the error is the same with another secret.
            let Some(secret) = given.get("FERROCCL_SECRET") else { return };
            let other: String = secret
                .chars()
                .map(|c| if c.is_ascii_alphanumeric() { another(c) } else { c })
                .collect();
            let mut given = given.clone();
            given.insert("FERROCCL_SECRET", &other);
            let again = read(&given).err().map(|error| error.to_string());
            assert_eq!(again, Some(error.to_string()), "an error shows a secret");
            return;
        }
    };
    let entries = |config: &Config| -> Vec<(&'static str, String)> {
        config.entries().into_iter().map(|(knob, value)| (knob.name, value)).collect()
    };
    let shown = entries(&config);
    let again = Config::from_lookup(|name| {
        let (_, value) = shown.iter().find(|(knob, _)| *knob == name)?;
        // A secret is not shown.
        let value = if name == "FERROCCL_SECRET" { given.get(name).copied()? } else { value };
        Some(value.to_owned())
    });
    let again = again.unwrap_or_else(|error| panic!("{error}: {given:?}"));
    assert_eq!(entries(&again), shown, "{given:?}");
    let _ =
        (config.bootstrap(), config.runtime(), config.policy(), config.search(), config.tuning());
    let _ = (config.topology_files(), config.graph_files());
}

/// Names of variables that may be meant for settings.
pub fn names(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    for unknown in unknown_variables(text.lines().map(str::to_owned)) {
        assert!(KNOBS.iter().all(|knob| knob.name != unknown.name), "{unknown:?}");
        let _ = unknown.to_string();
    }
}

/// What launchers set.
pub fn launchers(data: &[u8]) {
    const NAMES: &[&str] = &[
        "FERROCCL_RANK",
        "FERROCCL_WORLD_SIZE",
        "FERROCCL_LOCAL_RANK",
        "FERROCCL_LOCAL_SIZE",
        "FERROCCL_UNIQUE_ID",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMI_RANK",
        "PMI_SIZE",
        "PMI_JOBID",
        "PMIX_NAMESPACE",
        "PMIX_RANK",
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
        "SLURM_PROCID",
        "SLURM_NTASKS",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
        "SLURM_STEP_NODELIST",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_STEP_TASKS_PER_NODE",
        "JOB_COMPLETION_INDEX",
        "NCCL_COMM_ID",
    ];
    let given = variables(data, NAMES);
    match RankEnv::from_lookup(|name| given.get(name).map(|&text| text.to_owned())) {
        Ok(Some(env)) => {
            assert!(env.rank < env.world_size && env.local_rank < env.local_size, "{env:?}");
            assert!(env.local_size <= env.world_size, "{env:?}");
        }
        Ok(None) => {}
        Err(error) => drop(error.to_string()),
    }
}

/// A file of the cache of assembled kernels, and as the kernel in one.
#[cfg(feature = "cuda")]
pub fn cubins(data: &[u8]) {
    crate::runtime::cuda::cubins(data);
}

#[cfg(test)]
#[path = "../fuzz/src/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::seeds;

    #[test]
    fn what_fuzzing_begins_with_passes() {
        seeds::replay(&[
            ("comm_setup", super::setup),
            ("comm_reports", super::reports),
            ("settings", super::settings),
            ("settings_names", super::names),
            ("launchers", super::launchers),
        ]);
    }

    #[test]
    #[cfg(feature = "cuda")]
    fn what_fuzzing_of_cubins_begins_with_passes() {
        seeds::replay(&[("cubins", super::cubins)]);
    }
}
