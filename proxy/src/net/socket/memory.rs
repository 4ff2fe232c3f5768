//! What memory a connection knows.

use crate::NetError;
use crate::net::{MemoryHandle, MemoryKind};

use super::error;

/// The memory of one connection. Sockets need to know nothing of it: it is kept to notice mistakes.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// By handle: where it begins, and its bytes.
    known: Vec<Option<(usize, usize)>>,
}

impl Memory {
    pub(super) fn register(
        &mut self,
        address: *mut u8,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError> {
        if kind != MemoryKind::Host {
            let reason = format!("memory of kind {kind:?}: sockets reach the host's only");
            return Err(error("register", reason));
        }
        let place = self.known.iter().position(Option::is_none).unwrap_or(self.known.len());
        if place == self.known.len() {
            self.known.push(None);
        }
        self.known[place] = Some((address as usize, bytes));
        Ok(MemoryHandle(place as u64))
    }

    pub(super) fn deregister(&mut self, memory: MemoryHandle) -> Result<(), NetError> {
        let known = usize::try_from(memory.0).ok().and_then(|place| self.known.get_mut(place));
        match known.and_then(Option::take) {
            Some(_) => Ok(()),
            None => Err(unknown("deregister", memory)),
        }
    }

    /// Whether a buffer lies where it says that it does.
    pub(super) fn check(
        &self,
        operation: &'static str,
        address: *const u8,
        bytes: usize,
        memory: MemoryHandle,
    ) -> Result<(), NetError> {
        let known = usize::try_from(memory.0).ok().and_then(|place| self.known.get(place).copied());
        let Some((start, length)) = known.flatten() else {
            return Err(unknown(operation, memory));
        };
        let inside =
            (address as usize).checked_sub(start).and_then(|offset| offset.checked_add(bytes));
        if bytes > 0 && inside.is_none_or(|end| end > length) {
            let reason = format!(
                "{bytes} bytes at {address:p} are not in memory {}: {length} bytes at {start:#x}",
                memory.0
            );
            return Err(error(operation, reason));
        }
        Ok(())
    }
}

fn unknown(operation: &'static str, memory: MemoryHandle) -> NetError {
    error(operation, format!("memory {} is not registered on this connection", memory.0))
}
