//! Who is no rank of ours: the socket network refuses them, says so, and goes on.
//!
//! The bytes here are those of `ferroccl_handshake::wire`: each first message begins with 8 bytes of magic and 4 of the version.
//! A handle (`net::handshake::handle`) has its port at 14.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use ferroccl_proxy::net::socket::{SocketConfig, SocketNet};
use ferroccl_proxy::net::{Listener, Net};
use tracing::Level;

use crate::free_port::free_port;
use crate::socket::{V4, config, net};
use crate::support::{Random, address, connect, exchange, log_until, meet, until, with_log};

/// The handle with another port.
fn with_port(handle: &[u8], port: u16) -> Vec<u8> {
    let mut handle = handle.to_vec();
    handle[14..16].copy_from_slice(&port.to_le_bytes());
    handle
}

fn patient(patience: Duration) -> Arc<dyn Net> {
    let config = SocketConfig { connect_timeout: patience, ..config(&[V4], 0, 1) };
    Arc::new(SocketNet::new(config).unwrap())
}

/// The listener takes ours.
fn still_works(net: &Arc<dyn Net>, listener: &mut Box<dyn Listener>) {
    let mut connecting = net.connect(0, listener.handle()).unwrap();
    exchange(&mut meet(listener, &mut connecting).unwrap(), b"one of us", 9, [0, 0]);
}

#[test]
fn garbage_is_refused_and_logged() {
    let mut seed = Random::new("garbage_is_refused_and_logged");
    let net = net(&[V4], 0, 1);
    let mut listener = net.listen(0).unwrap();
    for said in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 4096], b"FerroHsC"] {
        let mut stranger = TcpStream::connect(address(listener.handle())).unwrap();
        stranger.write_all(said).unwrap();
        stranger.shutdown(Shutdown::Write).unwrap();
        let here = stranger.local_addr().unwrap();
        let log = log_until(&mut listener, "refused");
        assert!(log.contains(&format!("refused {here}: it ")), "{log}");
        still_works(&net, &mut listener);
    }
    // A good beginning, and anything behind it.
    for _ in 0..30 {
        // One listener would soon count refusals instead of logging them.
        let mut listener = net.listen(0).unwrap();
        let mut stranger = TcpStream::connect(address(listener.handle())).unwrap();
        let mut said = vec![0; seed.below(200)];
        seed.fill(&mut said);
        stranger.write_all(b"FerroHsC\x03\0\0\0").unwrap();
        let _ = stranger.write_all(&said);
        let _ = stranger.shutdown(Shutdown::Write);
        log_until(&mut listener, "refused");
    }
    still_works(&net, &mut listener);
}

#[test]
fn silence_holds_nobody_up() {
    let net = net(&[V4], 0, 1);
    let mut listener = net.listen(0).unwrap();
    // More than are greeted at a time.
    let silent: Vec<_> =
        (0..400).map(|_| TcpStream::connect(address(listener.handle())).unwrap()).collect();
    still_works(&net, &mut listener);
    // Nor do they if they say hello, and no more.
    for mut stranger in &silent {
        let _ = stranger.write_all(b"FerroHsC\x03\0\0\0\0\0\x02\0");
        let _ = stranger.write_all(&[7; 56]);
    }
    let more: Vec<_> = (0..400)
        .map(|_| {
            let mut stranger = TcpStream::connect(address(listener.handle())).unwrap();
            stranger.write_all(b"FerroHsC\x03\0\0\0\0\0\x02\0").unwrap();
            stranger.write_all(&[7; 56]).unwrap();
            stranger
        })
        .collect();
    still_works(&net, &mut listener);
    drop((silent, more));
}

#[test]
fn silence_is_refused_in_the_end() {
    let net = patient(Duration::from_millis(100));
    let mut listener = net.listen(0).unwrap();
    let mut silent = TcpStream::connect(address(listener.handle())).unwrap();
    let log = log_until(&mut listener, "refused");
    assert!(log.contains("it did not prove itself in 100ms"), "{log}");
    let mut told = Vec::new();
    silent.read_to_end(&mut told).unwrap();
    assert_eq!(told, b"FerroHsR\x03\0\0\0\x04\0\0\0", "it is told why, and closed");
}

