//! Where GPUs are asked for.

use crate::system::BusId;

/// Somebody who knows the machine's GPUs: the driver, or a test.
pub trait GpuSource {
    /// The GPUs, in the driver's order; none where there is no driver.
    ///
    /// # Errors
    /// The driver is there and fails.
    fn gpus(&self) -> Result<Vec<FoundGpu>, GpuError>;
}

/// A GPU as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundGpu {
    /// Where it is.
    pub bus_id: BusId,
    /// Compute capability, times ten.
    pub sm: u32,
    /// Its `NVLink`s that are up: what is at the other end of each.
    pub nvlinks: Vec<Peer>,
    /// What joins it to the CPU of its module.
    pub c2c: Option<C2c>,
}

/// The other end of an `NVLink`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The device at this address.
    At(BusId),
    /// A switch that this machine does not see, because it is a virtual one.
    Unseen,
}

/// `NVLink-C2C` of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct C2c {
    /// Of one link, 10^6 bytes a second.
    pub mbytes_per_s: u32,
    /// Links that are up.
    pub count: u32,
}

/// The driver failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed with {code}{}", meaning(*.code))]
pub struct GpuError {
    /// The driver's function.
    pub call: &'static str,
    /// Its result.
    pub code: i32,
}

/// The usual results of NVML (`nvmlReturn_t` in nvml.h).
fn meaning(code: i32) -> &'static str {
    match code {
        3 => " (not supported)",
        4 => " (no permission)",
        13 => " (the library does not have this function)",
        15 => " (the GPU is lost)",
        16 => " (the GPU must be reset)",
        17 => " (blocked by the operating system)",
        18 => " (library and driver are of different versions)",
        999 => " (unknown error)",
        _ => "",
    }
}

/// No GPUs.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoGpus;

impl GpuSource for NoGpus {
    fn gpus(&self) -> Result<Vec<FoundGpu>, GpuError> {
        Ok(Vec::new())
    }
}
