//! What a user's kernel is given to communicate by itself: values that are passed by value.

use super::{CACHE_LINE, Channel, Comm, Conn, ConnHeader, Peer, Work, abi};

abi! {
    /// A communicator as a kernel of the user's has it (NCCL's `ncclDevComm`): a value for the kernel's argument, on every rank its own.
    /// What it leads to is kept by the host's `DeviceCommunicator`.
    ///
    /// Each rank has words that the others write to:
    ///
    /// ```text
    /// barriers x ranks    inbox: how often a rank has come to a barrier            written by that rank
    /// signals  x ranks    how many signals a rank has sent                         written by that rank
    /// barriers            how often this rank has been at a barrier                its own
    /// signals  x ranks    how many signals of a rank this rank has waited for      its own
    /// signals             how many of any rank                                     its own
    /// 1                   how many requests its blocks have numbered               its own
    /// ```
    ///
    /// Behind them, in the same memory, is what primitives take ([`Prims`](crate::prims::Prims)). Offsets are in bytes from the words.
    ///
    /// ```text
    /// work_offset()       a [`Work`](super::Work) of no call, which names the next
    /// comm_offset()       a [`Comm`](super::Comm) whose channels are the next
    /// channels_offset()   a [`Channel`](super::Channel) for each channel; one if there are none
    /// peers_offset()      for each of these and each rank a [`Peer`](super::Peer)       steps and credit: this rank's kernels
    /// conns_offset()      for each channel the connections that this rank receives by   written by their senders
    /// ```
    ///
    /// Where not all ranks reach each other's memory there are also words in the host's memory, by which kernels and the proxy talk
    /// ([`DeviceComm::network`]). A cache line has 16 words.
    ///
    /// ```text
    /// 16                  how many of this rank's requests are done                written by the proxy
    /// barriers x ranks    how often a rank on another node has come to a barrier   written by the proxy
    /// signals  x ranks    how many signals a rank on another node has sent         written by the proxy
    /// requests x 8        [`PutRequest`]s, from a cache line on                    written by this rank's blocks
    /// ```
    #[derive(Default)]
    pub struct DeviceComm {
        /// Address of the [`Comm`](super::Comm).
        pub comm: u64,
        /// Address of this rank's words.
        pub words: u64,
        /// Address of the [`WindowPeers`](super::WindowPeers) of the words.
        pub peers: u64,
        /// This rank.
        pub rank: u32,
        /// Ranks of the communicator.
        pub ranks: u32,
        /// Barriers that it has.
        pub barriers: u32,
        /// Signals that it has.
        pub signals: u32,
        /// Address of a table of `u32`s: the ranks of this rank's node, then those of its rail.
        pub teams: u64,
        /// Address of the words that kernels and the proxy talk by; 0 where all ranks reach each other's memory.
        pub network: u64,
        /// This rank's place in its node: the ranks that reach each other's memory.
        pub node_rank: u32,
        /// Ranks of its node.
        pub node_ranks: u32,
        /// This rank's place in its rail: the ranks that have its place in their nodes.
        pub rail_rank: u32,
        /// Ranks of its rail.
        pub rail_ranks: u32,
        /// Requests that there is room for at a time: a power of two; 0 without a network.
        pub requests: u32,
        /// Channels that it has for primitives.
        pub channels: u32,
    }
}

abi! {
    /// What a kernel asks of the proxy: to send bytes to a rank on another node, to tell it something, or first one and then the other.
    #[derive(Default)]
    pub struct PutRequest {
        /// One more than the request's number, once the rest is there.
        pub number: u64,
        /// What is to be done: [`PutRequest::DATA`] and others.
        pub kind: u32,
        /// The rank that it is for.
        pub peer: u32,
        /// The [number](DeviceWindow::number) of the window that the data goes to.
        pub window: u64,
        /// Where in that, in bytes.
        pub offset: u64,
        /// Bytes of the data: 8 at most of a value.
        pub bytes: u64,
        /// The number of the window that has the data; of a value 0.
        pub from: u64,
        /// Where in that, in bytes; of a value the value.
        pub from_offset: u64,
        /// The signal, or the barrier.
        pub index: u32,
        /// Zero.
        pub pad: u32,
    }
}

impl PutRequest {
    /// Bytes of a window go to a window.
    pub const DATA: u32 = 1;
    /// A value goes to a window.
    pub const VALUE: u32 = 2;
    /// The rank gets a signal, behind the data.
    pub const SIGNAL: u32 = 4;
    /// The rank is told that this one has come to a barrier.
    pub const ARRIVAL: u32 = 8;
    /// Words of it.
    pub const WORDS: usize = size_of::<Self>() / size_of::<u64>();
}

