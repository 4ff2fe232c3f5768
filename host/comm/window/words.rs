//! Words by which ranks of other processes say that they map a buffer.

use crate::comm::state::CommState;
use crate::error::Result;
use crate::transport::{AllowedTransports, HostRegion, OfferedRegion, PeerInfo, select};

/// Bytes of a rank's part of the words. Parts are mapped each by itself, so they begin at a page; Linux's largest base page has so
/// many bytes.
const WORD_BYTES: usize = 64 << 10;

/// Words by which ranks of other processes say that they have a buffer mapped, a part for each rank.
pub(super) struct MappingWords(OfferedRegion);

impl MappingWords {
    /// `None` where all ranks whose memory is reached are of this process.
    pub(super) fn new(comm: &CommState) -> Result<Option<MappingWords>> {
        let peers = &comm.windows.peers;
        let process = peers[comm.rank as usize].process;
        if comm.windows.neighbours(comm.rank).all(|peer| peer.process == process) {
            return Ok(None);
        }
        Ok(Some(MappingWords(OfferedRegion::new(peers.len() * WORD_BYTES, true)?)))
    }

    /// That of a rank.
    pub(super) fn of(&self, rank: u32) -> HostRegion {
        self.0.part(rank as usize * WORD_BYTES, WORD_BYTES)
    }

    /// By what ranks of other processes find them.
    pub(super) fn offer(&self, comm: &CommState) -> Result<Vec<u8>> {
        let windows = &comm.windows;
        let me = &windows.peers[comm.rank as usize];
        let mut neighbours = windows.neighbours(comm.rank);
        let other = neighbours.find(|peer| peer.process != me.process).unwrap_or(me);
        select(other, me, windows.allowed())?.offer(&self.0)
    }

    /// This rank's word of a peer.
    pub(super) fn accept(comm: &CommState, peer: &PeerInfo, handle: &[u8]) -> Result<HostRegion> {
        let windows = &comm.windows;
        let me = &windows.peers[comm.rank as usize];
        let len = windows.peers.len() * WORD_BYTES;
        let transport = select(me, peer, windows.allowed())?;
        transport.accept(handle, len, comm.rank as usize * WORD_BYTES, WORD_BYTES)
    }
}

impl super::Windows {
    /// The transports by which ranks share words.
    fn allowed(&self) -> AllowedTransports<'_> {
        let (p2p, shm) = self.allowed;
        AllowedTransports { p2p, shm, net: false, too_far: None }
    }
}
