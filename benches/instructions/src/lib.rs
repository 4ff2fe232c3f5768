//! The calls whose instructions are counted: all ranks in one thread, on CPU devices.

use ferroccl::{Communicator, Device, DeviceBuffer, ReduceOp, Result, Stream, group};

/// The calls that a count is of. What happens at some calls alone is spread over them.
pub const CALLS: u64 = 100;

/// Calls before these: the first ones connect ranks, and allocate what later ones use again.
const WARM_UP: u64 = 10;

/// A collective.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// A sum of whole buffers.
    AllReduce,
    /// Rank 0's buffer to all.
    Broadcast,
    /// A block of each rank to all.
    AllGather,
    /// A block of the sum to each rank.
    ReduceScatter,
}

/// The ranks of a communicator in one thread, and the call that they make.
pub struct Ranks {
    call: Call,
    ranks: Vec<Rank>,
}

struct Rank {
    comm: Communicator,
    stream: Stream,
    send: DeviceBuffer<f32>,
    recv: DeviceBuffer<f32>,
}

impl Ranks {
    /// `ranks` ranks that have made the call some times. The larger of a rank's two buffers has `bytes` bytes.
    ///
    /// # Errors
    /// As the calls themselves.
    pub fn new(call: Call, ranks: u32, bytes: usize) -> Result<Ranks> {
        let device = Device::cpu();
        let all = bytes / size_of::<f32>();
        let block = all / ranks as usize;
        let (send, recv) = match call {
            Call::AllReduce | Call::Broadcast => (all, all),
            Call::AllGather => (block, all),
            Call::ReduceScatter => (all, block),
        };
        let rank = |comm| {
            let (send, recv) = (device.upload(&vec![1.0; send])?, device.alloc(recv)?);
            Ok(Rank { comm, stream: device.stream()?, send, recv })
        };
        let ranks = Communicator::init_all(&device, ranks)?.into_iter().map(rank);
        let ranks = Ranks { call, ranks: ranks.collect::<Result<_>>()? };
        ranks.make(WARM_UP)?;
        ranks.make_in_groups(WARM_UP)?;
        Ok(ranks)
    }

    /// So many calls, by one rank after the other, each waited for by all: what `ferroccl perf` does.
    ///
    /// # Errors
    /// As the calls themselves.
    pub fn make(&self, calls: u64) -> Result<()> {
        (0..calls).try_for_each(|_| self.enqueue().and_then(|()| self.synchronize()))
    }

    /// The same with the ranks' calls in a group: what NCCL asks of a thread that has several ranks.
    ///
    /// # Errors
    /// As the calls themselves.
    pub fn make_in_groups(&self, calls: u64) -> Result<()> {
        (0..calls).try_for_each(|_| group(|| self.enqueue()).and_then(|()| self.synchronize()))
    }

    fn enqueue(&self) -> Result<()> {
        self.ranks.iter().try_for_each(|rank| rank.call(self.call))
    }

    fn synchronize(&self) -> Result<()> {
        self.ranks.iter().try_for_each(|rank| rank.stream.synchronize())
    }
}

impl Rank {
    fn call(&self, call: Call) -> Result<()> {
        let Rank { comm, stream, send, recv } = self;
        match call {
            Call::AllReduce => comm.all_reduce(send, recv, ReduceOp::Sum, stream),
            Call::Broadcast => comm.broadcast(send, recv, 0, stream),
            Call::AllGather => comm.all_gather(send, recv, stream),
            Call::ReduceScatter => comm.reduce_scatter(send, recv, ReduceOp::Sum, stream),
        }
    }
}
