//! Revoking: one rank ends the calls of all, so that all can go on elsewhere.
//!
//! It is a failure that says that it is none: the fault that stops kernels, and that travels to the other ranks, has a mark.

use ferroccl_device::abi::{Fault, FaultKind};

use super::Communicator;
use super::state::CommState;
use crate::error::{Error, Result};

/// The mark of a fault: "revoked", in ASCII. A fault of this kind uses the field for nothing else.
const MARK: u64 = u64::from_le_bytes(*b"revoked\0");

impl Communicator {
    /// Ends the calls of all ranks that have not ended, and keeps new ones from being made (`ncclCommRevoke`). Any rank may
    /// call it, alone; it returns at once, and the others are told out of band. It is for programs that find by themselves
    /// that something has gone wrong, and do not want to wait until everybody's time is up: all then
    /// [shrink](Communicator::shrink), in either mode, or drop the communicator.
    ///
    /// Calls that were ended are errors of their streams, [`Error::Revoked`] on every rank; so are new calls. Buffers and
    /// streams stay usable; what was being written has no meaning. A communicator that has failed, or was revoked already,
    /// stays as it is.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] in a fork.
    ///
    /// ```
    /// use ferroccl::{Communicator, Device, Error, ShrinkMode};
    ///
    /// let ranks = Communicator::init_all(&Device::cpu(), 3)?;
    /// let stream = ranks[0].device().stream()?;
    /// ranks[0].barrier(&stream)?; // which waits for the others
    /// ranks[2].revoke()?;
    /// assert!(matches!(stream.synchronize(), Err(Error::Revoked { rank: 0, by: 2 })));
    /// assert!(matches!(ranks[1].barrier(&stream), Err(Error::Revoked { rank: 1, by: 2 })));
    /// let all = Communicator::shrink_all(&ranks, &[], ShrinkMode::Healthy)?;
    /// assert_eq!(all[2].world_size(), 3);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn revoke(&self) -> Result<()> {
        self.0.check_maker()?;
        self.0.revoke();
        Ok(())
    }
}

impl CommState {
    fn revoke(&self) {
        let mut fault = self.own_fault(FaultKind::Aborted);
        fault.expected[0] = MARK;
        self.fail(&fault);
    }
}

/// The error of a communicator with this fault, if it was revoked.
pub(super) fn revoked(fault: &Fault, rank: u32) -> Option<Error> {
    let is = FaultKind::from_raw(fault.kind) == FaultKind::Aborted && fault.expected[0] == MARK;
    is.then_some(Error::Revoked { rank, by: fault.rank })
}
