//! An open device.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::{self, JoinHandle};

use bytemuck::Zeroable as _;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use tracing::{info, warn};

use super::library::Library;
use super::memory::RegistrationCache;
use super::sys;

use crate::sync::lock;

/// A device, its protection domain, and the memory that is registered there. One for all connections of a process: memory
/// that several of them use is registered once.
pub(super) struct Context {
    pub(super) library: &'static Library,
    pub(super) raw: *mut sys::ibv_context,
    pub(super) domain: *mut sys::ibv_pd,
    pub(super) name: String,
    pub(super) cache: RegistrationCache,
    pub(super) events: Arc<AsyncEvents>,
    watcher: Option<(JoinHandle<()>, Arc<EventFd>)>,
}

// SAFETY: the library's functions may be called from any thread, several at a time (RDMA-aware programming user manual,
// 1.1: "the API is thread safe"); nothing else is reached by the pointers.
unsafe impl Send for Context {}
// SAFETY: the same.
unsafe impl Sync for Context {}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The devices that are open, by name.
static OPEN: Mutex<BTreeMap<String, Weak<Context>>> = Mutex::new(BTreeMap::new());

impl Context {
    /// The device of this name, opened if nobody in this process has it open.
    ///
    /// # Safety
    /// The device is of a list that is not freed.
    pub(super) unsafe fn shared(
        library: &'static Library,
        device: *mut sys::ibv_device,
        name: &str,
    ) -> io::Result<Arc<Context>> {
        let mut open = lock(&OPEN);
        if let Some(context) = open.get(name).and_then(Weak::upgrade) {
            return Ok(context);
        }
        // SAFETY: the caller's.
        let context = unsafe { Context::open(library, device, name.to_owned())? };
        open.insert(name.to_owned(), Arc::downgrade(&context));
        Ok(context)
    }

    /// Opens a device.
    ///
    /// # Safety
    /// As [`Context::shared`].
    unsafe fn open(
        library: &'static Library,
        device: *mut sys::ibv_device,
        name: String,
    ) -> io::Result<Arc<Context>> {
        // SAFETY: the caller's.
        let raw = unsafe { (library.open_device)(device) };
        if raw.is_null() {
            return Err(io::Error::last_os_error());
        }
        // From here on what is there is closed if anything fails.
        let events = Arc::default();
        let mut context = Context {
            library,
            raw,
            domain: std::ptr::null_mut(),
            name,
            cache: RegistrationCache::default(),
            events,
            watcher: None,
        };
        // SAFETY: the context is open.
        context.domain = unsafe { (library.alloc_pd)(raw) };
        if context.domain.is_null() {
            return Err(io::Error::last_os_error());
        }
        context.watch()?;
        Ok(Arc::new(context))
    }

    /// Starts the thread that receives the device's asynchronous events.
    fn watch(&mut self) -> io::Result<()> {
        // SAFETY: the context is open.
        let fd = unsafe { (*self.raw).async_fd };
        // SAFETY: the descriptor is the context's, which is closed after the thread has ended.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        nix::fcntl::fcntl(borrowed, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))?;
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let watcher = EventThread {
            library: self.library,
            raw: self.raw,
            name: self.name.clone(),
            events: Arc::clone(&self.events),
            wake: Arc::clone(&wake),
        };
        let thread = thread::Builder::new()
            .name("ferroccl-verbs".to_owned())
            .spawn(move || watcher.run(fd))?;
        self.watcher = Some((thread, wake));
        Ok(())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some((thread, wake)) = self.watcher.take() {
            // The counter of an event file that cannot be written is not 0; a thread that has panicked has ended, too.
            let _ = wake.write(1);
            let _ = thread.join();
        }
        // SAFETY: whatever is made of it keeps it, so that nothing is left.
        unsafe {
            if !self.domain.is_null() && (self.library.dealloc_pd)(self.domain) != 0 {
                warn!("NET/IB: {}: its protection domain is still in use", self.name);
            }
            if (self.library.close_device)(self.raw) != 0 {
                warn!("NET/IB: {} cannot be closed", self.name);
            }
        }
    }
}

/// Errors that a device has reported by asynchronous events.
#[derive(Debug, Default)]
pub(super) struct AsyncEvents(Mutex<EventLog>);

#[derive(Debug, Default)]
struct EventLog {
    fatal: Vec<(EventSource, String)>,
    /// Ports that are down, since we look.
    down: Vec<u8>,
}

/// What an event concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventSource {
    Device,
    /// Its number.
    QueuePair(u32),
    /// Its address.
    CompletionQueue(usize),
}

