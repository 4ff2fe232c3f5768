//! Queue pairs, and the completion queue that they share.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io;
use std::ptr;
use std::sync::Arc;

use bytemuck::Zeroable as _;

use super::config::VerbsConfig;
use super::context::{Context, EventSource};
use super::device::{LinkLayer, Port, PortAddress};
use super::sys;
use crate::net::MAX_REQUESTS;

/// Work requests of a send queue at most: all messages that may be under way, each with its notification and what the other
/// direction has, and room for the pieces of long ones. Others wait in [`QueuePair::post`]'s list.
const DEPTH: usize = 4 * MAX_REQUESTS;

/// Every so many work requests one has a completion, or the queue would never have room again: a quarter of it.
const SIGNAL_EVERY: u64 = DEPTH as u64 / 4;

/// Work requests that are handed to the device at a time.
const BATCH: usize = 16;

/// Completions that are polled at a time.
const FETCHED: usize = 16;

/// Bytes that a write may take along, if the device can: those of a FIFO entry.
const INLINE: u32 = 64;

/// What a work request is for, as the number `wr_id` that its completion brings back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrId {
    /// A write whose completion nobody waits for.
    Unnamed,
    /// The last write of this message, or messages, of the sender.
    Sent(u64),
    /// The receive of this request of the receiver.
    Arrived(u64),
    /// The read that flushes, for this request.
    Flushed(u64),
}

/// Bits of a work request's id that are a number.
const NUMBER_BITS: u32 = 56;

impl WrId {
    fn id(self) -> u64 {
        let (kind, number) = match self {
            WrId::Unnamed => (0, 0),
            WrId::Sent(number) => (1, number),
            WrId::Arrived(number) => (2, number),
            WrId::Flushed(number) => (3, number),
        };
        kind << NUMBER_BITS | number
    }

    fn of(id: u64) -> WrId {
        let number = id & ((1 << NUMBER_BITS) - 1);
        match id >> NUMBER_BITS {
            1 => WrId::Sent(number),
            2 => WrId::Arrived(number),
            3 => WrId::Flushed(number),
            _ => WrId::Unnamed,
        }
    }

    /// In words, for an error.
    pub(super) fn what(self) -> &'static str {
        match self {
            WrId::Unnamed => "an RDMA write",
            WrId::Sent(_) => "the RDMA write of a message",
            WrId::Arrived(_) => "a receive",
            WrId::Flushed(_) => "an RDMA read that flushes",
        }
    }
}

/// Memory of this end (a scatter/gather entry).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LocalBuffer {
    pub(super) address: u64,
    pub(super) bytes: u32,
    pub(super) key: u32,
    /// Whether it is host memory, which may be copied into the work request.
    pub(super) host: bool,
}

/// Memory of the peer: address and `rkey`.
pub(super) type RemoteAddress = (u64, u32);

/// A work request of a send queue.
#[derive(Clone, Copy, Debug)]
pub(super) enum SendWr {
    /// RDMA_WRITE: the peer is not notified.
    Write(LocalBuffer, RemoteAddress),
    /// RDMA_WRITE_WITH_IMM: completes a receive of the peer, which gets these 32 bits; completes here, too.
    WriteWithImm(LocalBuffer, RemoteAddress, u32, WrId),
    /// RDMA_READ.
    Read(LocalBuffer, RemoteAddress, WrId),
}

/// A completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkCompletion {
    pub(super) work: WrId,
    /// The queue pair's number, and which of the end's ports it is of.
    pub(super) pair: u32,
    pub(super) port: usize,
    /// The immediate data of a write.
    pub(super) immediate: Option<u32>,
    /// Why it failed: the status and the vendor's code.
    pub(super) failed: Option<(sys::ibv_wc_status, u32)>,
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    context: Arc<Context>,
    /// Which of the end's ports it is of.
    port: usize,
    raw: *mut sys::ibv_cq,
}

