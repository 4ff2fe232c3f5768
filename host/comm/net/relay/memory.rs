//! The memory by which the ranks of a host have others send for them.
//!
//! ```text
//! of each rank:  wake word | rings of steps, one for each rank that it sends for | its edges to ranks of other hosts
//!                   others write                                                    its kernels write, others send
//! ```
//!
//! The rank that sends has the rings, so that it can wait for all of them at one word.

use std::collections::VecDeque;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use ferroccl_device::abi::{CACHE_LINE, ProtocolId};
use ferroccl_proxy::connection::{ConnectionId, Steps};

use crate::transport::HostRegion;

/// Parts begin at pages, so that what nobody uses is never touched.
const PAGE: usize = 4096;
/// Entries of a ring: the connections of some dozen calls. What does not fit waits at the client.
const ENTRIES: usize = 1024;
const RING_BYTES: usize =
    (size_of::<RelayRingHeader>() + ENTRIES * size_of::<RelayedSteps>()).next_multiple_of(PAGE);

/// The parts of a rank's memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::comm) struct RelayLayout {
    /// Ranks of the communicator.
    pub ranks: usize,
    /// Bytes of an edge.
    pub edge_bytes: usize,
}

impl RelayLayout {
    /// Bytes in all; `None` when they are more than there can be.
    pub(in crate::comm) fn bytes(&self) -> Option<usize> {
        let of_rank = RING_BYTES.checked_add(self.edge_bytes)?;
        let bytes = self.ranks.checked_mul(of_rank)?.checked_add(PAGE)?;
        (bytes <= isize::MAX as usize).then_some(bytes)
    }

    fn ring(&self, client: u32) -> usize {
        PAGE + client as usize * RING_BYTES
    }

    /// Where `client` says whether it has the slots mapped that are sent from for it.
    pub(in crate::comm) fn mapping_word(&self, client: u32) -> usize {
        self.ring(client) + offset_of!(RelayRingHeader, mapped)
    }

    /// Where the edge to a rank begins.
    pub(in crate::comm) fn edge(&self, peer: u32) -> usize {
        PAGE + self.ranks * RING_BYTES + peer as usize * self.edge_bytes
    }
}

/// What a rank is woken by when others have something for it to send. The first words of its memory.
#[derive(Clone, Debug)]
pub(in crate::comm) struct WakeWord(HostRegion);

#[repr(C)]
struct WakeWords {
    /// Counts calls to wake it; it sleeps on this word.
    calls: AtomicU32,
    /// Whether it looks at the rings without being woken.
    looking: AtomicU32,
}

impl WakeWord {
    pub(in crate::comm) fn new(memory: &HostRegion) -> Self {
        WakeWord(memory.part(0, PAGE))
    }

    fn words(&self) -> &WakeWords {
        // SAFETY: the region is a page at least, lives as long as `self`, and begins with these words, which all access as
        // atomics.
        unsafe { &*(self.0.address() as *const WakeWords) }
    }

    /// How often it was called. Pairs with the release in `call`: what was written before a call that is counted is seen.
    pub(super) fn calls(&self) -> u32 {
        self.words().calls.load(Ordering::Acquire)
    }

    /// Says whether the rank looks at the rings by itself. After `false` it has to look once more.
    pub(in crate::comm) fn set_looking(&self, looking: bool) {
        self.words().looking.store(looking.into(), Ordering::Relaxed);
        // Pairs with the fence in `wake`: one of the two sees what the other wrote before.
        fence(Ordering::SeqCst);
    }

    /// Wakes the rank, unless it looks at the rings by itself.
    pub(super) fn wake(&self) {
        // Pairs with the fence in `set_looking`.
        fence(Ordering::SeqCst);
        if self.words().looking.load(Ordering::Relaxed) == 0 {
            self.call();
        }
    }

    /// Wakes the rank.
    pub(in crate::comm) fn call(&self) {
        // Pairs with the acquire in `calls`.
        self.words().calls.fetch_add(1, Ordering::Release);
        let at = self.words().calls.as_ptr();
        // SAFETY: FUTEX_WAKE of futex(2) does not access the word. Not private: the rank may be another process.
        unsafe { libc::syscall(libc::SYS_futex, at, libc::FUTEX_WAKE, i32::MAX) };
    }

    /// Sleeps until it is called, if it was not since `calls` was read, for `limit` at most.
    pub(super) fn sleep(&self, calls: u32, limit: Duration) {
        let limit = libc::timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let at = self.words().calls.as_ptr();
        // SAFETY: FUTEX_WAIT of futex(2) reads the word atomically; the time outlives the call.
        unsafe { libc::syscall(libc::SYS_futex, at, libc::FUTEX_WAIT, calls, &raw const limit) };
    }
}

