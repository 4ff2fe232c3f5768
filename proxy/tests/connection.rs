//! Connections with threads at both ends that do what kernels do, and threads that play the proxies: what is sent arrives.
//! Under ThreadSanitizer this is the test of `Sending` and `Receiving` themselves; of their orders there is a model in
//! `fifo_model`.

use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ferroccl_device::abi::{
    Conn, ConnHeader, LL_LINE, LL128_LINE, ProtocolId, SIGNATURES, Signature, fifo_entry,
};
use ferroccl_device::gpu::{self, LINE_WORDS};
use ferroccl_proxy::connection::{Ends, Receiving, Sending, Steps};
use ferroccl_proxy::net::socket::{SocketConfig, SocketInterface, SocketNet};
use ferroccl_proxy::net::{LocalNet, Net, RecvComm, SendComm};
use ferroccl_proxy::{NetError, Progress};

const SLOTS: u64 = 2;
const SLOT_BYTES: usize = 1024;
const SLOT_WORDS: usize = SLOT_BYTES / 8;
/// More calls than a ring has signatures.
const CALLS: u64 = 3 * SIGNATURES as u64;
const STEPS_A_CALL: u64 = 25;
/// Nothing here takes so long but a hang.
const HANG: Duration = Duration::from_secs(60);

/// A host's memory of a connection.
#[repr(C, align(128))]
struct Memory {
    header: ConnHeader,
    fifo: [u64; SLOTS as usize],
    slots: [[u64; SLOT_WORDS]; SLOTS as usize],
}

/// One end, of a kernel and its proxy.
#[derive(Clone, Copy)]
struct End {
    memory: *mut Memory,
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
        ProtocolId::Simple => SLOT_WORDS,
        ProtocolId::Ll => SLOT_BYTES / LL_LINE,
        ProtocolId::Ll128 => SLOT_BYTES / LL128_LINE * (LINE_WORDS - 1),
    };
    1 + (step * 7919) as usize % most
}

fn signature(call: u64) -> Signature {
    Signature { seq: call + 1, count: 3 * call, call: call << 8, root: call % 5 }
}

impl End {
    fn ends(self) -> Ends {
        let at = self.memory as u64;
        let slots = at + offset_of!(Memory, slots) as u64;
        let conn = Conn {
            header: at,
            buffers: [slots; 3],
            slot_bytes: [SLOT_BYTES as u32; 3],
            slots: SLOTS as u32,
            fifo: at + offset_of!(Memory, fifo) as u64,
            ..Conn::default()
        };
        let calls = at + offset_of!(ConnHeader, calls) as u64;
        Ends { calls, conn: Some(conn), memory: (at, size_of::<Memory>()) }
    }

    /// The slot of a step.
    fn slot(self, step: u64) -> *mut u64 {
        // SAFETY: an address inside the memory.
        unsafe { (&raw mut (*self.memory).slots).cast::<u64>() }
            .wrapping_add((step % SLOTS) as usize * SLOT_WORDS)
    }

    /// As the device's `can_tell` and `write_signature`.
    ///
    /// # Safety
    /// The memory is valid; there is one sending kernel.
    unsafe fn tell(self, call: u64) {
        // SAFETY: the caller's.
        unsafe {
            let ring = &raw mut (*self.memory).header.calls;
            until(|| gpu::ld_acquire(&raw const (*ring).ack) + SIGNATURES as u64 > call);
            let entries = (&raw mut (*ring).entries).cast::<Signature>();
            let entry = entries.add((call % SIGNATURES as u64) as usize).cast::<u64>();
            for (i, word) in signature(call).words().into_iter().enumerate() {
                gpu::st_relaxed(entry.add(i), word);
            }
            gpu::st_release(&raw mut (*ring).tail, call + 1);
        }
    }

    /// As the device's `can_hear` and `compare`.
    ///
    /// # Safety
    /// The memory is valid; there is one receiving kernel.
    unsafe fn hear(self, call: u64) {
        // SAFETY: the caller's.
        unsafe {
            let ring = &raw mut (*self.memory).header.calls;
            until(|| gpu::ld_acquire(&raw const (*ring).tail) > call);
            let entries = (&raw const (*ring).entries).cast::<Signature>();
            let entry = entries.add((call % SIGNATURES as u64) as usize).cast::<u64>();
            let want = signature(call).words();
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
                ProtocolId::Simple => {
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
                        gpu::st_line(slot.add(line * LINE_WORDS), words, true);
                    }
                }
            }
        }
    }

    /// As the device's `Protocol::step` of a verb that receives, from a connection that is `gated`.
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
                    ProtocolId::Simple => gpu::ld_data(slot.add(i)),
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

fn crosses(net: &dyn Net, protocol: ProtocolId) {
    // SAFETY: zeros are what the memory starts as.
    let mut memories = [(); 2].map(|()| unsafe { Box::<Memory>::new_zeroed().assume_init() });
    let [from, to] = memories.each_mut().map(|memory| End { memory: &raw mut **memory, protocol });
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
    crosses(&LocalNet::default(), protocol);
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let sockets = SocketConfig {
        interfaces: vec![SocketInterface { name: "lo".to_owned(), address, scope_id: 0 }],
        threads: Some(2),
        sockets_per_thread: Some(2),
        secret: [42; 32],
        connect_timeout: HANG,
    };
    crosses(&SocketNet::new(sockets).unwrap(), protocol);
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
