//! SHM: ranks of one host, which share a memfd. It has no name, so that nothing is left behind when a process is killed. The
//! sender opens it through the receiver's `/proc/PID/fd`.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use super::{HostRegion, OfferedRegion, PeerInfo, Transport};
use crate::error::{Error, Result};

/// The transport.
#[derive(Debug)]
pub(super) struct ShmTransport;

/// A handle by which the sender opens the receiver's memfd.
#[derive(Serialize, Deserialize)]
struct ShmHandle {
    pid: u32,
    fd: i32,
    /// The file's inode, which tells whether the descriptor has been reused for another file.
    inode: u64,
}

impl Transport for ShmTransport {
    fn name(&self) -> &'static str {
        "SHM"
    }

    fn reaches(&self, sender: &PeerInfo, receiver: &PeerInfo) -> Result<(), String> {
        if sender.host != receiver.host {
            return Err("not one host".to_owned());
        }
        if sender.pid_namespace != receiver.pid_namespace {
            return Err("not one PID namespace: start the containers with a shared one".to_owned());
        }
        Ok(())
    }

    fn direct(&self, _: &PeerInfo, _: &PeerInfo) -> bool {
        false
    }

    fn needs_shared_memory(&self) -> bool {
        true
    }

    fn offer(&self, recv_region: &OfferedRegion) -> Result<Vec<u8>> {
        let file = recv_region
            .file
            .as_ref()
            .ok_or_else(|| Error::argument("recv_region", "is not shared between processes"))?;
        let failed = |e| Error::system("looking at shared memory", e);
        let metadata = File::from(file.try_clone().map_err(failed)?).metadata().map_err(failed)?;
        let inode = metadata.ino();
        let handle = ShmHandle { pid: std::process::id(), fd: file.as_raw_fd(), inode };
        serde_json::to_vec(&handle).map_err(|e| Error::malformed(e.to_string()))
    }

    fn accept(&self, handle: &[u8], len: usize, offset: usize, bytes: usize) -> Result<HostRegion> {
        let ShmHandle { pid, fd, inode } = serde_json::from_slice(handle)
            .map_err(|e| Error::malformed(format!("SHM handle of a peer: {e}")))?;
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
        if metadata.ino() != inode
            || metadata.len() != len as u64
            || offset.checked_add(bytes).is_none_or(|end| end > len)
        {
            return Err(Error::malformed(format!(
                "{path} is not the shared memory that its owner offered"
            )));
        }
        // Memory that shrinks would end this process by a signal when it is touched.
        let seals = fcntl(&file, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_retain);
        if !seals.is_ok_and(|seals| seals.contains(SEALS)) {
            return Err(Error::malformed(format!(
                "the shared memory {path} is not sealed against changes of its size"
            )));
        }
        HostRegion::of_file(file.as_fd(), offset, bytes)
    }
}

/// What nobody may do with shared memory any more, whoever has it: change its size, or these seals (memfd_create(2)).
const SEALS: SealFlag =
    SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_SEAL);

/// A memfd of `bytes` zeros, whose size is sealed.
pub(super) fn memory(bytes: usize) -> Result<OwnedFd> {
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

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64 << 10;

    /// What the sender gets that is told of this file.
    fn accepted(file: &File, len: usize, offset: usize, bytes: usize) -> Result<HostRegion> {
        let (fd, inode) = (file.as_raw_fd(), file.metadata().unwrap().ino());
        let handle = ShmHandle { pid: std::process::id(), fd, inode };
        ShmTransport.accept(&serde_json::to_vec(&handle).unwrap(), len, offset, bytes)
    }

    #[test]
    fn nobody_changes_the_size_of_shared_memory() {
        let file = File::from(memory(BYTES).unwrap());
        for len in [0, BYTES / 2, 2 * BYTES] {
            let error = file.set_len(len as u64).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{len} bytes");
        }
        assert!(fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)).is_err());
        assert_eq!(accepted(&file, BYTES, BYTES / 2, BYTES / 2).unwrap().len(), BYTES / 2);
    }

    #[test]
    fn memory_that_could_shrink_is_not_mapped() {
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
            let error = accepted(&file, BYTES, 0, BYTES).unwrap_err().to_string();
            assert!(error.contains("not sealed"), "{seals:?}: {error}");
        }
        let plain = tempfile::tempfile().unwrap();
        plain.set_len(BYTES as u64).unwrap();
        let error = accepted(&plain, BYTES, 0, BYTES).unwrap_err().to_string();
        assert!(error.contains("not sealed"), "a plain file: {error}");
        let file = File::from(memory(BYTES).unwrap());
        for (len, offset, bytes) in
            [(2 * BYTES, 0, BYTES), (BYTES, BYTES, BYTES), (BYTES, usize::MAX, 2)]
        {
            let error = accepted(&file, len, offset, bytes).unwrap_err().to_string();
            assert!(error.contains("not the shared memory"), "{error}");
        }
    }
}
