//! What the tests of networks are made of: random numbers that replay, and the two ends of a connection.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use ferroccl_proxy::NetError;
use ferroccl_proxy::net::{
    Connecting, Listener, MemoryHandle, MemoryKind, Net, RecvBuffer, RecvComm, Request, SendComm,
};
use tracing::Level;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::dynamic_filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Nothing in these tests takes so long but a hang.
pub(crate) const HANG: Duration = Duration::from_secs(60);

/// Random numbers that follow from a seed (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    /// The seed is `SEED` of the environment, or new; printed, for a test that fails shows what it printed.
    pub(crate) fn new(test: &str) -> Random {
        let chosen = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = chosen.unwrap_or_else(|| {
            let time = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
            time.as_nanos() as u64
        });
        println!("{test}: SEED={seed}");
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// A size of no particular kind: small as often as large.
    pub(crate) fn size(&mut self, most: usize) -> usize {
        let bits = self.below(usize::BITS as usize - most.leading_zeros() as usize + 1);
        self.below(1 << bits).min(most)
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// Waits for what is asked again and again, and gives the processor away meanwhile.
#[track_caller]
pub(crate) fn until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(since.elapsed() < HANG, "it hangs");
        std::thread::yield_now();
    }
}

/// Both ends of a connection that is being made; either may fail.
pub(crate) fn meet(
    listener: &mut Box<dyn Listener>,
    connecting: &mut Box<dyn Connecting>,
) -> Result<(Sending, Receiving), NetError> {
    let (mut send, mut recv) = (None, None);
    let since = Instant::now();
    while send.is_none() || recv.is_none() {
        if send.is_none() {
            send = connecting.poll()?;
        }
        if recv.is_none() {
            recv = listener.accept()?;
        }
        assert!(since.elapsed() < HANG, "it hangs");
        std::thread::yield_now();
    }
    Ok((Sending::new(send.unwrap()), Receiving::new(recv.unwrap())))
}

/// A connection from a device to itself.
pub(crate) fn connect(net: &Arc<dyn Net>, device: usize) -> (Sending, Receiving) {
    let mut listener = net.listen(device).unwrap();
    let mut connecting = net.connect(device, listener.handle()).unwrap();
    meet(&mut listener, &mut connecting).unwrap()
}

/// Bytes that a network may touch, by their address alone.
#[derive(Debug)]
struct Place(*mut [u8]);

// SAFETY: who touches the bytes when is the network's contract, not a thread's.
unsafe impl Send for Place {}
// SAFETY: the same.
unsafe impl Sync for Place {}

impl Place {
    /// All bytes are [`AROUND`].
    fn new(bytes: usize) -> Arc<Place> {
        Arc::new(Place(Box::into_raw(vec![AROUND; bytes].into_boxed_slice())))
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.0.cast::<u8>().wrapping_add(offset)
    }

    /// What nobody touches any more.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the tests look at what is done only.
        unsafe { &*self.0 }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // SAFETY: of `Box::into_raw`.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// What bytes are where nothing has arrived.
const AROUND: u8 = 0xa5;

/// A message under way, its bytes at an address of any alignment.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) request: Request,
    memory: MemoryHandle,
    place: Arc<Place>,
    offset: usize,
}

impl Message {
    /// Once it is done.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.place.bytes()[self.offset..]
    }
}

/// A sending end that owns what it sends, for as long as it is there.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) comm: Box<dyn SendComm>, // dropped first
    places: Vec<Arc<Place>>,
}

impl Sending {
    pub(crate) fn new(comm: Box<dyn SendComm>) -> Sending {
        Sending { comm, places: Vec::new() }
    }

    /// Begins to send these bytes from such an offset.
    pub(crate) fn begin(
        &mut self,
        data: &[u8],
        offset: usize,
        tag: u32,
    ) -> Result<Option<Message>, NetError> {
        let (place, bytes) = (Place::new(data.len() + offset), data.len());
        let at = place.at(offset);
        // SAFETY: so many bytes are there.
        unsafe { data.as_ptr().copy_to_nonoverlapping(at, bytes) };
        // SAFETY: the bytes are there until it is done, or else as long as the connection.
        let memory = unsafe { self.comm.register(at, bytes, MemoryKind::Host)? };
        // SAFETY: the same; nobody writes there.
        match unsafe { self.comm.isend(at, bytes, tag, memory) } {
            Ok(Some(request)) => {
                self.places.push(Arc::clone(&place));
                Ok(Some(Message { request, memory, place, offset }))
            }
            Ok(None) => {
                self.comm.deregister(memory)?;
                Ok(None)
            }
            Err(error) => {
                self.places.push(place); // who knows what an error has left
                Err(error)
            }
        }
    }

    /// Whether it is sent; then it is not asked again.
    pub(crate) fn is_done(&mut self, message: &Message) -> Result<bool, NetError> {
        let done = self.comm.test(message.request)?;
        if done {
            self.comm.deregister(message.memory)?;
            self.places.retain(|place| !Arc::ptr_eq(place, &message.place));
        }
        Ok(done)
    }
}

