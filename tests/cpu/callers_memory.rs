//! `CpuRuntime::buffer_of`: memory of the process's own as buffers.

use std::ptr;
use std::sync::Arc;

use ferroccl::runtime::cpu::CpuRuntime;
use ferroccl::{Communicator, Device, ReduceOp};

/// Odd places and lengths, in place and not; the memory is kept until the call has ended, and no longer.
#[test]
fn it_is_reduced_where_it_is() {
    const RANKS: usize = 3;
    let device = Device::cpu();
    let ranks = Communicator::init_all(&device, RANKS as u32).unwrap();
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    for (skip, len) in [(1, 1), (3, 1000), (0, 0), (5, 70_001)] {
        let inputs: Vec<Arc<Vec<i64>>> = (0..RANKS)
            .map(|r| Arc::new((0..skip + len).map(|i| (i * (r + 1)) as i64).collect()))
            .collect();
        let mut outputs = vec![vec![-1i64; skip + len]; RANKS];
        for (r, comm) in ranks.iter().enumerate() {
            let input = inputs[r][skip..].as_ptr().cast_mut();
            let output = outputs[r][skip..].as_mut_ptr();
            // SAFETY: the input is kept and only read; the outputs are there, and nobody else uses them, until the streams have been
            // waited for.
            let (send, recv) = unsafe {
                let send = CpuRuntime::buffer_of(input, len, inputs[r].clone()).unwrap();
                (send, CpuRuntime::buffer_of(output, len, Arc::new(())).unwrap())
            };
            comm.all_reduce(&send, &recv, ReduceOp::Sum, &streams[r]).unwrap();
            comm.all_reduce(&recv, &recv, ReduceOp::Max, &streams[r]).unwrap();
        }
        for stream in &streams {
            stream.synchronize().unwrap();
        }
        for (input, output) in inputs.iter().zip(&outputs) {
            assert!(output[..skip].iter().all(|x| *x == -1));
            assert!((skip..skip + len).all(|i| output[i] == 6 * i as i64));
            assert_eq!(Arc::strong_count(input), 1);
        }
    }
}

#[test]
fn what_is_no_range_is_refused() {
    let start = ptr::without_provenance_mut::<u32>(4096);
    let refused = |start, len| {
        // SAFETY: no call uses it.
        unsafe { CpuRuntime::buffer_of::<u32>(start, len, Arc::new(())) }.unwrap_err().to_string()
    };
    let error = refused(start.wrapping_byte_add(2), 1);
    assert!(error.starts_with("invalid argument start: 0x1002 is no multiple of 4"), "{error}");
    for len in [usize::MAX, usize::MAX / 4 + 2, usize::MAX / 4 - 100] {
        let error = refused(start, len);
        assert!(
            error.starts_with("invalid argument len: ") && error.contains("no range"),
            "{error}"
        );
    }
}
