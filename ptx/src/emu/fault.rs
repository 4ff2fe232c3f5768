//! What a kernel did wrong, and where.

use std::fmt;

use super::Program;
use crate::syntax::Position;

/// Where in a run something happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The kernel.
    pub kernel: String,
    /// Which launch of the machine it belongs to.
    pub launch: u64,
    /// The block's index in its grid.
    pub block: u32,
    /// The warp's index in its block.
    pub warp: u32,
    /// The lanes it is about.
    pub lanes: u32,
    /// Line and column of the instruction in the PTX.
    pub position: Position,
    /// The instruction.
    pub text: String,
    /// The line of source that it comes from, if the PTX says: `file:line`.
    pub source: Option<String>,
}

impl Site {
    pub(crate) fn new(
        program: &Program,
        launch: u64,
        block: u32,
        warp: u32,
        lanes: u32,
        pc: u32,
    ) -> Self {
        Site {
            kernel: program.name().to_owned(),
            launch,
            block,
            warp,
            lanes,
            position: program.position(pc),
            text: program.text(pc).to_owned(),
            source: program.source_line(pc).map(|(file, line)| format!("{file}:{line}")),
        }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (launch {}) block {} warp {} {}: `{}` at line {}",
            self.kernel,
            self.launch,
            self.block,
            self.warp,
            Lanes(self.lanes),
            self.text,
            self.position.line
        )?;
        match &self.source {
            Some(source) => write!(f, ", from {source}"),
            None => Ok(()),
        }
    }
}

/// A mask as people write it: `lane 3`, `lanes 0-7,9`, `all lanes`.
pub(crate) struct Lanes(pub(crate) u32);

impl fmt::Display for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => return f.write_str("no lane"),
            u32::MAX => return f.write_str("all lanes"),
            one if one.is_power_of_two() => return write!(f, "lane {}", one.trailing_zeros()),
            _ => f.write_str("lanes ")?,
        }
        let mut lane = 0;
        let mut comma = "";
        while lane < 32 {
            let run = (self.0 >> lane).trailing_ones();
            match run {
                0 => {
                    lane += 1;
                    continue;
                }
                1 => write!(f, "{comma}{lane}")?,
                _ => write!(f, "{comma}{lane}-{}", lane + run - 1)?,
            }
            comma = ",";
            lane += run;
        }
        Ok(())
    }
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// An access outside of all memory that the device has; the text says what lies next to it.
    OutOfBounds {
        /// The address, as the lane had it.
        address: u64,
        /// Bytes of the access.
        bytes: u64,
        /// What lies there, or next to it.
        near: String,
    },
    /// An address that is not a multiple of the access's size (6.4.1: vectors of the whole vector's).
    Misaligned {
        /// The address.
        address: u64,
        /// What it should be a multiple of.
        bytes: u64,
    },
    /// A load of memory that nobody has written.
    Uninitialised {
        /// The address.
        address: u64,
    },
    /// Two accesses to the same bytes, at least one of them a store, that nothing orders and that are not both strong
    /// towards each other (8.6.1 and 8.7). The other access is the first of [`Fault::others`].
    Race {
        /// The address.
        address: u64,
    },
    /// Warps that do not agree about a barrier.
    Barrier(String),
    /// Lanes that do not come to an instruction which they should run together.
    Divergence(String),
    /// Nobody can go on, or all wait for what nobody will store. The others are [`Fault::others`].
    Deadlock,
    /// `trap`, or a branch or instruction that cannot be followed.
    Trap(String),
    /// More steps than the run was allowed.
    Steps(u64),
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultKind::OutOfBounds { address, bytes, near } => {
                write!(f, "out of bounds: {bytes} bytes at {address:#x}, {near}")
            }
            FaultKind::Misaligned { address, bytes } => {
                write!(f, "misaligned: {address:#x} is no multiple of {bytes}")
            }
            FaultKind::Uninitialised { address } => {
                write!(f, "uninitialised: nobody has written the memory at {address:#x}")
            }
            FaultKind::Race { address } => write!(f, "data race at {address:#x}"),
            FaultKind::Barrier(what) => write!(f, "barrier misuse: {what}"),
            FaultKind::Divergence(what) => write!(f, "divergence: {what}"),
            FaultKind::Deadlock => write!(f, "deadlock: nobody can go on"),
            FaultKind::Trap(what) => write!(f, "trap: {what}"),
            FaultKind::Steps(steps) => write!(f, "not done after {steps} steps"),
        }
    }
}

/// An error of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What went wrong.
    pub kind: FaultKind,
    /// Where it was noticed.
    pub site: Site,
    /// Who else has to do with it: the other access of a race, the other warps of a deadlock.
    pub others: Vec<Site>,
}

impl std::error::Error for Fault {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  in {}", self.kind, self.site)?;
        // A deadlock has as many places as warps: enough to see who waits for whom.
        const SHOWN: usize = 32;
        for other in self.others.iter().take(SHOWN) {
            write!(f, "\n  and {other}")?;
        }
        match self.others.len().checked_sub(SHOWN) {
            Some(more) if more > 0 => write!(f, "\n  and {more} more"),
            _ => Ok(()),
        }
    }
}

/// A fault before it is known where: what went wrong, in which lanes.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) kind: FaultKind,
    pub(crate) lanes: u32,
    /// Who else: warp slot, lanes, and the instruction.
    pub(crate) other: Option<Site>,
    /// The warp and the instruction that it is about, where they are not those that run.
    pub(crate) at: Option<(u32, u32)>,
}

impl Trouble {
    pub(crate) fn new(kind: FaultKind, lanes: u32) -> Box<Self> {
        Box::new(Trouble { kind, lanes, other: None, at: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_readable() {
        let text = |mask| Lanes(mask).to_string();
        assert_eq!(text(u32::MAX), "all lanes");
        assert_eq!(text(8), "lane 3");
        assert_eq!(text(0b10_1111_0001), "lanes 0,4-7,9");
        assert_eq!(text(1 << 31 | 1), "lanes 0,31");
        assert_eq!(text(0), "no lane");
    }
}