// SAFETY: as of `Context`.
unsafe impl Send for CompletionQueue {}
// SAFETY: as of `Context`.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// For so many queue pairs, of number `port` of an end's ports.
    pub(super) fn new(
        context: &Arc<Context>,
        port: usize,
        pairs: usize,
    ) -> io::Result<Arc<CompletionQueue>> {
        let entries = (pairs * (DEPTH + MAX_REQUESTS)) as c_int; // 128 pairs at most
        let (none, channel) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the context is open; there is no channel, for it is polled.
        let raw = unsafe { (context.library.create_cq)(context.raw, entries, none, channel, 0) };
        if raw.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(Arc::new(CompletionQueue { context: Arc::clone(context), port, raw }))
    }

    pub(super) fn address(&self) -> usize {
        self.raw as usize
    }

    /// Polls the queue and appends the completions. Each connection has a queue of its own, so one thread at a time polls it.
    pub(super) fn poll(&self, done: &mut VecDeque<WorkCompletion>) -> io::Result<()> {
        let mut fetched = [sys::ibv_wc::zeroed(); FETCHED];
        // SAFETY: the queue and its context are there, and so many completions fit. `ibv_poll_cq` is this.
        let count = unsafe {
            let context = (*self.raw).context;
            let poll = (*context).ops.poll_cq.ok_or_else(lacks)?;
            poll(self.raw, FETCHED as c_int, fetched.as_mut_ptr())
        };
        let count = usize::try_from(count).map_err(|_| io::Error::from_raw_os_error(-count))?;
        done.extend(fetched.iter().take(count).map(|one| {
            WorkCompletion {
                work: WrId::of(one.wr_id),
                pair: one.qp_num,
                port: self.port,
                immediate: (one.status == sys::IBV_WC_SUCCESS
                    && one.wc_flags & sys::IBV_WC_WITH_IMM != 0)
                    .then_some(u32::from_be(one.imm_data)),
                failed: (one.status != sys::IBV_WC_SUCCESS).then_some((one.status, one.vendor_err)),
            }
        }));
        Ok(())
    }
}

fn lacks() -> io::Error {
    io::Error::other("the device's driver lacks a function")
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: the queue pairs hold it, so that none is left.
        let failed = unsafe { (self.context.library.destroy_cq)(self.raw) };
        if failed != 0 {
            tracing::warn!("NET/IB: {}: a completion queue stays ({failed})", self.context.name);
        }
        self.context.events.forget(EventSource::CompletionQueue(self.raw as usize));
    }
}

/// A reliable queue pair, with the work requests that it has no room for yet.
#[derive(Debug)]
pub(super) struct QueuePair {
    completions: Arc<CompletionQueue>,
    raw: *mut sys::ibv_qp,
    pub(super) number: u32,
    /// Which of the other end's ports it is connected with.
    pub(super) theirs: usize,
    /// Bytes that a write takes along.
    inline: u32,
    waiting: VecDeque<SendWr>,
    /// Work requests that the device has been given, and those of them that are known to be done.
    posted: u64,
    done: u64,
    /// How many had been given with each one that has a completion, of those that have not come.
    signaled: VecDeque<u64>,
}

