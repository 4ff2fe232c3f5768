//! Applications that use NVIDIA's `cuda-core` and `cuda-async`: streams, buffers, and calls as operations.
//!
//! These crates look for a driver of CUDA 13 where the process was told to when it started, so that each test runs in a process of its own.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use cuda_async::device_operation::{DeviceOp, value};
use cuda_async::futures::executor::block_on;
use cuda_async::futures::future::{join, try_join_all};
use cuda_core::{Context, DeviceBuffer};
use ferroccl::runtime::cuda::{AsyncCalls, CudaRuntime};
use ferroccl::{CommConfig, Communicator, Device, Operator, ReduceOp};

use crate::crates::with_driver;
use crate::errors::until;
use crate::stand_in::{Kind, live, ready};

/// Runs a test of this module in a process that has a driver.
fn in_a_process(name: &str) {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut child = with_driver(&std::env::current_exe().unwrap(), folder.path());
    let name = format!("cuda_core::{name}");
    child.args(["--exact", &name, "--ignored", "--nocapture"]).env("FAKE_CUDA_VERSION", "13000");
    // Who waits is woken by cuda-async's own thread, and not by a look in time.
    let output = child.env("CUDA_ASYNC_SPIN_BUDGET_US", "0").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
}

/// The words of what must not go well: buffers cannot be shown.
fn refused<T>(result: Result<T, impl ToString>) -> String {
    result.map_or_else(|error| error.to_string(), |_| panic!("it went well"))
}

/// Ranks on GPU 0, whose calls wait for a second.
fn ranks(n: u32) -> (Arc<CudaRuntime>, Vec<Arc<Communicator>>) {
    let runtime = Arc::new(CudaRuntime::new(0).unwrap());
    let mut config = CommConfig::default();
    config.timeout = Some(Duration::from_secs(1));
    let ranks = Communicator::init_all_with(&Device::new(runtime.clone()), n, &config).unwrap();
    (runtime, ranks.into_iter().map(Arc::new).collect())
}

#[test]
fn streams_and_buffers() {
    in_a_process("streams_and_buffers_of_the_application");
}

#[test]
#[ignore = "run by streams_and_buffers"]
fn streams_and_buffers_of_the_application() {
    assert!(ready());
    let (context, other) = (Context::new(0).unwrap(), Context::new(1).unwrap());
    let stream = context.new_stream().unwrap();
    let before = live(Kind::Allocation);
    let (runtime, mut ranks) = ranks(1);
    let rank = ranks.remove(0);
    let ours = runtime.stream_of_cuda_core(stream.clone()).unwrap();
    let from = Arc::new(DeviceBuffer::from_host(&stream, &[2.5f32; 300]).unwrap());
    let to = Arc::new(DeviceBuffer::<f32>::zeroed(&stream, 300).unwrap());
    let input = runtime.buffer_of_cuda_core(from.clone()).unwrap();
    let output = runtime.buffer_of_cuda_core(to.clone()).unwrap();
    rank.all_reduce(&input, &output, ReduceOp::Sum, &ours).unwrap();
    assert_eq!(to.to_host_vec(&stream).unwrap(), [2.5; 300]);

    // What is of another context is refused, and not kept.
    let foreign = other.new_stream().unwrap();
    let buffer = Arc::new(DeviceBuffer::from_host(&foreign, &[1.0f32; 8]).unwrap());
    let error = runtime.buffer_of_cuda_core(buffer.clone()).unwrap_err().to_string();
    assert!(error.contains("buffer") && error.contains("another context"), "{error}");
    for theirs in [other.default_stream(), foreign] {
        let error = runtime.stream_of_cuda_core(theirs).unwrap_err().to_string();
        assert!(error.contains("stream") && error.contains("another context"), "{error}");
    }
    assert_eq!(Arc::strong_count(&buffer), 1);
    drop(buffer);

    // The last shares are ours, and a thread without a context lets go of them.
    rank.all_reduce(&input, &output, ReduceOp::Sum, &ours).unwrap();
    ours.synchronize().unwrap();
    drop((from, to, stream));
    std::thread::spawn(move || drop((input, output, ours, rank, runtime))).join().unwrap();
    until(|| live(Kind::Allocation) == before);
    context.check_err().unwrap();
}

#[test]
fn operations() {
    in_a_process("operations_of_the_application");
}

#[test]
#[ignore = "run by operations"]
fn operations_of_the_application() {
    assert!(ready());
    let context = Context::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let (runtime, ranks) = ranks(2);
    let calls = AsyncCalls::new(&runtime);
    let upload = |x: f32| DeviceBuffer::from_host(&stream, &[x; 1000]).unwrap();

    // Each rank's, awaited together, in place: by themselves, and in chains.
    let sum = &|comm: &Arc<Communicator>, buffer| {
        let comm = comm.clone();
        calls.operation(buffer, move |x, stream| comm.all_reduce(&x, &x, ReduceOp::Sum, stream))
    };
    for round in 1..6 {
        let operations =
            ranks.iter().map(|comm| sum(comm, upload(comm.rank() as f32)).into_future());
        for buffer in block_on(try_join_all(operations)).unwrap() {
            assert_eq!(buffer.to_host_vec(&stream).unwrap(), [1.0; 1000]);
        }
        let chain = |comm| {
            let first = value(upload(round as f32)).then(move |x| sum(comm, x));
            first.then(move |x| sum(comm, x)).into_future()
        };
        for buffer in block_on(try_join_all(ranks.iter().map(chain))).unwrap() {
            // Whatever of ours is still about keeps nobody from it.
            assert!(buffer.storage().is_unique());
            assert_eq!(buffer.to_host_vec(&stream).unwrap(), [4.0 * round as f32; 1000]);
        }
    }
    ranks.iter().for_each(|comm| comm.async_error().unwrap());

    // On tokio, in tasks that threads take from each other; several buffers, and a group.
    let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let tasks: Vec<_> = ranks
        .iter()
        .map(|comm| {
            let (calls, comm) = (calls.clone(), comm.clone());
            let buffers = (upload(1.0), vec![Arc::new(upload(2.0)), Arc::new(upload(3.0))]);
            executor.spawn(async move {
                let operation = calls.operation(buffers, move |(x, more), stream| {
                    ferroccl::group(|| {
                        comm.all_reduce(&x, &x, ReduceOp::Sum, stream)?;
                        more.iter().try_for_each(|x| comm.all_reduce(x, x, ReduceOp::Sum, stream))
                    })
                });
                operation.await
            })
        })
        .collect();
    for task in tasks {
        let (x, more) = executor.block_on(task).unwrap().unwrap();
        assert_eq!(x.to_host_vec(&stream).unwrap(), [2.0; 1000]);
        assert_eq!(more[1].to_host_vec(&stream).unwrap(), [6.0; 1000]);
    }
}

