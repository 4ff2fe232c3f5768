//! The receiving end.

use std::sync::Arc;

use super::device::Port;
use super::endpoint::{Endpoint, UnconnectedEndpoint};
use super::fifo::{self, ENTRIES, ENTRY_BYTES, Entry, MAX_RECEIVES};
use super::memory::{RegisteredWords, rkeys};
use super::queue_pair::{CompletionQueue, QueuePair, SendWr, WrId};
use crate::NetError;
use crate::net::comm_base::CommBase;
use crate::net::{MAX_REQUESTS, MemoryHandle, MemoryKind, RecvBuffer, RecvComm, Request};

/// Requests that are announced with one write at most: a quarter of those that may be under way, so that the sender never
/// runs out.
const MAX_BATCHED: u64 = MAX_REQUESTS as u64 / 4;

/// A request that is under way, or done and not fetched.
#[derive(Debug)]
struct PendingRecv {
    /// Its number among those with buffers.
    sequence: u64,
    /// Buffers; none of one that flushes.
    count: usize,
    /// Bytes of each buffer; once it is done, of the message in it.
    bytes: [u64; MAX_RECEIVES],
    /// What has come with a notification.
    immediate: Option<u32>,
    /// Notifications that have not come.
    left: usize,
}

/// Makes what has arrived visible to a GPU: an RDMA read of the same device pushes the writes before it.
#[derive(Debug)]
struct FlushPair {
    pair: QueuePair, // dropped first
    /// Where the byte goes that is read.
    to: RegisteredWords,
}

#[derive(Debug)]
pub(super) struct VerbsRecvComm {
    endpoint: Endpoint, // dropped first
    /// By port; none where nothing is flushed.
    flush: Vec<FlushPair>,
    /// FIFO entries on their way to the sender.
    entries: RegisteredWords,
    /// Where the sender writes the sizes of messages that share a request.
    sizes: RegisteredWords,
    split: bool,
    requests: [Option<PendingRecv>; MAX_REQUESTS],
    /// By place in the FIFO, the number of the request.
    numbers: [u64; MAX_REQUESTS],
    /// Requests with buffers so far, and buffers.
    posted: u64,
    buffers: u64,
    /// Requests and buffers that have been announced to the sender.
    announced: (u64, u64),
}

impl VerbsRecvComm {
    pub(super) fn new(
        endpoint: Endpoint,
        split: bool,
        entries: RegisteredWords,
        sizes: RegisteredWords,
    ) -> VerbsRecvComm {
        VerbsRecvComm {
            endpoint,
            flush: Vec::new(),
            entries,
            sizes,
            split,
            requests: [const { None }; MAX_REQUESTS],
            numbers: [0; MAX_REQUESTS],
            posted: 0,
            buffers: 0,
            announced: (0, 0),
        }
    }

    /// For tests that break it.
    #[cfg(test)]
    pub(super) fn endpoint(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }

    /// Does what can be done at once.
    fn progress(&mut self) {
        let mut moved = false;
        while let Some(done) = self.endpoint.next() {
            moved = true;
            let result = match done.work {
                WrId::Arrived(sequence) => self.notified(sequence, done.immediate),
                WrId::Flushed(number) => {
                    self.flushed(number, done.port);
                    Ok(())
                }
                WrId::Sent(_) | WrId::Unnamed => Ok(()),
            };
            if let Err(reason) = result {
                self.endpoint.fail(reason);
            }
        }
        self.announce();
        self.endpoint.settle(moved);
        if self.endpoint.base.is_broken() {
            self.flush.clear(); // it reads buffers, too
        }
    }

    /// A queue pair has received its part of a request's messages.
    fn notified(&mut self, sequence: u64, immediate: Option<u32>) -> Result<(), String> {
        let number = self.numbers[CommBase::slot(sequence)];
        let pending = self.requests[CommBase::slot(number)].as_mut();
        let pending = pending.filter(|one| one.sequence == sequence && one.left > 0);
        let pending = pending.ok_or_else(|| format!("message {sequence} came twice"))?;
        let immediate =
            immediate.ok_or_else(|| format!("message {sequence} came without its size"))?;
        if let Some(other) = pending.immediate.replace(immediate)
            && other != immediate
        {
            return Err(format!("message {sequence} has {other} bytes, and {immediate}"));
        }
        pending.left -= 1;
        if pending.left > 0 {
            return Ok(());
        }
        let written = self.sizes.words().iter().skip(fifo::sizes(sequence)).map(fifo::load);
        let (of_one, of_many) = (pending.count == 1, pending.count > 1);
        let sizes = std::iter::once(u64::from(immediate)).take(usize::from(of_one));
        let sizes = sizes.chain(written.take(if of_many { pending.count } else { 0 }));
        for (bytes, size) in pending.bytes.iter_mut().zip(sizes) {
            if size > *bytes {
                return Err(format!("message {sequence} has {size} bytes, its buffer {bytes}"));
            }
            *bytes = size;
        }
        self.endpoint.filled += 1;
        Ok(())
    }

