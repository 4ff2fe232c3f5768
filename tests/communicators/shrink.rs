//! Communicators that lose ranks, get new ones, and are revoked.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ferroccl::runtime::cpu::CpuRuntime;
use ferroccl::{CommConfig, Communicator, Device, Error, ReduceOp, Result, ShrinkMode, Stream};

use crate::again::{elsewhere, here};
use crate::{both_ways, each, init_ranks, sums};

/// The sum of what the ranks give, each its own power of two, is right on all.
fn check(ranks: &[Communicator], old: &[u32]) {
    assert_eq!(ranks.len(), old.len());
    for (i, rank) in ranks.iter().enumerate() {
        assert_eq!((rank.rank() as usize, rank.world_size() as usize), (i, ranks.len()));
    }
    let given: Vec<_> = ranks.iter().zip(old).map(|(rank, old)| (rank, 1 << old)).collect();
    let want: u64 = old.iter().map(|rank| 1 << rank).sum();
    for sum in sums(ranks[0].device(), &given) {
        assert_eq!(sum.unwrap(), want);
    }
}

/// The ranks but for those.
fn without(ranks: Vec<Communicator>, exclude: &[u32]) -> Vec<Communicator> {
    ranks.into_iter().filter(|rank| !exclude.contains(&rank.rank())).collect()
}

#[test]
fn healthy_groups_shrink_and_are_used_on() {
    for ranks in both_ways(&Device::cpu(), 5, &CommConfig::default()) {
        let left = [&ranks[1], &ranks[2], &ranks[4]];
        let made = thread::scope(|scope| {
            let shrink = |rank: &Communicator| rank.shrink(&[3, 0], ShrinkMode::Healthy);
            let threads = left.map(|rank| scope.spawn(move || shrink(rank)));
            threads.map(|thread| thread.join().unwrap().unwrap())
        });
        check(&made, &[1, 2, 4]);
        check(&ranks, &[0, 1, 2, 3, 4]);
        // A shrunken one shrinks, down to one; and it splits.
        let halves = Communicator::split_all(&made, |rank| (Some(rank / 2), 0)).unwrap();
        assert_eq!(halves[0].as_ref().unwrap().world_size(), 2);
        let one = made[2].shrink(&[0, 1], ShrinkMode::Healthy).unwrap();
        check(&[one], &[4]);
        check(&made, &[1, 2, 4]);
    }
}

/// A rank that never makes a call, one that aborts, and one that is dropped: those that are left go on.
#[test]
fn after_each_kind_of_failure_the_others_go_on() {
    let mut config = CommConfig::default();
    config.timeout = Some(Duration::from_millis(1500));
    for kind in ["absent", "aborts", "leaves"] {
        for mut ranks in both_ways(&Device::cpu(), 4, &config) {
            let device = ranks[0].device().clone();
            let (stream, buffer) = (device.stream().unwrap(), device.alloc::<u8>(7).unwrap());
            ranks[0].all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream).unwrap();
            let mut gone = None;
            match kind {
                "aborts" => ranks[2].abort(),
                "leaves" => drop(ranks.remove(2)),
                _ => gone = Some(ranks.remove(2)),
            }
            assert!(stream.synchronize().is_err(), "{kind}");
            let left = without(ranks, &[2]);
            let refused = left[0].shrink(&[2], ShrinkMode::Healthy);
            assert!(matches!(refused, Err(Error::Aborted { rank: 0, .. })), "{kind}: {refused:?}");
            let made = Communicator::shrink_all(&left, &[2], ShrinkMode::Abort).unwrap();
            drop(left);
            // The stream that has failed, and its buffer, are as before.
            let others = [device.stream().unwrap(), device.stream().unwrap()];
            for (rank, stream) in made.iter().zip([&stream].into_iter().chain(&others)) {
                rank.all_reduce(&buffer, &buffer, ReduceOp::Sum, stream).unwrap();
            }
            stream.synchronize().unwrap();
            check(&made, &[0, 1, 3]);
            drop(gone);
        }
    }
}

