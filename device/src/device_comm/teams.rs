//! Teams: some of the ranks, by their places among themselves; and barriers of teams.
//!
//! ```text
//!                    node 0              node 1
//! place in the node  0      1      2     0      1           world: all ranks
//! rank               0      1      2     3      4           node of rank 3: 3, 4        rail of rank 3: 0, 3
//!                    └──────────────────►┘      │                                       rail of rank 2: 2
//!                           └──────────────────►┘
//! ```

use super::{Coop, GroupComm};
use crate::abi::{PutRequest, WaitKind};
use crate::gpu;
use crate::orders;

/// Some of the ranks of a communicator (NCCL's `ncclTeam_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Team {
    /// All ranks (`ncclTeamWorld`).
    World,
    /// The ranks that reach each other's memory, this rank among them (`ncclTeamLsa`).
    Node,
    /// The ranks that have this rank's place in their nodes, this rank among them (`ncclTeamRail`). Nodes that are smaller have none.
    Rail,
    /// Ranks at equal distances, this rank among them.
    Strided(Strided),
}

/// A team of the caller's: ranks at equal distances, with this rank at a place among them (NCCL's `ncclTeam`).
///
/// ```text
/// rank             0   1   2   3   4   5   6   7
/// world.inner(4)   ├───────────┤   ├───────────┤        rank 5: place 1 of 4, stride 1
/// world.outer(4)       ├───────────────┤                rank 5: place 1 of 2, stride 4: ranks 1 and 5
/// ```
///
/// ```
/// use ferroccl_device::device_comm::Strided;
///
/// let world = Strided { ranks: 8, rank: 5, stride: 1 };
/// assert_eq!(world.inner(4), Strided { ranks: 4, rank: 1, stride: 1 });
/// assert_eq!(world.outer(4), Strided { ranks: 2, rank: 1, stride: 4 });
/// assert_eq!(world.outer(2).inner(2), Strided { ranks: 2, rank: 0, stride: 2 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strided {
    /// How many ranks it has.
    pub ranks: u32,
    /// This rank's place among them.
    pub rank: u32,
    /// From a rank of it to the next.
    pub stride: u32,
}

impl Strided {
    /// Of parts of `size` ranks that are beside each other in it, the one that this rank is in (`ncclTeamInnerFactor`). `size` divides its
    /// ranks.
    #[inline(always)]
    #[must_use]
    pub const fn inner(self, size: u32) -> Strided {
        Strided { ranks: size, rank: self.rank % size, stride: self.stride }
    }

    /// The ranks that have this rank's place in parts of `size` ranks (`ncclTeamOuterFactor`). `size` divides its ranks.
    #[inline(always)]
    #[must_use]
    pub const fn outer(self, size: u32) -> Strided {
        Strided { ranks: self.ranks / size, rank: self.rank / size, stride: self.stride * size }
    }
}

impl<C: Coop> GroupComm<C> {
    /// This rank's place in a team.
    #[inline(always)]
    #[must_use]
    pub fn team_rank(&self, team: Team) -> u32 {
        match team {
            Team::World => self.comm.rank,
            Team::Node => self.comm.node_rank,
            Team::Rail => self.comm.rail_rank,
            Team::Strided(team) => team.rank,
        }
    }

    /// How many ranks a team has.
    #[inline(always)]
    #[must_use]
    pub fn team_ranks(&self, team: Team) -> u32 {
        match team {
            Team::World => self.comm.ranks,
            Team::Node => self.comm.node_ranks,
            Team::Rail => self.comm.rail_ranks,
            Team::Strided(team) => team.ranks,
        }
    }

    /// All ranks, to make [`Team::Strided`] of (`ncclTeamWorld`).
    #[inline(always)]
    #[must_use]
    pub fn world(&self) -> Strided {
        Strided { ranks: self.comm.ranks, rank: self.comm.rank, stride: 1 }
    }

    /// The rank in the communicator that has a place in a team.
    ///
    /// `place` is below [`GroupComm::team_ranks`].
    #[inline(always)]
    #[must_use]
    pub fn world_rank(&self, team: Team, place: u32) -> u32 {
        let first = match team {
            Team::World => return place,
            // By wrapping: the place may be before this rank's.
            Team::Strided(team) => {
                let steps = place.wrapping_sub(team.rank);
                return self.comm.rank.wrapping_add(steps.wrapping_mul(team.stride));
            }
            Team::Node => 0,
            Team::Rail => self.comm.node_ranks,
        };
        let table = self.comm.teams as *const u32;
        // SAFETY: `open`'s contract: the table has all places, and nobody writes it.
        unsafe { gpu::ld_data(table.wrapping_add((first + place) as usize)) }
    }

