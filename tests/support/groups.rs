//! A kernel whose warps, and then single threads of them, communicate by themselves, each with ranks of a team: what they put, and what
//! comes out.

use crate::device::abi::{DeviceComm, DeviceWindow};
use crate::device::device_comm::{Coop, GroupComm, Team, Thread, Warp, Warps};
use crate::device::gpu;
use crate::device::reduce::Sum;

/// The most warps of a block.
pub(crate) const WARPS: u64 = 4;

crate::device::kernel_argument! {
    /// What the kernel takes. Group `g` is warp `g % WARPS` of block `g / WARPS`; it has barrier `g` and signals `2 g` and `2 g + 1`, and
    /// the `g`-th part of every buffer.
    pub(crate) struct Groups {
        pub(crate) comm: DeviceComm,
        /// What ranks give, `count` elements for each group; what they are sent, as many from each place in a team, and one more.
        pub(crate) windows: [DeviceWindow; 2],
        /// Address of what is left: by group and round of each place of its team what it has sent (`team * count`), sums of the node
        /// (`count`), and what threads have sent (`team`).
        pub(crate) results: u64,
        /// Address of a word: warps of a block.
        pub(crate) warps: u64,
        pub(crate) count: u64,
        pub(crate) rounds: u64,
        /// Ranks of a team: parts of so many ranks beside each other, or every so manieth of those.
        pub(crate) team: u64,
        /// Not 0: every so manieth.
        pub(crate) outer: u64,
    }
}

/// Elements that are left of a group's round.
pub(crate) const fn results_of(team: u64, count: u64) -> u64 {
    (team + 1) * count + team
}

/// Elements of a group's part of what ranks are sent.
pub(crate) const fn inbox_of(team: u64, count: u64) -> u64 {
    team * (count + 1)
}

/// What a rank gives in a round.
pub(crate) fn given(rank: u64, group: u64, round: u64, i: u64) -> u32 {
    (rank * 1_003 + group * 107 + round * 31 + i + 1) as u32
}

/// The ranks of a rank's team.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) fn members(rank: u64, ranks: u64, team: u64, outer: bool) -> Vec<u64> {
    let parts = ranks / team;
    let of = |place| if outer { place * parts + rank % parts } else { rank / team * team + place };
    (0..team).map(of).collect()
}

/// What is left of a group's round.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) fn expected(
    team: &[u64],
    ranks: u64,
    (group, round): (u64, u64),
    count: u64,
) -> Vec<u32> {
    let value = |rank, i| given(rank, group, round, i);
    let mut all = Vec::new();
    team.iter().for_each(|from| all.extend((0..count).map(|i| value(*from, i))));
    all.extend((0..count).map(|i| (0..ranks).fold(0u32, |sum, r| sum.wrapping_add(value(r, i)))));
    all.extend(team.iter().map(|from| value(*from, 5)));
    all
}

crate::device::user_kernels! {
    /// See the file's documentation.
    pub(crate) GROUPS = "test_groups": 128, groups, Groups;
}

/// # Safety
/// The launch's contract: all ranks have as many blocks of as many threads, elements and rounds.
#[inline(always)]
unsafe fn groups(my: Groups) {
    // SAFETY: the caller's.
    unsafe {
        let warp = u64::from(gpu::thread_idx_x() / gpu::WARP);
        let warps = u64::from(gpu::block_dim_x() / gpu::WARP);
        if gpu::block_idx_x() == 0 && gpu::thread_idx_x() == 0 {
            gpu::st_data(my.warps as *mut u64, warps, size_of::<u64>());
        }
        let group = u64::from(gpu::block_idx_x()) * WARPS + warp;
        let mut comm = my.comm.open_as::<Warp>();
        let mut round = 0;
        while round < my.rounds {
            let at = (group * my.rounds + round) * results_of(my.team, my.count);
            let result = (my.results as *mut u32).wrapping_add(at as usize);
            if !by_warp(&my, &mut comm, (group, round), result) {
                return;
            }
            let threads = result.wrapping_add(((my.team + 1) * my.count) as usize);
            if gpu::lane_id() == 0 && !by_thread(&my, (group, round), threads) {
                return;
            }
            gpu::sync_warp();
            round += 1;
        }
    }
}

