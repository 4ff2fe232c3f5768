//! Queue pairs, and the queue that their completions come in.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io;
use std::mem;
use std::ptr;
use std::sync::Arc;

use ibverbs_sys as sys;
use sys::ibv_qp_attr_mask as mask;

use super::config::VerbsConfig;
use super::context::{Context, Of};
use super::device::{Address, Link, Port};
use crate::net::MAX_REQUESTS;

/// Work requests of a send queue at most: all messages that may be under way, each with its notification and what the other
/// direction has, and room for the pieces of long ones. Others wait in [`Pair::post`]'s list.
const DEPTH: usize = 4 * MAX_REQUESTS;

/// Every so many work requests one has a completion, or the queue would never have room again: a quarter of it.
const SIGNAL_EVERY: u64 = DEPTH as u64 / 4;

/// Work requests that are handed to the device at a time.
const BATCH: usize = 16;

/// Completions that are fetched at a time.
const FETCHED: usize = 16;

/// Bytes that a write may take along, if the device can: those of a FIFO entry.
const INLINE: u32 = 64;

/// What a completion is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Something that nobody waits for.
    Unnamed,
    /// The last write of this message, or messages, of the sender.
    Sent(u64),
    /// What this request of the receiver waits for.
    Arrived(u64),
    /// A read that makes sure that what came before it is there.
    Flushed(u64),
}

/// Bits of a work request's id that are a number.
const NUMBER_BITS: u32 = 56;

impl Work {
    fn id(self) -> u64 {
        let (kind, number) = match self {
            Work::Unnamed => (0, 0),
            Work::Sent(number) => (1, number),
            Work::Arrived(number) => (2, number),
            Work::Flushed(number) => (3, number),
        };
        kind << NUMBER_BITS | number
    }

    fn of(id: u64) -> Work {
        let number = id & ((1 << NUMBER_BITS) - 1);
        match id >> NUMBER_BITS {
            1 => Work::Sent(number),
            2 => Work::Arrived(number),
            3 => Work::Flushed(number),
            _ => Work::Unnamed,
        }
    }

    /// In words, for an error.
    pub(super) fn what(self) -> &'static str {
        match self {
            Work::Unnamed => "an RDMA write",
            Work::Sent(_) => "the RDMA write of a message",
            Work::Arrived(_) => "a receive",
            Work::Flushed(_) => "an RDMA read that flushes",
        }
    }
}

/// Memory of this end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Local {
    pub(super) address: u64,
    pub(super) bytes: u32,
    pub(super) key: u32,
    /// Whether the processor may read it: what goes along with a work request it copies.
    pub(super) host: bool,
}

/// Memory of the other end: address and key.
pub(super) type Remote = (u64, u32);

/// A work request of a send queue.
#[derive(Clone, Copy, Debug)]
pub(super) enum Post {
    /// RDMA_WRITE, of which nobody learns.
    Write(Local, Remote),
    /// RDMA_WRITE_WITH_IMM: the other end learns of it, by a receive and these 32 bits; so do we.
    Notify(Local, Remote, u32, Work),
    /// RDMA_READ.
    Read(Local, Remote, Work),
}

/// A completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) work: Work,
    /// The queue pair's number.
    pub(super) pair: u32,
    /// What came with a write.
    pub(super) immediate: Option<u32>,
    /// Why it failed: a status and the vendor's own.
    pub(super) failed: Option<(sys::ibv_wc_status::Type, u32)>,
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct Completions {
    context: Arc<Context>,
    raw: *mut sys::ibv_cq,
}

// SAFETY: as of `Context`.
unsafe impl Send for Completions {}
// SAFETY: as of `Context`.
unsafe impl Sync for Completions {}

impl Completions {
    /// For so many queue pairs.
    pub(super) fn new(context: &Arc<Context>, pairs: usize) -> io::Result<Arc<Completions>> {
        let entries = (pairs * (DEPTH + MAX_REQUESTS)) as c_int; // 128 pairs at most
        let (none, channel) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the context is open; there is no channel, for it is polled.
        let raw = unsafe { (context.library.create_cq)(context.raw, entries, none, channel, 0) };
        if raw.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(Arc::new(Completions { context: Arc::clone(context), raw }))
    }

    pub(super) fn address(&self) -> usize {
        self.raw as usize
    }

