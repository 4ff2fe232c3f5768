//! Device communicators over several nodes: over networks, with faults; and what becomes of requests that cannot be, and of kernels whose
//! peers do not come.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroccl::device::abi::{DeviceComm, DeviceWindow};
use ferroccl::device::device_comm::Team;
use ferroccl::{
    CommConfig, Communicator, Device, DeviceCommConfig, DeviceCommunicator, Error, Grid, Stream,
};
use ferroccl_proxy::net::{FaultNet, Faults, LocalNet, Net};

use crate::puts::{NONE, PUTS};
use crate::puts_run::{self, Size, on_hosts};

const SIZE: Size =
    Size { blocks: 2, count: 700, rounds: 6, launches: 2, requests: 4, mistake: NONE };

fn setting(timeout: Duration) -> CommConfig {
    let mut config = CommConfig::default();
    config.timeout = Some(timeout);
    config
}

fn faulty(faults: &str) -> Option<Arc<dyn Net>> {
    let net: Arc<dyn Net> = Arc::new(LocalNet::default());
    let faults: Faults = faults.parse().unwrap();
    Some(Arc::new(FaultNet::new(net, faults)))
}

#[test]
fn kernels_put_over_networks() {
    let config = setting(Duration::from_secs(60));
    for shape in [&[1, 1][..], &[2, 1], &[2, 2], &[1, 1, 1]] {
        // Sockets, and within the process.
        for net in [None, faulty(""), faulty("delay=300us,seed=1")] {
            puts_run::run(&Device::cpu(), &PUTS, shape, SIZE, &config, net)
                .unwrap_or_else(|e| panic!("{shape:?}: {e}"));
        }
    }
}

/// More than a piece of data, and than all requests that there is room for.
#[test]
fn large_puts_arrive() {
    let config = setting(Duration::from_secs(60));
    let size = Size { count: 300_000, rounds: 2, blocks: 1, launches: 1, ..SIZE };
    for net in [None, faulty("")] {
        puts_run::run(&Device::cpu(), &PUTS, &[1, 1], size, &config, net).unwrap();
    }
}

/// Every connection breaks, sooner or later, and all ranks learn why.
#[test]
fn a_broken_connection_fails_all_ranks_with_the_reason() {
    let config = setting(Duration::from_secs(30));
    for message in [0, 1, 2, 7, 19] {
        let begun = Instant::now();
        let net = faulty(&format!("cut={message}"));
        let error = puts_run::run(&Device::cpu(), &PUTS, &[1, 1], SIZE, &config, net).unwrap_err();
        assert!(error.contains("Local") && error.contains("puts of kernels"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(20), "cut at {message}: {error}");
    }
}

/// A bit of each connection's message changes: an error, or a result that is not right, but never an end of the process.
#[test]
fn what_arrives_corrupt_is_never_written_elsewhere() {
    let config = setting(Duration::from_millis(700));
    for seed in 0..24 {
        let net = faulty(&format!("seed={seed},corrupt={}", 1 + seed % 5));
        let size = Size { count: 3, rounds: 3, blocks: 1, launches: 1, ..SIZE };
        let run = puts_run::run(&Device::cpu(), &PUTS, &[1, 1], size, &config, net);
        println!("seed {seed}: {run:?}");
        // Where the bit is of what nobody looks at, such as a hello's.
        if let Ok(()) = run {
            assert!(seed % 5 == 0, "seed {seed} went well");
        }
    }
}

ferroccl::device::kernel_argument! {
    struct Ask {
        comm: DeviceComm,
        to: DeviceWindow,
        from: DeviceWindow,
        offset: u64,
        from_offset: u64,
        count: u64,
        /// Not 0: signals are told.
        signal: u64,
    }
}

ferroccl::device::user_kernels! {
    ASK = "test_ask": 512, ask, Ask;
    WAIT_FAR = "test_wait_far": 512, wait_far, Ask;
}

/// # Safety
/// The launch's contract; the places may be anything.
unsafe fn ask(my: Ask) {
    // SAFETY: the caller's; what is impossible the proxies refuse.
    unsafe {
        let mut comm = my.comm.open();
        let (to, from) = ((my.to, my.offset as usize), (my.from, my.from_offset as usize));
        let far = comm.ranks() - 1 - comm.rank();
        if my.signal == 0 {
            comm.put_to::<u64>(far, to, from, my.count as usize);
        } else {
            comm.put_to_with_signal::<u64>((far, my.signal as u32), to, from, my.count as usize);
        }
        comm.flush();
        comm.wait_signal(0, 1);
    }
}

/// # Safety
/// The launch's contract.
unsafe fn wait_far(my: Ask) {
    // SAFETY: the caller's.
    let mut comm = unsafe { my.comm.open() };
    match my.signal {
        0 => comm.barrier(0),
        1 => comm.barrier_of(Team::Rail, 0),
        2 => comm.wait_signal(0, 1),
        _ => comm.wait_signal_of(1, 0, 1),
    };
}

struct Two {
    ranks: Vec<Communicator>,
    windows: Vec<ferroccl::Window>,
    _buffers: Vec<ferroccl::DeviceBuffer<u64>>,
    comms: Vec<DeviceCommunicator>,
    streams: Vec<Stream>,
}

impl Two {
    fn new(timeout: Duration) -> Two {
        let device = Device::cpu();
        let net: Arc<dyn Net> = Arc::new(LocalNet::default());
        let ranks = on_hosts(&device, &[1, 1], &setting(timeout), Some(net));
        let buffers: Vec<_> = (0..2).map(|_| device.alloc_shared::<u64>(8).unwrap()).collect();
        let windows = Communicator::register_windows(ranks.iter().zip(&buffers)).unwrap();
        let comms = Communicator::device_comms(&ranks, &DeviceCommConfig::default()).unwrap();
        let streams = (0..2).map(|_| device.stream().unwrap()).collect();
        Two { ranks, windows, _buffers: buffers, comms, streams }
    }

    fn ask(&self, rank: usize) -> Ask {
        let window = self.windows[rank].value().unwrap();
        let comm = self.comms[rank].value();
        let (offset, from_offset, count, signal) = (0, 0, 1, 0);
        Ask { comm, to: window, from: window, offset, from_offset, count, signal }
    }

    fn launch(&self, rank: usize, kernel: &ferroccl::device::kernels::UserKernel<Ask>, ask: &Ask) {
        let (comm, grid) = (&self.comms[rank], Grid { blocks: 1, threads: 32 });
        // SAFETY: what it leads to is there.
        unsafe { comm.launch(kernel, grid, ask, &self.streams[rank]) }.unwrap();
    }
}

#[test]
fn what_cannot_be_asked_for_fails_both_ranks_with_the_reason() {
    type Change = fn(&mut Ask);
    let cases: [(Change, &str); 7] = [
        (|ask| ask.from.number = 77, "there is no window 77"),
        (|ask| ask.from_offset = 60, "8 bytes from byte 60 on, of window 1, which has 64"),
        (|ask| ask.from_offset = u64::MAX - 3, "of window 1, which has 64"),
        // The receiver finds these.
        (|ask| ask.to.number = 78, "there is no window 78"),
        (|ask| ask.offset = 64, "8 bytes from byte 64 on, of window 1, which has 64"),
        (|ask| ask.offset = u64::MAX - 7, "of window 1, which has 64"),
        (|ask| ask.signal = 1, "signal 1 of 1"),
    ];
    for (change, reason) in cases {
        let two = Two::new(Duration::from_secs(30));
        let mut wrong = two.ask(0);
        change(&mut wrong);
        two.launch(0, &ASK, &wrong);
        two.launch(1, &WAIT_FAR, &Ask { signal: 2, ..two.ask(1) });
        for rank in 0..2 {
            let error = two.streams[rank].synchronize().unwrap_err().to_string();
            assert!(error.contains(reason), "rank {rank}: {error}, not {reason}");
        }
        two.ranks[1].async_error().unwrap_err();
    }
}

#[test]
fn who_waits_for_another_node_gives_up_in_time() {
    for (signal, words) in [
        (0, "waited for the arrival at the barrier of rank 1"),
        (1, "waited for the arrival at the barrier of rank 1"),
        (2, "waited for a signal of any rank"),
        (3, "waited for a signal of rank 1"),
    ] {
        let two = Two::new(Duration::from_millis(300));
        two.launch(0, &WAIT_FAR, &Ask { signal, ..two.ask(0) });
        let error = two.streams[0].synchronize().unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("timeout"), "{error}");
        two.ranks[1].abort();
    }
}

