//! The sending end.
//!
//! A message is begun when the receiver has named its buffer. Those that share a request of the receiver are written when
//! all of them are there, and notified as one.

use std::collections::VecDeque;

use super::endpoint::Endpoint;
use super::fifo::{self, Entry, MAX_RECEIVES};
use super::memory::{Keys, RegisteredWords, lkeys};
use super::queue_pair::{LocalBuffer, QueuePair, RemoteAddress, SendWr, WrId};
use crate::NetError;
use crate::net::comm_base::CommBase;
use crate::net::{MAX_REQUESTS, MemoryHandle, MemoryKind, Request, SendComm};

/// Bytes that a queue pair's part of a message is a multiple of, but for the last: LL128's lines stay whole, as with NCCL.
const ALIGN: u64 = 128;

/// A message that is begun.
#[derive(Clone, Copy, Debug)]
struct PendingSend {
    /// Without its key.
    from: LocalBuffer,
    /// By port.
    keys: Keys,
    done: bool,
}

/// The messages of one request of the receiver.
#[derive(Clone, Copy, Debug)]
struct SendGroup {
    sequence: u64,
    count: usize,
    entries: [Entry; MAX_RECEIVES],
    /// By buffer, the number of its message.
    messages: [Option<u64>; MAX_RECEIVES],
    /// Queue pairs whose writes have not completed.
    left: usize,
}

#[derive(Debug)]
pub(super) struct VerbsSendComm {
    endpoint: Endpoint, // dropped first
    /// Where the receiver writes to.
    fifo: RegisteredWords,
    /// Sizes that are on their way to it.
    sizes: RegisteredWords,
    split: bool,
    messages: [Option<PendingSend>; MAX_REQUESTS],
    /// The group whose messages are not all there yet.
    gathering: Option<SendGroup>,
    /// The groups that are being written, in their order.
    groups: VecDeque<SendGroup>,
    /// The request of the receiver that is next, and its first entry in the FIFO.
    next: u64,
    entry: u64,
}

impl VerbsSendComm {
    pub(super) fn new(
        endpoint: Endpoint,
        fifo: RegisteredWords,
        sizes: RegisteredWords,
    ) -> VerbsSendComm {
        let split = endpoint.config.split_data_on_qps;
        let messages = [None; MAX_REQUESTS];
        let groups = VecDeque::with_capacity(MAX_REQUESTS);
        VerbsSendComm {
            endpoint,
            fifo,
            sizes,
            split,
            messages,
            gathering: None,
            groups,
            next: 0,
            entry: 0,
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
            if let WrId::Sent(sequence) = done.work {
                self.sent(sequence);
            }
        }
        self.endpoint.post_waiting();
        self.endpoint.settle(moved);
    }

    /// A queue pair is done with a group.
    fn sent(&mut self, sequence: u64) {
        let Some(first) = self.groups.front().map(|group| group.sequence) else { return };
        let Some(group) = self.groups.get_mut(sequence.wrapping_sub(first) as usize) else {
            return;
        };
        group.left = group.left.saturating_sub(1);
        if group.left > 0 {
            return;
        }
        self.endpoint.filled += 1;
        for message in group.messages.iter().flatten() {
            if let Some(message) = &mut self.messages[CommBase::slot(*message)] {
                message.done = true;
            }
        }
        while self.groups.front().is_some_and(|group| group.left == 0) {
            self.groups.pop_front();
        }
    }

    /// The request of the receiver that is next, if it has made one.
    fn gather(&mut self) -> Result<Option<SendGroup>, String> {
        let (sequence, words) = (self.next, self.fifo.words());
        let Some(first) = Entry::get(words, self.entry)? else { return Ok(None) };
        let count = first.count as usize;
        if !(1..=MAX_RECEIVES).contains(&count) {
            return Err(format!("it gives {count} buffers for message {sequence}"));
        }
        let mut entries = [first; MAX_RECEIVES];
        for (number, entry) in (self.entry..).zip(&mut entries).take(count).skip(1) {
            match Entry::get(words, number)? {
                Some(there) => *entry = there,
                None => return Ok(None),
            }
        }
        self.next += 1;
        self.entry += count as u64;
        Ok(Some(SendGroup { sequence, count, entries, messages: [None; MAX_RECEIVES], left: 0 }))
    }

