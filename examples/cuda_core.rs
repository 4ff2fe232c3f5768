//! An all-reduce between two kernels for an application that uses NVIDIA's crates `cuda-core` and `cuda-async`: two ranks on GPU 0, whose
//! chains of operations are awaited together.
//!
//! ```text
//! cargo run --release --features cuda-core --example cuda_core
//! ```

use std::error::Error;
use std::sync::Arc;

use cuda_async::device_operation::{DeviceOp, value};
use cuda_async::futures::executor::block_on;
use cuda_async::futures::future::try_join_all;
use cuda_async::launch::{AsyncKernelLaunchBuilder, OwnedAsyncKernelLaunch};
use cuda_core::{Context, DeviceBuffer, Function, LaunchConfig};
use ferroccl::runtime::cuda::{AsyncCalls, CudaRuntime};
use ferroccl::{Communicator, Device, ReduceOp};

const RANKS: u32 = 2;
const COUNT: usize = 1 << 16;

/// The application's kernel: it multiplies each of `count` values by a factor.
const SCALE: &str = ".version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 values, .param .f32 factor, .param .u32 count)
{
    .reg .pred %p;
    .reg .b32 %block, %lane, %i, %n;
    .reg .b64 %at, %bytes;
    .reg .f32 %x, %f;
    ld.param.u64 %at, [values];
    ld.param.f32 %f, [factor];
    ld.param.u32 %n, [count];
    mov.u32 %block, %ctaid.x;
    mov.u32 %i, %ntid.x;
    mov.u32 %lane, %tid.x;
    mad.lo.u32 %i, %block, %i, %lane;
    setp.ge.u32 %p, %i, %n;
    @%p bra done;
    mul.wide.u32 %bytes, %i, 4;
    add.u64 %at, %at, %bytes;
    ld.global.f32 %x, [%at];
    mul.f32 %x, %x, %f;
    st.global.f32 [%at], %x;
done:
    ret;
}
";

/// The kernel as an operation, which takes the values and gives them back.
fn scale(
    function: &Arc<Function>,
    values: DeviceBuffer<f32>,
    factor: f32,
) -> OwnedAsyncKernelLaunch<DeviceBuffer<f32>> {
    let count = values.len() as u32;
    let mut launch = AsyncKernelLaunchBuilder::new(Arc::clone(function));
    launch.retain_buffer(values.storage().clone(), true);
    // SAFETY: the arguments are the kernel's, it stays within `count` values, and the launch keeps them.
    let launch = unsafe {
        launch.push_device_ptr(values.cu_deviceptr()).push_arg(factor).push_arg(count);
        launch.finalize_unchecked(LaunchConfig::for_num_elems(count))
    };
    OwnedAsyncKernelLaunch::new(launch, values)
}

fn main() -> Result<(), Box<dyn Error>> {
    // The application's: the primary context of GPU 0, a kernel, and a buffer for each rank.
    let context = Context::new(0)?;
    let function = context.load_module_from_ptx_src(SCALE)?.load_function("scale")?;
    let function = Arc::new(function);
    let stream = context.new_stream()?;

    // Ours: communicators in the same context.
    let runtime = Arc::new(CudaRuntime::new(0)?);
    let ranks = Communicator::init_all(&Device::new(runtime.clone()), RANKS)?;
    let ranks: Vec<Arc<Communicator>> = ranks.into_iter().map(Arc::new).collect();
    let calls = AsyncCalls::new(&runtime);

    // For each rank kernel, all-reduce and kernel, one after the other on a stream that cuda-async chooses.
    let mut chains = Vec::new();
    for comm in &ranks {
        let values = DeviceBuffer::from_host(&stream, &[comm.rank() as f32 + 1.0; COUNT])?;
        let (calls, comm) = (calls.clone(), Arc::clone(comm));
        let (before, after) = (Arc::clone(&function), Arc::clone(&function));
        let chain = value(values)
            .then(move |values| scale(&before, values, 2.0))
            .then(move |values| {
                calls.operation(values, move |values, stream| {
                    comm.all_reduce(&values, &values, ReduceOp::Sum, stream)
                })
            })
            .then(move |values| scale(&after, values, 0.5));
        chains.push(chain.into_future());
    }
    let sums = block_on(try_join_all(chains))?;

    // To CUDA a call that has failed has ended: the communicator knows.
    for (comm, sum) in ranks.iter().zip(&sums) {
        comm.async_error()?;
        let sum = sum.to_host_vec(&stream)?;
        assert!(sum.iter().all(|&x| x == 3.0));
        println!("rank {} of {RANKS}: 1 + 2 = {}", comm.rank(), sum[0]);
    }
    Ok(())
}
