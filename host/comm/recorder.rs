//! The last calls of a rank, and how far it is (PyTorch calls such a record a flight recorder).
//!
//! A call is written down before its launch, and again when its last kernel has ended: some stores and two looks at the
//! clock. Who reads, reads without a lock: a stall is looked into from other threads.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use ferroccl_device::abi::{Collective, Signature};

use crate::runtime::LaunchObserver;

/// Calls that are remembered.
const ENTRIES: usize = 128;

/// The calls of one rank.
#[derive(Debug)]
pub(super) struct FlightRecorder {
    /// Times are counted from here.
    origin: Instant,
    /// The same moment in nanoseconds since 1970, for who compares several processes.
    origin_unix: u64,
    entries: Box<[Entry]>,
    /// The number of the last record.
    last: AtomicU64,
    /// The number of the last collective that was entered.
    entered: AtomicU64,
    /// The number of the last collective that has ended. They end in the order of their numbers.
    ended: AtomicU64,
}

/// A call. Its number is 0 while it is written.
#[derive(Debug, Default)]
struct Entry {
    number: AtomicU64,
    /// The words of its [`Signature`]; of a batch of messages their bytes are the count.
    call: [AtomicU64; 4],
    /// What tells the stream that it is in from others.
    stream: AtomicUsize,
    /// Nanoseconds from the origin.
    entered: AtomicU64,
    /// The same; [`PENDING`] where the runtime has not told.
    started: AtomicU64,
    /// The same, [`PENDING`] or [`CAPTURED`].
    ended: AtomicU64,
}

/// It has not happened.
const PENDING: u64 = 0;
/// The call is in a graph, whose replays are not recorded.
const CAPTURED: u64 = u64::MAX;

/// A record, for its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordId(pub(super) u64);

/// A call as it is remembered. Times are nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordedCall {
    /// Its number among all that this rank has made, messages too.
    pub record: u64,
    /// The words of its [`Signature`].
    pub call: [u64; 4],
    pub stream: usize,
    pub entered: u64,
    pub started: Option<u64>,
    pub end: CallEnd,
}

/// Whether a call has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallEnd {
    Pending,
    /// It is in a graph.
    Captured,
    At(u64),
}

/// A record as it is in memory.
struct Read {
    call: [u64; 4],
    stream: usize,
    entered: u64,
    started: u64,
    ended: u64,
}

/// A call that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingCall {
    /// What tells it from all other calls of this rank.
    pub record: u64,
    pub call: [u64; 4],
    /// What tells the stream that it is in from others.
    pub stream: usize,
    pub waited: Duration,
}

/// How far a rank is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RankProgress {
    /// The number of the last collective that it has entered.
    pub entered: u64,
    /// The number of the first collective that it has entered and not ended; 0 for none.
    pub pending: u64,
    /// Whether that one stands behind a call of another communicator in its stream, which has not ended either.
    pub behind: bool,
}

impl FlightRecorder {
    pub(super) fn new() -> Self {
        let entries = (0..ENTRIES).map(|_| Entry::default()).collect();
        let [last, entered, ended] = [0, 0, 0].map(AtomicU64::new);
        let (origin, origin_unix) = (Instant::now(), unix_now());
        FlightRecorder { origin, origin_unix, entries, last, entered, ended }
    }

    fn now(&self) -> u64 {
        // Never 0, which is a call that has not ended.
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(CAPTURED - 1).max(1)
    }

    fn entry(&self, number: u64) -> &Entry {
        &self.entries[number as usize % ENTRIES]
    }

