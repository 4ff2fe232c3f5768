//! What a cuda device does, whether it is a GPU (`tests/gpu`) or one of the stand-in's (`tests/cuda`).

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use ferroccl::runtime::cuda::{CudaGraph, CudaTimer};
use ferroccl::{
    Algorithm, CommConfig, Communicator, Device, DeviceBuffer, Error, ProtocolId, ReduceOp, Stream,
    group,
};
use ferroccl_proxy::net::LocalNet;

use crate::team::team_on;

/// Gives a macro the names of all of them; each is a function of a device.
macro_rules! scenarios {
    ($with:ident) => {
        $with! {
            a_peer_that_never_calls,
            an_abort_ends_kernels_that_wait,
            calls_that_differ_are_told_apart,
            a_panic_leaves_no_kernel_waiting,
            a_replay_is_a_call,
            a_graph_of_a_group_with_messages,
            a_graph_over_a_network,
            collectives_and_messages_over_a_network,
            a_graph_keeps_what_it_needs,
            calls_before_a_capture_are_no_part_of_it,
            a_replay_that_fails_is_an_error_of_its_stream,
            a_future_ends_with_its_stream,
            who_waits_for_a_copy_holds_nobody_up,
        }
    };
}
pub(crate) use scenarios;

/// Ranks on one device, with a stream each.
struct Ranks {
    device: Device,
    ranks: Vec<Communicator>,
    streams: Vec<Stream>,
}

impl Ranks {
    fn new(device: &Device, n: u32, config: &CommConfig) -> Self {
        let ranks = Communicator::init_all_with(device, n, config).unwrap();
        let streams = ranks.iter().map(|_| device.stream().unwrap()).collect();
        Ranks { device: device.clone(), ranks, streams }
    }

    fn streams(&self) -> Vec<&Stream> {
        self.streams.iter().collect()
    }

    fn each(&self) -> impl Iterator<Item = (usize, &Communicator, &Stream)> {
        self.ranks.iter().zip(&self.streams).enumerate().map(|(r, (rank, s))| (r, rank, s))
    }

    fn buffers(&self, count: usize) -> Vec<DeviceBuffer<u32>> {
        self.ranks.iter().map(|_| self.device.alloc(count).unwrap()).collect()
    }
}

fn check(buffer: &DeviceBuffer<u32>, stream: &Stream, want: u32, what: &str) {
    let got = buffer.to_vec(stream).unwrap();
    let wrong = got.iter().position(|x| *x != want);
    assert_eq!(wrong.map(|i| (i, got[i])), None, "{what}: not {want}");
}

pub(crate) fn a_peer_that_never_calls(device: &Device) {
    let mut config = CommConfig::default();
    config.timeout = Some(Duration::from_millis(500));
    let all = Ranks::new(device, 2, &config);
    let buffer = device.alloc::<f32>(100).unwrap();
    let stream = &all.streams[0];
    let begun = Instant::now();
    all.ranks[0].all_reduce(&buffer, &buffer, ReduceOp::Sum, stream).unwrap();
    let error = stream.synchronize().unwrap_err();
    assert!(matches!(&error, Error::Timeout { ranks, .. } if *ranks == [1]), "{error}");
    assert!(all.ranks[0].async_error().is_err());
    println!("given up after {:?}", begun.elapsed());
    // Stream and device are as good as before.
    let again = Communicator::init_all(device, 1).unwrap();
    again[0].all_reduce(&buffer, &buffer, ReduceOp::Sum, stream).unwrap();
    stream.synchronize().unwrap();
}

pub(crate) fn an_abort_ends_kernels_that_wait(device: &Device) {
    let all = Ranks::new(device, 2, &CommConfig::default());
    let buffer = device.alloc::<f32>(1 << 20).unwrap();
    let stream = &all.streams[0];
    all.ranks[0].all_reduce(&buffer, &buffer, ReduceOp::Sum, stream).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(!stream.query().unwrap());
    let begun = Instant::now();
    all.ranks[0].abort();
    let error = stream.synchronize().unwrap_err().to_string();
    assert!(error.contains("abort"), "{error}");
    println!("ended after {:?}", begun.elapsed());
}

