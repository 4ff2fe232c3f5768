//! A network within a process, of one device or several: a message is copied when both ends have named their buffers. Several
//! devices can be one, each of which then carries an equal part of a message.
//!
//! It has no threads, no clock and no chance, so that what runs over it can be replayed; a schedule of one thread
//! (`Device::cpu_seeded` of the library) takes it for that. It is lazy, too: a request is done at the second
//! [`test`](super::SendComm::test) at the earliest, as nothing real is done at once.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::{
    Connecting, Listener, MAX_REQUESTS, MemoryHandle, MemoryKind, Net, Properties, RecvBuffer,
    RecvComm, Request, SendComm, check_members,
};
use crate::NetError;
use crate::sync::lock;

const NAME: &str = "Local";

/// Devices of a virtual one at most: as of the other networks.
const MAX_MEMBERS: usize = 4;

/// The network. Clones are the same one.
///
/// ```
/// use ferroccl_proxy::net::{LocalNet, MemoryKind, Net, RecvBuffer, RecvComm, SendComm};
///
/// let net = LocalNet::default();
/// let mut listener = net.listen(0)?;
/// let mut to = net.connect(0, listener.handle())?.poll()?.expect("nothing to wait for");
/// let mut from = listener.accept()?.expect("somebody has connected");
///
/// let (mut sent, mut received) = (*b"hello", [0u8; 8]);
/// // SAFETY: the buffers are there until both requests are done, and nobody else touches them.
/// unsafe {
///     let memory = from.register(received.as_mut_ptr(), 8, MemoryKind::Host)?;
///     let buffer = RecvBuffer { address: received.as_mut_ptr(), bytes: 8, tag: 0, memory };
///     let arrival = from.irecv(&[buffer])?.expect("nothing else is under way");
///     let memory = to.register(sent.as_mut_ptr(), 5, MemoryKind::Host)?;
///     let departure = to.isend(sent.as_ptr(), 5, 0, memory)?.expect("nothing else is under way");
///     while !to.test(departure)? {}
///     let mut sizes = [0];
///     while !from.test(arrival, &mut sizes)? {}
///     assert_eq!(sizes, [5]);
/// }
/// assert_eq!(&received[..5], b"hello");
/// # Ok::<(), ferroccl_proxy::NetError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LocalNet {
    listeners: Arc<Mutex<Listeners>>,
    /// Bytes that each real device has sent.
    sent: Arc<[AtomicU64]>,
    /// The members of virtual devices, which are numbered behind the real ones.
    virtual_devices: Arc<Mutex<Vec<Vec<usize>>>>,
}

impl Default for LocalNet {
    fn default() -> Self {
        LocalNet::with_devices(1)
    }
}

impl LocalNet {
    /// A network of so many devices, one at least. Each reaches all others.
    #[must_use]
    pub fn with_devices(devices: usize) -> Self {
        let sent = (0..devices.max(1)).map(|_| AtomicU64::new(0)).collect();
        LocalNet { listeners: Arc::default(), sent, virtual_devices: Arc::default() }
    }

    /// Bytes that each real device has sent, by itself or as a member of a virtual one.
    #[must_use]
    pub fn sent(&self) -> Vec<u64> {
        // Orders nothing: a figure to look at.
        self.sent.iter().map(|sent| sent.load(Ordering::Relaxed)).collect()
    }

    /// The real devices of a device.
    fn members(&self, device: usize) -> Result<Vec<usize>, NetError> {
        let Some(place) = device.checked_sub(self.sent.len()) else { return Ok(vec![device]) };
        let members = lock(&self.virtual_devices).get(place).cloned();
        members.ok_or_else(|| error("properties", format!("there is no device {device}")))
    }
}

#[derive(Debug, Default)]
struct Listeners {
    last: u64,
    /// Who waits for connections, by handle.
    open: HashMap<u64, Weak<Mutex<VecDeque<LocalRecvComm>>>>,
}

/// A connection: both ends have it.
type Pipe = Arc<Mutex<PipeState>>;

#[derive(Debug, Default)]
struct PipeState {
    /// Messages that are sent, and buffers that wait for one: of the two lists one is empty, but for what is done.
    sends: VecDeque<PendingSend>,
    recvs: VecDeque<PendingRecv>,
    /// Numbers of the first in each list.
    first_send: u64,
    first_recv: u64,
    /// Matched so far.
    matched: u64,
    closed: bool,
    error: Option<NetError>,
}

#[derive(Debug)]
struct PendingSend {
    address: usize,
    bytes: usize,
    done: bool,
    looks: u8,
}

#[derive(Debug)]
struct PendingRecv {
    address: usize,
    bytes: usize,
    size: Option<usize>,
    looks: u8,
}