    /// Writes down a call that is about to be launched. The caller has locked the order of calls, so it is the only one.
    /// `stream` tells its stream from others.
    pub(super) fn enter(&self, call: &Signature, stream: usize) -> RecordId {
        let number = self.last.load(Ordering::Relaxed) + 1;
        let entry = self.entry(number);
        entry.number.store(0, Ordering::Relaxed);
        // Pairs with the acquire fence in `read`: who sees a word of this call sees no older number.
        std::sync::atomic::fence(Ordering::Release);
        for (to, word) in entry.call.iter().zip(call.words()) {
            to.store(word, Ordering::Relaxed);
        }
        entry.stream.store(stream, Ordering::Relaxed);
        entry.entered.store(self.now(), Ordering::Relaxed);
        entry.started.store(PENDING, Ordering::Relaxed);
        entry.ended.store(PENDING, Ordering::Relaxed);
        // Pairs with the acquire in `read`.
        entry.number.store(number, Ordering::Release);
        self.last.store(number, Ordering::Relaxed);
        if !is_messages(&call.words()) {
            self.entered.store(call.seq, Ordering::Relaxed);
        }
        RecordId(number)
    }

    fn mark(&self, RecordId(number): RecordId, ended: u64) {
        let entry = self.entry(number);
        if entry.number.load(Ordering::Relaxed) == number {
            entry.ended.store(ended, Ordering::Relaxed);
        }
    }

    /// The first kernel of the call has come to the head of its stream. Where it did `at_once`, in its launch, it started when the call was
    /// entered: a look at the clock is 2 % of a small call.
    pub(super) fn start(&self, RecordId(number): RecordId, at_once: bool) {
        let entry = self.entry(number);
        if entry.number.load(Ordering::Relaxed) == number
            && entry.started.load(Ordering::Relaxed) == PENDING
        {
            let entered = || entry.entered.load(Ordering::Relaxed);
            let now = if at_once { entered() } else { self.now() };
            entry.started.store(now, Ordering::Relaxed);
        }
    }

    /// The call has ended; it was the collective with this number, or messages.
    pub(super) fn end(&self, record: RecordId, collective: Option<u64>) {
        self.mark(record, self.now());
        if let Some(seq) = collective {
            // Not by a read-modify-write: calls of a communicator end one after the other.
            if seq > self.ended.load(Ordering::Relaxed) {
                self.ended.store(seq, Ordering::Relaxed);
            }
        }
    }

    /// The call has gone into a graph.
    pub(super) fn captured(&self, record: RecordId) {
        self.mark(record, CAPTURED);
    }

    /// The call was not launched, and the next one has its number. As [`FlightRecorder::enter`], with the order locked.
    pub(super) fn cancel(&self, record: RecordId) {
        let entry = self.entry(record.0);
        let call = entry.call.each_ref().map(|word| word.load(Ordering::Relaxed));
        if !is_messages(&call) {
            self.entered.store(call[0].saturating_sub(1), Ordering::Relaxed);
        }
        entry.number.store(0, Ordering::Relaxed);
    }

    /// A record with its times from the origin; `None` when it is overwritten.
    fn read(&self, number: u64) -> Option<Read> {
        let entry = self.entry(number);
        // Pairs with the release of the number in `enter`.
        if entry.number.load(Ordering::Acquire) != number {
            return None;
        }
        let call = entry.call.each_ref().map(|word| word.load(Ordering::Relaxed));
        let stream = entry.stream.load(Ordering::Relaxed);
        let [entered, started, ended] =
            [&entry.entered, &entry.started, &entry.ended].map(|time| time.load(Ordering::Relaxed));
        // Pairs with the release fence in `enter`.
        std::sync::atomic::fence(Ordering::Acquire);
        let read = Read { call, stream, entered, started, ended };
        (entry.number.load(Ordering::Relaxed) == number).then_some(read)
    }

    /// The numbers of the records that are remembered, the oldest first.
    fn remembered(&self) -> RangeInclusive<u64> {
        let last = self.last.load(Ordering::Relaxed);
        last.saturating_sub(ENTRIES as u64 - 1).max(1)..=last
    }

