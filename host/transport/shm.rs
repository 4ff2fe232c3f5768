//! SHM: ranks of one host, which share a memfd ([`shared_memory`](crate::shared_memory)).

use std::os::fd::AsFd;

use super::{HostRegion, OfferedRegion, PeerInfo, Transport};
use crate::error::{Error, Result};
use crate::shared_memory::SharedMemoryHandle;

/// The transport.
#[derive(Debug)]
pub(super) struct ShmTransport;

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
        SharedMemoryHandle::of(file.as_fd())?.to_bytes()
    }

    fn accept(&self, handle: &[u8], len: usize, offset: usize, bytes: usize) -> Result<HostRegion> {
        let file = SharedMemoryHandle::from_bytes(handle)?.open(len)?;
        if offset.checked_add(bytes).is_none_or(|end| end > len) {
            return Err(Error::malformed(format!(
                "{bytes} bytes from {offset} on are not the shared memory that its owner offered"
            )));
        }
        HostRegion::of_file(file.as_fd(), offset, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_memory;

    const BYTES: usize = 64 << 10;

    #[test]
    fn a_sender_gets_its_part_and_no_other() {
        let file = shared_memory::create(BYTES).unwrap();
        let handle = SharedMemoryHandle::of(file.as_fd()).unwrap().to_bytes().unwrap();
        let accepted = |len, offset, bytes| ShmTransport.accept(&handle, len, offset, bytes);
        assert_eq!(accepted(BYTES, BYTES / 2, BYTES / 2).unwrap().len(), BYTES / 2);
        for (len, offset, bytes) in
            [(2 * BYTES, 0, BYTES), (BYTES, BYTES, BYTES), (BYTES, usize::MAX, 2)]
        {
            let error = accepted(len, offset, bytes).unwrap_err().to_string();
            assert!(error.contains("not the shared memory"), "{error}");
        }
    }
}
