//! Counts a kernel's steps on each connection, by a run without data ([`dry_run`]).
//!
//! The proxies must know the steps of a call before its data comes. Afterwards the connections have the counts of steps and
//! signatures.
//!
//! A call costs some microseconds and, for large buffers, some nanoseconds a step; the counts of equal calls are
//! kept.

use ferroccl_device::abi::{Channel, Peer, Work};

use crate::comm::control::ControlBlock;
use crate::enqueue::dry_run::{self, DryRunConns};
use crate::error::Result;

/// The steps of a call on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepCount {
    pub channel: u32,
    pub peer: u32,
    pub sending: bool,
    /// Of all channels, in channel 0.
    pub signatures: u64,
    pub steps: u64,
}

/// The connections of a call of `steps` (a [`Kernel::steps`](ferroccl_device::kernels::Kernel)) with `remote` ranks that it
/// uses. `work` is the call's argument, `blocks` what is launched.
///
/// # Errors
/// [`Error::Unavailable`] when the kernel does not count.
///
/// # Safety
/// `work` is what the kernel takes, in a view of `control`'s; what it refers to besides the communicator and the user's
/// buffers is valid, and in the host's memory.
pub(super) unsafe fn count(
    control: &ControlBlock,
    group: usize,
    steps: Option<unsafe fn(*const Work)>,
    work: &Work,
    blocks: u32,
    remote: impl Fn(u32) -> bool,
) -> Result<Vec<StepCount>> {
    let (comm, channels, orders) = control.tables(group);
    let ranks = control.ranks();
    let shape = control.conn_shape();
    let mut conns = DryRunConns::new(channels.len(), ranks, &shape, &work.signature);
    let mut counted_channels: Vec<Channel> = channels
        .iter()
        .zip(orders)
        .enumerate()
        .map(|(i, (channel, order))| Channel {
            peers: conns.of_channel(i),
            // The kernels' own is in the device's memory, which the host does not reach.
            order: order.as_ptr().expose_provenance() as u64,
            ..*channel
        })
        .collect();
    // SAFETY: the caller's, of what `work` refers to; the channels' connections and orders are here.
    unsafe { dry_run::run(steps, work, comm, &mut counted_channels, 0..blocks, |_| {})? };
    Ok(counts(&conns.peers, channels.len(), ranks, remote))
}

/// What each connection has counted.
fn counts(
    peers: &[Peer],
    channels: usize,
    ranks: usize,
    remote: impl Fn(u32) -> bool,
) -> Vec<StepCount> {
    let mut counts = Vec::new();
    let mut push = |count: StepCount| {
        if count.signatures + count.steps > 0 {
            counts.push(count);
        }
    };
    for peer in (0..ranks).filter(|&rank| remote(rank as u32)) {
        for sending in [true, false] {
            let rank = peer as u32;
            let conn = |channel: usize| {
                let Peer { send, recv } = &peers[channel * ranks + peer];
                if sending { send } else { recv }
            };
            // All are told by way of the edge's ring, which the first connection sends from and receives into.
            let all = (0..channels).map(|channel| conn(channel).told).sum();
            for channel in 0..channels {
                let signatures = if channel == 0 { all } else { 0 };
                let steps = conn(channel).step;
                push(StepCount { channel: channel as u32, peer: rank, sending, signatures, steps });
            }
        }
    }
    counts
}
