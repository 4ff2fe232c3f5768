//! The socket network alone: a proxy that sends, a proxy that receives, no kernels.
//!
//! **Bandwidth.** The same number of TCP streams as iperf3, each contestant with new connections for each measurement, so
//! that both have TCP's start in it; bytes that the receiver has, over the time since the sender began. Messages are 8
//! buffers in turn, at both ends, each posted again when it is through: memory is read and written that a collective would
//! read and write. iperf3 sends and receives in one buffer of `-l` bytes, which stays in the cache; it takes 1 MiB at
//! most, so for longer messages its buffer is that. Its streams share a thread, as ours do. Who has nothing to do waits in
//! `select` with iperf3; ours is asked again by the proxy, as it is in a communicator.
//!
//! **Latency.** Half of the time in which 8 bytes go there and back, against the same over a plain socket that is asked
//! again and again (`spinning`), and over one that waits in `recv` (`blocking`). The thread that waits asks without a
//! pause, so that it is the network's cost and not the proxy's.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use ferroccl_proxy::net::socket::{SocketConfig, SocketInterface, SocketNet};
use ferroccl_proxy::net::{
    MemoryHandle, MemoryKind, Net as _, RecvBuffer, RecvComm, Request, SendComm,
};
use ferroccl_proxy::{Operation, Progress, Proxy};

use crate::hosts::{Hosts, INTERFACE};
use crate::stats::{median, percentile};
use crate::{Outcome, hosts};

const ROUNDS: usize = 5;
/// Of a measurement; iperf3 takes whole ones.
const SECONDS: u64 = 1;
/// Messages under way.
const IN_FLIGHT: usize = 8;
const SIZES: [usize; 3] = [64 << 10, 512 << 10, 4 << 20];
const STREAMS: [usize; 3] = [1, 2, 4];
/// iperf3's longest buffer.
const IPERF_LONGEST: usize = 1 << 20;
/// Exchanges of a measurement of latency.
const EXCHANGES: usize = 20_000;

/// What lies between the two ends.
struct Path<'a> {
    name: &'static str,
    /// `None`: the machine's loopback.
    hosts: Option<&'a Hosts>,
}

impl Path<'_> {
    /// Runs `body` at an end: 0 sends, 1 receives.
    fn at<T: Send>(&self, end: usize, body: impl FnOnce() -> T + Send) -> T {
        match self.hosts {
            None => body(),
            Some(hosts) => hosts.within(end, body),
        }
    }

    fn command(&self, end: usize, program: &str) -> Command {
        match self.hosts {
            None => Command::new(program),
            Some(hosts) => hosts.command(end, program),
        }
    }

    fn address(&self, end: usize) -> IpAddr {
        self.hosts.map_or(Ipv4Addr::LOCALHOST, |hosts| hosts.ipv4(end)).into()
    }

    fn net(&self, end: usize, streams: usize) -> Outcome<SocketNet> {
        let name = if self.hosts.is_some() { INTERFACE } else { "lo" }.to_owned();
        let interfaces = vec![SocketInterface { name, address: self.address(end), scope_id: 0 }];
        let connect_timeout = Duration::from_secs(10);
        Ok(SocketNet::new(SocketConfig {
            interfaces,
            threads: Some(0),
            sockets_per_thread: Some(streams),
            secret: [7; 32],
            connect_timeout,
        })?)
    }

    /// Runs a body at each end of a connection, and gives what they have.
    fn connected<S: Send, R: Send>(
        &self,
        streams: usize,
        send: impl FnOnce(Box<dyn SendComm>) -> Outcome<S> + Send,
        receive: impl FnOnce(Box<dyn RecvComm>) -> Outcome<R> + Send,
    ) -> Outcome<(S, R)> {
        let (tell, told) = channel();
        let receiver = move || {
            let mut listener = self.net(1, streams)?.listen(0)?;
            tell.send(listener.handle().to_vec())?;
            loop {
                if let Some(comm) = listener.accept()? {
                    return receive(comm);
                }
                thread::yield_now();
            }
        };
        let sender = move || {
            let mut connecting = self.net(0, streams)?.connect(0, &told.recv()?)?;
            loop {
                if let Some(comm) = connecting.poll()? {
                    return send(comm);
                }
                thread::yield_now();
            }
        };
        thread::scope(|scope| {
            let sender = scope.spawn(|| self.at(0, sender));
            let received = self.at(1, receiver);
            Ok((sender.join().map_err(|_| "the sender panicked")??, received?))
        })
    }
}

