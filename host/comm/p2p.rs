//! Sends and receives: messages become transfers of one kernel.
//!
//! A message is cut into parts, one for each channel that its size is worth. Sender and receiver cut alike, because both
//! choose from the size. Parts over one connection are transferred in order, all others at the same time. What a rank sends
//! to itself is copied, in as many parts.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ferroccl_device::abi::{
    Algorithm, ChannelWork, Collective, DataType, MAX_CHANNELS, ProtocolId, ReduceOp, Signature,
    Transfer, TransferKind, TransferState, Work,
};
use ferroccl_device::kernels::Kernel;
use tracing::debug;

use super::device_memory::MemoryFor;
use super::events::KernelEvents;
use super::launch::launch_on_stream;
use super::net::ProxyWork;
use super::preload;
use super::shared::SharedComm;
use super::state::CommState;
use crate::buffer::Stream;
use crate::channel::ConnSet;
use crate::enqueue::{self, CollectiveCall, Registration};
use crate::error::{Error, Result};
use crate::log;
use crate::profiler::{Happened, Parent, Parents, ProfilerEvent};
use crate::runtime::{Argument, Launch, Memory};

/// A send or a receive whose arguments have been checked (NCCL's `ncclTaskP2p`).
pub(super) struct P2pTask {
    pub sending: bool,
    pub peer: u32,
    pub address: u64,
    pub bytes: usize,
    /// The type of its elements, as the caller has it.
    pub data_type: DataType,
    /// The memory at the address.
    pub keep: Arc<dyn Memory>,
    /// The events that it belongs to.
    pub parents: Parents,
}

/// The most blocks of a launch. Messages need fewer blocks than collectives, because a block takes turns between its
/// transfers.
const MAX_BLOCKS: usize = 16;

/// Messages that one kernel transfers, ready to be launched.
pub(super) struct P2pBatch {
    transfers: Box<[Transfer]>,
    /// Where the kernel finds its copy of `transfers`.
    table: Arc<dyn Memory>,
    /// The transfers of each block.
    parts: [ChannelWork; MAX_CHANNELS],
    blocks: u32,
    bytes: u64,
    keep: Vec<Arc<dyn Memory>>,
    /// What a profiler is told of the messages. Empty where there is none, as are the next two.
    messages: Vec<(Happened, Parents)>,
    /// By transfer: its message.
    owners: Vec<usize>,
    /// By block: the message that it begins with.
    first_of_block: Vec<usize>,
}

impl P2pTask {
    /// What a profiler is told of it.
    fn happened(&self, channels: u32) -> Happened {
        let &P2pTask { sending, peer, address: buffer, bytes, data_type, .. } = self;
        let count = bytes / data_type.size();
        Happened::P2p { sending, buffer, data_type, count, peer, channels }
    }

    /// The message's transfers, each with the address of its connection.
    fn transfers(&self, comm: &CommState) -> Result<Vec<(u64, Transfer)>> {
        let (protocol, signature, parts) = self.parts(comm)?;
        comm.must(comm.need_rows(ConnSet::P2p, std::iter::once(self.peer)))?;
        let kind = if self.sending { TransferKind::Send } else { TransferKind::Recv };
        let transfers = parts.map(|(channel, part)| {
            let conn = comm.control.p2p_conn(channel, self.peer, self.sending);
            let address = self.address + part.offset;
            (conn, transfer(kind, protocol, conn, address, part.count, signature))
        });
        Ok(transfers.collect())
    }

    /// The message's protocol, signature and parts. An empty message has one part.
    fn parts(
        &self,
        comm: &CommState,
    ) -> Result<(ProtocolId, Signature, impl Iterator<Item = (u32, ChannelWork)> + use<>)> {
        let call = message(self.bytes, if self.sending { comm.rank } else { self.peer });
        let choice = enqueue::choose(&call, &comm.plan_context, Registration::None)?;
        let signature = call.signature(0, Algorithm::Ring, choice.protocol, choice.channels);
        let parts = enqueue::split(self.bytes, choice.channels, 128);
        let parts = (0..choice.channels).zip(parts).filter(|(i, part)| *i == 0 || part.count > 0);
        Ok((choice.protocol, signature, parts))
    }
}

/// The copies for a rank's messages to itself, each with its number in the batch: the first send with the first receive, and
/// so on.
fn copies(
    comm: &CommState,
    sends: &[(usize, P2pTask)],
    recvs: &[(usize, P2pTask)],
) -> Result<Vec<(Transfer, usize)>> {
    let rank = comm.rank;
    if sends.len() != recvs.len() {
        let reason = format!(
            "rank {rank} sends to itself {} times and receives from itself {} times: a group needs both",
            sends.len(),
            recvs.len()
        );
        return Err(Error::argument("peer", reason));
    }
    let mut copies = Vec::new();
    for ((message, send), (_, recv)) in sends.iter().zip(recvs) {
        if send.bytes != recv.bytes {
            let reason = format!(
                "rank {rank} sends {} bytes to itself and receives {}",
                send.bytes, recv.bytes
            );
            return Err(Error::argument("buffer", reason));
        }
        let (protocol, signature, parts) = send.parts(comm)?;
        copies.extend(parts.map(|(_, part)| {
            let to = recv.address + part.offset;
            let copy = transfer(TransferKind::Copy, protocol, 0, to, part.count, signature);
            (Transfer { from: send.address + part.offset, ..copy }, *message)
        }));
    }
    Ok(copies)
}

