//! GPUs, played by the stand-in for a driver (`tests/cuda/driver`), and ranks in several processes: CUDA IPC, shared memory,
//! a network; and what is said where there is no GPU.

use std::process::Output;

use crate::fake_driver::library;
use crate::support::{finish, plain};

const FERROCCL: &str = env!("CARGO_BIN_EXE_ferroccl");

/// Whether there are kernels for a GPU; where there are none, the test is skipped.
fn ready() -> bool {
    ferroccl::ptx::unavailable().map(crate::skip::skip).is_none()
}

fn run(arguments: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = plain(FERROCCL);
    command.args(arguments.split_whitespace()).env("FERROCCL_CUDA_LIBRARY", library());
    command.env("FERROCCL_TIMEOUT", "60");
    command.env("FERROCCL_CUDA_CACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/cubins-of-cli"));
    command.envs(environment.iter().copied());
    finish(&mut command)
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn right(arguments: &str, environment: &[(&str, &str)]) -> String {
    let output = run(arguments, environment);
    let text = text(&output);
    assert!(output.status.success(), "{arguments} {environment:?}: {text}");
    assert!(text.contains("# Out of bounds values : 0 OK"), "{arguments}: {text}");
    text
}

#[test]
fn perf_on_gpus() {
    if !ready() {
        return;
    }
    let all = right("perf all_reduce -g 3 -b 8 -e 64K -f 64 -n 2 -w 1 --runtime cuda", &[]);
    assert!(all.contains("[0000:17:00.0] GPU 0 (Stand-in)"), "{all}");
    assert!(all.contains("[0000:18:00.0] GPU 1 (Stand-in)"), "{all}");
    for collective in ["all_gather", "sendrecv", "alltoall", "broadcast"] {
        right(&format!("perf {collective} -t 2 -b 4K -e 4K -n 2 -w 1 --runtime cuda"), &[]);
    }
    // One GPU, so that one graph has all ranks of the thread.
    let one = [("FAKE_CUDA_DEVICES", "1")];
    right("perf all_reduce -g 2 -b 4K -e 64K -f 16 -n 3 -w 1 -G 2 --runtime cuda", &one);
}

#[test]
fn ranks_in_processes_of_their_own() {
    if !ready() {
        return;
    }
    let perf = "run -n 3 -- PERF perf all_reduce -b 8 -e 256K -f 32 -n 2 -w 1 --runtime cuda";
    let perf = perf.replace("PERF", FERROCCL);
    let debug = ("NCCL_DEBUG", "INFO");
    let ipc = right(&perf, &[debug]);
    assert!(ipc.contains("via P2P/IPC"), "{ipc}");
    let shm = right(&perf, &[debug, ("FAKE_CUDA_PEERS", "0")]);
    assert!(shm.contains("via P2P/IPC") && shm.contains("via SHM"), "two share a GPU: {shm}");
    let shm = right(&perf, &[debug, ("NCCL_P2P_DISABLE", "1")]);
    assert!(shm.contains("via SHM") && !shm.contains("via P2P"), "{shm}");
    let net = right(&perf, &[debug, ("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1")]);
    assert!(net.contains("via NET/"), "{net}");
}

#[test]
fn what_is_missing_is_said() {
    if !ready() {
        return;
    }
    for (environment, words) in [
        (
            ("FERROCCL_CUDA_LIBRARY", "/nowhere/libcuda.so.1"),
            "driver library cannot be opened: /nowhere/libcuda.so.1: cannot open shared object file",
        ),
        (("FAKE_CUDA_DEVICES", "0"), "the driver finds no GPU"),
        (("FAKE_CUDA_SM", "75"), "its compute capability is 7.5, and kernels need 8.0 or later"),
        (("FAKE_CUDA_VERSION", "11080"), "the driver is of CUDA 11.8, and 12.0 or later is needed"),
    ] {
        let output = run("perf all_reduce -g 2 -b 8 -e 8 --runtime cuda", &[environment]);
        let text = text(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(words), "{environment:?}: {text}");
    }
    let output = run("perf all_reduce -G 3", &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("--cudagraph is for --runtime cuda"));
}
