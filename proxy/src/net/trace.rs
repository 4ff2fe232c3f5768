//! A log of the calls to any network.
//!
//! Events have the target `ferroccl::net`. Those of connections, memory and errors are of level debug. Those of messages are of
//! level trace: one when a message begins, one when it is done, with the time between. A call that returns "not yet" logs
//! nothing.
//!
//! ```text
//! DEBUG ferroccl::net: Socket: connected to device 0 in 1.2ms connection=3
//! TRACE ferroccl::net: isend connection=3 request=17 bytes=65536 tag=0
//! TRACE ferroccl::net: sent connection=3 request=17 bytes=65536 took=80µs
//! ```

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tracing::{Level, debug, enabled, trace};

use super::{
    Connecting, Listener, MemoryHandle, MemoryKind, Net, Properties, RecvBuffer, RecvComm, Request,
    SendComm,
};
use crate::NetError;

const TARGET: &str = "ferroccl::net";

/// A network whose calls are logged.
///
/// ```
/// use std::sync::Arc;
///
/// use ferroccl_proxy::net::{Net, TraceNet};
///
/// fn with_trace(net: Arc<dyn Net>) -> Arc<dyn Net> {
///     Arc::new(TraceNet::new(net))
/// }
/// ```
#[derive(Debug)]
pub struct TraceNet {
    inner: Arc<dyn Net>,
}

impl TraceNet {
    /// This network with a record of what it does.
    #[must_use]
    pub fn new(inner: Arc<dyn Net>) -> TraceNet {
        TraceNet { inner }
    }
}

/// Says what went wrong, if anything did.
fn told<T>(connection: u64, result: Result<T, NetError>) -> Result<T, NetError> {
    if let Err(error) = &result {
        debug!(target: TARGET, connection, "{error}");
    }
    result
}

/// The number of a listener or a connection in the record; from 1.
fn number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    // Numbers, and nothing else is ordered by them.
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

impl Net for TraceNet {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn devices(&self) -> usize {
        self.inner.devices()
    }

    fn properties(&self, device: usize) -> Result<Properties, NetError> {
        let properties = told(0, self.inner.properties(device))?;
        debug!(target: TARGET, "{}: device {device} is {properties:?}", self.name());
        Ok(properties)
    }

    fn max_devices_per_nic(&self) -> usize {
        self.inner.max_devices_per_nic()
    }

    fn make_virtual_device(&self, members: &[usize]) -> Result<usize, NetError> {
        let device = told(0, self.inner.make_virtual_device(members))?;
        debug!(target: TARGET, "{}: device {device} is made of {members:?}", self.name());
        Ok(device)
    }

    fn listen(&self, device: usize) -> Result<Box<dyn Listener>, NetError> {
        let inner = told(0, self.inner.listen(device))?;
        let listener = number();
        debug!(target: TARGET, listener, "{}: listens on device {device}", self.name());
        let what = format!("{}: listener of device {device}", self.name());
        Ok(Box::new(Traced { inner, number: listener, since: Instant::now(), what }))
    }

    fn connect(&self, device: usize, handle: &[u8]) -> Result<Box<dyn Connecting>, NetError> {
        let inner = told(0, self.inner.connect(device, handle))?;
        let connection = number();
        debug!(target: TARGET, connection, "{}: connects from device {device}", self.name());
        let what = format!("{}: device {device}", self.name());
        Ok(Box::new(Traced { inner, number: connection, since: Instant::now(), what }))
    }
}

/// A listener, or a connection that is being made.
struct Traced<T: ?Sized> {
    number: u64,
    since: Instant,
    what: String,
    inner: Box<T>,
}

impl Listener for Traced<dyn Listener> {
    fn handle(&self) -> &[u8] {
        self.inner.handle()
    }

    fn accept(&mut self) -> Result<Option<Box<dyn RecvComm>>, NetError> {
        let Some(comm) = told(self.number, self.inner.accept())? else { return Ok(None) };
        let (connection, listener) = (number(), self.number);
        debug!(target: TARGET, connection, listener, "{} has accepted {comm:?}", self.what);
        Ok(Some(Box::new(TracedComm::new(comm, connection))))
    }
}

impl Connecting for Traced<dyn Connecting> {
    fn poll(&mut self) -> Result<Option<Box<dyn SendComm>>, NetError> {
        let connection = self.number;
        let Some(comm) = told(connection, self.inner.poll())? else { return Ok(None) };
        let took = self.since.elapsed();
        debug!(target: TARGET, connection, ?took, "{} has connected {comm:?}", self.what);
        Ok(Some(Box::new(TracedComm::new(comm, connection))))
    }
}

/// A request that has begun.
struct TracedRequest {
    since: Instant,
    /// Of the message that is sent.
    bytes: usize,
    /// How many there are, of one that receives.
    buffers: usize,
}