    /// Appends what is done. One thread at a time polls a queue, since each connection has its own: no lock of ours.
    pub(super) fn poll(&self, done: &mut VecDeque<Done>) -> io::Result<()> {
        let mut fetched = [sys::ibv_wc::default(); FETCHED];
        // SAFETY: the queue and its context are there, and so many completions fit. `ibv_poll_cq` is this.
        let count = unsafe {
            let context = (*self.raw).context;
            let poll = (*context).ops.poll_cq.ok_or_else(lacks)?;
            poll(self.raw, FETCHED as c_int, fetched.as_mut_ptr())
        };
        let count = usize::try_from(count).map_err(|_| io::Error::from_raw_os_error(-count))?;
        done.extend(fetched.iter().take(count).map(|one| Done {
            work: Work::of(one.wr_id()),
            pair: one.qp_num,
            immediate: one.imm_data().map(u32::from_be),
            failed: one.error(),
        }));
        Ok(())
    }
}

fn lacks() -> io::Error {
    io::Error::other("the device's driver lacks a function")
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: the queue pairs hold it, so that none is left.
        let failed = unsafe { (self.context.library.destroy_cq)(self.raw) };
        if failed != 0 {
            tracing::warn!("NET/IB: {}: a completion queue stays ({failed})", self.context.name);
        }
        self.context.events.forget(Of::Completions(self.raw as usize));
    }
}

/// A reliable connection's end: a queue pair, with the work requests that it has no room for yet.
#[derive(Debug)]
pub(super) struct Pair {
    completions: Arc<Completions>,
    raw: *mut sys::ibv_qp,
    pub(super) number: u32,
    /// Bytes that a write takes along.
    inline: u32,
    waiting: VecDeque<Post>,
    /// Work requests that the device has been given, and those of them that are known to be done.
    posted: u64,
    done: u64,
    /// How many had been given with each one that has a completion, of those that have not come.
    signaled: VecDeque<u64>,
}

// SAFETY: as of `Context`.
unsafe impl Send for Pair {}
// SAFETY: as of `Context`; what changes it needs it alone.
unsafe impl Sync for Pair {}

