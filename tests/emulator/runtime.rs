//! The PTX runtime with small kernels of its own: streams, faults, memory, settings. It needs no PTX in the build.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use bytemuck::Zeroable;
use ferroccl::config::Config;
use ferroccl::device::abi::Work;
use ferroccl::device::kernels::Kernel;
use ferroccl::runtime::ptx::{FaultKind, Options, PtxRuntime};
use ferroccl::runtime::{Argument, Launch, Runtime, StreamOps};
use ferroccl::{
    Algorithm, CommConfig, Communicator, Device, Error, ProtocolId, ReduceOp, UniqueId, ptx,
};

use crate::kernels::{Cells, noop};

/// Longer than any of this takes on a busy machine: only a hang reaches it.
const HANG: Duration = Duration::from_secs(60);

/// A kernel of one parameter, the call, with the first lane's way through `body`: `%in` and `%out` are
/// the call's addresses, `%block` the block's index.
fn text(name: &str, body: &str) -> String {
    format!(
        ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry {name}(.param .align 16 .b8 work[{}])\n{{\n\
         .reg .b32 %block, %tid;\n.reg .b64 %in, %out, %a, %b;\n.reg .pred %p;\n\
         ld.param.u64 %in, [work+8];\nld.param.u64 %out, [work+16];\n\
         mov.u32 %block, %ctaid.x;\nmov.u32 %tid, %tid.x;\nsetp.ne.u32 %p, %tid, 0;\n@%p ret;\n{body}\nret;\n}}\n",
        size_of::<Work>()
    )
}

/// Each block adds 1 to its cell.
const ADD: &str =
    "mul.wide.u32 %a, %block, 8; add.s64 %a, %in, %a; atom.relaxed.sys.global.add.u64 %b, [%a], 1;";
/// Waits until a cell is not 0.
const SPIN: &str = "L: ld.acquire.sys.global.u64 %a, [%in]; setp.eq.u64 %p, %a, 0; @%p bra L;";
/// Stores to `%out`, which is as the test says.
const STORE: &str = "st.global.u64 [%out], %in;";

fn with_kernels(runtime: PtxRuntime) -> Arc<PtxRuntime> {
    let kernels = [("add", ADD), ("spin", SPIN), ("store", STORE), ("gives_up", "trap;")];
    let all =
        kernels.iter().try_fold(runtime, |r, (name, body)| r.with_source(name, &text(name, body)));
    Arc::new(all.unwrap())
}

fn runtimes() -> impl Iterator<Item = Arc<PtxRuntime>> {
    let threads = [1, 2, 5].into_iter().map(PtxRuntime::on_threads);
    let lockstep = [PtxRuntime::lockstep(Options::plain()), PtxRuntime::seeded(3)];
    threads.chain(lockstep).map(with_kernels)
}

fn describe(name: &'static str, input: u64, output: u64, blocks: u32) -> Launch {
    let mut work = Work::zeroed();
    (work.input, work.output) = (input, output);
    let done = Box::new(|_: Option<&Error>| Ok(()));
    let kernel = Kernel {
        name,
        cpu: noop,
        threads: 512,
        steps: None,
        blocks: 1,
        ptx: None,
        argument: size_of::<Work>(),
    };
    Launch {
        kernel,
        blocks,
        threads: 1,
        sharing: 1,
        argument: Argument::of_work(&work),
        keep: Vec::new(),
        bytes: 0,
        observer: None,
        done,
    }
}

fn launch(stream: &Arc<dyn StreamOps>, name: &'static str, input: u64, output: u64, blocks: u32) {
    // SAFETY: what a test's kernel accesses outlives its stream's work, or is no memory of the machine.
    unsafe { stream.launch(describe(name, input, output, blocks)) }.unwrap();
}

fn cells(runtime: &Arc<PtxRuntime>, len: usize) -> Cells {
    let runtime: Arc<dyn Runtime> = runtime.clone();
    Cells::new(&runtime, len)
}

