//! What is measured: nccl-tests' programs, each with its own idea of size, count and bandwidth.
//!
//! A size on the command line is of the largest buffer of a rank. Where that is cut into a block for each rank, blocks are
//! multiples of 16 bytes, and the table has what is left: with 4 ranks 100 bytes are 64, and 60 are nothing.
//!
//! | | a rank sends | and receives | count | algbw: bytes | busbw / algbw | in place |
//! |---|---|---|---|---|---|---|
//! | all_reduce | all | all | all | all | 2 (n - 1) / n | one buffer |
//! | all_gather | a block | all | a block | all | (n - 1) / n | its block of what it receives |
//! | reduce_scatter | all | a block | a block | all | (n - 1) / n | its block of what it sends |
//! | broadcast, reduce | all | all | all | all | 1 | one buffer |
//! | sendrecv | all, to the next rank | all | all | all | 1 | not measured |
//! | alltoall | all | all | a block | all | (n - 1) / n | not measured |
//! | gather | a block | all, the root | a block | all | (n - 1) / n | the root's block |
//! | scatter | all, the root | a block | a block | all | (n - 1) / n | the root's block |
//! | hypercube | a block | all | a block | n - 1 blocks | 1 | its block of what it receives |
//!
//! Source: the `GetCollByteCount` and `GetBw` of nccl-tests' programs. Two differ here. nccl-tests times sendrecv and
//! alltoall over the same buffer without checking them; this library has no such calls, and the table says N/A. And its
//! hypercube, the one of n ranks that are a power of two, is refused for others instead of skipped.

use ferroccl::DataType;

ferroccl::device::names! {
    /// What is measured: nccl-tests' programs, without their `_perf`.
    pub enum Operation ("collective") {
        /// Every rank gets the reduction of all ranks' buffers.
        AllReduce = "all_reduce",
        /// Every rank gets all ranks' blocks.
        AllGather = "all_gather",
        /// Every rank gets its block of the reduction.
        ReduceScatter = "reduce_scatter",
        /// Every rank gets the root's buffer.
        Broadcast = "broadcast",
        /// The root gets the reduction.
        Reduce = "reduce",
        /// Every rank sends to the next, and receives from the one before.
        SendRecv = "sendrecv",
        /// Every rank sends a block to each, and receives one from each.
        AllToAll = "alltoall",
        /// The root gets all ranks' blocks.
        Gather = "gather",
        /// Every rank gets its block of the root's buffer.
        Scatter = "scatter",
        /// An all-gather in log2 n rounds of sends and receives.
        Hypercube = "hypercube",
    }
}

/// Bytes that a block is a multiple of.
const BLOCK: usize = 16;

/// A size as an operation has it, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// What the table calls count: the argument of the call.
    pub(crate) count: usize,
    /// What a rank sends.
    pub(crate) send: usize,
    /// What a rank receives.
    pub(crate) recv: usize,
}

impl Shape {
    /// Elements of the larger buffer: the table's size.
    pub(crate) fn largest(self) -> usize {
        self.send.max(self.recv)
    }
}

impl Operation {
    /// Whether values are combined. Where they are not, the table's redop is none (nccl-tests shows one for sendrecv).
    pub(crate) fn reduces(self) -> bool {
        matches!(self, Operation::AllReduce | Operation::ReduceScatter | Operation::Reduce)
    }

    /// Whether one rank is the root.
    pub(crate) fn has_root(self) -> bool {
        use Operation::{Broadcast, Gather, Reduce, Scatter};
        matches!(self, Broadcast | Reduce | Gather | Scatter)
    }

    /// Whether it can be done in place.
    pub(crate) fn in_place(self) -> bool {
        !matches!(self, Operation::SendRecv | Operation::AllToAll)
    }

    /// Why it cannot be done by so many ranks.
    pub(crate) fn refuses(self, ranks: u32) -> Option<String> {
        let refused = self == Operation::Hypercube && !ranks.is_power_of_two();
        refused.then(|| format!("a hypercube takes a power of two of ranks; there are {ranks}"))
    }