// SAFETY: as of `Context`.
unsafe impl Send for QueuePair {}
// SAFETY: as of `Context`; what changes it needs it alone.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// A pair on a port, in the state INIT: it takes receives.
    pub(super) fn new(
        port: &Port,
        completions: &Arc<CompletionQueue>,
        config: &VerbsConfig,
    ) -> io::Result<QueuePair> {
        let context = &port.context;
        // SAFETY: the protection domain and the queue are there.
        let (raw, inline) = unsafe {
            let mut wanted = sys::ibv_qp_init_attr::zeroed();
            wanted.send_cq = completions.raw;
            wanted.recv_cq = completions.raw;
            wanted.qp_type = sys::IBV_QPT_RC;
            wanted.cap.max_send_wr = DEPTH as u32;
            wanted.cap.max_recv_wr = MAX_REQUESTS as u32;
            wanted.cap.max_send_sge = 1;
            wanted.cap.max_recv_sge = 1;
            let mut raw = ptr::null_mut();
            // A device that takes nothing along says so by an error, as a rule.
            for inline in if config.inline { &[INLINE, 0][..] } else { &[0] } {
                wanted.cap.max_inline_data = *inline;
                raw = (context.library.create_qp)(context.domain, &mut wanted);
                if !raw.is_null() {
                    break;
                }
            }
            if raw.is_null() {
                return Err(io::Error::last_os_error());
            }
            (raw, if config.inline { wanted.cap.max_inline_data } else { 0 })
        };
        let pair = QueuePair {
            completions: Arc::clone(completions),
            raw,
            // SAFETY: the pair is there.
            number: unsafe { (*raw).qp_num },
            theirs: 0,
            inline,
            waiting: VecDeque::new(),
            posted: 0,
            done: 0,
            signaled: VecDeque::new(),
        };
        let mut init = attributes(sys::IBV_QPS_INIT);
        init.pkey_index = config.pkey_index;
        init.port_num = port.number;
        init.qp_access_flags = sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_REMOTE_READ;
        let access = sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_ACCESS_FLAGS;
        pair.modify(init, access)?;
        Ok(pair)
    }

    fn modify(&self, mut to: sys::ibv_qp_attr, what: sys::ibv_qp_attr_mask) -> io::Result<()> {
        let what = what | sys::IBV_QP_STATE;
        // SAFETY: the pair is there.
        match unsafe { (self.completions.context.library.modify_qp)(self.raw, &mut to, what) } {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno.abs())),
        }
    }

    /// Connects it with the other end's, by way of RTR to RTS (InfiniBand Architecture 1, 10.3.1). `psns` are the first
    /// packets' numbers, ours and theirs.
    pub(super) fn connect(
        &self,
        (port, ours): (&Port, &PortAddress),
        (theirs, number): (&PortAddress, u32),
        psns: (u32, u32),
        config: &VerbsConfig,
    ) -> io::Result<()> {
        let mut ready = attributes(sys::IBV_QPS_RTR);
        ready.path_mtu = ours.mtu.min(theirs.mtu);
        ready.dest_qp_num = number;
        ready.rq_psn = psns.1;
        ready.max_dest_rd_atomic = 1;
        ready.min_rnr_timer = 12; // 0.64 ms; NCCL's. A receive is always there before what it is for.
        let path = &mut ready.ah_attr;
        path.port_num = port.number;
        path.sl = config.service_level;
        path.dlid = theirs.lid;
        // On InfiniBand a LID will do within a subnet, which the first half of a GID is.
        if port.link == LinkLayer::Ethernet || ours.gid[..8] != theirs.gid[..8] {
            path.is_global = 1;
            path.grh.dgid = sys::ibv_gid { raw: theirs.gid };
            path.grh.sgid_index = ours.gid_index;
            path.grh.hop_limit = 255;
            path.grh.traffic_class = config.traffic_class;
        }
        self.modify(
            ready,
            sys::IBV_QP_AV
                | sys::IBV_QP_PATH_MTU
                | sys::IBV_QP_DEST_QPN
                | sys::IBV_QP_RQ_PSN
                | sys::IBV_QP_MAX_DEST_RD_ATOMIC
                | sys::IBV_QP_MIN_RNR_TIMER,
        )?;
        let mut send = attributes(sys::IBV_QPS_RTS);
        send.timeout = config.timeout;
        send.retry_cnt = config.retry_cnt;
        send.rnr_retry = 7; // for ever
        send.sq_psn = psns.0;
        send.max_rd_atomic = 1;
        self.modify(
            send,
            sys::IBV_QP_TIMEOUT
                | sys::IBV_QP_RETRY_CNT
                | sys::IBV_QP_RNR_RETRY
                | sys::IBV_QP_SQ_PSN
                | sys::IBV_QP_MAX_QP_RD_ATOMIC,
        )
    }

    /// Which of this end's ports it is of.
    pub(super) fn port(&self) -> usize {
        self.completions.port
    }

    /// Whether a completion is of this pair.
    pub(super) fn is_of(&self, done: &WorkCompletion) -> bool {
        self.port() == done.port && self.number == done.pair
    }

    /// Posts a receive without a buffer, for a write with immediate data; its completion is [`WrId::Arrived`].
    pub(super) fn expect(&self, request: u64) -> io::Result<()> {
        // A receive without a buffer.
        let mut receive = sys::ibv_recv_wr::zeroed();
        receive.wr_id = WrId::Arrived(request).id();
        // SAFETY: the pair is there. `ibv_post_recv` is this.
        unsafe {
            let mut bad = ptr::null_mut();
            let post = (*(*self.raw).context).ops.post_recv.ok_or_else(lacks)?;
            match post(self.raw, &mut receive, &mut bad) {
                0 => Ok(()),
                errno => Err(io::Error::from_raw_os_error(errno.abs())),
            }
        }
    }

    /// Moves it to the state ERR, as a device does on its own.
    #[cfg(test)]
    pub(super) fn break_off(&self) {
        self.modify(attributes(sys::IBV_QPS_ERR), 0).unwrap();
    }

    /// Queues a work request; they are executed in their order.
    pub(super) fn post(&mut self, post: SendWr) {
        self.waiting.push_back(post);
    }

    /// Posts the queued work requests that the device has room for.
    ///
    /// # Safety
    /// What is written from stays so until it is sent, and what is read to is nobody else's.
    pub(super) unsafe fn post_waiting(&mut self) -> io::Result<()> {
        while !self.waiting.is_empty() {
            let room = DEPTH - (self.posted - self.done) as usize;
            let count = room.min(BATCH).min(self.waiting.len());
            if count == 0 {
                return Ok(());
            }
            let mut places = [sys::ibv_sge { addr: 0, length: 0, lkey: 0 }; BATCH];
            let mut requests = [sys::ibv_send_wr::zeroed(); BATCH];
            let first = requests.as_mut_ptr();
            let pairs = places.iter_mut().zip(&mut requests).zip(self.waiting.drain(..count));
            for (i, ((place, request), post)) in pairs.enumerate() {
                self.posted += 1;
                if i + 1 < count {
                    request.next = first.wrapping_add(i + 1);
                }
                if fill(post, request, place, self.inline, self.posted.is_multiple_of(SIGNAL_EVERY))
                {
                    self.signaled.push_back(self.posted);
                }
            }
            let mut bad = ptr::null_mut();
            // SAFETY: the pair is there; the requests are chained, each with a place that is there as long. What they
            // name is the caller's. `ibv_post_send` is this.
            let errno = unsafe {
                let post = (*(*self.raw).context).ops.post_send.ok_or_else(lacks)?;
                post(self.raw, first, &mut bad)
            };
            if errno != 0 {
                return Err(io::Error::from_raw_os_error(errno.abs()));
            }
        }
        Ok(())
    }

    /// A completion of the send queue has come: the work requests before it are done, too.
    pub(super) fn completed(&mut self) {
        if let Some(posted) = self.signaled.pop_front() {
            self.done = posted;
        }
    }
}

