//! From PTX to functions: what the assembler says, and what is kept on disk.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ferroccl::device::collectives::AllReduceRing;
use ferroccl::device::kernels::Row;
use ferroccl::device::prims::Ll;
use ferroccl::device::reduce::Sum;
use ferroccl::runtime::cuda::CudaRuntime;
use ferroccl::runtime::ptx::source;
use ferroccl::{CommConfig, Communicator, Device, Error, ProtocolId, ReduceOp, Registry, group};

use crate::stand_in::{alone, ready};

const KERNEL: &str = "all_reduce_ring_ll_sum_float";

fn all_reduce(runtime: CudaRuntime) -> Result<(), Error> {
    all_reduce_by(runtime, Registry::new())
}

fn all_reduce_by(runtime: CudaRuntime, registry: Registry) -> Result<(), Error> {
    let device = Device::new(Arc::new(runtime));
    let mut config = CommConfig::default();
    config.registry = registry;
    config.protocol = Some(ProtocolId::Ll);
    config.algorithm = Some(ferroccl::Algorithm::Ring);
    let ranks = Communicator::init_all_with(&device, 2, &config)?;
    let streams = [device.stream()?, device.stream()?];
    let buffers = [device.upload(&[1.0f32; 100])?, device.upload(&[2.0f32; 100])?];
    for r in 0..2 {
        ranks[r].all_reduce(&buffers[r], &buffers[r], ReduceOp::Sum, &streams[r])?;
    }
    assert_eq!(buffers[0].to_vec(&streams[0])?, [3.0; 100]);
    assert_eq!(buffers[1].to_vec(&streams[1])?, [3.0; 100]);
    Ok(())
}

/// A runtime with a text in the place of the kernel.
fn edited(text: &str) -> CudaRuntime {
    // SAFETY: each of the texts is our kernel's, or does not get as far as to run.
    unsafe { CudaRuntime::new(0).unwrap().with_source(KERNEL, text) }
}

#[test]
fn what_the_assembler_says_is_in_the_error() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let broken = edited("not PTX at all");
    let error = all_reduce(broken).unwrap_err();
    let Error::Cuda(cuda) = &error else { panic!("{error}") };
    assert_eq!((cuda.call(), cuda.code()), ("cuLinkAddData_v2", 218));
    assert_eq!(cuda.log(), "ptxas fatal : Missing .target directive at start of file");
    assert!(error.to_string().ends_with(cuda.log()), "{error}");
}

#[test]
fn an_edited_kernel_takes_the_place_of_ours() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let text = source(KERNEL, 90).unwrap();
    all_reduce(edited(&text)).unwrap();
    let gone = text.replace(KERNEL, "another");
    let error = all_reduce(edited(&gone)).unwrap_err();
    assert!(error.to_string().contains("cuModuleGetFunction"), "{error}");
    let other = format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry {KERNEL}(.param .u64 p) {{ ret; }}\n"
    );
    let error = all_reduce(edited(&other)).unwrap_err();
    assert!(error.to_string().contains("it takes 8 bytes of parameters"), "{error}");
    let later =
        text.replace(".target sm_80", ".target sm_120").replace(".target sm_90", ".target sm_120");
    let error = all_reduce(edited(&later)).unwrap_err();
    assert!(error.to_string().contains("SM version"), "{error}");
}

#[test]
fn a_kernel_brings_its_own_ptx() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let by = |text: String| {
        let row = Row::of::<AllReduceRing, f32, Sum, Ll>(KERNEL);
        // What a crate has embedded lives as long.
        let registry = Registry::new().kernels(&[row], text.leak());
        all_reduce_by(CudaRuntime::new(0).unwrap(), registry)
    };
    by(source(KERNEL, 90).unwrap()).unwrap();
    let error = by("not PTX at all".to_owned()).unwrap_err();
    assert!(error.to_string().contains("Missing .target directive"), "{error}");
    // What was edited by name comes before.
    let text = source(KERNEL, 90).unwrap();
    let row = Row::of::<AllReduceRing, f32, Sum, Ll>(KERNEL);
    let registry = Registry::new().kernels(&[row], "not PTX at all");
    all_reduce_by(edited(&text), registry).unwrap();
}

/// Files of the cache, with their content.
fn cached() -> Vec<(PathBuf, Vec<u8>)> {
    let directory = std::env::var_os("FERROCCL_CUDA_CACHE").unwrap();
    let mut files: Vec<_> = fs::read_dir(directory)
        .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
        .unwrap_or_default();
    files.sort();
    files.into_iter().map(|path: PathBuf| (path.clone(), fs::read(path).unwrap())).collect()
}