/// Counters on lines of their own: one side writes each.
#[repr(C)]
struct RelayRingHeader {
    /// Entries that the client has put in.
    tail: AtomicU64,
    /// Whether the client will put nothing in any more.
    left: AtomicU32,
    pad: [u8; CACHE_LINE - 12],
    /// Entries that the server has taken out.
    head: AtomicU64,
    pad2: [u8; CACHE_LINE - 8],
    /// Whether the client has the slots mapped that the server sends from ([`crate::transport::exported`]).
    mapped: AtomicU64,
    pad3: [u8; CACHE_LINE - 8],
}

/// Steps of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct RelayedSteps {
    seq: u64,
    signatures: u64,
    steps: u64,
    peer: u32,
    index: u32,
    protocol: u32,
    /// Where the connection's header is in its edge, in pages.
    page: u32,
}

impl RelayedSteps {
    /// Of a connection whose header is at `offset` in its edge, a multiple of a page.
    pub(super) fn new(key: ConnectionId, steps: Steps, offset: usize) -> Self {
        RelayedSteps {
            seq: steps.seq,
            signatures: steps.signatures,
            steps: steps.steps,
            peer: key.peer,
            index: key.index,
            protocol: steps.protocol.index() as u32,
            page: u32::try_from(offset / PAGE).unwrap_or(u32::MAX),
        }
    }

    /// Where the connection's header is in its edge.
    pub(super) fn offset(&self) -> usize {
        self.page as usize * PAGE
    }

    /// The connection and the steps; `None` when there is no such protocol.
    pub(super) fn steps(&self) -> Option<(ConnectionId, Steps)> {
        let protocol = ProtocolId::from_index(self.protocol.into())?;
        let RelayedSteps { seq, signatures, steps, peer, index, .. } = *self;
        Some((ConnectionId { peer, index }, Steps { seq, signatures, protocol, steps }))
    }
}

/// A ring of steps, which one client fills and one server empties.
#[derive(Debug)]
struct RelayRing(HostRegion);

impl RelayRing {
    fn of(memory: &HostRegion, layout: RelayLayout, client: u32) -> Self {
        RelayRing(memory.part(layout.ring(client), RING_BYTES))
    }

    fn header(&self) -> &RelayRingHeader {
        // SAFETY: the region has a header's size and alignment, lives as long as `self`, and all access these words as atomics.
        unsafe { &*(self.0.address() as *const RelayRingHeader) }
    }

    fn entry(&self, number: u64) -> *mut RelayedSteps {
        let first = (self.0.address() as usize + size_of::<RelayRingHeader>()) as *mut RelayedSteps;
        first.wrapping_add((number % ENTRIES as u64) as usize)
    }
}

/// The client's end of a ring.
#[derive(Debug)]
pub(super) struct RingTo {
    ring: RelayRing,
    wake: WakeWord,
    tail: u64,
    /// What had no room yet.
    waiting: VecDeque<RelayedSteps>,
}

impl RingTo {
    /// The ring of `client` in the memory of the rank that sends for it.
    pub(super) fn new(memory: &HostRegion, layout: RelayLayout, client: u32) -> Self {
        let (ring, wake) = (RelayRing::of(memory, layout, client), WakeWord::new(memory));
        RingTo { ring, wake, tail: 0, waiting: VecDeque::new() }
    }

    /// Hands over steps, at once or as soon as there is room ([`RingTo::go_on`]).
    pub(super) fn push(&mut self, entry: RelayedSteps) {
        self.waiting.push_back(entry);
        self.go_on();
    }

    /// Hands over what there is room for; whether it was anything.
    pub(super) fn go_on(&mut self) -> bool {
        let before = self.tail;
        // Pairs with the release in `RingFrom::pop`: the server has read what is overwritten.
        let head = self.ring.header().head.load(Ordering::Acquire);
        while self.tail.wrapping_sub(head) < ENTRIES as u64
            && let Some(entry) = self.waiting.pop_front()
        {
            // SAFETY: inside the ring; the server does not read it before the tail says so.
            unsafe { self.ring.entry(self.tail).write(entry) };
            self.tail += 1;
        }
        if self.tail == before {
            return false;
        }
        // Pairs with the acquire in `RingFrom::pop`.
        self.ring.header().tail.store(self.tail, Ordering::Release);
        self.wake.wake();
        true
    }

    /// Says that there will be nothing more.
    pub(super) fn leave(&self) {
        // Pairs with the acquire in `RingFrom::is_over`.
        self.ring.header().left.store(1, Ordering::Release);
        self.wake.call();
    }
}

/// The server's end of a ring.
#[derive(Debug)]
pub(super) struct RingFrom {
    ring: RelayRing,
    head: u64,
}

impl RingFrom {
    /// The ring of `client` in the server's own memory.
    pub(super) fn new(memory: &HostRegion, layout: RelayLayout, client: u32) -> Self {
        RingFrom { ring: RelayRing::of(memory, layout, client), head: 0 }
    }

    /// Whether there is something to take out.
    pub(super) fn has_more(&self) -> bool {
        // Pairs with the release in `RingTo::go_on`.
        self.ring.header().tail.load(Ordering::Acquire) != self.head
    }