/// The fault that a stream ends in.
fn fault(stream: &Arc<dyn StreamOps>) -> ferroccl::runtime::ptx::Fault {
    match stream.synchronize() {
        Err(Error::Emulator(fault)) => Arc::unwrap_or_clone(fault),
        other => panic!("{other:?}"),
    }
}

#[test]
fn operations_of_a_stream_run_in_order() {
    for runtime in runtimes() {
        let stream = runtime.stream().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let memory = runtime.allocate(8).unwrap();
        for i in 0..30u64 {
            stream.copy_in(&memory, 0, &i.to_ne_bytes()).unwrap();
            launch(&stream, "add", memory.address(), 0, 1);
            let (log, memory) = (Arc::clone(&log), Arc::clone(&memory));
            stream.host_function(Box::new(move || {
                // SAFETY: nothing else of the stream runs now.
                let value = unsafe { *(memory.address() as *const u64) };
                log.lock().unwrap().push(value);
            }));
        }
        let mut value = [0; 8];
        stream.copy_out(&memory, 0, &mut value).unwrap();
        assert_eq!(u64::from_ne_bytes(value), 30, "{runtime:?}");
        assert_eq!(*log.lock().unwrap(), (1..=30).collect::<Vec<_>>(), "{runtime:?}");
        assert!(stream.query().unwrap());
    }
}

#[test]
fn every_block_runs_once_and_is_counted() {
    for runtime in runtimes() {
        let stream = runtime.stream().unwrap();
        let cells = cells(&runtime, 70);
        for blocks in [0, 1, 2, 31, 70] {
            launch(&stream, "add", cells.address(), 0, blocks);
        }
        stream.synchronize().unwrap();
        let expected = |i: usize| [1, 2, 31, 70].iter().filter(|&&n| i < n).count() as u64;
        assert!((0..70).all(|i| cells.get(i) == expected(i)), "{runtime:?}");
        let counts = runtime.counts();
        assert_eq!((counts.len(), counts[0].kernel, counts[0].launches), (1, "add", 4));
        assert_eq!(counts[0].counts.atomics, 1 + 2 + 31 + 70, "{runtime:?}");
        runtime.reset_counts();
        assert!(runtime.counts().is_empty());
    }
}

#[test]
fn work_goes_on_when_nobody_waits_and_when_all_is_dropped() {
    for threads in [1, 3] {
        let runtime = with_kernels(PtxRuntime::on_threads(threads));
        let (sender, receiver) = mpsc::channel();
        let memory = runtime.allocate(8).unwrap();
        let stream = runtime.stream().unwrap();
        for i in 0..5 {
            let (sender, kept) = (sender.clone(), Arc::clone(&memory));
            let mut described = describe("add", memory.address(), 0, 1);
            described.done = Box::new(move |failure| {
                assert!(failure.is_none());
                drop(kept);
                sender.send(i).unwrap();
                Ok(())
            });
            // SAFETY: the memory is kept until the launch is done.
            unsafe { stream.launch(described) }.unwrap();
        }
        drop((stream, runtime, memory));
        for i in 0..5 {
            assert_eq!(receiver.recv_timeout(HANG), Ok(i));
        }
    }
}

#[test]
fn an_access_out_of_bounds_is_an_error_that_says_where() {
    for runtime in runtimes() {
        let stream = runtime.stream().unwrap();
        for bytes in [64, 4096, 1 << 20] {
            let memory = runtime.allocate(bytes).unwrap();
            let end = memory.address() + bytes as u64;
            launch(&stream, "store", 1, end - 8, 1);
            stream.synchronize().unwrap();
            launch(&stream, "store", 1, end, 1);
            let fault = fault(&stream);
            assert!(matches!(fault.kind, FaultKind::OutOfBounds { bytes: 8, .. }), "{fault}");
            let text = fault.to_string();
            let near = format!("0 bytes after the end of an allocation of {bytes} bytes");
            assert!(text.contains(&near) && text.contains("st.global.u64"), "{text}");
            // SAFETY: the guard after the allocation.
            assert_eq!(unsafe { *(end as *const u64) }, 0, "nothing was written");
            launch(&stream, "store", 1, end - 1, 1);
            assert!(matches!(self::fault(&stream).kind, FaultKind::Misaligned { .. }));
        }
        // The machine is as good as new.
        let cells = cells(&runtime, 1);
        launch(&stream, "add", cells.address(), 0, 1);
        stream.synchronize().unwrap();
        assert_eq!(cells.get(0), 1);
    }
}