#[test]
fn an_abort_ends_waits_of_all_nodes() {
    let two = Two::new(Duration::from_secs(60));
    for rank in 0..2 {
        two.launch(rank, &WAIT_FAR, &Ask { signal: 2, ..two.ask(rank) });
    }
    std::thread::sleep(Duration::from_millis(20));
    two.ranks[0].abort();
    for rank in 0..2 {
        let error = two.streams[rank].synchronize().unwrap_err().to_string();
        assert!(error.contains("abort"), "rank {rank}: {error}");
    }
}

/// A rank drops its device communicator long before the other: that is told, and no failure.
#[test]
fn who_leaves_in_good_order_fails_nobody() {
    let mut two = Two::new(Duration::from_secs(30));
    for _ in 0..3 {
        for rank in 0..2 {
            two.launch(rank, &WAIT_FAR, &Ask { signal: 0, ..two.ask(rank) });
        }
        two.streams.iter().for_each(|stream| stream.synchronize().unwrap());
        drop(two.comms.remove(1));
        std::thread::sleep(Duration::from_millis(700));
        let error = two.ranks[0].async_error();
        assert!(error.is_ok(), "{error:?}");
        two.comms = Communicator::device_comms(&two.ranks, &DeviceCommConfig::default()).unwrap();
    }
}

/// Neither memory nor a network.
#[test]
fn ranks_that_do_not_reach_each_other_have_none() {
    let mut config = setting(Duration::from_secs(30));
    (config.p2p, config.shm) = (Some(false), Some(false));
    let devices = vec![Device::cpu(); 2];
    let ranks = Communicator::init_all_on(&devices, &config).unwrap();
    // Over sockets, on this host: each rank is a node.
    let comms = Communicator::device_comms(&ranks, &DeviceCommConfig::default()).unwrap();
    assert_eq!((comms[0].value().node_ranks, comms[1].value().rail_rank), (1, 1));
    let buffers = [0, 1].map(|_| devices[0].alloc_shared::<u64>(7).unwrap());
    let windows = Communicator::register_windows(ranks.iter().zip(&buffers)).unwrap();
    assert!(!windows[0].is_direct());
    let value = windows[0].value().unwrap();
    // SAFETY: the window is there.
    let [own, other] = [0, 1].map(|rank| unsafe { value.try_peer::<u64>(rank, 8) });
    assert_eq!((own.map(|at| at as u64), other), (Some(value.address + 8), None));
    // Memory of two address spaces, whose connections share the host's memory.
    #[cfg(feature = "emulator")]
    {
        let devices =
            [0, 1].map(|_| Device::new(Arc::new(ferroccl::runtime::ptx::PtxRuntime::seeded(0))));
        let ranks = Communicator::init_all_on(&devices, &CommConfig::default()).unwrap();
        let error = Communicator::device_comms(&ranks, &DeviceCommConfig::default()).unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("has no network"), "{error}");
    }
}
