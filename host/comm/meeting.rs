//! Where ranks of a communicator come together again: it may have failed, or be suspended, and be gone by then.
//!
//! ```text
//! after init_rank   at the first rank's meeting place, which needs nothing of the ring (bootstrap)
//! after init_all    in memory; who comes last makes the communicators                  (out_of_band)
//! ```

use std::sync::Arc;

use ferroccl_bootstrap::{BootstrapError, Limit, MeetingPlace, MissingRanks, Stop};

use super::out_of_band::{LocalGroup, OutOfBand};
use super::state::CommState;
use super::{CommConfig, Communicator, setup};
use crate::buffer::Device;
use crate::config::Config;
use crate::error::{Error, Result};

/// Where the ranks of a communicator meet.
#[derive(Clone, Debug)]
pub(super) enum Meeting {
    Ring(Arc<MeetingPlace>),
    Local(Arc<LocalGroup>),
    /// Of a group of one.
    Alone,
}

/// What ranks meet for: for errors, with what may have gone wrong.
#[derive(Clone, Debug)]
pub(super) struct MeetingFor {
    pub what: String,
    pub hint: &'static str,
}

impl Meeting {
    pub(super) fn of(comm: &CommState) -> Self {
        match (comm.out_of_band.get(), comm.meeting_place.get()) {
            (Some(OutOfBand::Local(member)), _) => Meeting::Local(Arc::clone(&member.group)),
            (_, Some(place)) => Meeting::Ring(Arc::clone(place)),
            _ => Meeting::Alone,
        }
    }

    /// The communicator of the old one's ranks `all`, of which this is `rank`, when all of them have come.
    ///
    /// # Errors
    /// [`Error::Bootstrap`] when not all come within `FERROCCL_BOOTSTRAP_TIMEOUT`; the errors of [`Communicator::init_rank`].
    pub(super) fn connect(
        &self,
        (rank, device): (u32, &Device),
        all: &[u32],
        (config, stop): (&CommConfig, &Stop),
        purpose: &MeetingFor,
    ) -> Result<Communicator> {
        let env = Config::from_env()?;
        let limit = Limit { time: env.bootstrap_timeout, stop: stop.clone() };
        match self {
            Meeting::Local(group) => {
                let made = group.reunite((rank, device), all, config, &limit, &purpose.what)?;
                if let Some(abort) = &config.abort {
                    abort.guard(made.0.downgrade());
                }
                Ok(made)
            }
            Meeting::Ring(place) => {
                let index = all.iter().position(|one| *one == rank).unwrap_or(0) as u32;
                let whole = config.or(&CommConfig::from_env(&env));
                let mine = setup::peer_info(index, device, &whole);
                let met = place
                    .connect_with(&setup::introduction(&mine)?, stop.clone(), all, &env.bootstrap())
                    .map_err(|error| missing(error, all, purpose))?;
                Communicator::from_bootstrap(device, mine.and(Ok(met))?, config)
            }
            Meeting::Alone => {
                let mut one = Communicator::init_all_with(device, 1, config)?;
                one.pop().ok_or_else(|| Error::malformed("a group of one has no rank"))
            }
        }
    }
}

/// The error of a group that has not come together, with its ranks' numbers in the old one.
fn missing(error: BootstrapError, all: &[u32], MeetingFor { what, hint }: &MeetingFor) -> Error {
    let why = match &error {
        BootstrapError::MissingRanks(missing) => {
            let old = |new: &u32| all.get(*new as usize).copied().unwrap_or(*new);
            let named = missing.named.iter().map(old).collect();
            MissingRanks { named, ..missing.clone() }.to_string()
        }
        BootstrapError::NoRoot { trouble, .. } => {
            format!("rank {} is not there ({trouble})", all[0])
        }
        _ => return error.into(),
    };
    Error::Bootstrap(BootstrapError::Mismatch(format!("{what}: {why}; {hint}")))
}