#[test]
fn another_secret_is_refused_by_both() {
    let net = net(&[V4], 0, 1);
    let mut listener = net.listen(0).unwrap();
    let other = SocketConfig { secret: [41; 32], ..config(&[V4], 0, 1) };
    let other: Arc<dyn Net> = Arc::new(SocketNet::new(other).unwrap());
    let mut connecting = other.connect(0, listener.handle()).unwrap();
    let (error, log) = with_log(Level::WARN, || {
        until(|| {
            assert!(listener.accept().unwrap().is_none());
            connecting.poll().err()
        })
    });
    let at = address(listener.handle());
    let wanted = format!("Socket: connect: to {at}: it turned us away: its secret is not ours");
    assert_eq!(error.to_string(), wanted);
    assert!(log.contains("it does not know the secret"), "{log}");
    still_works(&net, &mut listener);

    // A stranger gets nothing that was computed with the key: no challenge, no proof.
    let mut stranger = TcpStream::connect(address(listener.handle())).unwrap();
    stranger.write_all(b"FerroHsC\x03\0\0\0\0\0\x02\0").unwrap();
    stranger.write_all(&[7; 56]).unwrap();
    let log = log_until(&mut listener, "refused");
    assert!(log.contains("it does not know the secret"), "{log}");
    assert_eq!(heard_until_the_end(&mut listener, stranger), b"FerroHsR\x03\0\0\0\x03\0\0\0");
    still_works(&net, &mut listener);
}

/// All that a listener says on a connection, until it closes it.
fn heard_until_the_end(listener: &mut Box<dyn Listener>, mut stranger: TcpStream) -> Vec<u8> {
    stranger.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let mut heard = Vec::new();
    until(|| {
        listener.accept().unwrap();
        stranger.read_to_end(&mut heard).ok()
    });
    heard
}

/// A listener that does not know the secret, and one that has no room.
#[test]
fn a_listener_has_to_prove_itself_too() {
    let net = patient(Duration::from_secs(20));
    let theirs = TcpListener::bind("127.0.0.1:0").unwrap();
    let handle = with_port(net.listen(0).unwrap().handle(), theirs.local_addr().unwrap().port());
    let mut connecting = net.connect(0, &handle).unwrap();
    assert!(connecting.poll().unwrap().is_none());
    let (mut busy, _) = theirs.accept().unwrap();
    busy.write_all(b"FerroHsR\x03\0\0\0\x05\0\0\0").unwrap();
    // It tries again, with each of its two sockets.
    theirs.set_nonblocking(true).unwrap();
    let mut ends = Vec::new();
    let error = until(|| {
        if let Ok((mut end, _)) = theirs.accept() {
            end.write_all(b"FerroHsA\x03\0\0\0\0\0\0\0").unwrap();
            end.write_all(&[9; 48]).unwrap();
            ends.push(end);
        }
        connecting.poll().err()
    });
    assert!(error.to_string().ends_with("it does not know the secret"), "{error}");
}

#[test]
fn another_version_is_told_ours() {
    let net = net(&[V4], 0, 1);
    let mut listener = net.listen(0).unwrap();
    let mut handle = listener.handle().to_vec();
    handle[8..12].copy_from_slice(&7u32.to_le_bytes());
    let error = net.connect(0, &handle).map(|_| ()).unwrap_err().to_string();
    assert_eq!(error, "Socket: connect: a handle that is of version 7 of the handshake, we of 3");

    // At the listener.
    let mut other = TcpStream::connect(address(listener.handle())).unwrap();
    other.write_all(b"FerroHsC\x09\0\0\0 and whatever version 9 says").unwrap();
    let log = log_until(&mut listener, "refused");
    assert!(log.contains("it is of version 9 of the handshake, we of 3"), "{log}");
    let said = heard_until_the_end(&mut listener, other);
    assert_eq!(said, b"FerroHsR\x03\0\0\0\x02\0\0\0");
    still_works(&net, &mut listener);

    // And at the end that connects.
    let theirs = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = theirs.local_addr().unwrap().port();
    let mut connecting = net.connect(0, &with_port(listener.handle(), port)).unwrap();
    assert!(connecting.poll().unwrap().is_none());
    let (mut end, _) = theirs.accept().unwrap();
    end.write_all(b"FerroHsA\x05\0\0\0").unwrap();
    let error = until(|| connecting.poll().err()).to_string();
    assert!(error.ends_with("it is of version 5 of the handshake, we of 3"), "{error}");
}

