//! What programs made for NCCL run on.

use std::fmt::{self, Display};
use std::str::FromStr;

/// The device of programs that call `libnccl.so.2` (`FERROCCL_DEVICE`). A program in Rust chooses its [`Device`](crate::Device)
/// itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LibraryDevice {
    /// The GPU that is current to the calling thread, as with NCCL.
    #[default]
    Cuda,
    /// The CPU: pointers are the host's, and streams are not looked at.
    Cpu,
}

impl LibraryDevice {
    /// What may be written.
    pub const NAMES: &'static str = "cuda or cpu";
}

impl Display for LibraryDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LibraryDevice::Cuda => "cuda",
            LibraryDevice::Cpu => "cpu",
        })
    }
}

impl FromStr for LibraryDevice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.to_ascii_lowercase().as_str() {
            "cuda" => Ok(LibraryDevice::Cuda),
            "cpu" => Ok(LibraryDevice::Cpu),
            _ => Err("neither cuda nor cpu"),
        }
    }
}
