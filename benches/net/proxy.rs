//! The proxy between a kernel and a network.
//!
//! ```text
//! a thread that plays the kernel: FIFO entry, clock, tail ──► Proxy ► Connections ► Sending ──► isend of a Net that
//!                                                                                                notes the time
//! ```
//!
//! The network is none: `isend` notes the time, and what is sent is sent at once. So the figure is the proxy's alone: how
//! soon it looks again. That depends on how long nothing has moved: it asks without a pause for a short time, then pauses
//! between its questions, and longer after a long time (`proxy/src/thread.rs`). Hence a row for each length of the gap
//! between the steps, and one for an operation that is new to a proxy that sleeps.

use std::hint::spin_loop;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ferroccl::device::abi::{Conn, ConnHeader, ProtocolId, fifo_entry};
use ferroccl::{CommConfig, Communicator, Device, ReduceOp};
use ferroccl_proxy::connection::{ConnMemory, ConnectionId, Connections, Steps};
use ferroccl_proxy::net::{
    Connecting, Listener, MemoryHandle, MemoryKind, Net, Properties, RecvComm, Request, SendComm,
};
use ferroccl_proxy::{NetError, Operation, Progress, Proxy};

use crate::Outcome;
use crate::stats::{median, percentile};

const NAME: &str = "bench-proxy";
const SLOTS: u64 = 8;
const SLOT_BYTES: u32 = 4096;
/// Of the first steps nothing is noted: the connection is made, and the thread started.
const WARM_UP: u64 = 20;
const KEY: ConnectionId = ConnectionId { peer: 1, index: 0 };

/// How long nothing happens between two steps, and how many steps.
const GAPS: [(Duration, u64); 5] = [
    (Duration::ZERO, 20_000),
    (Duration::from_micros(100), 5000),
    (Duration::from_millis(1), 1000),
    (Duration::from_millis(10), 200),
    (Duration::from_millis(50), 60),
];

/// When `isend` was called the last time: nanoseconds since `epoch`.
#[derive(Debug)]
struct Noted {
    epoch: Instant,
    at: AtomicU64,
}

impl Noted {
    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A network to which everything is sent at once, and from which nothing comes.
#[derive(Clone, Debug)]
struct Noting(Arc<Noted>);

fn none(operation: &'static str) -> NetError {
    NetError::new("Noting", operation, "there is no other end")
}

impl Net for Noting {
    fn name(&self) -> &str {
        "Noting"
    }

    fn devices(&self) -> usize {
        1
    }

    fn properties(&self, _: usize) -> Result<Properties, NetError> {
        Err(none("properties"))
    }

    fn listen(&self, _: usize) -> Result<Box<dyn Listener>, NetError> {
        Ok(Box::new(self.clone()))
    }

    fn connect(&self, _: usize, _: &[u8]) -> Result<Box<dyn Connecting>, NetError> {
        Ok(Box::new(self.clone()))
    }
}

impl Listener for Noting {
    fn handle(&self) -> &[u8] {
        b"?"
    }

    fn accept(&mut self) -> Result<Option<Box<dyn RecvComm>>, NetError> {
        Ok(None)
    }
}

impl Connecting for Noting {
    fn poll(&mut self) -> Result<Option<Box<dyn SendComm>>, NetError> {
        Ok(Some(Box::new(self.clone())))
    }
}

impl SendComm for Noting {
    unsafe fn register(
        &mut self,
        _: *mut u8,
        _: usize,
        _: MemoryKind,
    ) -> Result<MemoryHandle, NetError> {
        Ok(MemoryHandle(0))
    }

    fn deregister(&mut self, _: MemoryHandle) -> Result<(), NetError> {
        Ok(())
    }

    unsafe fn isend(
        &mut self,
        _: *const u8,
        _: usize,
        _: u32,
        _: MemoryHandle,
    ) -> Result<Option<Request>, NetError> {
        // Read after the head, whose release in `Sending` comes after this.
        self.0.at.store(self.0.now(), Ordering::Relaxed);
        Ok(Some(Request(0)))
    }

    fn test(&mut self, _: Request) -> Result<bool, NetError> {
        Ok(true)
    }
}

/// The memory of a connection.
#[repr(C, align(128))]
struct Memory {
    header: ConnHeader,
    fifo: [u64; SLOTS as usize],
    slots: [[u8; SLOT_BYTES as usize]; SLOTS as usize],
}

/// Its words, which two threads use.
struct Words<'a> {
    tail: &'a AtomicU64,
    head: &'a AtomicU64,
    fifo: &'a [AtomicU64],
}

