//! SHM: ranks of one host, which share a memfd. It has no name, so that nothing is left behind when a process is killed. The
//! sender opens it through the receiver's `/proc/PID/fd`.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use serde::{Deserialize, Serialize};

use super::{HostRegion, PeerInfo, RecvRegion, Transport};
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

    fn offer(&self, recv_region: &RecvRegion) -> Result<Vec<u8>> {
        let file = recv_region
            .file
            .as_ref()
            .ok_or_else(|| Error::argument("recv_region", "is not shared between processes"))?;
        let failed = |e| Error::system("looking at shared memory", e);
        let metadata = File::from(file.try_clone().map_err(failed)?).metadata().map_err(failed)?;
        let inode = std::os::unix::fs::MetadataExt::ino(&metadata);
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
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if std::os::unix::fs::MetadataExt::ino(&metadata) != inode || metadata.len() != len as u64 {
            return Err(Error::malformed(format!(
                "{path} is not the shared memory that its owner offered"
            )));
        }
        HostRegion::of_file(file.as_fd(), offset, bytes)
    }
}

/// A memfd of `bytes` zeros.
pub(super) fn memory(bytes: usize) -> Result<OwnedFd> {
    // SAFETY: a constant name and flags.
    let fd = unsafe { libc::memfd_create(c"ferroccl".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(Error::last_os("memfd_create for shared memory"));
    }
    // SAFETY: just opened, and ours alone.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    let size = |e| Error::system(format!("cannot make {bytes} bytes of shared memory"), e);
    file.set_len(bytes as u64).map_err(size)?;
    Ok(file.into())
}
