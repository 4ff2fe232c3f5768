//! What somebody on the way may do to the messages of a connection.

use std::net::TcpListener;

use ferroccl_handshake::{Acceptor, Event};

use super::*;

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(30))
}

/// Two ends of a connection.
pub(crate) fn ends() -> (Link, Link) {
    let key = Key::derive(&[1; 32], "test", &[0; 16]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let mut acceptor = Acceptor::new(listener.into(), key.clone(), Duration::from_secs(30));
    let accept = std::thread::spawn(move || {
        let deadline = soon();
        loop {
            if let Some(Event::Authenticated(one)) = acceptor.poll().unwrap() {
                break Link::new(one.socket.into(), one.peer, one.session, Phase::Open).unwrap();
            }
            assert!(!deadline.is_over());
        }
    });
    let mut ours = Link::connect(address, &key, &soon()).unwrap();
    ours.open();
    (ours, accept.join().unwrap())
}

fn data(byte: u8) -> Message {
    Message::Data { tag: 7, bytes: vec![byte; 20] }
}

/// What `to` makes of bytes on the connection from `from`.
fn heard(from: &mut Link, to: &mut Link, bytes: &[u8]) -> Result<Message, LinkError> {
    from.write_all(bytes, &soon()).unwrap();
    to.read(&soon()).map(|frame| frame.message().unwrap())
}

fn is_forged(result: &Result<Message, LinkError>) -> bool {
    matches!(result, Err(LinkError::Forged))
}

#[test]
fn a_message_counts_once_in_its_place() {
    let (mut a, mut b) = ends();
    let [one, two] = [1, 2].map(|byte| a.seal(&data(byte)));
    assert_eq!(heard(&mut a, &mut b, &one).unwrap(), data(1));
    assert!(is_forged(&heard(&mut a, &mut b, &one)), "repeated");

    let (mut a, mut b) = ends();
    let (_, second) = (a.seal(&data(1)), a.seal(&data(2)));
    assert!(is_forged(&heard(&mut a, &mut b, &second)), "the first one is left out");
    assert!(is_forged(&heard(&mut a, &mut b, &two)), "of another connection");
}

#[test]
fn a_message_does_not_come_back_to_its_sender() {
    let (mut a, mut b) = ends();
    let ours = a.seal(&data(1));
    assert!(is_forged(&heard(&mut b, &mut a, &ours)));
}

#[test]
fn a_changed_message_is_none() {
    let frame = ends().0.seal(&data(1)).len();
    for at in 0..frame {
        let (mut a, mut b) = ends();
        let mut bytes = a.seal(&data(1));
        bytes[at] ^= 1;
        // What the header says wrongly is noticed before the seal, or is a longer message that does not come.
        match heard_within(&mut a, &mut b, &bytes) {
            Err(LinkError::Forged) => assert!(at >= 5, "byte {at}"),
            Err(LinkError::Malformed(_)) => assert!(at < 12, "byte {at}"),
            Err(LinkError::Timeout) => assert!((8..12).contains(&at), "byte {at}"),
            other => panic!("byte {at}: {other:?}"),
        }
    }
}

/// [`heard`], for a message that may never be whole.
fn heard_within(from: &mut Link, to: &mut Link, bytes: &[u8]) -> Result<Message, LinkError> {
    from.write_all(bytes, &soon()).unwrap();
    let deadline = Deadline::within(Duration::from_millis(100));
    to.read(&deadline).map(|frame| frame.message().unwrap())
}
