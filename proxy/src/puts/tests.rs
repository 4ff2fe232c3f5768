//! Puts between two ranks of the process, whose kernels are the test; and headers of somebody who means harm.

use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use proptest::prelude::*;

use super::*;
use crate::connection::HelloSend;
use crate::net::{LocalNet, MemoryKind, SendComm};

const WINDOW: u64 = 3;
const BYTES: usize = 100;
const PIECE: usize = 16;

/// A rank, with the words of its kernel, and a window.
struct Side {
    puts: Puts,
    comm: DeviceComm,
    words: Arc<Vec<AtomicU64>>,
    window: Arc<Vec<AtomicU64>>,
    asked: u64,
    gone: Arc<AtomicU64>,
    there: Arc<Mutex<bool>>,
}

/// Memory that only the host reaches, by copies.
struct Copied(Arc<Vec<AtomicU64>>);

impl StagedMemory for Copied {
    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), String> {
        let at = self.0.as_ptr().cast::<u8>().wrapping_add(offset as usize);
        // SAFETY: `PutWindow::check` has looked.
        unsafe { std::ptr::copy_nonoverlapping(at, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), String> {
        let at = self.0.as_ptr().cast::<u8>().cast_mut().wrapping_add(offset as usize);
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), at, from.len()) };
        Ok(())
    }
}

fn words(count: usize) -> Arc<Vec<AtomicU64>> {
    Arc::new((0..count).map(|_| AtomicU64::new(0)).collect())
}

fn sides(staged: [bool; 2]) -> [Side; 2] {
    let net: Arc<dyn Net> = Arc::new(LocalNet::default());
    let listeners = [0; 2].map(|_| net.listen(0).unwrap());
    let handles = listeners.each_ref().map(|listener| listener.handle().to_vec());
    let mut listeners = listeners.into_iter();
    std::array::from_fn(|rank| {
        let mut comm = DeviceComm {
            rank: rank as u32,
            ranks: 2,
            barriers: 2,
            signals: 3,
            requests: 4,
            ..DeviceComm::default()
        };
        let own = words(comm.network_words());
        comm.network = own.as_ptr() as u64;
        let window = words(BYTES.div_ceil(8));
        let (there, gone) = (Arc::new(Mutex::new(true)), Arc::<AtomicU64>::default());
        let (memory, is_there) = (Arc::clone(&window), Arc::clone(&there));
        let find = move |number| {
            let address = memory.as_ptr() as u64;
            let direct = PutAccess::Direct {
                memory: (address, BYTES),
                kind: MemoryKind::Host,
                flush: false,
            };
            let copied = PutAccess::Staged(Arc::new(Copied(Arc::clone(&memory))));
            let found = PutWindow {
                address,
                bytes: BYTES as u64,
                access: if staged[rank] { copied } else { direct },
                keep: Arc::<Vec<AtomicU64>>::clone(&memory),
            };
            (number == WINDOW && *is_there.lock().unwrap()).then_some(found)
        };
        let config = PutsConfig {
            net: Arc::clone(&net),
            group: 7,
            listener: listeners.next().unwrap(),
            device: 0,
            routes: (0..2).map(|r| (r != rank).then(|| handles[r].clone())).collect(),
            comm,
            piece: PIECE,
            find: Box::new(find),
            gone: Arc::clone(&gone),
        };
        // SAFETY: the side keeps the words and the window.
        let puts = unsafe { Puts::new(config) };
        Side { puts, comm, words: own, window, asked: 0, gone, there }
    })
}

impl Side {
    /// As a kernel does it; whether there is room.
    fn ask(&mut self, request: PutRequest) -> bool {
        if self.done() + u64::from(self.comm.requests) <= self.asked {
            return false;
        }
        let at = self.comm.request(self.asked);
        let PutRequest { kind, peer, window, offset, bytes, from, from_offset, index, .. } =
            request;
        let who = u64::from(kind) | u64::from(peer) << 32;
        let fields = [who, window, offset, bytes, from, from_offset, index.into()];
        fields
            .iter()
            .enumerate()
            .for_each(|(i, field)| self.words[at + 1 + i].store(*field, Relaxed));
        self.asked += 1;
        self.words[at].store(self.asked, Release);
        true
    }

    fn done(&self) -> u64 {
        self.words[DeviceComm::DONE].load(Acquire)
    }

