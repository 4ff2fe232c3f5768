//! The handshake between ends that know the secret, and with strangers, liars and recordings, over sockets of this machine.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use ferroccl_handshake::wire::{CHALLENGE, HELLO, PROOF, REJECT};
use ferroccl_handshake::{
    Acceptor, AuthError, Authenticated, Connected, Connector, Event, Key, Rejection, stream,
};

const SUBJECT: [u8; 12] = *b"which one it";

fn key(secret: u8) -> Key {
    Key::derive(&[secret; 32], "test", &[0; 16])
}

fn acceptor(timeout: Duration) -> (Acceptor, SocketAddr) {
    let any = ([127, 0, 0, 1], 0).into();
    let listener = stream::new(&any).unwrap();
    listener.bind(&any.into()).unwrap();
    listener.listen(4096).unwrap(); // more than the flood
    let acceptor = Acceptor::new(listener, key(1), timeout);
    let address = acceptor.local_addr().unwrap();
    (acceptor, address)
}

/// A minute is for ever.
fn until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "it hangs");
        thread::yield_now();
    }
}

/// Both ends, of a connector that gets through. Who is refused meanwhile is counted.
fn meet(acceptor: &mut Acceptor, address: SocketAddr) -> (Connected, Authenticated, usize) {
    let mut connector = Connector::new(address, None, SUBJECT, &key(1)).unwrap();
    let (mut ours, mut theirs, mut refused) = (None, None, 0);
    until(|| {
        ours = ours.take().or_else(|| connector.step().unwrap());
        match acceptor.poll().unwrap() {
            Some(Event::Authenticated(one)) => theirs = Some(one),
            Some(Event::Refused { .. }) => refused += 1,
            None => {}
        }
        (ours.is_some() && theirs.is_some()).then_some(())
    });
    (ours.unwrap(), theirs.unwrap(), refused)
}

fn refusal(acceptor: &mut Acceptor) -> AuthError {
    until(|| match acceptor.poll().unwrap()? {
        Event::Refused { error, .. } => Some(error),
        Event::Authenticated(one) => panic!("{one:?}"),
    })
}

/// What a stranger hears until the acceptor hangs up.
fn heard(acceptor: &mut Acceptor, mut stranger: TcpStream) -> Vec<u8> {
    stranger.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let mut heard = Vec::new();
    until(|| {
        while acceptor.poll().unwrap().is_some() {}
        stranger.read_to_end(&mut heard).ok()
    });
    heard
}

fn reject(code: u8) -> Vec<u8> {
    [&b"FerroHsR\x03\0\0\0"[..], &[code, 0, 0, 0]].concat()
}

/// The hello and the proof of a handshake that succeeds, as somebody on the way sees them.
fn recording(acceptor: &mut Acceptor, address: SocketAddr) -> Vec<u8> {
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut connector =
        Connector::new(relay.local_addr().unwrap(), None, SUBJECT, &key(1)).unwrap();
    assert!(connector.step().unwrap().is_none());
    let (mut near, mut far) = (relay.accept().unwrap().0, TcpStream::connect(address).unwrap());
    near.set_nonblocking(true).unwrap();
    far.set_nonblocking(true).unwrap();
    let mut said = Vec::new();
    until(|| {
        let mut bytes = [0; 256];
        let _ = connector.step().unwrap();
        if let Ok(n @ 1..) = near.read(&mut bytes) {
            said.extend_from_slice(&bytes[..n]);
            far.write_all(&bytes[..n]).unwrap();
        }
        if let Ok(n @ 1..) = far.read(&mut bytes) {
            near.write_all(&bytes[..n]).unwrap();
        }
        acceptor.poll().unwrap()
    });
    assert_eq!(said.len(), HELLO + PROOF);
    said
}

