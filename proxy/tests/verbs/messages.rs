//! Messages of all kinds: long and short, over several queue pairs, several to a request.

use std::sync::Arc;

use ferroccl_proxy::net::{MemoryKind, Net, RecvBuffer, Request};

use crate::support::{Random, connect, exchange, until};
use crate::{cable, conformance, net, tier};

/// From nothing to twice what the device takes as one message (8 MiB), at odd addresses.
#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn up_to_sixteen_mib() {
    let mut seed = Random::new("up_to_sixteen_mib");
    for net in [
        net("=rxe0"),
        cable(|c| {
            (c.qps_per_connection, c.split_data_on_qps) = (3, true);
            c.adaptive_routing = Some(true);
        }),
    ] {
        let mut ends = connect(&net, 0);
        for size in [0, 1, 8 << 20, (8 << 20) + 1, (16 << 20) - 3, 16 << 20] {
            let mut data = vec![0; size];
            seed.fill(&mut data);
            exchange(&mut ends, &data, size + seed.below(9), [1 + seed.below(8), seed.below(9)]);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn over_several_queue_pairs() {
    let mut seed = Random::new("over_several_queue_pairs");
    for (case, (pairs, split)) in
        [(2, true), (2, false), (5, false), (5, true)].into_iter().enumerate()
    {
        if !tier::takes(case, 0) {
            continue;
        }
        let net = cable(|c| (c.qps_per_connection, c.split_data_on_qps) = (pairs, split));
        conformance::sizes(&net, 0, &mut seed);
        conformance::full(&net, 0, &mut seed);
        conformance::streams(&net, 0, &mut seed);
        conformance::too_long(&net, 0);
        conformance::closed_sender(&net, 0);
    }
    // As many as there may be.
    let net = cable(|c| (c.qps_per_connection, c.split_data_on_qps) = (128, true));
    let mut ends = connect(&net, 0);
    exchange(&mut ends, &vec![5; 100_001], 100_001, [1, 2]);
}

/// Whether the size comes with the bytes or behind them, and whether small writes take their bytes along.
#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn however_they_are_notified() {
    let mut seed = Random::new("however_they_are_notified");
    let ways = [(0, true), (usize::MAX, true), (8192, false)];
    for (case, (threshold, inline)) in ways.into_iter().enumerate() {
        if !tier::takes(case, 0) {
            continue;
        }
        let net = cable(|c| {
            c.adaptive_routing = Some(true);
            (c.ar_threshold, c.inline) = (threshold, inline);
        });
        conformance::sizes(&net, 0, &mut seed);
        conformance::many_small(&net, 0, &mut seed);
    }
    let net = cable(|c| c.relaxed_ordering = Some(false));
    conformance::streams(&net, 0, &mut seed);
}

/// A hundred thousand, with two places for them; a tenth of them in the tier `test`, where an emulated machine takes 5 seconds for it.
#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn thousands_through_two_slots() {
    let count = if tier::is_nightly() { 100_000 } else { 10_000 };
    const BYTES: usize = 40;
    let (mut send, mut recv) = connect(&net("=rxe0"), 0);
    let (mut from, mut to) = ([[0u8; BYTES]; 2], [[0u8; BYTES]; 2]);
    let (from_at, to_at) = (from.as_mut_ptr().cast::<u8>(), to.as_mut_ptr().cast::<u8>());
    let comms = (&mut send.comm, &mut recv.comm);
    // SAFETY: the slots outlive the connection, which is of this function; each is let be while it is under way.
    let memory = unsafe {
        let register = |it: Result<_, _>| it.unwrap();
        (
            register(comms.0.register(from_at, 2 * BYTES, MemoryKind::Host)),
            register(comms.1.register(to_at, 2 * BYTES, MemoryKind::Host)),
        )
    };
    // What message `n` is: its number, as often as there is room, and not all of the slot.
    let size = |n: u64| BYTES - (n % 7) as usize;
    let byte = |n: u64, i: usize| n.to_le_bytes()[i % 8];
    let slot = |n: u64| (n % 2) as usize;
    let (mut ours, mut theirs) = ([None::<Request>; 2], [None::<Request>; 2]);
    let (mut given, mut begun, mut arrived) = (0, 0, 0);
    while arrived < count {
        if given < count && theirs[slot(given)].is_none() {
            let address = to_at.wrapping_add(BYTES * slot(given));
            let buffer = RecvBuffer { address, bytes: BYTES, tag: 7, memory: memory.1 };
            // SAFETY: as above.
            theirs[slot(given)] = unsafe { comms.1.irecv(&[buffer]).unwrap() };
            given += u64::from(theirs[slot(given)].is_some());
        }
        if begun < count && ours[slot(begun)].is_none() {
            let at = from_at.wrapping_add(BYTES * slot(begun));
            for i in 0..size(begun) {
                // SAFETY: as above; nothing of this slot is under way.
                unsafe { at.add(i).write(byte(begun, i)) };
            }
            // SAFETY: as above.
            ours[slot(begun)] = unsafe { comms.0.isend(at, size(begun), 7, memory.0).unwrap() };
            begun += u64::from(ours[slot(begun)].is_some());
        }
        for request in &mut ours {
            if request.is_some_and(|it| comms.0.test(it).unwrap()) {
                *request = None;
            }
        }
        let mut got = [0];
        if theirs[slot(arrived)].is_some_and(|it| comms.1.test(it, &mut got).unwrap()) {
            assert_eq!(got[0], size(arrived), "message {arrived}");
            let at = to_at.wrapping_add(BYTES * slot(arrived));
            // SAFETY: as above; it has arrived.
            let bytes = unsafe { std::slice::from_raw_parts(at, got[0]) };
            assert!((0..got[0]).all(|i| bytes[i] == byte(arrived, i)), "message {arrived}");
            theirs[slot(arrived)] = None;
            arrived += 1;
        } else {
            std::thread::yield_now(); // the kernel's threads do the work
        }
    }
    drop((send, recv));
}

