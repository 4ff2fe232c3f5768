//! How many channels and threads a call of a size is worth.

use ferroccl_device::abi::{Algorithm, Collective, ProtocolId};

use super::rules::modelled_as;
use super::situation::{Devices, Situation};
use super::{Settings, cpu, mesh, messages, tables};

/// Threads of a block at most.
fn most_threads(
    s: &Situation<'_>,
    algorithm: Algorithm,
    protocol: ProtocolId,
    settings: &Settings,
) -> u32 {
    if matches!(algorithm, Algorithm::CollnetDirect | Algorithm::CollnetChain) {
        return tables::MAX_THREADS;
    }
    let most = tables::MAX_THREADS_BY_PROTOCOL[modelled_as(protocol)];
    let (asked, least) = match protocol {
        ProtocolId::Ll128 => (settings.ll128_threads, most / 4),
        ProtocolId::Ll | ProtocolId::Simple | ProtocolId::Own(_) => {
            (settings.threads, 2 * tables::WARP)
        }
    };
    let slow = |ring: &crate::graph::ChannelGraph| {
        ring.bw_intra * ring.channels.len() as f64 <= tables::SLOW_RING
    };
    let default = match s.devices() {
        Devices::Gpus(gpus)
            if (algorithm, protocol) == (Algorithm::Ring, ProtocolId::Simple)
                && slow(gpus.ring) =>
        {
            tables::SLOW_RING_THREADS
        }
        _ => most,
    };
    // Whole warps.
    asked.map_or(default, |n| (n / tables::WARP * tables::WARP).clamp(least, most))
}

/// Bytes that each thread of each channel must have.
fn bytes_per_thread(s: &Situation<'_>, algorithm: Algorithm, protocol: ProtocolId) -> u64 {
    let bytes = tables::BYTES_A_THREAD[modelled_as(protocol)];
    match (algorithm, protocol) {
        (Algorithm::Ring, ProtocolId::Ll) => bytes * u64::from(s.ranks()),
        // Every rank's lines go to every other: what a thread moves is more than its part of the call.
        (Algorithm::Nvls, _) => mesh::NVLS_BYTES_A_THREAD * u64::from(s.ranks()),
        (algorithm, _) if algorithm.is_over_mesh() => bytes / 4,
        (Algorithm::CollnetDirect | Algorithm::CollnetChain, _) => tables::BYTES_A_THREAD_COLLNET,
        _ => bytes,
    }
}

/// The size from which a call takes another channel, or another thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MinimumSize {
    algorithm: Algorithm,
    protocol: ProtocolId,
    /// Bytes for each channel.
    per_channel: u64,
    /// Bytes for each thread of each channel.
    per_thread: u64,
    /// Threads of a block at most; 1 on the CPU.
    threads: u32,
    /// Blocks that can be at work at the same time; more than any kernel has on a GPU.
    at_once: u32,
}

impl MinimumSize {
    pub(super) fn new(
        s: &Situation<'_>,
        algorithm: Algorithm,
        protocol: ProtocolId,
        settings: &Settings,
    ) -> Self {
        let (protocol, _) = settings.own.modelled(protocol);
        let (threads, per_thread, at_once) = match s.devices() {
            Devices::Cpu { .. } => (1, cpu::BYTES_A_CHANNEL, s.channels()),
            Devices::Gpus(_) => (
                most_threads(s, algorithm, protocol, settings),
                bytes_per_thread(s, algorithm, protocol),
                u32::MAX,
            ),
        };
        let per_channel = (u64::from(threads) * per_thread).max(1);
        MinimumSize { algorithm, protocol, per_channel, per_thread, threads, at_once }
    }

    /// How many of `most` channels a call takes; at least 1.
    pub(super) fn channels(&self, collective: Collective, bytes: u64, most: u32) -> u32 {
        // A CPU has its own limits.
        if collective == Collective::SendRecv && self.threads > 1 {
            return messages::channels(self.protocol, bytes, most);
        }
        let nvls = self.algorithm == Algorithm::Nvls && self.threads > 1;
        let most = if nvls { most.min(mesh::NVLS_CHANNELS) } else { most };
        u32::try_from(bytes / self.per_channel).unwrap_or(u32::MAX).clamp(1, most.max(1))
    }

    /// How many of `most` blocks the messages of a group take, of so many bytes together; at least 1. A block takes turns between
    /// its messages. On a GPU all blocks are at work at the same time. On the CPU each that has no core is one more that waits for its turn.
    pub(super) fn message_blocks(&self, bytes: u64, most: u32) -> u32 {
        let most = most.min(self.at_once).max(1);
        if self.threads > 1 {
            return most;
        }
        u32::try_from(bytes / self.per_channel).unwrap_or(u32::MAX).clamp(1, most)
    }

    /// Channels, and threads of a block, as NCCL lowers them for small calls (`topoGetAlgoInfo` in its enqueue.cc): first
    /// channels, then threads.
    pub(super) fn parallelism(&self, collective: Collective, bytes: u64, most: u32) -> (u32, u32) {
        let channels = self.channels(collective, bytes, most);
        if self.threads == 1 {
            return (channels, 1);
        }
        let mut threads = self.threads;
        while self.algorithm != Algorithm::CollnetDirect
            && threads.is_multiple_of(4 * tables::WARP)
            && bytes < u64::from(channels) * u64::from(threads) * self.per_thread
        {
            threads /= 2;
        }
        // A tree goes up and down at once: its blocks are always full.
        let threads = match (self.algorithm, self.protocol) {
            (Algorithm::Tree, _) => tables::MAX_THREADS,
            (Algorithm::Ring, ProtocolId::Simple) => threads + tables::SYNC_THREADS[0],
            _ => threads,
        };
        (channels, threads.clamp(3 * tables::WARP, tables::MAX_THREADS))
    }
}