#[test]
fn ends_that_know_the_secret_meet() {
    let (mut acceptor, address) = acceptor(Duration::from_secs(30));
    let (ours, theirs, refused) = meet(&mut acceptor, address);
    assert_eq!((theirs.subject, refused), (SUBJECT, 0));
    assert_eq!(theirs.peer, ours.socket.local_addr().unwrap().as_socket().unwrap());
    // What follows the handshake is the callers', in both directions.
    let (mut sent, mut came) = (ours.session, theirs.session);
    let (mut ours, mut theirs) = (TcpStream::from(ours.socket), TcpStream::from(theirs.socket));
    ours.set_nonblocking(false).unwrap();
    theirs.set_nonblocking(false).unwrap();
    let mut bytes = [0; 5];
    ours.write_all(b"first").unwrap();
    theirs.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"first");
    theirs.write_all(b"other").unwrap();
    ours.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"other");
    // They have the same keys, in opposite order.
    assert!(came.theirs.accept(b"first", &sent.ours.seal(b"first")));
    assert!(sent.theirs.accept(b"other", &came.ours.seal(b"other")));
}

#[test]
fn another_key_is_rejected() {
    let (mut acceptor, address) = acceptor(Duration::from_secs(30));
    let others = [
        key(2),
        Key::derive(&[1; 32], "another purpose", &[0; 16]),
        Key::derive(&[1; 32], "test", &[1; 16]),
    ];
    for other in others {
        let mut connector = Connector::new(address, None, SUBJECT, &other).unwrap();
        let mut refused = None;
        let error = until(|| {
            if let Some(event) = acceptor.poll().unwrap() {
                refused = Some(event);
            }
            connector.step().err()
        });
        assert!(matches!(error, AuthError::Rejected(Rejection::WrongSecret)), "{error:?}");
        assert!(matches!(refused, Some(Event::Refused { error: AuthError::WrongSecret, .. })));
    }
}

#[test]
fn a_recording_and_a_reflection_prove_nothing() {
    let (mut acceptor, address) = acceptor(Duration::from_secs(30));
    let said = recording(&mut acceptor, address);
    let mut again = TcpStream::connect(address).unwrap();
    again.write_all(&said).unwrap();
    let error = refusal(&mut acceptor);
    assert!(matches!(error, AuthError::WrongSecret), "{error:?}");
    // A recorded hello gets a challenge; the acceptor's own proof does not answer it.
    let mut again = TcpStream::connect(address).unwrap();
    again.write_all(&said[..HELLO]).unwrap();
    again.set_nonblocking(true).unwrap();
    let mut challenge = [0; CHALLENGE];
    until(|| {
        assert!(acceptor.poll().unwrap().is_none());
        again.peek(&mut challenge).ok().filter(|&n| n == CHALLENGE)
    });
    again.write_all(&challenge[CHALLENGE - PROOF..]).unwrap();
    let error = refusal(&mut acceptor);
    assert!(matches!(error, AuthError::WrongSecret), "{error:?}");
    // Nor does anything serve as the acceptor's to a connector: not its own hello, nor a recorded challenge.
    for answer in [said[..CHALLENGE].to_vec(), challenge.to_vec()] {
        let trap = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = trap.local_addr().unwrap();
        let mut connector = Connector::new(to, None, SUBJECT, &key(1)).unwrap();
        assert!(connector.step().unwrap().is_none());
        trap.accept().unwrap().0.write_all(&answer).unwrap();
        let error = until(|| connector.step().err());
        assert!(matches!(error, AuthError::WrongSecret | AuthError::Malformed(_)), "{error:?}");
    }
}

#[test]
fn strangers_are_told_why() {
    let (mut acceptor, address) = acceptor(Duration::from_millis(200));
    let hello = |seal: u8| [&b"FerroHsC\x03\0\0\0"[..], &[seal; 60]].concat();
    for (said, code) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), 1),
        (vec![0xff; 100_000], 1),
        (b"x".to_vec(), 1),
        (b"FerroHsC\x07\0\0\0".to_vec(), 2),
        (hello(7), 3),
        (hello(7)[..HELLO - 1].to_vec(), 4),
        (Vec::new(), 4),
    ] {
        let stranger = TcpStream::connect(address).unwrap();
        let speaker = stranger.try_clone().unwrap();
        let writer = thread::spawn(move || {
            let _ = (&speaker).write_all(&said);
        });
        until(|| {
            while acceptor.poll().unwrap().is_some() {}
            writer.is_finished().then_some(())
        });
        assert_eq!(heard(&mut acceptor, stranger), reject(code));
    }
    // Who hangs up is refused, and forgotten.
    drop(TcpStream::connect(address).unwrap());
    assert!(matches!(refusal(&mut acceptor), AuthError::Io(_)));
    assert_eq!(acceptor.interests().count(), 1, "only the listener is left");
    meet(&mut acceptor, address);
}

