//! Calls captured in a graph, as far as only the stand-in shows it: what is left over, and what is refused.

use std::sync::Arc;

use ferroccl::Device;
use ferroccl::runtime::cuda::{CudaGraph, CudaRuntime, CudaTimer};

use crate::errors::{no_more, settled, until};
use crate::scenarios;
use crate::stand_in::{Kind, alone, live, ready};

/// When a graph is gone so are the buffers and communicators that it has kept.
#[test]
fn a_graph_keeps_nothing_longer_than_it_is_there() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let objects = || [Kind::Allocation, Kind::Graph, Kind::UserObject, Kind::Stream].map(live);
    let before = settled(objects);
    let device = Device::new(Arc::new(CudaRuntime::new(0).unwrap()));
    scenarios::a_graph_keeps_what_it_needs(&device);
    drop(device);
    until(|| no_more(objects(), before));
}

#[test]
fn what_cannot_be_captured_says_so() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let device = Device::cuda(0).unwrap();
    let stream = device.stream().unwrap();
    let buffer = device.alloc::<u32>(10).unwrap();
    let error = CudaGraph::capture(&[&stream], || buffer.copy_from(&[1; 10], &stream));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("cannot be captured in a graph"), "{error}");
    // The stream goes on.
    buffer.copy_from(&[1; 10], &stream).unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), [1; 10]);
    let error = CudaGraph::capture(&[], || Ok(())).unwrap_err().to_string();
    assert!(error.contains("streams"), "{error}");
    // A branch for each hardware queue, and no more.
    let streams: Vec<_> = (0..33).map(|_| device.stream().unwrap()).collect();
    let streams: Vec<_> = streams.iter().collect();
    assert!(CudaGraph::capture(&streams[..32], || Ok(())).is_ok());
    let error = CudaGraph::capture(&streams, || Ok(())).unwrap_err().to_string();
    for part in ["33 branches on GPU 0", "only 32", "CUDA_DEVICE_MAX_CONNECTIONS"] {
        assert!(error.contains(part), "{error}");
    }
    drop(streams);
    let cpu = Device::cpu().stream().unwrap();
    let error = CudaGraph::capture(&[&cpu], || Ok(())).unwrap_err().to_string();
    assert!(error.contains("another runtime"), "{error}");
    assert!(CudaTimer::start(&cpu).is_err());
}
