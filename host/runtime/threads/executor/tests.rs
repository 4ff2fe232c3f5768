//! Who runs whose blocks, with blocks that only meet each other.

use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread::ThreadId;

use ferroccl_device::abi::Work;
use ferroccl_device::kernels::Kernel;

use super::*;
use crate::runtime::op::WorkPtr;
use crate::runtime::threads::{Threads, Turn};
use crate::runtime::{Argument, Launch, StreamOps};

/// Blocks that end when those of all ranks have come. Stream `n` is rank `n`'s.
struct MeetingBlocks {
    ranks: usize,
    come: AtomicUsize,
    /// Who has ended whose block: a rank, and a thread.
    ended: Arc<Mutex<Vec<(u32, ThreadId)>>>,
}

struct Guest {
    rank: u32,
    /// With how many it ends, once it has come.
    quorum: Option<usize>,
}

impl Blocks for MeetingBlocks {
    type Ready = u32;
    type Block = Guest;
    type Pool = ();

    fn heavy_bytes(_: u32) -> u64 {
        100
    }

    fn address_space(&self) -> u64 {
        0
    }

    fn prepare(&self, _: &Launch, stream: u32) -> Result<u32> {
        Ok(stream)
    }

    fn home(_: &u32) -> usize {
        0
    }

    unsafe fn start(
        &self,
        _: Kernel,
        _: WorkPtr,
        rank: &u32,
        _: u32,
        (): &mut (),
    ) -> Result<Guest> {
        Ok(Guest { rank: *rank, quorum: None })
    }

    fn run(&self, block: &mut Guest) -> Turn {
        let arrives = block.quorum.is_none();
        // SeqCst: nothing else goes from one block to another.
        let quorum = *block.quorum.get_or_insert_with(|| {
            let number = self.come.fetch_add(1, Ordering::SeqCst);
            (number / self.ranks + 1) * self.ranks
        });
        if self.come.load(Ordering::SeqCst) >= quorum {
            lock(&self.ended).push((block.rank, thread::current().id()));
            return Turn::Ended;
        }
        if arrives { Turn::Moved } else { Turn::Stuck }
    }

    fn end(&self, _: Guest, (): &mut ()) {}
}

unsafe fn nothing(_: *const Work) {}

/// `ranks` streams of one runtime, and who ends what on them.
struct Setup {
    threads: Threads<MeetingBlocks>,
    streams: Vec<Arc<dyn StreamOps>>,
    ended: Arc<Mutex<Vec<(u32, ThreadId)>>>,
}

impl Setup {
    fn new(ranks: usize) -> Self {
        let ended = Arc::default();
        let meeting = MeetingBlocks { ranks, come: AtomicUsize::new(0), ended: Arc::clone(&ended) };
        let threads = Threads::new(2, meeting);
        let streams = (0..ranks).map(|_| threads.stream()).collect();
        Setup { threads, streams, ended }
    }

    fn executor(&self) -> &Executor<MeetingBlocks> {
        &self.threads.handle.0
    }

    fn launch(&self, rank: usize, bytes: u64) {
        let kernel = Kernel {
            name: "meeting",
            cpu: nothing,
            threads: 1,
            steps: None,
            blocks: 1,
            ptx: None,
            argument: 8,
        };
        let launch = Launch {
            kernel,
            blocks: 1,
            threads: 1,
            sharing: 1,
            argument: Argument::new(&0_u64, 0),
            keep: Vec::new(),
            bytes,
            observer: None,
            done: Box::new(|_| Ok(())),
        };
        // SAFETY: the blocks do not look at the argument.
        unsafe { self.streams[rank].launch(launch).unwrap() };
    }

    /// A call of a rank, which is waited for.
    fn call(&self, rank: usize) {
        self.launch(rank, 8);
        self.streams[rank].synchronize().unwrap();
    }
}

