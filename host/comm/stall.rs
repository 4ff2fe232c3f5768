//! Calls that wait: who has not entered them, and that the user hears of it.
//!
//! ```text
//! a call has waited for long ─► ask all ranks how far they are ─► WARN, and again after twice the time
//! a kernel's time is up ──────► the same ─► Error::Timeout, which names them, and which all ranks are told
//! ```
//!
//! A rank that waits asks, because one that is absent does not know that anybody waits. Asking goes out of band.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::warn;

use super::out_of_band::OutOfBand;
use super::recorder::{FlightRecorder, KnownProgress, PendingCall, RankProgress, is_messages};
use super::shared::{CommVisit, SharedComm, WeakComm};
use super::state::CommState;
use crate::enqueue::describe_call;
use crate::error::{Error, Result};
use crate::{flight_recorder, log};

/// How long a rank whose time is up waits for the others to say how far they are. They answer from a thread that does
/// nothing else, so this is time for a busy machine.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often waiting calls are looked at, at most and at least.
const EVERY: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// What other ranks have said of how far they are, and when.
#[derive(Debug)]
pub(super) struct Reports {
    heard: Mutex<Vec<LastReport>>,
    news: Condvar,
}

#[derive(Clone, Copy, Debug)]
enum LastReport {
    None,
    At(Instant, RankProgress),
    Left,
}

impl LastReport {
    /// What is known by what the rank has said since then.
    fn since(&self, since: Instant) -> KnownProgress {
        match *self {
            LastReport::At(at, progress) if at >= since => KnownProgress::At(progress),
            LastReport::At(..) | LastReport::None => KnownProgress::Silent,
            LastReport::Left => KnownProgress::Left,
        }
    }
}

impl Reports {
    pub(super) fn new(nranks: u32) -> Self {
        let heard = Mutex::new(vec![LastReport::None; nranks as usize]);
        Reports { heard, news: Condvar::new() }
    }

    fn heard(&self, rank: u32, progress: RankProgress) {
        self.set(rank, LastReport::At(Instant::now(), progress));
    }

    /// A rank has left the group: nobody has to wait for what it says.
    pub(super) fn left(&self, rank: u32) {
        self.set(rank, LastReport::Left);
    }

    fn set(&self, rank: u32, report: LastReport) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = heard.get_mut(rank as usize) {
            *entry = report;
            self.news.notify_all();
        }
    }

    /// What all ranks but `own` have said since then, when all have or `patience` is over.
    fn since(&self, since: Instant, own: u32, patience: Duration) -> Vec<KnownProgress> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = |heard: &mut Vec<LastReport>| {
            let mut others = heard.iter().enumerate().filter(|(rank, _)| *rank != own as usize);
            others.any(|(_, entry)| entry.since(since) == KnownProgress::Silent)
        };
        let (heard, _) = self
            .news
            .wait_timeout_while(heard, patience, missing)
            .unwrap_or_else(PoisonError::into_inner);
        heard.iter().map(|entry| entry.since(since)).collect()
    }
}

/// The ranks that hold up a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Absent {
    /// The call.
    seq: u64,
    ranks: Vec<(u32, Why)>,
}

/// Why a rank holds up a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// It has entered this call last.
    NotEntered(u64),
    /// It has left the group, perhaps before this call.
    Left,
    /// It says nothing.
    Silent,
    /// The call stands in its stream behind one of another communicator.
    Behind,
}

