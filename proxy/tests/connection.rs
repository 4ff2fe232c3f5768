//! Connections with threads at both ends that do what kernels do, and threads that play the proxies: what is sent arrives.
//! Under ThreadSanitizer this is the test of `Sending` and `Receiving` themselves; of their orders there is a model in
//! `fifo_model`.

mod card;

use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use card::CardNet;
use ferroccl_device::abi::{
    Conn, ConnHeader, LL_LINE, LL128_LINE, ProtocolId, SIGNATURES, Signature, SignatureLines,
    fifo_entry,
};
use ferroccl_device::gpu::{self, LINE_WORDS};
use ferroccl_proxy::connection::{
    ConnMemory, ConnectionId, Connections, GpuSlots, Receiving, Sending, Steps,
};
use ferroccl_proxy::net::socket::{SocketConfig, SocketInterface, SocketNet};
use ferroccl_proxy::net::{LocalNet, MemoryKind, Net, RecvComm, SendComm};
use ferroccl_proxy::{NetError, Progress};

const SLOTS: u64 = 2;
const SLOT_BYTES: usize = 1024;
const SLOT_WORDS: usize = SLOT_BYTES / 8;
/// More calls than a ring has signatures.
const CALLS: u64 = 3 * SIGNATURES as u64;
const STEPS_A_CALL: u64 = 25;
/// Nothing here takes so long but a hang.
const HANG: Duration = Duration::from_secs(60);

/// The slots of all protocols.
#[repr(C, align(128))]
struct Slots([[[u64; SLOT_WORDS]; SLOTS as usize]; 3]);

/// A host's memory of a connection.
#[repr(C, align(128))]
struct Memory {
    header: ConnHeader,
    fifo: [u64; SLOTS as usize],
    slots: Slots,
}

/// Which slots a GPU has, and whether it sees what a card writes in order.
#[derive(Clone, Copy, Debug)]
struct OnGpu {
    protocols: &'static [ProtocolId],
    ordered: bool,
}

/// One end, of a kernel and its proxy.
#[derive(Clone, Copy)]
struct End {
    memory: *mut Memory,
    /// What stands for a GPU's memory.
    gpu: *mut Slots,
    on_gpu: Option<OnGpu>,
    protocol: ProtocolId,
}

// SAFETY: who touches the memory when is what is tested.
unsafe impl Send for End {}

/// Whether somebody has failed, so that nobody waits for it.
static FAILED: AtomicBool = AtomicBool::new(false);

struct Failing;

impl Drop for Failing {
    fn drop(&mut self) {
        if thread::panicking() {
            FAILED.store(true, Ordering::Relaxed);
        }
    }
}

fn until(mut ready: impl FnMut() -> bool) {
    let since = Instant::now();
    while !ready() {
        assert!(!FAILED.load(Ordering::Relaxed), "another thread has failed");
        assert!(since.elapsed() < HANG, "it hangs");
        thread::yield_now();
    }
}

/// Word `i` of a step, of which LL has the halves.
fn word(step: u64, i: usize) -> u64 {
    step << 32 | step ^ i as u64
}

/// How many words of data a step has.
fn words(step: u64, protocol: ProtocolId) -> usize {
    let most = match protocol {
        ProtocolId::Simple | ProtocolId::Own(_) => SLOT_WORDS,
        ProtocolId::Ll => SLOT_BYTES / LL_LINE,
        ProtocolId::Ll128 => SLOT_BYTES / LL128_LINE * (LINE_WORDS - 1),
    };
    1 + (step * 7919) as usize % most
}

fn signature(call: u64) -> Signature {
    Signature { seq: call + 1, count: 3 * call, call: call << 8, root: call % 5 }
}