    fn signals(&self, index: u32) -> u64 {
        self.words[self.comm.network_sent(index, 1 - self.comm.rank)].load(Acquire)
    }

    fn put(&self, offset: u64, from_offset: u64, bytes: u64) -> PutRequest {
        PutRequest {
            kind: PutRequest::DATA | PutRequest::SIGNAL,
            peer: 1 - self.comm.rank,
            window: WINDOW,
            offset,
            bytes,
            from: WINDOW,
            from_offset,
            ..PutRequest::default()
        }
    }

    fn bytes(&self) -> Vec<u8> {
        self.window.iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).take(BYTES).collect()
    }
}

/// Until nothing moves any more.
fn settle(sides: &mut [Side; 2]) -> Result<(), PutFailure> {
    for _ in 0..500 {
        for side in &mut *sides {
            side.puts.progress()?;
        }
    }
    Ok(())
}

#[test]
fn data_arrives_before_its_signal_and_requests_are_done_in_order() {
    for staged in [[false; 2], [true, false], [false, true], [true; 2]] {
        let [mut one, mut other] = sides(staged);
        for (i, word) in one.window.iter().enumerate() {
            word.store(0x0101_0101_0101_0101 * (i as u64 + 1), Relaxed);
        }
        let sent = one.bytes();
        let mut wanted = vec![0; BYTES];
        // More than there are requests, places of headers, and pieces.
        for n in 0..60 {
            let (offset, from, bytes) = (n * 7 % 60, n * 5 % 60, n * 3 % 41);
            let put = one.put(offset, from, bytes);
            while !one.ask(put) {
                let before = other.signals(0);
                one.puts.progress().unwrap();
                other.puts.progress().unwrap();
                let done = one.done();
                // Nothing is done before it is sent, and every signal has its data.
                assert!(other.signals(0) >= before && done <= one.asked, "{done}");
            }
            let (to, from) = (offset as usize, from as usize);
            let bytes = bytes as usize;
            wanted[to..to + bytes].copy_from_slice(&sent[from..from + bytes]);
            if n % 8 == 0 {
                // All that was asked for so far, before anything is asked for again.
                while other.signals(0) <= n {
                    one.puts.progress().unwrap();
                    other.puts.progress().unwrap();
                }
                assert_eq!(other.bytes(), wanted, "{staged:?}, put {n}");
            }
        }
        let both = &mut [one, other];
        settle(both).unwrap();
        let [one, other] = both;
        assert_eq!((one.done(), other.signals(0), other.signals(1)), (60, 60, 0));
        assert_eq!(other.bytes(), wanted, "{staged:?}");
    }
}

#[test]
fn values_signals_and_arrivals() {
    let mut both = sides([false; 2]);
    let value = PutRequest {
        kind: PutRequest::VALUE,
        peer: 1,
        window: WINDOW,
        offset: 92,
        bytes: 8,
        from_offset: 0x1122_3344_5566_7788,
        ..PutRequest::default()
    };
    let signal = PutRequest { kind: PutRequest::SIGNAL, peer: 1, index: 2, ..Default::default() };
    let arrival = |number| PutRequest {
        kind: PutRequest::ARRIVAL,
        peer: 1,
        index: 1,
        from_offset: number,
        ..PutRequest::default()
    };
    for request in [value, signal, arrival(2), arrival(5)] {
        assert!(both[0].ask(request));
    }
    assert!(!both[0].ask(signal), "there are four at a time");
    settle(&mut both).unwrap();
    let other = &both[1];
    assert_eq!(other.bytes()[92..], 0x1122_3344_5566_7788_u64.to_ne_bytes());
    assert_eq!(other.words[other.comm.network_arrival(1, 0)].load(Relaxed), 5);
    assert_eq!((other.signals(0), other.signals(2)), (0, 1));
    // A barrier's count grows.
    assert!(both[0].ask(arrival(5)));
    let failure = settle(&mut both).unwrap_err().to_string();
    assert!(failure.contains("comes to a barrier for time 5, after time 5"), "{failure}");
}