pub(crate) fn calls_that_differ_are_told_apart(device: &Device) {
    let all = Ranks::new(device, 2, &CommConfig::default());
    let buffer = device.alloc::<f32>(100).unwrap();
    for (r, rank, stream) in all.each() {
        let part = buffer.slice(..100 - 50 * r);
        rank.all_reduce(&part, &part, ReduceOp::Sum, stream).unwrap();
    }
    for stream in &all.streams {
        let error = stream.synchronize().unwrap_err().to_string();
        assert!(error.contains("differs between ranks"), "{error}");
    }
}

/// A thread that panics drops what it has: its kernels, and those of its peers, end.
pub(crate) fn a_panic_leaves_no_kernel_waiting(device: &Device) {
    let Ranks { mut ranks, streams, .. } = Ranks::new(device, 2, &CommConfig::default());
    let (second, first) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    let buffer = device.alloc::<f32>(100).unwrap();
    // Loaded before anything waits.
    group(|| {
        first.send(&buffer, 1, &streams[0])?;
        second.recv(&buffer, 0, &streams[1])
    })
    .unwrap();
    streams[1].synchronize().unwrap();
    first.all_reduce(&buffer, &buffer, ReduceOp::Sum, &streams[0]).unwrap();
    let (theirs, other) = (streams[1].clone(), buffer.clone());
    let panicked = std::thread::spawn(move || {
        // Its own kernel waits, too.
        second.recv(&other, 0, &theirs).unwrap();
        panic!("on purpose");
    });
    assert!(panicked.join().is_err());
    for stream in &streams {
        // And not because their time is up.
        let error = stream.synchronize().unwrap_err().to_string();
        assert!(error.contains("abort"), "{error}");
    }
    assert!(first.async_error().is_err());
}

/// Every algorithm and protocol, in place, several times: state that a call leaves in memory must be as at its beginning.
pub(crate) fn a_replay_is_a_call(device: &Device) {
    for &protocol in ProtocolId::ALL {
        for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::OneShot, Algorithm::TwoShot]
        {
            for hostile in [false, true] {
                let mut config = CommConfig::default();
                (config.protocol, config.algorithm) = (Some(protocol), Some(algorithm));
                if hostile {
                    config.slots = Some(2);
                    config.buffer_bytes = [Some(2048); 3];
                }
                let count = if hostile { 3001 } else { 100_003 };
                replays(&Ranks::new(device, 3, &config), count, &format!("{algorithm} {protocol}"));
            }
        }
    }
}

fn replays(all: &Ranks, count: usize, name: &str) {
    let buffers = all.buffers(count);
    let graph = CudaGraph::capture(&all.streams(), || {
        for (r, rank, stream) in all.each() {
            rank.all_reduce(&buffers[r], &buffers[r], ReduceOp::Sum, stream)?;
            rank.reduce(&buffers[r], &buffers[r], ReduceOp::Sum, 1, stream)?;
        }
        Ok(())
    })
    .unwrap();
    for round in 1..4u32 {
        // Calls that are not captured may come in between.
        for (r, rank, stream) in all.each() {
            buffers[r].copy_from(&vec![round * (r as u32 + 1); count], stream).unwrap();
            rank.barrier(stream).unwrap();
        }
        all.streams.iter().for_each(|stream| stream.synchronize().unwrap());
        graph.launch(&all.streams[0]).unwrap();
        all.streams[0].synchronize().unwrap();
        for (r, buffer) in buffers.iter().enumerate() {
            let want = round * 6 * if r == 1 { 3 } else { 1 };
            check(buffer, &all.streams[0], want, &format!("{name}, round {round}, rank {r}"));
        }
    }
}

pub(crate) fn a_graph_of_a_group_with_messages(device: &Device) {
    const COUNT: usize = 50_001;
    let all = Ranks::new(device, 2, &CommConfig::default());
    let (sums, sent, received) = (all.buffers(COUNT), all.buffers(COUNT), all.buffers(COUNT));
    let graph = CudaGraph::capture(&all.streams(), || {
        group(|| {
            for (r, rank, stream) in all.each() {
                rank.all_reduce(&sums[r], &sums[r], ReduceOp::Sum, stream)?;
                rank.send(&sent[r], 1 - r as u32, stream)?;
                rank.recv(&received[r], 1 - r as u32, stream)?;
            }
            Ok(())
        })
    })
    .unwrap();
    for round in 1..4u32 {
        for (r, _, stream) in all.each() {
            sums[r].copy_from(&[round; COUNT], stream).unwrap();
            sent[r].copy_from(&[10 * round + r as u32; COUNT], stream).unwrap();
            stream.synchronize().unwrap();
        }
        let timer = CudaTimer::start(&all.streams[0]).unwrap();
        graph.launch(&all.streams[0]).unwrap();
        timer.stop(&all.streams[0]).unwrap();
        all.streams[0].synchronize().unwrap();
        assert!(timer.seconds().unwrap() > 0.0);
        for (r, _, stream) in all.each() {
            check(&sums[r], stream, 2 * round, "the sum");
            check(&received[r], stream, 10 * round + 1 - r as u32, "what was received");
        }
    }
}

