//! What is done with the buffers of the ranks of a node.

use core::marker::PhantomData;

use super::{GroupComm, Warps, combine};
use crate::abi::{DeviceWindow, WindowPeers};
use crate::element::Element;
use crate::peers::{self, Among, Peers};
use crate::reduce::Reduction;

/// The ranks of this rank's node, by their places in it.
struct Node<C> {
    rank: usize,
    ranks: usize,
    group: PhantomData<C>,
}

impl<C: Warps> Among for Node<C> {
    #[inline(always)]
    fn rank(&self) -> usize {
        self.rank
    }
    #[inline(always)]
    fn nranks(&self) -> usize {
        self.ranks
    }
    #[inline(always)]
    fn lanes(&self) -> (usize, usize) {
        C::lanes()
    }
}

impl<C: Warps> GroupComm<C> {
    #[inline(always)]
    fn node(&self) -> Node<C> {
        let (rank, ranks) = (self.comm.node_rank as usize, self.comm.node_ranks as usize);
        Node { rank, ranks, group: PhantomData }
    }

    /// Where the buffers of the node's ranks are, by their places in the node.
    #[inline(always)]
    fn node_peers(&self, window: DeviceWindow) -> Peers {
        // Without a network all ranks are the node.
        let behind = if self.comm.network == 0 { 0 } else { WindowPeers::bytes(self.comm.ranks) };
        Peers((window.peers as *const WindowPeers).wrapping_byte_add(behind))
    }

    /// [`GroupComm::put_to_all`], to the ranks of this rank's node.
    ///
    /// ```text
    /// node 0: rank 0   from [1 2 3] ──┬─► [1 2 3]
    ///         rank 1                  └─► [1 2 3]
    /// node 1: rank 2                      [. . .]
    /// ```
    ///
    /// # Safety
    /// As [`GroupComm::put`], of the node's buffers.
    #[inline(always)]
    pub unsafe fn put_to_node<T: Element>(
        &self,
        window: DeviceWindow,
        offset: usize,
        from: *const T,
        n: usize,
    ) {
        let to = (window.address as *mut T).wrapping_byte_add(offset);
        let peers = self.node_peers(window);
        // SAFETY: the caller's.
        unsafe { peers::spread(&self.node(), peers, (from, to), n * size_of::<T>()) }
    }

    /// [`GroupComm::reduce`], of the ranks of this rank's node.
    ///
    /// ```text
    /// node 0: rank 0   [1 2 3] ──┬──► rank 0: to [5 7 9]
    ///         rank 1   [4 5 6] ──┘
    /// node 1: rank 2   [7 8 9]
    /// ```
    ///
    /// # Safety
    /// As [`GroupComm::put`], of the node's buffers.
    #[inline(always)]
    pub unsafe fn reduce_node<T: Element, R: Reduction>(
        &self,
        window: DeviceWindow,
        offset: usize,
        to: *mut T,
        n: usize,
    ) {
        let peers = self.node_peers(window);
        // SAFETY: the caller's.
        unsafe {
            combine::<T, R, _, false>(&self.node(), (window, peers), offset, (peers, to), n);
        }
    }

    /// [`GroupComm::reduce_to_all`], of the ranks of this rank's node.
    ///
    /// ```text
    /// node 0: rank 0   [1 . .] ──┐         ┌─► [5 . .]
    ///         rank 1   [4 . .] ──┴─ rank 0 ┴─► [5 . .]
    /// node 1: rank 2   [7 . .]                 [. . .]
    /// ```
    ///
    /// # Safety
    /// As [`GroupComm::put`], of the node's buffers of both windows.
    #[inline(always)]
    pub unsafe fn reduce_node_to_all<T: Element, R: Reduction>(
        &self,
        (from, offset): (DeviceWindow, usize),
        (to, to_offset): (DeviceWindow, usize),
        n: usize,
    ) {
        let output = (to.address as *mut T).wrapping_byte_add(to_offset);
        let (from_peers, to_peers) = (self.node_peers(from), self.node_peers(to));
        // SAFETY: the caller's.
        unsafe {
            let from = (from, from_peers);
            combine::<T, R, _, true>(&self.node(), from, offset, (to_peers, output), n);
        }
    }
}
