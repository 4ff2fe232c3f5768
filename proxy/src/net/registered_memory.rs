//! The memory that is registered with a connection.

use super::MemoryHandle;
use crate::NetError;

/// The registered memory of one connection, with what its network keeps of each registration.
#[derive(Debug)]
pub(super) struct RegisteredMemory<T = ()> {
    /// The network's name.
    net: &'static str,
    /// By handle: where it begins, its bytes, and the rest.
    known: Vec<Option<(usize, usize, T)>>,
}

impl<T> RegisteredMemory<T> {
    pub(super) fn new(net: &'static str) -> RegisteredMemory<T> {
        RegisteredMemory { net, known: Vec::new() }
    }

    pub(super) fn add(&mut self, address: *mut u8, bytes: usize, what: T) -> MemoryHandle {
        let place = self.known.iter().position(Option::is_none).unwrap_or(self.known.len());
        if place == self.known.len() {
            self.known.push(None);
        }
        self.known[place] = Some((address as usize, bytes, what));
        MemoryHandle(place as u64)
    }

    pub(super) fn remove(&mut self, memory: MemoryHandle) -> Result<(), NetError> {
        let known = usize::try_from(memory.0).ok().and_then(|place| self.known.get_mut(place));
        match known.and_then(Option::take) {
            Some(_) => Ok(()),
            None => Err(self.unknown("deregister", memory)),
        }
    }

    /// What is kept of a registration, if the buffer lies in its memory.
    pub(super) fn check(
        &self,
        operation: &'static str,
        address: *const u8,
        bytes: usize,
        memory: MemoryHandle,
    ) -> Result<&T, NetError> {
        let known = usize::try_from(memory.0).ok().and_then(|place| self.known.get(place));
        let Some((start, length, what)) = known.and_then(Option::as_ref) else {
            return Err(self.unknown(operation, memory));
        };
        let inside =
            (address as usize).checked_sub(*start).and_then(|offset| offset.checked_add(bytes));
        if bytes > 0 && inside.is_none_or(|end| end > *length) {
            let reason = format!(
                "{bytes} bytes at {address:p} are not in memory {}: {length} bytes at {start:#x}",
                memory.0
            );
            return Err(NetError::new(self.net, operation, reason));
        }
        Ok(what)
    }

    fn unknown(&self, operation: &'static str, memory: MemoryHandle) -> NetError {
        let reason = format!("memory {} is not registered on this connection", memory.0);
        NetError::new(self.net, operation, reason)
    }
}