impl End {
    fn ends(self) -> ConnMemory {
        let at = self.memory as u64;
        let conn = Conn {
            header: at,
            buffers: std::array::from_fn(|i| {
                ProtocolId::ALL.get(i).map_or(0, |protocol| self.buffer(*protocol) as u64)
            }),
            slot_bytes: std::array::from_fn(|i| {
                if i < ProtocolId::ALL.len() { SLOT_BYTES as u32 } else { 0 }
            }),
            slots: SLOTS as u32,
            fifo: at + offset_of!(Memory, fifo) as u64,
            ..Conn::default()
        };
        let calls = at + offset_of!(ConnHeader, calls) as u64;
        let on_gpu = self.on_gpu.map(|on_gpu| GpuSlots {
            memory: (self.gpu as u64, size_of::<Slots>()),
            kind: MemoryKind::Cuda,
            flush: !on_gpu.ordered,
        });
        ConnMemory { calls, conn, memory: (at, size_of::<Memory>()), on_gpu }
    }

    /// The buffer of a protocol.
    fn buffer(self, protocol: ProtocolId) -> *mut u64 {
        let there = self.on_gpu.is_some_and(|on_gpu| on_gpu.protocols.contains(&protocol));
        // SAFETY: only an address is made.
        let host = unsafe { &raw mut (*self.memory).slots };
        let slots = if there { self.gpu } else { host };
        slots.cast::<u64>().wrapping_add(protocol.index() * SLOTS as usize * SLOT_WORDS)
    }

    /// The slot of a step.
    fn slot(self, step: u64) -> *mut u64 {
        self.buffer(self.protocol).wrapping_add((step % SLOTS) as usize * SLOT_WORDS)
    }

    /// As the device's `has_signature_room` and `write_signature`.
    ///
    /// # Safety
    /// The memory is valid; there is one sending kernel.
    unsafe fn tell(self, call: u64) {
        // SAFETY: the caller's.
        unsafe {
            let ring = &raw mut (*self.memory).header.calls;
            until(|| gpu::ld_acquire(&raw const (*ring).ack) + SIGNATURES as u64 > call);
            let entries = (&raw mut (*ring).entries).cast::<SignatureLines>();
            let entry = entries.add((call % SIGNATURES as u64) as usize).cast::<u64>();
            for (i, half) in SignatureLines::of(&signature(call), call).halves.iter().enumerate() {
                gpu::st_relaxed(entry.add(i), *half);
            }
            gpu::st_release(&raw mut (*ring).tail, call + 1);
        }
    }

    /// As the device's `has_signature` and `check_signature`.
    ///
    /// # Safety
    /// The memory is valid; there is one receiving kernel.
    unsafe fn hear(self, call: u64) {
        // SAFETY: the caller's.
        unsafe {
            let ring = &raw mut (*self.memory).header.calls;
            until(|| gpu::ld_acquire(&raw const (*ring).tail) > call);
            let entries = (&raw const (*ring).entries).cast::<SignatureLines>();
            let entry = entries.add((call % SIGNATURES as u64) as usize).cast::<u64>();
            let want = SignatureLines::of(&signature(call), call).halves;
            let found = std::array::from_fn(|i| gpu::ld_acquire(entry.add(i)));
            assert_eq!(want, found, "call {call}");
            gpu::st_release(&raw mut (*ring).ack, call + 1);
        }
    }

    /// As the device's `Protocol::step` of a verb that sends.
    ///
    /// # Safety
    /// The memory is valid; there is one sending kernel.
    unsafe fn put(self, step: u64) {
        let (slot, n) = (self.slot(step), words(step, self.protocol));
        // SAFETY: the caller's; the data of a step fits a slot.
        unsafe {
            let header = &raw mut (*self.memory).header;
            until(|| gpu::ld_acquire(&raw const (*header).head) + SLOTS > step);
            let announce = |bytes: usize| {
                let fifo = (&raw mut (*self.memory).fifo).cast::<u64>();
                let entry = fifo_entry(step, bytes as u32);
                gpu::st_relaxed(fifo.add((step % SLOTS) as usize), entry);
            };
            match self.protocol {
                ProtocolId::Simple | ProtocolId::Own(_) => {
                    for i in 0..n {
                        gpu::st_data(slot.add(i), word(step, i), 8);
                    }
                    announce(8 * n);
                    gpu::st_release(&raw mut (*header).tail, step + 1);
                }
                ProtocolId::Ll => {
                    announce(LL_LINE * n);
                    for i in 0..n {
                        let (data, flag) = (word(step, i), (step << 1 | 1) << 32);
                        gpu::st_halves(
                            slot.add(2 * i),
                            [data & 0xffff_ffff | flag, data >> 32 | flag],
                        );
                    }
                }
                ProtocolId::Ll128 => {
                    let lines = n.div_ceil(LINE_WORDS - 1);
                    announce(LL128_LINE * lines);
                    for line in 0..lines {
                        let mut words = [step + 1; LINE_WORDS];
                        for (i, data) in words[..LINE_WORDS - 1].iter_mut().enumerate() {
                            *data = word(step, line * (LINE_WORDS - 1) + i);
                        }
                        gpu::st_line(slot.add(line * LINE_WORDS), words);
                    }
                }
            }
        }
    }

