//! Communicators that give their memory back, and what they count of it.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ferroccl::runtime::cpu::{Adversity, CpuRuntime};
use ferroccl::runtime::{Keep, Memory, Runtime, StreamOps};
use ferroccl::{
    AbortHandle, CommConfig, Communicator, Device, DeviceCommConfig, Error, ReduceOp, Result,
    SuspendedCommunicator,
};

use crate::again::{elsewhere, here};
use crate::{both_ways, init_ranks, sums};

/// A CPU that knows how many bytes are allocated.
struct Counting {
    cpu: CpuRuntime,
    bytes: Arc<AtomicU64>,
}

#[derive(Debug)]
struct CountedMemory(Arc<dyn Memory>, Arc<AtomicU64>);

impl Counting {
    fn device() -> (Device, Arc<AtomicU64>) {
        let bytes = Arc::<AtomicU64>::default();
        let runtime = Counting { cpu: CpuRuntime::with_workers(2), bytes: Arc::clone(&bytes) };
        (Device::new(Arc::new(runtime)), bytes)
    }

    fn count(&self, memory: Arc<dyn Memory>) -> Arc<dyn Memory> {
        self.bytes.fetch_add(memory.len() as u64, Ordering::Relaxed);
        Arc::new(CountedMemory(memory, Arc::clone(&self.bytes)))
    }
}

impl Drop for CountedMemory {
    fn drop(&mut self) {
        self.1.fetch_sub(self.0.len() as u64, Ordering::Relaxed);
    }
}

// SAFETY: the range is that of the memory inside.
unsafe impl Memory for CountedMemory {
    fn address(&self) -> u64 {
        self.0.address()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn address_space(&self) -> u64 {
        self.0.address_space()
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.0.file()
    }
}

impl fmt::Debug for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counting").finish_non_exhaustive()
    }
}

impl Runtime for Counting {
    fn name(&self) -> &'static str {
        self.cpu.name()
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(self.count(self.cpu.allocate(bytes)?))
    }

    fn allocate_shared(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(self.count(self.cpu.allocate_shared(bytes)?))
    }

    fn export(&self, memory: &Arc<dyn Memory>) -> Result<Vec<u8>> {
        self.cpu.export(memory)
    }

    unsafe fn register(&self, address: u64, bytes: usize, what: &str) -> Result<Keep> {
        // SAFETY: the caller's.
        unsafe { self.cpu.register(address, bytes, what) }
    }

    unsafe fn write(&self, to: &Arc<dyn Memory>, offset: usize, bytes: &[u8]) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.cpu.write(to, offset, bytes) }
    }

    fn address_space(&self) -> u64 {
        self.cpu.address_space()
    }

    fn stream(&self) -> Result<Arc<dyn StreamOps>> {
        self.cpu.stream()
    }

    fn parallelism(&self) -> u32 {
        self.cpu.parallelism()
    }

    fn share_host(&self, local_processes: usize) {
        self.cpu.share_host(local_processes);
    }
}

/// All ranks of a group of this process, which alone has memory of the device.
fn at_once(device: &Device, n: u32, config: &CommConfig) -> Vec<Communicator> {
    Communicator::init_all_with(device, n, config).unwrap()
}