/// Each rank keeps its device.
#[test]
fn ranks_of_several_devices_split_and_shrink() {
    let devices: Vec<_> =
        (0..3).map(|_| Device::new(Arc::new(CpuRuntime::with_workers(1)))).collect();
    let ranks = Communicator::init_all_on(&devices, &CommConfig::default()).unwrap();
    let same = |a: &Device, b: &Device| Arc::ptr_eq(a.runtime(), b.runtime());
    let halves = Communicator::split_all(&ranks, |rank| (Some(rank / 2), 0)).unwrap();
    for (half, device) in halves.iter().zip(&devices) {
        assert!(same(half.as_ref().unwrap().device(), device));
    }
    let left = Communicator::shrink_all(&ranks[1..], &[0], ShrinkMode::Healthy).unwrap();
    assert!(same(left[0].device(), &devices[1]) && same(left[1].device(), &devices[2]));
}

#[test]
fn bad_lists_are_refused() {
    for ranks in both_ways(&Device::cpu(), 3, &CommConfig::default()) {
        for (exclude, why) in [
            (&[3][..], "3 is none of the 3 ranks"),
            (&[1, 2, 1], "rank 1 is there twice"),
            (&[0], "rank 0 is the caller"),
        ] {
            for mode in [ShrinkMode::Healthy, ShrinkMode::Abort] {
                let error = ranks[0].shrink(exclude, mode).unwrap_err().to_string();
                assert!(error.starts_with("invalid argument exclude: "), "{error}");
                assert!(error.contains(why), "{error}");
            }
        }
        check(&ranks, &[0, 1, 2]); // nothing was aborted
    }
}

/// Who does not come, or has another list, is named when the time is up; then it can be tried again.
#[test]
fn who_does_not_shrink_is_named() {
    let variables = [("FERROCCL_BOOTSTRAP_TIMEOUT", "3")];
    if !here() {
        return elsewhere(module_path!(), "who_does_not_shrink_is_named", &variables);
    }
    for ranks in both_ways(&Device::cpu(), 4, &CommConfig::default()) {
        for (who, missing) in [([0, 1], "3"), ([1, 3], "0")] {
            let errors = thread::scope(|scope| {
                let shrink = |rank: usize| ranks[rank].shrink(&[2], ShrinkMode::Healthy);
                let threads = who.map(|rank| scope.spawn(move || shrink(rank)));
                threads.map(|thread| thread.join().unwrap().unwrap_err())
            });
            for error in errors {
                let text = error.to_string();
                assert!(matches!(error, Error::Bootstrap(_)) && text.contains(missing), "{text}");
            }
        }
        let left = without(ranks, &[2]);
        check(&Communicator::shrink_all(&left, &[2], ShrinkMode::Healthy).unwrap(), &[0, 1, 3]);
    }
}

/// Streams with a call each that waits for rank 3, which does not make it.
fn waiting(ranks: &[Communicator]) -> Vec<Stream> {
    let call = |rank: &Communicator| {
        let stream = rank.device().stream().unwrap();
        rank.barrier(&stream).unwrap();
        stream
    };
    ranks[..3].iter().map(call).collect()
}