    /// As the device's `Protocol::step` of a verb that receives, from a connection with `Conn::wait_tail_first`.
    ///
    /// # Safety
    /// The memory is valid; there is one receiving kernel.
    unsafe fn take(self, step: u64) {
        let (slot, n) = (self.slot(step), words(step, self.protocol));
        // SAFETY: the caller's; the data of a step fits a slot.
        unsafe {
            let header = &raw mut (*self.memory).header;
            until(|| gpu::ld_acquire(&raw const (*header).tail) > step);
            for i in 0..n {
                let found = match self.protocol {
                    ProtocolId::Simple | ProtocolId::Own(_) => gpu::ld_data(slot.add(i)),
                    ProtocolId::Ll => {
                        let halves = gpu::ld_halves(slot.add(2 * i));
                        assert_eq!(
                            halves.map(|half| half >> 32),
                            [step << 1 | 1; 2],
                            "flags of {step}"
                        );
                        halves[0] & 0xffff_ffff | halves[1] << 32
                    }
                    ProtocolId::Ll128 => {
                        let line = slot.add(i / (LINE_WORDS - 1) * LINE_WORDS);
                        assert_eq!(
                            gpu::ld_flag(line.add(LINE_WORDS - 1)),
                            step + 1,
                            "flag of {step}"
                        );
                        gpu::ld_line(line)[i % (LINE_WORDS - 1)]
                    }
                };
                assert_eq!(found, word(step, i), "word {i} of {n} of step {step}");
            }
            gpu::st_release(&raw mut (*header).head, step + 1);
        }
    }
}

fn calls(protocol: ProtocolId) -> impl Iterator<Item = Steps> {
    (0..CALLS).map(move |seq| Steps { seq, signatures: 1, protocol, steps: STEPS_A_CALL })
}

/// Both ends of a connection of the network to itself.
fn connect(net: &dyn Net) -> (Box<dyn SendComm>, Box<dyn RecvComm>) {
    let mut listener = net.listen(0).unwrap();
    let mut connecting = net.connect(0, listener.handle()).unwrap();
    let (mut send, mut recv) = (None, None);
    until(|| {
        send = send.take().or_else(|| connecting.poll().unwrap());
        recv = recv.take().or_else(|| listener.accept().unwrap());
        send.is_some() && recv.is_some()
    });
    (send.unwrap(), recv.unwrap())
}

/// Until all is done, as the proxy thread.
fn carry(mut progress: impl FnMut() -> Result<Progress, NetError>) {
    until(|| progress().unwrap() == Progress::Done);
}

