//! A network of cards that reach GPUs' memory, as far as a test can tell: the GPU sees what such a card has written only
//! once it is flushed, or, of a GPU that orders writes, once the message is done. What is a GPU's is the host's here, or a
//! file that stands for a DMA buffer, which the card maps for itself.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ferroccl_proxy::NetError;
use ferroccl_proxy::net::{
    Connecting, Listener, LocalNet, MemoryHandle, MemoryKind, Net, Properties, RecvBuffer,
    RecvComm, Request, SendComm,
};

/// How often a flush is asked about before it is done.
const FLUSHING: usize = 3;
/// Requests from here on are flushes.
const FLUSH: u64 = 1 << 40;

/// What has happened.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Registrations of GPUs' memory by address, and as a DMA buffer.
    pub(crate) by_address: AtomicUsize,
    pub(crate) dma_buf: AtomicUsize,
    /// Bytes that have arrived there, and that were sent from there.
    pub(crate) arrived: AtomicUsize,
    pub(crate) sent: AtomicUsize,
    pub(crate) flushes: AtomicUsize,
    /// Of the GPUs' memory that is sent from: the card that it was registered with, and its address.
    pub(crate) sources: Mutex<Vec<(usize, u64)>>,
}

impl Seen {
    pub(crate) fn of(&self, what: impl Fn(&Seen) -> &AtomicUsize) -> usize {
        what(self).load(Ordering::Relaxed)
    }
}

fn add(to: &AtomicUsize, n: usize) {
    to.fetch_add(n, Ordering::Relaxed);
}

/// The network.
#[derive(Debug)]
pub(crate) struct CardNet {
    inner: LocalNet,
    pub(crate) seen: Arc<Seen>,
    /// Whether it reaches GPUs' memory by address, and as a DMA buffer.
    pub(crate) takes: (bool, bool),
    /// Whether GPUs see in order what each card writes.
    pub(crate) ordered: Vec<bool>,
}

impl CardNet {
    pub(crate) fn new(takes: (bool, bool), ordered: bool) -> Self {
        Self::with_devices(takes, &[ordered])
    }

    /// A network of a card for each element of `ordered`: whether GPUs see in order what it writes.
    pub(crate) fn with_devices(takes: (bool, bool), ordered: &[bool]) -> Self {
        let (inner, ordered) = (LocalNet::with_devices(ordered.len()), ordered.to_vec());
        CardNet { inner, seen: Arc::default(), takes, ordered }
    }

    /// Bytes that each card has sent.
    #[allow(dead_code, reason = "each test binary uses its part")]
    pub(crate) fn sent(&self) -> Vec<u64> {
        self.inner.sent()
    }
}

impl Net for CardNet {
    fn name(&self) -> &str {
        "Card"
    }

    fn devices(&self) -> usize {
        self.inner.devices()
    }

    fn properties(&self, device: usize) -> Result<Properties, NetError> {
        let (cuda, dma_buf) = self.takes;
        let name = format!("card{device}");
        Ok(Properties { name, port: 1, cuda, dma_buf, ..self.inner.properties(device)? })
    }

    fn listen(&self, device: usize) -> Result<Box<dyn Listener>, NetError> {
        let (seen, ordered) = (Arc::clone(&self.seen), self.ordered[device]);
        Ok(Box::new(Listens { inner: self.inner.listen(device)?, seen, ordered }))
    }

    fn connect(&self, device: usize, handle: &[u8]) -> Result<Box<dyn Connecting>, NetError> {
        let seen = Arc::clone(&self.seen);
        Ok(Box::new(Connects { inner: self.inner.connect(device, handle)?, device, seen }))
    }
}

struct Listens {
    inner: Box<dyn Listener>,
    seen: Arc<Seen>,
    ordered: bool,
}

impl Listener for Listens {
    fn handle(&self) -> &[u8] {
        self.inner.handle()
    }

    fn accept(&mut self) -> Result<Option<Box<dyn RecvComm>>, NetError> {
        let card = || Card::new(&self.seen);
        Ok(self.inner.accept()?.map(|inner| {
            let (arriving, late) = (HashMap::new(), Vec::new());
            let (flushes, ordered) = (HashMap::new(), self.ordered);
            Box::new(Receives { inner, card: card(), arriving, late, flushes, ordered }) as _
        }))
    }
}