    /// A port's part of a flush is done.
    fn flushed(&mut self, number: u64, port: usize) {
        if let Some(pending) = &mut self.requests[CommBase::slot(number)] {
            pending.left = pending.left.saturating_sub(1);
        }
        self.flush.get_mut(port).into_iter().for_each(|flush| flush.pair.completed());
    }

    /// The place of the next request, if there is one.
    fn place(&mut self, operation: &'static str) -> Result<Option<usize>, NetError> {
        let slot = CommBase::slot(self.endpoint.base.next);
        if self.requests[slot].is_none() {
            return Ok(Some(slot));
        }
        self.progress();
        self.endpoint.base.check(operation).map(|()| None)
    }

    /// Makes room for the notifications of a request; how many.
    fn expect(&mut self, sequence: u64) -> Result<usize, String> {
        let device = Arc::clone(&self.endpoint.device);
        let pairs = self.endpoint.pairs_of(sequence, self.split);
        for pair in &*pairs {
            pair.expect(sequence).map_err(|e| {
                let name = device.ports[pair.port()].name();
                format!("{name}, queue pair {}: a receive is refused: {e}", pair.number)
            })?;
        }
        Ok(pairs.len())
    }

    /// Announces buffers to the sender, unless it has more of them left than there are new ones: then it does not need them
    /// yet, and a later write announces several.
    fn announce(&mut self) {
        let (new, left) =
            (self.posted - self.announced.0, self.announced.0.saturating_sub(self.endpoint.filled));
        if new == 0 || (new < left && new < MAX_BATCHED) {
            return self.endpoint.post_waiting();
        }
        // By the queue pair of the first, so that several take their turns here, too.
        let sequence = self.announced.0;
        while self.announced.1 < self.buffers {
            let first = fifo::place(self.announced.1);
            let count = (self.buffers - self.announced.1).min((ENTRIES - first) as u64);
            let bytes = count as u32 * ENTRY_BYTES as u32; // at most all 256 entries
            let offset = first * ENTRY_BYTES;
            let theirs = self.endpoint.theirs;
            if let Some(pair) = self.endpoint.pairs_of(sequence, self.split).first_mut() {
                let from = self.entries.local(offset / 8, bytes, pair.port());
                pair.post(SendWr::Write(from, theirs.at(offset, pair.theirs)));
            }
            self.announced.1 += count;
        }
        self.announced.0 = self.posted;
        self.endpoint.post_waiting();
    }
}

impl RecvComm for VerbsRecvComm {
    unsafe fn register(
        &mut self,
        address: *mut u8,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError> {
        // SAFETY: the caller's.
        let memory = unsafe { self.endpoint.register(address, bytes, kind)? };
        let flushes = kind != MemoryKind::Host || self.endpoint.config.flush_host;
        if flushes && self.flush.is_empty() {
            let Endpoint { device, config, completions, .. } = &self.endpoint;
            let flush = |(port, completions): (&Arc<Port>, &Arc<CompletionQueue>)| {
                let pair = UnconnectedEndpoint::own(port, config, completions)
                    .map_err(|reason| self.endpoint.error("register", reason))?;
                let to = RegisteredWords::new(std::slice::from_ref(port), 1)?;
                Ok::<_, NetError>(FlushPair { pair, to })
            };
            self.flush =
                device.ports.iter().zip(completions).map(flush).collect::<Result<_, _>>()?;
        }
        Ok(memory)
    }

    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), NetError> {
        self.endpoint.memory.remove(memory)
    }

