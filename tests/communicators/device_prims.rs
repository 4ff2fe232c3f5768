//! Channels of device communicators: which there can be, what becomes of kernels that ask for others, and of those whose peers do not
//! come.

use std::time::Duration;

use ferroccl::device::abi::{DeviceComm, NO_RANK, ProtocolId};
use ferroccl::device::prims::{Ll, Ll128, Protocol, Simple};
use ferroccl::device::reduce::Sum;
use ferroccl::{
    ChannelPeers, CommConfig, Communicator, Device, DeviceChannels, DeviceCommConfig,
    DeviceCommunicator, Error, Grid, ReduceOp, Stream,
};

use crate::puts_run::on_hosts;

ferroccl::device::kernel_argument! {
    struct Pass {
        comm: DeviceComm,
        /// Address of the values.
        values: u64,
        count: u64,
        channel: u32,
        from: u32,
        to: u32,
        /// [`ProtocolId::index`].
        protocol: u32,
        /// 0: nothing; 1: sends; 2: receives; 3: both.
        verbs: u32,
        pad: u32,
    }
}

ferroccl::device::user_kernels! {
    PASS = "test_pass": 512, pass, Pass;
}

/// # Safety
/// The launch's contract.
unsafe fn pass(my: Pass) {
    // SAFETY: the caller's.
    unsafe {
        match my.protocol {
            0 => pass_in::<Ll>(my),
            1 => pass_in::<Ll128>(my),
            _ => pass_in::<Simple>(my),
        }
    }
}

/// # Safety
/// The launch's contract.
unsafe fn pass_in<P: Protocol>(my: Pass) {
    // SAFETY: the caller's.
    unsafe {
        let mut comm = my.comm.open();
        let values = my.values as *mut u32;
        let peers = ([my.from], [my.to]);
        let mut prims = comm.prims::<u32, Sum, P, 1, 1>(my.channel, peers, (values, values));
        let (mut at, count) = (0, my.count as usize);
        while at < count {
            let n = prims.chunk().min(count - at);
            if my.verbs & 1 != 0 {
                prims.send(at, n);
            }
            if my.verbs & 2 != 0 {
                prims.recv(at, n);
            }
            at += n;
        }
        let well = comm.close(prims);
        assert_eq!(well, !comm.stopped());
    }
}

const ONE: Grid = Grid { blocks: 1, threads: 32 };

fn config(channels: DeviceChannels) -> DeviceCommConfig {
    let mut config = DeviceCommConfig::default();
    config.channels = channels;
    config
}

/// Launches on a rank.
fn launch(comm: &DeviceCommunicator, pass: Pass, stream: &Stream) -> ferroccl::Result<()> {
    // SAFETY: the buffer has the values, and is kept until the stream is waited for.
    unsafe { comm.launch(&PASS, ONE, &Pass { comm: comm.value(), ..pass }, stream) }
}

/// Nothing, on a channel with these.
fn with(channel: u32, from: u32, to: u32) -> Pass {
    let comm = DeviceComm::default();
    let protocol = ProtocolId::Simple.index() as u32;
    Pass { comm, values: 0, count: 0, channel, from, to, protocol, verbs: 0, pad: 0 }
}

#[test]
fn what_cannot_be_is_named() {
    let device = Device::cpu();
    let ranks = Communicator::init_all(&device, 2).unwrap();
    let of = |change: fn(&mut DeviceChannels)| {
        let mut channels = DeviceChannels::rings(1);
        change(&mut channels);
        config(channels)
    };
    for (wanted, words) in [
        (of(|c| c.count = 1025), "config.channels.count: 1025 are more than 1024"),
        (of(|c| c.slots = 1), "config.channels.slots: 1 is none of 2 to 1024"),
        (of(|c| c.slots = 5000), "config.channels.slots: 5000"),
        (of(|c| c.slot_bytes[2] = 1 << 27), "config.channels.slot_bytes: 134217728"),
        (of(|c| c.slot_bytes = [0; _]), "config.channels.slot_bytes: no protocol has slots"),
    ] {
        let error = Communicator::device_comms(&ranks, &wanted).unwrap_err();
        let Error::InvalidArgument { argument, reason } = error else { panic!("{error}") };
        let error = format!("{argument}: {reason}");
        assert!(error.starts_with(words), "{error}, not {words}");
    }
    let error = std::thread::scope(|scope| {
        let other = scope.spawn(|| ranks[1].device_comm(&of(|c| c.slots = 3)));
        let error = ranks[0].device_comm(&of(|_| ())).unwrap_err().to_string();
        other.join().unwrap().unwrap_err();
        error
    });
    let wanted = "1 channels with ring neighbours, of 8 slots of [16384, 32768, 65536] bytes, rank 1 a device communicator of 1 \
                  barriers, 1 signals and 64 requests with 1 channels with ring neighbours, of 3 slots";
    assert!(error.contains(wanted), "{error}");
    // The communicator is as it was.
    Communicator::device_comms(&ranks, &of(|_| ())).unwrap();
}