/// Waits, for launches let go of their memory a moment after their stream has ended.
fn becomes(what: &str, wanted: (u64, u64), now: impl Fn() -> (u64, u64)) {
    for _ in 0..2000 {
        if now() == wanted {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(now(), wanted, "{what}");
}

/// All that ranks count is what the runtime has allocated, before calls and after, with windows and without.
#[test]
fn a_communicators_count_is_the_runtimes() {
    for over_network in [false, true] {
        let (device, allocated) = Counting::device();
        let mut config = CommConfig::default();
        config.p2p = Some(!over_network);
        config.shm = Some(!over_network);
        for way in [at_once, init_ranks] {
            let ranks = way(&device, 3, &config);
            let counted = || {
                let used = ranks.iter().map(Communicator::memory_use);
                used.fold((0, 0), |(all, kept), used| {
                    assert_eq!(used.total(), used.calls + used.registrations);
                    (all + used.total(), kept + used.registrations)
                })
            };
            let of_runtime = || allocated.load(Ordering::Relaxed);
            assert_eq!(counted(), (of_runtime(), 0));
            assert!(counted().0 > 0);
            let given: Vec<_> = ranks.iter().zip([1, 2, 4]).collect();
            assert!(sums(&device, &given).iter().all(|sum| matches!(sum, Ok(7))));
            // A tree's tables come with the first call from a root.
            let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
            let buffers: Vec<_> = ranks.iter().map(|_| device.alloc::<u64>(9).unwrap()).collect();
            for ((rank, stream), buffer) in ranks.iter().zip(&streams).zip(&buffers) {
                for root in 0..3 {
                    rank.broadcast(buffer, buffer, root, stream).unwrap();
                }
                let next = (rank.rank() + 1) % 3;
                ferroccl::group(|| {
                    rank.send(&buffer.slice(..4), next, stream)?;
                    rank.recv(&buffer.slice(4..8), (next + 1) % 3, stream)
                })
                .unwrap();
            }
            streams.iter().for_each(|stream| stream.synchronize().unwrap());
            drop((streams, buffers));
            let before = counted().1;
            becomes("after calls", (0, before), || (of_runtime() - counted().0, counted().1));

            let shared: Vec<_> =
                ranks.iter().map(|_| device.alloc_shared::<f32>(1000).unwrap()).collect();
            let windows = Communicator::register_windows(ranks.iter().zip(&shared)).unwrap();
            let kept = counted().1;
            assert!(kept > 0);
            becomes("windows", (12_000, kept), || (of_runtime() - counted().0, counted().1));
            let kernels = Communicator::device_comms(&ranks, &DeviceCommConfig::default()).unwrap();
            assert!(counted().1 > kept);
            becomes("kernels", (12_000, 0), || (of_runtime() - counted().0, 0));
            drop(kernels);
            drop((windows, shared));
            becomes("without windows", (0, 0), || (of_runtime() - counted().0, counted().1));
            drop(ranks);
            becomes("dropped", (0, 0), || (of_runtime(), 0));
        }
    }
}

#[test]
fn memory_is_given_back_until_ranks_resume() {
    for over_network in [false, true] {
        let (device, allocated) = Counting::device();
        let mut config = CommConfig::default();
        config.p2p = Some(!over_network);
        config.shm = Some(!over_network);
        config.name = Some("rests".to_owned());
        for way in [at_once, init_ranks] {
            let mut ranks = way(&device, 3, &config);
            for round in 0..3 {
                // Suspension waits for these.
                let buffers: Vec<_> = (0..3)
                    .map(|rank| device.upload(&vec![1u64 << rank; 50_000]).unwrap())
                    .collect();
                let streams: Vec<_> = (0..3).map(|_| device.stream().unwrap()).collect();
                for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
                    rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream).unwrap();
                }
                let suspended = Communicator::suspend_all(ranks).unwrap();
                let users = 3 * 50_000 * 8;
                becomes("suspended", (users, 0), || (allocated.load(Ordering::Relaxed), 0));
                assert_eq!(
                    suspended.iter().map(|one| (one.rank(), one.world_size())).collect::<Vec<_>>(),
                    [(0, 3), (1, 3), (2, 3)]
                );
                for (buffer, stream) in buffers.iter().zip(&streams) {
                    assert_eq!(buffer.to_vec(stream).unwrap(), vec![7; 50_000], "round {round}");
                }
                ranks = SuspendedCommunicator::resume_all(&suspended).unwrap();
                let given: Vec<_> = ranks.iter().zip([1, 2, 4]).collect();
                assert!(sums(&device, &given).iter().all(|sum| matches!(sum, Ok(7))));
                assert!(ranks.iter().all(|rank| rank.memory_use().calls > 0));
            }
            // What was suspended once shrinks, splits and ends as any other.
            let halves = Communicator::split_all(&ranks, |rank| (Some(rank / 2), 0)).unwrap();
            assert_eq!(halves[0].as_ref().unwrap().world_size(), 2);
        }
    }
}

/// A group of one, also where a seed has the schedule.
#[test]
fn a_rank_alone_is_suspended() {
    for device in [Device::cpu(), Device::new(Arc::new(CpuRuntime::seeded(Adversity::new(3))))] {
        let one = Communicator::suspend_all(Communicator::init_all(&device, 1).unwrap()).unwrap();
        let one = SuspendedCommunicator::resume_all(&one).unwrap();
        assert!(matches!(sums(&device, &[(&one[0], 5)])[0], Ok(5)));
    }
}

