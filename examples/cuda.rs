//! An all-reduce for an application that uses NVIDIA's driver itself: two ranks on GPU 0, on a `CUstream` and in memory of
//! the application's own context, captured in a graph by the driver's calls.
//!
//! ```text
//! cargo run --release --example cuda
//! ```

use std::error::Error;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use ferroccl::runtime::cuda::CudaRuntime;
use ferroccl::{Communicator, Device, ReduceOp};
use libloading::Library;

const RANKS: u32 = 2;
const COUNT: usize = 1 << 16;
const BYTES: usize = COUNT * size_of::<f32>();

/// Calls a function of the driver with these arguments; an error is its name and the `CUresult`.
macro_rules! cu {
    ($driver:expr, $name:literal, $($argument:expr => $type:ty),*) => {{
        let function = $driver.get::<unsafe extern "C" fn($($type),*) -> i32>($name.as_bytes())?;
        match function($($argument),*) {
            0 => Ok::<(), Box<dyn Error>>(()),
            code => Err(format!("{}: {code}", $name).into()),
        }
    }};
}

fn main() -> Result<(), Box<dyn Error>> {
    // FerroCCL looks for the driver as the application does, and says what is missing; so it comes first.
    CudaRuntime::new(0)?;
    let name = std::env::var("FERROCCL_CUDA_LIBRARY").unwrap_or_else(|_| "libcuda.so.1".into());
    // SAFETY: the driver's functions with the types of cuda.h; places are there, and nothing is destroyed before it is over.
    unsafe {
        let driver = Library::new(name)?;

        // The application's: a context, and in it a stream and a buffer for each rank.
        let (mut device, mut context) = (0, null_mut::<c_void>());
        cu!(driver, "cuDeviceGet", &raw mut device => *mut i32, 0 => i32)?;
        cu!(driver, "cuDevicePrimaryCtxRetain", &raw mut context => *mut *mut c_void, device => i32)?;
        cu!(driver, "cuCtxPushCurrent_v2", context => *mut c_void)?;
        let mut theirs = Vec::new();
        for rank in 0..RANKS {
            let (mut stream, mut memory) = (null_mut::<c_void>(), 0u64);
            cu!(driver, "cuStreamCreate", &raw mut stream => *mut *mut c_void, 1 => u32)?;
            cu!(driver, "cuMemAlloc_v2", &raw mut memory => *mut u64, BYTES => usize)?;
            let data = vec![rank as f32 + 1.0; COUNT];
            cu!(driver, "cuMemcpyHtoD_v2", memory => u64, data.as_ptr() => *const f32, BYTES => usize)?;
            theirs.push((stream, memory));
        }

        // Ours: communicators in that context. The streams and buffers are as good as their owner says: here for ever.
        let runtime = Arc::new(CudaRuntime::of_context(context)?);
        let ranks = Communicator::init_all(&Device::new(runtime.clone()), RANKS)?;
        let forever = Arc::new(());
        let mut ours = Vec::new();
        for (stream, memory) in &theirs {
            let stream = runtime.stream_of(*stream, forever.clone())?;
            ours.push((stream, runtime.buffer_of::<f32>(*memory, COUNT, forever.clone())?));
        }

        // What is called while a stream is captured runs when its graph does: each rank's in a graph of its own. Kernels
        // are loaded by a first call.
        for (comm, (stream, _)) in ranks.iter().zip(&ours) {
            comm.barrier(stream)?;
        }
        let mut graphs = Vec::new();
        for ((comm, (stream, buffer)), (raw, _)) in ranks.iter().zip(&ours).zip(&theirs) {
            let (mut graph, mut ready) = (null_mut::<c_void>(), null_mut::<c_void>());
            // CU_STREAM_CAPTURE_MODE_RELAXED
            cu!(driver, "cuStreamBeginCapture_v2", *raw => *mut c_void, 2 => i32)?;
            comm.all_reduce(buffer, buffer, ReduceOp::Sum, stream)?;
            cu!(driver, "cuStreamEndCapture", *raw => *mut c_void, &raw mut graph => *mut *mut c_void)?;
            cu!(driver, "cuGraphInstantiateWithFlags", &raw mut ready => *mut *mut c_void, graph => *mut c_void,
                0 => u64)?;
            graphs.push((graph, ready));
        }
        for ((_, ready), (stream, _)) in graphs.iter().zip(&theirs) {
            cu!(driver, "cuGraphLaunch", *ready => *mut c_void, *stream => *mut c_void)?;
        }

        // The application's again.
        for (rank, (stream, memory)) in theirs.iter().enumerate() {
            cu!(driver, "cuStreamSynchronize", *stream => *mut c_void)?;
            ranks[rank].async_error()?;
            let mut sum = vec![0.0f32; COUNT];
            cu!(driver, "cuMemcpyDtoH_v2", sum.as_mut_ptr() => *mut f32, *memory => u64, BYTES => usize)?;
            assert!(sum.iter().all(|&x| x == 3.0));
            println!("rank {rank} of {RANKS}: 1 + 2 = {}", sum[0]);
        }
        for (graph, ready) in graphs {
            cu!(driver, "cuGraphExecDestroy", ready => *mut c_void)?;
            cu!(driver, "cuGraphDestroy", graph => *mut c_void)?;
        }
    }
    Ok(())
}