#[test]
fn a_flood_keeps_nobody_out() {
    let (mut acceptor, address) = acceptor(Duration::from_secs(300));
    let flood: Vec<_> = (0..600).map(|_| TcpStream::connect(address).unwrap()).collect();
    let (_, _, refused) = meet(&mut acceptor, address);
    assert!(refused > 0, "some made room");
    // A sealed hello is worth more than silence: it keeps its place, though it may be a recording.
    let said = recording(&mut acceptor, address);
    let mut sealed = TcpStream::connect(address).unwrap();
    sealed.write_all(&said[..HELLO]).unwrap();
    sealed.set_nonblocking(true).unwrap();
    let more: Vec<_> = (0..600).map(|_| TcpStream::connect(address).unwrap()).collect();
    meet(&mut acceptor, address);
    let mut bytes = [0; CHALLENGE + REJECT];
    until(|| {
        let _ = acceptor.poll().unwrap();
        sealed.peek(&mut bytes).ok().filter(|&n| n >= CHALLENGE)
    });
    assert_eq!(sealed.peek(&mut bytes).unwrap(), CHALLENGE, "it is not turned away");
    drop((flood, more));
}

/// More peers than the process may have files: it takes more, as far as it may, and says what is wrong where it may not.
#[test]
fn a_process_without_files_takes_more_or_says_so() {
    const PEERS: usize = 40;
    let variable = "FERROCCL_TEST_PEERS";
    if let Ok(address) = std::env::var(variable) {
        return knock(address.parse().unwrap(), PEERS);
    }
    let name = "a_process_without_files_takes_more_or_says_so";
    let limited = std::env::var("FERROCCL_TEST_FILES");
    let Ok(hard) = limited else {
        // Limits are a process's: each trial has one of its own.
        for hard in ["more", "no more"] {
            let out = again(name).env("FERROCCL_TEST_FILES", hard).output().unwrap();
            let text = String::from_utf8_lossy(&out.stdout);
            assert!(out.status.success(), "{hard}: {text}{}", String::from_utf8_lossy(&out.stderr));
        }
        return;
    };
    let (mut acceptor, address) = acceptor(Duration::from_secs(30));
    let mut child = again(name).env(variable, address.to_string()).spawn().unwrap();
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both read or write a structure that is there.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 + 5;
        if hard == "no more" {
            limit.rlim_max = limit.rlim_cur;
        }
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
    let (mut members, mut refused) = (Vec::new(), 0);
    until(|| {
        match acceptor.poll().unwrap() {
            Some(Event::Authenticated(one)) => members.push(one),
            Some(Event::Refused { error: AuthError::OutOfFiles, .. }) => refused += 1,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        let full = hard == "no more" && refused > 0;
        (members.len() == PEERS || full).then_some(())
    });
    assert_eq!(members.len() == PEERS, hard == "more", "{} members", members.len());
    child.kill().unwrap();
    child.wait().unwrap();
}

fn again(test: &str) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]);
    command
}

/// Comes so many times, and stays until the acceptor goes.
fn knock(address: SocketAddr, peers: usize) {
    let mut connectors: Vec<_> =
        (0..peers).map(|_| Connector::new(address, None, SUBJECT, &key(1)).unwrap()).collect();
    let mut connected = Vec::new();
    let since = Instant::now();
    while !connectors.is_empty() && since.elapsed() < Duration::from_secs(20) {
        connectors.retain_mut(|connector| match connector.step() {
            Ok(Some(one)) => {
                connected.push(one);
                false
            }
            Ok(None) => true,
            Err(_) => false,
        });
        thread::sleep(Duration::from_millis(1));
    }
}
