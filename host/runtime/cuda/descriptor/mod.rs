//! File descriptors by which the processes of a host share physical memory and multicast objects.
//!
//! The owner [offers](Offered) a descriptor as long as it keeps what that stands for. Others get a copy of it:
//!
//! ```text
//! owner    Offered ─► a random token, and a thread that listens at a random abstract name (service.rs)
//!             │ DescriptorHandle: the name, the token, what else the descriptor is known by
//!             ▼
//! another  by the socket: says the token, gets a copy (SCM_RIGHTS, unix(7))            (ask.rs)
//!          else by its number: pidfd_getfd(2), which Linux allows to those who may trace the owner (ptrace(2))
//! ```
//!
//! The second way is for processes of different network namespaces, which do not reach each other's abstract names. Where Yama or
//! a container's filter of system calls keeps processes from tracing each other, there is only the first.
//!
//! The bytes that are told are of a length of their own, which [CUDA's IPC handles](super::driver::IpcHandle) do not have.

mod ask;
mod service;
#[cfg(test)]
mod tests;

use std::fs::{File, metadata};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::Duration;

use bytemuck::{Pod, Zeroable};

use self::ask::{AskError, ask};
use super::driver::IpcHandle;
use crate::error::{Error, Result};
use crate::fork::Maker;

/// 128 bits that nobody guesses.
type Token = [u8; 16];

/// The owner's answer to a token: the descriptor comes with it.
const GIVEN: u8 = 1;
/// It offers no such thing.
const UNKNOWN: u8 = 2;

fn random() -> Result<Token> {
    let mut token = Token::default();
    getrandom::fill(&mut token)
        .map_err(|e| Error::system("random bytes for a descriptor", io::Error::other(e)))?;
    Ok(token)
}

/// The abstract name of a process's socket.
fn socket_name(of: &Token) -> String {
    format!("ferroccl-fds-{:032x}", u128::from_be_bytes(*of))
}

/// What a descriptor stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shared {
    /// Physical memory of a GPU.
    Memory,
    Multicast,
}

impl Shared {
    /// The first bytes of a handle, with the version of what comes behind.
    fn magic(self) -> [u8; 8] {
        match self {
            Shared::Memory => *b"fcclmem2",
            Shared::Multicast => *b"fcclmco2",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Shared::Memory => "GPU memory",
            Shared::Multicast => "a multicast object",
        }
    }
}

/// A descriptor that other processes can have as long as this is there.
pub(super) struct Offered {
    what: Shared,
    file: Arc<OwnedFd>,
    token: Token,
    /// What the socket is named by.
    socket: Token,
    inode: u64,
    maker: Maker,
}

impl Offered {
    /// # Errors
    /// [`Error::System`].
    pub(super) fn new(what: Shared, descriptor: OwnedFd) -> Result<Self> {
        let file = File::from(descriptor);
        let inode = inode(&file).map_err(|e| {
            Error::system(format!("looking at the descriptor of {}", what.name()), e)
        })?;
        let (file, token, maker) = (Arc::new(OwnedFd::from(file)), random()?, Maker::this()?);
        let socket = service::offer(maker, token, Arc::clone(&file))?;
        Ok(Offered { what, file, token, socket, inode, maker })
    }

    /// By what others find it, which stands for so many bytes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] in a fork: it is not who is asked.
    pub(super) fn handle(&self, bytes: usize) -> Result<DescriptorHandle> {
        if !self.maker.is_here() {
            return Err(self.maker.elsewhere());
        }
        Ok(DescriptorHandle {
            magic: self.what.magic(),
            pid: std::process::id(),
            fd: self.file.as_raw_fd(),
            namespace: namespace(),
            inode: self.inode,
            bytes: bytes as u64,
            socket: self.socket,
            token: self.token,
        })
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        // A fork has a copy of the lock, too, which a thread that it does not have may hold.
        if self.maker.is_here() {
            service::withdraw(&self.token);
        }
    }
}

/// By what another process finds a descriptor. It is known to the members of the group, which are trusted.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub(super) struct DescriptorHandle {
    magic: [u8; 8],
    pid: u32,
    fd: i32,
    /// The PID namespace that `pid` is of.
    namespace: u64,
    /// Of the open file: tells most descriptors from one that has got the same number later.
    inode: u64,
    /// Bytes of the memory or object.
    bytes: u64,
    /// What the owner's socket is named by.
    socket: Token,
    /// Of the descriptor.
    token: Token,
}

