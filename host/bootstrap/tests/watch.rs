//! Who is still there: ranks that are killed, that leave, and the news of it.
//!
//! Ranks that are killed are processes: this test program, started again with its place in the environment.

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use ferroccl_bootstrap::{Bootstrap, Departure, UniqueId, Watch};
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
