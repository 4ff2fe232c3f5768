//! Processes that fork: what the child has are copies, and the group is the parent's.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ferroccl::{CommConfig, Communicator, Device, Error, ReduceOp};

use crate::again::{elsewhere, here};
use crate::both_ways;

/// Runs `body` in a fork of this process, which ends with it.
fn forked(body: impl FnOnce()) {
    // SAFETY: the child calls what a child of a process with several threads may: it allocates, which glibc allows, and
    // takes no lock that another thread may hold, as the others of this process sleep.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: as above. Should the child hang, the parent has its signal.
            unsafe { libc::alarm(20) };
            let ended = catch_unwind(AssertUnwindSafe(body));
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(ended.is_err())) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the status is ours.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "how the child has ended (waitpid)");
        }
    }
}

fn sum(ranks: &[Communicator]) {
    let device = ranks[0].device();
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    let buffers: Vec<_> = ranks.iter().map(|_| device.upload(&[1u32; 3000]).unwrap()).collect();
    for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
        rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream).unwrap();
    }
    for (buffer, stream) in buffers.iter().zip(&streams) {
        assert_eq!(buffer.to_vec(stream).unwrap(), [ranks.len() as u32; 3000]);
    }
}

#[test]
fn a_child_leaves_its_parents_groups_alone() {
    if !here() {
        return elsewhere(module_path!(), "a_child_leaves_its_parents_groups_alone", &[]);
    }
    let device = Device::cpu();
    for mut ranks in both_ways(&device, 3, &CommConfig::default()) {
        sum(&ranks);
        let last = ranks.pop();
        let mut copies = Some((ranks, last));
        forked(|| {
            let (ranks, last) = copies.take().unwrap();
            let stream = device.stream().unwrap();
            let error = ranks[0].barrier(&stream).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { argument: "self", .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("this one") && text.contains("is a fork"), "{text}");
            assert!(ranks[1].finalize().is_err() && ranks[1].split(Some(0), 0).is_err());
            ranks[0].abort();
            ranks[0].abort_handle().abort();
            drop(last);
            drop(ranks);
        });
        let (mut ranks, last) = copies.take().unwrap();
        ranks.extend(last);
        // A moment for what must not happen.
        std::thread::sleep(std::time::Duration::from_millis(100));
        sum(&ranks);
    }
}
