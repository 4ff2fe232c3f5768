//! Registered buffers in GPUs' memory: of several GPUs of a process, and of several processes, which open them by CUDA IPC.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use ferroccl::config::Config;
use ferroccl::enqueue::CollectiveCall;
use ferroccl::runtime::cuda::CudaRuntime;
use ferroccl::{
    Algorithm, Collective, CommConfig, Communicator, DataType, Device, DeviceBuffer, Element,
    ReduceOp, UniqueId,
};

use crate::again::again;
use crate::callers::Caller;
use crate::stand_in::{Kind, alone, gpus, live, ready};

fn direct() -> CommConfig {
    let mut config = CommConfig::default();
    config.algorithm = Some(Algorithm::Direct);
    config.timeout = Some(Duration::from_secs(60));
    config
}

/// Sums and all-gathers on registered buffers, of which `window` is one, by every rank in a thread of its own.
fn calls<T: Element + From<u8> + PartialEq>(comm: &Communicator, buffer: &DeviceBuffer<T>) {
    let (rank, n) = (comm.rank(), comm.world_size());
    let stream = comm.device().stream().unwrap();
    let value = |value: u32| T::from(u8::try_from(value).unwrap());
    for count in [1, 33, 4099, 60_001] {
        let part = buffer.slice(5..5 + count);
        part.copy_from(&vec![value(rank + 1); count], &stream).unwrap();
        comm.all_reduce(&part, &part, ReduceOp::Sum, &stream).unwrap();
        assert!(part.to_vec(&stream).unwrap() == vec![value(n * (n + 1) / 2); count], "{count}");
        let each = count / n as usize;
        let all = buffer.slice(..n as usize * each);
        let own = all.slice(rank as usize * each..(rank as usize + 1) * each);
        own.copy_from(&vec![value(rank + 7); each], &stream).unwrap();
        comm.all_gather(&own, &all, &stream).unwrap();
        let want: Vec<T> = (0..n).flat_map(|rank| vec![value(rank + 7); each]).collect();
        assert!(all.to_vec(&stream).unwrap() == want, "{each} of each");
    }
}

#[test]
fn gpus_of_a_process() {
    if !ready() {
        return;
    }
    let _alone = alone();
    for ordinals in [&[0, 1][..], &[0, 1, 0], &[1, 1, 0, 0]] {
        let devices = gpus(ordinals);
        let ranks = Communicator::init_all_on(&devices, &direct()).unwrap();
        let buffers: Vec<DeviceBuffer<u32>> =
            devices.iter().map(|device| device.alloc_shared(70_000).unwrap()).collect();
        let windows = Communicator::register_windows(ranks.iter().zip(&buffers)).unwrap();
        assert!(windows[0].is_direct(), "{ordinals:?}: {:?}", windows[0].why_not_direct());
        std::thread::scope(|scope| {
            for (rank, buffer) in ranks.iter().zip(&buffers) {
                scope.spawn(move || calls(rank, buffer));
            }
        });
        // A pool's memory is not reached from another GPU, and the calls are made all the same.
        let buffers: Vec<DeviceBuffer<u32>> =
            devices.iter().map(|device| device.alloc(70_000).unwrap()).collect();
        let windows = Communicator::register_windows(ranks.iter().zip(&buffers)).unwrap();
        let why = windows[1].why_not_direct().unwrap_or_default();
        let pool = "is neither of Device::alloc_shared nor of cuMemAlloc";
        assert!(why.contains(pool), "{ordinals:?}: {why}");
        std::thread::scope(|scope| {
            for (rank, buffer) in ranks.iter().zip(&buffers) {
                scope.spawn(move || calls(rank, buffer));
            }
        });
    }
}