/// An end of a connection.
struct TracedComm<T: ?Sized> {
    number: u64,
    /// What has begun; only while somebody listens.
    began: HashMap<Request, TracedRequest>,
    messages: u64,
    bytes: u64,
    inner: Box<T>,
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for TracedComm<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized> TracedComm<T> {
    fn new(inner: Box<T>, number: u64) -> TracedComm<T> {
        TracedComm { number, began: HashMap::new(), messages: 0, bytes: 0, inner }
    }

    fn registered(
        &self,
        (address, bytes, kind): (*mut u8, usize, MemoryKind),
        result: Result<MemoryHandle, NetError>,
    ) -> Result<MemoryHandle, NetError> {
        let memory = told(self.number, result)?;
        let connection = self.number;
        debug!(target: TARGET, connection, memory = memory.0, ?address, bytes, ?kind, "registers");
        Ok(memory)
    }

    fn deregistered(
        &self,
        memory: MemoryHandle,
        result: Result<(), NetError>,
    ) -> Result<(), NetError> {
        told(self.number, result)?;
        debug!(target: TARGET, connection = self.number, memory = memory.0, "deregisters");
        Ok(())
    }

    fn begins(&mut self, request: Request, bytes: usize, buffers: usize) {
        if enabled!(target: TARGET, Level::TRACE) {
            self.began.insert(request, TracedRequest { since: Instant::now(), bytes, buffers });
        }
    }

    /// `sizes` are those of what has arrived.
    fn is_done(&mut self, what: &'static str, request: Request, sizes: &[usize]) {
        let Some(TracedRequest { since, bytes, buffers }) = self.began.remove(&request) else {
            return;
        };
        let (connection, took) = (self.number, since.elapsed());
        let bytes = sizes.iter().take(buffers).fold(bytes, |sum, size| sum.saturating_add(*size));
        self.messages += 1;
        self.bytes += bytes as u64;
        trace!(target: TARGET, connection, request = request.0, bytes, ?took, "{what}");
    }
}

impl<T: ?Sized> Drop for TracedComm<T> {
    fn drop(&mut self) {
        let (connection, under_way) = (self.number, self.began.len());
        let (messages, bytes) = (self.messages, self.bytes);
        debug!(target: TARGET, connection, messages, bytes, under_way, "closes");
    }
}

impl SendComm for TracedComm<dyn SendComm> {
    unsafe fn register(
        &mut self,
        address: *mut u8,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError> {
        // SAFETY: the caller's.
        let result = unsafe { self.inner.register(address, bytes, kind) };
        self.registered((address, bytes, kind), result)
    }

    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), NetError> {
        let result = self.inner.deregister(memory);
        self.deregistered(memory, result)
    }

    unsafe fn isend(
        &mut self,
        address: *const u8,
        bytes: usize,
        tag: u32,
        memory: MemoryHandle,
    ) -> Result<Option<Request>, NetError> {
        // SAFETY: the caller's.
        let result = unsafe { self.inner.isend(address, bytes, tag, memory) };
        let Some(request) = told(self.number, result)? else { return Ok(None) };
        let connection = self.number;
        trace!(target: TARGET, connection, request = request.0, bytes, tag, "isend");
        self.begins(request, bytes, 0);
        Ok(Some(request))
    }

    fn cork(&mut self, corked: bool) {
        self.inner.cork(corked);
    }

    fn test(&mut self, request: Request) -> Result<bool, NetError> {
        let done = told(self.number, self.inner.test(request))?;
        if done {
            self.is_done("sent", request, &[]);
        }
        Ok(done)
    }
}

impl RecvComm for TracedComm<dyn RecvComm> {
    unsafe fn register(
        &mut self,
        address: *mut u8,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError> {
        // SAFETY: the caller's.
        let result = unsafe { self.inner.register(address, bytes, kind) };
        self.registered((address, bytes, kind), result)
    }

    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), NetError> {
        let result = self.inner.deregister(memory);
        self.deregistered(memory, result)
    }

    unsafe fn irecv(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>, NetError> {
        // SAFETY: the caller's.
        let result = unsafe { self.inner.irecv(buffers) };
        let Some(request) = told(self.number, result)? else { return Ok(None) };
        for RecvBuffer { bytes, tag, .. } in buffers {
            let connection = self.number;
            trace!(target: TARGET, connection, request = request.0, bytes, tag, "irecv");
        }
        self.begins(request, 0, buffers.len());
        Ok(Some(request))
    }

    fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool, NetError> {
        let done = told(self.number, self.inner.test(request, sizes))?;
        if done {
            self.is_done("received", request, sizes);
        }
        Ok(done)
    }

    unsafe fn iflush(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>, NetError> {
        // SAFETY: the caller's.
        let result = unsafe { self.inner.iflush(buffers) };
        let Some(request) = told(self.number, result)? else { return Ok(None) };
        trace!(target: TARGET, connection = self.number, request = request.0, "iflush");
        self.begins(request, 0, 0);
        Ok(Some(request))
    }
}
