//! Applications that use the driver or other crates hand us what they have: the examples, what is refused, and that nothing is left over.
//! `cuda_core` has that crate's operations.

use std::path::Path;
use std::process::Command;

use crate::fake_driver::example;
use crate::stand_in::{library, ready};

/// A command that finds the stand-in by the names by which cudarc and cuda-core look for a driver, too.
pub(crate) fn with_driver(program: &Path, folder: &Path) -> Command {
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::os::unix::fs::symlink(library(), folder.join(name)).unwrap();
    }
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", folder).env("FERROCCL_CUDA_LIBRARY", library());
    // The other one is a test's.
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/cubins-of-processes");
    command.env("FERROCCL_CUDA_CACHE", cache).env("FERROCCL_TIMEOUT", "60");
    command
}

/// Runs an example, where this test was built with its feature.
fn runs(name: &str) {
    runs_with(name, "12040");
}

/// The same on a driver of this version.
fn runs_with(name: &str, version: &str) {
    if !ready() {
        return;
    }
    let program = example(name);
    if !program.is_file() {
        let how = format!("cargo build --example {name} --features {name}");
        return crate::skip::skip(&format!("no {}: {how}", program.display()));
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = with_driver(&program, folder.path());
    let output = command.env("FAKE_CUDA_VERSION", version).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    for rank in 0..2 {
        assert!(text.contains(&format!("rank {rank} of 2: 1 + 2 = 3")), "{output:?}");
    }
}

#[test]
fn the_example_of_the_driver() {
    runs("cuda");
}

/// A program with one thread has hardware queues for its streams without being told of them, and has what it asks for.
#[test]
fn a_program_has_queues_for_its_streams() {
    if !ready() {
        return;
    }
    let program = example("cuda");
    if !program.is_file() {
        return crate::skip::skip("no example: cargo build --example cuda");
    }
    for (asked, wanted) in [(None, "32"), (Some("20"), "20")] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = with_driver(&program, folder.path());
        command.env_remove("CUDA_DEVICE_MAX_CONNECTIONS");
        command.envs(asked.map(|asked| ("CUDA_DEVICE_MAX_CONNECTIONS", asked)));
        let output = command.env("FAKE_CUDA_WANTS_CONNECTIONS", wanted).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

#[cfg(feature = "cust")]
#[test]
fn the_example_of_cust() {
    runs("cust");
}

#[cfg(feature = "cudarc")]
#[test]
fn the_example_of_cudarc() {
    runs("cudarc");
}

#[cfg(feature = "cuda-core")]
#[test]
fn the_example_of_cuda_core() {
    runs_with("cuda_core", "13000");
}

#[cfg(feature = "cust")]
mod of_cust {
    use std::sync::Arc;

    use cust::context::{Context, CurrentContext};
    use cust::memory::{CopyDestination, DeviceBuffer};
    use cust::stream::{Stream, StreamFlags};
    use ferroccl::runtime::cuda::CudaRuntime;
    use ferroccl::{Communicator, Device, ReduceOp};

    use crate::errors::until;
    use crate::stand_in::{Kind, alone, live, ready};

    fn context(ordinal: u32) -> Context {
        cust::init(cust::CudaFlags::empty()).unwrap();
        Context::new(cust::device::Device::get_device(ordinal).unwrap()).unwrap()
    }

    #[test]
    fn streams_and_buffers() {
        if !ready() {
            return;
        }
        let _alone = alone();
        let _context = context(1);
        let before = [Kind::Allocation, Kind::Stream].map(live);
        let runtime = Arc::new(CudaRuntime::new(1).unwrap());
        let rank = Communicator::init_all(&Device::new(runtime.clone()), 1).unwrap().remove(0);
        let stream = Arc::new(Stream::new(StreamFlags::NON_BLOCKING, None).unwrap());
        let ours = runtime.stream_of_cust(stream.clone()).unwrap();
        // Of the context, and of a pool.
        let plain = DeviceBuffer::from_slice(&[2u32; 300]).unwrap();
        // SAFETY: the stream is waited for below; until then it is used there alone.
        let pooled = unsafe { DeviceBuffer::<u32>::uninitialized_async(300, &stream) }.unwrap();
        let (plain, pooled) = (Arc::new(plain), Arc::new(pooled));
        let from = runtime.buffer_of_cust(plain.clone()).unwrap();
        let to = runtime.buffer_of_cust(pooled.clone()).unwrap();
        rank.all_reduce(&from, &to, ReduceOp::Sum, &ours).unwrap();
        stream.synchronize().unwrap();
        let mut sum = [0; 300];
        pooled.copy_to(&mut sum).unwrap();
        assert_eq!(sum, [2; 300]);
        // For no elements there is no memory.
        let none = Arc::new(DeviceBuffer::<f32>::from_slice(&[]).unwrap());
        let none = runtime.buffer_of_cust(none).unwrap();
        rank.all_reduce(&none, &none, ReduceOp::Sum, &ours).unwrap();

        // The last shares are ours, and a thread without a context lets go of them.
        rank.all_reduce(&from, &to, ReduceOp::Sum, &ours).unwrap();
        drop((plain, pooled, stream));
        CurrentContext::set_current(&_context).unwrap();
        std::thread::spawn(move || drop((from, to, none, ours, rank, runtime))).join().unwrap();
        until(|| [Kind::Allocation, Kind::Stream].map(live) == before);
    }

    #[test]
    fn another_gpu_is_refused() {
        if !ready() {
            return;
        }
        let _alone = alone();
        let _context = context(1);
        let stream = Arc::new(Stream::new(StreamFlags::DEFAULT, None).unwrap());
        let buffer = Arc::new(DeviceBuffer::from_slice(&[1.0f32; 8]).unwrap());
        let runtime = CudaRuntime::new(0).unwrap();
        let error = runtime.stream_of_cust(stream.clone()).unwrap_err().to_string();
        assert!(error.contains("stream of another context"), "{error}");
        let error = runtime.buffer_of_cust(buffer.clone()).unwrap_err().to_string();
        assert!(error.contains("memory of another context"), "{error}");
        assert_eq!((Arc::strong_count(&stream), Arc::strong_count(&buffer)), (1, 1));
    }
}

/// cudarc looks for a driver where the process was told to when it started.
#[cfg(feature = "cudarc")]
mod of_cudarc {
    use std::sync::Arc;

    use cudarc::driver::CudaContext;
    use ferroccl::runtime::cuda::CudaRuntime;
    use ferroccl::{Communicator, Device, ReduceOp};

    use crate::errors::until;
    use crate::stand_in::{Kind, live, ready};

    #[test]
    fn streams_and_slices() {
        if !ready() {
            return;
        }
        let test = std::env::current_exe().unwrap();
        for pools in ["0", "1"] {
            let folder = tempfile::tempdir().unwrap();
            let mut child = super::with_driver(&test, folder.path());
            child.args(["--exact", "crates::of_cudarc::child", "--ignored", "--nocapture"]);
            let output = child.env("FAKE_CUDA_POOLS", pools).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
        }
    }

    #[test]
    #[ignore = "run by streams_and_slices"]
    fn child() {
        assert!(ready());
        let (context, other) = (CudaContext::new(0).unwrap(), CudaContext::new(1).unwrap());
        let before = [Kind::Allocation, Kind::Stream].map(live);
        let runtime = Arc::new(CudaRuntime::new(0).unwrap());
        let rank = Communicator::init_all(&Device::new(runtime.clone()), 1).unwrap().remove(0);

        let (stream, second) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let ours = runtime.stream_of_cudarc(stream.clone()).unwrap();
        let from = Arc::new(stream.clone_htod(&[2.5f32; 300]).unwrap());
        // Of another stream, and so to be ordered by us.
        let to = Arc::new(second.alloc_zeros::<f32>(300).unwrap());
        let input = runtime.buffer_of_cudarc(from.clone()).unwrap();
        let output = runtime.buffer_of_cudarc(to.clone()).unwrap();
        stream.join(&second).unwrap();
        rank.all_reduce(&input, &output, ReduceOp::Sum, &ours).unwrap();
        second.join(&stream).unwrap();
        assert_eq!(second.clone_dtoh(&*to).unwrap(), [2.5; 300]);

        // What is not of this context, or not of one stream, is refused, and not kept.
        let slice = Arc::new(other.new_stream().unwrap().clone_htod(&[1u8; 8]).unwrap());
        let error = runtime.buffer_of_cudarc(slice.clone()).unwrap_err().to_string();
        assert!(error.contains("slice") && error.contains("another context"), "{error}");
        for theirs in [other.default_stream(), slice.stream().clone()] {
            let error = runtime.stream_of_cudarc(theirs).unwrap_err().to_string();
            assert!(error.contains("stream") && error.contains("another context"), "{error}");
        }
        let error = runtime.stream_of_cudarc(context.per_thread_stream()).unwrap_err().to_string();
        assert!(error.contains("per-thread"), "{error}");
        assert_eq!(Arc::strong_count(&slice), 1);
        drop(slice);

        // The last shares are ours, and a thread without a context lets go of them.
        rank.all_reduce(&input, &output, ReduceOp::Sum, &ours).unwrap();
        drop((from, to, stream, second));
        std::thread::spawn(move || drop((input, output, ours, rank, runtime))).join().unwrap();
        until(|| [Kind::Allocation, Kind::Stream].map(live) == before);
        context.check_err().unwrap();
    }
}