struct Connects {
    inner: Box<dyn Connecting>,
    device: usize,
    seen: Arc<Seen>,
}

impl Connecting for Connects {
    fn poll(&mut self) -> Result<Option<Box<dyn SendComm>>, NetError> {
        let inner = self.inner.poll()?;
        let device = self.device;
        Ok(inner.map(|inner| Box::new(Sends { inner, device, card: Card::new(&self.seen) }) as _))
    }
}

/// Memory that a connection knows.
#[derive(Debug)]
enum Known {
    Host(MemoryHandle),
    /// A GPU's: where it is for kernels and for the card, and what the card holds back.
    Gpu {
        start: usize,
        mapped: Mapped,
        bytes: usize,
        held: Box<[u8]>,
        inner: MemoryHandle,
    },
}

/// Where a card has a GPU's memory.
#[derive(Debug)]
struct Mapped {
    at: NonNull<u8>,
    /// Of a mapping that is ours.
    bytes: usize,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: mapped by `Card::map`.
            unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
        }
    }
}

/// What both ends have.
#[derive(Debug)]
struct Card {
    seen: Arc<Seen>,
    known: Vec<Known>,
}

// SAFETY: addresses of memory that outlives the registrations, as their contract has it.
unsafe impl Send for Card {}

impl Card {
    fn new(seen: &Arc<Seen>) -> Self {
        Card { seen: Arc::clone(seen), known: Vec::new() }
    }

    fn add(
        &mut self,
        (address, bytes): (*mut u8, usize),
        kind: MemoryKind,
        inner: impl FnOnce(*mut u8) -> Result<MemoryHandle, NetError>,
    ) -> Result<MemoryHandle, NetError> {
        let known = match kind {
            MemoryKind::Host => Known::Host(inner(address)?),
            MemoryKind::Cuda | MemoryKind::DmaBuf { .. } => {
                let mapped = match kind {
                    MemoryKind::DmaBuf { fd, offset } => {
                        add(&self.seen.dma_buf, 1);
                        Self::map(fd, offset, bytes)
                    }
                    _ => {
                        add(&self.seen.by_address, 1);
                        Mapped { at: NonNull::new(address).unwrap(), bytes: 0 }
                    }
                };
                let mut held = vec![0; bytes].into_boxed_slice();
                let inner = inner(held.as_mut_ptr())?;
                Known::Gpu { start: address as usize, mapped, bytes, held, inner }
            }
        };
        self.known.push(known);
        Ok(MemoryHandle(self.known.len() as u64 - 1))
    }

    fn map(fd: i32, offset: u64, bytes: usize) -> Mapped {
        // SAFETY: the caller's descriptor, open during the call; a mapping at a place of the system's choice.
        let at = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd, offset as i64)
        };
        assert_ne!(at, libc::MAP_FAILED, "{bytes} bytes of a DMA buffer from {offset:#x} on");
        Mapped { at: NonNull::new(at.cast()).unwrap(), bytes }
    }

    /// Where the inner network has an address, and by which handle; for a GPU's memory also where the card has it.
    fn find(
        &mut self,
        at: usize,
        bytes: usize,
        memory: MemoryHandle,
    ) -> (*mut u8, MemoryHandle, Option<*mut u8>) {
        match &mut self.known[memory.0 as usize] {
            Known::Host(inner) => (at as *mut u8, *inner, None),
            Known::Gpu { start, mapped, bytes: all, held, inner } => {
                let offset = at.checked_sub(*start).unwrap();
                assert!(offset + bytes <= *all, "{bytes} bytes at {offset} of {all}");
                let card = mapped.at.as_ptr().wrapping_add(offset);
                (held.as_mut_ptr().wrapping_add(offset), *inner, Some(card))
            }
        }
    }
}

#[derive(Debug)]
struct Sends {
    inner: Box<dyn SendComm>,
    device: usize,
    card: Card,
}

