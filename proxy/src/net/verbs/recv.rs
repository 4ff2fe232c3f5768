//! The receiving end.

use std::sync::Arc;

use super::fifo::{self, ENTRIES, ENTRY_BYTES, Entry, MAX_RECEIVES};
use super::line::{Half, Line};
use super::memory::Words;
use super::pair::{Pair, Post, Work};
use crate::NetError;
use crate::net::end::End;
use crate::net::{MAX_REQUESTS, MemoryHandle, MemoryKind, RecvBuffer, RecvComm, Request};

/// Requests that the sender is told of at once, if there are so many: a quarter of those that may be under way, so that it
/// never runs out.
const MOST_TOLD: u64 = MAX_REQUESTS as u64 / 4;

/// A request that is under way, or done and not fetched.
#[derive(Debug)]
struct Pending {
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

/// How what has arrived is made visible to a GPU: by a read behind it.
#[derive(Debug)]
struct Flush {
    pair: Pair, // dropped first
    /// Where the byte goes that is read.
    to: Words,
}

#[derive(Debug)]
pub(super) struct Receiver {
    line: Line, // dropped first
    flush: Option<Flush>,
    /// FIFO entries on their way to the sender.
    entries: Words,
    /// Where the sender writes the sizes of messages that share a request.
    sizes: Words,
    split: bool,
    requests: [Option<Pending>; MAX_REQUESTS],
    /// By place in the FIFO, the number of the request.
    numbers: [u64; MAX_REQUESTS],
    /// Requests with buffers so far, and buffers.
    posted: u64,
    buffers: u64,
    /// Of both, those that the sender has been told of.
    told: (u64, u64),
}

impl Receiver {
    pub(super) fn new(line: Line, split: bool, entries: Words, sizes: Words) -> Receiver {
        Receiver {
            line,
            flush: None,
            entries,
            sizes,
            split,
            requests: [const { None }; MAX_REQUESTS],
            numbers: [0; MAX_REQUESTS],
            posted: 0,
            buffers: 0,
            told: (0, 0),
        }
    }

    /// For tests that break it.
    #[cfg(test)]
    pub(super) fn line(&mut self) -> &mut Line {
        &mut self.line
    }

    /// Does what can be done at once.
    fn progress(&mut self) {
        let mut moved = false;
        while let Some(done) = self.line.next() {
            moved = true;
            let result = match done.work {
                Work::Arrived(sequence) => self.notified(sequence, done.immediate),
                Work::Flushed(number) => {
                    self.flushed(number);
                    Ok(())
                }
                Work::Sent(_) | Work::Unnamed => Ok(()),
            };
            if let Err(reason) = result {
                self.line.fail(reason);
            }
        }
        self.tell();
        self.line.settle(moved);
        if self.line.end.is_broken() {
            self.flush = None; // it reads buffers, too
        }
    }

    /// A queue pair has said that its part of a request's messages is there.
    fn notified(&mut self, sequence: u64, immediate: Option<u32>) -> Result<(), String> {
        let number = self.numbers[End::slot(sequence)];
        let pending = self.requests[End::slot(number)].as_mut();
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
        self.line.filled += 1;
        Ok(())
    }

    fn flushed(&mut self, number: u64) {
        if let Some(pending) = &mut self.requests[End::slot(number)] {
            pending.left = 0;
        }
        self.flush.iter_mut().for_each(|flush| flush.pair.completed());
    }

    /// The place of the next request, if there is one.
    fn place(&mut self, operation: &'static str) -> Result<Option<usize>, NetError> {
        let slot = End::slot(self.line.end.next);
        if self.requests[slot].is_none() {
            return Ok(Some(slot));
        }
        self.progress();
        self.line.end.check(operation).map(|()| None)
    }

    /// Makes room for the notifications of a request; how many.
    fn expect(&mut self, sequence: u64) -> Result<usize, String> {
        let name = self.line.port.name();
        let pairs = self.line.pairs_of(sequence, self.split);
        for pair in &*pairs {
            pair.expect(sequence).map_err(|e| {
                format!("{name}, queue pair {}: a receive is refused: {e}", pair.number)
            })?;
        }
        Ok(pairs.len())
    }

    /// Tells the sender of buffers, unless it has more of them left than there are new ones: several are one write then, and
    /// it does not wait for them yet.
    fn tell(&mut self) {
        let (new, left) = (self.posted - self.told.0, self.told.0.saturating_sub(self.line.filled));
        if new == 0 || (new < left && new < MOST_TOLD) {
            return self.line.pump();
        }
        // By the queue pair of the first, so that several take their turns here, too.
        let sequence = self.told.0;
        while self.told.1 < self.buffers {
            let first = fifo::place(self.told.1);
            let count = (self.buffers - self.told.1).min((ENTRIES - first) as u64);
            let bytes = count as u32 * ENTRY_BYTES as u32; // at most all 256 entries
            let offset = first * ENTRY_BYTES;
            let from = self.entries.local(offset / 8, bytes);
            let to = (self.line.theirs.0 + offset as u64, self.line.theirs.1);
            let pair = self.line.pairs_of(sequence, self.split).first_mut();
            pair.into_iter().for_each(|pair| pair.post(Post::Write(from, to)));
            self.told.1 += count;
        }
        self.told.0 = self.posted;
        self.line.pump();
    }
}

impl RecvComm for Receiver {
    unsafe fn register(
        &mut self,
        address: *mut u8,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError> {
        // SAFETY: the caller's.
        let memory = unsafe { self.line.register(address, bytes, kind)? };
        let flushes = kind != MemoryKind::Host || self.line.config.flush_host;
        if flushes && self.flush.is_none() {
            let Line { port, config, completions, .. } = &self.line;
            let pair = Half::own(port, config, completions)
                .map_err(|reason| self.line.error("register", reason))?;
            let to = Words::new(&Arc::clone(&self.line.port.context), 1)?;
            self.flush = Some(Flush { pair, to });
        }
        Ok(memory)
    }

    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), NetError> {
        self.line.memory.remove(memory)
    }