/// What the proxy moves on.
struct Carry(Arc<Mutex<Connections>>);

impl Operation for Carry {
    fn progress(&mut self) -> Progress {
        let mut connections = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A broken connection shows as a head that stays where it is.
        connections.progress().unwrap_or(Progress::Done)
    }
}

/// A kernel's end of a connection whose other end is the proxy's.
struct Kernel<'a> {
    words: Words<'a>,
    noted: Arc<Noted>,
    connections: Arc<Mutex<Connections>>,
    proxy: Proxy,
    step: u64,
}

/// What ends the waits of this bench.
const LIMIT: Duration = Duration::from_secs(10);

impl Kernel<'_> {
    /// The next call has so many steps.
    fn call(&self, steps: u64) -> Outcome<()> {
        let steps = Steps { seq: 1, signatures: 0, protocol: ProtocolId::Simple, steps };
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.send(KEY, steps).map_err(|failed| failed.error)?;
        drop(connections);
        Ok(self.proxy.append(Box::new(Carry(Arc::clone(&self.connections))))?)
    }

    /// Puts a step, as a kernel would; the time of its tail.
    fn put(&mut self) -> u64 {
        let index = (self.step % SLOTS) as usize;
        let entry = fifo_entry(self.step, SLOT_BYTES);
        self.words.fifo[index].store(entry, Ordering::Relaxed);
        let now = self.noted.now();
        self.step += 1;
        // Pairs with the acquire in `Sending`.
        self.words.tail.store(self.step, Ordering::Release);
        now
    }

    /// Waits until the step is sent; when `isend` was called for it.
    fn sent(&self) -> Outcome<u64> {
        let start = Instant::now();
        // Pairs with the release in `Sending`: the time is noted.
        while self.words.head.load(Ordering::Acquire) < self.step {
            if start.elapsed() > LIMIT {
                return Err(format!("the proxy does not send step {}", self.step).into());
            }
            spin_loop();
        }
        Ok(self.noted.at.load(Ordering::Relaxed))
    }
}

/// All tables.
pub(crate) fn run() -> Outcome<()> {
    let memory = Box::leak(Box::new(Memory {
        header: bytemuck::Zeroable::zeroed(),
        fifo: [0; SLOTS as usize],
        slots: [[0; SLOT_BYTES as usize]; SLOTS as usize],
    }));
    let at = std::ptr::from_mut(memory).expose_provenance() as u64;
    let slots = at + offset_of!(Memory, slots) as u64;
    let header = at + offset_of!(Memory, header) as u64;
    let fifo = at + offset_of!(Memory, fifo) as u64;
    let conn = Conn {
        header,
        buffers: [slots; ProtocolId::MOST],
        slot_bytes: [SLOT_BYTES; ProtocolId::MOST],
        slots: SLOTS as u32,
        peer: KEY.peer,
        fifo,
        ..Conn::default()
    };
    let calls = header + offset_of!(ConnHeader, calls) as u64;
    let memory = (at, size_of::<Memory>());
    let ends = ConnMemory { calls, conn, memory, on_gpu: None };
    let word = |at: u64| std::ptr::with_exposed_provenance_mut::<u64>(at as usize);
    // SAFETY: words of memory that is never freed and that is only accessed atomically from here on.
    let words = unsafe {
        Words {
            tail: AtomicU64::from_ptr(word(header + offset_of!(ConnHeader, tail) as u64)),
            head: AtomicU64::from_ptr(word(header + offset_of!(ConnHeader, head) as u64)),
            fifo: std::slice::from_raw_parts(word(fifo).cast::<AtomicU64>(), SLOTS as usize),
        }
    };
    let noted = Arc::new(Noted { epoch: Instant::now(), at: AtomicU64::new(0) });
    let net = Noting(Arc::clone(&noted));
    let listener = net.listen(0)?;
    let route = Box::new(|key: ConnectionId| (key == KEY).then(|| (0, b"?".to_vec())));
    let find = Box::new(move |key, sending| (sending && key == KEY).then_some(ends));
    // SAFETY: the memory is laid out as `conn` says, never freed, and used by this thread as by a kernel.
    let connections =
        unsafe { Connections::new(Arc::new(net), (1, 0), 0, vec![listener], route, find) };
    let connections = Arc::new(Mutex::new(connections));
    let mut kernel = Kernel { words, noted, connections, proxy: Proxy::new(NAME), step: 0 };
    latency(&mut kernel)?;
    waiting(&mut kernel)
}

