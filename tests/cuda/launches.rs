//! What a group of calls puts into streams. Each call of the driver takes the host a microsecond or two.

use ferroccl::{Communicator, Device, DeviceBuffer, ReduceOp, Stream, group};

use crate::stand_in::{alone, calls, ready};

/// What goes into a stream.
const PUT_IN: [&str; 5] = [
    "cuLaunchKernel",
    "cuStreamWriteValue64_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuEventRecord",
    "cuStreamWaitEvent",
];

/// Ranks with a stream each.
struct Members {
    ranks: Vec<Communicator>,
    streams: Vec<Stream>,
    buffers: Vec<[DeviceBuffer<f32>; 2]>,
}

impl Members {
    fn new(device: &Device, n: u32) -> Self {
        let ranks = Communicator::init_all(device, n).unwrap();
        let streams = ranks.iter().map(|_| device.stream().unwrap()).collect();
        let buffer = || device.alloc(1000).unwrap();
        let buffers = ranks.iter().map(|_| [buffer(), buffer()]).collect();
        Members { ranks, streams, buffers }
    }

    fn all_reduces(&self, on: impl Fn(usize) -> usize) {
        group(|| {
            for (r, rank) in self.ranks.iter().enumerate() {
                let [from, to] = &self.buffers[r];
                rank.all_reduce(from, to, ReduceOp::Sum, &self.streams[on(r)])?;
            }
            Ok(())
        })
        .unwrap();
    }

    fn messages(&self) {
        group(|| {
            for (r, rank) in self.ranks.iter().enumerate() {
                let ([from, to], n) = (&self.buffers[r], self.ranks.len() as u32);
                rank.send(from, (rank.rank() + 1) % n, &self.streams[r])?;
                rank.recv(to, (rank.rank() + n - 1) % n, &self.streams[r])?;
            }
            Ok(())
        })
        .unwrap();
    }

    fn wait(&self) {
        self.streams.iter().for_each(|stream| stream.synchronize().unwrap());
    }

    /// How often each function is called for one group of calls, which is not the first.
    fn put_in(&self, calls_of_a_group: impl Fn()) -> [u64; 5] {
        for _ in 0..2 {
            calls_of_a_group();
            self.wait();
        }
        let before = PUT_IN.map(calls);
        calls_of_a_group();
        self.wait();
        std::array::from_fn(|i| calls(PUT_IN[i]) - before[i])
    }
}

#[test]
fn a_group_puts_in_its_launches_and_their_ends() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let ranks = Members::new(&Device::cuda(0).unwrap(), 3);
    assert_eq!(ranks.put_in(|| ranks.all_reduces(|r| r)), [3, 3, 0, 0, 0], "{PUT_IN:?}");
    assert_eq!(ranks.put_in(|| ranks.messages()), [3, 3, 0, 0, 0], "{PUT_IN:?}");
}

/// Ranks that share a stream run beside it, and it waits for them.
#[test]
fn a_group_on_one_stream_waits_where_it_must() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let ranks = Members::new(&Device::cuda(0).unwrap(), 2);
    for (r, [from, _]) in ranks.buffers.iter().enumerate() {
        from.copy_from(&[r as f32 + 1.0; 1000], &ranks.streams[r]).unwrap();
    }
    ranks.wait();
    let [launches, _, copies, records, waits] = ranks.put_in(|| ranks.all_reduces(|_| 0));
    assert_eq!((launches, copies), (2, 0));
    // The second rank's call waits for the stream, and the stream for it.
    assert_eq!((records, waits), (2, 2));
    for [_, to] in &ranks.buffers {
        assert_eq!(to.to_vec(&ranks.streams[0]).unwrap(), [3.0; 1000]);
    }
}