impl Absent {
    /// The ranks that have not entered the first call that any rank waits in; `None` when there are none. A rank that has left
    /// or says nothing may not have, and counts if nobody else is to blame; and then one whose stream has another call before
    /// it.
    pub(super) fn of(all: &[KnownProgress]) -> Option<Self> {
        let known = || all.iter().filter_map(|known| known.at());
        let seq = known().map(|p| p.pending).filter(|pending| *pending > 0).min()?;
        let of = |why: &dyn Fn(KnownProgress) -> Option<Why>| {
            let ranks = (0..).zip(all).filter_map(|(rank, known)| Some((rank, why(*known)?)));
            Some(ranks.collect::<Vec<_>>()).filter(|ranks| !ranks.is_empty())
        };
        let is_late = |p: &RankProgress| p.entered < seq;
        let late = of(&|known| known.at().filter(is_late).map(|p| Why::NotEntered(p.entered)));
        let absent = |known| match known {
            KnownProgress::At(_) => None,
            KnownProgress::Left => Some(Why::Left),
            KnownProgress::Silent => Some(Why::Silent),
        };
        let is_behind = |p: &RankProgress| p.behind && p.pending == seq;
        let behind = || of(&|known| known.at().filter(is_behind).map(|_| Why::Behind));
        let ranks = late.or_else(|| of(&absent)).or_else(behind)?;
        Some(Absent { seq, ranks })
    }
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (rank, why)) in self.ranks.iter().enumerate() {
            write!(f, "{}rank {rank} ", if i == 0 { "" } else { "; " })?;
            match why {
                Why::NotEntered(0) => write!(f, "has not entered it, nor any call before")?,
                Why::NotEntered(n) => write!(f, "has not entered it: its last call is {n}")?,
                Why::Left => write!(f, "has left the group")?,
                Why::Silent => write!(f, "does not say whether it has entered it")?,
                Why::Behind => write!(
                    f,
                    "has it in a stream behind a call of another communicator, which waits as well: calls of \
                     several communicators need the same order on all ranks, or streams of their own"
                )?,
            }
        }
        Ok(())
    }
}

/// What is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// How far the rank is. Others are to say the same.
    Ask(RankProgress),
    /// How far the rank is.
    Answer(RankProgress),
}

impl Report {
    pub(super) fn encode(self) -> Vec<u8> {
        let (kind, progress) = match self {
            Report::Ask(progress) => (0, progress),
            Report::Answer(progress) => (1, progress),
        };
        [&[kind], &progress.encode()[..]].concat()
    }

    /// `None` for what is no report.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, progress) = bytes.split_first()?;
        let progress = RankProgress::decode(progress.try_into().ok()?);
        match kind {
            0 => Some(Report::Ask(progress)),
            1 => Some(Report::Answer(progress)),
            _ => None,
        }
    }
}

impl CommState {
    /// A rank says how far it is, and may want to hear the same.
    pub(super) fn on_report(&self, rank: u32, bytes: &[u8]) {
        let Some(report) = Report::decode(bytes) else {
            warn!(target: log::COLL, "rank {}: rank {rank} has sent no report of calls", self.rank);
            return;
        };
        if let (Report::Ask(_), Some(OutOfBand::Ring(watch))) = (report, self.out_of_band.get()) {
            watch.publish(&Report::Answer(self.progress()).encode());
        }
        let (Report::Ask(progress) | Report::Answer(progress)) = report;
        self.reports.heard(rank, progress);
    }

    /// How far this rank is.
    pub(super) fn progress(&self) -> RankProgress {
        let comms = in_process();
        let others = comms.iter().filter(|comm| !std::ptr::eq(&raw const ***comm, self));
        self.recorder.progress(others.map(|comm| &*comm.recorder))
    }

    /// How far each rank is, as it says within `patience`.
    fn progress_of_all(&self, patience: Duration) -> Vec<KnownProgress> {
        let own = self.progress();
        match self.out_of_band.get() {
            Some(OutOfBand::Local(member)) => member.group.progress(),
            Some(OutOfBand::Ring(watch)) => {
                let since = Instant::now();
                watch.publish(&Report::Ask(own).encode());
                let mut all = self.reports.since(since, self.rank, patience);
                // Those of this process need no ring, which a rank that is stopped interrupts.
                for comm in in_process().iter().filter(|comm| comm.group == self.group) {
                    all[comm.rank as usize] = KnownProgress::At(comm.progress());
                }
                all[self.rank as usize] = KnownProgress::At(own);
                all
            }
            None => vec![KnownProgress::At(own)],
        }
    }

    /// The error of a call whose time is up because ranks have not entered it; `None` where that is not why.
    pub(super) fn timeout_error(&self) -> Option<Error> {
        let absent = Absent::of(&self.progress_of_all(PATIENCE))?;
        let call = self.recorder.collective(absent.seq);
        let call = call.map_or_else(String::new, |call| format!(", {},", describe_call(&call)));
        let reason = format!("call {}{call} waits in vain: {absent}", absent.seq);
        let ranks = absent.ranks.iter().map(|(rank, _)| *rank).collect();
        Some(Error::Timeout { ranks, reason })
    }

    /// Who holds up the first call that any rank waits in, as the ranks say within `patience`.
    pub(super) fn held_up_by(&self, patience: Duration) -> Option<String> {
        let absent = Absent::of(&self.progress_of_all(patience))?;
        Some(format!("call {} is held up: {absent}", absent.seq))
    }

