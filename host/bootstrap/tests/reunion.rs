//! Those that are left of a group meet again.

mod support;

use std::thread;
use std::time::Duration;

use ferroccl_bootstrap::{Bootstrap, BootstrapError, MeetingPlace, Result, Settings, Stop};
use support::{group, loopback, settings};

/// Meeting places of a group whose ring is gone.
fn places(nranks: u32) -> Vec<MeetingPlace> {
    let all = group(&loopback(), nranks, &settings(60.0), |me| me.meeting_place());
    all.into_iter().collect::<Result<_>>().unwrap()
}

/// What comes of those of `places` that are in `who`, which are told of `left`.
fn meet(
    places: &[MeetingPlace],
    who: &[usize],
    left: &[u32],
    settings: &Settings,
) -> Vec<Result<Vec<Vec<u8>>>> {
    thread::scope(|scope| {
        let one = |place: &MeetingPlace| -> Result<Vec<Vec<u8>>> {
            let me: Bootstrap = place.connect(Stop::default(), left, settings)?;
            me.all_gather(&[me.rank() as u8, me.nranks() as u8])
        };
        let threads: Vec<_> = who.iter().map(|&i| scope.spawn(move || one(&places[i]))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn those_that_are_left_meet_as_often_as_they_like() {
    let places = places(6);
    let settings = settings(60.0);
    // Without the first, which is where they all met before; in another order; all; one.
    for left in [&[1, 2, 4, 5][..], &[1, 2, 4, 5], &[5, 0, 3], &[0, 1, 2, 3, 4, 5], &[2]] {
        let who: Vec<usize> = left.iter().map(|rank| *rank as usize).collect();
        let n = left.len() as u8;
        let all: Vec<Vec<u8>> = (0..n).map(|rank| vec![rank, n]).collect();
        for got in meet(&places, &who, left, &settings) {
            assert_eq!(got.unwrap(), all, "{left:?}");
        }
    }
}

#[test]
fn who_does_not_come_is_named() {
    let places = places(4);
    let short = settings(1.0);
    // Rank 3 of the old group, 2 of the new, is not there.
    for got in meet(&places, &[0, 1], &[0, 1, 3], &short) {
        let error = got.unwrap_err();
        assert!(matches!(error, BootstrapError::MissingRanks(_)), "{error}");
        assert!(error.to_string().contains("rank 2"), "{error}");
    }
    // The first is not: its socket is, and nobody answers there.
    for got in meet(&places, &[1, 3], &[0, 1, 3], &short) {
        let error = got.unwrap_err();
        assert!(matches!(error, BootstrapError::NoRoot { .. }), "{error}");
    }
    // And then it is.
    let got = meet(&places, &[0, 1, 3], &[0, 1, 3], &settings(60.0));
    assert!(got.iter().all(Result::is_ok), "{got:?}");
}

/// Lists that differ make groups that do not mix, also where they meet at the same rank.
#[test]
fn other_lists_are_other_groups() {
    let places = places(4);
    let short = settings(5.0);
    let (one, other) = thread::scope(|scope| {
        let other = scope.spawn(|| meet(&places, &[2], &[0, 1, 2], &short));
        // The other list is there first, and waits for the root.
        thread::sleep(Duration::from_millis(100));
        let one = scope.spawn(|| meet(&places, &[0, 1], &[0, 1], &short));
        (one.join().unwrap(), other.join().unwrap())
    });
    assert!(one.iter().all(Result::is_ok), "{one:?}");
    assert!(other[0].is_err(), "{other:?}");
}

#[test]
fn bad_lists_are_refused() {
    let places = places(3);
    for left in [&[0, 3][..], &[0, 1, 0], &[1, 2], &[]] {
        let error = places[0].connect(Stop::default(), left, &settings(5.0)).unwrap_err();
        let argument = matches!(error, BootstrapError::InvalidArgument { argument: "left", .. });
        assert!(argument, "{left:?}: {error}");
    }
}
