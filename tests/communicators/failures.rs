//! Calls that go wrong: every rank gets an error that says what happened, and none hangs.

use std::sync::Arc;

use ferroccl::config::Config;
use ferroccl::{CommConfig, Communicator, Device, Error, ReduceOp, Stream, UniqueId};

fn group(n: u32, config: &CommConfig) -> (Device, Vec<Communicator>, Vec<Stream>) {
    let device = Device::cpu();
    let ranks = Communicator::init_all_with(&device, n, config).unwrap();
    let streams = ranks.iter().map(|_| device.stream().unwrap()).collect();
    (device, ranks, streams)
}

/// All streams end in an error; the texts.
fn errors(streams: &[Stream]) -> Vec<String> {
    let ends: Vec<_> = streams.iter().map(Stream::synchronize).collect();
    assert!(ends.iter().all(Result::is_err), "{ends:?}");
    ends.into_iter().filter_map(Result::err).map(|e| e.to_string()).collect()
}

#[test]
fn another_count_is_an_error_on_every_rank() {
    for protocol in ferroccl::ProtocolId::ALL {
        let mut config = CommConfig::default();
        config.protocol = Some(*protocol);
        let (device, ranks, streams) = group(4, &config);
        let (mut launched, mut late) = (Vec::new(), Vec::new());
        for (r, rank) in ranks.iter().enumerate() {
            let count = if r == 2 { 5 } else { 4 };
            let buffer = device.alloc::<f32>(count).unwrap();
            // The ranks before may have failed already, and then this one is told at once.
            match rank.all_reduce(&buffer, &buffer, ReduceOp::Sum, &streams[r]) {
                Ok(()) => launched.push(streams[r].clone()),
                Err(error) => late.push(error.to_string()),
            }
        }
        // Only the last rank comes after the one whose call differs.
        assert!(launched.len() + late.len() == 4 && launched.len() >= 3, "{late:?}");
        let refused = "communicator of rank 3 is aborted: ";
        let late = late.iter().map(|text| text.strip_prefix(refused).unwrap().to_owned());
        for text in errors(&launched).into_iter().chain(late) {
            assert!(text.starts_with("call 1 differs between ranks: rank "), "{text}");
            assert!(text.contains("count 4") && text.contains("count 5"), "{text}");
        }
        // The group is done for: the next call says why.
        let buffer = device.alloc::<f32>(4).unwrap();
        let error = ranks[0].all_reduce(&buffer, &buffer, ReduceOp::Sum, &streams[0]).unwrap_err();
        assert!(
            matches!(&error, Error::Aborted { rank: 0, cause } if cause.contains("differs")),
            "{error}"
        );
    }
}

#[test]
fn another_type_or_op_is_an_error_on_every_rank() {
    let (device, ranks, streams) = group(3, &CommConfig::default());
    let (floats, ints) = (device.alloc::<f32>(1000).unwrap(), device.alloc::<i32>(1000).unwrap());
    ranks[0].all_reduce(&floats, &floats, ReduceOp::Sum, &streams[0]).unwrap();
    ranks[1].all_reduce(&ints, &ints, ReduceOp::Sum, &streams[1]).unwrap();
    // The ranks before may have failed already, and then this one is told at once.
    let last = ranks[2].all_reduce(&ints, &ints, ReduceOp::Sum, &streams[2]);
    let launched = if last.is_ok() { 3 } else { 2 };
    let last = last.err().map(|error| error.to_string());
    for text in errors(&streams[..launched]).into_iter().chain(last) {
        assert!(text.contains("type float") && text.contains("type int32"), "{text}");
    }
    let (device, ranks, streams) = group(2, &CommConfig::default());
    for (r, op) in [ReduceOp::Max, ReduceOp::Min].into_iter().enumerate() {
        let buffer = device.alloc::<u64>(100_000).unwrap();
        ranks[r].all_reduce(&buffer, &buffer, op, &streams[r]).unwrap();
    }
    for text in errors(&streams) {
        assert!(text.contains("op max") && text.contains("op min"), "{text}");
    }
}

/// A count of zero is a call as any other: who calls with it meets who does not.
#[test]
fn no_elements_against_some_is_an_error() {
    let (device, ranks, streams) = group(2, &CommConfig::default());
    for (r, count) in [0, 7].into_iter().enumerate() {
        let buffer = device.alloc::<f64>(count).unwrap();
        ranks[r].all_reduce(&buffer, &buffer, ReduceOp::Sum, &streams[r]).unwrap();
    }
    for text in errors(&streams) {
        assert!(text.contains("count 0") && text.contains("count 7"), "{text}");
    }
}

