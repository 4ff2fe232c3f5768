//! The programs of `tests/c`. Each is compiled with our header, and with NVIDIA's, and runs on our library.

use std::path::Path;

use crate::skip::skip;
use crate::support::{CRATE, Header, compile, run};

/// Arguments, and variables of the environment.
type Run<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)]);

/// Compiles and runs a program with our header, and with NVIDIA's where that is there.
fn passes(name: &str, runs: &[Run]) {
    let source = Path::new(CRATE).join("tests/c").join(name);
    let nvidias = Header::nvidias();
    if nvidias.is_none() {
        skip("no nccl.h of NVIDIA's: scripts/setup fetches it");
    }
    for header in [Some(Header::Ours), nvidias.map(Header::Nvidias)].into_iter().flatten() {
        let scratch = tempfile::tempdir().expect("a folder");
        let program = compile(scratch.path(), &source, &header);
        for (arguments, environment) in runs {
            assert_eq!(run(&program, arguments, environment), "passed\n", "{header:?}");
        }
    }
}

#[test]
fn all_collectives_types_and_operators_agree_with_their_references() {
    passes(
        "collectives.c",
        &[
            (&[], &[]),
            // Tiny buffers, and one worker for all ranks.
            (&[], &[("FERROCCL_SLOTS", "2"), ("NCCL_BUFFSIZE", "4K"), ("FERROCCL_WORKERS", "1")]),
            (&[], &[("NCCL_PROTO", "LL"), ("NCCL_ALGO", "Ring")]),
        ],
    );
}

#[test]
fn what_is_wrong_is_refused_with_the_arguments_name() {
    passes("errors.c", &[(&[], &[])]);
}

#[test]
fn communicators_are_made_split_shrunk_and_grown_in_groups_threads_and_without_blocking() {
    passes("communicators.c", &[(&[], &[]), (&[], &[("FERROCCL_WORKERS", "1")])]);
}

#[test]
fn memory_windows_and_parameters_are_as_nccls() {
    let settings = [("NCCL_BUFFSIZE", "1M"), ("NCCL_NTHREADS", "256")];
    passes("memory.c", &[(&[], &settings)]);
}

#[test]
fn puts_and_signals_arrive() {
    passes("one_sided.c", &[(&[], &[]), (&[], &[("FERROCCL_WORKERS", "1")])]);
}

#[test]
fn processes_meet_by_an_id_and_go_on_when_one_dies() {
    let two_hosts = [("NCCL_SHM_DISABLE", "1"), ("NCCL_SOCKET_IFNAME", "lo")];
    passes("processes.c", &[(&[], &[]), (&[], &two_hosts), (&["die"], &[])]);
}

/// The example that the book begins with.
#[test]
fn the_example_sums_over_its_ranks() {
    let scratch = tempfile::tempdir().expect("a folder");
    let source = Path::new(CRATE).join("../../examples/all_reduce.c");
    let program = compile(scratch.path(), &source, &Header::Ours);
    let sums: String = (0..4).map(|rank| format!("rank {rank} of 4: 1 + ... + 4 = 10\n")).collect();
    assert_eq!(run(&program, &[], &[]), sums);
}

/// Without a driver, or a GPU, a program learns what is missing, and how to do without.
#[test]
fn without_a_gpu_the_cpu_is_named() {
    let scratch = tempfile::tempdir().expect("a folder");
    let source = scratch.path().join("no_gpu.c");
    let text = r#"
        #include "test.h"
        int main(void) {
            ncclComm_t comm;
            ncclUniqueId id;
            OK(ncclGetUniqueId(&id));
            REFUSED(ncclUnhandledCudaError, "FERROCCL_DEVICE=cpu", ncclCommInitRank(&comm, 1, id, 0));
            REFUSED(ncclUnhandledCudaError, "FERROCCL_DEVICE=cpu", ncclCommInitAll(&comm, 1, NULL));
            puts("passed");
            return 0;
        }"#;
    std::fs::write(&source, text).expect("a source");
    let program = compile(scratch.path(), &source, &Header::Ours);
    let environment =
        [("FERROCCL_DEVICE", "cuda"), ("FERROCCL_CUDA_LIBRARY", "/nowhere/libcuda.so.1")];
    assert_eq!(run(&program, &[], &environment), "passed\n");
}

/// On GPUs: the stand-in for a driver (`tests/cuda/driver`), which `cargo test` builds beside this program.
#[test]
fn contexts_streams_and_memory_of_gpus_are_the_callers() {
    let program = std::env::current_exe().expect("the path of this program");
    let stand_in =
        program.ancestors().nth(2).expect("its folders").join("examples/libfake_cuda.so");
    if !stand_in.exists() {
        return skip("no stand-in for a driver: cargo build --example fake_cuda");
    }
    if let Some(why) = ferroccl::ptx::unavailable() {
        return skip(why);
    }
    let scratch = tempfile::tempdir().expect("a folder");
    let source = Path::new(CRATE).join("tests/c/gpu.c");
    let program = compile(scratch.path(), &source, &Header::Ours);
    let environment = [
        ("FERROCCL_DEVICE", "cuda"),
        ("FERROCCL_CUDA_LIBRARY", stand_in.to_str().expect("a path of UTF-8")),
        ("FERROCCL_CUDA_CACHE", "none"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
        // Its GPUs are nowhere on PCI: any card is far away.
        ("NCCL_NET_GDR_LEVEL", "SYS"),
    ];
    assert_eq!(run(&program, &[], &environment), "passed\n");
}