    /// The calls that are remembered, the oldest first.
    pub(super) fn calls(&self) -> impl Iterator<Item = RecordedCall> + '_ {
        let at = |time: u64| self.origin_unix.saturating_add(time);
        self.remembered().filter_map(move |record| {
            let Read { call, stream, entered, started, ended } = self.read(record)?;
            let end = match ended {
                PENDING => CallEnd::Pending,
                CAPTURED => CallEnd::Captured,
                ended => CallEnd::At(at(ended)),
            };
            let started = (started != PENDING).then(|| at(started));
            Some(RecordedCall { record, call, stream, entered: at(entered), started, end })
        })
    }

    /// The calls that have not ended, the oldest first, as far as they are remembered.
    pub(super) fn pending(&self) -> impl Iterator<Item = PendingCall> + '_ {
        self.remembered().filter_map(|record| {
            let Read { call, stream, entered, ended, .. } = self.read(record)?;
            let waited = Duration::from_nanos(self.now().saturating_sub(entered));
            (ended == PENDING).then_some(PendingCall { record, call, stream, waited })
        })
    }

    /// How far this rank is, beside these communicators of its process.
    pub(super) fn progress<'a>(
        &self,
        mut others: impl Iterator<Item = &'a FlightRecorder>,
    ) -> RankProgress {
        let pending = self.pending().find(|pending| !is_messages(&pending.call));
        // So many calls may be waiting that the first is forgotten: then it is the one behind the last that has ended.
        let number = |pending: &PendingCall| {
            let forgotten = pending.record == *self.remembered().start() && pending.record > 1;
            let behind = self.ended.load(Ordering::Relaxed) + 1;
            if forgotten { behind.min(pending.call[0]) } else { pending.call[0] }
        };
        let before = |one: &PendingCall, other: PendingCall| {
            other.stream == one.stream && other.waited > one.waited
        };
        RankProgress {
            // Relaxed, as all numbers here: a number that is a moment old is as true.
            entered: self.entered.load(Ordering::Relaxed),
            pending: pending.as_ref().map_or(0, number),
            behind: pending.is_some_and(|pending| {
                others.any(|recorder| recorder.pending().any(|other| before(&pending, other)))
            }),
        }
    }

    /// The collective with this number, if it is remembered.
    pub(super) fn collective(&self, seq: u64) -> Option<[u64; 4]> {
        self.remembered()
            .rev()
            .filter_map(|number| self.read(number))
            .map(|read| read.call)
            .find(|call| call[0] == seq && !is_messages(call))
    }
}

/// Nanoseconds since 1970.
pub(crate) fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Whether these are the words of a batch of messages, which has no number of its own.
pub(super) fn is_messages(call: &[u64; 4]) -> bool {
    call[2].to_le_bytes()[0] == Collective::SendRecv as u8
}

impl LaunchObserver for FlightRecorder {
    fn on_started(&self, record: u64, at_once: bool) {
        self.start(RecordId(record), at_once);
    }
}

impl RankProgress {
    /// Bytes of its encoding.
    pub(super) const BYTES: usize = 24;

    pub(super) fn encode(self) -> [u8; Self::BYTES] {
        bytemuck::cast([self.entered, self.pending, self.behind.into()].map(u64::to_le))
    }

    pub(super) fn decode(bytes: [u8; Self::BYTES]) -> Self {
        let [entered, pending, behind] = bytemuck::cast::<_, [u64; 3]>(bytes).map(u64::from_le);
        RankProgress { entered, pending, behind: behind != 0 }
    }
}

/// What a rank knows of how far another one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KnownProgress {
    /// The rank has said so.
    At(RankProgress),
    /// The rank has left the group, after calls that it did not tell of.
    Left,
    /// The rank says nothing.
    Silent,
}