/// Attributes of which only the state is set.
fn attributes(state: sys::ibv_qp_state) -> sys::ibv_qp_attr {
    let mut attributes = sys::ibv_qp_attr::zeroed();
    attributes.qp_state = state;
    attributes
}

/// Fills in a work request; whether it is signaled.
fn fill(
    post: SendWr,
    request: &mut sys::ibv_send_wr,
    place: &mut sys::ibv_sge,
    inline: u32,
    signal: bool,
) -> bool {
    let (opcode, local, remote, work) = match post {
        SendWr::Write(from, to) => (sys::IBV_WR_RDMA_WRITE, from, to, WrId::Unnamed),
        SendWr::WriteWithImm(from, to, immediate, work) => {
            request.imm_data = immediate.to_be();
            (sys::IBV_WR_RDMA_WRITE_WITH_IMM, from, to, work)
        }
        SendWr::Read(to, from, work) => (sys::IBV_WR_RDMA_READ, to, from, work),
    };
    let is_read = opcode == sys::IBV_WR_RDMA_READ;
    request.wr_id = work.id();
    request.opcode = opcode;
    request.remote_addr = remote.0;
    request.rkey = remote.1;
    if local.bytes > 0 {
        *place = sys::ibv_sge { addr: local.address, length: local.bytes, lkey: local.key };
        request.sg_list = place;
        request.num_sge = 1;
        if local.bytes <= inline && local.host && !is_read {
            request.send_flags |= sys::IBV_SEND_INLINE;
        }
    }
    let signal = signal || work != WrId::Unnamed;
    if signal {
        request.send_flags |= sys::IBV_SEND_SIGNALED;
    }
    signal
}

impl Drop for QueuePair {
    /// When it returns, the device touches no memory for it any more.
    fn drop(&mut self) {
        let context = &self.completions.context;
        // SAFETY: the pair is there, and nobody has another pointer to it.
        let failed = unsafe { (context.library.destroy_qp)(self.raw) };
        if failed != 0 {
            tracing::warn!("NET/IB: {}: queue pair {} stays ({failed})", context.name, self.number);
        }
        context.events.forget(EventSource::QueuePair(self.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_what_it_is_of() {
        let last = (1 << NUMBER_BITS) - 1;
        for work in [WrId::Unnamed, WrId::Sent(0), WrId::Arrived(7), WrId::Flushed(last)] {
            assert_eq!(WrId::of(work.id()), work);
        }
    }
}