#[test]
fn impossible_requests_are_errors_and_write_nothing() {
    let put = sides([false; 2])[0].put(0, 0, 8);
    for (wrong, reason) in [
        (PutRequest { peer: 2, ..put }, "rank 2 is not reached by the network"),
        (PutRequest { peer: 0, ..put }, "rank 0 is not reached by the network"),
        (PutRequest { from: 4, ..put }, "there is no window 4"),
        (PutRequest { from_offset: 93, ..put }, "8 bytes from byte 93 on"),
        (PutRequest { from_offset: u64::MAX, ..put }, "of window 3, which has 100"),
        (PutRequest { index: 3, ..put }, "signal 3 of 3"),
        (PutRequest { kind: 0, ..put }, "a request of kind 0"),
        (PutRequest { kind: PutRequest::VALUE, bytes: 9, ..put }, "a value of 9 bytes"),
        (PutRequest { kind: PutRequest::ARRIVAL, index: 2, ..put }, "barrier 2 of 2"),
        // At the receiver.
        (PutRequest { window: 9, ..put }, "there is no window 9"),
        (PutRequest { offset: 93, ..put }, "8 bytes from byte 93 on"),
        (PutRequest { offset: u64::MAX - 7, ..put }, "of window 3, which has 100"),
    ] {
        let mut both = sides([false; 2]);
        assert!(both[0].ask(wrong));
        let failure = settle(&mut both).unwrap_err();
        assert!(failure.to_string().contains(reason), "{failure}, not {reason}");
        assert_eq!(both[1].bytes(), [0; BYTES]);
        assert_eq!((0..3).map(|i| both[1].signals(i)).sum::<u64>(), 0, "{reason}");
        // It stays.
        both.iter_mut().find_map(|side| side.puts.progress().err()).unwrap();
    }
}

#[test]
fn a_window_that_is_gone_is_let_go_and_not_found() {
    let mut both = sides([false; 2]);
    let put = both[0].put(0, 0, 8);
    assert!(both[0].ask(put));
    settle(&mut both).unwrap();
    // The test's, the finder's, and the connection's.
    assert_eq!(both.each_ref().map(|side| Arc::strong_count(&side.window)), [3, 3]);
    for side in &both {
        *side.there.lock().unwrap() = false;
        side.gone.fetch_add(1, Relaxed);
    }
    settle(&mut both).unwrap();
    assert_eq!(both.each_ref().map(|side| Arc::strong_count(&side.window)), [2, 2]);
    assert!(both[0].ask(put));
    let failure = settle(&mut both).unwrap_err().to_string();
    assert!(failure.contains("there is no window 3"), "{failure}");
}

#[test]
fn who_leaves_says_so() {
    let mut both = sides([false; 2]);
    let put = both[0].put(0, 0, 8);
    assert!(both[0].ask(put));
    settle(&mut both).unwrap();
    // The receiver leaves, and has not sent anything so far.
    let [mut one, mut other] = both;
    other.puts.close();
    while !matches!(other.puts.progress(), Ok(Progress::Done)) {
        one.puts.progress().unwrap();
    }
    // It is gone before the last header is read.
    drop(other);
    for _ in 0..100 {
        one.puts.progress().unwrap();
    }
    // What is put to it is of no interest.
    assert!(one.ask(put));
    for _ in 0..100 {
        one.puts.progress().unwrap();
    }
    assert_eq!(one.done(), 2);
}

#[test]
fn what_was_asked_for_before_the_end_is_sent() {
    let [mut one, mut other] = sides([false; 2]);
    let put = one.put(0, 0, 40);
    (0..4).for_each(|_| assert!(one.ask(put)));
    // A kernel need not wait for what it has asked for: the last arrival at a barrier, say.
    one.puts.close();
    while !matches!(one.puts.progress(), Ok(Progress::Done)) {
        other.puts.progress().unwrap();
    }
    drop(one);
    for _ in 0..100 {
        other.puts.progress().unwrap();
    }
    assert_eq!(other.signals(0), 4);
}

#[test]
fn who_goes_without_a_word_is_a_failure() {
    // The receiver of what is put finds it, and who puts.
    for receives in [true, false] {
        let [mut one, mut other] = sides([false; 2]);
        let put = one.put(0, 0, 8);
        assert!(if receives { other.ask(PutRequest { peer: 0, ..put }) } else { one.ask(put) });
        for _ in 0..100 {
            one.puts.progress().unwrap();
            other.puts.progress().unwrap();
        }
        drop(other);
        if !receives {
            one.puts.progress().unwrap();
            assert!(one.ask(put));
        }
        let failure = (0..10).find_map(|_| one.puts.progress().err()).unwrap();
        assert!(matches!(failure, PutFailure::Peer(1, _)), "{failure}");
        // It stays one.
        one.puts.progress().unwrap_err();
    }
}

