//! Device communicators: how they are made, what cannot be, and what becomes of kernels whose peers do not come.

use std::time::Duration;

use ferroccl::device::abi::DeviceComm;
use ferroccl::{
    CommConfig, Communicator, Device, DeviceCommConfig, DeviceCommunicator, Error, Grid, Stream,
};

use crate::rounds::ROUNDS;
use crate::rounds_run;

ferroccl::device::kernel_argument! {
    struct Wait {
        comm: DeviceComm,
        /// Not 0: for a signal of a rank; else at a barrier.
        signal: u64,
    }
}

ferroccl::device::user_kernels! {
    WAIT = "test_wait": 512, wait, Wait;
}

/// # Safety
/// The launch's contract.
unsafe fn wait(my: Wait) {
    // SAFETY: the caller's.
    let mut comm = unsafe { my.comm.open() };
    match my.signal {
        0 => comm.barrier(0),
        1 => comm.wait_signal(0, 1),
        from => comm.wait_signal_of(from as u32 - 2, 0, 1),
    };
}

const ONE: Grid = Grid { blocks: 1, threads: 32 };

fn config(barriers: u32, signals: u32) -> DeviceCommConfig {
    let mut config = DeviceCommConfig::default();
    (config.barriers, config.signals) = (barriers, signals);
    config
}

fn launch_wait(comm: &DeviceCommunicator, signal: u64, stream: &Stream) -> ferroccl::Result<()> {
    // SAFETY: it waits for its communicator's words, and gives up in time.
    unsafe { comm.launch(&WAIT, ONE, &Wait { comm: comm.value(), signal }, stream) }
}

#[test]
fn kernels_communicate_by_themselves() {
    for n in [1, 2, 3, 8] {
        let devices = vec![Device::cpu(); n];
        rounds_run::run(&devices, &ROUNDS, (3, 77, 20), 2)
            .unwrap_or_else(|e| panic!("{n} ranks: {e}"));
    }
}

#[test]
fn a_kernel_runs_between_the_calls_before_and_behind_it() {
    let device = Device::cpu();
    let ranks = Communicator::init_all(&device, 2).unwrap();
    let comms = Communicator::device_comms(&ranks, &config(1, 0)).unwrap();
    let streams = [0; 4].map(|_| device.stream().unwrap());
    let buffers = [0, 1].map(|_| device.upload(&[1.0f32; 1000]).unwrap());
    for _ in 0..50 {
        for r in 0..2 {
            // In streams that nothing else orders.
            ranks[r]
                .all_reduce(&buffers[r], &buffers[r], ferroccl::ReduceOp::Avg, &streams[r])
                .unwrap();
            launch_wait(&comms[r], 0, &streams[2 + r]).unwrap();
        }
    }
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    assert_eq!(buffers[1].to_vec(&streams[1]).unwrap(), [1.0; 1000]);
}

