//! Sockets that never wait.

use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::slice;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

/// What came of moving bytes, without the wait.
fn moved(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Writes what the socket takes at once; `None` is nothing.
pub(in crate::net) fn send(socket: &Socket, bytes: &[u8]) -> io::Result<Option<usize>> {
    // A library must not have its process killed for a peer that is gone.
    moved(socket.send_with_flags(bytes, libc::MSG_NOSIGNAL))
}

/// The same of two parts.
pub(in crate::net) fn send_both(socket: &Socket, a: &[u8], b: &[u8]) -> io::Result<Option<usize>> {
    let parts = [IoSlice::new(a), IoSlice::new(b)];
    moved(socket.send_vectored_with_flags(&parts, libc::MSG_NOSIGNAL))
}

/// Reads what is there; `None` is nothing. That there will never be anything is an error.
///
/// # Safety
/// `bytes`, more than 0, are writable at `at`, and nobody else touches them.
pub(in crate::net) unsafe fn recv(
    socket: &Socket,
    at: *mut u8,
    bytes: usize,
) -> io::Result<Option<usize>> {
    // SAFETY: the caller's; what is there need not be initialised.
    let place = unsafe { slice::from_raw_parts_mut(at.cast::<MaybeUninit<u8>>(), bytes) };
    match moved(socket.recv(place))? {
        Some(0) => Err(ErrorKind::UnexpectedEof.into()),
        some => Ok(some),
    }
}

/// Why a peer is lost, in words.
pub(in crate::net) fn lost(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
            format!("it closed the connection ({error})")
        }
        _ => error.to_string(),
    }
}

/// An address, with the interface of one that is good on a link only.
pub(in crate::net) fn with_scope(ip: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope))
        }
        ip => SocketAddr::new(ip, port),
    }
}

/// A socket for connections to or from such an address.
pub(in crate::net) fn new(address: &SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(*address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Seconds of silence after which the system asks whether a peer is there, and between its questions.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// Questions without an answer after which it is not: a host that is gone without a word shows after half a minute.
const KEEPALIVE_RETRIES: u32 = 5;

/// What each socket of a connection has.
pub(in crate::net) fn prepare(socket: &Socket) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?; // somebody waits for each message
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE)
        .with_retries(KEEPALIVE_RETRIES);
    socket.set_tcp_keepalive(&keepalive)
}

/// An address of the Internet, as all of ours are.
pub(in crate::net) fn internet(address: &SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::Error::other("a socket of another family"))
}
