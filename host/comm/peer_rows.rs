//! The rows of the table of peers, which kernels read: a rank's connections with each other rank, by set, channel and rank.
//!
//! A thousand ranks have a table of megabytes each. So where kernels run on the CPU, a row is written before the first call that may
//! use it: a collective and a kernel of the user's may use those of all ranks, a message that of its peer. For a GPU all are written at once, when the table is
//! made: it has few ranks, and while its calls are captured nothing can be written.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ferroccl_device::abi::{CACHE_LINE, Peer};

use super::state::CommState;
use crate::channel::ConnSet;
use crate::error::Result;
use crate::runtime::{Memory, Runtime};

/// Which rows are written.
#[derive(Debug)]
pub(super) struct PeerRows {
    /// The table is at its beginning. It is zeroed, as far as the runtime zeroes memory.
    memory: Arc<dyn Memory>,
    channels: usize,
    /// By set: whether all rows are written.
    all: [AtomicBool; 2],
    /// By set and rank. The lock is held while rows are written.
    written: Mutex<[Box<[bool]>; 2]>,
}

impl PeerRows {
    /// None is written yet.
    pub(super) fn new(memory: Arc<dyn Memory>, channels: u32, ranks: u32) -> Self {
        let none = || vec![false; ranks as usize].into_boxed_slice();
        PeerRows {
            memory,
            channels: channels as usize,
            all: Default::default(),
            written: Mutex::new([none(), none()]),
        }
    }

    /// How many rows there are.
    pub(super) fn count(channels: u32, ranks: u32) -> usize {
        2 * channels as usize * ranks as usize
    }

    /// Address of a row.
    pub(super) fn address(&self, set: ConnSet, channel: usize, ranks: usize, rank: u32) -> u64 {
        let row = (set as usize * self.channels + channel) * ranks + rank as usize;
        self.memory.address() + (row * size_of::<Peer>()) as u64
    }

    /// Writes the rows of `ranks`, which ascend, in a set, those that are not written yet; `row` makes that of a channel and a rank.
    fn write(
        &self,
        set: ConnSet,
        ranks: impl Iterator<Item = u32> + Clone,
        runtime: &dyn Runtime,
        row: impl Fn(usize, u32) -> Peer,
    ) -> Result<()> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let written = &mut written[set as usize];
        let ranks = ranks.filter(|rank| (*rank as usize) < written.len());
        let new: Vec<u32> = ranks.filter(|rank| !written[*rank as usize]).collect();
        for channel in 0..self.channels {
            let first = self.address(set, channel, written.len(), 0) - self.memory.address();
            let mut image = TableImage::at(&self.memory, runtime, first as usize);
            for rank in &new {
                image.go_to(first as usize + *rank as usize * size_of::<Peer>())?;
                image.extend(&[row(channel, *rank)])?;
            }
            image.write()?;
        }
        new.iter().for_each(|rank| written[*rank as usize] = true);
        if written.iter().all(|written| *written) {
            // Pairs with the acquire in `are_all`: what is launched then reads the rows.
            self.all[set as usize].store(true, Ordering::Release);
        }
        Ok(())
    }

    fn are_all(&self, set: ConnSet) -> bool {
        // Pairs with the release in `write`.
        self.all[set as usize].load(Ordering::Acquire)
    }
}

impl CommState {
    /// Has the rows of `ranks`, which ascend, in a set written, unless they are.
    ///
    /// # Errors
    /// When the device's memory cannot be written.
    pub(super) fn need_rows(
        &self,
        set: ConnSet,
        ranks: impl Iterator<Item = u32> + Clone,
    ) -> Result<()> {
        let rows = self.control.rows();
        if rows.are_all(set) {
            return Ok(());
        }
        let (channels, first) = (self.plan_context.channels as usize, self.config.first_step);
        let row = |channel, rank: u32| {
            let edges = match rank {
                rank if rank == self.rank => None,
                rank => self.edges.get(rank as usize - usize::from(rank > self.rank)),
            };
            edges.map_or_else(Peer::default, |edges| {
                edges.peer(&self.layout, channels, set, channel, first)
            })
        };
        rows.write(set, ranks, &**self.device.runtime(), row)
    }

    /// Has all rows of collectives written, unless they are.
    ///
    /// # Errors
    /// As [`CommState::need_rows`].
    pub(super) fn need_all_rows(&self, set: ConnSet) -> Result<()> {
        self.need_rows(set, 0..self.nranks)
    }

