//! Memory that processes of a host share: a memfd. It has no name, so that nothing is left behind when a process is killed. Others
//! open it through its owner's `/proc/PID/fd`.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use crate::encoding;
use crate::error::{Error, Result};

/// What nobody may do with shared memory any more, whoever has it: change its size, or these seals (memfd_create(2)).
const SEALS: SealFlag =
    SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_SEAL);

/// A memfd of `bytes` zeros, whose size is sealed.
pub(crate) fn create(bytes: usize) -> Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = memfd_create(c"ferroccl", flags)
        .map_err(|e| Error::system("memfd_create for shared memory", e.into()))?;
    let file = File::from(fd);
    let size = |e| Error::system(format!("cannot make {bytes} bytes of shared memory"), e);
    file.set_len(bytes as u64).map_err(size)?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS))
        .map_err(|e| Error::system("sealing shared memory", e.into()))?;
    Ok(file.into())
}

/// By what another process finds a memfd, as long as its owner has it open.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SharedMemoryHandle {
    pid: u32,
    fd: i32,
    /// The file's inode, which tells whether the descriptor has been reused for another file.
    inode: u64,
}

impl SharedMemoryHandle {
    /// That of a memfd of this process.
    pub(crate) fn of(file: BorrowedFd<'_>) -> Result<Self> {
        let failed = |e| Error::system("looking at shared memory", e);
        let copy = file.try_clone_to_owned().map_err(failed)?;
        let inode = File::from(copy).metadata().map_err(failed)?.ino();
        Ok(SharedMemoryHandle { pid: std::process::id(), fd: file.as_raw_fd(), inode })
    }

    /// As bytes.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        encoding::to_bytes(self)
    }

    /// The reverse of [`SharedMemoryHandle::to_bytes`].
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        encoding::from_bytes(bytes)
            .map_err(|e| Error::malformed(format!("SHM handle of a peer: {e}")))
    }

    /// Opens the memfd, which has `len` bytes.
    pub(crate) fn open(&self, len: usize) -> Result<File> {
        let SharedMemoryHandle { pid, fd, inode } = *self;
        let path = format!("/proc/{pid}/fd/{fd}");
        let failed = |e| {
            Error::system(
                format!(
                    "cannot open the shared memory of process {pid} ({path}); do both run as one user?"
                ),
                e,
            )
        };
        // Whatever else the descriptor may lead to must not make us wait.
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let file = options.open(&path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.ino() != inode || metadata.len() != len as u64 {
            return Err(Error::malformed(format!(
                "{path} is not the shared memory that its owner offered"
            )));
        }
        // Memory that shrinks would end this process by a signal when it is touched.
        let seals = fcntl(file.as_fd(), FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_retain);
        if !seals.is_ok_and(|seals| seals.contains(SEALS)) {
            return Err(Error::malformed(format!(
                "the shared memory {path} is not sealed against changes of its size"
            )));
        }
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64 << 10;

    /// What who is told of this file gets.
    fn opened(file: &File, len: usize) -> Result<File> {
        let handle = SharedMemoryHandle::of(file.as_fd())?.to_bytes()?;
        SharedMemoryHandle::from_bytes(&handle)?.open(len)
    }

    #[test]
    fn nobody_changes_the_size_of_shared_memory() {
        let file = File::from(create(BYTES).unwrap());
        for len in [0, BYTES / 2, 2 * BYTES] {
            let error = file.set_len(len as u64).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{len} bytes");
        }
        assert!(fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)).is_err());
        assert_eq!(opened(&file, BYTES).unwrap().metadata().unwrap().len(), BYTES as u64);
    }

    #[test]
    fn memory_that_could_shrink_is_not_opened() {
        let unsealed = || {
            let file = File::from(memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).unwrap());
            file.set_len(BYTES as u64).unwrap();
            file
        };
        for seals in
            [SealFlag::empty(), SealFlag::F_SEAL_GROW, SEALS.difference(SealFlag::F_SEAL_SEAL)]
        {
            let file = unsealed();
            fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
            let error = opened(&file, BYTES).unwrap_err().to_string();
            assert!(error.contains("not sealed"), "{seals:?}: {error}");
        }
        let plain = tempfile::tempfile().unwrap();
        plain.set_len(BYTES as u64).unwrap();
        let error = opened(&plain, BYTES).unwrap_err().to_string();
        assert!(error.contains("not sealed"), "a plain file: {error}");
        let file = File::from(create(BYTES).unwrap());
        for len in [2 * BYTES, BYTES / 2, 0] {
            let error = opened(&file, len).unwrap_err().to_string();
            assert!(error.contains("not the shared memory"), "{error}");
        }
    }
}
