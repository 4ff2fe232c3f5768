//! Groups: calls that start together.
//!
//! The calls that a thread makes within [`group`] are kept, and launched at its end. Each communicator's collectives go
//! one after the other, its sends and receives together in one kernel; what is of different communicators, and the two
//! kinds of one, are under way at the same time. So no call of a group waits for another, but for the order that its own
//! communicator's collectives have on all ranks.
//!
//! ```text
//! user's stream  ──●─ A's collectives ──────────────●──
//!                  ├─ A's sends and receives ───────┤      streams of the communicators'
//!                  └─ B's collectives ──────────────┘
//! ```

use std::cell::RefCell;
use std::sync::{Arc, PoisonError};

use super::Inner;
use super::launch::Request;
use super::p2p::{Message, Transfers};
use crate::Result;
use crate::buffer::Stream;
use crate::runtime::Event;

/// A call that waits for the end of its group.
pub(super) enum Entry {
    Collective(Request),
    Message(Message),
}

/// A call, whose, and where it goes.
struct Kept {
    inner: Arc<Inner>,
    entry: Entry,
    stream: Stream,
}

thread_local! {
    /// The group that this thread is in.
    static GROUP: RefCell<Option<Vec<Kept>>> = const { RefCell::new(None) };
}

/// Makes the calls of `body` start together (`ncclGroupStart`, `ncclGroupEnd`): any mix of collectives, sends and
/// receives, of several communicators and on several streams. None waits for another, so that ranks of one thread, or
/// two ranks that send to each other, do not wait for ever. A group within a group is part of that.
///
/// A stream goes on when all calls of the group that were put into it have ended.
///
/// # Errors
/// The error of `body`: then nothing is launched. Errors of the calls that show only at their launch: a message of a
/// rank to itself without its counterpart ([`Error::InvalidArgument`](crate::Error::InvalidArgument): nothing is launched),
/// [`Error::Aborted`](crate::Error::Aborted).
///
/// ```
/// use ferroccl::{Communicator, Device, group};
///
/// let device = Device::cpu();
/// let ranks = Communicator::init_all(&device, 2)?;
/// let streams = [device.stream()?, device.stream()?];
/// let mine = [device.upload(&[1.0f64; 8])?, device.upload(&[2.0f64; 8])?];
/// let theirs = [device.alloc::<f64>(8)?, device.alloc::<f64>(8)?];
/// group(|| {
///     for (r, rank) in ranks.iter().enumerate() {
///         let peer = 1 - rank.rank();
///         rank.send(&mine[r], peer, &streams[r])?;
///         rank.recv(&theirs[r], peer, &streams[r])?;
///     }
///     Ok(())
/// })?;
/// assert_eq!(theirs[0].to_vec(&streams[0])?, [2.0; 8]);
/// assert_eq!(theirs[1].to_vec(&streams[1])?, [1.0; 8]);
/// # Ok::<(), ferroccl::Error>(())
/// ```
pub fn group<R>(body: impl FnOnce() -> Result<R>) -> Result<R> {
    if GROUP.with_borrow(Option::is_some) {
        return body();
    }
    // Also after a panic the thread is in no group.
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            GROUP.take();
        }
    }
    GROUP.set(Some(Vec::new()));
    let leave = Leave;
    let result = body()?;
    let kept = GROUP.take().unwrap_or_default();
    drop(leave);
    launch(kept)?;
    Ok(result)
}

/// Keeps a call for the end of the group; gives it back when there is no group.
pub(super) fn keep(inner: &Arc<Inner>, entry: Entry, stream: &Stream) -> Option<Entry> {
    GROUP.with_borrow_mut(|group| match group {
        None => Some(entry),
        Some(kept) => {
            kept.push(Kept { inner: Arc::clone(inner), entry, stream: stream.clone() });
            None
        }
    })
}

/// What goes one after the other.
struct Lane {
    inner: Arc<Inner>,
    /// The streams that its calls were put into; it runs in the first, or beside it.
    streams: Vec<Stream>,
    work: LaneWork,
}

enum LaneWork {
    Collectives(Vec<Request>),
    Messages(Vec<Message>),
    Transfers(Box<Transfers>),
}

impl Lane {
    fn new(inner: &Arc<Inner>, work: LaneWork) -> Self {
        Lane { inner: Arc::clone(inner), streams: Vec::new(), work }
    }

    fn goes_into(&mut self, stream: Stream) {
        if self.streams.iter().all(|other| !other.is(&stream)) {
            self.streams.push(stream);
        }
    }
}