impl Pair {
    /// A pair on a port, in the state INIT: it takes receives.
    pub(super) fn new(
        port: &Port,
        completions: &Arc<Completions>,
        config: &VerbsConfig,
    ) -> io::Result<Pair> {
        let context = &port.context;
        // SAFETY: all zeros is a structure of attributes; the protection domain and the queue are there.
        let (raw, inline) = unsafe {
            let mut wanted: sys::ibv_qp_init_attr = mem::zeroed();
            wanted.send_cq = completions.raw;
            wanted.recv_cq = completions.raw;
            wanted.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
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
        let pair = Pair {
            completions: Arc::clone(completions),
            raw,
            // SAFETY: the pair is there.
            number: unsafe { (*raw).qp_num },
            inline,
            waiting: VecDeque::new(),
            posted: 0,
            done: 0,
            signaled: VecDeque::new(),
        };
        let mut init = attributes(sys::ibv_qp_state::IBV_QPS_INIT);
        init.pkey_index = config.pkey_index;
        init.port_num = port.number;
        init.qp_access_flags = sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
            | sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        let access = mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
        pair.modify(init, access)?;
        Ok(pair)
    }

    fn modify(&self, mut to: sys::ibv_qp_attr, what: mask) -> io::Result<()> {
        let what = (what | mask::IBV_QP_STATE).0 as c_int;
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
        (port, ours): (&Port, &Address),
        (theirs, number): (&Address, u32),
        psns: (u32, u32),
        config: &VerbsConfig,
    ) -> io::Result<()> {
        let mut ready = attributes(sys::ibv_qp_state::IBV_QPS_RTR);
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
        if port.link == Link::Ethernet || ours.gid[..8] != theirs.gid[..8] {
            path.is_global = 1;
            path.grh.dgid = sys::ibv_gid { raw: theirs.gid };
            path.grh.sgid_index = ours.gid_index;
            path.grh.hop_limit = 255;
            path.grh.traffic_class = config.traffic_class;
        }
        self.modify(
            ready,
            mask::IBV_QP_AV
                | mask::IBV_QP_PATH_MTU
                | mask::IBV_QP_DEST_QPN
                | mask::IBV_QP_RQ_PSN
                | mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | mask::IBV_QP_MIN_RNR_TIMER,
        )?;
        let mut send = attributes(sys::ibv_qp_state::IBV_QPS_RTS);
        send.timeout = config.timeout;
        send.retry_cnt = config.retry_cnt;
        send.rnr_retry = 7; // for ever
        send.sq_psn = psns.0;
        send.max_rd_atomic = 1;
        self.modify(
            send,
            mask::IBV_QP_TIMEOUT
                | mask::IBV_QP_RETRY_CNT
                | mask::IBV_QP_RNR_RETRY
                | mask::IBV_QP_SQ_PSN
                | mask::IBV_QP_MAX_QP_RD_ATOMIC,
        )
    }

    /// Makes room for a notification; its completion is [`Work::Arrived`].
    pub(super) fn expect(&self, request: u64) -> io::Result<()> {
        // SAFETY: the pair is there; all zeros is a receive without a buffer. `ibv_post_recv` is this.
        unsafe {
            let mut receive: sys::ibv_recv_wr = mem::zeroed();
            receive.wr_id = Work::Arrived(request).id();
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
        self.modify(attributes(sys::ibv_qp_state::IBV_QPS_ERR), mask(0)).unwrap();
    }

    /// Gives the device a work request, now or when it has room; they are done in their order.
    pub(super) fn post(&mut self, post: Post) {
        self.waiting.push_back(post);
    }

    /// Hands over what there is room for.
    ///
    /// # Safety
    /// What is written from stays so until it is sent, and what is read to is nobody else's.
    pub(super) unsafe fn pump(&mut self) -> io::Result<()> {
        while !self.waiting.is_empty() {
            let room = DEPTH - (self.posted - self.done) as usize;
            let count = room.min(BATCH).min(self.waiting.len());
            if count == 0 {
                return Ok(());
            }
            let mut places = [sys::ibv_sge { addr: 0, length: 0, lkey: 0 }; BATCH];
            // SAFETY: all zeros is a work request.
            let mut requests: [sys::ibv_send_wr; BATCH] = unsafe { mem::zeroed() };
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

    /// A completion of the send queue has come: what was given before it is done, too.
    pub(super) fn completed(&mut self) {
        if let Some(posted) = self.signaled.pop_front() {
            self.done = posted;
        }
    }
}

/// Attributes of which only the state is set.
fn attributes(state: sys::ibv_qp_state::Type) -> sys::ibv_qp_attr {
    // SAFETY: all zeros is a structure of attributes.
    let mut attributes: sys::ibv_qp_attr = unsafe { mem::zeroed() };
    attributes.qp_state = state;
    attributes
}

/// Makes a work request; whether it has a completion.
fn fill(
    post: Post,
    request: &mut sys::ibv_send_wr,
    place: &mut sys::ibv_sge,
    inline: u32,
    signal: bool,
) -> bool {
    let (opcode, local, remote, work) = match post {
        Post::Write(from, to) => (sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, from, to, Work::Unnamed),
        Post::Notify(from, to, immediate, work) => {
            request.__bindgen_anon_1.imm_data = immediate.to_be();
            (sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, from, to, work)
        }
        Post::Read(to, from, work) => (sys::ibv_wr_opcode::IBV_WR_RDMA_READ, to, from, work),
    };
    let is_read = opcode == sys::ibv_wr_opcode::IBV_WR_RDMA_READ;
    request.wr_id = work.id();
    request.opcode = opcode;
    request.wr.rdma.remote_addr = remote.0;
    request.wr.rdma.rkey = remote.1;
    if local.bytes > 0 {
        *place = sys::ibv_sge { addr: local.address, length: local.bytes, lkey: local.key };
        request.sg_list = place;
        request.num_sge = 1;
        if local.bytes <= inline && local.host && !is_read {
            request.send_flags |= sys::ibv_send_flags::IBV_SEND_INLINE.0;
        }
    }
    let signal = signal || work != Work::Unnamed;
    if signal {
        request.send_flags |= sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
    }
    signal
}

impl Drop for Pair {
    /// When it returns, the device touches no memory for it any more.
    fn drop(&mut self) {
        let context = &self.completions.context;
        // SAFETY: the pair is there, and nobody has another pointer to it.
        let failed = unsafe { (context.library.destroy_qp)(self.raw) };
        if failed != 0 {
            tracing::warn!("NET/IB: {}: queue pair {} stays ({failed})", context.name, self.number);
        }
        context.events.forget(Of::Pair(self.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_what_it_is_of() {
        let last = (1 << NUMBER_BITS) - 1;
        for work in [Work::Unnamed, Work::Sent(0), Work::Arrived(7), Work::Flushed(last)] {
            assert_eq!(Work::of(work.id()), work);
        }
    }
}
