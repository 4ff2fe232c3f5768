//! The seeded mode of the CPU runtime: it replays, it is cruel where the orderings allow it and nowhere
//! else, and it reports what can never go on.

use std::sync::Arc;

use ferroccl::device::abi::{FaultKind, WaitKind, Work};
use ferroccl::device::gpu;
use ferroccl::runtime::cpu::{Adversity, CpuRuntime};
use ferroccl::runtime::{Runtime, StreamOps};
use ferroccl::{Error, KernelFault};

use crate::kernels::{Cells, add_one, launch, meet, panics, spin_until_set, waiting};

type Stream = Arc<dyn StreamOps>;

fn world(adversity: Adversity) -> (Arc<dyn Runtime>, Stream, Stream) {
    let runtime: Arc<dyn Runtime> = Arc::new(CpuRuntime::seeded(adversity));
    let (a, b) = (runtime.stream().unwrap(), runtime.stream().unwrap());
    (runtime, a, b)
}

/// How many of `seeds` end with a `value` of 1 in cell 0 after `left` and `right` ran beside each other.
fn count(seeds: u64, cells: usize, left: crate::kernels::Cpu, right: crate::kernels::Cpu) -> usize {
    (0..seeds)
        .filter(|&seed| {
            let (runtime, a, b) = world(Adversity::new(seed));
            let memory = Cells::new(&runtime, cells);
            launch(&a, left, memory.address(), 0, 1).go();
            launch(&b, right, memory.address(), 0, 1).go();
            a.synchronize().unwrap();
            b.synchronize().unwrap();
            memory.get(0) == 1
        })
        .count()
}

/// The cells of litmus tests: what was seen, then flag and data on lines of their own.
const SEEN: usize = 0;
const FLAG: usize = 16;
const DATA: usize = 32;
const CELLS: usize = 64;

unsafe fn cell(work: *const Work, i: usize) -> *mut u64 {
    // SAFETY: the launch's cells.
    unsafe { ((*work).input as *mut u64).add(i) }
}

unsafe fn await_flag(work: *const Work) {
    // SAFETY: the launch's cells.
    while unsafe { gpu::ld_acquire(cell(work, FLAG)) } == 0 {
        if gpu::pause(|| waiting(1, 0)).is_some() {
            return;
        }
    }
}

unsafe fn receive(work: *const Work) {
    // SAFETY: the launch's cells.
    unsafe {
        await_flag(work);
        let stale = gpu::ld_acquire(cell(work, DATA)) != 42;
        *cell(work, SEEN) = u64::from(stale);
    }
}

unsafe fn send_relaxed(work: *const Work) {
    // SAFETY: the launch's cells.
    unsafe {
        gpu::st_relaxed(cell(work, DATA), 42);
        gpu::st_relaxed(cell(work, FLAG), 1);
    }
}

unsafe fn send_release(work: *const Work) {
    // SAFETY: the launch's cells.
    unsafe {
        gpu::st_relaxed(cell(work, DATA), 42);
        gpu::st_release(cell(work, FLAG), 1);
    }
}

unsafe fn send_fenced(work: *const Work) {
    // SAFETY: the launch's cells.
    unsafe {
        gpu::st_relaxed(cell(work, DATA), 42);
        gpu::fence();
        gpu::st_relaxed(cell(work, FLAG), 1);
    }
}

unsafe fn send_cas(work: *const Work) {
    // SAFETY: the launch's cells.
    unsafe {
        gpu::st_relaxed(cell(work, DATA), 42);
        assert_eq!(gpu::cas_acq_rel(cell(work, FLAG), 0, 1), 0);
    }
}

unsafe fn send_flag_first(work: *const Work) {
    // SAFETY: the launch's cells.
    unsafe {
        gpu::st_release(cell(work, FLAG), 1);
        gpu::st_release(cell(work, DATA), 42);
    }
}

