//! Where a command's machine comes from: a topology file, or this machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use ferroccl::config::Config;
use ferroccl::topology::{self, Assume, System, TopologyError, merge};

/// The machine that a command is about.
#[derive(Args, Clone, Debug)]
pub(crate) struct Source {
    /// A host's topology, as NCCL writes it (NCCL_TOPO_DUMP_FILE) [default: NCCL_TOPO_FILE, else this machine]
    #[arg(long, value_name = "FILE", help_heading = "Machine")]
    pub(crate) file: Option<PathBuf>,
    /// What the file leaves open, such as sm=80,nvswitch=12; see below
    #[arg(long, value_name = "KEY=VALUE,...", requires = "file", help_heading = "Machine")]
    assume: Option<Assume>,
}

/// What `--assume` takes, for the end of a help text.
pub(crate) const ASSUME_HELP: &str = "\
--assume takes sm=N (compute capability times ten), nvswitch=N (each GPU has N NVLinks to switches) or nvlink=N \
(N between each two GPUs), net=MBIT/S, gdr=0|1 and pci=GENERATION, for what the file does not say.";

impl Source {
    /// Reads or finds it. `NCCL_TOPO_DUMP_FILE` gets it whole, with what is assumed.
    pub(crate) fn system(&self, config: &Config) -> Result<System, TopologyError> {
        match &self.file {
            Some(path) => {
                let system = topology::load_file(path, &self.assume.unwrap_or_default())?;
                if let Some(dump) = &config.topo_dump_file {
                    let text = topology::dump::to_xml(&system)?.to_xml();
                    std::fs::write(dump, text).map_err(|source| TopologyError::Io {
                        path: dump.into(),
                        source: Arc::new(source),
                    })?;
                }
                Ok(system)
            }
            None => topology::load(&config.topology_files()),
        }
    }

    /// The system with its cards merged, as far as the network that it will have merges any (`NCCL_NET_MERGE_LEVEL`).
    ///
    /// # Errors
    /// When the cards of `NCCL_NET_FORCE_MERGE` are not there.
    pub(crate) fn merged(system: &System, config: &Config) -> Result<System, ferroccl::Error> {
        let rules = config.merge_rules();
        let sockets = config.net.as_deref().is_some_and(|net| net.eq_ignore_ascii_case("Socket"));
        let none = "network Socket makes no virtual devices".to_owned();
        let merged = match sockets {
            true if rules.groups.is_empty() => Ok(system.clone()),
            true => Err(none),
            false => merge::merge_ports(system, &rules),
        };
        merged.map_err(|reason| ferroccl::Error::InvalidSetting {
            name: "NCCL_NET_FORCE_MERGE".to_owned(),
            value: rules.groups.to_string(),
            reason,
        })
    }

    /// What to call it.
    pub(crate) fn name(&self, config: &Config) -> String {
        let named = config.topo_file.as_deref().map(Path::new);
        self.file
            .as_deref()
            .or(named)
            .map_or("this machine".into(), |file| file.display().to_string())
    }
}