    /// The shape of a call whose largest buffer has `count` elements at most.
    pub(crate) fn shape(self, count: usize, data_type: DataType, ranks: u32) -> Shape {
        let n = ranks.max(1) as usize;
        let grain = (BLOCK / data_type.size()).max(1);
        let block = count / n / grain * grain;
        let all = block * n;
        match self {
            Operation::AllReduce
            | Operation::Broadcast
            | Operation::Reduce
            | Operation::SendRecv => Shape { count, send: count, recv: count },
            Operation::AllGather | Operation::Gather | Operation::Hypercube => {
                Shape { count: block, send: block, recv: all }
            }
            Operation::ReduceScatter | Operation::Scatter => {
                Shape { count: block, send: all, recv: block }
            }
            Operation::AllToAll => Shape { count: block, send: all, recv: all },
        }
    }

    /// Elements whose bytes over the time are `algbw`.
    pub(crate) fn moved(self, shape: Shape) -> usize {
        match self {
            Operation::Hypercube => shape.recv - shape.send,
            _ => shape.largest(),
        }
    }

    /// How much more (or less) than `algbw` each link must have carried.
    ///
    /// An all-reduce moves each byte out of and into every rank once to reduce and once to spread, less the rank's own
    /// share: 2 (n - 1) / n.
    pub(crate) fn bus_factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks.max(1));
        match self {
            Operation::AllReduce => 2.0 * (n - 1.0) / n,
            Operation::AllGather
            | Operation::ReduceScatter
            | Operation::AllToAll
            | Operation::Gather
            | Operation::Scatter => (n - 1.0) / n,
            Operation::Broadcast
            | Operation::Reduce
            | Operation::SendRecv
            | Operation::Hypercube => 1.0,
        }
    }

    /// Elements that all ranks together get.
    pub(crate) fn delivered(self, shape: Shape, ranks: u32) -> u64 {
        let receivers = match self {
            Operation::Reduce | Operation::Gather => 1,
            _ => u64::from(ranks),
        };
        receivers * shape.recv as u64
    }

    /// Where a rank's part lies in place: the first element of what it sends, and of what it receives, in one buffer
    /// of [`Shape::largest`].
    pub(crate) fn offsets_in_place(self, shape: Shape, rank: u32) -> (usize, usize) {
        let block = rank as usize * shape.count;
        match self {
            Operation::AllGather | Operation::Gather | Operation::Hypercube => (block, 0),
            Operation::ReduceScatter | Operation::Scatter => (0, block),
            _ => (0, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Operation::{AllGather, AllReduce, AllToAll, Gather, Hypercube, ReduceScatter, Scatter};

    #[test]
    fn sizes_are_those_of_nccl_tests() {
        let of = |operation: Operation, count| {
            let Shape { count, send, recv } = operation.shape(count, DataType::F32, 4);
            (count, send, recv)
        };
        assert_eq!(of(AllReduce, 25), (25, 25, 25));
        // 100 bytes are 4 blocks of 16.
        assert_eq!(of(AllGather, 25), (4, 4, 16));
        assert_eq!(of(ReduceScatter, 25), (4, 16, 4));
        assert_eq!(of(AllToAll, 25), (4, 16, 16));
        assert_eq!(of(Gather, 15), (0, 0, 0));
        assert_eq!(of(Scatter, 1 << 20), (1 << 18, 1 << 20, 1 << 18));
        assert_eq!(Gather.shape(100, DataType::U8, 3).count, 32);
        assert_eq!(Gather.shape(100, DataType::F64, 3).count, 32);
        assert_eq!(Gather.shape(100, DataType::F64, 0).count, 100);
    }

    #[test]
    fn bandwidths_are_those_of_nccl_tests() {
        for (operation, moved, factor) in [
            (AllReduce, 1024, 1.5),
            (AllGather, 1024, 0.75),
            (ReduceScatter, 1024, 0.75),
            (Operation::Broadcast, 1024, 1.0),
            (Operation::Reduce, 1024, 1.0),
            (Operation::SendRecv, 1024, 1.0),
            (AllToAll, 1024, 0.75),
            (Gather, 1024, 0.75),
            (Scatter, 1024, 0.75),
            (Hypercube, 768, 1.0),
        ] {
            let shape = operation.shape(1024, DataType::U8, 4);
            let found = (operation.moved(shape), operation.bus_factor(4));
            assert_eq!(found, (moved, factor), "{operation}");
        }
        assert_eq!(AllReduce.bus_factor(1), 0.0);
        assert_eq!(AllReduce.bus_factor(0), 0.0);
    }

    #[test]
    fn hypercubes_are_of_powers_of_two() {
        assert_eq!(Hypercube.refuses(4), None);
        assert!(Hypercube.refuses(3).is_some() && AllGather.refuses(3).is_none());
    }
}