impl SendComm for Sends {
    unsafe fn register(
        &mut self,
        address: *mut u8,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError> {
        let inner = &mut self.inner;
        if kind != MemoryKind::Host {
            self.card.seen.sources.lock().unwrap().push((self.device, address as u64));
        }
        // SAFETY: the caller's, or memory of ours.
        self.card.add((address, bytes), kind, |at| unsafe {
            inner.register(at, bytes, MemoryKind::Host)
        })
    }

    fn deregister(&mut self, _: MemoryHandle) -> Result<(), NetError> {
        Ok(())
    }

    unsafe fn isend(
        &mut self,
        address: *const u8,
        bytes: usize,
        tag: u32,
        memory: MemoryHandle,
    ) -> Result<Option<Request>, NetError> {
        let (at, handle, gpu) = self.card.find(address as usize, bytes, memory);
        if let Some(gpu) = gpu {
            // SAFETY: the caller's: nobody writes there now. What is sent is held until the request is done.
            unsafe { std::ptr::copy_nonoverlapping(gpu, at, bytes) };
        }
        // SAFETY: the caller's.
        let request = unsafe { self.inner.isend(at, bytes, tag, handle)? };
        if gpu.is_some() && request.is_some() {
            add(&self.card.seen.sent, bytes);
        }
        Ok(request)
    }

    fn test(&mut self, request: Request) -> Result<bool, NetError> {
        self.inner.test(request)
    }
}

/// Bytes that have come to the card: where it holds them, and where they belong.
type Late = (usize, usize, usize);

#[derive(Debug)]
struct Receives {
    inner: Box<dyn RecvComm>,
    card: Card,
    /// By request: where it goes, if that is a GPU's.
    arriving: HashMap<u64, (usize, usize)>,
    /// What the GPU does not see yet.
    late: Vec<Late>,
    /// By number: how often it was asked about, and what it flushes.
    flushes: HashMap<u64, (usize, Vec<Late>)>,
    ordered: bool,
}

impl Receives {
    fn show(late: &[Late]) {
        for &(from, to, bytes) in late {
            let (from, to) = (from as *const u8, to as *mut u8);
            // SAFETY: memory that is registered; the receiver does not touch it before it is told.
            unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        }
    }
}

impl RecvComm for Receives {
    unsafe fn register(
        &mut self,
        address: *mut u8,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError> {
        let inner = &mut self.inner;
        // SAFETY: the caller's, or memory of ours.
        self.card.add((address, bytes), kind, |at| unsafe {
            inner.register(at, bytes, MemoryKind::Host)
        })
    }

    fn deregister(&mut self, _: MemoryHandle) -> Result<(), NetError> {
        Ok(())
    }

    unsafe fn irecv(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>, NetError> {
        let [buffer] = buffers else { panic!("{} buffers", buffers.len()) };
        let at = buffer.address as usize;
        let (held, memory, gpu) = self.card.find(at, buffer.bytes, buffer.memory);
        let inner = RecvBuffer { address: held, memory, ..*buffer };
        // SAFETY: the caller's.
        let request = unsafe { self.inner.irecv(&[inner])? };
        if let (Some(request), Some(gpu)) = (request, gpu) {
            assert!(request.0 < FLUSH);
            self.arriving.insert(request.0, (held as usize, gpu as usize));
        }
        Ok(request)
    }

    fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool, NetError> {
        if let Some((asked, _)) = self.flushes.get_mut(&request.0) {
            *asked += 1;
            if *asked < FLUSHING {
                return Ok(false);
            }
            let (_, late) = self.flushes.remove(&request.0).unwrap();
            Self::show(&late);
            return Ok(true);
        }
        if !self.inner.test(request, sizes)? {
            return Ok(false);
        }
        if let Some((held, gpu)) = self.arriving.remove(&request.0) {
            add(&self.card.seen.arrived, sizes[0]);
            let late = (held, gpu, sizes[0]);
            if self.ordered {
                Self::show(&[late]);
            } else {
                self.late.push(late);
            }
        }
        Ok(true)
    }

    unsafe fn iflush(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>, NetError> {
        let [buffer] = buffers else { panic!("{} buffers", buffers.len()) };
        let at = buffer.address as usize;
        let (.., gpu) = self.card.find(at, buffer.bytes, buffer.memory);
        assert!(gpu.is_some(), "a flush of the host's memory");
        assert!(self.flushes.is_empty(), "two flushes at a time");
        let number = FLUSH + self.card.seen.flushes.fetch_add(1, Ordering::Relaxed) as u64;
        self.flushes.insert(number, (0, std::mem::take(&mut self.late)));
        Ok(Some(Request(number)))
    }
}
