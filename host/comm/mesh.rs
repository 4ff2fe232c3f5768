//! The mesh of a communicator: where each rank's lines are in the memory of every other, for kernels.
//!
//! There is one where all ranks reach each other's memory, or the memory of their host. Its slots are the last part of each edge
//! ([`channel`](crate::channel)); how kernels use them is in the device crate's `collectives::mesh`.

use std::sync::Arc;

use ferroccl_device::abi::MeshLinks;

use super::device_memory::{MemoryCount, MemoryFor};
use crate::channel::{ConnLayout, Edges};
use crate::error::{Error, Result};
use crate::runtime::{Memory, Runtime};
use crate::transport::kinds::each_pair;
use crate::transport::{self, AllowedTransports, PeerInfo};

/// The tables of the mesh, of all channels.
#[derive(Debug)]
pub(super) struct MeshTables {
    tables: Arc<dyn Memory>,
    /// Bytes from one channel's to the next.
    stride: usize,
    /// Whether what else may run goes along the ranks in their order.
    pub in_rank_order: bool,
}

/// Whether there is a mesh: there are several ranks, and none talks to another over a network. All ranks find the same.
///
/// # Errors
/// When no transport connects two of them.
pub(super) fn possible(peers: &[PeerInfo], allowed: AllowedTransports<'_>) -> Result<bool> {
    let hosts = peers.iter().any(|peer| peer.host != peers[0].host);
    if peers.len() < 2 || hosts {
        return Ok(false);
    }
    let mut remote = false;
    each_pair(peers, allowed.too_far, |from, to| {
        remote |= transport::select(from, to, allowed)?.is_remote();
        Ok::<(), Error>(())
    })?;
    Ok(!remote)
}

impl MeshTables {
    /// The mesh of a rank, from its edges with all peers; `None` where there is none.
    ///
    /// # Errors
    /// When there is no memory for the tables.
    pub(super) fn new(
        (rank, first_step, in_rank_order): (u32, u64, bool),
        edges: &[Option<Edges>],
        layout: &ConnLayout,
        channels: usize,
        (runtime, memory): (&dyn Runtime, &MemoryCount),
    ) -> Result<Option<Self>> {
        if layout.mesh_slot_bytes == [0; 3] {
            return Ok(None);
        }
        let nranks = edges.len() as u32;
        let stride = MeshLinks::bytes(nranks);
        let mut image = Vec::with_capacity(channels * stride);
        for channel in 0..channels {
            let links = MeshLinks {
                step: first_step,
                rank,
                nranks,
                slot_bytes: layout.mesh_slot_bytes,
                ..MeshLinks::default()
            };
            image.extend_from_slice(bytemuck::bytes_of(&links));
            let slots = |peer: usize, sending: bool| {
                let Some(Edges { send, recv, .. }) = edges[peer].as_ref() else { return 0 };
                (if sending { send } else { recv }).mesh(layout, channels, channel)
            };
            let behind = |by: usize| (rank as usize + by) % edges.len();
            let to = (1..edges.len()).map(|by| slots(behind(by), true));
            let from = (0..edges.len()).map(|of| if of == rank as usize { behind(1) } else { of });
            let from = from.map(|of| slots(of, false));
            let at = layout.mesh_offset(channels, channel) as u64;
            let shared = (0..edges.len()).map(|of| {
                let part = shared_part(of, rank as usize, edges, layout, channels);
                part.map_or(0, |part| part + at)
            });
            for table in [to.collect::<Vec<_>>(), from.collect(), shared.collect()] {
                let at = image.len() + MeshLinks::table_len(nranks) * size_of::<u64>();
                image.extend_from_slice(bytemuck::cast_slice(&table));
                image.resize(at, 0);
            }
        }
        let tables = memory.counted(MemoryFor::Calls, runtime.allocate(image.len())?);
        // SAFETY: the memory is the runtime's, and new.
        unsafe { runtime.write(&tables, 0, &image)? };
        Ok(Some(MeshTables { tables, stride, in_rank_order }))
    }

    /// Address of channel 0's links, and bytes from one channel's to the next.
    pub(super) fn address(&self) -> (u64, u64) {
        (self.tables.address(), self.stride as u64)
    }
}

/// Address of the part of a rank's receive region that has what it gives all others; `None` where ranks do not read each other's memory.
fn shared_part(
    of: usize,
    rank: usize,
    edges: &[Option<Edges>],
    layout: &ConnLayout,
    channels: usize,
) -> Option<u64> {
    if of != rank {
        return Some(edges.get(of)?.as_ref()?.shared.as_ref()?.address());
    }
    let edge = edges.iter().flatten().next()?;
    edge.shared.as_ref()?;
    let own = layout.edge_offset(channels, edges.len(), rank as u32);
    Some(edge.recv.region.whole().address() + own as u64)
}