#[test]
fn nobody_there_is_tried_again() {
    let port = free_port();
    let net = patient(Duration::from_millis(300));
    let handle = with_port(net.listen(0).unwrap().handle(), port);
    let mut connecting = net.connect(0, &handle).unwrap();
    let error = until(|| connecting.poll().err()).to_string();
    let wanted = format!(
        "Socket: connect: to 127.0.0.1:{port}: nobody listens there, or has room for us, for 300ms"
    );
    assert_eq!(error, wanted);

    // Somebody who comes late, and is no listener of ours.
    let mut connecting = patient(Duration::from_secs(20)).connect(0, &handle).unwrap();
    for _ in 0..20 {
        assert!(connecting.poll().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(2));
    }
    // An attempt that met nobody may have called from that port, and hold it for a moment.
    let late = until(|| TcpListener::bind(("127.0.0.1", port)).ok());
    late.set_nonblocking(true).unwrap();
    let mut ends = Vec::new();
    let error = until(|| {
        if let Ok((mut end, _)) = late.accept() {
            end.write_all(b"220 mail.example ESMTP\r\n").unwrap();
            ends.push(end);
        }
        connecting.poll().err()
    });
    assert!(error.to_string().ends_with("it speaks another protocol"), "{error}");

    // Who takes the connection and says nothing.
    let mut connecting = patient(Duration::from_millis(100)).connect(0, &handle).unwrap();
    let error = until(|| connecting.poll().err());
    assert!(error.to_string().ends_with("it does not greet us, for 100ms"), "{error}");
}

/// A greeting that is recorded in the midst proves nothing a second time, to the same listener.
#[test]
fn a_recording_proves_nothing() {
    let net = net(&[V4], 0, 1);
    let mut listener = net.listen(0).unwrap();
    let to = address(listener.handle());
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    relay.set_nonblocking(true).unwrap();
    let handle = with_port(listener.handle(), relay.local_addr().unwrap().port());
    let mut connecting = net.connect(0, &handle).unwrap();
    let (mut send, mut recv, mut pairs, mut said) = (None, None, Vec::new(), Vec::new());
    until(|| {
        if let Ok((near, _)) = relay.accept() {
            let far = TcpStream::connect(to).unwrap();
            near.set_nonblocking(true).unwrap();
            far.set_nonblocking(true).unwrap();
            pairs.push((near, far));
            said.push(Vec::new());
        }
        for ((near, far), said) in pairs.iter_mut().zip(&mut said) {
            let mut bytes = [0; 4096];
            if let Ok(n @ 1..) = near.read(&mut bytes) {
                said.extend_from_slice(&bytes[..n]);
                far.write_all(&bytes[..n]).unwrap();
            }
            if let Ok(n @ 1..) = far.read(&mut bytes) {
                near.write_all(&bytes[..n]).unwrap();
            }
        }
        send = if send.is_none() { connecting.poll().unwrap() } else { send.take() };
        recv = if recv.is_none() { listener.accept().unwrap() } else { recv.take() };
        (send.is_some() && recv.is_some()).then_some(())
    });
    assert_eq!(said.iter().map(Vec::len).collect::<Vec<_>>(), [104, 104], "hello and proof");
    for said in said {
        let mut again = TcpStream::connect(to).unwrap();
        again.write_all(&said).unwrap();
        let log = log_until(&mut listener, "refused");
        assert!(log.contains("it does not know the secret"), "{log}");
        // A recorded hello gets a challenge, and the listener's own proof answers it as little.
        let mut again = TcpStream::connect(to).unwrap();
        again.write_all(&said[..72]).unwrap();
        again.set_nonblocking(true).unwrap();
        let mut challenge = [0; 64];
        until(|| {
            listener.accept().unwrap();
            again.peek(&mut challenge).ok().filter(|&n| n == 64)
        });
        again.write_all(&challenge[32..]).unwrap();
        let log = log_until(&mut listener, "refused");
        assert!(log.contains("it does not know the secret"), "{log}");
    }
    still_works(&net, &mut listener);
}

/// What is said to a listener that is gone.
#[test]
fn a_dropped_listener_takes_nobody() {
    let net = patient(Duration::from_millis(200));
    let mut listener = net.listen(0).unwrap();
    let mut ends = {
        let mut connecting = net.connect(0, listener.handle()).unwrap();
        meet(&mut listener, &mut connecting).unwrap()
    };
    let mut waiting = net.connect(0, listener.handle()).unwrap();
    assert!(waiting.poll().unwrap().is_none());
    let handle = listener.handle().to_vec();
    drop(listener);
    until(|| waiting.poll().err());
    let mut late = net.connect(0, &handle).unwrap();
    until(|| late.poll().err());
    exchange(&mut ends, b"stays", 5, [0, 0]);
    let _ = connect(&net, 0);
}