/// This rank's team.
#[inline(always)]
fn team<C: Coop>(my: &Groups, comm: &GroupComm<C>) -> Team {
    let world = comm.world();
    Team::Strided(if my.outer != 0 {
        world.outer(world.ranks / my.team as u32)
    } else {
        world.inner(my.team as u32)
    })
}

/// # Safety
/// The launch's contract; all lanes of the warp call it.
#[inline(always)]
unsafe fn by_warp<C: Warps>(
    my: &Groups,
    comm: &mut GroupComm<C>,
    (group, round): (u64, u64),
    result: *mut u32,
) -> bool {
    // SAFETY: the caller's. The parts of the buffers are the group's.
    unsafe {
        let team = team(my, comm);
        let (rank, count, size) = (comm.rank(), my.count as usize, size_of::<u32>());
        let (place, members) = (comm.team_rank(team), comm.team_ranks(team));
        let own = (group * my.count) as usize * size;
        let inbox = |place: u32| {
            (group * inbox_of(my.team, my.count) + u64::from(place) * my.count) as usize * size
        };
        let [values, sent] = my.windows;
        let (mut i, lanes) = comm.lanes();
        while i < count {
            let value = given(rank.into(), group, round, i as u64);
            gpu::st_data(values.peer::<u32>(rank, own).wrapping_add(i), value, size);
            i += lanes;
        }
        // Of all ranks, and then of the team, whose barrier is another.
        let (all, of_team) = (2 * group as u32, 2 * group as u32 + 1);
        if !comm.barrier(all) {
            return false;
        }
        comm.reduce::<u32, Sum>(values, own, result.wrapping_add(my.team as usize * count), count);
        let mut by = 0;
        while by < members {
            let to = comm.world_rank(team, (place + by) % members);
            comm.put_to_with_signal::<u32>((to, all), (sent, inbox(place)), (values, own), count);
            by += 1;
        }
        let sent_to = comm.last_put();
        let mut from = 0;
        while from < members {
            if !comm.wait_signal_of(comm.world_rank(team, from), all, 1) {
                return false;
            }
            let to = result.wrapping_add(from as usize * count);
            comm.put(to, sent.peer::<u32>(rank, inbox(from)).cast_const(), count);
            from += 1;
        }
        // The next round's values, and what is sent, go to the same places.
        comm.wait_sent(sent_to) && comm.barrier_of(team, of_team) && comm.barrier(all)
    }
}

/// # Safety
/// The launch's contract; a lane of each group calls it.
#[inline(always)]
unsafe fn by_thread(my: &Groups, (group, round): (u64, u64), result: *mut u32) -> bool {
    // SAFETY: the caller's.
    unsafe {
        let mut comm = my.comm.open_as::<Thread>();
        let team = team(my, &comm);
        let (rank, signal) = (comm.rank(), 2 * group as u32 + 1);
        let members = comm.team_ranks(team);
        let place = |place: u32| {
            let first = group * inbox_of(my.team, my.count) + my.team * my.count;
            (first + u64::from(place)) as usize * size_of::<u32>()
        };
        let sent = my.windows[1];
        let mut by = 0;
        while by < members {
            let to = comm.world_rank(team, by);
            let value = given(rank.into(), group, round, 5);
            comm.put_value_to::<u32>(to, (sent, place(comm.team_rank(team))), value);
            comm.signal(to, signal);
            by += 1;
        }
        if !comm.wait_signal(signal, members.into()) {
            return false;
        }
        let from = sent.peer::<u32>(rank, place(0)).cast_const();
        comm.put(result, from, members as usize);
        comm.barrier_of(team, 2 * group as u32 + 1)
    }
}