/// A large call on many channels against a small one: the channels that only one side has end too.
#[test]
fn another_number_of_channels_ends() {
    let mut config = CommConfig::default();
    config.min_channels = Some(4);
    let (device, ranks, streams) = group(2, &config);
    for (r, count) in [1, 1 << 20].into_iter().enumerate() {
        let buffer = device.alloc::<f32>(count).unwrap();
        ranks[r].all_reduce(&buffer, &buffer, ReduceOp::Sum, &streams[r]).unwrap();
    }
    for text in errors(&streams) {
        assert!(text.contains("count 1,") && text.contains("count 1048576"), "{text}");
    }
}

#[test]
fn abort_ends_a_stuck_call_everywhere() {
    let (device, ranks, streams) = group(3, &CommConfig::default());
    for r in 0..2 {
        let buffer = device.alloc::<f32>(10).unwrap();
        ranks[r].all_reduce(&buffer, &buffer, ReduceOp::Sum, &streams[r]).unwrap();
    }
    ranks[1].abort();
    for text in errors(&streams[..2]) {
        assert!(text.contains("rank 1 was aborted"), "{text}");
    }
    assert!(ranks[1].async_error().is_err());
}

#[test]
fn a_rank_that_leaves_ends_the_calls_that_wait_for_it() {
    let (device, mut ranks, streams) = group(3, &CommConfig::default());
    // A call that all make still ends well.
    let buffers: Vec<_> = (0..3).map(|_| device.upload(&[1.0f32; 5000]).unwrap()).collect();
    for r in 0..3 {
        ranks[r].all_reduce(&buffers[r], &buffers[r], ReduceOp::Sum, &streams[r]).unwrap();
    }
    drop(ranks.remove(2));
    for (stream, buffer) in streams.iter().zip(&buffers) {
        assert_eq!(buffer.to_vec(stream).unwrap(), [3.0; 5000]);
    }
    for r in 0..2 {
        ranks[r].all_reduce(&buffers[r], &buffers[r], ReduceOp::Sum, &streams[r]).unwrap();
    }
    for text in errors(&streams[..2]) {
        assert!(text.contains("rank 2 has left the group"), "{text}");
    }
}

#[test]
fn arguments_are_checked_by_name() {
    let (device, ranks, streams) = group(1, &CommConfig::default());
    let (a, b) = (device.alloc::<f32>(8).unwrap(), device.alloc::<f32>(9).unwrap());
    let call = |send, recv| {
        ranks[0].all_reduce(send, recv, ReduceOp::Sum, &streams[0]).unwrap_err().to_string()
    };
    assert_eq!(call(&a, &b), "invalid argument recv: has 9 elements, send has 8");
    let overlap = call(&b.slice(..5), &b.slice(2..7));
    assert_eq!(overlap, "invalid argument recv: overlaps send without being the same");
    let error = Communicator::init_all(&device, 0).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { argument: "nranks", .. }), "{error}");
    let id = UniqueId::new(&Config::default().bootstrap()).unwrap();
    let error = Communicator::init_rank(&device, 2, &id, 2).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { argument: "rank", .. }), "{error}");
    let mut config = CommConfig::default();
    config.slots = Some(1);
    let error = Communicator::init_all_with(&device, 2, &config).unwrap_err();
    assert_eq!(error.to_string(), "invalid setting CommConfig::slots=1: must be 2 to 1024");
}

/// A sender of the same process writes to the buffer that it was offered. It may be in the middle of that when the receiver
/// gives up, so the memory stays until the sender is gone.
#[test]
fn a_buffer_outlives_the_ranks_that_were_offered_it() {
    for messages in [false, true] {
        let (device, mut ranks, mut streams) = group(3, &CommConfig::default());
        let (recv, send) = (device.alloc::<u64>(3 << 16).unwrap(), device.alloc(1 << 16).unwrap());
        let memory = Arc::downgrade(recv.memory());
        let receiver = ranks.remove(0);
        if messages {
            receiver.recv(&recv, 1, &streams[0]).unwrap();
        } else {
            receiver.all_gather(&send, &recv, &streams[0]).unwrap();
        }
        receiver.abort();
        streams.remove(0).synchronize().unwrap_err();
        drop((receiver, recv, send));
        assert!(memory.strong_count() > 0, "messages: {messages}");
        ranks.remove(0);
        assert!(memory.strong_count() > 0, "another sender is there, messages: {messages}");
        drop(ranks);
        assert_eq!(memory.strong_count(), 0, "messages: {messages}");
    }
}