    /// Takes the next entry out.
    pub(super) fn pop(&mut self) -> Option<RelayedSteps> {
        if !self.has_more() {
            return None;
        }
        // SAFETY: inside the ring; the client has written it before it said so, and does not write it again before the head
        // says so. Any bytes are an entry.
        let entry = unsafe { self.ring.entry(self.head).read() };
        self.head += 1;
        // Pairs with the acquire in `RingTo::go_on`.
        self.ring.header().head.store(self.head, Ordering::Release);
        Some(entry)
    }

    /// Whether the client has left, and everything is taken out.
    pub(super) fn is_over(&self) -> bool {
        // Pairs with the release in `RingTo::leave`, before which the last entry was put in.
        self.ring.header().left.load(Ordering::Acquire) != 0 && !self.has_more()
    }
}

const _: () = assert!(offset_of!(RelayRingHeader, head) == CACHE_LINE);
const _: () = assert!(size_of::<RelayRingHeader>().is_multiple_of(align_of::<RelayedSteps>()));

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn memory() -> (HostRegion, RelayLayout) {
        let layout = RelayLayout { ranks: 3, edge_bytes: 8192 };
        (HostRegion::anonymous(layout.bytes().unwrap()).unwrap(), layout)
    }

    fn entry(seq: u64) -> RelayedSteps {
        let steps = Steps { seq, signatures: 1, protocol: ProtocolId::Ll128, steps: seq + 7 };
        RelayedSteps::new(ConnectionId { peer: 5, index: (seq % 9) as u32 }, steps, 7 * PAGE)
    }

    #[test]
    fn steps_come_out_as_they_went_in() {
        let (memory, layout) = memory();
        let (mut to, mut from) =
            (RingTo::new(&memory, layout, 1), RingFrom::new(&memory, layout, 1));
        let other = RingFrom::new(&memory, layout, 2);
        // Three times as many as there is room for, taken out in parts that do not divide the ring.
        let all = 3 * ENTRIES as u64;
        (0..all).for_each(|seq| to.push(entry(seq)));
        to.leave();
        let mut seen = 0;
        while seen < all {
            for _ in 0..700 {
                let Some(found) = from.pop() else { break };
                assert_eq!(found, entry(seen));
                assert_eq!(found.offset(), 7 * PAGE);
                let (key, steps) = found.steps().unwrap();
                assert_eq!(
                    (key.peer, steps.protocol, steps.steps),
                    (5, ProtocolId::Ll128, seen + 7)
                );
                seen += 1;
            }
            assert_eq!(from.is_over(), seen == all, "{seen}");
            to.go_on();
        }
        assert!(from.pop().is_none() && !other.has_more() && !other.is_over());
    }

    #[test]
    fn parts_do_not_overlap() {
        let (_, layout) = memory();
        let mut starts: Vec<usize> = (0..3).map(|rank| layout.ring(rank)).collect();
        starts.extend((0..3).map(|rank| layout.edge(rank)));
        assert_eq!(starts[0], PAGE);
        assert!(starts[..4].windows(2).all(|pair| pair[1] - pair[0] == RING_BYTES));
        assert!(starts[3..].windows(2).all(|pair| pair[1] - pair[0] == layout.edge_bytes));
        assert_eq!(starts[5] + layout.edge_bytes, layout.bytes().unwrap());
        assert_eq!(RelayLayout { ranks: usize::MAX / 2, edge_bytes: 4096 }.bytes(), None);
    }

    #[test]
    fn a_protocol_that_nobody_has_is_noticed() {
        assert_eq!(RelayedSteps { protocol: 77, ..entry(1) }.steps(), None);
    }

    /// A rank that sleeps hears of each entry, and one that looks for itself is left alone.
    #[test]
    fn whoever_sleeps_is_woken() {
        let (memory, layout) = memory();
        let (wake, mut from) = (WakeWord::new(&memory), RingFrom::new(&memory, layout, 0));
        let client = memory.clone();
        let thread = std::thread::spawn(move || {
            let mut to = RingTo::new(&client, layout, 0);
            for seq in 0..2000 {
                to.push(entry(seq));
                if seq % 100 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            while to.go_on() || !to.waiting.is_empty() {}
        });
        let (mut seen, begun) = (0, Instant::now());
        while seen < 2000 {
            let calls = wake.calls();
            while from.pop().is_some() {
                seen += 1;
            }
            if seen < 2000 {
                wake.sleep(calls, Duration::from_secs(60));
            }
            assert!(begun.elapsed() < Duration::from_secs(50), "{seen}");
        }
        thread.join().unwrap();
        wake.set_looking(true);
        let calls = wake.calls();
        RingTo { tail: 2000, ..RingTo::new(&memory, layout, 0) }.push(entry(0));
        assert_eq!(wake.calls(), calls);
    }
}