impl DeviceComm {
    /// How many words a rank has.
    #[must_use]
    pub const fn words(ranks: u32, barriers: u32, signals: u32) -> usize {
        let (ranks, barriers, signals) = (ranks as usize, barriers as usize, signals as usize);
        barriers * (ranks + 1) + signals * (2 * ranks + 1) + 1
    }

    /// Where the [`Work`] is that primitives ask.
    #[inline(always)]
    #[must_use]
    pub const fn work_offset(&self) -> usize {
        let words = Self::words(self.ranks, self.barriers, self.signals);
        (words * size_of::<u64>()).next_multiple_of(CACHE_LINE)
    }

    /// Where the [`Comm`] is that the work names.
    #[must_use]
    pub const fn comm_offset(&self) -> usize {
        self.work_offset() + size_of::<Work>().next_multiple_of(CACHE_LINE)
    }

    /// Where the [`Channel`]s are.
    #[must_use]
    pub const fn channels_offset(&self) -> usize {
        self.comm_offset() + size_of::<Comm>().next_multiple_of(CACHE_LINE)
    }

    /// How many [`Channel`]s there are: one at least, so that a kernel that asks for one finds that it has no connections.
    #[must_use]
    pub const fn channel_rows(&self) -> usize {
        if self.channels == 0 { 1 } else { self.channels as usize }
    }

    /// Where the [`Peer`]s are: by channel, and then by rank.
    #[must_use]
    pub const fn peers_offset(&self) -> usize {
        let bytes = self.channel_rows() * size_of::<Channel>();
        self.channels_offset() + bytes.next_multiple_of(CACHE_LINE)
    }

    /// Where the connections are.
    #[must_use]
    pub const fn conns_offset(&self) -> usize {
        let bytes = self.channel_rows() * self.ranks as usize * size_of::<Peer>();
        self.peers_offset() + bytes.next_multiple_of(CACHE_LINE)
    }

    /// Bytes of a connection: its header, and the slots that `shape` has. `None` when memory has not so many.
    #[must_use]
    pub const fn conn_bytes(shape: &Conn) -> Option<usize> {
        let mut bytes = size_of::<ConnHeader>();
        let mut i = 0;
        while i < shape.slot_bytes.len() {
            let Some(slots) = (shape.slots as usize).checked_mul(shape.slot_bytes[i] as usize)
            else {
                return None;
            };
            let Some(sum) = bytes.checked_add(slots) else { return None };
            bytes = sum;
            i += 1;
        }
        bytes.checked_next_multiple_of(CACHE_LINE)
    }

    /// How many words kernels and the proxy talk by.
    #[must_use]
    pub const fn network_words(&self) -> usize {
        self.request(0) + self.requests as usize * PutRequest::WORDS
    }

    /// Where a rank finds how often `from` has come to a barrier.
    #[inline(always)]
    #[must_use]
    pub const fn arrival(&self, barrier: u32, from: u32) -> usize {
        (barrier * self.ranks + from) as usize
    }

    /// Where a rank finds how many signals `from` has sent.
    #[inline(always)]
    #[must_use]
    pub const fn sent(&self, signal: u32, from: u32) -> usize {
        ((self.barriers + signal) * self.ranks + from) as usize
    }

    /// Where a rank counts how often it has been at a barrier.
    #[inline(always)]
    #[must_use]
    pub const fn meetings(&self, barrier: u32) -> usize {
        ((self.barriers + self.signals) * self.ranks + barrier) as usize
    }

    /// Where a rank counts the signals of `from` that it has waited for.
    #[inline(always)]
    #[must_use]
    pub const fn taken(&self, signal: u32, from: u32) -> usize {
        let before = (self.barriers + self.signals) * self.ranks + self.barriers;
        (before + signal * self.ranks + from) as usize
    }

    /// Where a rank counts the signals of any rank that it has waited for.
    #[inline(always)]
    #[must_use]
    pub const fn taken_of_any(&self, signal: u32) -> usize {
        self.taken(self.signals, 0) + signal as usize
    }

    /// Where a rank counts the requests that its blocks have numbered.
    #[inline(always)]
    #[must_use]
    pub const fn numbered(&self) -> usize {
        self.taken_of_any(self.signals)
    }

    /// Of the words that kernels and the proxy talk by: how many requests are done.
    pub const DONE: usize = 0;

    /// Of the words that kernels and the proxy talk by: how often `from` has come to a barrier.
    #[inline(always)]
    #[must_use]
    pub const fn network_arrival(&self, barrier: u32, from: u32) -> usize {
        LINE_WORDS + self.arrival(barrier, from)
    }

    /// Of the words that kernels and the proxy talk by: how many signals `from` has sent.
    #[inline(always)]
    #[must_use]
    pub const fn network_sent(&self, signal: u32, from: u32) -> usize {
        LINE_WORDS + self.sent(signal, from)
    }

