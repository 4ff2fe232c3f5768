//! What can go wrong with a driver: nothing there, too much asked for, kernels that trap, devices that are lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroccl::runtime::cuda::CudaRuntime;
use ferroccl::{
    Algorithm, CommConfig, Communicator, Device, Error, Operator, ProtocolId, ReduceOp,
};

use crate::stand_in::{Healed, alone, fail, gpus, ready};

/// Waits until it is so; a minute is for ever.
pub(crate) fn until(mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(Instant::now() < deadline, "it never came to be");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether of nothing there is more than before. There may be less: what an earlier test has dropped is given back when no call of
/// any test is under way.
pub(crate) fn no_more<const N: usize>(now: [i64; N], before: [i64; N]) -> bool {
    now.iter().zip(before).all(|(now, before)| *now <= before)
}

/// What is counted once it no longer changes: what earlier tests have dropped goes a little later.
pub(crate) fn settled<T: PartialEq>(count: impl Fn() -> T) -> T {
    let mut last = count();
    let mut since = Instant::now();
    while since.elapsed() < Duration::from_millis(50) {
        std::thread::sleep(Duration::from_millis(1));
        let now = count();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last
}

#[test]
fn a_gpu_that_is_not_there() {
    if !ready() {
        return;
    }
    let error = Device::cuda(2).unwrap_err().to_string();
    assert_eq!(error, "invalid argument ordinal: 2 is none of the 2 GPUs that the driver shows");
}

#[test]
fn a_call_that_the_driver_refuses_is_named() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let device = Device::cuda(0).unwrap();
    fail("cuStreamCreate", 0, 2);
    let error = device.stream().unwrap_err();
    let Error::Cuda(cuda) = &error else { panic!("{error}") };
    assert_eq!(
        (cuda.call(), cuda.code(), cuda.device()),
        ("cuStreamCreate", 2, Some("GPU 0 (Stand-in)"))
    );
    assert!(!cuda.is_sticky());
    assert_eq!(
        error.to_string(),
        "cuStreamCreate: CUDA_ERROR_OUT_OF_MEMORY (2), out of memory, on GPU 0 (Stand-in)"
    );
    fail("cuMemHostRegister_v2", 0, 1);
    let error = Communicator::init_all(&device, 2).unwrap_err().to_string();
    assert!(error.starts_with("registering a communicator's control block"), "{error}");
    let error = device.alloc::<u8>(1 << 40).unwrap_err().to_string();
    assert!(error.contains("allocating 1099511627776 bytes on GPU 0"), "{error}");
    // The rank on the other GPU is to write into this one's memory.
    fail("cuCtxEnablePeerAccess", 0, 217);
    let error = Communicator::init_all_on(&gpus(&[0, 1]), &CommConfig::default()).unwrap_err();
    assert!(error.to_string().starts_with("cuCtxEnablePeerAccess: "), "{error}");
    // All of it is as before.
    assert!(Communicator::init_all(&device, 2).is_ok());
}

/// 16 multiprocessors: 4 ranks have 4 blocks each, of which one is for messages.
#[test]
fn blocks_that_cannot_all_run_are_refused() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let device = Device::cuda(0).unwrap();
    let ranks = Communicator::init_all(&device, 4).unwrap();
    assert_eq!(ranks[0].channels(), 3);
    assert_eq!(Communicator::init_all(&device, 1).unwrap()[0].channels(), 12);
    let both = Communicator::init_all_on(&gpus(&[0, 1, 0, 0]), &CommConfig::default()).unwrap();
    assert_eq!(both[1].channels(), 4, "of 5 of 16 for 3 ranks");
    // A call takes what there is room for, be it of two blocks a channel.
    for algorithm in [Algorithm::Ring, Algorithm::Tree] {
        let mut config = CommConfig::default();
        config.channels = Some(17);
        (config.protocol, config.algorithm) = (Some(ProtocolId::Ll128), Some(algorithm));
        let ranks = Communicator::init_all_with(&device, 2, &config).unwrap();
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        let buffers = [0, 1].map(|_| device.upload(&vec![1.0f32; 1 << 20]).unwrap());
        for (r, rank) in ranks.iter().enumerate() {
            rank.all_reduce(&buffers[r], &buffers[r], ReduceOp::Sum, &streams[r]).unwrap();
        }
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
    }
}

/// More ranks than multiprocessors.
#[test]
fn ranks_that_have_no_room_are_told() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let device = Device::cuda(0).unwrap();
    // Small blocks would all fit.
    let mut config = CommConfig::default();
    config.protocol = Some(ProtocolId::Simple);
    let ranks = Communicator::init_all_with(&device, 40, &config).unwrap();
    let stream = device.stream().unwrap();
    let buffer = device.alloc::<f32>(1 << 20).unwrap();
    let error = ranks[0].all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Unavailable { .. }), "{text}");
    for part in ["40 ranks of 1 blocks", "16 multiprocessors", "NCCL_MAX_NCHANNELS"] {
        assert!(text.contains(part), "{text}");
    }
}

