//! PXN: which rank of a host sends for another one of it, because its GPU is nearer to the card. Pure.
//!
//! The data goes to the other rank's memory, over `NVLink`, and leaves the host from there. Receivers are not concerned: as in
//! NCCL, what comes in goes the direct way.
//!
//! * Data of collectives leaves by the card of its channel. Where the path to that is [`PathKind::Pxn`], the rank of the GPU on
//!   the path sends it (NCCL's `ncclTopoGetIntermediateRank`).
//! * A message leaves by the card of the GPU that has the receiver's number here, so that cards of one number talk to each
//!   other, which often are on one switch. The rank of that GPU sends it (NCCL's `ncclTopoGetNetDev`, `NCCL_P2P_PXN_LEVEL`).

use ferroccl_topology::{MessagePxn, PathKind, Paths, Policy, System};
use serde::{Deserialize, Serialize};

/// Who sends for whom on a host. Ranks are numbered within it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Relays {
    /// For each rank, for each port: the rank that sends its data of collectives there, where it is another one.
    collectives: Vec<Vec<Option<u32>>>,
    /// For each rank, for each number of a receiver on its own host: the rank that sends its messages, and the port.
    messages: Vec<Vec<Option<(u32, u32)>>>,
}

impl Relays {
    /// Those of a host with these paths; `local` has the rank of each GPU.
    pub(super) fn new(system: &System, paths: &Paths, policy: &Policy, local: &[usize]) -> Relays {
        let (gpus, ports) = (paths.gpus(), paths.nets());
        let mut relays = Relays {
            collectives: vec![vec![None; ports]; gpus],
            messages: vec![vec![None; gpus]; gpus],
        };
        for gpu in 0..gpus {
            for port in 0..ports {
                let by = paths.relay(system, gpu, port).map(|by| local[by] as u32);
                relays.collectives[local[gpu]][port] = by;
            }
            for peer in (0..gpus).filter(|peer| *peer != gpu) {
                let Some(port) = paths.local_net(system, peer, 0) else { continue };
                let by = match policy.message_pxn {
                    MessagePxn::Never => None,
                    MessagePxn::OnPath => paths.relay(system, gpu, port),
                    MessagePxn::Always => paths.local_gpu(system, port).filter(|near| {
                        let over = paths.gpu_gpu(gpu, *near).kind;
                        let leave = paths.gpu_net(*near, port).kind;
                        let sends = policy.relays(system, *near, port, leave);
                        *near != gpu && over <= PathKind::Nvl && sends
                    }),
                };
                let by = by.map(|by| (local[by] as u32, port as u32));
                relays.messages[local[gpu]][local[peer]] = by;
            }
        }
        relays
    }

    /// Whether only ranks and ports are named that the host has.
    pub(super) fn are_sound(&self, ranks: usize, ports: usize) -> bool {
        let known = |rank: u32| (rank as usize) < ranks;
        self.collectives.iter().flatten().flatten().all(|by| known(*by))
            && self
                .messages
                .iter()
                .flatten()
                .flatten()
                .all(|(by, port)| known(*by) && (*port as usize) < ports)
    }

    /// The rank that sends the data of a collective for `rank` by this port, where it is another one.
    pub(super) fn of_collective(&self, rank: usize, port: usize) -> Option<u32> {
        *self.collectives.get(rank)?.get(port)?
    }

    /// The rank that sends the messages of `rank` to a receiver of this number on its host, and the port.
    pub(super) fn of_message(&self, rank: usize, number: usize) -> Option<(u32, usize)> {
        let (by, port) = (*self.messages.get(rank)?.get(number)?)?;
        Some((by, port as usize))
    }

    /// Whether `by` may have something to send for `rank`.
    pub(super) fn sends_for(&self, by: usize, rank: usize) -> bool {
        let by = by as u32;
        let collectives = self.collectives.get(rank).into_iter().flatten().flatten();
        let messages = self.messages.get(rank).into_iter().flatten().flatten();
        collectives.chain(messages.map(|(by, _)| by)).any(|other| *other == by)
    }
}