impl KnownProgress {
    /// What the rank has said, if it has.
    pub(super) fn at(self) -> Option<RankProgress> {
        match self {
            KnownProgress::At(progress) => Some(progress),
            KnownProgress::Left | KnownProgress::Silent => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collective(seq: u64) -> Signature {
        Signature { seq, count: 10 * seq, ..Signature::default() }
    }

    fn messages(bytes: u64) -> Signature {
        Signature { count: bytes, call: Collective::SendRecv as u64, ..Signature::default() }
    }

    fn alone(recorder: &FlightRecorder) -> RankProgress {
        recorder.progress(std::iter::empty())
    }

    /// Two communicators on two streams: what was put into a stream before is in the way.
    #[test]
    fn a_call_stands_behind_an_older_one_of_its_stream() {
        let (a, b) = (FlightRecorder::new(), FlightRecorder::new());
        let first = a.enter(&collective(1), 1);
        std::thread::sleep(Duration::from_millis(1)); // their clocks begin at different times
        b.enter(&collective(1), 1);
        assert!(b.progress([&a].into_iter()).behind && !a.progress([&b].into_iter()).behind);
        a.end(first, Some(1));
        a.enter(&collective(2), 2);
        assert!(!b.progress([&a].into_iter()).behind && !a.progress([&b].into_iter()).behind);
    }

    #[test]
    fn calls_pend_until_they_end() {
        let recorder = FlightRecorder::new();
        assert_eq!(alone(&recorder), RankProgress::default());
        let first = recorder.enter(&collective(1), 1);
        let sent = recorder.enter(&messages(77), 1);
        let second = recorder.enter(&collective(2), 1);
        assert_eq!(alone(&recorder), RankProgress { entered: 2, pending: 1, behind: false });
        let counts = || recorder.pending().map(|pending| pending.call[1]).collect::<Vec<_>>();
        assert_eq!(counts(), [10, 77, 20]);
        recorder.end(first, Some(1));
        assert_eq!(alone(&recorder), RankProgress { entered: 2, pending: 2, behind: false });
        recorder.end(sent, None);
        recorder.captured(second);
        assert_eq!(alone(&recorder), RankProgress { entered: 2, pending: 0, behind: false });
        assert!(counts().is_empty());
        let refused = recorder.enter(&collective(3), 1);
        recorder.cancel(refused);
        assert_eq!(alone(&recorder), RankProgress { entered: 2, pending: 0, behind: false });
        assert_eq!(recorder.collective(2).map(|call| call[1]), Some(20));
        assert_eq!(recorder.collective(3), None);
    }

    #[test]
    fn calls_are_told_with_their_times() {
        let recorder = FlightRecorder::new();
        let [first, second, third] =
            [1, 2, 3].map(|seq| recorder.enter(&collective(seq), seq as usize));
        recorder.start(first, true);
        std::thread::sleep(Duration::from_millis(1));
        recorder.start(first, false); // a call of several kernels starts with its first
        recorder.end(first, Some(1));
        recorder.start(second, false);
        recorder.captured(third);
        let calls: Vec<_> = recorder.calls().collect();
        let seen: Vec<_> = calls.iter().map(|call| (call.record, call.stream)).collect();
        assert_eq!(seen, [(1, 1), (2, 2), (3, 3)]);
        let CallEnd::At(end) = calls[0].end else { panic!("{:?}", calls[0]) };
        assert_eq!(calls[0].started, Some(calls[0].entered));
        assert!(calls[1].started > Some(calls[1].entered));
        assert!(end - calls[0].started.unwrap() >= 1_000_000);
        assert!(end > 1_600_000_000_000_000_000, "2020 or later");
        assert_eq!((calls[1].end, calls[2].end), (CallEnd::Pending, CallEnd::Captured));
        assert!(calls[1].started.is_some() && calls[2].started.is_none());
    }

    #[test]
    fn old_calls_are_forgotten_and_their_ends_are_nobody_elses() {
        let recorder = FlightRecorder::new();
        let ids: Vec<_> =
            (1..=ENTRIES as u64 + 10).map(|seq| recorder.enter(&collective(seq), 1)).collect();
        assert_eq!(recorder.pending().count(), ENTRIES);
        recorder.end(ids[3], Some(4)); // overwritten
        assert_eq!(recorder.pending().count(), ENTRIES);
        assert_eq!(
            alone(&recorder),
            RankProgress { entered: ENTRIES as u64 + 10, pending: 5, behind: false }
        );
        assert_eq!(recorder.collective(10), None);
    }

    #[test]
    fn progress_crosses_the_wire() {
        for behind in [false, true] {
            let progress = RankProgress { entered: 0x1234_5678_9abc, pending: 7, behind };
            assert_eq!(RankProgress::decode(progress.encode()), progress);
        }
    }
}
