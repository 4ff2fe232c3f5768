//! Why there is no system.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::assume::AssumeError;
use super::detect::GpuError;
use super::xml::XmlError;

/// Why a topology cannot be read, found or written.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A file, or what was found on the machine and put as one, makes no sense.
    #[error(transparent)]
    Xml(#[from] XmlError),
    /// What is to be assumed makes no sense.
    #[error(transparent)]
    Assume(#[from] AssumeError),
    /// There are GPUs, and they cannot be asked.
    #[error(transparent)]
    Gpus(#[from] GpuError),
    /// A system that NCCL's format cannot say.
    #[error("not to be written as a topology file: {0}")]
    Unwritable(String),
    /// The operating system refused.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: Arc<io::Error>,
    },
}
