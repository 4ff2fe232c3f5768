//! Clusters of topology files, and calls on them.

use std::path::Path;

use ferroccl::config::Config;
use ferroccl::topology::{Assume, System, load_file};
use ferroccl::{Algorithm, Collective, ProtocolId};
use ferroccl_simulator::{Call, Cluster, FabricSpec, Fault, Options, Outcome};

/// A host of the test files.
pub(crate) fn host(name: &str) -> System {
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/topology_files");
    load_file(&files.join(name), &Assume::default()).unwrap()
}

/// The same with the first GPUs alone.
pub(crate) fn with_gpus(system: &System, gpus: usize) -> System {
    let used: Vec<_> = system.gpus().iter().take(gpus).map(|(id, _)| *id).collect();
    let all: Vec<_> = system.gpus().iter().map(|(id, _)| *id).collect();
    system.filtered(|id, _| used.contains(&id) || !all.contains(&id))
}

/// Hosts like `system`, by settings of the environment's names.
pub(crate) fn cluster(
    system: &System,
    hosts: u32,
    fabric: &str,
    settings: &[(&str, &str)],
    faults: &[Fault],
) -> Cluster {
    let get = |name: &str| {
        settings.iter().find(|setting| setting.0 == name).map(|setting| setting.1.to_owned())
    };
    let config = Config::from_lookup(get).unwrap();
    Cluster::new(system, hosts, &config, &fabric.parse::<FabricSpec>().unwrap(), faults).unwrap()
}

/// An all-reduce.
pub(crate) fn all_reduce(bytes: u64, algorithm: Algorithm, protocol: ProtocolId) -> Call {
    Call {
        collective: Collective::AllReduce,
        bytes,
        algorithm: Some(algorithm),
        protocol: Some(protocol),
    }
}

/// A run with the usual options.
pub(crate) fn run(cluster: &Cluster, call: &Call) -> Outcome {
    cluster.simulate(call, &Options::default()).unwrap()
}
