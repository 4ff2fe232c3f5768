//! The chunks of a call that takes one step for each.

use super::{Mesh, MeshProtocol};
use crate::element::Element;
use crate::reduce::Reduction;

/// A chunk of the block's part, which fits a slot.
#[derive(Clone, Copy, Debug)]
pub(in crate::collectives) struct Chunk {
    /// The step that it takes.
    pub step: u64,
    /// Where it begins, in elements of a buffer's first block.
    pub start: usize,
    /// Its elements.
    pub n: usize,
}

impl<T: Element, R: Reduction, P: MeshProtocol> Mesh<T, R, P> {
    /// Calls `body` with each chunk of the block's part, a barrier in between. Once also where there is nothing to send: nobody is
    /// ahead of another by a call. All lanes call it.
    #[inline(always)]
    pub(in crate::collectives) fn for_chunks(&mut self, mut body: impl FnMut(&mut Self, Chunk)) {
        let part = self.part();
        let (start, count) = (part.offset as usize, part.count as usize);
        let mut done = 0;
        loop {
            let n = self.chunk().min(count - done);
            let step = self.take_steps(1);
            body(self, Chunk { step, start: start + done, n });
            done += n;
            if done >= count || !self.barrier() {
                break;
            }
        }
    }
}