#[test]
fn a_small_launch_is_in_the_queue_of_its_thread() {
    let setup = Setup::new(4);
    let (executor, here) = (setup.executor(), CallerId::current());
    let has = |at: usize| !executor.queues[at].is_empty();
    setup.launch(0, 99);
    let there = thread::scope(|scope| {
        let other = scope.spawn(|| {
            setup.launch(1, 99);
            CallerId::current()
        });
        other.join().unwrap()
    });
    assert!(has(executor.place_of(here)) && has(executor.place_of(there)));
    assert_ne!(here, there);
    assert!(executor.cores().iter().all(Queue::is_empty), "they are not in the cores' queues");
    // All ranks' first block of a large launch is on one core.
    setup.launch(2, 100);
    assert!(has(0) && !has(1));
    setup.launch(3, 100);
    setup.streams.iter().for_each(|stream| stream.synchronize().unwrap());
    assert!(executor.is_empty());
}

#[test]
fn who_comes_late_runs_the_blocks_of_those_that_sleep() {
    let setup = Setup::new(3);
    let (next, calls) = mpsc::channel::<()>();
    let calls = Mutex::new(calls);
    let late = thread::current().id();
    let by_late = |round: usize| {
        let ended = lock(&setup.ended);
        ended[3 * round..].iter().filter(|(_, by)| *by == late).count() == 3
    };
    let found = thread::scope(|scope| {
        // Moved in, so that the threads end if this one panics.
        let next = next;
        scope.spawn(|| {
            while lock(&calls).recv().is_ok() {
                // One thread for both: it waits for the first.
                setup.launch(1, 8);
                setup.call(0);
                setup.streams[1].synchronize().unwrap();
            }
        });
        (0..100).any(|round| {
            next.send(()).unwrap();
            while !setup.executor().sleepers.any() {
                thread::yield_now();
            }
            setup.call(2);
            // The others may come a moment later, if it was not this thread.
            while lock(&setup.ended).len() < 3 * (round + 1) {
                thread::yield_now();
            }
            by_late(round)
        })
    });
    assert!(found, "{:?}", lock(&setup.ended));
}

#[test]
fn blocks_of_a_thread_that_does_not_wait_are_run_by_who_waits() {
    let setup = Setup::new(2);
    let here = thread::current().id();
    // A worker may be first, at the end of its nap.
    let found = (0..100).any(|round| {
        thread::scope(|scope| scope.spawn(|| setup.launch(1, 8)).join().unwrap());
        setup.call(0);
        setup.streams[1].synchronize().unwrap();
        lock(&setup.ended)[2 * round..].iter().any(|(rank, by)| *rank == 1 && *by == here)
    });
    assert!(found, "{:?}", lock(&setup.ended));
}

#[test]
fn a_thread_that_waits_for_its_own_keeps_no_worker_from_the_work_of_others() {
    let setup = Setup::new(1);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        // As one does whose calls never wait for long.
        scope.spawn(|| {
            let (callers, caller) = (&setup.executor().callers, CallerId::current());
            callers.mark_used(caller);
            let _attends = callers.attend(caller);
            while !stop.load(Ordering::Relaxed) {
                callers.count_pass(caller);
                thread::yield_now();
            }
        });
        let end = Instant::now() + Duration::from_secs(20);
        for launch in 1..=20 {
            setup.launch(0, 8);
            while lock(&setup.ended).len() < launch && Instant::now() < end {
                thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(lock(&setup.ended).len(), 20);
    setup.streams[0].synchronize().unwrap();
}

#[test]
fn one_thread_has_all_ranks_in_its_queue() {
    let setup = Setup::new(3);
    let here = thread::current().id();
    for _ in 0..100 {
        (0..3).for_each(|rank| setup.launch(rank, 8));
        setup.streams.iter().for_each(|stream| stream.synchronize().unwrap());
    }
    assert!(setup.executor().is_empty());
    let ended = lock(&setup.ended);
    assert_eq!(ended.len(), 300);
    assert!(ended.iter().filter(|(_, by)| *by == here).count() > 150, "{ended:?}");
}
