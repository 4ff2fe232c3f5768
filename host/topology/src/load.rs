//! The topology that a process works with: a file's, or the machine's.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::Files;
use super::assume::Assume;
use super::build;
use super::detect::{self, Detected, Devices, GpuSource, Nvml, Roots};
use super::error::TopologyError;
use super::system::System;
use super::xml;

/// The system of this machine, or of the file to be read (`NCCL_TOPO_FILE`); written to the file to be dumped
/// (`NCCL_TOPO_DUMP_FILE`). GPUs where there are any, else the CPU's NUMA nodes.
///
/// # Errors
/// What [`load_from`] says.
pub fn load(files: &Files) -> Result<System, TopologyError> {
    let found = load_from(files, &Roots::default(), &Nvml, Devices::default())?;
    for note in &found.notes {
        tracing::info!(target: crate::LOG_TARGET, "topology: {note}");
    }
    Ok(found.system)
}

/// As [`load`], of a machine whose views and driver are given.
///
/// What the file does not say of a device that is there, the machine does; what no GPU reaches is left out.
///
/// # Errors
/// A file that cannot be read or makes no sense, or that leaves open what this machine does not know either; a driver
/// that fails; a dump that cannot be written.
pub fn load_from(
    files: &Files,
    roots: &Roots,
    gpus: &dyn GpuSource,
    devices: Devices,
) -> Result<Detected, TopologyError> {
    let found = match &files.read {
        None => detect::machine(roots, gpus, devices)?,
        Some(file) => {
            let mut element = xml::read(Path::new(file))?;
            detect::complete(&mut element, roots, gpus)?;
            let built = build::system(&element, file, &Assume::default())?;
            Detected { element, system: super::trim(&built.system), notes: built.notes }
        }
    };
    if let Some(file) = &files.dump {
        let path = Path::new(file);
        fs::write(path, found.element.to_xml()).map_err(|source| TopologyError::Io {
            path: path.to_owned(),
            source: Arc::new(source),
        })?;
    }
    Ok(found)
}

/// The system that a topology file describes, wherever its machine is: what it leaves open is assumed.
///
/// # Errors
/// A file that cannot be read or makes no sense, or leaves open what is not assumed.
pub fn load_file(path: &Path, assume: &Assume) -> Result<System, TopologyError> {
    let root = xml::read(path)?;
    let built = build::system(&root, &path.display().to_string(), assume)?;
    for note in &built.notes {
        tracing::info!(target: crate::LOG_TARGET, "topology: {note}");
    }
    Ok(built.system)
}