/// Two communicators, each with as many blocks as the GPU has room for.
fn two_that_fill_the_gpu(device: &Device) -> [Vec<Communicator>; 2] {
    let mut config = CommConfig::default();
    (config.protocol, config.channels) = (Some(ProtocolId::Simple), Some(12));
    config.timeout = Some(Duration::from_secs(60));
    [0; 2].map(|_| Communicator::init_all_with(device, 2, &config).unwrap())
}

/// Blocks are counted over all communicators: the second one's call waits for that of the first to end.
#[test]
fn communicators_that_do_not_fit_together_take_turns() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let device = Device::new(Arc::new(CudaRuntime::new(0).unwrap()));
    let both = two_that_fill_the_gpu(&device);
    let streams = [0; 4].map(|_| device.stream().unwrap());
    let buffers = [0; 4].map(|_| device.upload(&vec![1.0f32; 1 << 20]).unwrap());
    for _ in 0..3 {
        for (i, (stream, buffer)) in streams.iter().zip(&buffers).enumerate() {
            both[i / 2][i % 2].all_reduce(buffer, buffer, ReduceOp::Sum, stream).unwrap();
        }
    }
    for (stream, buffer) in streams.iter().zip(&buffers) {
        assert_eq!(buffer.to_vec(stream).unwrap()[..3], [8.0; 3]);
    }
}

/// A call whose room is taken by calls that wait for the same thread is refused.
#[test]
fn communicators_that_do_not_fit_together_are_told() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let device = Device::new(Arc::new(CudaRuntime::new(0).unwrap()));
    let both = two_that_fill_the_gpu(&device);
    let streams = [0; 4].map(|_| device.stream().unwrap());
    let buffer = device.upload(&vec![1.0f32; 1 << 20]).unwrap();
    // Rank by rank, where each communicator's calls wait for its other rank.
    let mut calls = (0..2).flat_map(|rank| (0..2).map(move |comm| (comm, rank)));
    let error = calls.find_map(|(comm, rank)| {
        let (comm, stream) = (&both[comm][rank], &streams[2 * comm + rank]);
        comm.all_reduce(&buffer, &buffer, ReduceOp::Sum, stream).err()
    });
    let error = error.expect("more blocks than there is room for").to_string();
    for part in ["room for all_reduce_", "of 16 multiprocessors", "calls in other streams"] {
        assert!(error.contains(part), "{error}");
    }
}

/// An address of one device means something else on another.
#[test]
fn memory_and_streams_of_another_device_are_refused() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let devices = [Device::cpu(), Device::cuda(0).unwrap(), Device::cuda(1).unwrap()];
    for (i, device) in devices.iter().enumerate() {
        let rank = Communicator::init_all(device, 1).unwrap().remove(0);
        let (stream, buffer) = (device.stream().unwrap(), device.alloc::<f32>(8).unwrap());
        let sum = ReduceOp::Sum;
        for (j, other) in devices.iter().enumerate().filter(|(j, _)| *j != i) {
            let (theirs, foreign) = (other.stream().unwrap(), other.alloc::<f32>(8).unwrap());
            let scaled = || Operator::pre_mul_sum_at(&foreign);
            let of = |result: ferroccl::Result<()>| result.unwrap_err().to_string();
            for (argument, text) in [
                ("send", of(rank.all_reduce(&foreign, &buffer, sum, &stream))),
                ("recv", of(rank.all_reduce(&buffer, &foreign, sum, &stream))),
                ("op", of(rank.all_reduce(&buffer, &buffer, scaled(), &stream))),
                ("stream", of(rank.all_reduce(&buffer, &buffer, sum, &theirs))),
                ("stream", of(rank.barrier(&theirs))),
                ("buffer", of(rank.send(&foreign, 0, &stream))),
                ("stream", of(rank.recv(&buffer, 0, &theirs))),
            ] {
                let start = format!("invalid argument {argument}: it");
                assert!(
                    text.starts_with(&start) && text.contains("of another device"),
                    "{i} {j}: {text}"
                );
            }
            for text in [
                of(buffer.copy_from(&[1.0; 8], &theirs)),
                of(buffer.copy_to(&mut [1.0; 8], &theirs)),
            ] {
                let why = "invalid argument stream: it is of another device than the memory";
                assert_eq!(text, why, "{i} {j}");
            }
        }
        // The communicator is none the worse for it.
        rank.all_reduce(&buffer, &buffer, sum, &stream).unwrap();
        stream.synchronize().unwrap();
    }
}