#[test]
fn a_message_without_order_is_overtaken_and_with_order_never() {
    for (broken, name) in
        [(send_relaxed as crate::kernels::Cpu, "relaxed"), (send_flag_first, "flag first")]
    {
        let stale = count(200, CELLS, broken, receive);
        assert!(stale > 10, "{name}: {stale} of 200");
        assert!(stale < 190, "{name}: {stale} of 200");
    }
    for (right, name) in [
        (send_release as crate::kernels::Cpu, "release"),
        (send_fenced, "fence"),
        (send_cas, "cas"),
    ] {
        assert_eq!(count(2000, CELLS, right, receive), 0, "{name}");
    }
}

unsafe fn store_pack(work: *const Work) {
    // SAFETY: the launch's cells; the reader reads words.
    unsafe {
        gpu::st_data(cell(work, DATA).cast::<[u32; 16]>(), [7; 16], 4);
        gpu::st_release(cell(work, FLAG), 1);
    }
}

unsafe fn look_for_half_a_pack(work: *const Work) {
    // SAFETY: the launch's cells.
    unsafe {
        while gpu::ld_acquire(cell(work, FLAG)) == 0 {
            // At once: what is torn was stored so, not read so.
            let words: [u64; 8] = gpu::ld_data(cell(work, DATA).cast());
            let [old, new] = [0, 0x7_0000_0007].map(|v| words.iter().filter(|&&w| w == v).count());
            if (old > 0 && new > 0) || old + new < 8 {
                *cell(work, SEEN) = 1;
            }
            // Never half an element.
            assert!(
                words
                    .iter()
                    .all(|w| [0, 7].contains(&(w >> 32)) && [0, 7].contains(&(w & 0xffff_ffff)))
            );
            let _ = gpu::pause(|| waiting(1, 0));
        }
        let whole = (0..8).all(|i| gpu::ld_acquire(cell(work, DATA + i)) == 0x7_0000_0007);
        assert!(whole, "the pack is whole after the flag");
    }
}

#[test]
fn plain_stores_are_torn_into_elements() {
    let torn = count(200, CELLS, store_pack, look_for_half_a_pack);
    assert!(torn > 20, "{torn} of 200");
}

unsafe fn store_line(work: *const Work) {
    // SAFETY: the launch's cells.
    unsafe { gpu::st_line(cell(work, FLAG), std::array::from_fn(|i| 1 + i as u64 / 15)) };
}

unsafe fn store_line_flag_first(work: *const Work) {
    // SAFETY: the launch's cells.
    unsafe {
        gpu::st_relaxed(cell(work, FLAG).add(15), 2);
        store_line(work);
    }
}

unsafe fn load_line(work: *const Work) {
    // SAFETY: the launch's cells.
    unsafe {
        loop {
            if gpu::ld_flag(cell(work, FLAG).add(15)) == 2 {
                let words = gpu::ld_line(cell(work, FLAG));
                *cell(work, SEEN) = u64::from(words[..15].iter().any(|&w| w != 1));
                return;
            }
            let _ = gpu::pause(|| waiting(1, 0));
        }
    }
}

#[test]
fn a_line_is_whole_unless_its_flag_comes_first() {
    assert_eq!(count(1000, CELLS, store_line, load_line), 0);
    assert!(count(200, CELLS, store_line_flag_first, load_line) > 20);
}

unsafe fn count_up(work: *const Work) {
    // SAFETY: the launch's cells.
    unsafe {
        for i in 1..=20 {
            match i % 3 {
                0 => gpu::st_release(cell(work, FLAG), i),
                1 => gpu::st_relaxed(cell(work, FLAG), i),
                _ => gpu::st_data(cell(work, FLAG), i, 8),
            }
            if i % 5 == 1 {
                assert_eq!(gpu::ld_acquire(cell(work, FLAG)), i, "its own store");
            }
        }
        gpu::st_relaxed(cell(work, DATA), 1);
    }
}