/// All tables.
pub(crate) fn run() -> Outcome<()> {
    let hosts = hosts(2)?;
    let paths =
        [Path { name: "loopback", hosts: None }, Path { name: "veth", hosts: Some(&hosts) }];
    println!("\n## Socket network: bandwidth\n");
    println!(
        "{ROUNDS} rounds of {SECONDS} s each, {IN_FLIGHT} messages under way; GB/s, medians.\n"
    );
    println!("Processor: ms a GB, of both ends; below 1 is less of it.\n");
    println!(
        "| path | streams | message | iperf3 -l | iperf3 | FerroCCL | × | processor: iperf3 | FerroCCL | × |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for path in &paths {
        for streams in STREAMS {
            for bytes in SIZES {
                bandwidth(path, streams, bytes)?;
            }
        }
    }
    println!("\n## Socket network: latency\n");
    println!(
        "Half of {EXCHANGES} exchanges of 8 B, {ROUNDS} rounds; µs, medians of the rounds' figures.\n"
    );
    println!("| path | | median | p99 |\n|---|---|---:|---:|");
    paths.iter().try_for_each(latency)
}

fn bandwidth(path: &Path<'_>, streams: usize, bytes: usize) -> Outcome<()> {
    let length = bytes.min(IPERF_LONGEST);
    let mut rounds: [Vec<Speed>; 2] = Default::default();
    for round in 0..ROUNDS {
        for turn in 0..2 {
            let who = (round + turn) % 2;
            rounds[who].push(match who {
                0 => iperf3(path, streams, length)?,
                _ => messages(path, streams, bytes)?,
            });
        }
    }
    let [theirs, ours] = &rounds;
    let middle = |speeds: &[Speed], of: fn(&Speed) -> f64| {
        median(&mut speeds.iter().map(of).collect::<Vec<_>>())
    };
    let factor = |of: fn(&Speed) -> f64| {
        let factors = ours.iter().zip(theirs).map(|(our, their)| of(our) / of(their));
        median(&mut factors.collect::<Vec<_>>())
    };
    println!(
        "| {} | {streams} | {} KiB | {} KiB | {:.2} | {:.2} | {:.2} | {:.0} | {:.0} | {:.2} |",
        path.name,
        bytes >> 10,
        length >> 10,
        middle(theirs, |s| s.bytes_s) / 1e9,
        middle(ours, |s| s.bytes_s) / 1e9,
        factor(|s| s.bytes_s),
        middle(theirs, |s| s.cpu_s) * 1e12,
        middle(ours, |s| s.cpu_s) * 1e12,
        factor(|s| s.cpu_s),
    );
    Ok(())
}

/// Of a contestant.
#[derive(Clone, Copy)]
struct Speed {
    /// Bytes a second.
    bytes_s: f64,
    /// Seconds of the processor for a byte, of both ends, with what the system does in their name.
    cpu_s: f64,
}