/// What uses the memory on one rank keeps all ranks from suspending, and they go on.
#[test]
fn what_uses_a_communicator_is_named_on_all_ranks() {
    let device = Device::cpu();
    for ranks in both_ways(&device, 3, &CommConfig::default()) {
        let buffers: Vec<_> =
            ranks.iter().map(|_| device.alloc_shared::<u8>(64).unwrap()).collect();
        let mut windows = Communicator::register_windows(ranks.iter().zip(&buffers)).unwrap();
        windows.drain(..1);
        windows.remove(1);
        let refused = |ranks: Vec<Communicator>, why: &str| -> Vec<Communicator> {
            let all = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    ranks.into_iter().map(|rank| scope.spawn(|| rank.suspend())).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            });
            let back = all.into_iter().map(|one| {
                let refused = one.unwrap_err();
                assert!(matches!(refused.error, Error::InvalidArgument { argument: "self", .. }));
                assert!(refused.to_string().ends_with(why), "{refused}");
                refused.communicator
            });
            back.collect()
        };
        let ranks = refused(ranks, "on rank 1 a window is registered");
        drop(windows);
        let kernels = Communicator::device_comms(&ranks, &DeviceCommConfig::default()).unwrap();
        let ranks = refused(
            ranks,
            "on rank 0 a device communicator has it, or a graph that has captured its calls",
        );
        drop(kernels);
        let given: Vec<_> = ranks.iter().zip([1, 2, 4]).collect();
        assert!(sums(&device, &given).iter().all(|sum| matches!(sum, Ok(7))));
        Communicator::suspend_all(ranks).unwrap();
    }
}

/// A rank that does not come is named, and the others may try again; an abort ends the wait.
#[test]
fn who_is_missing_is_named_and_may_come_later() {
    let limit = [("FERROCCL_BOOTSTRAP_TIMEOUT", "2")];
    if !here() {
        return elsewhere(module_path!(), "who_is_missing_is_named_and_may_come_later", &limit);
    }
    let device = Device::cpu();
    for ranks in both_ways(&device, 3, &CommConfig::default()) {
        let suspended = Communicator::suspend_all(ranks).unwrap();
        for absent in [0, 2] {
            let others: Vec<_> = suspended.iter().filter(|one| one.rank() != absent).collect();
            let errors = std::thread::scope(|scope| {
                let resume = |one: &SuspendedCommunicator| one.resume().unwrap_err().to_string();
                let threads: Vec<_> =
                    others.iter().map(|one| scope.spawn(move || resume(one))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            });
            for error in errors {
                assert!(error.contains("resuming: "), "{error}");
                assert!(error.contains(&format!("{absent}")), "{error}");
            }
        }
        let abort = AbortHandle::new();
        let mut config = CommConfig::default();
        config.abort = Some(abort.clone());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| suspended[1].resume_with(&config));
            std::thread::sleep(Duration::from_millis(100));
            abort.abort();
            let error = waiting.join().unwrap().unwrap_err();
            assert!(matches!(error, Error::Aborted { rank: 1, .. }), "{error}");
        });
        let ranks = SuspendedCommunicator::resume_all(&suspended).unwrap();
        let given: Vec<_> = ranks.iter().zip([1, 2, 4]).collect();
        assert!(sums(&device, &given).iter().all(|sum| matches!(sum, Ok(7))));
    }
}

/// One that has failed is not suspended, and a rank that leaves instead is named.
#[test]
fn failures_are_told_instead() {
    let device = Device::cpu();
    for ranks in both_ways(&device, 2, &CommConfig::default()) {
        ranks[1].abort();
        for rank in ranks {
            while rank.async_error().is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let refused = rank.suspend().unwrap_err();
            assert!(matches!(Error::from(refused), Error::Aborted { .. }));
        }
    }
    for mut ranks in both_ways(&device, 2, &CommConfig::default()) {
        drop(ranks.pop());
        let refused = ranks.remove(0).suspend().unwrap_err();
        assert!(refused.to_string().contains("lost rank 1"), "{refused}");
    }
}