#[test]
fn a_kernel_that_asks_for_what_is_not_there_is_told_so() {
    let two_rings = DeviceChannels::rings(2);
    let simple_alone = two_rings.with_slot_bytes(ProtocolId::Ll, 0);
    let in_ll = Pass { protocol: ProtocolId::Ll.index() as u32, ..with(0, 2, 1) };
    let sends = Pass { verbs: 3, count: 1000, ..with(0, 2, 2) };
    for (channels, pass, words) in [
        (DeviceChannels::default(), with(0, 2, 1), "on channel 0 in Simple"),
        (two_rings, with(2, 2, 1), "on channel 2 in Simple"),
        // Of a ring of three the next is no rank to receive from.
        (two_rings, sends, "with rank 2 on channel 0 in Simple"),
        (two_rings, with(1, 0, 0), "with rank 0 on channel 1 in Simple"),
        (two_rings, with(1, 7, 7), "with rank 7 on channel 1 in Simple"),
        (two_rings, with(1, 2, NO_RANK), "with a rank on channel 1 in Simple"),
        (simple_alone, in_ll, "on channel 0 in LL,"),
    ] {
        let device = Device::cpu();
        let ranks = Communicator::init_all(&device, 3).unwrap();
        let comms = Communicator::device_comms(&ranks, &config(channels)).unwrap();
        let stream = device.stream().unwrap();
        let buffer = device.upload(&[1u32; 1000]).unwrap();
        launch(&comms[0], Pass { values: buffer.address(), ..pass }, &stream).unwrap();
        let error = stream.synchronize().unwrap_err().to_string();
        assert!(error.contains("rank 0: a kernel asked for primitives"), "{error}");
        assert!(error.contains(words) && error.contains("DeviceCommConfig::channels"), "{error}");
        ranks[0].async_error().unwrap_err();
        // The others learn of it.
        let other = device.stream().unwrap();
        let failed = launch(&comms[1], Pass { verbs: 2, count: 10, ..with(0, 0, 2) }, &other);
        failed.and_then(|()| other.synchronize()).unwrap_err();
    }
}

#[test]
fn who_waits_for_a_rank_that_does_not_come_gives_up_in_time() {
    let waits = [
        (2, ProtocolId::Simple, "channel 1 step 0 waited for data (tail > step) of rank 1"),
        (2, ProtocolId::Ll, "channel 1 step 0 waited for an LL line (both flags) of rank 1"),
        (2, ProtocolId::Ll128, "channel 1 step 0 waited for an LL128 line (flag) of rank 1"),
        (
            1,
            ProtocolId::Simple,
            "channel 1 step 2 waited for credit (head + slots > step) of rank 1",
        ),
    ];
    for (verbs, protocol, words) in waits {
        let device = Device::cpu();
        let mut setting = CommConfig::default();
        setting.timeout = Some(Duration::from_millis(200));
        let ranks = Communicator::init_all_with(&device, 2, &setting).unwrap();
        let mut channels = DeviceChannels::new(2, ChannelPeers::All);
        channels.slots = 2;
        let comms = Communicator::device_comms(&ranks, &config(channels)).unwrap();
        let stream = device.stream().unwrap();
        let buffer = device.upload(&[1u32; 100_000]).unwrap();
        let pass = Pass { verbs, count: 100_000, values: buffer.address(), ..with(1, 1, 1) };
        let pass = Pass { protocol: protocol.index() as u32, ..pass };
        launch(&comms[0], pass, &stream).unwrap();
        let error = stream.synchronize().unwrap_err().to_string();
        assert!(error.contains(&format!("timeout: rank 0 {words}")), "{error}");
        let other = device.stream().unwrap();
        launch(&comms[1], pass, &other).and_then(|()| other.synchronize()).unwrap_err();
    }
}