#[test]
fn what_goes_wrong() {
    in_a_process("what_goes_wrong_in_the_application");
}

#[test]
#[ignore = "run by what_goes_wrong"]
fn what_goes_wrong_in_the_application() {
    assert!(ready());
    let (context, other) = (Context::new(0).unwrap(), Context::new(1).unwrap());
    let (stream, second) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let foreign = other.new_stream().unwrap();
    let upload = || DeviceBuffer::from_host(&stream, &[1.0f32; 10]).unwrap();

    // A call whose peer does not come. By itself the operation knows, however it is run.
    for way in ["await", "sync_on", "chain"] {
        let (runtime, ranks) = ranks(2);
        let calls = AsyncCalls::new(&runtime);
        let comm = ranks[0].clone();
        let operation = calls
            .operation(upload(), move |x, stream| comm.all_reduce(&x, &x, ReduceOp::Sum, stream));
        let result = match way {
            "await" => block_on(operation.into_future()),
            "sync_on" => operation.sync_on(&stream),
            _ => operation.map(|x| x).sync_on(&stream),
        };
        match result {
            Err(error) => {
                assert!(way != "chain" && error.to_string().contains("timeout"), "{error}");
            }
            Ok(_) => assert_eq!(way, "chain"),
        }
        let error = ranks[0].async_error().unwrap_err().to_string();
        assert!(error.contains("timeout"), "{error}");
    }

    // What cannot be begun.
    let (runtime, ranks) = ranks(2);
    let calls = AsyncCalls::new(&runtime);
    let nothing = |_, _: &ferroccl::Stream| Ok(());
    let error = ferroccl::group(|| Ok(calls.operation(upload(), nothing).sync_on(&stream)));
    let error = refused(error.unwrap());
    assert!(error.contains("in a group"), "{error}");
    let buffer = DeviceBuffer::from_host(&foreign, &[1.0f32; 8]).unwrap();
    let error = refused(calls.operation(buffer, nothing).sync_on(&stream));
    assert!(error.contains("buffers") && error.contains("another context"), "{error}");
    let error = refused(calls.operation(upload(), nothing).sync_on(&foreign));
    assert!(error.contains("stream") && error.contains("another context"), "{error}");
    let comm = ranks[0].clone();
    let wrong = calls.operation([upload(), upload()], move |[x, y], stream| {
        comm.all_reduce(&x, &y.slice(1..), ReduceOp::Sum, stream)
    });
    let error = refused(wrong.sync_on(&stream));
    assert!(error.contains("recv"), "{error}");

    // A buffer that an operation uses is not for another stream until that has ended.
    // Allocating while a kernel runs may wait for it.
    let (shared, peers) = (Arc::new(upload()), upload());
    let comm = ranks[0].clone();
    let first = calls
        .operation(shared.clone(), move |x, stream| comm.all_reduce(&x, &x, ReduceOp::Sum, stream));
    let (comm, calls) = (ranks[1].clone(), &calls);
    let again = async {
        let taken = refused(calls.operation(shared.clone(), nothing).sync_on(&second));
        assert!(taken.contains("buffers"), "{taken}");
        let peer =
            calls.operation(peers, move |x, stream| comm.all_reduce(&x, &x, ReduceOp::Sum, stream));
        peer.await
    };
    let (first, peer) = block_on(join(first.into_future(), again));
    peer.unwrap();
    assert_eq!(first.unwrap().to_host_vec(&second).unwrap(), [2.0; 10]);
    calls.operation(shared, nothing).sync_on(&second).unwrap();
}

#[test]
fn graphs() {
    in_a_process("graphs_of_the_application");
}

#[test]
#[ignore = "run by graphs"]
fn graphs_of_the_application() {
    assert!(ready());
    let context = Context::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let (runtime, ranks) = ranks(1);
    let calls = AsyncCalls::new(&runtime);
    let double = |buffer| {
        let comm = ranks[0].clone();
        calls.operation(buffer, move |x: ferroccl::DeviceBuffer<f32>, stream| {
            comm.all_reduce(&x, &x, Operator::pre_mul_sum(2.0), stream)
        })
    };
    // Loads the kernel.
    let buffer = double(DeviceBuffer::from_host(&stream, &[1.0f32; 50]).unwrap()).sync_on(&stream);
    let mut graph = double(buffer.unwrap()).graph_on(stream.clone()).unwrap();
    let buffer = graph.take_output().unwrap();
    for _ in 0..3 {
        block_on(graph.launch().into_future()).unwrap();
    }
    assert_eq!(buffer.to_host_vec(&stream).unwrap(), [16.0; 50]);
}