    /// Waits until this block of all ranks has come to barrier `index`. What any of them has written before, here or in the memory of
    /// another rank of its node, is there for all that reach it behind the barrier. `false` when that will not happen.
    ///
    /// ```text
    /// rank 0   x = 1 ──────┤ waits ├──► sees x, y, z
    /// rank 1   y = 2 ──┤   waits   ├──► sees x, y, z
    /// rank 2   z = 3 ──────────────┼──► sees x, y, z
    /// ```
    ///
    /// Over a network it is a barrier of the node, one of the rail, and one of the node again. What has been
    /// [put](GroupComm::put_to) to a rank on another node is not ordered by it: a [signal](GroupComm::signal) behind it is.
    ///
    /// `index` is below what the host has asked for.
    #[inline(always)]
    pub fn barrier(&mut self, index: u32) -> bool {
        self.barrier_of(Team::World, index)
    }

    /// [`GroupComm::barrier`] of a team. All ranks of the communicator come to a barrier `index` equally often, and each time with the
    /// same team; other teams take other barriers.
    ///
    /// ```text
    /// node 0: rank 0   x = 1 ──────┤ waits ├──► sees x, y
    ///         rank 1   y = 2 ──────────────┼──► sees x, y
    /// node 1: rank 2   z = 3 ──┤ waits ├──────► sees z, u         nobody waits for another node
    ///         rank 3   u = 4 ──────────┼──────► sees z, u
    /// ```
    #[inline(always)]
    pub fn barrier_of(&mut self, team: Team, index: u32) -> bool {
        // Over a network the node's ranks come together, then all nodes by their rails, then the node's ranks know of it.
        let spread = team == Team::World && self.comm.network != 0;
        let phases = if spread { 3 } else { 1 };
        let mut phase = 0;
        while phase < phases {
            let team = match (spread, phase) {
                (false, _) => team,
                (true, 1) => Team::Rail,
                (true, _) => Team::Node,
            };
            self.meet(team, index);
            phase += 1;
        }
        !self.stopped
    }

    #[inline(always)]
    fn meet(&mut self, team: Team, index: u32) {
        let comm = self.comm;
        let (lane, lanes) = self.lanes();
        // What other lanes have written is before what this one tells.
        C::sync();
        let meetings = comm.word(comm.meetings(index));
        let members = self.team_ranks(team);
        // SAFETY: `open`'s contract: the words are there, and each is written by whom `DeviceComm` says. The count is this block's,
        // and written below, behind a barrier of the block.
        unsafe {
            let number = gpu::ld_data(meetings) + 1;
            let mut place = lane as u32;
            while place < members && !self.stopped {
                let peer = self.world_rank(team, place);
                if peer != comm.rank && self.reaches(peer) {
                    // Pairs with the acquire below, of the peer.
                    let to = comm.word_of(peer, comm.arrival(index, comm.rank));
                    gpu::release(orders::BARRIER, to, number);
                }
                place += lanes as u32;
            }
            C::together();
            if comm.network != 0 && lane == 0 {
                let mut place = 0;
                while place < members {
                    let peer = self.world_rank(team, place);
                    if !self.reaches(peer) {
                        self.request(PutRequest {
                            kind: PutRequest::ARRIVAL,
                            peer,
                            index,
                            from_offset: number,
                            ..PutRequest::NONE
                        });
                    }
                    place += 1;
                }
            }
            C::together();
            let mut place = lane as u32;
            while place < members {
                let peer = self.world_rank(team, place);
                if peer != comm.rank {
                    let (order, from) = if self.reaches(peer) {
                        (orders::BARRIER, comm.word(comm.arrival(index, peer)))
                    } else {
                        // Pairs with the release of the proxy.
                        let from = comm.network_word(comm.network_arrival(index, peer));
                        (orders::NETWORK_WORD, from)
                    };
                    self.wait(WaitKind::Barrier, (peer, index), number, || {
                        gpu::acquire(order, from) >= number
                    });
                }
                place += lanes as u32;
            }
            self.stopped = C::sync_or(self.stopped);
            if lane == 0 {
                gpu::st_data(meetings, number, size_of::<u64>());
            }
        }
        C::together();
    }
}