/// A receiving end that owns what it receives, for as long as it is there.
#[derive(Debug)]
pub(crate) struct Receiving {
    pub(crate) comm: Box<dyn RecvComm>, // dropped first
    places: Vec<Arc<Place>>,
}

impl Receiving {
    pub(crate) fn new(comm: Box<dyn RecvComm>) -> Receiving {
        Receiving { comm, places: Vec::new() }
    }

    /// Gives a buffer of so many bytes, at such an offset.
    pub(crate) fn begin(
        &mut self,
        bytes: usize,
        offset: usize,
        tag: u32,
    ) -> Result<Option<Message>, NetError> {
        let place = Place::new(bytes + offset);
        let address = place.at(offset);
        // SAFETY: the bytes are there until it is done, or else as long as the connection.
        let memory = unsafe { self.comm.register(address, bytes, MemoryKind::Host)? };
        let buffer = RecvBuffer { address, bytes, tag, memory };
        // SAFETY: the same; nobody looks there until it is done.
        let request = unsafe { self.comm.irecv(&[buffer]) };
        match request {
            Ok(Some(request)) => {
                self.places.push(Arc::clone(&place));
                Ok(Some(Message { request, memory, place, offset }))
            }
            Ok(None) => {
                self.comm.deregister(memory)?;
                Ok(None)
            }
            Err(error) => {
                self.places.push(place);
                Err(error)
            }
        }
    }

    /// The size of what has arrived; then it is not asked again.
    pub(crate) fn is_done(&mut self, message: &Message) -> Result<Option<usize>, NetError> {
        let mut sizes = [usize::MAX; 8];
        if !self.comm.test(message.request, &mut sizes)? {
            return Ok(None);
        }
        self.comm.deregister(message.memory)?;
        self.places.retain(|place| !Arc::ptr_eq(place, &message.place));
        Ok(Some(sizes[0]))
    }
}

/// Sends one message from end to end and looks at what arrives, all around it too.
#[track_caller]
pub(crate) fn exchange(
    ends: &mut (Sending, Receiving),
    data: &[u8],
    capacity: usize,
    offsets: [usize; 2],
) {
    let (send, recv) = ends;
    let theirs = until(|| recv.begin(capacity, offsets[1], 0).unwrap());
    let (mut ours, mut sent, mut size) = (None, false, None);
    until(|| {
        if ours.is_none() {
            ours = send.begin(data, offsets[0], 0).unwrap();
        }
        if let (Some(ours), false) = (&ours, sent) {
            sent = send.is_done(ours).unwrap();
        }
        if size.is_none() {
            size = recv.is_done(&theirs).unwrap();
        }
        (sent && size.is_some()).then_some(())
    });
    assert_eq!(size, Some(data.len()));
    assert!(theirs.bytes()[..data.len()] == *data, "{} bytes differ", data.len());
    let around = theirs.bytes()[data.len()..].iter().chain(&theirs.place.bytes()[..offsets[1]]);
    assert!(around.copied().all(|byte| byte == AROUND), "bytes around {} changed", data.len());
}

/// What is logged on this thread meanwhile, and the result.
///
/// All threads have one subscriber. Where each has one of its own, an event that another thread comes to first at the wrong time is off
/// for all: whether it is wanted is asked once, of the subscribers that there are.
pub(crate) fn with_log<T>(level: Level, run: impl FnOnce() -> T) -> (T, String) {
    static SUBSCRIBER: Once = Once::new();
    SUBSCRIBER.call_once(|| {
        let wanted = dynamic_filter_fn(|event, _| {
            LOG.with_borrow(|log| log.as_ref().is_some_and(|(level, _)| event.level() <= level))
        });
        let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(|| Log);
        tracing_subscriber::registry().with(lines.with_filter(wanted)).init();
    });
    let before = LOG.replace(Some((level, Vec::new())));
    let result = run();
    let (_, text) = LOG.replace(before).unwrap();
    (result, String::from_utf8(text).unwrap())
}

thread_local! {
    /// Up to which level this thread's events are wanted, and what they said.
    static LOG: RefCell<Option<(Level, Vec<u8>)>> = const { RefCell::new(None) };
}

/// The listener's log, until it has said this.
pub(crate) fn log_until(listener: &mut Box<dyn Listener>, wanted: &str) -> String {
    let mut all = String::new();
    until(|| {
        let (accepted, log) = with_log(tracing::Level::WARN, || listener.accept().unwrap());
        assert!(accepted.is_none(), "a stranger is accepted");
        all += &log;
        all.contains(wanted).then_some(())
    });
    all
}

/// Where the listener of this handle is, on this machine. (A handle has its port at 14: `net::handshake::wire`.)
pub(crate) fn address(handle: &[u8]) -> SocketAddr {
    let port = u16::from_le_bytes([handle[14], handle[15]]);
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// What this thread's log is written to.
struct Log;

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.with_borrow_mut(|log| log.as_mut().map_or(Ok(bytes.len()), |(_, log)| log.write(bytes)))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