#[derive(Debug)]
struct LocalSendComm {
    pipe: Pipe,
    /// Its network's counts, and its real devices.
    sent: Arc<[AtomicU64]>,
    members: Vec<usize>,
}

#[derive(Debug)]
struct LocalRecvComm(Pipe);

struct LocalListener {
    handle: [u8; 8],
    queue: Arc<Mutex<VecDeque<LocalRecvComm>>>,
}

fn error(operation: &'static str, reason: impl Into<String>) -> NetError {
    NetError::new(NAME, operation, reason)
}

impl Net for LocalNet {
    fn name(&self) -> &str {
        NAME
    }

    fn devices(&self) -> usize {
        self.sent.len() + lock(&self.virtual_devices).len()
    }

    fn properties(&self, device: usize) -> Result<Properties, NetError> {
        let members = self.members(device)?;
        let name = |device: &usize| match device {
            0 => "local".to_owned(),
            device => format!("local{device}"),
        };
        Ok(Properties {
            name: members.iter().map(name).collect::<Vec<_>>().join("+"),
            pci_path: None,
            guid: members[0] as u64,
            speed: 100_000 * members.len() as u32,
            port: 0,
            max_requests: MAX_REQUESTS,
            max_receives: 1,
            cuda: false,
            dma_buf: false,
            members: if members.len() > 1 { members } else { Vec::new() },
        })
    }

    fn max_devices_per_nic(&self) -> usize {
        MAX_MEMBERS
    }

    fn make_virtual_device(&self, members: &[usize]) -> Result<usize, NetError> {
        let real = self.sent.len();
        check_members(members, real, MAX_MEMBERS)
            .map_err(|reason| error("make_virtual_device", reason))?;
        let mut known = lock(&self.virtual_devices);
        let place = known.iter().position(|one| one == members).unwrap_or(known.len());
        if place == known.len() {
            known.push(members.to_vec());
        }
        Ok(real + place)
    }

    fn listen(&self, device: usize) -> Result<Box<dyn Listener>, NetError> {
        self.properties(device)?;
        let mut listeners = lock(&self.listeners);
        listeners.open.retain(|_, queue| queue.strong_count() > 0);
        listeners.last += 1;
        let (handle, queue) = (listeners.last, Arc::default());
        listeners.open.insert(handle, Arc::downgrade(&queue));
        Ok(Box::new(LocalListener { handle: handle.to_le_bytes(), queue }))
    }

    fn connect(&self, device: usize, handle: &[u8]) -> Result<Box<dyn Connecting>, NetError> {
        let members = self.members(device)?;
        let handle = handle.try_into().map(u64::from_le_bytes);
        let handle = handle.map_err(|_| error("connect", "the handle is not of this network"))?;
        let queue = lock(&self.listeners).open.get(&handle).and_then(Weak::upgrade);
        let queue = queue.ok_or_else(|| error("connect", "nobody listens"))?;
        let pipe = Pipe::default();
        lock(&queue).push_back(LocalRecvComm(Arc::clone(&pipe)));
        let sender = LocalSendComm { pipe, sent: Arc::clone(&self.sent), members };
        Ok(Box::new(LocalConnecting(Some(sender))))
    }
}

struct LocalConnecting(Option<LocalSendComm>);

impl Connecting for LocalConnecting {
    fn poll(&mut self) -> Result<Option<Box<dyn SendComm>>, NetError> {
        let sender = self.0.take().ok_or_else(|| error("connect", "it is connected already"))?;
        Ok(Some(Box::new(sender)))
    }
}

impl Listener for LocalListener {
    fn handle(&self) -> &[u8] {
        &self.handle
    }

    fn accept(&mut self) -> Result<Option<Box<dyn RecvComm>>, NetError> {
        Ok(lock(&self.queue).pop_front().map(|receiver| Box::new(receiver) as Box<dyn RecvComm>))
    }
}

impl PipeState {
    /// Why nothing goes any more.
    fn check(&self, operation: &'static str) -> Result<(), NetError> {
        match &self.error {
            Some(error) => Err(error.clone()),
            None if self.closed => Err(error(operation, "the other end is closed")),
            None => Ok(()),
        }
    }

    /// Copies messages whose two ends are there.
    fn copy(&mut self) {
        while self.error.is_none() {
            let send = self.sends.get_mut((self.matched - self.first_send) as usize);
            let recv = self.recvs.get_mut((self.matched - self.first_recv) as usize);
            let (Some(send), Some(recv)) = (send, recv) else { return };
            if send.bytes > recv.bytes {
                let reason =
                    format!("a message of {} bytes for a buffer of {}", send.bytes, recv.bytes);
                self.error = Some(error("irecv", reason));
                return;
            }
            // SAFETY: `isend`'s and `irecv`'s contract; a closed end has taken its own out of the lists.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    send.address as *const u8,
                    recv.address as *mut u8,
                    send.bytes,
                );
            }
            (send.done, recv.size) = (true, Some(send.bytes));
            self.matched += 1;
        }
    }
}

