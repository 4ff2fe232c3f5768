//! `FERROCCL_TUNER_FILE`: times that were fitted to runs.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::sync::Arc;

use ferroccl_topology::graph::tuning::FittedCosts;

/// A file of fitted times, and what is in it.
#[derive(Clone, Debug, PartialEq)]
pub struct TunerFile {
    path: String,
    costs: Arc<FittedCosts>,
    digest: u64,
}

impl TunerFile {
    /// What is in it.
    #[must_use]
    pub fn costs(&self) -> &Arc<FittedCosts> {
        &self.costs
    }

    /// A number that is the same for files of the same bytes: all ranks need the same one.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest
    }
}

impl Display for TunerFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

impl FromStr for TunerFile {
    type Err = String;

    fn from_str(path: &str) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
        let costs: FittedCosts =
            serde_json::from_str(&text).map_err(|e| format!("{path} is no file of times: {e}"))?;
        costs.check().map_err(|why| format!("{path}: {why}"))?;
        // FNV-1a. Never 0, which stands for no file.
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        let digest = text.bytes().fold(0xcbf2_9ce4_8422_2325, step).max(1);
        Ok(TunerFile { path: path.to_owned(), costs: Arc::new(costs), digest })
    }
}