impl P2pBatch {
    /// The transfers of all messages that run at the same time.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when a rank's sends to itself do not match its receives.
    pub(super) fn new(comm: &CommState, tasks: Vec<P2pTask>) -> Result<Self> {
        // The transfers of each connection, in order. Each copy is by itself.
        let mut in_order: Vec<Vec<(Transfer, usize)>> = Vec::new();
        let mut index_of: HashMap<u64, usize> = HashMap::new();
        let (mut own_sends, mut own_recvs) = (Vec::new(), Vec::new());
        let (mut bytes, mut keep, mut messages) = (0, Vec::new(), Vec::new());
        for (message, task) in tasks.into_iter().enumerate() {
            if comm.profiler.is_some() {
                let parts = task.parts(comm)?.2.count() as u32;
                messages.push((task.happened(parts), task.parents));
            }
            bytes += task.bytes as u64;
            keep.push(Arc::clone(&task.keep));
            if task.peer == comm.rank {
                let own = if task.sending { &mut own_sends } else { &mut own_recvs };
                own.push((message, task));
                continue;
            }
            for (conn, transfer) in task.transfers(comm)? {
                let index = *index_of.entry(conn).or_insert_with(|| {
                    in_order.push(Vec::new());
                    in_order.len() - 1
                });
                in_order[index].push((transfer, message));
            }
        }
        let copies = copies(comm, &own_sends, &own_recvs)?;
        in_order.extend(copies.into_iter().map(|copy| vec![copy]));
        Self::deal(comm, in_order, (bytes, keep), messages)
    }

    /// Deals the transfers out to blocks, and makes room for the table that the kernel works on.
    fn deal(
        comm: &CommState,
        in_order: Vec<Vec<(Transfer, usize)>>,
        (bytes, keep): (u64, Vec<Arc<dyn Memory>>),
        messages: Vec<(Happened, Parents)>,
    ) -> Result<Self> {
        let most = comm.p2p_blocks.min(MAX_BLOCKS as u32);
        let most = comm.plan_context.tuner.message_blocks(bytes, most) as usize;
        let blocks = in_order.len().clamp(1, most);
        let mut dealt: Vec<Vec<Vec<(Transfer, usize)>>> = vec![Vec::new(); blocks];
        for (i, transfers) in in_order.into_iter().enumerate() {
            dealt[i % blocks].push(transfers);
        }
        let mut parts = [ChannelWork::default(); MAX_CHANNELS];
        // For each transfer the one before it on the same connection.
        let (mut all, mut before): (Vec<Transfer>, Vec<Option<usize>>) = (Vec::new(), Vec::new());
        let (mut owners, mut first_of_block) = (Vec::new(), Vec::new());
        for (part, of_block) in parts.iter_mut().zip(dealt) {
            part.offset = all.len() as u64;
            if !messages.is_empty() {
                first_of_block.extend(of_block.first().and_then(|some| Some(some.first()?.1)));
            }
            for transfers in of_block {
                for (i, (transfer, message)) in transfers.into_iter().enumerate() {
                    if !messages.is_empty() {
                        owners.push(message);
                    }
                    before.push((i > 0).then(|| all.len() - 1));
                    all.push(transfer);
                }
            }
            part.count = all.len() as u64 - part.offset;
        }
        let mut transfers: Box<[Transfer]> = all.into();
        let runtime = &**comm.device.runtime();
        let table = comm.must(runtime.allocate_argument(size_of_val(&*transfers)))?;
        let table = comm.memory.counted(MemoryFor::Calls, table);
        let first = table.address();
        for (transfer, before) in transfers.iter_mut().zip(before) {
            transfer.after = before.map_or(0, |i| first + (i * size_of::<Transfer>()) as u64);
        }
        let blocks = blocks as u32;
        Ok(P2pBatch {
            transfers,
            table,
            parts,
            blocks,
            bytes,
            keep,
            messages,
            owners,
            first_of_block,
        })
    }

    /// Loads the kernel where that is to be done before any call of a group is launched.
    pub(super) fn prepare(comm: &CommState) -> Result<()> {
        let runtime = comm.device.runtime();
        if !runtime.loads_kernels() {
            return Ok(());
        }
        let kernel = kernel()?;
        runtime.prepare(&kernel, kernel.threads)
    }