    /// Writes a group whose messages are all there.
    fn write(&mut self, mut group: SendGroup) {
        let SendGroup { sequence, count, entries, messages, .. } = group;
        let parts: Vec<(LocalBuffer, Keys, &Entry)> = messages
            .iter()
            .take(count)
            .zip(&entries)
            .filter_map(|(message, entry)| {
                let PendingSend { from, keys, .. } = self.messages[CommBase::slot((*message)?)]?;
                Some((from, keys, entry))
            })
            .collect();
        // One message's size goes with its notification; of several, each is written before it.
        let (immediate, sizes) = match parts[..] {
            [(LocalBuffer { bytes, .. }, ..)] => (bytes, None),
            _ => {
                let first = fifo::sizes(sequence);
                let places = self.sizes.words().iter().skip(first);
                places.zip(&parts).for_each(|(place, (from, ..))| {
                    fifo::store(place, u64::from(from.bytes));
                });
                (0, Some(first))
            }
        };
        let (split, most) = (self.split, self.endpoint.max_write);
        let whole = match self.endpoint.adapts() {
            true => self.endpoint.config.ar_threshold.min(most as usize) as u32,
            false => most,
        };
        let theirs = self.endpoint.theirs;
        let pairs = self.endpoint.pairs_of(sequence, split);
        let shares = pairs.len() as u64; // at most 128
        for (share, pair) in (0..).zip(&mut *pairs) {
            let (port, to_port) = (pair.port(), pair.theirs);
            let part = |&(from, keys, entry): &(LocalBuffer, Keys, &Entry)| {
                let all = u64::from(from.bytes);
                let step = all.div_ceil(shares).next_multiple_of(ALIGN);
                let start = (share * step).min(all);
                let (address, bytes) = (from.address + start, step.min(all - start) as u32);
                let to = (entry.address + start, entry.keys[to_port]);
                (LocalBuffer { address, bytes, key: keys[port], ..from }, to)
            };
            let work = WrId::Sent(sequence);
            match &parts[..] {
                [one] if part(one).0.bytes <= whole => {
                    let (from, to) = part(one);
                    pair.post(SendWr::WriteWithImm(from, to, immediate, work));
                }
                parts => {
                    parts.iter().map(part).for_each(|(from, to)| pieces(pair, from, to, most));
                    // Writes of a queue pair are done in their order: these before the notification.
                    if let Some(first) = sizes {
                        let from = self.sizes.local(first, 8 * count as u32, port);
                        pair.post(SendWr::Write(from, theirs.at(8 * first, to_port)));
                    }
                    pair.post(SendWr::WriteWithImm(
                        LocalBuffer::default(),
                        (0, 0),
                        immediate,
                        work,
                    ));
                }
            }
        }
        group.left = shares as usize;
        self.groups.push_back(group);
        self.endpoint.post_waiting();
    }
}

/// Writes bytes, in writes of at most `most` bytes.
fn pieces(pair: &mut QueuePair, mut from: LocalBuffer, mut to: RemoteAddress, most: u32) {
    while from.bytes > 0 {
        let bytes = from.bytes.min(most);
        pair.post(SendWr::Write(LocalBuffer { bytes, ..from }, to));
        let next = from.address + u64::from(bytes);
        from = LocalBuffer { address: next, bytes: from.bytes - bytes, ..from };
        to.0 += u64::from(bytes);
    }
}

impl SendComm for VerbsSendComm {
    unsafe fn register(
        &mut self,
        address: *mut u8,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError> {
        // SAFETY: the caller's.
        unsafe { self.endpoint.register(address, bytes, kind) }
    }

    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), NetError> {
        self.endpoint.memory.remove(memory)
    }

    unsafe fn isend(
        &mut self,
        address: *const u8,
        bytes: usize,
        tag: u32,
        memory: MemoryHandle,
    ) -> Result<Option<Request>, NetError> {
        self.endpoint.base.check("isend")?;
        let regions = self.endpoint.memory.check("isend", address, bytes, memory)?;
        let keys = lkeys(regions);
        let host = regions.first().is_some_and(|region| !region.is_of_a_gpu());
        let Ok(size) = u32::try_from(bytes) else {
            let reason = format!("a message of {bytes} bytes: its size has 32 bits");
            return Err(super::error("isend", reason));
        };
        let sequence = self.endpoint.base.next;
        let slot = CommBase::slot(sequence);
        if self.messages[slot].is_some() {
            self.progress();
            return self.endpoint.base.check("isend").map(|()| None);
        }
        if self.gathering.is_none() {
            self.gathering = match self.gather() {
                Ok(None) => {
                    self.progress();
                    return self.endpoint.base.check("isend").map(|()| None);
                }
                Ok(group) => group,
                Err(reason) => {
                    self.endpoint.fail(reason);
                    None
                }
            };
            self.endpoint.base.check("isend")?;
        }
        let Some(mut group) = self.gathering.take() else { return Ok(None) };
        let free = |&buffer: &usize| group.messages[buffer].is_none();
        let buffer = (0..group.count).filter(free).find(|&i| group.entries[i].tag == tag);
        let fits = match buffer {
            None => {
                let tags = group.entries[..group.count].iter().map(|entry| entry.tag.to_string());
                let tags = tags.collect::<Vec<_>>().join(", ");
                Err(format!("message {sequence} has tag {tag}, its buffer {tags}"))
            }
            Some(buffer) if group.entries[buffer].bytes < bytes as u64 => {
                let room = group.entries[buffer].bytes;
                Err(format!("message {sequence} has {bytes} bytes, its buffer {room}"))
            }
            Some(buffer) => Ok(buffer),
        };
        match fits {
            Err(reason) => self.endpoint.fail(reason),
            Ok(buffer) => {
                let from = LocalBuffer { address: address as u64, bytes: size, key: 0, host };
                self.messages[slot] = Some(PendingSend { from, keys, done: false });
                self.endpoint.base.next += 1;
                group.messages[buffer] = Some(sequence);
                if group.messages[..group.count].iter().all(Option::is_some) {
                    self.write(group);
                } else {
                    self.gathering = Some(group);
                }
            }
        }
        self.endpoint.base.check("isend")?;
        Ok(Some(self.endpoint.base.request(sequence)))
    }

    fn test(&mut self, request: Request) -> Result<bool, NetError> {
        self.endpoint.base.check_told("test")?;
        let sequence = self.endpoint.base.sequence(request)?;
        let slot = CommBase::slot(sequence);
        let mut looked = false;
        loop {
            match self.messages[slot] {
                None => return Err(self.endpoint.base.no_such(request)),
                Some(PendingSend { done: true, .. }) => {
                    self.messages[slot] = None;
                    return Ok(true);
                }
                Some(_) if looked => return self.endpoint.base.check("test").map(|()| false),
                Some(_) => self.progress(),
            }
            looked = true;
        }
    }
}
