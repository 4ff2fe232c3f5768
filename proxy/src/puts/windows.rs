//! The memory of windows, as far as the network reaches it.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::NetError;
use crate::net::{MemoryHandle, MemoryKind};

/// Finds a window of this rank by its number.
pub type FindWindow = Box<dyn Fn(u64) -> Option<PutWindow> + Send>;

/// A window of this rank.
#[derive(Clone)]
pub struct PutWindow {
    /// Where it begins, as kernels see it.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// How the network gets at it.
    pub access: PutAccess,
    /// Keeps the memory.
    pub keep: Arc<dyn Any + Send + Sync>,
}

/// How a network gets at memory.
#[derive(Clone)]
pub enum PutAccess {
    /// The network reads and writes it.
    Direct {
        /// What is registered: address and bytes. The window is in it.
        memory: (u64, usize),
        /// Of which kind that is.
        kind: MemoryKind,
        /// Whether the GPU is sure to see what the network has written only after a flush.
        flush: bool,
    },
    /// The host copies it.
    Staged(Arc<dyn StagedMemory>),
}

/// Memory that the network does not reach, and the host copies.
pub trait StagedMemory: Send + Sync {
    /// Reads from `offset` on, in bytes from the beginning of the window.
    ///
    /// # Errors
    /// Why it cannot.
    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), String>;

    /// Writes from `offset` on.
    ///
    /// # Errors
    /// Why it cannot.
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), String>;
}

impl fmt::Debug for PutWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PutWindow")
            .field("address", &self.address)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl PutWindow {
    /// Whether so many bytes from `offset` on are in the window; what is wrong.
    pub(super) fn check(&self, number: u64, offset: u64, bytes: u64) -> Result<(), String> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(format!(
                "{bytes} bytes from byte {offset} on, of window {number}, which has {}",
                self.bytes
            )),
        }
    }
}

/// The windows that are registered with a connection.
#[derive(Default)]
pub(super) struct Registered(HashMap<u64, (MemoryHandle, PutWindow)>);

impl Registered {
    /// The registration of a window, made when it is first needed. It keeps the memory.
    pub(super) fn of(
        &mut self,
        (number, window): (u64, &PutWindow),
        comm: &mut dyn Registers,
    ) -> Result<MemoryHandle, NetError> {
        if let Some((handle, _)) = self.0.get(&number) {
            return Ok(*handle);
        }
        let PutAccess::Direct { memory, kind, .. } = &window.access else {
            let reason = "memory that the network does not reach";
            return Err(NetError::new("proxy", "register", reason));
        };
        let handle = comm.register(*memory, *kind)?;
        self.0.insert(number, (handle, window.clone()));
        Ok(handle)
    }

    /// Lets go of windows that are not there any more.
    pub(super) fn forget(
        &mut self,
        is_gone: impl Fn(u64) -> bool,
        comm: &mut dyn Registers,
    ) -> Result<(), NetError> {
        let mut gone = self.0.extract_if(|number, _| is_gone(*number));
        gone.try_for_each(|(_, (handle, _))| comm.deregister(handle))
    }
}

/// An end of a connection, with which memory is registered.
pub(super) trait Registers {
    fn register(
        &mut self,
        memory: (u64, usize),
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError>;
    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), NetError>;
}

/// Both ends have the same functions.
macro_rules! registers {
    ($($comm:ident),*) => { $(
        impl Registers for Box<dyn crate::net::$comm> {
            fn register(
                &mut self,
                (address, bytes): (u64, usize),
                kind: MemoryKind,
            ) -> Result<MemoryHandle, NetError> {
                // SAFETY: `Puts::new`'s contract, and `Registered` keeps the window.
                unsafe { crate::net::$comm::register(&mut **self, address as *mut u8, bytes, kind) }
            }
            fn deregister(&mut self, memory: MemoryHandle) -> Result<(), NetError> {
                crate::net::$comm::deregister(&mut **self, memory)
            }
        }
    )* };
}
registers!(SendComm, RecvComm);