fn crosses(net: &dyn Net, protocol: ProtocolId, on_gpu: [Option<OnGpu>; 2]) {
    // SAFETY: zeros are what the memory starts as.
    let mut memories = [(); 2].map(|()| unsafe { Box::<Memory>::new_zeroed().assume_init() });
    // SAFETY: any bits are words.
    let mut gpus = [(); 2].map(|()| unsafe { Box::<Slots>::new_zeroed().assume_init() });
    let end = |i: usize, memory: &mut Memory, gpu: &mut Slots| End {
        memory: &raw mut *memory,
        gpu: &raw mut *gpu,
        on_gpu: on_gpu[i],
        protocol,
    };
    let [from, to] = [0, 1].map(|i| end(i, &mut memories[i], &mut gpus[i]));
    let (send, recv) = connect(net);
    thread::scope(|scope| {
        // SAFETY: the memory lives longer than the scope's threads; one of each kind uses an end.
        scope.spawn(move || unsafe {
            let _failing = Failing;
            for call in 0..CALLS {
                from.tell(call);
                (call * STEPS_A_CALL..(call + 1) * STEPS_A_CALL).for_each(|step| from.put(step));
            }
        });
        scope.spawn(move || {
            let _failing = Failing;
            // SAFETY: as above.
            let mut sending = unsafe { Sending::new(from.ends(), send, 0) }.unwrap();
            calls(protocol).for_each(|steps| sending.push(steps));
            carry(|| sending.progress());
        });
        scope.spawn(move || {
            let _failing = Failing;
            // SAFETY: as above.
            let mut receiving = unsafe { Receiving::new(to.ends(), recv, 0) }.unwrap();
            calls(protocol).for_each(|steps| receiving.push(steps));
            carry(|| receiving.progress());
        });
        // SAFETY: as above.
        scope.spawn(move || unsafe {
            let _failing = Failing;
            for call in 0..CALLS {
                to.hear(call);
                (call * STEPS_A_CALL..(call + 1) * STEPS_A_CALL).for_each(|step| to.take(step));
            }
        });
    });
}

/// Within the process, and over several sockets, each with a thread.
fn crosses_all(protocol: ProtocolId) {
    crosses(&LocalNet::default(), protocol, [None; 2]);
    crosses(&sockets(), protocol, [None; 2]);
}

fn sockets() -> SocketNet {
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let config = SocketConfig {
        interfaces: vec![SocketInterface { name: "lo".to_owned(), address, scope_id: 0 }],
        threads: Some(2),
        sockets_per_thread: Some(2),
        secret: [42; 32],
        connect_timeout: HANG,
    };
    SocketNet::new(config).unwrap()
}

#[test]
fn simple_slots_cross() {
    crosses_all(ProtocolId::Simple);
}

#[test]
fn ll_lines_cross() {
    crosses_all(ProtocolId::Ll);
}

#[test]
fn ll128_lines_cross() {
    crosses_all(ProtocolId::Ll128);
}

const SIMPLE: &[ProtocolId] = &[ProtocolId::Simple];

/// A card that writes to a GPU's memory: a kernel is told when the GPU sees it, and not before.
fn crosses_gpu_memory(protocols: &[ProtocolId]) {
    for ordered in [false, true] {
        for (sent, received) in [(&[][..], ProtocolId::ALL), (SIMPLE, SIMPLE), (SIMPLE, &[])] {
            for &protocol in protocols {
                let net = CardNet::new((true, false), ordered);
                let on_gpu = [sent, received].map(|protocols| Some(OnGpu { protocols, ordered }));
                crosses(&net, protocol, on_gpu);
                let what = format!("{protocol}, {on_gpu:?}, {:?}", net.seen);
                println!("{what}");
                let seen = &net.seen;
                let there = received.contains(&protocol);
                assert_eq!(seen.of(|s| &s.sent) > 0, sent.contains(&protocol), "{what}");
                assert_eq!(seen.of(|s| &s.arrived) > 0, there, "{what}");
                assert_eq!(seen.of(|s| &s.flushes) > 0, there && !ordered, "{what}");
                assert_eq!(seen.of(|s| &s.by_address), 2, "{what}");
            }
        }
    }
}

#[test]
fn simple_slots_in_gpu_memory_cross() {
    crosses_gpu_memory(SIMPLE);
}

#[test]
fn lines_in_gpu_memory_cross() {
    crosses_gpu_memory(&[ProtocolId::Ll, ProtocolId::Ll128]);
}