#[test]
fn a_fault_stops_all_that_was_launched_before_it() {
    for runtime in runtimes() {
        let [a, b, c] = [0; 3].map(|_| runtime.stream().unwrap());
        let cells = cells(&runtime, 2);
        launch(&a, "spin", cells.address(), 0, 7);
        launch(&a, "add", cells.address() + 8, 0, 1); // never comes to its turn
        launch(&b, "spin", cells.address(), 0, 1);
        launch(&c, "gives_up", 0, 0, 1);
        let faults = [&a, &b, &c].map(fault);
        for fault in &faults {
            assert_eq!(fault, &faults[0], "{runtime:?}: all report the same");
            assert!(matches!(fault.kind, FaultKind::Trap(_)), "{fault}");
            assert_eq!(fault.site.kernel, "gives_up");
        }
        assert_eq!(cells.get(1), 0);
        for stream in [&a, &b, &c] {
            launch(stream, "add", cells.address() + 8, 0, 1);
        }
        for stream in [a, b, c] {
            stream.synchronize().unwrap();
        }
        assert_eq!(cells.get(1), 3);
    }
}

#[test]
fn a_wait_for_nothing_is_a_deadlock_in_lockstep() {
    for runtime in [PtxRuntime::lockstep(Options::plain()), PtxRuntime::seeded(9)] {
        let runtime = with_kernels(runtime);
        let stream = runtime.stream().unwrap();
        let cells = cells(&runtime, 1);
        launch(&stream, "spin", cells.address(), 0, 2);
        let fault = fault(&stream);
        assert_eq!(fault.kind, FaultKind::Deadlock);
        assert!(fault.to_string().contains("spin (launch 0) block 1 warp 0 lane 0"), "{fault}");
    }
}

#[test]
fn a_run_has_a_budget_and_the_next_one_has_it_again() {
    let options = Options { most_steps: 10_000, ..Options::plain() };
    let runtime = with_kernels(PtxRuntime::lockstep(options));
    let stream = runtime.stream().unwrap();
    let cells = cells(&runtime, 1);
    launch(&stream, "spin", cells.address(), 0, 2);
    assert!(matches!(fault(&stream).kind, FaultKind::Steps(_)));
    launch(&stream, "add", cells.address(), 0, 1);
    stream.synchronize().unwrap();
}

#[test]
fn memory_is_what_was_allocated_or_registered() {
    for runtime in runtimes() {
        let stream = runtime.stream().unwrap();
        let mut own = Box::new([0u64; 4]);
        let address = own.as_mut_ptr().expose_provenance() as u64;
        launch(&stream, "add", address, 0, 4);
        assert!(matches!(fault(&stream).kind, FaultKind::OutOfBounds { .. }));
        // SAFETY: the array outlives it and is touched by the kernel alone meanwhile.
        let registered = unsafe { runtime.register(address, 32, "an array of the test") }.unwrap();
        launch(&stream, "add", address, 0, 4);
        stream.synchronize().unwrap();
        launch(&stream, "add", address, 0, 5);
        let text = fault(&stream).to_string();
        assert!(text.contains("after the end of an array of the test of 32 bytes"), "{text}");
        drop(registered);
        launch(&stream, "add", address, 0, 4);
        assert!(matches!(fault(&stream).kind, FaultKind::OutOfBounds { .. }));
        assert!(own.iter().all(|&n| n == 1 || n == 2), "{own:?}"); // the fifth block's launch ran for some
        let freed = runtime.allocate(64).unwrap().address();
        launch(&stream, "store", 1, freed, 1);
        assert!(matches!(fault(&stream).kind, FaultKind::OutOfBounds { .. }), "use after free");
    }
}