/// Connects as rank 0 and sends these bytes in place of headers.
fn attack(messages: &[Vec<u8>]) -> (Side, Option<PutFailure>) {
    let [one, mut other] = sides([false; 2]);
    let net = Arc::clone(&one.puts.config.net);
    let handle = one.puts.config.routes[1].clone().unwrap();
    let mut lanes: Vec<HelloSend> = [0, 1]
        .map(|index| {
            let comm = net.connect(0, &handle).unwrap().poll().unwrap().unwrap();
            HelloSend::new(comm, Hello { group: 7, from: 0, to: 1, index }).unwrap()
        })
        .into();
    for lane in &mut lanes {
        while !lane.progress().unwrap() {
            other.puts.progress().unwrap();
        }
    }
    let mut lanes = lanes.into_iter().map(|lane| lane.open().unwrap());
    let (mut headers, _data) = (lanes.next().unwrap(), lanes.next().unwrap());
    let mut failure = None;
    for message in messages {
        failure = failure.or(send(&mut *headers, message, &mut other));
    }
    (other, failure)
}

fn send(comm: &mut dyn SendComm, message: &[u8], other: &mut Side) -> Option<PutFailure> {
    let mut message = message.to_vec();
    let mut failure = None;
    // SAFETY: the message is there until it is sent, or the connection dropped.
    unsafe {
        let memory = comm.register(message.as_mut_ptr(), message.len(), MemoryKind::Host).unwrap();
        let request = comm.isend(message.as_ptr(), message.len(), 0, memory);
        let request = request.unwrap().unwrap();
        for _ in 0..50 {
            failure = failure.or(other.puts.progress().err());
            if comm.test(request).unwrap_or(true) {
                break;
            }
        }
    }
    for _ in 0..5 {
        failure = failure.or(other.puts.progress().err());
    }
    failure
}

fn header(number: u64, kind: PutKind) -> Vec<u8> {
    PutHeader { number, kind }.bytes().to_vec()
}

#[test]
fn headers_that_cannot_be_are_errors_and_write_nothing() {
    let put = |window, offset, bytes, signal| PutKind::Put { window, offset, bytes, signal };
    let mut bad_magic = header(0, PutKind::Signal(0));
    bad_magic[3] ^= 1;
    let mut unused = header(0, PutKind::Signal(0));
    unused[16] = 1;
    for (messages, reason) in [
        (vec![header(0, put(1, 0, 8, None))], "there is no window 1"),
        (vec![header(0, put(WINDOW, 97, 4, None))], "4 bytes from byte 97 on"),
        (vec![header(0, put(WINDOW, 4, u64::MAX, None))], "of window 3, which has 100"),
        (vec![header(0, put(WINDOW, 0, 0, Some(3)))], "signal 3 of 3"),
        (vec![header(0, PutKind::Signal(u32::MAX))], "of 3"),
        (vec![header(0, PutKind::Arrival { barrier: 2, number: 1 })], "barrier 2 of 2"),
        (vec![header(1, PutKind::Signal(0))], "header 1 in place of 0"),
        (vec![bad_magic], "not of this version"),
        (vec![unused], "a header with more than"),
        (vec![vec![]], "a header of 0 bytes"),
        (vec![vec![0; 47]], "a header of 47 bytes"),
    ] {
        let (other, failure) = attack(&messages);
        let failure = failure.unwrap_or_else(|| panic!("no failure, not {reason}"));
        assert!(matches!(failure, PutFailure::Peer(0, _)), "{failure}");
        assert!(failure.to_string().contains(reason), "{failure}, not {reason}");
        assert!(other.words.iter().all(|word| word.load(Relaxed) == 0), "{reason}");
        assert_eq!(other.bytes(), [0; BYTES]);
    }
    let (other, failure) = attack(&[header(0, PutKind::Signal(1)), header(1, PutKind::Bye)]);
    assert_eq!((other.signals(1), failure), (1, None));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_a_header_that_says_the_same_or_an_error(bytes: [u8; 48], magic: bool, kind in 0..20u32) {
        let mut bytes = bytes;
        if magic {
            bytes[..4].copy_from_slice(&header(0, PutKind::Bye)[..4]);
            bytes[4..8].copy_from_slice(&kind.to_le_bytes());
        }
        if let Ok(read) = PutHeader::parse(&bytes) {
            prop_assert_eq!(read.bytes(), bytes);
        }
    }
}
