//! What ranks tell each other beside their kernels' data, as long as they are a communicator.
//!
//! ```text
//! init_rank ─► the ring of the bootstrap, watched          Ring(Watch)
//! init_all  ─► a room that they share                      Process(Seat)
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use super::{Communicator, Inner};
use crate::bootstrap::{Departure, Gathers, Limit, Watch};
use crate::{Error, Result};

/// The way to all other ranks of a communicator.
#[derive(Debug)]
pub(super) enum OutOfBand {
    Ring(Watch),
    Process(Seat),
}

impl OutOfBand {
    /// Gives every rank's bytes to every rank. Collective; what fails once fails from then on.
    ///
    /// # Errors
    /// As [`Gathers::all_gather`].
    pub(super) fn all_gather(&self, mine: &[u8], limit: &Limit) -> Result<Vec<Vec<u8>>> {
        match self {
            OutOfBand::Ring(watch) => watch.all_gather(mine, limit),
            OutOfBand::Process(Seat { room, rank }) => {
                room.gathers[*rank as usize].all_gather(mine, limit, |call| {
                    for gathers in &room.gathers {
                        gathers.heard(call, *rank, mine.to_vec());
                    }
                })
            }
        }
    }

    /// Tells all other ranks something, once: a later time need not arrive.
    pub(super) fn tell(&self, news: &[u8]) {
        match self {
            OutOfBand::Ring(watch) => watch.tell(news),
            OutOfBand::Process(Seat { room, rank }) => {
                for member in room.members.get().into_iter().flatten().filter_map(Weak::upgrade) {
                    member.heard(*rank, news);
                }
            }
        }
    }
}

/// Ranks of one process that came together at once.
#[derive(Debug)]
pub(super) struct Room {
    gathers: Vec<Gathers>,
    members: OnceLock<Vec<Weak<Inner>>>,
    /// Communicators that one of them has made for others, by those.
    made: Mutex<HashMap<u32, Communicator>>,
}

/// A rank's place in a room; the others know when it is given up.
#[derive(Debug)]
pub(super) struct Seat {
    pub room: Arc<Room>,
    rank: u32,
}

impl Room {
    /// Seats all ranks of a group.
    pub(super) fn seat(ranks: &[Communicator]) {
        let nranks = ranks.len() as u32;
        let room = Arc::new(Room {
            gathers: (0..nranks).map(|rank| Gathers::new(rank, nranks)).collect(),
            members: OnceLock::from(ranks.iter().map(|r| Arc::downgrade(&r.0)).collect::<Vec<_>>()),
            made: Mutex::default(),
        });
        for communicator in ranks {
            let seat = Seat { room: Arc::clone(&room), rank: communicator.rank() };
            // The cell is new.
            let _ = communicator.0.oob.set(OutOfBand::Process(seat));
        }
    }

    /// Leaves communicators for `ranks` of the room.
    pub(super) fn leave(&self, ranks: &[u32], made: Vec<Communicator>) {
        let mut all = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(ranks.iter().copied().zip(made));
    }

    /// What was left for `rank`.
    ///
    /// # Errors
    /// When nothing was.
    pub(super) fn take(&self, rank: u32) -> Result<Communicator> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner).remove(&rank);
        made.ok_or_else(|| Error::malformed("the first of a group has made nothing of it"))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        for gathers in &self.room.gathers {
            gathers.gone(&Departure::Left { peer: self.rank });
        }
    }
}