#[test]
fn settings_are_checked_by_name() {
    let reason = |error: Error| error.to_string();
    for threads in [0, 31, 33, 544] {
        let error = PtxRuntime::on_threads(1).with_threads(threads).map(drop).unwrap_err();
        assert!(reason(error).contains(&format!("threads: {threads} is no multiple of 32")));
    }
    let error = PtxRuntime::seeded(1).with_source("k", &text("k", "frobnicate;")).map(drop);
    let error = reason(error.unwrap_err());
    assert!(error.starts_with("k is not available: line 15:1: "), "{error}");
    let error = PtxRuntime::seeded(1).with_source("other", &text("k", "")).map(drop);
    assert!(reason(error.unwrap_err()).contains("no kernel `other`"));
    for runtime in runtimes() {
        let stream = runtime.stream().unwrap();
        // SAFETY: it does not start.
        let error = unsafe { stream.launch(describe("no_such_kernel", 0, 0, 1)) }.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Unavailable { .. }), "{text}");
        assert!(ptx::unavailable().is_some() || text.contains("no_such_kernel"), "{text}");
        stream.synchronize().unwrap();
    }
    match (ptx::unavailable(), Device::ptx()) {
        (None, Ok(device)) => assert_eq!(device.runtime().name(), "ptx"),
        (Some(why), Err(Error::Unavailable { reason, .. })) => assert_eq!(reason, why),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_seed_replays() {
    let trace = |seed| {
        let runtime = with_kernels(PtxRuntime::seeded(seed));
        let stream = runtime.stream().unwrap();
        let cells = cells(&runtime, 9);
        launch(&stream, "add", cells.address(), 0, 9);
        stream.synchronize().unwrap();
        (runtime.trace(), runtime.counts()[0])
    };
    assert_eq!(trace(1), trace(1));
    assert_ne!(trace(1).0, trace(2).0);
}

/// A communicator whose kernel was stopped in the middle is done for, and says why.
#[test]
fn a_fault_is_the_end_of_its_communicators() {
    for runtime in [PtxRuntime::on_threads(2), PtxRuntime::seeded(0)] {
        let kernel = "all_reduce_ring_ll_sum_float";
        let runtime = runtime.with_source(kernel, &text(kernel, "trap;")).unwrap();
        let device = Device::new(Arc::new(runtime));
        let mut config = CommConfig::default();
        config.protocol = Some(ProtocolId::Ll);
        config.algorithm = Some(Algorithm::Ring);
        let ranks = Communicator::init_all_with(&device, 2, &config).unwrap();
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        let buffer = device.alloc::<f32>(4).unwrap();
        let call = |r: usize| ranks[r].all_reduce(&buffer, &buffer, ReduceOp::Sum, &streams[r]);
        call(0).unwrap();
        let error = streams[0].synchronize().unwrap_err();
        assert!(matches!(&error, Error::Emulator(_)), "{error}");
        let error = call(0).unwrap_err();
        assert!(
            matches!(&error, Error::Aborted { rank: 0, cause } if cause.contains("trap")),
            "{error}"
        );
        assert!(matches!(ranks[0].async_error(), Err(Error::Emulator(_))));
    }
}

/// Ranks of one process on machines of their own: they share connections, and not each other's buffers.
#[test]
fn ranks_may_have_a_machine_each() {
    if ptx::unavailable().is_some() {
        return; // the suite in `conformance.rs` says so
    }
    let id = UniqueId::new(&Config::default().bootstrap()).unwrap();
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..3)
            .map(|rank| {
                scope.spawn(move || {
                    let device = Device::new(Arc::new(PtxRuntime::on_threads(1)));
                    let mut config = CommConfig::default();
                    config.protocol = Some(ProtocolId::Simple);
                    let comm =
                        Communicator::init_rank_with(&device, 3, &id, rank, &config).unwrap();
                    let stream = device.stream().unwrap();
                    let buffer = device.upload(&[rank + 1; 3000]).unwrap();
                    comm.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream).unwrap();
                    assert_eq!(buffer.to_vec(&stream).unwrap(), [6; 3000]);
                })
            })
            .collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    });
}