unsafe fn never_backwards(work: *const Work) {
    // SAFETY: the launch's cells.
    unsafe {
        let mut last = 0;
        while gpu::ld_acquire(cell(work, DATA)) == 0 {
            let now = gpu::ld_acquire(cell(work, FLAG));
            assert!(now >= last, "{now} after {last}");
            last = now;
            let _ = gpu::pause(|| waiting(1, 0));
        }
        *cell(work, SEEN) = u64::from(gpu::ld_acquire(cell(work, FLAG)) < 20);
    }
}

#[test]
fn stores_to_one_place_stay_in_order() {
    // The last store is relaxed, and may be overtaken by that of another place.
    assert!(count(500, CELLS, count_up, never_backwards) > 0);
}

fn meeting(adversity: Adversity) -> u64 {
    let runtime = Arc::new(CpuRuntime::seeded(adversity));
    let dynamic: Arc<dyn Runtime> = runtime.clone();
    let cells = Cells::new(&dynamic, 3 * 4);
    let streams: Vec<Stream> = (0..3).map(|_| runtime.stream().unwrap()).collect();
    for _ in 0..5 {
        for (rank, stream) in streams.iter().enumerate() {
            launch(stream, meet, cells.address(), (3 << 32) | rank as u64, 4).go();
        }
    }
    streams[1].synchronize().unwrap();
    assert!((0..12).all(|i| cells.get(i) == 5), "one synchronize runs everything");
    runtime.trace()
}

#[test]
fn a_seed_replays_exactly_and_another_does_not() {
    let traces: Vec<u64> = (0..100).map(|seed| meeting(Adversity::new(seed))).collect();
    for (seed, &trace) in traces.iter().enumerate() {
        // In another thread, with other addresses.
        let again = std::thread::spawn(move || {
            let _other = vec![0u8; 1000 * seed];
            meeting(Adversity::new(seed as u64))
        });
        assert_eq!(again.join().unwrap(), trace, "seed {seed}");
    }
    let different = traces.iter().collect::<std::collections::HashSet<_>>();
    assert_eq!(different.len(), traces.len());
}

/// The schedule of a seed is the same in every version: a failure's seed stays good.
#[test]
fn a_seed_means_the_same_for_ever() {
    assert_eq!(meeting(Adversity::new(1)), TRACE_OF_SEED_1);
}
const TRACE_OF_SEED_1: u64 = 13_497_656_428_402_966_780;

#[test]
fn the_extremes_work() {
    for (preempt, delay, max_pending) in
        [(0.0, 0.0, 0), (1.0, 1.0, 0), (0.0, 1.0, usize::MAX), (0.99, 1.0, 1)]
    {
        for seed in 0..20 {
            meeting(Adversity { preempt, delay, max_pending, ..Adversity::new(seed) });
        }
    }
}

#[test]
fn operations_of_a_stream_run_in_order() {
    for seed in 0..20 {
        let (runtime, a, b) = world(Adversity::new(seed));
        let memory = runtime.allocate(8).unwrap();
        for i in 0..10u64 {
            a.copy_in(&memory, 0, &i.to_ne_bytes()).unwrap();
            launch(&a, add_one, memory.address(), 0, 1).go();
            launch(&b, crate::kernels::noop, 0, 0, 3).go();
        }
        let mut value = [0; 8];
        a.copy_out(&memory, 0, &mut value).unwrap();
        assert_eq!(u64::from_ne_bytes(value), 10);
        assert!(b.query().unwrap());
    }
}

#[test]
fn a_deadlock_is_an_error_that_says_who_waits_for_what() {
    for seed in 0..20 {
        let (runtime, a, b) = world(Adversity::new(seed));
        let cells = Cells::new(&runtime, 8);
        launch(&a, spin_until_set, cells.address(), 0, 1).go();
        launch(&b, meet, cells.address() + 32, (2 << 32) | 1, 1).go();
        for (stream, peer, step) in [(&a, 9, 7), (&b, 0, 1)] {
            match stream.synchronize().unwrap_err() {
                Error::Kernel(fault) => {
                    let KernelFault(fault) = *fault;
                    assert_eq!(FaultKind::from_raw(fault.kind), FaultKind::Deadlock);
                    assert_eq!(WaitKind::from_raw(fault.wait), WaitKind::Tail);
                    assert_eq!((fault.peer, fault.channel, fault.step), (peer, 0, step));
                }
                other => panic!("seed {seed}: {other}"),
            }
            stream.synchronize().unwrap();
        }
        // The streams go on.
        cells.set(0, 1);
        launch(&a, spin_until_set, cells.address(), 0, 1).go();
        a.synchronize().unwrap();
    }
}

