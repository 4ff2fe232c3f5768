//! What a neighbour may say that makes no sense.

use std::sync::mpsc::channel;

use super::super::link::tests::ends;
use super::*;

/// Rank 0 of 3 hears `message` from the rank before it: what it makes of that, and whether it takes it for news.
fn heard(message: &Message) -> (Departure, bool) {
    let ((next, rank_1), (prev, mut rank_2)) = (ends(), ends());
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let key = Key::derive(&[1; 32], "test", &[0; 16]);
    let (gone, departures) = channel();
    let (told, news) = channel();
    let _watch = Watch::start(
        Links::of_links(0, 3, [next, prev]),
        address,
        key,
        None,
        move |departure| gone.send(departure).unwrap_or_default(),
        move |rank, _| told.send(rank).unwrap_or_default(),
    )
    .unwrap();
    rank_2.send(message, &Deadline::within(Duration::from_secs(30))).unwrap();
    // What the watch has not given up for this message, it loses by this.
    drop(rank_2);
    let departure = departures.recv_timeout(Duration::from_secs(30)).unwrap();
    // The watch, which is dropped next, would wait for it to hang up.
    drop(rank_1);
    (departure, news.try_recv().is_ok())
}

fn data(tag: u64, words: &[u32]) -> Message {
    Message::Data { tag, bytes: words.iter().flat_map(|word| word.to_le_bytes()).collect() }
}

#[test]
fn a_neighbour_that_talks_of_ranks_that_nobody_has_is_lost() {
    for message in [
        data(NEWS, &[3]),
        data(NEWS, &[u32::MAX, 7]),
        data(NEWS, &[]),
        data(STATUS, &[3]),
        data(STATUS, &[0]),
        data(GATHER, &[]),
        data(GATHER, &[0]),
        data(GATHER, &[1, 0]),
        data(GATHER, &[0, 4097]),
        data(GATHER, &[0, 0, 0]),
        data(WAITING, &[0]),
        data(WAITING, &[0, 3]),
        data(WAITING, &[0, 0]),
        data(WAITING, &[0, 1, 1]),
        data(BEAT, &[1]),
        data(7, &[1]),
        Message::Gone { peer: u32::MAX, reason: "it is no more".to_owned() },
        Message::Left { peers: vec![3] },
        Message::Left { peers: vec![1, 3] },
    ] {
        let expected = lost(2, "it sent what has no place here");
        assert_eq!(heard(&message), (expected, false), "{message:?}");
    }
    let end = lost(2, "its connection closed without a goodbye: its process has ended");
    assert_eq!(heard(&data(NEWS, &[1])), (end.clone(), true));
    assert_eq!(heard(&data(STATUS, &[1])), (end.clone(), true));
    assert_eq!(heard(&data(WAITING, &[0, 1])), (end.clone(), false));
    assert_eq!(heard(&data(GATHER, &[0, 0])), (end.clone(), false));
    assert_eq!(heard(&data(BEAT, &[])), (end, false));
    let left = Message::Left { peers: vec![1, 2, 1] };
    assert_eq!(heard(&left), (Departure::Left { peer: 1 }, false));
}

/// A neighbour that is done with set-up may go on at once, and what it says be read along with the end of that.
#[test]
fn what_was_read_during_set_up_is_heard() {
    let ((next, rank_1), (mut prev, mut rank_2)) = (ends(), ends());
    let soon = Deadline::within(Duration::from_secs(30));
    let both = [rank_2.seal(&data(7, &[])), rank_2.seal(&data(NEWS, &[2, 1]))].concat();
    rank_2.write_all(&both, &soon).unwrap();
    prev.read(&soon).unwrap();
    let (told, news) = channel();
    let links = Links::of_links(0, 3, [next, prev]);
    let key = Key::derive(&[1; 32], "test", &[0; 16]);
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let on_news = move |rank, _: News<'_>| told.send(rank).unwrap_or_default();
    let watch = Watch::start(links, address, key, None, |_| (), on_news).unwrap();
    assert_eq!(news.recv_timeout(Duration::from_secs(30)), Ok(2));
    drop((rank_1, rank_2));
    drop(watch);
}

/// A goodbye may be lost on the way, and what a neighbour sends to a connection that is closed resets it: nobody would send the
/// goodbye again.
#[test]
fn who_leaves_stays_until_the_goodbye_is_heard() {
    let ((next, mut rank_1), (prev, mut rank_2)) = (ends(), ends());
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let key = Key::derive(&[1; 32], "test", &[0; 16]);
    let links = Links::of_links(0, 3, [next, prev]);
    let watch = Watch::start(links, address, key, None, |_| (), |_, _| ()).unwrap();
    let leaving = std::thread::spawn(move || drop(watch));
    let within = |ms| Deadline::within(Duration::from_millis(ms));
    for rank in [&mut rank_1, &mut rank_2] {
        let goodbye = rank.read(&within(30_000)).unwrap();
        assert!(matches!(goodbye.message(), Ok(Message::Goodbye)));
        // As a neighbour does that has not heard it yet.
        rank.send(&data(BEAT, &[]), &within(30_000)).unwrap();
    }
    let open = rank_2.read(&within(50)).unwrap_err();
    assert!(matches!(open, LinkError::Timeout), "{open}");
    drop((rank_1, rank_2));
    leaving.join().unwrap();
}