/// A rank that has no memory for a call tells the others, which wait for it.
#[test]
fn a_call_that_has_no_memory_is_an_error_of_all_ranks() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let devices = [0; 3].map(|gpu| Device::new(Arc::new(CudaRuntime::new(gpu).unwrap())));
    let ranks = Communicator::init_all_on(&devices, &CommConfig::default()).unwrap();
    let streams = [0, 1].map(|rank| devices[rank].stream().unwrap());
    let buffers = [0, 1].map(|rank| devices[rank].alloc::<f32>(1000).unwrap());
    ranks[1].recv(&buffers[1], 0, &streams[1]).unwrap();
    // The table of messages is in pinned memory, of which the rank's runtime has none yet.
    fail("cuMemHostAlloc", 0, 2);
    let error = ranks[0].send(&buffers[0], 1, &streams[0]).unwrap_err();
    let what = "CUDA_ERROR_OUT_OF_MEMORY";
    assert!(error.to_string().contains(what), "{error}");
    let error = streams[1].synchronize().unwrap_err().to_string();
    assert!(error.contains("rank 0 says: ") && error.contains(what), "{error}");
    // So is one that was not waiting.
    let error = ranks[2].async_error().unwrap_err().to_string();
    assert!(error.contains("rank 0 says: ") && error.contains(what), "{error}");
}

#[test]
fn a_kernel_that_traps_fails_all_that_is_on_its_gpu() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let _healed = Healed;
    let devices = [0, 0, 1].map(|gpu| Device::new(Arc::new(CudaRuntime::new(gpu).unwrap())));
    let mut config = CommConfig::default();
    (config.protocol, config.algorithm) = (Some(ProtocolId::Ll), Some(Algorithm::Ring));
    let ranks = Communicator::init_all_on(&devices, &config).unwrap();
    let bystander = Communicator::init_all(&devices[0], 1).unwrap().remove(0);
    let streams: Vec<_> = devices.iter().map(|device| device.stream().unwrap()).collect();
    let buffers: Vec<_> = devices.iter().map(|d| d.upload(&[1u32; 1000]).unwrap()).collect();
    fail("kernel:all_reduce_ring_ll_sum_uint32", 0, 719);
    // The driver may say it at any call from the trap on, and then the other ranks are told at once.
    let calls: Vec<_> = (ranks.iter().zip(&buffers).zip(&streams))
        .map(|((rank, buffer), stream)| rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream))
        .collect();
    for (i, (call, stream)) in calls.into_iter().zip(&streams).enumerate() {
        let error = call.and_then(|()| stream.synchronize()).unwrap_err();
        println!("rank {i}: {error}");
        if let Error::Cuda(cuda) = &error {
            assert!(cuda.is_sticky() && cuda.code() == 719, "{error}");
            assert_eq!(cuda.device(), Some("GPU 0 (Stand-in)"));
        } else if i < 2 {
            let text = error.to_string();
            assert!(text.contains("CUDA_ERROR_LAUNCH_FAILED (719)"), "rank {i}: {text}");
        }
        assert!(ranks[i].async_error().is_err());
    }
    // Not in place: a rank alone would launch nothing.
    let (from, to) = (buffers[0].slice(0..500), buffers[0].slice(500..1000));
    let error = bystander.all_reduce(&from, &to, ReduceOp::Sum, &streams[0]);
    assert!(matches!(error, Err(Error::Cuda(_))), "{error:?}");
    assert!(bystander.async_error().is_err(), "its other ranks would wait for ever");
}

#[test]
fn a_device_that_is_lost_is_named_by_every_stream() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let _healed = Healed;
    let device = Device::new(Arc::new(CudaRuntime::new(0).unwrap()));
    let ranks = Communicator::init_all(&device, 2).unwrap();
    let stream = device.stream().unwrap();
    let buffer = device.alloc::<f32>(100).unwrap();
    ranks[0].all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream).unwrap();
    // While the kernel waits: ECC_UNCORRECTABLE would do as well.
    fail("cuEventQuery", 0, 700);
    let error = stream.synchronize().unwrap_err();
    let Error::Cuda(cuda) = &error else { panic!("{error}") };
    assert!(cuda.is_sticky() && cuda.name() == "CUDA_ERROR_ILLEGAL_ADDRESS", "{error}");
    assert!(ranks[0].async_error().is_err());
    let after = ranks[0].all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream).unwrap_err();
    assert!(after.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{after}");
    // The other rank hears of it.
    let after = ranks[1].all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream).unwrap_err();
    assert!(after.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{after}");
    assert!(ranks[1].async_error().is_err());
}

#[test]
fn a_network_that_reduces_is_not_for_gpus() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let mut config = CommConfig::default();
    config.collnet = Some(Arc::new(ferroccl::collnet::SoftwareCollNet::new()));
    let error = Communicator::init_all_with(&Device::cuda(0).unwrap(), 2, &config).unwrap_err();
    assert!(error.to_string().contains("host's memory"), "{error}");
}