/// Seconds of the processor that this process has had, or the children that it has waited for.
fn cpu(whose: libc::c_int) -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: a place for what is written; zeros are a legal value should nothing be.
    let usage = unsafe {
        libc::getrusage(whose, usage.as_mut_ptr());
        usage.assume_init()
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// iperf3, as its receiver has it.
fn iperf3(path: &Path<'_>, streams: usize, length: usize) -> Outcome<Speed> {
    let before = cpu(libc::RUSAGE_CHILDREN);
    let missing = |e| format!("iperf3: {e}; Debian's package is iperf3 (scripts/setup)");
    let address = path.address(1).to_string();
    // One that is free; in a host of ours all are.
    let port = path.at(1, || TcpListener::bind((path.address(1), 0)))?.local_addr()?.port();
    let port = port.to_string();
    let mut server = path.command(1, "iperf3");
    server.args(["-s", "-1", "--forceflush", "-B", &address, "-p", &port]);
    let mut server =
        server.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().map_err(missing)?;
    let output = server.stdout.take().ok_or("no pipe from iperf3")?;
    let mut lines = BufReader::new(output).lines();
    if !lines.by_ref().map_while(Result::ok).any(|line| line.contains("listening")) {
        return Err("iperf3 -s ended before it listened".into());
    }
    let reads = thread::spawn(move || lines.for_each(drop)); // or it stops at a full pipe
    let (streams, seconds, length) = (streams.to_string(), SECONDS.to_string(), length.to_string());
    let mut client = path.command(0, "iperf3");
    client.args(["-J", "-c", &address, "-p", &port, "-P", &streams, "-t", &seconds]);
    let output = client.args(["-l", &length]).output().map_err(missing)?;
    if !output.status.success() {
        server.kill()?;
    }
    server.wait()?;
    let _ = reads.join(); // it has nothing to say
    let said: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let figure = |name| said.pointer(&format!("/end/sum_received/{name}"))?.as_f64();
    let figures = figure("bits_per_second").zip(figure("bytes"));
    let (bits, bytes) = figures.ok_or_else(|| format!("iperf3: {said}"))?;
    let cpu = cpu(libc::RUSAGE_CHILDREN) - before;
    Ok(Speed { bytes_s: bits / 8.0, cpu_s: cpu / bytes })
}

/// Our network, by messages.
fn messages(path: &Path<'_>, streams: usize, bytes: usize) -> Outcome<Speed> {
    let (sending, receiving) = (Proxy::new("bench-send"), Proxy::new("bench-receive"));
    let before = cpu(libc::RUSAGE_SELF);
    let (comm, their) = path.connected(streams, Ok, Ok)?;
    let ((sent, is_sent), (received, is_received)) = (channel(), channel());
    receiving.append(Box::new(Receives::new(their, bytes, received)?))?;
    let start = Instant::now();
    sending.append(Box::new(Sends::new(comm, bytes, sent)?))?;
    is_sent.recv()??;
    let (bytes, end) = is_received.recv()??;
    let cpu = cpu(libc::RUSAGE_SELF) - before;
    Ok(Speed { bytes_s: bytes as f64 / (end - start).as_secs_f64(), cpu_s: cpu / bytes as f64 })
}

/// Memory of messages, so many as are under way.
struct Buffers {
    memory: Box<[u8]>,
    bytes: usize,
    known: MemoryHandle,
    next: usize,
    requests: VecDeque<Request>,
}

impl Buffers {
    fn new(bytes: usize) -> Self {
        let memory = vec![7; bytes * IN_FLIGHT].into();
        let requests = VecDeque::new();
        Buffers { memory, bytes, known: MemoryHandle(0), next: 0, requests }
    }

    /// Where the next message is.
    fn at(&mut self) -> *mut u8 {
        self.memory.as_mut_ptr().wrapping_add(self.next % IN_FLIGHT * self.bytes)
    }

    fn under_way(&mut self, request: Request) {
        self.requests.push_back(request);
        self.next += 1;
    }
}

/// Sends for a while, and at the end a message of nothing.
struct Sends {
    // Before the memory, to be dropped first.
    comm: Box<dyn SendComm>,
    buffers: Buffers,
    end: Instant,
    last: bool,
    ended: Sender<Outcome<()>>,
}

impl Sends {
    fn new(mut comm: Box<dyn SendComm>, bytes: usize, ended: Sender<Outcome<()>>) -> Outcome<Self> {
        let mut buffers = Buffers::new(bytes);
        let (at, len) = (buffers.memory.as_mut_ptr(), buffers.memory.len());
        // SAFETY: the memory outlives the connection, and nobody writes to it.
        buffers.known = unsafe { comm.register(at, len, MemoryKind::Host)? };
        let end = Instant::now() + Duration::from_secs(SECONDS);
        Ok(Sends { comm, buffers, end, last: false, ended })
    }

    fn step(&mut self) -> Outcome<Progress> {
        let Sends { comm, buffers, .. } = self;
        let mut moved = false;
        while !self.last && buffers.requests.len() < IN_FLIGHT {
            let over = Instant::now() >= self.end;
            let (at, bytes) = (buffers.at(), if over { 0 } else { buffers.bytes });
            // SAFETY: inside the memory, of which this part is not under way.
            let request = unsafe { comm.isend(at, bytes, 0, buffers.known)? };
            let Some(request) = request else { break };
            buffers.under_way(request);
            (self.last, moved) = (over, true);
        }
        while let Some(&request) = buffers.requests.front()
            && comm.test(request)?
        {
            buffers.requests.pop_front();
            moved = true;
        }
        let done = self.last && buffers.requests.is_empty();
        Ok(if done { Progress::Done } else { idle_or(moved) })
    }
}

impl Operation for Sends {
    fn progress(&mut self) -> Progress {
        tell(self.step().map(|progress| (progress, ())), &self.ended)
    }
}

/// Receives until a message of nothing comes.
struct Receives {
    // Before the memory, to be dropped first.
    comm: Box<dyn RecvComm>,
    buffers: Buffers,
    received: usize,
    ended: Sender<Outcome<(usize, Instant)>>,
}

impl Receives {
    fn new(
        mut comm: Box<dyn RecvComm>,
        bytes: usize,
        ended: Sender<Outcome<(usize, Instant)>>,
    ) -> Outcome<Self> {
        let mut buffers = Buffers::new(bytes);
        let (at, len) = (buffers.memory.as_mut_ptr(), buffers.memory.len());
        // SAFETY: the memory outlives the connection, and nobody else uses it.
        buffers.known = unsafe { comm.register(at, len, MemoryKind::Host)? };
        Ok(Receives { comm, buffers, received: 0, ended })
    }

    fn step(&mut self) -> Outcome<Progress> {
        let Receives { comm, buffers, .. } = self;
        let mut moved = false;
        while buffers.requests.len() < IN_FLIGHT {
            let (address, bytes, memory) = (buffers.at(), buffers.bytes, buffers.known);
            let buffer = RecvBuffer { address, bytes, tag: 0, memory };
            // SAFETY: inside the memory, of which this part is not under way.
            let Some(request) = (unsafe { comm.irecv(&[buffer])? }) else { break };
            buffers.under_way(request);
            moved = true;
        }
        let mut size = [0];
        while let Some(&request) = buffers.requests.front()
            && comm.test(request, &mut size)?
        {
            if size[0] == 0 {
                return Ok(Progress::Done);
            }
            self.received += size[0];
            buffers.requests.pop_front();
            moved = true;
        }
        Ok(idle_or(moved))
    }
}

impl Operation for Receives {
    fn progress(&mut self) -> Progress {
        let step = self.step();
        tell(step.map(|progress| (progress, (self.received, Instant::now()))), &self.ended)
    }
}

fn idle_or(moved: bool) -> Progress {
    if moved { Progress::Moved } else { Progress::Idle }
}

/// What came of a step; at the end it is told.
fn tell<T>(step: Outcome<(Progress, T)>, ended: &Sender<Outcome<T>>) -> Progress {
    let (progress, result) = match step {
        Ok((progress, result)) => (progress, Ok(result)),
        Err(error) => (Progress::Done, Err(error)),
    };
    if progress == Progress::Done {
        let _ = ended.send(result); // it is waited for
    }
    progress
}

/// An 8-byte message's contestants.
#[derive(Clone, Copy)]
enum Short {
    Spinning,
    Blocking,
    Ours,
}

fn latency(path: &Path<'_>) -> Outcome<()> {
    let all = [
        (Short::Spinning, "plain socket, spinning"),
        (Short::Blocking, "plain socket, blocking"),
        (Short::Ours, "FerroCCL"),
    ];
    let mut figures = [const { (Vec::new(), Vec::new()) }; 3];
    for round in 0..ROUNDS {
        for i in 0..all.len() {
            let at = (i + round) % all.len();
            let mut times = match all[at].0 {
                Short::Ours => ours(path)?,
                plain => plain_sockets(path, matches!(plain, Short::Spinning))?,
            };
            figures[at].0.push(median(&mut times));
            figures[at].1.push(percentile(&mut times, 0.99));
        }
    }
    for ((_, name), (median_of, p99)) in all.into_iter().zip(&mut figures) {
        println!("| {} | {name} | {:.2} | {:.2} |", path.name, median(median_of), median(p99));
    }
    Ok(())
}

/// Half of each exchange, in microseconds.
fn exchanges(mut exchange: impl FnMut() -> Outcome<()>) -> Outcome<Vec<f64>> {
    let one = |_| {
        let start = Instant::now();
        exchange()?;
        Ok(start.elapsed().as_secs_f64() * 1e6 / 2.0)
    };
    (0..EXCHANGES).map(one).collect()
}

fn plain_sockets(path: &Path<'_>, spinning: bool) -> Outcome<Vec<f64>> {
    let (tell, told) = channel::<SocketAddr>();
    let get = move |stream: &mut TcpStream| -> Outcome<()> {
        let mut word = [0; 8];
        loop {
            match stream.read_exact(&mut word) {
                // 8 bytes in one segment come as one.
                Err(e) if spinning && e.kind() == ErrorKind::WouldBlock => {}
                other => return Ok(other?),
            }
        }
    };
    let prepare = move |stream: &TcpStream| -> Outcome<()> {
        stream.set_nodelay(true)?;
        Ok(stream.set_nonblocking(spinning)?)
    };
    let echo = move || -> Outcome<()> {
        let listener = TcpListener::bind((path.address(1), 0))?;
        tell.send(listener.local_addr()?)?;
        let mut stream = listener.accept()?.0;
        prepare(&stream)?;
        for _ in 0..EXCHANGES {
            get(&mut stream)?;
            stream.write_all(&[1; 8])?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let echo = scope.spawn(move || path.at(1, echo));
        let times = path.at(0, move || -> Outcome<Vec<f64>> {
            let mut stream = TcpStream::connect(told.recv()?)?;
            prepare(&stream)?;
            exchanges(|| {
                stream.write_all(&[1; 8])?;
                get(&mut stream)
            })
        });
        echo.join().map_err(|_| "the echo panicked")??;
        times
    })
}

/// Two connections, one for each direction. Both are made from end 0: the way is as long in either direction.
fn ours(path: &Path<'_>) -> Outcome<Vec<f64>> {
    let (mut back_send, mut back_recv) = path.connected(1, Ok, Ok)?;
    let there = |mut comm: Box<dyn SendComm>| {
        exchanges(|| {
            send_word(&mut *comm)?;
            recv_word(&mut *back_recv)
        })
    };
    let echo = |mut comm: Box<dyn RecvComm>| {
        for _ in 0..EXCHANGES {
            recv_word(&mut *comm)?;
            send_word(&mut *back_send)?;
        }
        Ok(())
    };
    Ok(path.connected(1, there, echo)?.0)
}

fn send_word(comm: &mut dyn SendComm) -> Outcome<()> {
    let mut word = [1u8; 8];
    // SAFETY: the word outlives the request, which is done when this returns; with an error, the connection is broken and
    // touches nothing.
    unsafe {
        let memory = comm.register(word.as_mut_ptr(), word.len(), MemoryKind::Host)?;
        let request = loop {
            if let Some(request) = comm.isend(word.as_ptr(), word.len(), 0, memory)? {
                break request;
            }
        };
        while !comm.test(request)? {}
        Ok(comm.deregister(memory)?)
    }
}

fn recv_word(comm: &mut dyn RecvComm) -> Outcome<()> {
    let (mut word, mut size) = ([0u8; 8], [0]);
    let address = word.as_mut_ptr();
    // SAFETY: as in `send_word`.
    unsafe {
        let memory = comm.register(address, 8, MemoryKind::Host)?;
        let buffer = RecvBuffer { address, bytes: 8, tag: 0, memory };
        let request = comm.irecv(&[buffer])?.ok_or("nothing is under way, yet it takes no more")?;
        while !comm.test(request, &mut size)? {}
        Ok(comm.deregister(memory)?)
    }
}