#[test]
fn the_kernels_own_word_on_a_deadlock_comes_first() {
    let (runtime, a, _) = world(Adversity::new(0));
    let cells = Cells::new(&runtime, 1);
    launch(&a, spin_until_set, cells.address(), 0, 2).done(|| Err(Error::argument("own", "word")));
    assert_eq!(a.synchronize().unwrap_err().to_string(), "invalid argument own: word");
}

unsafe fn deaf(work: *const Work) {
    struct Last(*mut u64);
    impl Drop for Last {
        fn drop(&mut self) {
            // SAFETY: the launch's cells.
            unsafe { gpu::st_release(self.0, 1) };
            let _ = gpu::pause(|| waiting(0, 0));
        }
    }
    // SAFETY: the launch's cells.
    let _last = Last(unsafe { cell(work, SEEN) });
    loop {
        let _ = gpu::pause(|| waiting(3, 4));
    }
}

unsafe fn mute(work: *const Work) {
    loop {
        // SAFETY: the launch's cells.
        unsafe { gpu::ld_acquire(cell(work, SEEN)) };
    }
}

#[test]
fn a_block_that_does_not_give_up_is_ended() {
    for seed in 0..3 {
        let (runtime, a, b) = world(Adversity::new(seed));
        let cells = Cells::new(&runtime, CELLS);
        launch(&a, deaf, cells.address(), 0, 2).go();
        launch(&b, spin_until_set, cells.address() + 64, 0, 1).go();
        let error = a.synchronize().unwrap_err();
        assert!(
            matches!(&error, Error::Panicked { message, .. } if message.contains("did not")),
            "{error}"
        );
        assert!(matches!(b.synchronize().unwrap_err(), Error::Kernel(_)));
        assert_eq!(cells.get(SEEN), 1, "its destructors ran");
    }
}

#[test]
fn a_schedule_has_a_budget() {
    let (runtime, a, b) = world(Adversity { max_steps: 1000, ..Adversity::new(5) });
    let cells = Cells::new(&runtime, CELLS);
    launch(&a, mute, cells.address(), 0, 1).go();
    launch(&b, spin_until_set, cells.address(), 0, 1).go();
    let error = a.synchronize().unwrap_err();
    assert!(matches!(&error, Error::Panicked { .. }), "{error}");
    match b.synchronize().unwrap_err() {
        Error::Kernel(fault) => assert_eq!(fault.kind(), FaultKind::Timeout),
        other => panic!("{other}"),
    }
}

#[test]
fn a_panic_is_an_error_and_nothing_else() {
    for seed in 0..20 {
        let (runtime, a, b) = world(Adversity::new(seed));
        let cells = Cells::new(&runtime, 8);
        launch(&a, panics, cells.address(), 0, 8).go();
        launch(&b, add_one, cells.address() + 56, 0, 1).go();
        b.synchronize().unwrap();
        assert!(matches!(a.synchronize(), Err(Error::Panicked { .. })));
        assert!((0..7).all(|i| cells.get(i) == 1));
        a.synchronize().unwrap();
    }
}

#[test]
fn the_schedule_cannot_be_run_from_within() {
    let (_, a, b) = world(Adversity::new(0));
    let (sender, receiver) = std::sync::mpsc::channel();
    let inner = Arc::clone(&b);
    a.host_function(Box::new(move || sender.send(inner.synchronize().is_err()).unwrap()));
    a.synchronize().unwrap();
    assert_eq!(receiver.recv(), Ok(true));
    b.synchronize().unwrap();
}