    unsafe fn irecv(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>, NetError> {
        self.line.end.check("irecv")?;
        let count = buffers.len();
        if !(1..=MAX_RECEIVES).contains(&count) {
            let reason = format!("{count} buffers, where 1 to {MAX_RECEIVES} go");
            return Err(self.line.error("irecv", reason));
        }
        let sequence = self.posted;
        let mut bytes = [0; MAX_RECEIVES];
        let mut entries = [Entry::default(); MAX_RECEIVES];
        for ((buffer, bytes), entry) in buffers.iter().zip(&mut bytes).zip(&mut entries) {
            let RecvBuffer { address, bytes: room, tag, memory } = *buffer;
            let region = self.line.memory.check("irecv", address, room, memory)?;
            let key = region.as_ref().map_or(0, |region| region.rkey());
            *bytes = room as u64;
            let (address, count) = (address as u64, count as u32);
            *entry = Entry { address, bytes: *bytes, key, tag, count, number: 0 };
        }
        let Some(slot) = self.place("irecv")? else { return Ok(None) };
        match self.expect(sequence) {
            Ok(left) => {
                // Their places are free as well: they are of a request before the last of this place.
                for (number, entry) in (self.buffers..).zip(&entries).take(count) {
                    Entry { number, ..*entry }.put(self.entries.words());
                }
                let number = self.line.end.next;
                let pending = Pending { sequence, count, bytes, immediate: None, left };
                self.requests[slot] = Some(pending);
                self.numbers[End::slot(sequence)] = number;
                self.line.end.next += 1;
                self.posted += 1;
                self.buffers += count as u64;
                self.tell();
            }
            Err(reason) => self.line.fail(reason),
        }
        self.line.end.check("irecv")?;
        Ok(Some(self.line.end.request(self.line.end.next - 1)))
    }

    fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool, NetError> {
        self.line.end.check_told("test")?;
        let number = self.line.end.sequence(request)?;
        let slot = End::slot(number);
        let mut looked = false;
        loop {
            match &self.requests[slot] {
                None => return Err(self.line.end.no_such(request)),
                Some(Pending { left: 0, count, bytes, .. }) => {
                    let Some(places) = sizes.get_mut(..*count) else {
                        let reason = format!("room for {} sizes of {count}", sizes.len());
                        return Err(self.line.error("test", reason));
                    };
                    // Sizes were compared with those of the buffers, which are in memory.
                    places.iter_mut().zip(bytes).for_each(|(place, size)| *place = *size as usize);
                    self.requests[slot] = None;
                    return Ok(true);
                }
                Some(_) if looked => return self.line.end.check("test").map(|()| false),
                Some(_) => self.progress(),
            }
            looked = true;
        }
    }

    unsafe fn iflush(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>, NetError> {
        self.line.end.check("iflush")?;
        let always = self.line.config.flush_host;
        // What came last is read: writes of a card come in their order, and a read pushes those before it.
        let mut last = None;
        for &RecvBuffer { address, bytes, memory, .. } in buffers {
            let region = self.line.memory.check("iflush", address, bytes, memory)?;
            let region = region.as_ref().filter(|region| region.is_of_a_gpu() || always);
            last = region.filter(|_| bytes > 0).map(|it| (address as u64, it.rkey())).or(last);
        }
        let (Some(from), true) = (last, self.flush.is_some()) else { return Ok(None) };
        let Some(slot) = self.place("iflush")? else {
            return Err(self
                .line
                .error("iflush", format!("{MAX_REQUESTS} requests are under way")));
        };
        let number = self.line.end.next;
        let name = self.line.port.name();
        let Some(flush) = &mut self.flush else { return Ok(None) };
        let to = flush.to.local(0, 1);
        flush.pair.post(Post::Read(to, from, Work::Flushed(number)));
        // SAFETY: a byte is read, by the caller's leave, to where nobody looks.
        match unsafe { flush.pair.pump() } {
            Ok(()) => {
                let (sequence, bytes) = (u64::MAX, [0; MAX_RECEIVES]);
                let pending = Pending { sequence, count: 0, bytes, immediate: None, left: 1 };
                self.requests[slot] = Some(pending);
                self.line.end.next += 1;
            }
            Err(e) => self.line.fail(format!("{name}: a work request is refused: {e}")),
        }
        self.line.end.check("iflush")?;
        Ok(Some(self.line.end.request(number)))
    }
}