/// The proxies have their part in each replay.
pub(crate) fn a_graph_over_a_network(device: &Device) {
    over_a_network(device, &by_network());
}

/// Ranks that reach each other by a network alone.
fn by_network() -> CommConfig {
    let mut config = CommConfig::default();
    (config.p2p, config.shm) = (Some(false), Some(false));
    config.net = Some(Arc::new(LocalNet::default()));
    config
}

/// The host counts the steps of a call over a network, by the kernel's own code: it must find all that this reads in its own memory.
pub(crate) fn collectives_and_messages_over_a_network(device: &Device) {
    for &protocol in ProtocolId::ALL {
        for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::Bruck, Algorithm::Doubling] {
            let mut config = by_network();
            (config.protocol, config.algorithm) = (Some(protocol), Some(algorithm));
            let name = format!("{algorithm} {protocol} over a network");
            let team = team_on(device.clone(), &config, 3, &name);
            team.collectives(0xF3220, &[0, 1, 17, 4099]);
            team.messages(0xF3220, &[0, 1, 4099]);
        }
    }
}

/// The same over a network of the caller's choice.
pub(crate) fn over_a_network(device: &Device, config: &CommConfig) {
    let count = 70_001;
    let all = Ranks::new(device, 2, config);
    let buffers = all.buffers(count);
    let graph = CudaGraph::capture(&all.streams(), || {
        for (r, rank, stream) in all.each() {
            rank.all_reduce(&buffers[r], &buffers[r], ReduceOp::Sum, stream)?;
        }
        Ok(())
    })
    .unwrap();
    for round in 1..4u32 {
        for (r, _, stream) in all.each() {
            buffers[r].copy_from(&vec![round * (r as u32 + 1); count], stream).unwrap();
            stream.synchronize().unwrap();
        }
        graph.launch(&all.streams[0]).unwrap();
        all.streams[0].synchronize().unwrap();
        for (r, _, stream) in all.each() {
            check(&buffers[r], stream, 3 * round, &format!("round {round}, rank {r}"));
        }
    }
}

/// Handles of communicators and buffers are gone before it runs.
pub(crate) fn a_graph_keeps_what_it_needs(device: &Device) {
    const COUNT: usize = 3001;
    let Ranks { ranks, streams, .. } = Ranks::new(device, 2, &CommConfig::default());
    let result = device.alloc::<u32>(COUNT).unwrap();
    let graph = {
        let inputs = [1, 2].map(|x| device.upload(&[x; COUNT]).unwrap());
        let other = device.alloc(COUNT).unwrap();
        CudaGraph::capture(&streams.iter().collect::<Vec<_>>(), || {
            for (r, rank) in ranks.iter().enumerate() {
                let to = if r == 0 { &result } else { &other };
                rank.all_reduce(&inputs[r], to, ReduceOp::Sum, &streams[r])?;
            }
            Ok(())
        })
        .unwrap()
    };
    drop(ranks);
    for _ in 0..2 {
        result.copy_from(&[0; COUNT], &streams[0]).unwrap();
        graph.launch(&streams[0]).unwrap();
        streams[0].synchronize().unwrap();
        check(&result, &streams[0], 3, "the sum");
    }
}

/// What is captured is in order with the graph, and not with what was called before.
pub(crate) fn calls_before_a_capture_are_no_part_of_it(device: &Device) {
    for n in [1, 2] {
        let all = Ranks::new(device, n, &CommConfig::default());
        let others: Vec<Stream> = all.ranks.iter().map(|_| device.stream().unwrap()).collect();
        let from = device.upload(&[7u32; 3001]).unwrap();
        let to: Vec<_> = all.ranks.iter().map(|_| device.alloc::<u32>(3001).unwrap()).collect();
        let calls = |streams: &[Stream]| {
            let mut each = all.ranks.iter().zip(&to).zip(streams);
            let sum = ReduceOp::Sum;
            group(|| each.try_for_each(|((rank, to), s)| rank.all_reduce(&from, to, sum, s)))
        };
        calls(&all.streams).unwrap();
        let captured: Vec<&Stream> = others.iter().collect();
        let graph = CudaGraph::capture(&captured, || calls(&others)).unwrap();
        calls(&all.streams).unwrap();
        all.streams.iter().for_each(|stream| stream.synchronize().unwrap());
        graph.launch(&others[0]).unwrap();
        others[0].synchronize().unwrap();
        for to in &to {
            check(to, &others[0], 7 * n, &format!("{n} ranks"));
        }
    }
}

