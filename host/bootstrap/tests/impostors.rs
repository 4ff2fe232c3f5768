//! Who is at the root's place without being the root, and who is on the way to it.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread;

use ferroccl_bootstrap::{Bootstrap, BootstrapError, Result, UniqueId};
use sha2::{Digest, Sha256};
use support::{loopback, settings, until};

/// Bytes of the handshake in each direction: a hello and a proof, a challenge.
const FROM_RANK: usize = 72 + 32;
const FROM_ROOT: usize = 64;

/// What strangers answer a rank: they hang up, speak another protocol, and reject it for each reason, two of which another
/// version of the library would give.
fn answers() -> Vec<Vec<u8>> {
    let reject =
        |version: u8, reason: u8| [&b"FerroHsR"[..], &[version, 0, 0, 0, reason, 0, 0, 0]].concat();
    let mut answers = vec![Vec::new(), b"220 mail ready\r\n".to_vec(), reject(2, 2), reject(9, 2)];
    answers.extend((1..=5).map(|reason| reject(3, reason)));
    answers.push([&b"FerroHsA\x03\0\0\0\0\0\0\0"[..], &[7; 48]].concat());
    answers
}

#[test]
fn a_stranger_at_the_roots_place_does_not_end_the_wait_for_the_root() {
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    stranger.set_nonblocking(true).unwrap();
    let id = UniqueId::rendezvous(stranger.local_addr().unwrap(), 1, b"impostors");
    thread::scope(|scope| {
        let one = scope.spawn(|| Bootstrap::connect(&id, 1, 2, &settings(60.0))?.barrier());
        for answer in answers() {
            let mut rank = None;
            until(|| {
                assert!(!one.is_finished(), "it has given up");
                rank = stranger.accept().ok();
                rank.is_some()
            });
            let mut rank = rank.unwrap().0;
            rank.set_nonblocking(false).unwrap();
            rank.read_exact(&mut [0; 72]).unwrap();
            rank.write_all(&answer).unwrap();
            let _ = rank.shutdown(Shutdown::Write);
            // Until it has read that.
            let _ = rank.read_to_end(&mut Vec::new());
        }
        drop(stranger);
        Bootstrap::connect(&id, 0, 2, &settings(60.0)).unwrap().barrier().unwrap();
        one.join().unwrap().unwrap();
    });
}

#[test]
fn who_stays_at_the_roots_place_is_the_error() {
    for (answer, why) in [
        (&b"FerroHsR\x03\0\0\0\x03\0\0\0"[..], "does not know the secret of this unique id"),
        (b"FerroHsC\x02\0\0\0", "speaks another protocol"),
        (b"FerroHsR\x02\0\0\0\x02\0\0\0", "it is of version 2 of the handshake, we of 3"),
    ] {
        let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
        let id = UniqueId::rendezvous(stranger.local_addr().unwrap(), 1, b"impostors");
        thread::spawn(move || {
            for rank in stranger.incoming() {
                let mut rank = rank.unwrap();
                let _ = rank.read_exact(&mut [0; 72]);
                let _ = rank.write_all(answer);
            }
        });
        let error = Bootstrap::connect(&id, 1, 2, &settings(5.0)).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

/// The same id with another port: that of somebody between the ranks and the root.
fn by_way_of(id: &UniqueId, port: u16) -> UniqueId {
    let mut bytes = id.to_bytes();
    bytes[12..14].copy_from_slice(&port.to_le_bytes());
    let sum = Sha256::digest(&bytes[..120]);
    bytes[120..].copy_from_slice(&sum[..8]);
    UniqueId::from_bytes(&bytes).unwrap()
}

/// Passes on what comes, but for one byte.
fn carry(mut from: TcpStream, mut to: TcpStream, change: Option<usize>) {
    let mut at = 0;
    let mut bytes = [0; 512];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        for byte in &mut bytes[..count] {
            *byte ^= u8::from(change == Some(at));
            at += 1;
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Somebody on the way to `root`: changes these bytes of what each rank in turn says, and of what the root says to it.
fn on_the_way(root: SocketAddr, changes: Vec<[Option<usize>; 2]>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for (rank, [says, hears]) in
            listener.incoming().zip(changes.into_iter().chain(std::iter::repeat([None; 2])))
        {
            let Ok(root) = TcpStream::connect(root) else { return };
            let rank = rank.unwrap();
            let back = (root.try_clone().unwrap(), rank.try_clone().unwrap());
            thread::spawn(move || carry(rank, root, says));
            thread::spawn(move || carry(back.0, back.1, hears));
        }
    });
    port
}

fn meet(one: &UniqueId, two: &UniqueId) -> [Result<()>; 2] {
    thread::scope(|scope| {
        let (tell, hear) = channel();
        let ranks = [(0, *one), (1, *two)].map(|(rank, id)| {
            let tell = tell.clone();
            scope.spawn(move || {
                let result =
                    Bootstrap::connect(&id, rank, 2, &settings(3.0)).and_then(|me| me.barrier());
                let _ = tell.send(());
                result
            })
        });
        for _ in 0..2 {
            hear.recv().unwrap();
        }
        ranks.map(|rank| rank.join().unwrap())
    })
}

#[test]
fn who_a_rank_says_to_be_cannot_be_changed_on_the_way() {
    let id = loopback();
    // Behind the handshake is the header of 12 bytes, then the rank: 1 becomes 0. The second attempt is let through.
    let port = on_the_way(id.address(), vec![[Some(FROM_RANK + 12), None]]);
    let results = meet(&id, &by_way_of(&id, port));
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

#[test]
fn where_a_rank_is_sent_cannot_be_changed_on_the_way() {
    // The session, the number of addresses, and the port of the next rank.
    for at in [12, 12 + 16, 12 + 16 + 1 + 1] {
        let id = loopback();
        let port = on_the_way(id.address(), vec![[None, Some(FROM_ROOT + at)]]);
        let [_, two] = meet(&id, &by_way_of(&id, port));
        // It does not go there. The root, which has done its work, is over when the rank comes again.
        assert!(matches!(two, Err(BootstrapError::NoRoot { .. })), "{two:?}");
    }
}