    /// Has those rows written that every kernel may read, or all where none can be written later.
    ///
    /// # Errors
    /// As [`CommState::need_rows`].
    pub(super) fn write_first_rows(&self, on_device: bool) -> Result<()> {
        if on_device {
            self.need_all_rows(ConnSet::Collective)?;
            return self.need_all_rows(ConnSet::P2p);
        }
        // Whatever a kernel waits for, it looks for faults at the edges with its neighbours in the rings.
        let mut neighbours = self.control.neighbours();
        neighbours.sort_unstable();
        self.need_rows(ConnSet::Collective, neighbours.into_iter())
    }
}

/// Tables in a row, each on cache lines of its own, on their way into the device's memory, of which only a piece is held here.
pub(super) struct TableImage<'a> {
    memory: &'a Arc<dyn Memory>,
    runtime: &'a dyn Runtime,
    /// Where the bytes go that are not written yet.
    at: usize,
    bytes: Vec<u8>,
}

/// Bytes of tables that are written at once, about. Not measured: it stays in a cache.
const PIECE: usize = 64 << 10;

impl<'a> TableImage<'a> {
    /// Begins at an offset of memory that no kernel uses yet from there on.
    pub(super) fn at(memory: &'a Arc<dyn Memory>, runtime: &'a dyn Runtime, at: usize) -> Self {
        TableImage { memory, runtime, at, bytes: Vec::new() }
    }

    fn offset(&self) -> usize {
        self.at + self.bytes.len()
    }

    /// What comes next begins at an offset.
    fn go_to(&mut self, offset: usize) -> Result<()> {
        if offset != self.offset() {
            self.write()?;
            self.at = offset;
        }
        Ok(())
    }

    /// Adds a table; gives its address.
    pub(super) fn push<T: bytemuck::Pod>(&mut self, table: &[T]) -> Result<u64> {
        let address = self.memory.address() + self.offset() as u64;
        self.extend(table)?;
        let end = self.offset().next_multiple_of(CACHE_LINE);
        self.bytes.resize(end - self.at, 0);
        Ok(address)
    }

    /// Adds a part of a table.
    fn extend<T: bytemuck::Pod>(&mut self, part: &[T]) -> Result<()> {
        self.bytes.extend_from_slice(bytemuck::cast_slice(part));
        if self.bytes.len() < PIECE { Ok(()) } else { self.write() }
    }

    /// Writes all that was added.
    pub(super) fn write(&mut self) -> Result<()> {
        // SAFETY: the memory is the runtime's, and no kernel uses this part yet.
        unsafe { self.runtime.write(self.memory, self.at, &self.bytes)? };
        self.at += self.bytes.len();
        self.bytes.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::comm::Communicator;
    use crate::{Device, ReduceOp};

    /// The ranks whose rows are written, by set.
    fn written(comm: &Communicator) -> [Vec<u32>; 2] {
        let rows = comm.0.control.rows();
        let written = rows.written.lock().unwrap();
        written.each_ref().map(|set| {
            let written = (0..).zip(set).filter(|(_, written)| **written);
            written.map(|(rank, _)| rank).collect()
        })
    }

    #[test]
    fn a_row_is_written_before_the_first_call_that_may_use_it() {
        let device = Device::cpu();
        let ranks = Communicator::init_all(&device, 5).unwrap();
        assert_eq!(written(&ranks[2]), [vec![1, 3], vec![]]);
        let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
        let buffers: Vec<_> = ranks.iter().map(|_| device.upload(&[1u32; 300]).unwrap()).collect();
        let [sender, receiver] = [0, 2];
        ranks[sender].send(&buffers[sender], 2, &streams[sender]).unwrap();
        ranks[receiver].recv(&buffers[receiver], 0, &streams[receiver]).unwrap();
        assert_eq!(written(&ranks[2]), [vec![1, 3], vec![0]]);
        // It is its own neighbour in the ring of the nodes' leaders.
        assert_eq!(written(&ranks[0]), [vec![0, 1, 4], vec![2]]);
        for ((rank, stream), buffer) in ranks.iter().zip(&streams).zip(&buffers) {
            rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream).unwrap();
            assert_eq!(written(rank)[0], [0, 1, 2, 3, 4]);
        }
        for (stream, buffer) in streams.iter().zip(&buffers) {
            assert_eq!(buffer.to_vec(stream).unwrap(), [5; 300]);
        }
    }
}
