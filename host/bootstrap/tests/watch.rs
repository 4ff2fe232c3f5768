//! Who is still there: ranks that are killed, that leave, and the news of it.
//!
//! Ranks that are killed are processes: this test program, started again with its place in the environment.

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use ferroccl_bootstrap::{Bootstrap, BootstrapError, Departure, Limit, Stop, UniqueId, Watch};
use support::{group, loopback, settings};

const PATIENCE: Duration = Duration::from_secs(60);

/// Ranks of this process, each with its watch and what it was told.
fn watched(
    id: &UniqueId,
    ranks: std::ops::Range<u32>,
    nranks: u32,
) -> Vec<(Watch, Receiver<Departure>)> {
    let settings = settings(60.0);
    std::thread::scope(|scope| {
        let ranks: Vec<_> = ranks
            .map(|rank| {
                let settings = &settings;
                scope.spawn(move || {
                    let (tell, hear) = channel();
                    let me = Bootstrap::connect(id, rank, nranks, settings).unwrap();
                    // The test may be over and nobody listen any more.
                    (me.watch(move |gone| drop(tell.send(gone))).unwrap(), hear)
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The body of a child: joins, says so, and waits to be killed.
#[test]
fn as_child() {
    let Ok(place) = std::env::var("FERROCCL_TEST_CHILD") else { return };
    let (rank, id) = place.split_once(' ').unwrap();
    let ranks =
        watched(&id.parse().unwrap(), rank.parse().unwrap()..rank.parse::<u32>().unwrap() + 1, 4);
    println!("\nchild is in");
    std::thread::sleep(PATIENCE);
    drop(ranks);
}

fn child(rank: u32, id: &UniqueId) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "as_child", "--nocapture"])
        .env("FERROCCL_TEST_CHILD", format!("{rank} {}", id.to_secret_hex()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_killed_process_is_noticed_by_every_rank_once() {
    let id = loopback();
    let mut child = child(3, &id);
    let ranks = watched(&id, 0..3, 4);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "child is in"));
    for (_, hear) in &ranks {
        assert!(hear.try_recv().is_err(), "nobody is gone yet");
    }
    child.kill().unwrap(); // SIGKILL
    for (rank, (_, hear)) in ranks.iter().enumerate() {
        match hear.recv_timeout(PATIENCE).unwrap() {
            Departure::Lost { peer: 3, reason } => println!("rank {rank}: {reason}"),
            other => panic!("rank {rank}: {other:?}"),
        }
    }
    child.wait().unwrap();
    // Everybody else leaves as it should: nobody is reported twice, and nobody else as lost.
    let (watches, ears): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
    drop(watches);
    for hear in ears {
        assert!(hear.iter().all(|gone| matches!(gone, Departure::Left { peer: 0..3 })));
    }
}

#[test]
fn leaving_is_not_failing_and_all_hear_of_it() {
    for nranks in [2, 3, 5] {
        let mut ranks = watched(&loopback(), 0..nranks, nranks);
        let (leaver, _) = ranks.remove(1);
        leaver.goodbye();
        for (_, hear) in &ranks {
            assert_eq!(hear.recv_timeout(PATIENCE).unwrap(), Departure::Left { peer: 1 });
        }
        let (watches, ears): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
        drop(watches); // in whatever order
        for hear in ears {
            let rest: Vec<_> = hear.iter().collect();
            assert!(
                rest.iter().all(|g| matches!(g, Departure::Left { peer } if *peer != 1)),
                "{rest:?}"
            );
        }
    }
}

/// Ranks that leave one behind the other do not cut the others off, and their news go around together.
#[test]
fn those_that_stay_hear_of_each_that_leaves_once() {
    for (nranks, leavers) in [(5, 1..4), (9, 0..7), (17, 3..16), (33, 1..32)] {
        let mut ranks = watched(&loopback(), 0..nranks, nranks);
        let stay = ranks.split_off(leavers.end as usize);
        let gone: Vec<_> = ranks.drain(leavers.start as usize..).collect();
        ranks.extend(stay);
        let (watches, ears): (Vec<_>, Vec<_>) = gone.into_iter().unzip();
        watches.into_iter().for_each(Watch::goodbye);
        drop(ears);
        for (_, hear) in &ranks {
            let mut heard: Vec<u32> = leavers
                .clone()
                .map(|_| match hear.recv_timeout(PATIENCE).unwrap() {
                    Departure::Left { peer } => peer,
                    lost => panic!("{nranks} ranks: {lost:?}"),
                })
                .collect();
            heard.sort_unstable();
            assert!(heard.into_iter().eq(leavers.clone()), "{nranks} ranks");
            assert!(hear.try_recv().is_err(), "{nranks} ranks: nobody else has left");
        }
    }
}

#[test]
fn those_that_leave_at_the_same_time_are_lost_to_nobody() {
    for nranks in [2, 3, 7, 16, 33] {
        let (watches, ears): (Vec<_>, Vec<_>) =
            watched(&loopback(), 0..nranks, nranks).into_iter().unzip();
        std::thread::scope(|scope| {
            watches.into_iter().for_each(|watch| drop(scope.spawn(|| watch.goodbye())));
        });
        for hear in ears {
            let heard: Vec<_> = hear.iter().collect();
            let left = heard.iter().all(|gone| matches!(gone, Departure::Left { .. }));
            assert!(left, "{nranks} ranks: {heard:?}");
        }
    }
}

#[test]
fn a_rank_that_fails_before_it_watches_has_left() {
    let id = loopback();
    let ears = group(&id, 3, &settings(60.0), |me| {
        if me.rank() == 2 {
            return Ok(None); // dropped: an error between connect and watch
        }
        let (tell, hear) = channel();
        Ok(Some((me.watch(move |gone| drop(tell.send(gone)))?, hear)))
    });
    for watch in ears.into_iter().filter_map(Result::unwrap) {
        assert_eq!(watch.1.recv_timeout(PATIENCE).unwrap(), Departure::Left { peer: 2 });
    }
}

#[test]
fn a_watch_may_be_dropped_from_its_own_callback() {
    use std::sync::{Arc, Mutex};
    let (done, is_done) = channel();
    let watches = group(&loopback(), 2, &settings(60.0), |me| {
        if me.rank() == 1 {
            return me.watch(|_| ()).map(Some);
        }
        let slot = Arc::new(Mutex::new(None::<Watch>));
        let (own, done) = (Arc::clone(&slot), done.clone());
        // Held until the slot is filled, so that the callback finds its watch.
        let mut held = slot.lock().unwrap();
        *held = Some(me.watch(move |_| {
            drop(own.lock().unwrap().take());
            done.send(()).unwrap();
        })?);
        Ok(None)
    });
    drop(watches);
    is_done.recv_timeout(PATIENCE).unwrap();
}

#[test]
fn a_rank_alone_has_nobody_to_lose() {
    let me = Bootstrap::connect(&loopback(), 0, 1, &settings(5.0)).unwrap();
    me.watch(|gone| panic!("{gone:?}")).unwrap().goodbye();
}

/// Ranks that are watched make an all-gather; what each gets. Ranks of `absent` do not take part.
fn gathered(
    ranks: &[(Watch, Receiver<Departure>)],
    absent: &[usize],
    call: usize,
    time: Duration,
) -> Vec<Option<Result<Vec<Vec<u8>>, BootstrapError>>> {
    std::thread::scope(|scope| {
        let one = move |rank: usize, watch: &Watch| {
            let limit = Limit { time, stop: Stop::default() };
            // Shuffled: some begin when others have waited for a while.
            std::thread::sleep(Duration::from_millis((rank * 7 + call * 5) as u64 % 11));
            watch.all_gather(&vec![rank as u8; (rank * 37 + call) % 90], &limit)
        };
        let threads: Vec<_> = ranks
            .iter()
            .enumerate()
            .map(|(rank, (watch, _))| {
                (!absent.contains(&rank)).then(|| scope.spawn(move || one(rank, watch)))
            })
            .collect();
        threads.into_iter().map(|thread| thread.map(|thread| thread.join().unwrap())).collect()
    })
}

#[test]
fn ranks_that_are_watched_gather_as_often_as_they_like() {
    for nranks in (1..=9).chain([16, 17, 33]) {
        let ranks = watched(&loopback(), 0..nranks, nranks);
        for call in 0..5 {
            for got in gathered(&ranks, &[], call, PATIENCE) {
                let expected = (0..nranks as usize).map(|r| vec![r as u8; (r * 37 + call) % 90]);
                assert_eq!(got.unwrap().unwrap(), expected.collect::<Vec<_>>(), "{nranks} ranks");
            }
        }
    }
}

#[test]
fn those_that_do_not_take_part_are_named_and_nobody_else() {
    for (nranks, absent) in [(2, &[1][..]), (5, &[4]), (7, &[2]), (8, &[5]), (16, &[0, 11])] {
        let ranks = watched(&loopback(), 0..nranks, nranks);
        for got in gathered(&ranks, &[], 0, PATIENCE) {
            got.unwrap().unwrap();
        }
        let named: Vec<u32> = absent.iter().map(|rank| *rank as u32).collect();
        for got in gathered(&ranks, absent, 1, Duration::from_secs(2)).into_iter().flatten() {
            match got.unwrap_err() {
                BootstrapError::MissingRanks(missing) => {
                    assert_eq!((missing.world_size, &missing.named), (nranks, &named));
                }
                other => panic!("{nranks} ranks: {other}"),
            }
        }
    }
}

#[test]
fn a_rank_that_leaves_before_an_all_gather_is_named_by_all_others() {
    for nranks in [2, 3, 6, 9] {
        let mut ranks = watched(&loopback(), 0..nranks, nranks);
        let leaver = nranks / 2;
        ranks.remove(leaver as usize).0.goodbye();
        for got in gathered(&ranks, &[], 0, PATIENCE) {
            let error = got.unwrap().unwrap_err();
            let is_named = matches!(error, BootstrapError::PeerLost { peer, .. } if peer == leaver);
            assert!(is_named, "{nranks} ranks: {error}");
        }
    }
}