    /// Puts the kernel into the stream; `seq` is the number of the last collective.
    pub(super) fn launch(self, comm: &SharedComm, seq: u64, stream: &Stream) -> Result<()> {
        let P2pBatch { transfers, table, parts, blocks, bytes, keep, messages, owners, .. } = self;
        let group = comm.tell(|| Happened::Group, Parents::default());
        let group = group.as_ref().map(ProfilerEvent::parent).unwrap_or_default();
        let group_api = messages.first().map(|(_, parents)| parents.group_api).unwrap_or_default();
        // They end when the kernel is launched.
        let events = messages
            .iter()
            .map(|(happened, parents)| comm.tell(|| *happened, Parents { group, ..*parents }));
        let events: Vec<Option<ProfilerEvent>> = events.collect();
        let parent = |message: &usize| {
            events
                .get(*message)
                .and_then(|event| Some(event.as_ref()?.parent()))
                .unwrap_or_default()
        };
        let parents: Vec<Parent> = owners.iter().map(parent).collect();
        let of_blocks = (0..).zip(self.first_of_block.iter().map(parent));
        let kernel_events = KernelEvents::new(comm, of_blocks);
        let kernel = kernel()?;
        preload::preload(comm, &message(bytes as usize, comm.rank));
        debug!(target: log::COLL, rank = comm.rank, transfers = transfers.len(), bytes, blocks, "SendRecv");
        let runtime = comm.device.runtime();
        // SAFETY: the memory is the runtime's, and nobody has used it.
        let written = unsafe {
            runtime.write_before(&table, bytemuck::cast_slice(&transfers), &**stream.ops())
        };
        let staged = comm.must(written)?;
        let work = Work {
            comm: comm.control.comm_address(0),
            input: staged.as_ref().map_or(0, |staged| staged.address),
            output: 0,
            scalar: 0,
            count: bytes,
            root: 0,
            scalar_by_address: 0,
            extra: table.address(),
            extra_stride: 0,
            signature: Signature { seq, ..Signature::default() },
            digest: 0,
            input_peers: 0,
            output_peers: 0,
            pad: 0,
            channels: parts,
        };
        let staged = staged.map(|staged| staged.keep);
        let call = Collective::SendRecv as u64;
        let record = comm
            .recorder
            .enter(&Signature { count: bytes, call, ..work.signature }, stream.identity());
        let proxy_work = match &comm.net {
            Some(net) => net.counter.p2p(&comm.control, &transfers, &parents, seq),
            None => ProxyWork::default(),
        };
        let ended = comm.clone();
        let launch = Launch {
            kernel,
            blocks,
            threads: kernel.threads,
            sharing: comm.ranks_on_device,
            argument: Argument::of_work(&work),
            keep: Vec::new(),
            bytes,
            observer: Some((KernelEvents::observer(kernel_events.as_ref(), comm), record.0)),
            done: Box::new(move |failure| {
                kernel_events.iter().for_each(|events| events.end());
                let result = ended.on_launch_done(failure);
                ended.recorder.end(record, None);
                ended.release((table, staged, keep), &result);
                result
            }),
        };
        let of_launch = (record, Parents { group_api, ..Parents::default() });
        // SAFETY: the table's transfers are of connections of this communicator, and of buffers that hold them; all of
        // it is kept until the launch has ended.
        let launched = unsafe { launch_on_stream(comm, launch, proxy_work, of_launch, stream) };
        if launched.is_err() {
            comm.recorder.cancel(record);
        }
        launched
    }
}

/// What the tuning model predicts of messages that one kernel transfers: what is sent and what is received pass each other. A
/// message to the own rank is a copy, which takes no time in it.
pub(super) fn time(comm: &CommState, tasks: &[P2pTask]) -> Result<Duration> {
    let bytes = |sending: bool| -> usize {
        let some = tasks.iter().filter(|task| task.sending == sending && task.peer != comm.rank);
        some.map(|task| task.bytes).sum()
    };
    let most = bytes(true).max(bytes(false));
    if tasks.iter().all(|task| task.peer == comm.rank) {
        return Ok(Duration::ZERO);
    }
    let call = message(most, comm.rank);
    let choice = enqueue::choose(&call, &comm.plan_context, Registration::None)?;
    let chosen = (choice.algorithm, choice.protocol);
    Ok(comm.plan_context.tuner.time(call.collective, call.bytes() as u64, chosen))
}

/// A message as a call: its root is the sender.
fn message(bytes: usize, root: u32) -> CollectiveCall {
    CollectiveCall {
        collective: Collective::SendRecv,
        count: bytes,
        data_type: DataType::U8,
        op: ReduceOp::Sum,
        root: Some(root),
    }
}

/// The kernel of sends and receives.
pub(super) fn kernel() -> Result<Kernel> {
    enqueue::send_recv_kernel().ok_or_else(|| Error::Unavailable {
        what: "send and receive".to_owned(),
        reason: "this build is without the cargo feature `send-recv`".to_owned(),
    })
}

fn transfer(
    kind: TransferKind,
    protocol: ProtocolId,
    conn: u64,
    address: u64,
    bytes: u64,
    signature: Signature,
) -> Transfer {
    Transfer {
        signature,
        conn,
        address,
        from: 0,
        bytes,
        done: 0,
        kind: kind as u32,
        state: TransferState::New as u32,
        protocol: protocol.index() as u32,
        pad: 0,
        after: 0,
    }
}