/// The lanes of a group: of each communicator one for its collectives and one for its messages.
fn lanes(kept: Vec<Kept>) -> Vec<Lane> {
    let mut lanes: Vec<Lane> = Vec::new();
    for Kept { inner, entry, stream } in kept {
        let is_message = matches!(entry, Entry::Message(_));
        let at = lanes.iter().position(|lane| {
            Arc::ptr_eq(&lane.inner, &inner)
                && matches!(lane.work, LaneWork::Messages(_)) == is_message
        });
        let at = at.unwrap_or_else(|| {
            let work = if is_message {
                LaneWork::Messages(Vec::new())
            } else {
                LaneWork::Collectives(Vec::new())
            };
            lanes.push(Lane::new(&inner, work));
            lanes.len() - 1
        });
        lanes[at].goes_into(stream);
        match (&mut lanes[at].work, entry) {
            (LaneWork::Collectives(all), Entry::Collective(request)) => all.push(request),
            (LaneWork::Messages(all), Entry::Message(message)) => all.push(message),
            _ => {}
        }
    }
    lanes
}

/// Launches all calls of a group.
fn launch(kept: Vec<Kept>) -> Result<()> {
    let mut lanes = lanes(kept);
    // What can go wrong before anything is launched.
    for lane in &mut lanes {
        drop(lane.inner.lock_order()?);
        match &mut lane.work {
            LaneWork::Messages(messages) => {
                lane.inner.prepare_messages()?;
                let transfers = lane.inner.transfers(std::mem::take(messages))?;
                lane.work = LaneWork::Transfers(Box::new(transfers));
            }
            LaneWork::Collectives(requests) => {
                requests.iter().try_for_each(|request| lane.inner.prepare(request))?;
            }
            LaneWork::Transfers(_) => {}
        }
    }
    let starts = Starts::of(&lanes);
    // The streams that a lane runs in, and what is to wait for its end.
    let mut taken: Vec<Stream> = Vec::new();
    let mut ends: Vec<End> = Vec::new();
    let mut result = Ok(());
    for lane in lanes {
        let beside = taken.iter().any(|stream| stream.is(&lane.streams[0]));
        match lane.launch(beside, &starts) {
            Ok((on, end)) => {
                taken.push(on);
                ends.extend(end);
            }
            Err(error) => result = result.and(Err(error)),
        }
    }
    // Only now, as other lanes may run in these streams.
    ends.iter().for_each(End::join);
    result
}

/// The end of a lane, and the streams that wait for it.
struct End {
    event: Event,
    waiting: Vec<Stream>,
}

impl End {
    fn join(&self) {
        for stream in &self.waiting {
            stream.ops().wait(&self.event);
        }
    }
}

/// Where streams are when a group begins. What runs beside them begins there.
struct Starts(Vec<(Stream, Event)>);

impl Starts {
    /// Of the streams of all calls, and of those that their communicators used last.
    fn of(lanes: &[Lane]) -> Self {
        let mut starts = Starts(Vec::new());
        if let [lane] = lanes
            && lane.streams.len() == 1
        {
            return starts; // nothing runs beside
        }
        for lane in lanes {
            let last =
                lane.inner.order.lock().unwrap_or_else(PoisonError::into_inner).stream.clone();
            for stream in lane.streams.iter().chain(&last) {
                if starts.0.iter().all(|(other, _)| !other.is(stream)) {
                    let event = Event::new();
                    stream.ops().record(&event, false);
                    starts.0.push((stream.clone(), event));
                }
            }
        }
        starts
    }

    /// Has `on` wait for where `stream` was.
    fn join(&self, on: &Stream, stream: &Stream) {
        if let Some((_, event)) =
            self.0.iter().find(|(other, _)| other.is(stream) && !on.is(stream))
        {
            on.ops().wait(event);
        }
    }
}

impl Lane {
    /// Launches it; gives the stream that it runs in, and what waits for its end.
    fn launch(self, beside: bool, starts: &Starts) -> Result<(Stream, Option<End>)> {
        let Lane { inner, streams, work } = self;
        let mut order = inner.lock_order()?;
        let main = streams[0].clone();
        let on = if beside {
            let which = usize::from(!matches!(work, LaneWork::Collectives(_)));
            order.beside(which, &inner)?
        } else {
            main.clone()
        };
        if starts.0.is_empty() {
            order.go_on_with(&on);
        } else {
            for stream in &streams {
                starts.join(&on, stream);
            }
            if let Some(last) = &order.stream {
                starts.join(&on, last);
            }
        }
        let mut result = Ok(());
        match work {
            LaneWork::Collectives(requests) => {
                for request in requests {
                    result = result.and_then(|()| inner.launch(&mut order, request, &on));
                }
            }
            LaneWork::Transfers(transfers) => {
                let seq = order.seq;
                result = inner.launch_transfers(*transfers, seq, &on);
            }
            LaneWork::Messages(_) => {}
        }
        let waiting: Vec<Stream> = streams.into_iter().filter(|stream| !stream.is(&on)).collect();
        let end = (!waiting.is_empty()).then(|| {
            let event = Event::new();
            on.ops().record(&event, beside);
            End { event, waiting }
        });
        if order.stream.as_ref().is_none_or(|last| !last.is(&main)) {
            order.stream = Some(main);
        }
        // What has been launched is waited for all the same.
        match (result, end) {
            (Ok(()), end) => Ok((on, end)),
            (Err(error), end) => {
                end.iter().for_each(End::join);
                Err(error)
            }
        }
    }
}