    /// Of the words that kernels and the proxy talk by: the first of request `number`, which uses a place again.
    #[inline(always)]
    #[must_use]
    pub const fn request(&self, number: u64) -> usize {
        let words = self.network_sent(self.signals, 0);
        let place = number & (self.requests as u64).wrapping_sub(1);
        words.next_multiple_of(LINE_WORDS) + place as usize * PutRequest::WORDS
    }
}

/// Words of a cache line.
const LINE_WORDS: usize = CACHE_LINE / size_of::<u64>();

abi! {
    /// A window as a kernel of the user's has it: this rank's buffer, and where the others' are.
    #[derive(Default)]
    pub struct DeviceWindow {
        /// Address of this rank's buffer.
        pub address: u64,
        /// Its bytes.
        pub bytes: u64,
        /// Address of the [`WindowPeers`](super::WindowPeers) of the buffer. Where not all ranks reach each other's memory, another
        /// follows, with the ranks of this rank's node alone, by their places in it.
        pub peers: u64,
        /// Its number: on all ranks the same.
        pub number: u64,
    }
}

const _: () = assert!(
    size_of::<DeviceComm>() == 80
        && size_of::<DeviceWindow>() == 32
        && size_of::<PutRequest>() == 64
);
const _: () = assert!(core::mem::offset_of!(PutRequest, index) == 56);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_of_one_thing() {
        for (ranks, barriers, signals) in [(1, 1, 1), (2, 3, 0), (3, 0, 2), (8, 5, 7)] {
            let comm = DeviceComm { ranks, barriers, signals, ..DeviceComm::default() };
            let mut seen = std::vec::Vec::new();
            for barrier in 0..barriers {
                seen.extend((0..ranks).map(|from| comm.arrival(barrier, from)));
                seen.push(comm.meetings(barrier));
            }
            for signal in 0..signals {
                for from in 0..ranks {
                    seen.extend([comm.sent(signal, from), comm.taken(signal, from)]);
                }
                seen.push(comm.taken_of_any(signal));
            }
            seen.push(comm.numbered());
            seen.sort_unstable();
            let words = DeviceComm::words(ranks, barriers, signals);
            assert_eq!(seen, (0..words).collect::<std::vec::Vec<_>>());
        }
    }

    #[test]
    fn what_primitives_take_is_behind_the_words_and_aligned() {
        for (ranks, barriers, signals, channels) in [(1, 1, 1, 0), (3, 5, 2, 1), (8, 0, 7, 5)] {
            let comm = DeviceComm { ranks, barriers, signals, channels, ..DeviceComm::default() };
            let rows = channels.max(1) as usize;
            let parts = [
                (0, DeviceComm::words(ranks, barriers, signals) * size_of::<u64>()),
                (comm.work_offset(), size_of::<Work>()),
                (comm.comm_offset(), size_of::<Comm>()),
                (comm.channels_offset(), rows * size_of::<Channel>()),
                (comm.peers_offset(), rows * ranks as usize * size_of::<Peer>()),
                (comm.conns_offset(), 0),
            ];
            for pair in parts.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{comm:?}: {parts:?}");
                assert!(pair[1].0.is_multiple_of(CACHE_LINE), "{comm:?}: {parts:?}");
            }
        }
        let shape = |slots, bytes| Conn { slots, slot_bytes: [bytes; _], ..Conn::default() };
        let bytes = |slots, bytes| DeviceComm::conn_bytes(&shape(slots, bytes));
        assert_eq!(bytes(8, 0), Some(size_of::<ConnHeader>()));
        let all = 2 * 256 * shape(2, 256).slot_bytes.len();
        assert_eq!(bytes(2, 256), Some(size_of::<ConnHeader>() + all));
    }

    #[test]
    fn every_word_of_the_network_is_of_one_thing() {
        for (ranks, barriers, signals, requests) in [(2, 1, 1, 1), (3, 0, 5, 2), (8, 7, 3, 64)] {
            let comm = DeviceComm { ranks, barriers, signals, requests, ..DeviceComm::default() };
            let mut seen = std::vec![DeviceComm::DONE];
            for from in 0..ranks {
                seen.extend((0..barriers).map(|barrier| comm.network_arrival(barrier, from)));
                seen.extend((0..signals).map(|signal| comm.network_sent(signal, from)));
            }
            for number in 0..u64::from(requests) {
                let first = comm.request(number);
                assert_eq!(first, comm.request(number + u64::from(requests)));
                assert!(first.is_multiple_of(PutRequest::WORDS));
                seen.extend(first..first + PutRequest::WORDS);
            }
            seen.sort_unstable();
            assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{comm:?}");
            assert!(seen[1] >= LINE_WORDS && *seen.last().unwrap() < comm.network_words());
        }
    }
}