impl AsyncEvents {
    fn lock(&self) -> MutexGuard<'_, EventLog> {
        lock(&self.0)
    }

    /// What has happened to the device, or one of these parts of it.
    pub(super) fn fatal(&self, concerns: impl Fn(EventSource) -> bool) -> Option<String> {
        let state = self.lock();
        let found = state.fatal.iter().find(|(of, _)| *of == EventSource::Device || concerns(*of));
        found.map(|(_, text)| text.clone())
    }

    pub(super) fn is_down(&self, port: u8) -> bool {
        self.lock().down.contains(&port)
    }

    /// A part is gone: another may get its number.
    pub(super) fn forget(&self, part: EventSource) {
        self.lock().fatal.retain(|(of, _)| *of != part);
    }
}

/// The thread that receives asynchronous events.
struct EventThread {
    library: &'static Library,
    raw: *mut sys::ibv_context,
    name: String,
    events: Arc<AsyncEvents>,
    wake: Arc<EventFd>,
}

// SAFETY: as of `Context`, which outlives it.
unsafe impl Send for EventThread {}

impl EventThread {
    fn run(self, fd: RawFd) {
        // SAFETY: as in `Context::watch`.
        let device = unsafe { BorrowedFd::borrow_raw(fd) };
        loop {
            let mut both = [
                PollFd::new(self.wake.as_fd(), PollFlags::POLLIN),
                PollFd::new(device, PollFlags::POLLIN),
            ];
            match poll(&mut both, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => {
                    warn!("NET/IB: {}: no events are received any more: {error}", self.name);
                    return;
                }
            }
            if both[0].any().unwrap_or(false) {
                return;
            }
            let gone = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
            let is_gone = both[1].revents().is_some_and(|events| events.intersects(gone));
            while let Some(mut event) = self.next() {
                self.note(&event);
                // SAFETY: `get_async_event` gave it, and this is the only answer.
                unsafe { (self.library.ack_async_event)(&mut event) };
            }
            if is_gone {
                warn!("NET/IB: {} is gone", self.name);
                self.events
                    .lock()
                    .fatal
                    .push((EventSource::Device, "the device is gone".to_owned()));
                return;
            }
        }
    }

    fn next(&self) -> Option<sys::ibv_async_event> {
        let mut event = sys::ibv_async_event::zeroed();
        // SAFETY: the context is open; whether an event was written, the result says.
        let failed = unsafe { (self.library.get_async_event)(self.raw, &mut event) };
        (failed == 0).then_some(event)
    }

    /// What an event means for connections. Which are fatal: as with NCCL (`net_ib.cc`, `ncclIbAsyncThreadMain`).
    fn note(&self, event: &sys::ibv_async_event) {
        let (name, text) = (&self.name, self.library.event(event.event_type));
        let element = event.element;
        // SAFETY: the kind of an event says which element it has, and that stays until it is acknowledged.
        let of = unsafe {
            match event.event_type {
                sys::IBV_EVENT_QP_FATAL
                | sys::IBV_EVENT_QP_REQ_ERR
                | sys::IBV_EVENT_QP_ACCESS_ERR => EventSource::QueuePair((*element.qp).qp_num),
                sys::IBV_EVENT_CQ_ERR => EventSource::CompletionQueue(element.cq as usize),
                sys::IBV_EVENT_DEVICE_FATAL => EventSource::Device,
                sys::IBV_EVENT_PORT_ERR => {
                    let port = element.port_num as u8; // ports are numbered in 8 bits
                    warn!("NET/IB: {name}:{port}: {text}");
                    self.events.lock().down.push(port);
                    return;
                }
                sys::IBV_EVENT_PORT_ACTIVE => {
                    let port = element.port_num as u8;
                    info!("NET/IB: {name}:{port}: {text}");
                    self.events.lock().down.retain(|&down| down != port);
                    return;
                }
                // Part of how connections end.
                sys::IBV_EVENT_COMM_EST | sys::IBV_EVENT_QP_LAST_WQE_REACHED => return,
                _ => {
                    info!("NET/IB: {name}: {text}");
                    return;
                }
            }
        };
        warn!("NET/IB: {name}: {text} ({of:?})");
        self.events.lock().fatal.push((of, text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_concerns_its_part_or_everything() {
        let events = AsyncEvents::default();
        events.lock().fatal.push((EventSource::QueuePair(7), "a pair".to_owned()));
        let seen = |part: EventSource| events.fatal(|of| of == part);
        assert_eq!(seen(EventSource::QueuePair(7)).as_deref(), Some("a pair"));
        assert_eq!(
            (seen(EventSource::QueuePair(8)), seen(EventSource::CompletionQueue(7))),
            (None, None)
        );
        events.forget(EventSource::QueuePair(7));
        assert_eq!(seen(EventSource::QueuePair(7)), None, "another of this number is another");
        events.lock().fatal.push((EventSource::Device, "the device".to_owned()));
        assert_eq!(seen(EventSource::QueuePair(8)).as_deref(), Some("the device"));
    }
}