    /// Says that a call waits, and why.
    fn warn_of(&self, pending: &PendingCall) {
        let all = self.progress_of_all(PATIENCE);
        let PendingCall { call, waited, .. } = pending;
        let (what, why) = if is_messages(call) {
            let why = "a peer has not made the calls that belong to them".to_owned();
            (format!("sends and receives of {} bytes", call[1]), why)
        } else {
            let why = match Absent::of(&all) {
                Some(absent) if absent.seq == call[0] => absent.to_string(),
                Some(absent) => format!("of call {}, {absent}", absent.seq),
                None => "all ranks have entered it".to_owned(),
            };
            (format!("call {}, {}", call[0], describe_call(call)), why)
        };
        warn!(target: log::COLL, "rank {} of {} has waited for {:.1} s in {what}: {why}", self.rank,
              self.nranks, waited.as_secs_f64());
    }
}

/// The communicators of this process, and the thread that looks at their calls while that is wanted of any.
static WATCHED: Mutex<Watched> = Mutex::new(Watched { ranks: Vec::new(), running: false });
/// A communicator has come or gone.
static CHANGED: Condvar = Condvar::new();

struct Watched {
    ranks: Vec<WatchedRank>,
    running: bool,
}

struct WatchedRank {
    comm: WeakComm,
    /// What the thread looks at each time: it owns no communicator meanwhile, whose drop might then be the thread's.
    recorder: Arc<FlightRecorder>,
    /// From when on a waiting call is warned of, if at all.
    after: Option<Duration>,
    /// The call that was warned of last, and when it is warned of again.
    warned: Option<(u64, Duration)>,
}

fn watched() -> MutexGuard<'static, Watched> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Warns of calls of this rank that wait for longer than `after`, unless that is zero.
///
/// # Errors
/// [`Error::System`] when there can be no thread.
pub(super) fn watch(comm: &SharedComm, after: Duration) -> Result<()> {
    let after = Some(after).filter(|after| !after.is_zero() && comm.nranks > 1);
    let mut watched = watched();
    watched.ranks.retain(|rank| rank.comm.has_owner());
    let recorder = Arc::clone(&comm.recorder);
    watched.ranks.push(WatchedRank { comm: comm.downgrade(), recorder, after, warned: None });
    if watched.running || after.is_none() {
        CHANGED.notify_all();
        return Ok(());
    }
    let thread = std::thread::Builder::new().name("ferroccl-stall".to_owned());
    thread.spawn(run).map_err(|e| Error::system("thread that watches over waiting calls", e))?;
    watched.running = true;
    Ok(())
}

/// A communicator is being dropped.
pub(super) fn unwatch() {
    CHANGED.notify_all();
    // Counted, and not asked for: who asks may become the last owner, whose drop comes here.
    let any = || watched().ranks.iter().any(|rank| rank.comm.has_owner());
    flight_recorder::close_unless(any);
}

/// The communicators of this process. A fork has copies of its parent's, which are not among them.
pub(super) fn in_process() -> Vec<CommVisit> {
    let comms = watched().ranks.iter().filter_map(|rank| rank.comm.visit()).collect::<Vec<_>>();
    comms.into_iter().filter(|comm| comm.maker.is_here()).collect()
}

/// The thread: ends with the last communicator.
fn run() {
    let mut watched = watched();
    loop {
        watched.ranks.retain(|rank| rank.comm.has_owner());
        let Some(first) = watched.ranks.iter().filter_map(|rank| rank.after).min() else {
            watched.running = false;
            return;
        };
        let every = (first / 8).clamp(EVERY[0], EVERY[1]);
        watched = CHANGED.wait_timeout(watched, every).unwrap_or_else(PoisonError::into_inner).0;
        let due: Vec<_> = watched.ranks.iter_mut().filter_map(WatchedRank::due).collect();
        if due.is_empty() {
            continue;
        }
        // Asking takes a while. Besides, the last owner of a communicator may be here, and its drop looks at `WATCHED`.
        drop(watched);
        for (comm, pending) in due {
            if let Some(comm) = comm.visit()
                && comm.failure().is_none()
            {
                comm.warn_of(&pending);
            }
        }
        watched = self::watched();
    }
}

