//! The multicast object of a window.
//!
//! ```text
//! rank 0       create the object, export it     ─► all-gather ─►  the others open it
//! every rank   its GPU joins                    ─► all-gather ─►  all have joined
//! every rank   bind its buffer, map the object  ─► all-gather ─►  all have bound: the window has a multicast object
//! ```
//!
//! As soon as one rank cannot, all go on without.

use std::mem::offset_of;
use std::sync::Arc;

use ferroccl_bootstrap::Limit;
use ferroccl_device::abi::WindowPeers;

use super::{Mapped, Offer};
use crate::comm::shared::SharedComm;
use crate::comm::split::all_gather;
use crate::error::{Error, Result};
use crate::runtime::{Memory, Multicast};
use crate::transport::PeerInfo;

/// The first compute capability whose GPUs know `multimem` (PTX ISA 9.0, 9.7.9.14).
const CAPABILITY: u32 = 90;

/// Whether there can be multicast objects, as far as the ranks' devices and settings say. The error is the reason why not. All ranks
/// find the same, but for the settings.
pub(super) fn possible(peers: &[PeerInfo], enabled: bool) -> Result<(), String> {
    if !enabled {
        return Err("NCCL_NVLS_ENABLE is 0".to_owned());
    }
    for (i, peer) in peers.iter().enumerate() {
        let Some(device) = &peer.device else { continue };
        if device.capability < CAPABILITY {
            let (name, capability) = (&device.name, device.capability);
            return Err(format!(
                "{name} is of sm_{capability}, and multimem is of sm_{CAPABILITY}"
            ));
        }
        let same = |other: &&PeerInfo| other.device.as_ref().is_some_and(|d| d.id == device.id);
        if let Some(other) = peers[..i].iter().find(same) {
            let (a, b) = (other.rank, peer.rank);
            return Err(format!("ranks {a} and {b} are on one GPU, which is a member once"));
        }
    }
    Ok(())
}

/// Whether the buffer of this rank may be part of one; why not.
pub(super) fn offer(comm: &SharedComm, memory: &Arc<dyn Memory>) -> Result<(), String> {
    comm.windows.multicast.clone()?;
    let runtime = comm.device.runtime();
    runtime.can_multicast(memory).map_err(|e| format!("rank {}: {e}", comm.rank))
}

/// Makes a multicast object of the buffers that the ranks offer, and puts its address into the table of a window; the inner error is
/// why there is none, on all ranks the same. `own` is this rank's allocation, and the buffer's address.
///
/// # Errors
/// As an all-gather.
pub(super) fn bind(
    comm: &SharedComm,
    all: &[Offer],
    (own, address): (&Arc<dyn Memory>, u64),
    mapped: &Mapped,
    limit: &Limit,
) -> Result<Result<Arc<dyn Memory>, String>> {
    if let Some(why) = all.iter().find_map(|offer| offer.multicast.as_ref().err()) {
        return Ok(Err(why.clone()));
    }
    let (offset, bytes) = (all[0].offset, all[0].allocation);
    if let Some((rank, _)) =
        (0..).zip(all).find(|(_, o): &(u32, _)| (o.offset, o.allocation) != (offset, bytes))
    {
        let why = format!("ranks 0 and {rank} have their buffers at other places of allocations");
        return Ok(Err(why));
    }
    let failed = |error: Error| format!("rank {}: {error}", comm.rank);
    let runtime = &**comm.device.runtime();
    let members = all.len() as u32;

    let made = (comm.rank == 0).then(|| {
        let object = runtime.create_multicast(members, bytes)?;
        object.export().map(|handle| (object, handle))
    });
    let made = made.transpose().map_err(failed);
    let told = made.as_ref().map(|made| made.as_ref().map(|(_, handle)| handle.clone()));
    let told: Vec<Result<Option<Vec<u8>>, String>> =
        all_gather(comm, &told.map_err(Clone::clone), limit)?;
    let handle = match told.into_iter().next() {
        Some(Ok(handle)) => handle.unwrap_or_default(),
        Some(Err(why)) => return Ok(Err(why)),
        None => return Ok(Err("there are no ranks".to_owned())),
    };
    let joined = match made {
        Ok(Some((object, _))) => Ok(object),
        _ => runtime.open_multicast(&handle, members, bytes),
    };
    let joined = joined.and_then(|object| object.join().map(|()| object)).map_err(failed);
    if let Err(why) = agree(comm, &joined, limit)? {
        return Ok(Err(why));
    }
    let bound = joined.and_then(|object| {
        let memory = map(&*object, (own, address), mapped, offset).map_err(failed)?;
        // Where the object has no address, it is the buffer's own.
        let distance = match (memory.address() + offset as u64).wrapping_sub(address) {
            0 => WindowPeers::BY_RANK,
            distance => distance,
        };
        let at = offset_of!(WindowPeers, multicast);
        // SAFETY: the table is the runtime's, has that word, and no kernel knows it yet.
        unsafe { runtime.write(&mapped.table, at, &distance.to_le_bytes()) }.map_err(failed)?;
        Ok(memory)
    });
    Ok(agree(comm, &bound, limit)?.and(bound))
}

/// Binds this rank's allocation.
fn map(
    object: &dyn Multicast,
    (own, address): (&Arc<dyn Memory>, u64),
    mapped: &Mapped,
    offset: usize,
) -> Result<Arc<dyn Memory>> {
    let allocation = |distance: &u64| address.wrapping_add(*distance) - offset as u64;
    let members: Vec<u64> = mapped.distances.iter().map(allocation).collect();
    object.bind(own, &members)
}

/// Whether all ranks have succeeded; else why the first that has not.
fn agree<T>(
    comm: &SharedComm,
    mine: &Result<T, String>,
    limit: &Limit,
) -> Result<Result<(), String>> {
    let mine = mine.as_ref().map(drop).map_err(Clone::clone);
    let all: Vec<Result<(), String>> = all_gather(comm, &mine, limit)?;
    Ok(all.into_iter().collect())
}