/// Who is told when a replay goes wrong: the stream that it ran in.
pub(crate) fn a_replay_that_fails_is_an_error_of_its_stream(device: &Device) {
    let all = Ranks::new(device, 2, &CommConfig::default());
    let buffer = device.alloc::<u32>(3001).unwrap();
    let capture = |r: usize| {
        CudaGraph::capture(&[&all.streams[r]], || {
            all.ranks[r].all_reduce(&buffer, &buffer, ReduceOp::Sum, &all.streams[r])
        })
        .unwrap()
    };
    let graphs = [capture(0), capture(1)];
    graphs[0].launch(&all.streams[0]).unwrap();
    all.ranks[0].abort();
    let error = all.streams[0].synchronize().unwrap_err().to_string();
    assert!(error.contains("abort"), "{error}");
    drop(graphs);
}

/// Of what is captured there is none.
pub(crate) fn a_future_ends_with_its_stream(device: &Device) {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut wait = |stream: &Stream| {
        let mut future = pin!(stream.finished());
        loop {
            match future.as_mut().poll(&mut cx) {
                Poll::Ready(result) => return result,
                Poll::Pending => std::thread::park(),
            }
        }
    };
    let count = 100_003;
    let all = Ranks::new(device, 2, &CommConfig::default());
    let buffers = all.buffers(count);
    for (r, rank, stream) in all.each() {
        buffers[r].copy_from(&vec![r as u32 + 1; count], stream).unwrap();
        rank.all_reduce(&buffers[r], &buffers[r], ReduceOp::Sum, stream).unwrap();
    }
    all.streams.iter().for_each(|stream| wait(stream).unwrap());
    for (r, _, stream) in all.each() {
        check(&buffers[r], stream, 3, "behind a future");
    }
    let graph = CudaGraph::capture(&all.streams(), || {
        for (r, rank, stream) in all.each() {
            rank.all_reduce(&buffers[r], &buffers[r], ReduceOp::Sum, stream)?;
            assert!(wait(stream).unwrap_err().to_string().contains("captured"));
        }
        Ok(())
    })
    .unwrap();
    graph.launch(&all.streams[0]).unwrap();
    wait(&all.streams[0]).unwrap();
    check(&buffers[1], &all.streams[0], 6, "behind a graph");
}

/// A thread copies out what a kernel that waits will leave. Another copies on other streams meanwhile, as the proxy does for a device
/// communicator, and makes the call that the kernel waits for after that.
pub(crate) fn who_waits_for_a_copy_holds_nobody_up(device: &Device) {
    let mut config = CommConfig::default();
    config.timeout = Some(Duration::from_secs(20));
    let all = Ranks::new(device, 2, &config);
    let buffers = all.buffers(1000);
    for (r, _, stream) in all.each() {
        buffers[r].copy_from(&[r as u32 + 1; 1000], stream).unwrap();
        stream.synchronize().unwrap();
    }
    let (other, stream) = (device.alloc::<u32>(64).unwrap(), device.stream().unwrap());
    all.ranks[0].all_reduce(&buffers[0], &buffers[0], ReduceOp::Sum, &all.streams[0]).unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| buffers[0].to_vec(&all.streams[0]));
        std::thread::sleep(Duration::from_millis(100));
        let begun = Instant::now();
        other.copy_from(&[7; 64], &stream).unwrap();
        assert_eq!(other.to_vec(&stream).unwrap(), [7; 64]);
        println!("copied after {:?}", begun.elapsed());
        all.ranks[1].all_reduce(&buffers[1], &buffers[1], ReduceOp::Sum, &all.streams[1]).unwrap();
        assert_eq!(first.join().unwrap().unwrap(), [3; 1000]);
    });
    check(&buffers[1], &all.streams[1], 3, "behind a copy");
}