impl SendComm for LocalSendComm {
    unsafe fn register(
        &mut self,
        _: *mut u8,
        _: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError> {
        register(kind)
    }

    fn deregister(&mut self, _: MemoryHandle) -> Result<(), NetError> {
        Ok(())
    }

    unsafe fn isend(
        &mut self,
        address: *const u8,
        bytes: usize,
        _: u32,
        _: MemoryHandle,
    ) -> Result<Option<Request>, NetError> {
        let mut state = lock(&self.pipe);
        state.check("isend")?;
        if state.sends.len() >= MAX_REQUESTS {
            return Ok(None);
        }
        let send = PendingSend { address: address as usize, bytes, done: false, looks: 0 };
        state.sends.push_back(send);
        let count = self.members.len();
        for (i, device) in self.members.iter().enumerate() {
            let part = bytes * (i + 1) / count - bytes * i / count;
            self.sent[*device].fetch_add(part as u64, Ordering::Relaxed);
        }
        Ok(Some(Request(state.first_send + state.sends.len() as u64 - 1)))
    }

    fn test(&mut self, request: Request) -> Result<bool, NetError> {
        let mut state = lock(&self.pipe);
        state.copy();
        let index = request.0.checked_sub(state.first_send);
        let Some(send) = index.and_then(|i| state.sends.get_mut(i as usize)) else {
            return Err(error("test", "it is no request of this connection"));
        };
        if !send.done {
            return state.check("test").map(|()| false);
        }
        send.looks = (send.looks + 1).min(2);
        if send.looks < 2 {
            return Ok(false);
        }
        // Those asked for out of turn stay until the first is.
        while state.sends.front().is_some_and(|send| send.looks == 2) {
            state.sends.pop_front();
            state.first_send += 1;
        }
        Ok(true)
    }
}

impl RecvComm for LocalRecvComm {
    unsafe fn register(
        &mut self,
        _: *mut u8,
        _: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError> {
        register(kind)
    }

    fn deregister(&mut self, _: MemoryHandle) -> Result<(), NetError> {
        Ok(())
    }

    unsafe fn irecv(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>, NetError> {
        let [buffer] = buffers else {
            return Err(error("irecv", format!("{} buffers: it takes 1", buffers.len())));
        };
        let mut state = lock(&self.0);
        if let Some(error) = &state.error {
            return Err(error.clone());
        }
        if state.recvs.len() >= MAX_REQUESTS {
            return Ok(None);
        }
        let (address, bytes) = (buffer.address as usize, buffer.bytes);
        state.recvs.push_back(PendingRecv { address, bytes, size: None, looks: 0 });
        Ok(Some(Request(state.first_recv + state.recvs.len() as u64 - 1)))
    }

    fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool, NetError> {
        let mut state = lock(&self.0);
        state.copy();
        let index = request.0.checked_sub(state.first_recv);
        let Some(recv) = index.and_then(|i| state.recvs.get_mut(i as usize)) else {
            return Err(error("test", "it is no request of this connection"));
        };
        let Some(bytes) = recv.size else { return state.check("test").map(|()| false) };
        let Some(size) = sizes.first_mut() else {
            return Err(error("test", "no room for the size of the message"));
        };
        recv.looks = (recv.looks + 1).min(2);
        if recv.looks < 2 {
            return Ok(false);
        }
        *size = bytes;
        while state.recvs.front().is_some_and(|recv| recv.looks == 2) {
            state.recvs.pop_front();
            state.first_recv += 1;
        }
        Ok(true)
    }

    unsafe fn iflush(&mut self, _: &[RecvBuffer]) -> Result<Option<Request>, NetError> {
        Ok(None)
    }
}

fn register(kind: MemoryKind) -> Result<MemoryHandle, NetError> {
    match kind {
        MemoryKind::Host => Ok(MemoryHandle(0)),
        other => Err(error("register", format!("{other:?}: it knows the host's memory alone"))),
    }
}

impl Drop for LocalSendComm {
    fn drop(&mut self) {
        let mut state = lock(&self.pipe);
        state.closed = true;
        // What has not been copied never will be: its memory is the caller's again.
        let copied = (state.matched - state.first_send) as usize;
        state.sends.truncate(copied);
    }
}

impl Drop for LocalRecvComm {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.closed = true;
        let copied = (state.matched - state.first_recv) as usize;
        state.recvs.truncate(copied);
    }
}