#[test]
fn what_was_assembled_is_kept() {
    if !ready() {
        return;
    }
    let _alone = alone();
    all_reduce(CudaRuntime::new(0).unwrap()).unwrap();
    let before = cached();
    assert!(!before.is_empty());
    all_reduce(CudaRuntime::new(1).unwrap()).unwrap();
    assert_eq!(before, cached(), "both GPUs are of a kind");
    // Whatever has become of a file, it is made again.
    for (path, content) in &before {
        fs::write(path, &content[..content.len() / 2]).unwrap();
    }
    all_reduce(CudaRuntime::new(0).unwrap()).unwrap();
    let after = cached();
    assert_eq!(before.len(), after.len());
    let repaired = before.iter().zip(&after).filter(|(a, b)| a == b).count();
    assert!(repaired >= 1, "the module that was needed");
    for (path, _) in after {
        fs::remove_file(path).unwrap();
    }
    all_reduce(CudaRuntime::new(0).unwrap()).unwrap();
    assert!(!cached().is_empty());
}

/// Loading may wait for kernels that wait for what the same thread is about to launch: a group loads first. The stand-in
/// does wait.
#[test]
fn what_starts_together_is_loaded_before() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let mut config = CommConfig::default();
    config.timeout = Some(std::time::Duration::from_secs(5));
    for hierarchical in [false, true] {
        if hierarchical {
            config.algorithm = Some(ferroccl::Algorithm::Hierarchical);
            config.ranks_per_node = Some(1);
        }
        let device = Device::new(Arc::new(CudaRuntime::new(0).unwrap()));
        let ranks = Communicator::init_all_with(&device, 2, &config).unwrap();
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        let floats = [0, 1].map(|_| device.upload(&[1.0f32; 100]).unwrap());
        let bytes = [0, 1].map(|_| device.upload(&[1u8; 100]).unwrap());
        let words = [0, 1].map(|_| device.upload(&[1u32; 100]).unwrap());
        let both = [0, 1].map(|_| device.alloc::<u8>(200).unwrap());
        let sent = [7u32, 8].map(|x| device.upload(&[x; 10]).unwrap());
        let received = [0, 1].map(|_| device.alloc::<u32>(10).unwrap());
        group(|| {
            for r in 0..2 {
                let (rank, stream, peer) = (&ranks[r], &streams[r], 1 - r as u32);
                rank.all_reduce(&floats[r], &floats[r], ReduceOp::Avg, stream)?;
                rank.all_gather(&bytes[r], &both[r], stream)?;
                rank.all_reduce(&words[r], &words[r], ReduceOp::Max, stream)?;
                rank.send(&sent[r], peer, stream)?;
                rank.recv(&received[r], peer, stream)?;
            }
            Ok(())
        })
        .unwrap();
        for r in 0..2 {
            assert_eq!(both[r].to_vec(&streams[r]).unwrap(), [1; 200], "{hierarchical}");
            assert_eq!(received[r].to_vec(&streams[r]).unwrap(), [8 - r as u32; 10]);
        }
    }
}

/// Two ranks on a GPU of their own, whose calls of 100 integers have been made before, and give up after 5 s.
fn two_ranks() -> (Vec<Communicator>, Vec<ferroccl::Stream>, Device) {
    let mut config = CommConfig::default();
    config.timeout = Some(Duration::from_secs(5));
    let device = Device::new(Arc::new(CudaRuntime::new(0).unwrap()));
    let ranks = Communicator::init_all_with(&device, 2, &config).unwrap();
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    let small = device.alloc::<u32>(100).unwrap();
    for (rank, stream) in ranks.iter().zip(&streams) {
        rank.all_reduce(&small, &small, ReduceOp::Sum, stream).unwrap();
    }
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    (ranks, streams, device)
}

/// A thread that loads a kernel may wait in the driver for one that runs; the others go on with what is loaded.
#[test]
fn a_load_holds_no_other_thread_up() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let (ranks, streams, device) = two_ranks();
    std::thread::scope(|threads| {
        for (r, (rank, stream)) in ranks.iter().zip(&streams).enumerate() {
            let device = &device;
            threads.spawn(move || {
                let small = device.alloc::<u32>(100).unwrap();
                let all = device.alloc::<u32>(200).unwrap();
                std::thread::sleep(Duration::from_millis(300 * r as u64));
                rank.all_reduce(&small, &small, ReduceOp::Sum, stream).unwrap();
                rank.all_gather(&small, &all, stream).unwrap();
                stream.synchronize().unwrap();
            });
        }
    });
}

/// Calls of other sizes take other kernels, and these are loaded by then.
#[test]
fn a_call_of_another_size_loads_nothing() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let (ranks, streams, device) = two_ranks();
    let sizes = [1, 100, 10_000, 100_000, 1 << 20];
    let buffers = sizes.map(|count| device.alloc::<u32>(count).unwrap());
    let again = Communicator::init_all(&device, 3).unwrap();
    let more: Vec<_> = again.iter().map(|_| device.stream().unwrap()).collect();
    // Each rank goes through all of them before the next begins.
    for (ranks, streams) in [(&ranks, &streams), (&again, &more)] {
        for (rank, stream) in ranks.iter().zip(streams) {
            for buffer in &buffers {
                rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream).unwrap();
            }
        }
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
    }
}