#[test]
fn an_abort_ends_a_wait() {
    let device = Device::cpu();
    let ranks = Communicator::init_all(&device, 2).unwrap();
    let comms = Communicator::device_comms(&ranks, &config(DeviceChannels::rings(1))).unwrap();
    let stream = device.stream().unwrap();
    let buffer = device.upload(&[1u32; 10]).unwrap();
    let pass = Pass { verbs: 2, count: 10, values: buffer.address(), ..with(0, 1, 1) };
    launch(&comms[0], pass, &stream).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    ranks[1].abort();
    let error = stream.synchronize().unwrap_err();
    assert!(error.to_string().contains("abort"), "{error}");
}

/// Connections go on from kernel to kernel, with calls of the library in between, and with a second device communicator beside.
#[test]
fn steps_go_on_from_kernel_to_kernel() {
    let device = Device::cpu();
    let ranks = Communicator::init_all(&device, 2).unwrap();
    let both: Vec<_> = [DeviceChannels::rings(1), DeviceChannels::new(1, ChannelPeers::All)]
        .map(|channels| Communicator::device_comms(&ranks, &config(channels)).unwrap())
        .into();
    let streams = [0, 1].map(|_| device.stream().unwrap());
    let sums = [0, 1].map(|_| device.upload(&[1.0f32; 10]).unwrap());
    for round in 0..30u32 {
        let count = [1, 40_000, 7, 1000][round as usize % 4];
        let values = [device.upload(&vec![round; 40_000]), device.upload(&vec![0; 40_000])];
        let values = values.map(Result::unwrap);
        for r in 0..2 {
            let other = 1 - r as u32;
            let pass = Pass { verbs: 1 + r as u32, count, ..with(0, other, other) };
            let pass = Pass { values: values[r].address(), protocol: round % 3, ..pass };
            launch(&both[round as usize % 2][r], pass, &streams[r]).unwrap();
            ranks[r].all_reduce(&sums[r], &sums[r], ReduceOp::Avg, &streams[r]).unwrap();
        }
        let got = values[1].to_vec(&streams[1]).unwrap();
        let there = got.iter().take_while(|value| **value == round).count();
        assert!(round == 0 || there as u64 == count, "{there} of {count} in round {round}");
    }
    assert_eq!(sums[0].to_vec(&streams[0]).unwrap(), [1.0; 10]);
}

/// Over a network there are those of a node, and else an error on every rank.
#[test]
fn over_networks_there_are_channels_within_nodes() {
    let device = Device::cpu();
    let ranks = on_hosts(&device, &[2, 1], &CommConfig::default(), None);
    for (peers, whom) in
        [(ChannelPeers::Ring, "the ring has ranks"), (ChannelPeers::All, "there are ranks")]
    {
        let wanted = config(DeviceChannels::new(1, peers));
        for (r, rank) in ranks.iter().enumerate() {
            let error = rank.device_comm(&wanted).unwrap_err();
            let Error::Unavailable { what, reason } = error else { panic!("rank {r}: {error}") };
            assert!(what.starts_with("config.channels: 1 channels with"), "{what}");
            assert!(reason.starts_with(whom) && reason.contains("ChannelPeers::Node"), "{reason}");
        }
    }
    let wanted = config(DeviceChannels::new(1, ChannelPeers::Node));
    let comms = Communicator::device_comms(&ranks, &wanted).unwrap();
    let streams = [0; 3].map(|_| device.stream().unwrap());
    let values = [7, 0, 0].map(|value| device.upload(&[value; 1000]).unwrap());
    for r in 0..2 {
        let other = 1 - r as u32;
        let pass = Pass { verbs: 1 + r as u32, count: 1000, ..with(0, other, other) };
        launch(&comms[r], Pass { values: values[r].address(), ..pass }, &streams[r]).unwrap();
    }
    assert_eq!(values[1].to_vec(&streams[1]).unwrap(), [7; 1000]);
    // The other node's rank has none with these.
    launch(&comms[2], with(0, 0, 1), &streams[2]).unwrap();
    let error = streams[2].synchronize().unwrap_err().to_string();
    assert!(error.contains("rank 2: a kernel asked for primitives with rank 1"), "{error}");
}