#[test]
fn what_cannot_be_is_named() {
    let device = Device::cpu();
    let ranks = Communicator::init_all(&device, 2).unwrap();
    let argument = |error: Error| match error {
        Error::InvalidArgument { argument, reason } => format!("{argument}: {reason}"),
        other => panic!("{other}"),
    };
    let requests = |requests| {
        let mut config = config(1, 1);
        config.requests = requests;
        config
    };
    for (wanted, name) in [
        (config(1 << 17, 1), "config.barriers"),
        (config(1, 65_537), "config.signals"),
        (requests(u32::MAX), "config.requests"),
    ] {
        let error = argument(Communicator::device_comms(&ranks, &wanted).unwrap_err());
        assert!(error.starts_with(name) && error.contains("65536"), "{error}");
    }
    let error = argument(Communicator::device_comms(&ranks, &requests(0)).unwrap_err());
    assert!(error.starts_with("config.requests"), "{error}");
    // Ranks that ask for different ones, or for a window.
    let error = std::thread::scope(|scope| {
        let other = scope.spawn(|| ranks[1].device_comm(&config(2, 3)));
        let error = ranks[0].device_comm(&config(1, 3)).unwrap_err();
        other.join().unwrap().unwrap_err();
        argument(error)
    });
    let wanted = "config: rank 0 makes a device communicator of 1 barriers, 3 signals and 64 requests, rank 1 a device \
                  communicator of 2 barriers, 3 signals and 64 requests";
    assert_eq!(error, wanted);
    let buffer = device.alloc_shared::<u64>(7).unwrap();
    let error = std::thread::scope(|scope| {
        let other = scope.spawn(|| ranks[1].register_window(&buffer));
        let error = ranks[0].device_comm(&config(1, 0)).unwrap_err();
        other.join().unwrap().unwrap_err();
        argument(error)
    });
    assert!(error.ends_with("rank 1 a window"), "{error}");
    // The communicator is as it was.
    let comms = Communicator::device_comms(&ranks, &config(1, 1)).unwrap();
    let stream = device.stream().unwrap();
    for (grid, name) in [
        (Grid { blocks: 0, threads: 32 }, "grid.blocks"),
        (Grid { blocks: 1, threads: 0 }, "grid.threads"),
        (Grid { blocks: 1, threads: 513 }, "grid.threads"),
    ] {
        let wait = Wait { comm: comms[0].value(), signal: 0 };
        // SAFETY: nothing runs.
        let error = unsafe { comms[0].launch(&WAIT, grid, &wait, &stream) }.unwrap_err();
        let error = argument(error);
        assert!(error.starts_with(name), "{error}");
    }
    ranks[0].async_error().unwrap();
}

#[test]
fn who_waits_for_a_rank_that_does_not_come_gives_up_in_time() {
    for (signal, words) in [
        (0, "waited for the arrival at the barrier of rank 1"),
        (1, "waited for a signal of any rank"),
        (3, "waited for a signal of rank 1"),
    ] {
        let device = Device::cpu();
        let mut setting = CommConfig::default();
        setting.timeout = Some(Duration::from_millis(200));
        let ranks = Communicator::init_all_with(&device, 2, &setting).unwrap();
        let comms = Communicator::device_comms(&ranks, &config(1, 1)).unwrap();
        let stream = device.stream().unwrap();
        launch_wait(&comms[0], signal, &stream).unwrap();
        let error = stream.synchronize().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(error.contains("timeout") && error.contains("rank 0"), "{error}");
        ranks[0].async_error().unwrap_err();
        // The other rank learns of it where it waits next.
        let other = device.stream().unwrap();
        let failed = launch_wait(&comms[1], signal, &other).and_then(|()| other.synchronize());
        failed.unwrap_err();
    }
}

/// Nobody else can fail, and time is up all the same.
#[test]
fn who_waits_for_itself_gives_up_in_time() {
    for (n, signal, words) in
        [(1, 1, "a signal of any rank"), (1, 2, "a signal of rank 0"), (2, 2, "a signal of rank 0")]
    {
        let device = Device::cpu();
        let mut setting = CommConfig::default();
        setting.timeout = Some(Duration::from_millis(100));
        let ranks = Communicator::init_all_with(&device, n, &setting).unwrap();
        let comms = Communicator::device_comms(&ranks, &config(1, 1)).unwrap();
        let stream = device.stream().unwrap();
        launch_wait(&comms[0], signal, &stream).unwrap();
        let error = stream.synchronize().unwrap_err().to_string();
        assert!(error.contains("timeout: rank 0") && error.contains(words), "{error}");
    }
}

#[test]
fn an_abort_ends_a_wait() {
    let device = Device::cpu();
    let ranks = Communicator::init_all(&device, 3).unwrap();
    let comms = Communicator::device_comms(&ranks, &config(1, 1)).unwrap();
    let streams = [0; 3].map(|_| device.stream().unwrap());
    for (r, signal) in [(0, 0), (2, 1)] {
        launch_wait(&comms[r], signal, &streams[r]).unwrap();
    }
    std::thread::sleep(Duration::from_millis(20));
    ranks[1].abort();
    for r in [0, 2] {
        let error = streams[r].synchronize().unwrap_err();
        assert!(error.to_string().contains("abort"), "rank {r}: {error}");
    }
}
