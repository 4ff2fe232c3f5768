//! File descriptors by which the processes of a host share physical memory and multicast objects.
//!
//! The owner keeps the descriptor open as long as what it stands for, and tells others its number. They take a copy of it from the
//! owner (pidfd_getfd(2)), which Linux allows to those who may trace the owner (ptrace(2)).
//!
//! The bytes that are told are of a length of their own, which [CUDA's IPC handles](super::driver::IpcHandle) do not have.

use std::fs::{File, metadata};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt as _;

use bytemuck::{Pod, Zeroable};

use super::driver::IpcHandle;
use crate::error::{Error, Result};

/// What a descriptor stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shared {
    /// Physical memory of a GPU.
    Memory,
    Multicast,
}

impl Shared {
    /// The first bytes of a handle.
    fn magic(self) -> [u8; 8] {
        match self {
            Shared::Memory => *b"fcclvmem",
            Shared::Multicast => *b"fcclmcst",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Shared::Memory => "GPU memory",
            Shared::Multicast => "a multicast object",
        }
    }
}

/// By what another process finds a descriptor.
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
}

/// Bytes of a handle.
pub(super) const HANDLE_BYTES: usize = size_of::<DescriptorHandle>();
const _: () = assert!(HANDLE_BYTES != size_of::<IpcHandle>());

impl DescriptorHandle {
    /// That of a descriptor of this process.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(super) fn of(what: Shared, descriptor: &OwnedFd, bytes: usize) -> Result<Self> {
        let failed = |e| Error::system(format!("looking at the descriptor of {}", what.name()), e);
        let copy = File::from(descriptor.try_clone().map_err(failed)?);
        Ok(DescriptorHandle {
            magic: what.magic(),
            pid: std::process::id(),
            fd: descriptor.as_raw_fd(),
            namespace: namespace(),
            inode: copy.metadata().map_err(failed)?.ino(),
            bytes: bytes as u64,
        })
    }

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
    /// [`Error::System`] when its process is gone, has closed it, or may not be asked; [`Error::Bootstrap`] when it stands for
    /// something else by now, or the process is of another PID namespace.
    pub(super) fn take(&self) -> Result<OwnedFd> {
        let DescriptorHandle { pid, fd, inode, .. } = *self;
        if self.namespace != namespace() {
            let why =
                format!("descriptor {fd} of process {pid}, which is of another PID namespace");
            return Err(Error::malformed(why));
        }
        let copy = if pid == std::process::id() { own(fd) } else { of_process(pid, fd) };
        let copy = copy.map_err(|e| {
            let how = match e.raw_os_error() {
                Some(libc::EPERM | libc::ENOSYS) => {
                    " (pidfd_getfd: both must run as one user, who may trace processes: \
                      kernel.yama.ptrace_scope is 0, or they have CAP_SYS_PTRACE)"
                }
                _ => "",
            };
            Error::system(format!("taking descriptor {fd} of process {pid}{how}"), e)
        })?;
        let file = File::from(copy);
        let found = file.metadata().map_err(|e| Error::system("looking at a descriptor", e))?;
        if found.ino() != inode {
            let why = format!("descriptor {fd} of process {pid} is not what its owner offered");
            return Err(Error::malformed(why));
        }
        Ok(file.into())
    }
}

/// The PID namespace of this process, by its inode; 0 where `/proc` does not say.
fn namespace() -> u64 {
    metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// A copy of a descriptor of this process.
fn own(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: takes a number; one that is not open is an error.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    owned(copy.into())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(file: &OwnedFd) -> Vec<u8> {
        DescriptorHandle::of(Shared::Memory, file, 4096).unwrap().to_bytes()
    }

    fn taken(bytes: &[u8]) -> Result<OwnedFd> {
        DescriptorHandle::from_bytes(Shared::Memory, bytes)?.take()
    }

    #[test]
    fn a_descriptor_is_taken_as_long_as_it_is_open() {
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        let handle = offered(&file);
        let inode = |file: OwnedFd| File::from(file).metadata().unwrap().ino();
        assert_eq!(inode(taken(&handle).unwrap()), inode(file.try_clone().unwrap()));
        // By the way that leads to other processes, too.
        assert!(of_process(std::process::id(), file.as_raw_fd()).is_ok());
        let other = OwnedFd::from(tempfile::tempfile().unwrap());
        let mut reused = DescriptorHandle::from_bytes(Shared::Memory, &handle).unwrap();
        reused.fd = other.as_raw_fd();
        let error = taken(&reused.to_bytes()).unwrap_err().to_string();
        assert!(error.contains("is not what its owner offered"), "{error}");
        let mut far = reused;
        far.namespace ^= 1;
        let error = taken(&far.to_bytes()).unwrap_err().to_string();
        assert!(error.contains("another PID namespace"), "{error}");
    }

    #[test]
    fn bytes_of_anything_else_are_no_handle() {
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        let good = offered(&file);
        assert!(DescriptorHandle::from_bytes(Shared::Multicast, &good).is_err());
        for bytes in [&good[1..], &[good.clone(), vec![0]].concat(), &[], &[0xff; HANDLE_BYTES]] {
            let error = taken(bytes).unwrap_err();
            assert!(matches!(error, Error::Bootstrap(_)), "{error}");
        }
        let handle = DescriptorHandle::from_bytes(Shared::Memory, &good).unwrap();
        assert_eq!(handle.bytes(4096).unwrap(), 4096);
        assert!(handle.bytes(4097).is_err());
    }
}