    unsafe fn irecv(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>, NetError> {
        self.endpoint.base.check("irecv")?;
        let count = buffers.len();
        if !(1..=MAX_RECEIVES).contains(&count) {
            let reason = format!("{count} buffers, where 1 to {MAX_RECEIVES} go");
            return Err(self.endpoint.error("irecv", reason));
        }
        let sequence = self.posted;
        let mut bytes = [0; MAX_RECEIVES];
        let mut entries = [Entry::default(); MAX_RECEIVES];
        for ((buffer, bytes), entry) in buffers.iter().zip(&mut bytes).zip(&mut entries) {
            let RecvBuffer { address, bytes: room, tag, memory } = *buffer;
            let keys = rkeys(self.endpoint.memory.check("irecv", address, room, memory)?);
            *bytes = room as u64;
            let (address, count) = (address as u64, count as u32);
            *entry = Entry { address, bytes: *bytes, keys, tag, count, number: 0 };
        }
        let Some(slot) = self.place("irecv")? else { return Ok(None) };
        match self.expect(sequence) {
            Ok(left) => {
                // Their places are free as well: they are of a request before the last of this place.
                for (number, entry) in (self.buffers..).zip(&entries).take(count) {
                    Entry { number, ..*entry }.put(self.entries.words());
                }
                let number = self.endpoint.base.next;
                let pending = PendingRecv { sequence, count, bytes, immediate: None, left };
                self.requests[slot] = Some(pending);
                self.numbers[CommBase::slot(sequence)] = number;
                self.endpoint.base.next += 1;
                self.posted += 1;
                self.buffers += count as u64;
                self.announce();
            }
            Err(reason) => self.endpoint.fail(reason),
        }
        self.endpoint.base.check("irecv")?;
        Ok(Some(self.endpoint.base.request(self.endpoint.base.next - 1)))
    }

    fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool, NetError> {
        self.endpoint.base.check_told("test")?;
        let number = self.endpoint.base.sequence(request)?;
        let slot = CommBase::slot(number);
        let mut looked = false;
        loop {
            match &self.requests[slot] {
                None => return Err(self.endpoint.base.no_such(request)),
                Some(PendingRecv { left: 0, count, bytes, .. }) => {
                    let Some(places) = sizes.get_mut(..*count) else {
                        let reason = format!("room for {} sizes of {count}", sizes.len());
                        return Err(self.endpoint.error("test", reason));
                    };
                    // Sizes were compared with those of the buffers, which are in memory.
                    places.iter_mut().zip(bytes).for_each(|(place, size)| *place = *size as usize);
                    self.requests[slot] = None;
                    return Ok(true);
                }
                Some(_) if looked => return self.endpoint.base.check("test").map(|()| false),
                Some(_) => self.progress(),
            }
            looked = true;
        }
    }

    unsafe fn iflush(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>, NetError> {
        self.endpoint.base.check("iflush")?;
        let always = self.endpoint.config.flush_host;
        // What came last is read: writes of a card come in their order, and a read pushes those before it.
        let mut last = None;
        for &RecvBuffer { address, bytes, memory, .. } in buffers {
            let regions = self.endpoint.memory.check("iflush", address, bytes, memory)?;
            let flushes = regions.first().is_some_and(|region| region.is_of_a_gpu() || always);
            if flushes && bytes > 0 {
                last = Some((address as u64, rkeys(regions)));
            }
        }
        let (Some((from, keys)), false) = (last, self.flush.is_empty()) else { return Ok(None) };
        let Some(slot) = self.place("iflush")? else {
            return Err(self
                .endpoint
                .error("iflush", format!("{MAX_REQUESTS} requests are under way")));
        };
        let number = self.endpoint.base.next;
        let mut failed = None;
        // Each card has written a part of what is there.
        for ((flush, key), port) in self.flush.iter_mut().zip(keys).zip(&self.endpoint.device.ports)
        {
            let to = flush.to.local(0, 1, 0);
            flush.pair.post(SendWr::Read(to, (from, key), WrId::Flushed(number)));
            // SAFETY: a byte is read, by the caller's leave, to where nobody looks.
            if let Err(e) = unsafe { flush.pair.post_waiting() } {
                failed = Some(format!("{}: a work request is refused: {e}", port.name()));
            }
        }
        match failed {
            None => {
                let (sequence, bytes) = (u64::MAX, [0; MAX_RECEIVES]);
                let left = self.flush.len();
                let pending = PendingRecv { sequence, count: 0, bytes, immediate: None, left };
                self.requests[slot] = Some(pending);
                self.endpoint.base.next += 1;
            }
            Some(reason) => self.endpoint.fail(reason),
        }
        self.endpoint.base.check("iflush")?;
        Ok(Some(self.endpoint.base.request(number)))
    }
}
