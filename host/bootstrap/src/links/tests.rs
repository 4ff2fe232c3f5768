//! Ranks that die in the middle of an all-gather.

use std::sync::{Barrier, Mutex};
use std::thread;

use super::*;
use crate::id::UniqueId;
use crate::join;
use crate::limit::Stop;
use crate::peers::PeerAcceptor;
use crate::settings::Settings;

fn limit() -> Limit {
    Limit { time: Duration::from_secs(60), stop: Stop::default() }
}

/// A rank that has found its group, without the bootstrap around it, so that it can go without a word.
fn connect(id: &UniqueId, rank: u32, nranks: u32) -> Result<(PeerAcceptor, Links)> {
    let deadline = limit().start();
    let settings = Settings::default();
    let joined = join::join(None, id, rank, nranks, &settings, deadline.clone())?;
    let peers = PeerAcceptor::start(joined.acceptor, rank, nranks)?;
    let links = Links::open(rank, nranks, &peers, &joined.key, &joined.called, &deadline)?;
    Ok((peers, links))
}

/// Takes part, until it has sent to so many partners; whether it got so far.
fn take_part(links: &mut Links, partners: usize) -> bool {
    let deadline = limit().start();
    let mut told = 0;
    links.gathers.begin(vec![links.rank as u8]);
    loop {
        if told == partners {
            return true;
        }
        while let Some((place, pieces)) = links.gathers.advance() {
            for bytes in pieces {
                links.sides[links.places[place]].tell(&Message::Data { tag: GATHER, bytes });
            }
            told += 1;
            if told == partners {
                return true;
            }
        }
        if links.gathers.waits_for().is_none() {
            return false;
        }
        for side in links.wait(None, &deadline).unwrap() {
            while links.is_wanted(side)
                && let Some(frame) =
                    links.sides[side].link.as_mut().unwrap().read_some().transpose()
            {
                links.hear(side, frame).unwrap();
            }
        }
    }
}

/// Rank `victim` dies when it has sent to so many partners; what the others' all-gathers end in. They stay until all know, or go
/// at once. The victim's place among the results is empty. `None` if it does not send to so many.
fn killed(
    nranks: u32,
    victim: u32,
    partners: usize,
    stay: bool,
) -> Option<Vec<Result<(), BootstrapError>>> {
    let id = UniqueId::listening_at(([127, 0, 0, 1], 0).into()).unwrap();
    let kept = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..nranks)
            .map(|rank| {
                let (id, kept) = (&id, &kept);
                scope.spawn(move || {
                    // Others may be on their way here still when the victim is gone.
                    let (peers, mut links) = match connect(id, rank, nranks) {
                        Ok(connected) => connected,
                        Err(error) => return Some(Err(error)),
                    };
                    if rank == victim {
                        return take_part(&mut links, partners).then_some(Ok(()));
                    }
                    // Who has all blocks learns of it in the next call.
                    let result = (0..2).try_for_each(|_| {
                        let all = links.all_gather(&[rank as u8], &limit())?;
                        assert!(
                            all.to_vecs().into_iter().eq((0..nranks).map(|rank| vec![rank as u8]))
                        );
                        Ok(())
                    });
                    if stay {
                        kept.lock().unwrap().push((peers, links));
                    }
                    Some(result)
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn a_rank_that_dies_in_any_round_is_named_by_all_others() {
    for nranks in [2, 3, 4, 5, 6, 7, 8, 11, 16, 17, 33] {
        let victims = [0, 1, nranks / 2, nranks - 1];
        for (i, victim) in victims.into_iter().enumerate() {
            if victims[..i].contains(&victim) {
                continue;
            }
            let mut partners = 0;
            while let Some(ends) =
                killed(nranks, victim, partners, (victim + i as u32).is_multiple_of(2))
            {
                println!("rank {victim} of {nranks} dies when it has sent to {partners} partners");
                let shown = format!("{ends:?}");
                for (rank, end) in ends.into_iter().enumerate() {
                    match end {
                        Ok(()) => assert_eq!(rank, victim as usize, "it noticed nothing"),
                        Err(BootstrapError::PeerLost { peer, .. }) => {
                            assert_eq!(peer, victim, "{shown}");
                        }
                        Err(other) => panic!("rank {rank}: {other}"),
                    }
                }
                partners += 1;
            }
            assert!(partners > 0);
        }
    }
}

#[test]
fn who_gives_up_says_so_and_why() {
    let id = UniqueId::listening_at(([127, 0, 0, 1], 0).into()).unwrap();
    let given_up = Barrier::new(2);
    let ends = thread::scope(|scope| {
        let zero = scope.spawn(|| {
            let (_peers, mut links) = connect(&id, 0, 2).unwrap();
            let short = Limit { time: Duration::from_millis(50), stop: Stop::default() };
            let end = links.all_gather(b"0", &short).map(|_| ());
            given_up.wait();
            end
        });
        let one = scope.spawn(|| {
            let (_peers, mut links) = connect(&id, 1, 2).unwrap();
            given_up.wait();
            // The other's block has come before it gave up.
            links.all_gather(b"1", &limit()).unwrap();
            links.all_gather(b"1", &limit()).map(|_| ())
        });
        [zero.join().unwrap(), one.join().unwrap()]
    });
    let [
        Err(BootstrapError::Timeout { what, .. }),
        Err(BootstrapError::PeerLost { peer: 0, reason, .. }),
    ] = &ends
    else {
        panic!("{ends:?}");
    };
    assert!(what.contains("hear from rank 1"), "{what}");
    assert!(reason.starts_with("it gave up: ") && reason.contains(what.as_str()), "{reason}");
}

/// Of two ranks one connects, and both take the same connection for all-gathers.
#[test]
fn both_ends_agree_on_their_connections() {
    for nranks in 2..=70 {
        for rank in 0..nranks {
            for peer in called_by(rank, nranks) {
                let callers: Vec<_> =
                    callers_of(peer, nranks).filter(|(_, r)| *r == rank).collect();
                assert_eq!(callers.len(), 1, "{rank} calls {peer} of {nranks}");
            }
            assert_eq!(
                callers_of(rank, nranks).count() + called_by(rank, nranks).count(),
                sides(rank, nranks).len()
            );
            let most = crate::wire::MAX_CALLED;
            assert!(called_by(rank, nranks).count() <= most);
            for (place, partner) in doubling::partners(rank, nranks).into_iter().enumerate() {
                let side = places(rank, nranks)[place];
                let theirs = doubling::partners(partner, nranks).iter().position(|p| *p == rank);
                let theirs = places(partner, nranks)[theirs.unwrap()];
                assert_eq!(side == NEXT, theirs == PREV, "{rank} and {partner} of {nranks}");
                assert_eq!(side == PREV, theirs == NEXT, "{rank} and {partner} of {nranks}");
            }
        }
    }
    assert!(called_by(0, crate::wire::MAX_RANKS).count() <= crate::wire::MAX_CALLED);
    assert!(called_by(0, crate::wire::MAX_RANKS - 1).count() <= crate::wire::MAX_CALLED);
}
