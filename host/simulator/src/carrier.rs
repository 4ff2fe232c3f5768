//! What carries messages from one end of a connection to the other: links with queues, or for each connection a share of the links.

use crate::costs::RATE;
use crate::moment::Moment;
use crate::stage::Stage;

/// Carries messages.
pub(crate) trait Carrier<T> {
    /// Sends `bytes` over connection number `conn` from `now` on; the time at which all are there.
    fn pass(&mut self, stage: &Stage, conn: u32, now: T, bytes: f64) -> T;
}

/// What the links of a cluster have carried.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkState {
    /// Until when each is taken.
    free: Vec<f64>,
    /// Bytes that have passed.
    pub bytes: Vec<f64>,
    /// The longest that a message has waited.
    pub waited: Vec<f64>,
}

impl LinkState {
    pub(crate) fn new(links: usize) -> Self {
        LinkState { free: vec![0.0; links], bytes: vec![0.0; links], waited: vec![0.0; links] }
    }
}

/// Links with queues: a message waits behind those that came before it.
///
/// A message is at the end of a link when its last byte is; its first byte is on the next link before. So on an empty way it takes as long
/// as on the slowest link, and the latencies of all.
pub(crate) struct Queues<'a> {
    pub links: &'a [(f64, f64)],
    pub state: &'a mut LinkState,
}

impl Carrier<f64> for Queues<'_> {
    fn pass(&mut self, stage: &Stage, conn: u32, now: f64, bytes: f64) -> f64 {
        let (first, end) = stage.conns[conn as usize].way;
        let (mut head, mut tail) = (now, now);
        for &link in &stage.links[first as usize..end as usize] {
            let i = link as usize;
            let (bw, latency) = self.links[i];
            let begin = head.max(self.state.free[i]);
            self.state.waited[i] = self.state.waited[i].max(begin - head);
            let end = begin + bytes / (bw * RATE);
            self.state.free[i] = end;
            self.state.bytes[i] += bytes;
            head = begin + latency;
            tail = (tail + latency).max(end + latency);
        }
        tail
    }
}

/// Shares of links: a message waits for those of its own connection alone.
pub(crate) struct Shares<T> {
    /// By connection, until when its share is taken.
    taken: Vec<T>,
}

impl<T: Moment> Shares<T> {
    pub(crate) fn new(stage: &Stage) -> Self {
        Shares { taken: vec![T::default(); stage.conns.len()] }
    }
}

impl<T: Moment> Carrier<T> for Shares<T> {
    fn pass(&mut self, stage: &Stage, conn: u32, now: T, bytes: f64) -> T {
        let of = &stage.conns[conn as usize];
        if !of.remote {
            // The block that sends it waits until it is there.
            return now.after(bytes / of.rate);
        }
        let taken = &mut self.taken[conn as usize];
        taken.or_later(&now);
        *taken = std::mem::take(taken).after(bytes / of.rate);
        taken.clone().after(of.latency)
    }
}