impl WatchedRank {
    /// The call to be warned of, if there is one now.
    fn due(&mut self) -> Option<(WeakComm, PendingCall)> {
        let after = self.after?;
        let pending = self.recorder.pending().next()?;
        let again = match self.warned {
            Some((record, again)) if record == pending.record => again,
            _ => after,
        };
        if pending.waited < again {
            return None;
        }
        self.warned = Some((pending.record, pending.waited * 2));
        Some((self.comm.clone(), pending))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENT: (u64, u64) = (u64::MAX, 0);
    const LEFT: (u64, u64) = (u64::MAX, 1);

    fn absent(all: &[(u64, u64)]) -> Option<Absent> {
        let known = |&rank: &(u64, u64)| match rank {
            SILENT => KnownProgress::Silent,
            LEFT => KnownProgress::Left,
            (entered, pending) => {
                KnownProgress::At(RankProgress { entered, pending, behind: false })
            }
        };
        Absent::of(&all.iter().map(known).collect::<Vec<_>>())
    }

    #[test]
    fn who_has_not_entered_the_first_stuck_call_is_absent() {
        assert_eq!(
            absent(&[(7, 7), (7, 7), (6, 0), (7, 7)]).unwrap().ranks,
            [(2, Why::NotEntered(6))]
        );
        // Who is ahead waits in a later call, and some have gone on into a second one.
        let found = absent(&[(9, 8), (8, 8), (7, 0), (0, 0), (9, 9)]).unwrap();
        assert_eq!(found.seq, 8);
        assert_eq!(found.ranks, [(2, Why::NotEntered(7)), (3, Why::NotEntered(0))]);
        assert_eq!(
            found.to_string(),
            "rank 2 has not entered it: its last call is 7; \
             rank 3 has not entered it, nor any call before"
        );
        // All have entered it, or nobody waits.
        assert_eq!(absent(&[(3, 3), (3, 3), (5, 3)]), None);
        assert_eq!(absent(&[(3, 0), (5, 0)]), None);
        // Who says nothing is to blame only where nobody else is.
        assert_eq!(absent(&[(4, 4), SILENT]).unwrap().ranks, [(1, Why::Silent)]);
        assert_eq!(absent(&[(4, 4), SILENT, (3, 0)]).unwrap().ranks, [(2, Why::NotEntered(3))]);
        // So is who has left.
        let found = absent(&[(4, 4), LEFT]).unwrap();
        assert_eq!(found.ranks, [(1, Why::Left)]);
        assert_eq!(found.to_string(), "rank 1 has left the group");
        assert_eq!(absent(&[(4, 4), LEFT, (3, 0)]).unwrap().ranks, [(2, Why::NotEntered(3))]);
    }

    #[test]
    fn whose_stream_is_taken_is_to_blame_when_all_have_entered() {
        let at =
            |entered, pending, behind| KnownProgress::At(RankProgress { entered, pending, behind });
        let found = Absent::of(&[at(1, 1, false), at(1, 1, true), at(2, 1, true)]).unwrap();
        assert_eq!(found.ranks, [(1, Why::Behind), (2, Why::Behind)]);
        let found = Absent::of(&[at(1, 1, true), at(0, 0, false)]).unwrap();
        assert_eq!(found.ranks, [(1, Why::NotEntered(0))]);
        // It is behind in a later call.
        assert_eq!(Absent::of(&[at(1, 1, false), at(2, 2, true)]), None);
    }

    #[test]
    fn nobody_waits_for_what_a_rank_says_that_has_left() {
        let reports = Reports::new(3);
        let progress = RankProgress { entered: 1, pending: 1, behind: false };
        let begun = Instant::now();
        reports.left(2);
        reports.heard(0, progress);
        let own = 1;
        let known = reports.since(begun, own, Duration::from_secs(60));
        assert_eq!(
            known,
            [KnownProgress::At(progress), KnownProgress::Silent, KnownProgress::Left]
        );
        assert!(begun.elapsed() < Duration::from_secs(50));
    }

    #[test]
    fn reports_are_read_as_they_were_written() {
        let progress = RankProgress { entered: 300, pending: 299, behind: true };
        for report in [Report::Ask(progress), Report::Answer(progress)] {
            let bytes = report.encode();
            assert_eq!(Report::decode(&bytes), Some(report));
            for shorter in 0..bytes.len() {
                assert_eq!(Report::decode(&bytes[..shorter]), None);
            }
            assert_eq!(Report::decode(&[&bytes[..], &[0]].concat()), None);
        }
        assert_eq!(Report::decode(&[2; 25]), None);
    }
}
