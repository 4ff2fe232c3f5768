//! What fuzzing gives the handshake, and what must hold: see `fuzz/README.md`. No part of the public interface.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;

use socket2::Socket;

use crate::acceptor::fuzz::{Stranger, Turn};
use crate::connector::fuzz::Greeting;
use crate::error::Rejection;
use crate::key::{Key, Side};
use crate::wire::{
    self, CHALLENGE, CHALLENGE_COVERED, HELLO, HELLO_COVERED, Hello, PROOF, REJECT, SUBJECT_BYTES,
};

/// Any bytes as each of the messages.
pub fn messages(data: &[u8]) {
    if let Ok(hello) = Hello::decode(data) {
        assert_eq!(wire::check_hello(data), Ok(()));
        let again = hello.encode(|_| [0; PROOF]);
        assert_eq!(again[..HELLO_COVERED], data[..HELLO_COVERED], "one hello, one spelling");
    }
    for check in [wire::check_hello, wire::check_answer] {
        // What may begin a message may not have been refused before.
        if check(data).is_ok() {
            assert!((0..data.len()).all(|cut| check(&data[..cut]).is_ok()));
        }
    }
    if let Some(bytes) = data.first_chunk::<REJECT>()
        && let Ok(reason) = wire::decode_reject(bytes)
        && !matches!(reason, Rejection::WrongVersion { .. })
    {
        assert_eq!(wire::reject(reason), *bytes);
    }
}

/// Talks with an acceptor in pieces, as a member that may go astray. The first byte says what is true of what it says, the second
/// how long the pieces are.
///
/// ```text
/// 0   nothing          1   its hello          2   its hello and its proof
/// ```
pub fn acceptor(data: &[u8]) {
    let &[truth, piece, ref data @ ..] = data else { return };
    let (key, piece) = (Key::derive(&[1; 32], "fuzz", &[2; 16]), usize::from(piece % 64) + 1);
    let (ours, mut theirs) = pair();
    let mut stranger = Stranger::new(ours, ADDRESS);
    let (subject, rest) = data.split_at(data.len().min(SUBJECT_BYTES));
    let hello = Hello { subject: wire::fields(&[subject]), nonce: [3; 16] };
    let hello_bytes = hello.encode(|covered| key.seal(covered));
    let said: Vec<u8> = match truth % 3 {
        0 => data.to_vec(),
        _ => [&hello_bytes, rest].concat(),
    };
    let mut turn = Turn::Pending;
    if truth % 3 == 2 {
        theirs.write_all(&hello_bytes).unwrap();
        turn = stranger.step(&key);
        let mut challenge = [0; CHALLENGE];
        theirs.read_exact(&mut challenge).unwrap();
        let (covered, proof) = challenge.split_first_chunk::<CHALLENGE_COVERED>().unwrap();
        assert!(key.proven(Side::Acceptor, &hello_bytes, covered, proof));
        assert!(matches!(turn, Turn::Pending));
        theirs.write_all(&key.prove(Side::Connector, &hello_bytes, covered)).unwrap();
        theirs.write_all(rest).unwrap();
        turn = stranger.step(&key);
        let Turn::Authenticated { subject, mut socket } = turn else { panic!("{turn:?}") };
        assert_eq!(subject, hello.subject);
        // What follows is the caller's.
        let mut unread = vec![0; rest.len()];
        socket.read_exact(&mut unread).unwrap();
        assert_eq!(unread, rest);
        return;
    }
    for piece in said.chunks(piece) {
        if !matches!(turn, Turn::Pending) || theirs.write_all(piece).is_err() {
            break;
        }
        turn = stranger.step(&key);
    }
    assert!(!matches!(turn, Turn::Authenticated { .. }), "nothing has been proven");
    // Whoever says nothing more is waited for, or has been turned away, but is not taken for a member.
    drop(theirs);
    assert!(!matches!(stranger.step(&key), Turn::Authenticated { .. } | Turn::Pending));
}

/// Answers a connector in pieces, as [`acceptor`].
pub fn connector(data: &[u8]) {
    let &[truth, piece, ref data @ ..] = data else { return };
    let (key, piece) = (Key::derive(&[1; 32], "fuzz", &[2; 16]), usize::from(piece % 64) + 1);
    let (ours, mut theirs) = pair();
    let mut greeting = Greeting::new(ours, &key);
    assert!(matches!(greeting.answer(), Ok(false)));
    let mut hello = [0; HELLO];
    theirs.read_exact(&mut hello).unwrap();
    assert!(key.is_sealed(&hello));
    let challenge = wire::challenge(&[4; 16]);
    let proof = key.prove(Side::Acceptor, &hello, &challenge);
    let said: Vec<u8> = match truth % 3 {
        0 => data.to_vec(),
        1 => [&challenge[..], data].concat(),
        _ => [&challenge[..], &proof, data].concat(),
    };
    let mut proven = Ok(false);
    for piece in said.chunks(piece) {
        if !matches!(proven, Ok(false)) || theirs.write_all(piece).is_err() {
            break;
        }
        proven = greeting.answer();
    }
    match proven {
        Ok(true) => assert!(truth % 3 == 2 || data.get(..PROOF) == Some(&proof[..])),
        _ => assert_ne!(truth % 3, 2, "{proven:?}"),
    }
}

const ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)), 1);

/// A socket that never blocks, and its other end.
fn pair() -> (Socket, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    // A caller that waits for what does not come would be found by this.
    theirs.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    (Socket::from(std::os::fd::OwnedFd::from(ours)), theirs)
}

#[cfg(test)]
#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::seeds;

    #[test]
    fn what_fuzzing_begins_with_passes() {
        seeds::replay(&[
            ("handshake_messages", super::messages),
            ("handshake_acceptor", super::acceptor),
            ("handshake_connector", super::connector),
        ]);
    }
}