/// The proxy cannot see the lines of what a GPU sends from its own memory.
#[test]
fn lines_are_not_sent_from_gpu_memory() {
    for protocol in [ProtocolId::Ll, ProtocolId::Ll128] {
        // SAFETY: as in `crosses`.
        let (mut memory, mut gpu) = unsafe {
            (Box::<Memory>::new_zeroed().assume_init(), Box::<Slots>::new_zeroed().assume_init())
        };
        let protocols = ProtocolId::ALL;
        let on_gpu = Some(OnGpu { protocols, ordered: false });
        let end = End { memory: &raw mut *memory, gpu: &raw mut *gpu, on_gpu, protocol };
        let (send, _recv) = connect(&CardNet::new((true, false), false));
        // SAFETY: the memory outlives what is not made.
        let error = unsafe { Sending::new(end.ends(), send, 0) }.err().unwrap();
        assert!(error.to_string().contains("in a GPU's memory"), "{error}");
    }
}

/// The connections of rank 0 or 1 with the other, whose listener has `handle`.
fn of_rank(rank: u32, net: &Arc<dyn Net>, end: End, handle: Vec<u8>) -> (Connections, Vec<u8>) {
    let listener = net.listen(0).unwrap();
    let own = listener.handle().to_vec();
    let route = Box::new(move |_| Some((0, handle.clone())));
    let memory = Box::new(move |_, _| Some(end.ends()));
    // SAFETY: the test's memory lives longer than the connections.
    let connections =
        unsafe { Connections::new(Arc::clone(net), (7, rank), 0, vec![listener], route, memory) };
    (connections, own)
}

/// A rank makes a connection, sends, and leaves before the other has accepted it: what it has sent arrives all the same.
#[test]
fn what_a_rank_has_sent_before_it_left_arrives() {
    let nets: [Arc<dyn Net>; 2] = [Arc::new(LocalNet::default()), Arc::new(sockets())];
    for net in nets {
        // SAFETY: as in `crosses`.
        let mut memories = [(); 2].map(|()| unsafe { Box::<Memory>::new_zeroed().assume_init() });
        let [to, from] = memories.each_mut().map(|memory| End {
            memory: &raw mut **memory,
            gpu: std::ptr::null_mut(),
            on_gpu: None,
            protocol: ProtocolId::Simple,
        });
        let steps = Steps { seq: 3, signatures: 1, protocol: ProtocolId::Simple, steps: 2 };
        let (mut stays, handle) = of_rank(0, &net, to, Vec::new());
        let (mut leaves, _) = of_rank(1, &net, from, handle);
        stays.recv(ConnectionId { peer: 1, index: 0 }, steps);
        leaves.send(ConnectionId { peer: 0, index: 0 }, steps).unwrap();
        // SAFETY: the memory is this thread's.
        unsafe {
            from.tell(0);
            (0..2).for_each(|step| from.put(step));
        }
        // The one that stays answers in one round, and the other does the rest before the next round.
        until(|| {
            let sent = (0..1000).any(|_| leaves.progress().unwrap() == Progress::Done);
            sent || stays.progress().unwrap() == Progress::Done
        });
        drop(leaves);
        stays.on_peer_left(1);
        until(|| stays.progress().unwrap() == Progress::Done);
        // SAFETY: as above.
        unsafe {
            to.hear(0);
            (0..2).for_each(|step| to.take(step));
        }
    }
}

/// A rank that has left makes no connection: who waits for one is told.
#[test]
fn a_connection_of_a_rank_that_has_left_is_not_awaited() {
    // SAFETY: as in `crosses`.
    let mut memory = unsafe { Box::<Memory>::new_zeroed().assume_init() };
    let protocol = ProtocolId::Simple;
    let end = End { memory: &raw mut *memory, gpu: std::ptr::null_mut(), on_gpu: None, protocol };
    let net: Arc<dyn Net> = Arc::new(sockets());
    let (mut stays, _) = of_rank(0, &net, end, Vec::new());
    let key = ConnectionId { peer: 1, index: 4 };
    stays.recv(key, Steps { seq: 9, signatures: 0, protocol, steps: 1 });
    stays.on_peer_left(1);
    stays.recv(key, Steps { seq: 10, signatures: 0, protocol, steps: 1 });
    let mut failure = None;
    until(|| {
        failure = stays.progress().err();
        failure.is_some()
    });
    let failure = failure.unwrap();
    assert_eq!((failure.key, failure.sending, failure.seq), (key, false, 9));
    assert!(failure.error.to_string().contains("it has left the group"), "{failure:?}");
}
