//! What goes wrong on a GPU: kernels that wait in vain, and one that traps, in a process of its own, as it takes the
//! context with it.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroccl::runtime::cuda::CudaRuntime;
use ferroccl::runtime::ptx::source;
use ferroccl::{Algorithm, CommConfig, Communicator, Device, Error, ProtocolId, ReduceOp, group};
use libtest_mimic::Trial;

use crate::{gpu, trial};

/// Has a process of this binary run one scenario.
pub(crate) const CHILD: &str = "FERROCCL_GPU_SCENARIO";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a peer that never calls", a_peer_that_never_calls),
        trial("an abort", an_abort),
        trial("calls that differ", calls_that_differ),
        trial("a panic", a_panic),
        trial("a kernel that traps", || in_a_process("trap")),
    ]
}

fn pair(timeout: Option<Duration>) -> (Device, Vec<Communicator>) {
    let mut config = CommConfig::default();
    config.timeout = timeout;
    let device = gpu();
    let ranks = Communicator::init_all_with(&device, 2, &config).unwrap();
    (device, ranks)
}

fn a_peer_that_never_calls() {
    let (device, ranks) = pair(Some(Duration::from_millis(500)));
    let stream = device.stream().unwrap();
    let buffer = device.alloc::<f32>(100).unwrap();
    let begun = Instant::now();
    ranks[0].all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream).unwrap();
    let error = stream.synchronize().unwrap_err().to_string();
    assert!(error.starts_with("timeout: rank 0"), "{error}");
    println!("given up after {:?}", begun.elapsed());
    // The GPU is as good as before.
    let again = Communicator::init_all(&device, 1).unwrap();
    again[0].all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream).unwrap();
    stream.synchronize().unwrap();
}

fn an_abort() {
    let (device, ranks) = pair(None);
    let stream = device.stream().unwrap();
    let buffer = device.alloc::<f32>(1 << 20).unwrap();
    ranks[0].all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(!stream.query().unwrap());
    let begun = Instant::now();
    ranks[0].abort();
    let error = stream.synchronize().unwrap_err().to_string();
    assert!(error.contains("abort"), "{error}");
    println!("ended after {:?}", begun.elapsed());
}

fn calls_that_differ() {
    let (device, ranks) = pair(None);
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    let buffer = device.alloc::<f32>(100).unwrap();
    let part = buffer.slice(..50);
    ranks[0].all_reduce(&buffer, &buffer, ReduceOp::Sum, &streams[0]).unwrap();
    ranks[1].all_reduce(&part, &part, ReduceOp::Sum, &streams[1]).unwrap();
    for stream in &streams {
        let error = stream.synchronize().unwrap_err().to_string();
        assert!(error.contains("differs between ranks"), "{error}");
    }
}

fn a_panic() {
    let (device, mut ranks) = pair(None);
    let (second, first) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    let buffer = device.alloc::<f32>(100).unwrap();
    // Loaded before anything waits.
    group(|| {
        first.send(&buffer, 1, &streams[0])?;
        second.recv(&buffer, 0, &streams[1])
    })
    .unwrap();
    streams[1].synchronize().unwrap();
    first.all_reduce(&buffer, &buffer, ReduceOp::Sum, &streams[0]).unwrap();
    let (theirs, other) = (streams[1].clone(), buffer.clone());
    let panicked = std::thread::spawn(move || {
        second.recv(&other, 0, &theirs).unwrap();
        panic!("on purpose");
    });
    assert!(panicked.join().is_err());
    for stream in &streams {
        let error = stream.synchronize().unwrap_err().to_string();
        assert!(error.contains("abort"), "{error}");
    }
}

fn in_a_process(scenario: &str) {
    let output = Command::new(std::env::current_exe().unwrap()).env(CHILD, scenario).output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("as it should"), "{scenario}: {text}");
}

/// What a process of its own does.
pub(crate) fn child(scenario: &str) {
    assert_eq!(scenario, "trap");
    const KERNEL: &str = "all_reduce_ring_ll_sum_uint32";
    let runtime = CudaRuntime::new(0).unwrap();
    let text = source(KERNEL, runtime.info().unwrap().compute_capability).unwrap();
    // At the beginning of the body, behind its declarations.
    let (head, body) = text.split_once("\n{\n").unwrap();
    let at = body.find("\tmov").or_else(|| body.find("\tld")).unwrap();
    let text = format!("{head}\n{{\n{}\ttrap;\n{}", &body[..at], &body[at..]);
    let device = Device::new(Arc::new(runtime.with_source(KERNEL, &text)));
    let mut config = CommConfig::default();
    (config.protocol, config.algorithm) = (Some(ProtocolId::Ll), Some(Algorithm::Ring));
    let ranks = Communicator::init_all_with(&device, 2, &config).unwrap();
    let stream = device.stream().unwrap();
    let buffer = device.alloc::<u32>(100).unwrap();
    let launched = ranks[0].all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream);
    let error = launched.and_then(|()| stream.synchronize()).unwrap_err();
    let Error::Cuda(cuda) = &error else { panic!("{error}") };
    assert!(cuda.is_sticky() && cuda.device().is_some(), "{error}");
    let after = ranks[1].all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream).unwrap_err();
    println!("as it should: {error}; then {after}");
}
