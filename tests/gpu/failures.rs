//! A kernel that traps, in a process of its own, as it takes the context with it. What else goes wrong is in
//! `tests/support/scenarios.rs`.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ferroccl::runtime::cuda::CudaRuntime;
use ferroccl::runtime::ptx::source;
use ferroccl::{Algorithm, CommConfig, Communicator, Device, Error, ProtocolId, ReduceOp};
use libtest_mimic::Trial;

use crate::trial;

/// Has a process of this binary run one scenario.
pub(crate) const CHILD: &str = "FERROCCL_GPU_SCENARIO";

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("a kernel that traps", || in_a_process("trap"))]
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
    // SAFETY: the kernel does nothing but trap.
    let device = Device::new(Arc::new(unsafe { runtime.with_source(KERNEL, &text) }));
    let mut config = CommConfig::default();
    (config.protocol, config.algorithm) = (Some(ProtocolId::Ll), Some(Algorithm::Ring));
    config.timeout = Some(Duration::from_secs(20)); // should it not trap
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