fn latency(kernel: &mut Kernel<'_>) -> Outcome<()> {
    println!("\n## Proxy: from a step's tail to `isend`\n");
    println!("| nothing happened for | steps | median µs | p99 µs |\n|---|---:|---:|---:|");
    for (gap, steps) in GAPS {
        kernel.call(WARM_UP + steps)?;
        let mut times = Vec::new();
        for step in 0..WARM_UP + steps {
            spin(gap, step);
            let put = kernel.put();
            let called = kernel.sent()?;
            if step >= WARM_UP {
                times.push(called.saturating_sub(put) as f64 / 1e3);
            }
        }
        let name =
            if gap.is_zero() { "(the last step was sent)".to_owned() } else { format!("{gap:?}") };
        row(&name, &mut times);
    }
    // The step is there before the operation is.
    for (gap, calls) in [(Duration::from_micros(100), 2000), (Duration::from_millis(10), 200)] {
        let mut times = Vec::new();
        for call in 0..calls {
            spin(gap, call);
            let put = kernel.put();
            kernel.call(1)?;
            times.push(kernel.sent()?.saturating_sub(put) as f64 / 1e3);
        }
        row(&format!("{gap:?}, a new operation"), &mut times);
    }
    Ok(())
}

/// Lets time go by, a quarter more or less, without a timer: the proxy's own might go off with it.
fn spin(gap: Duration, step: u64) {
    let part = 0.75 + (step * 37 % 101) as f64 / 202.0;
    let end = Instant::now() + gap.mul_f64(part);
    while Instant::now() < end {
        spin_loop();
    }
}

fn row(name: &str, times: &mut [f64]) {
    let n = times.len();
    println!("| {name} | {n} | {:.2} | {:.2} |", median(times), percentile(times, 0.99));
}

/// What threads take while there is nothing to do.
fn waiting(kernel: &mut Kernel<'_>) -> Outcome<()> {
    const SECOND: Duration = Duration::from_secs(1);
    println!("\n## Proxy: the processor's time while a second goes by\n");
    println!("| | proxy's thread, ms | all threads of the process, ms |\n|---|---:|---:|");
    let measure = |what: &str, thread: &str| {
        let before = (cpu_ms(Some(thread)), cpu_ms(None));
        thread::sleep(SECOND);
        let after = (cpu_ms(Some(thread)), cpu_ms(None));
        println!("| {what} | {:.2} | {:.2} |", after.0 - before.0, after.1 - before.1);
    };
    thread::sleep(SECOND); // what came before is over
    measure("no operation", NAME);
    kernel.call(1)?;
    thread::sleep(SECOND / 10);
    measure("an operation whose kernel does not come", NAME);
    kernel.put();
    kernel.sent()?;

    let mut config = CommConfig::default();
    (config.p2p, config.shm) = (Some(false), Some(false));
    let device = Device::cpu();
    let ranks = Communicator::init_all_with(&device, 2, &config)?;
    let streams = [device.stream()?, device.stream()?];
    let data = [device.upload(&[1.0f32, 2.0])?, device.upload(&[1.0f32, 2.0])?];
    let call = |rank: usize| {
        ranks[rank].all_reduce(&data[rank], &data[rank], ReduceOp::Sum, &streams[rank])
    };
    let wait = || streams.iter().try_for_each(|stream| stream.synchronize());
    call(0)?;
    call(1)?;
    wait()?;
    measure("2 ranks over sockets, between calls", "ferroccl-proxy");
    call(0)?;
    thread::sleep(SECOND / 10);
    measure("an all-reduce whose other rank does not come, over sockets", "ferroccl-proxy");
    call(1)?;
    Ok(wait()?)
}

/// Milliseconds that a thread of this name has had, or all threads: the first number of `schedstat`, in nanoseconds.
fn cpu_ms(name: Option<&str>) -> f64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return f64::NAN };
    let read = |path: &std::path::Path, file| std::fs::read_to_string(path.join(file)).ok();
    let of = |path: std::path::PathBuf| {
        let is = name.is_none_or(|name| read(&path, "comm").is_some_and(|c| c.trim() == name));
        is.then(|| read(&path, "schedstat")?.split_whitespace().next()?.parse::<f64>().ok())?
    };
    tasks.flatten().filter_map(|task| of(task.path())).sum::<f64>() / 1e6
}