/// A rank on each GPU, whose windows have a multicast object; the stand-in's GPUs run a kernel's code for CPUs, in which a rank plays
/// the switch.
#[test]
fn a_switch_between_gpus_of_a_process() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let mut config = direct();
    config.algorithm = Some(Algorithm::Nvls);
    let devices = gpus(&[0, 1]);
    let ranks = Communicator::init_all_on(&devices, &config).unwrap();
    let buffers: Vec<DeviceBuffer<f32>> =
        devices.iter().map(|device| device.alloc_shared(70_000).unwrap()).collect();
    let windows = Communicator::register_windows(ranks.iter().zip(&buffers)).unwrap();
    assert!(windows[0].is_multicast(), "{:?}", windows[0].why_not_multicast());
    let (collective, op) = (Collective::AllReduce, ReduceOp::Sum);
    let call =
        CollectiveCall { collective, count: 60_001, data_type: DataType::F32, op, root: None };
    assert_eq!(ranks[1].plan_in_windows(&call).unwrap().algorithm, Algorithm::Nvls);
    std::thread::scope(|scope| {
        for (rank, buffer) in ranks.iter().zip(&buffers) {
            scope.spawn(move || calls(rank, buffer));
        }
    });
    // The object goes with the window; calls are then made as on any buffer.
    drop(windows);
    std::thread::scope(|scope| {
        for (rank, buffer) in ranks.iter().zip(&buffers) {
            scope.spawn(move || calls(rank, buffer));
        }
    });
    // A GPU is in an object once.
    let devices = gpus(&[0, 1, 0]);
    let ranks = Communicator::init_all_on(&devices, &config).unwrap();
    let buffers: Vec<DeviceBuffer<f32>> =
        devices.iter().map(|device| device.alloc_shared(100).unwrap()).collect();
    let windows = Communicator::register_windows(ranks.iter().zip(&buffers)).unwrap();
    let why = "ranks 0 and 2 are on one GPU, which is a member once";
    assert_eq!(windows[1].why_not_multicast(), Some(why));
    assert!(windows[1].is_direct());
}

#[test]
fn gpus_that_do_not_reach_each_other() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let mut config = direct();
    config.p2p = Some(false);
    let devices = gpus(&[0, 1]);
    let ranks = Communicator::init_all_on(&devices, &config).unwrap();
    let buffers: Vec<DeviceBuffer<u32>> =
        devices.iter().map(|device| device.alloc_shared(100).unwrap()).collect();
    let windows = Communicator::register_windows(ranks.iter().zip(&buffers)).unwrap();
    let why = windows[0].why_not_direct();
    assert_eq!(why, Some("ranks 0 and 1: off by NCCL_P2P_DISABLE"));
}

#[test]
fn gpus_of_processes() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let id = UniqueId::new(&Config::default().bootstrap()).unwrap();
    let ranks = (0..3u32).map(|rank| {
        again(module_path!(), "member")
            .env("FERROCCL_TEST_RANK", rank.to_string())
            .env("FERROCCL_UNIQUE_ID", id.to_secret_hex())
            .env("FAKE_CUDA_DEVICES", "3")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    });
    for (rank, child) in ranks.collect::<Vec<_>>().into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "rank {rank}: {text}{errors}");
    }
}

/// One rank, in a process that is started as one.
#[test]
fn member() {
    let Ok(rank) = std::env::var("FERROCCL_TEST_RANK") else { return };
    assert!(ready());
    let rank: u32 = rank.parse().unwrap();
    let id: UniqueId = std::env::var("FERROCCL_UNIQUE_ID").unwrap().parse().unwrap();
    let device = Device::cuda(rank).unwrap();
    let comm = Communicator::init_rank_with(&device, 3, &id, rank, &direct()).unwrap();
    for _ in 0..2 {
        let buffer = device.alloc_shared::<u32>(70_000).unwrap();
        let window = comm.register_window(&buffer).unwrap();
        assert!(window.is_direct(), "{:?}", window.why_not_direct());
        calls(&comm, &buffer);
        let stream = device.stream().unwrap();
        comm.barrier(&stream).unwrap();
        stream.synchronize().unwrap();
        drop((window, buffer));
    }
    // The caller's memory, at another place of each rank's allocation.
    let (start, len) = (5 + 16 * rank as usize, 70_000);
    let caller = Caller::with_memory(rank as i32, 4 * (start + len));
    let runtime = CudaRuntime::new(rank).unwrap();
    // SAFETY: the memory is never freed.
    let buffer = unsafe { runtime.buffer_of(caller.memory + 4 * start as u64, len, Arc::new(())) };
    let buffer: DeviceBuffer<u32> = buffer.unwrap();
    let window = comm.register_window(&buffer).unwrap();
    assert!(window.is_direct(), "{:?}", window.why_not_direct());
    calls(&comm, &buffer);
    drop((window, buffer));
    assert!(live(Kind::Allocation) > 0);
    comm.finalize().unwrap();
}