/// Up to eight messages to a request, sent in any order: their tags say which is whose.
#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn several_to_a_request() {
    let mut seed = Random::new("several_to_a_request");
    for (pairs, split) in [(1, false), (3, false), (3, true)] {
        let net = cable(|c| (c.qps_per_connection, c.split_data_on_qps) = (pairs, split));
        groups(&net, &mut seed);
    }
}

fn groups(net: &Arc<dyn Net>, seed: &mut Random) {
    const ROOM: usize = 40_000;
    let (mut send, mut recv) = connect(net, 0);
    let mut place = vec![0u8; 8 * ROOM];
    let at = place.as_mut_ptr();
    // SAFETY: the place outlives the connection, and is looked at when all is there.
    let memory = unsafe { recv.comm.register(at, place.len(), MemoryKind::Host).unwrap() };
    for round in 0..60 {
        let count = 1 + seed.below(8);
        let buffers: Vec<_> = (0..count)
            .map(|i| RecvBuffer {
                address: at.wrapping_add(i * ROOM + i),
                bytes: ROOM - 8,
                tag: 100 + i as u32,
                memory,
            })
            .collect();
        // SAFETY: as above.
        let request = until(|| unsafe { recv.comm.irecv(&buffers).unwrap() });
        let mut order: Vec<usize> = (0..count).collect();
        (1..count).rev().for_each(|i| order.swap(i, seed.below(i + 1)));
        let data: Vec<Vec<u8>> = (0..count)
            .map(|_| {
                let mut data = vec![0; seed.size(ROOM - 8)];
                seed.fill(&mut data);
                data
            })
            .collect();
        let mut sizes = [usize::MAX; 8];
        let mut messages = Vec::new();
        for &i in &order {
            assert_eq!(recv.comm.test(request, &mut sizes), Ok(false), "{} of {count}", i);
            messages.push(until(|| send.begin(&data[i], 1, 100 + i as u32).unwrap()));
        }
        if count > 1 {
            // Room for all the sizes is asked for.
            until(|| recv.comm.test(request, &mut []).err());
        }
        until(|| recv.comm.test(request, &mut sizes).unwrap().then_some(()));
        messages.iter().for_each(|m| until(|| send.is_done(m).unwrap().then_some(())));
        for (i, data) in data.iter().enumerate() {
            assert_eq!(sizes[i], data.len(), "round {round}, message {i} of {count}");
            let there = &place[i * ROOM + i..][..data.len()];
            assert!(there == &data[..], "round {round}, message {i} of {count}");
        }
        assert!(sizes[count..].iter().all(|&size| size == usize::MAX));
    }
    // SAFETY: buffers of nothing; it is refused.
    let nine = unsafe {
        let buffer = RecvBuffer { address: at, bytes: 1, tag: 0, memory };
        recv.comm.irecv(&[buffer; 9]).unwrap_err()
    };
    assert!(nine.reason.contains("9 buffers, where 1 to 8 go"), "{nine}");
    drop((send, recv));
}