#[test]
fn a_revoked_communicator_ends_everywhere_and_shrinks() {
    for by in [0, 3] {
        for ranks in both_ways(&Device::cpu(), 4, &CommConfig::default()) {
            let streams = waiting(&ranks);
            ranks[by].revoke().unwrap();
            let by = by as u32;
            for (i, stream) in streams.iter().enumerate() {
                let rank = i as u32;
                let error = stream.synchronize().unwrap_err();
                let right =
                    matches!(error, Error::Revoked { rank: r, by: b } if (r, b) == (rank, by));
                assert!(right, "rank {i}: {error}");
            }
            for rank in &ranks {
                let start = std::time::Instant::now();
                while rank.async_error().is_ok() {
                    assert!(start.elapsed() < Duration::from_secs(30));
                    thread::yield_now();
                }
                let error = rank.barrier(&streams[0]).unwrap_err();
                assert!(matches!(error, Error::Revoked { by: b, .. } if b == by), "{error}");
                let text = format!("communicator of rank {} was revoked by rank {by}", rank.rank());
                assert_eq!(error.to_string(), text);
                assert!(rank.split(Some(0), 0).is_err());
                rank.revoke().unwrap(); // as it is
            }
            for mode in [ShrinkMode::Healthy, ShrinkMode::Abort] {
                let made = Communicator::shrink_all(&ranks, &[], mode).unwrap();
                check(&made, &[0, 1, 2, 3]);
            }
        }
    }
}

/// All ranks of a group of `n` that grows to `more`; `maker` makes the id.
fn grown(ranks: &[Communicator], more: u32, maker: usize) -> Vec<Result<Communicator>> {
    let n = ranks.len() as u32;
    let id = ranks[maker].grow_id().unwrap();
    each(more, |rank| match ranks.get(rank as usize) {
        Some(old) => old.grow(more),
        None => Communicator::join(&Device::cpu(), more, &id, rank.max(n)),
    })
}

#[test]
fn groups_grow_by_one_and_by_several() {
    let device = Device::cpu();
    for (n, more) in [(1, 2), (2, 3), (3, 6)] {
        for ranks in both_ways(&device, n, &CommConfig::default()) {
            let maker = n as usize - 1;
            let made: Vec<_> = grown(&ranks, more, maker).into_iter().map(Result::unwrap).collect();
            let old: Vec<u32> = (0..more).collect();
            check(&made, &old);
            check(&ranks, &old[..n as usize]);
            // What has grown shrinks, and grows again.
            let left = Communicator::shrink_all(&made[1..], &[0], ShrinkMode::Abort).unwrap();
            check(&left, &old[1..]);
            let again: Vec<_> = grown(&left, more, 0).into_iter().map(Result::unwrap).collect();
            check(&again, &old);
        }
    }
}

#[test]
fn a_growth_that_makes_no_sense_is_refused() {
    for ranks in both_ways(&Device::cpu(), 2, &CommConfig::default()) {
        let error = ranks[0].grow(2).unwrap_err().to_string();
        assert!(error.starts_with("invalid argument nranks: 2 is not more than"), "{error}");
        for error in each(2, |rank| ranks[rank as usize].grow(3).unwrap_err().to_string()) {
            assert!(error.contains("no rank has made an id"), "{error}");
        }
        let _ids = [ranks[0].grow_id().unwrap(), ranks[1].grow_id().unwrap()];
        for error in each(2, |rank| ranks[rank as usize].grow(3).unwrap_err().to_string()) {
            assert!(error.contains("ranks 0 and 1 have both made an id"), "{error}");
        }
        check(&ranks, &[0, 1]);
    }
}

/// In the background, and ended from there.
#[test]
fn shrinks_in_the_background_can_be_aborted() {
    for ranks in [
        Communicator::init_all(&Device::cpu(), 3).unwrap(),
        init_ranks(&Device::cpu(), 3, &CommConfig::default()),
    ] {
        let config = CommConfig::default();
        let waits = ranks[0].shrink_nonblocking(&[2], ShrinkMode::Healthy, &config).unwrap();
        thread::sleep(Duration::from_millis(30));
        assert!(!waits.is_over());
        waits.abort();
        let error = waits.wait().unwrap_err();
        assert!(matches!(error, Error::Aborted { rank: 0, .. }), "{error}");
        let made = Communicator::shrink_all(&ranks[..2], &[2], ShrinkMode::Healthy).unwrap();
        check(&made, &[0, 1]);
    }
}
