//! Every rank gives all others the digest of its call, and waits for theirs before the call ends.

use super::MeshSide;
use crate::abi::{LL_LINE, MESH_DIGEST_BYTES, SignatureLines, WaitKind};
use crate::gpu::{self, WARP};

impl MeshSide {
    /// The ranks of which this lane tells or hears the digest, one here and the next so many behind it; `None` for lanes that
    /// have none.
    #[inline(always)]
    fn digest_lanes(&self) -> Option<(usize, usize)> {
        let (tid, lanes) = (self.cx.tid(), self.cx.lanes());
        let warp = lanes.min(WARP as usize);
        (self.cx.compares() && tid + warp >= lanes).then(|| (tid + warp - lanes, warp))
    }

    /// Where this call's digest is, behind the address of a table.
    #[inline(always)]
    fn digest_offset(&self) -> usize {
        // SAFETY: the contract of `open`.
        let line = LL_LINE * (unsafe { (*self.links).calls } % 2) as usize;
        line.wrapping_sub(MESH_DIGEST_BYTES)
    }

    /// Tells all others the digest of this call.
    #[inline(always)]
    pub(super) fn tell_digest(&self) {
        let Some(lanes) = self.digest_lanes() else { return };
        // SAFETY: the contract of `open`; the line has been read (see the module).
        unsafe {
            let line = SignatureLines::halves_of(self.cx.args().digest(), (*self.links).calls);
            self.for_all(lanes, self.digest_offset(), |at| gpu::st_halves(at.cast(), line));
        }
    }

    /// Waits until all others have said that they are in the same call. Of one in another call the ring's next rank learns which
    /// it is in, and stops all.
    #[inline(always)]
    pub(super) fn compare_digests(&mut self) {
        let Some((mut rank, warp)) = self.digest_lanes() else { return };
        // SAFETY: the contract of `open`.
        let calls = unsafe { (*self.links).calls };
        let line = SignatureLines::halves_of(self.cx.args().digest(), calls);
        while rank < self.nranks {
            if rank != self.rank {
                let at: *const u64 = self.of_all(rank, self.digest_offset()).cast();
                // SAFETY: the connection is valid, and the line is in the mesh.
                unsafe {
                    let conn = self.conn(rank, calls);
                    let same = || gpu::ld_halves(at) == line;
                    self.cx.wait(&conn, WaitKind::Signature, calls, same);
                }
            }
            rank += warp;
        }
    }
}
