//! Unix sockets with abstract names (unix(7)), by which the processes of one network namespace find each other.
//!
//! Such a name leaves no file behind. Anybody may take any name, so both ends look at who the other is, as the system says it.

use std::io;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    self, AddressFamily, SockFlag, SockType, UnixAddr, UnixCredentials, getsockopt, socket,
};

/// Listens at `@name`.
///
/// # Errors
/// The system's; [`io::ErrorKind::AddrInUse`] when somebody has the name.
pub(crate) fn bind(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Connects to `@name`. It does not wait: who listens may be a stranger that accepts nobody.
///
/// # Errors
/// The system's; [`io::ErrorKind::WouldBlock`] when too many others are about to connect.
pub(crate) fn connect(name: &str) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // Unix sockets connect at once, or not at all (EAGAIN).
    socket::connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Who made the other end, or who listened where it was accepted (`SO_PEERCRED`).
///
/// # Errors
/// The system's.
pub(crate) fn peer(stream: &UnixStream) -> io::Result<UnixCredentials> {
    Ok(getsockopt(stream, PeerCredentials)?)
}

/// The names that begin with `prefix` and at which somebody listens.
///
/// # Errors
/// When `/proc/net/unix` cannot be read.
pub(crate) fn names(prefix: &str) -> io::Result<Vec<String>> {
    let list = std::fs::read_to_string("/proc/net/unix")?;
    Ok(list.lines().filter_map(|line| name_of(line, prefix)).map(str::to_owned).collect())
}

/// The name in a line of `/proc/net/unix` (proc(5)): its last field is the path, where `@` stands for the zero byte that
/// an abstract name begins with. Connections that were accepted have the same name, and are not listening.
fn name_of<'a>(line: &'a str, prefix: &str) -> Option<&'a str> {
    let mut fields = line.split_whitespace();
    let (flags, name) = (fields.nth(3)?, fields.next_back()?.strip_prefix('@')?);
    let accepts = u32::from_str_radix(flags, 16).ok()? & LISTENING != 0;
    (accepts && name.starts_with(prefix)).then_some(name)
}

/// `__SO_ACCEPTCON` of Linux's include/uapi/linux/net.h.
const LISTENING: u32 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_sockets_are_found_by_how_their_names_begin() {
        let line = |flags: &str, name: &str| {
            format!("0000000000000000: 00000002 00000000 {flags} 0001 01 12345 {name}")
        };
        let found = |flags, name| name_of(&line(flags, name), "ferroccl-x-").map(str::to_owned);
        assert_eq!(found("00010000", "@ferroccl-x-77").as_deref(), Some("ferroccl-x-77"));
        assert_eq!(found("00000000", "@ferroccl-x-77"), None, "an accepted connection");
        assert_eq!(found("00010000", "/tmp/ferroccl-x-77"), None, "a file");
        assert_eq!(found("00010000", "@ferroccl-y-77"), None, "another name");
        assert_eq!(name_of("Num RefCount Protocol Flags Type St Inode Path", ""), None);
        assert_eq!(name_of("0000: 00000002 00000000 00010000 0001 01 12345", ""), None, "no name");
    }

    #[test]
    fn both_ends_know_each_other() {
        let name = format!("ferroccl-test-{}", std::process::id());
        let listener = bind(&name).unwrap();
        assert_eq!(bind(&name).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(names(&name).unwrap(), std::slice::from_ref(&name));
        let stream = connect(&name).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let us = nix::unistd::geteuid().as_raw();
        for end in [&stream, &accepted] {
            let peer = peer(end).unwrap();
            assert_eq!((peer.uid(), peer.pid() as u32), (us, std::process::id()));
        }
        // Who accepts nobody keeps nobody waiting, either.
        let waiting: Vec<_> = (0..10_000).map_while(|_| connect(&name).ok()).collect();
        assert_eq!(connect(&name).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop((listener, waiting));
        assert!(connect(&name).is_err() && names(&name).unwrap().is_empty());
    }
}