/// Bytes of a handle.
pub(super) const HANDLE_BYTES: usize = size_of::<DescriptorHandle>();
const _: () = assert!(HANDLE_BYTES != size_of::<IpcHandle>());

impl DescriptorHandle {
    /// As bytes.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        bytemuck::bytes_of(&self).to_vec()
    }

    /// The reverse of [`DescriptorHandle::to_bytes`].
    ///
    /// # Errors
    /// [`Error::Bootstrap`] when the bytes are no handle of `what`.
    pub(super) fn from_bytes(what: Shared, bytes: &[u8]) -> Result<Self> {
        let handle: Self = bytemuck::try_pod_read_unaligned(bytes).map_err(|_| {
            Error::malformed(format!("a handle of {}, of {} bytes", what.name(), bytes.len()))
        })?;
        if handle.magic != what.magic() {
            return Err(Error::malformed(format!("a handle that is not of {}", what.name())));
        }
        Ok(handle)
    }

    /// Bytes of the memory or object, which its owner says to be `len` at least.
    ///
    /// # Errors
    /// [`Error::Bootstrap`] when they are not.
    pub(super) fn bytes(&self, len: usize) -> Result<usize> {
        let bytes = usize::try_from(self.bytes).ok().filter(|bytes| *bytes >= len.max(1));
        bytes.ok_or_else(|| {
            let has = self.bytes;
            Error::malformed(format!("a handle of {has} bytes, where {len} are to be"))
        })
    }

    /// A copy of the descriptor.
    ///
    /// # Errors
    /// [`Error::System`] when its process is gone, offers it no more, or cannot be asked; [`Error::Bootstrap`] when it stands for
    /// something else.
    pub(super) fn take(&self) -> Result<OwnedFd> {
        let copy = match service::find(&self.token) {
            Some(file) => file.try_clone().map_err(|e| self.failed(e))?,
            None => self.take_from_owner(ask::PATIENCE)?,
        };
        let file = File::from(copy);
        let found = inode(&file).map_err(|e| Error::system("looking at a descriptor", e))?;
        if found != self.inode {
            let DescriptorHandle { pid, fd, .. } = self;
            let why = format!("descriptor {fd} of process {pid} is not what its owner offered");
            return Err(Error::malformed(why));
        }
        Ok(file.into())
    }

    /// A copy from another process, which may take so long to answer.
    fn take_from_owner(&self, patience: Duration) -> Result<OwnedFd> {
        let socket = match ask(&self.socket, &self.token, patience) {
            Ok(file) => return Ok(file),
            Err(e @ AskError::Withdrawn) => {
                return Err(self.failed(io::Error::new(io::ErrorKind::NotFound, e)));
            }
            Err(e) => e,
        };
        self.take_by_number().map_err(|number| {
            let both = format!("by its socket: {socket}; by pidfd_getfd: {number}");
            self.failed(io::Error::new(number.kind(), both))
        })
    }

    fn take_by_number(&self) -> io::Result<OwnedFd> {
        if self.namespace != namespace() {
            return Err(io::Error::other("it is of another PID namespace"));
        }
        of_process(self.pid, self.fd).map_err(|e| match e.raw_os_error() {
            Some(libc::EPERM) => io::Error::new(
                e.kind(),
                format!(
                    "{e} (both must run as one user, who may trace processes: kernel.yama.ptrace_scope is 0, or they have \
                     CAP_SYS_PTRACE; a container may forbid it)"
                ),
            ),
            _ => e,
        })
    }

    fn failed(&self, error: io::Error) -> Error {
        let DescriptorHandle { pid, fd, .. } = self;
        Error::system(format!("taking descriptor {fd} of process {pid}"), error)
    }
}

fn inode(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.ino())
}

/// The PID namespace of this process, by its inode; 0 where `/proc` does not say.
fn namespace() -> u64 {
    metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// A copy of a descriptor of another process.
fn of_process(pid: u32, fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: both take numbers; those of no process or no open descriptor are errors.
    unsafe {
        let process = owned(libc::syscall(libc::SYS_pidfd_open, pid, 0))?;
        owned(libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0))
    }
}

/// What the system has returned for a new descriptor.
fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(fd) {
        // SAFETY: the descriptor is new, and so nobody else's.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
