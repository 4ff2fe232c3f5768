//! Sockets that never block.

use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::slice;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

/// The result of a call that would have blocked is `None`.
fn moved(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Sends what the socket takes at once; `None` is nothing.
///
/// # Errors
/// When the connection is broken.
pub fn send(socket: &Socket, bytes: &[u8]) -> io::Result<Option<usize>> {
    // A library must not have its process killed for a peer that is gone.
    moved(socket.send_with_flags(bytes, libc::MSG_NOSIGNAL))
}

/// The same of several slices, one after the other.
///
/// # Errors
/// As [`send`].
pub fn send_parts(socket: &Socket, parts: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
    moved(socket.send_vectored_with_flags(parts, libc::MSG_NOSIGNAL))
}

/// Receives what has come; `None` is nothing.
///
/// # Errors
/// When the connection is broken, or closed by the peer.
///
/// # Safety
/// `bytes`, more than 0, are writable at `at`, and nobody else touches them.
pub unsafe fn recv(socket: &Socket, at: *mut u8, bytes: usize) -> io::Result<Option<usize>> {
    // SAFETY: the caller's; what is there need not be initialised.
    let place = unsafe { slice::from_raw_parts_mut(at.cast::<MaybeUninit<u8>>(), bytes) };
    match moved(socket.recv(place))? {
        Some(0) => Err(ErrorKind::UnexpectedEof.into()),
        some => Ok(some),
    }
}

/// Receives what has come into `place`, which is not empty; `None` is nothing.
///
/// # Errors
/// As [`recv`].
pub fn recv_into(socket: &Socket, place: &mut [u8]) -> io::Result<Option<usize>> {
    // SAFETY: these bytes are the caller's.
    unsafe { recv(socket, place.as_mut_ptr(), place.len()) }
}

/// Why a peer is lost, in words.
#[must_use]
pub fn lost(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
            format!("it closed the connection ({error})")
        }
        _ => error.to_string(),
    }
}

/// A socket address; `scope` is the interface of a link-local IPv6 address.
#[must_use]
pub fn with_scope(ip: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope))
        }
        ip => SocketAddr::new(ip, port),
    }
}

/// A TCP socket of the address's family that never blocks.
///
/// # Errors
/// When the system refuses it.
pub fn new(address: &SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(*address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Seconds of silence after which the system asks whether a peer is there, and between its questions.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// Questions without an answer after which it is not: a host that is gone without a word shows after half a minute.
const KEEPALIVE_RETRIES: u32 = 5;

/// How long a peer whose host is gone without a word is silent until its connection is broken, where nothing is sent to it.
pub const KEEPALIVE_LIMIT: Duration = KEEPALIVE.saturating_mul(KEEPALIVE_RETRIES + 1);

/// Sets what each socket of a connection has: it never blocks, sends at once, and notices a host that is gone.
///
/// # Errors
/// When the system refuses it.
pub fn prepare(socket: &Socket) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?; // somebody waits for each message
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE)
        .with_retries(KEEPALIVE_RETRIES);
    socket.set_tcp_keepalive(&keepalive)
}

/// An address of IPv4 or IPv6.
///
/// # Errors
/// When it is of another family.
pub fn internet(address: &SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::Error::other("a socket of another family"))
}
