//! Sends and receives: messages become transfers of one kernel.
//!
//! A message is cut into parts, one for each channel that its size is worth. Sender and receiver cut alike, because both
//! choose from the size. Parts over one connection are transferred in order, all others at the same time. What a rank sends
//! to itself is copied, in as many parts.

use std::collections::HashMap;
use std::sync::Arc;

use ferroccl_device::abi::{
    Algorithm, ChannelWork, Collective, DataType, MAX_CHANNELS, ProtocolId, ReduceOp, Signature,
    Transfer, TransferKind, TransferState, Work,
};
use ferroccl_device::kernels::Kernel;
use tracing::debug;

use super::launch::launch_on_stream;
use super::net::ProxyWork;
use super::preload;
use super::shared::SharedComm;
use super::state::CommState;
use crate::buffer::Stream;
use crate::enqueue::{self, CollectiveCall, Registration};
use crate::error::{Error, Result};
use crate::log;
use crate::runtime::{Argument, Launch, LaunchObserver, Memory};

/// A send or a receive whose arguments have been checked (NCCL's `ncclTaskP2p`).
pub(super) struct P2pTask {
    pub sending: bool,
    pub peer: u32,
    pub address: u64,
    pub bytes: usize,
    /// The memory at the address.
    pub keep: Arc<dyn Memory>,
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
}

impl P2pTask {
    /// The message's transfers, each with the address of its connection.
    fn transfers(&self, comm: &CommState) -> Result<Vec<(u64, Transfer)>> {
        let (protocol, signature, parts) = self.parts(comm)?;
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

/// The copies for a rank's messages to itself: the first send with the first receive, and so on.
fn copies(comm: &CommState, sends: &[P2pTask], recvs: &[P2pTask]) -> Result<Vec<Transfer>> {
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
    for (send, recv) in sends.iter().zip(recvs) {
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
            Transfer { from: send.address + part.offset, ..copy }
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
        let mut in_order: Vec<Vec<Transfer>> = Vec::new();
        let mut index_of: HashMap<u64, usize> = HashMap::new();
        let (mut own_sends, mut own_recvs) = (Vec::new(), Vec::new());
        let (mut bytes, mut keep) = (0, Vec::new());
        for task in tasks {
            bytes += task.bytes as u64;
            keep.push(Arc::clone(&task.keep));
            if task.peer == comm.rank {
                let own = if task.sending { &mut own_sends } else { &mut own_recvs };
                own.push(task);
                continue;
            }
            for (conn, transfer) in task.transfers(comm)? {
                let index = *index_of.entry(conn).or_insert_with(|| {
                    in_order.push(Vec::new());
                    in_order.len() - 1
                });
                in_order[index].push(transfer);
            }
        }
        let copies = copies(comm, &own_sends, &own_recvs)?;
        in_order.extend(copies.into_iter().map(|copy| vec![copy]));
        Self::deal(comm, in_order, bytes, keep)
    }

    /// Deals the transfers out to blocks, and makes room for the table that the kernel works on.
    fn deal(
        comm: &CommState,
        in_order: Vec<Vec<Transfer>>,
        bytes: u64,
        keep: Vec<Arc<dyn Memory>>,
    ) -> Result<Self> {
        let most = MAX_BLOCKS.min(comm.p2p_blocks as usize);
        let blocks = in_order.len().clamp(1, most);
        let mut dealt: Vec<Vec<Vec<Transfer>>> = vec![Vec::new(); blocks];
        for (i, transfers) in in_order.into_iter().enumerate() {
            dealt[i % blocks].push(transfers);
        }
        let mut parts = [ChannelWork::default(); MAX_CHANNELS];
        // For each transfer the one before it on the same connection.
        let (mut all, mut before): (Vec<Transfer>, Vec<Option<usize>>) = (Vec::new(), Vec::new());
        for (part, of_block) in parts.iter_mut().zip(dealt) {
            part.offset = all.len() as u64;
            for transfers in of_block {
                for (i, transfer) in transfers.into_iter().enumerate() {
                    before.push((i > 0).then(|| all.len() - 1));
                    all.push(transfer);
                }
            }
            part.count = all.len() as u64 - part.offset;
        }
        let mut transfers: Box<[Transfer]> = all.into();
        let runtime = &**comm.device.runtime();
        let table = comm.must(runtime.allocate_argument(size_of_val(&*transfers)))?;
        let first = table.address();
        for (transfer, before) in transfers.iter_mut().zip(before) {
            transfer.after = before.map_or(0, |i| first + (i * size_of::<Transfer>()) as u64);
        }
        Ok(P2pBatch { transfers, table, parts, blocks: blocks as u32, bytes, keep })
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
        let P2pBatch { transfers, table, parts, blocks, bytes, keep } = self;
        let kernel = kernel()?;
        preload::preload(comm, &message(bytes as usize, comm.rank));
        debug!(target: log::COLL, rank = comm.rank, transfers = transfers.len(), bytes, blocks, "SendRecv");
        let work = Work {
            comm: comm.control.comm_address(0),
            input: 0,
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
        let runtime = comm.device.runtime();
        // SAFETY: the memory is the runtime's, and nobody has used it.
        let written = unsafe {
            runtime.write_before(&table, bytemuck::cast_slice(&transfers), &**stream.ops())
        };
        let staged = comm.must(written)?;
        let call = Collective::SendRecv as u64;
        let record = comm
            .recorder
            .enter(&Signature { count: bytes, call, ..work.signature }, stream.identity());
        let proxy_work = match &comm.net {
            Some(net) => net.counter.p2p(&comm.control, &transfers, seq),
            None => ProxyWork::new(),
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
            observer: Some((Arc::clone(&comm.recorder) as Arc<dyn LaunchObserver>, record.0)),
            done: Box::new(move |failure| {
                let result = ended.on_launch_done(failure);
                ended.recorder.end(record, None);
                ended.release((table, staged, keep), &result);
                result
            }),
        };
        // SAFETY: the table's transfers are of connections of this communicator, and of buffers that hold them; all of
        // it is kept until the launch has ended.
        let launched = unsafe { launch_on_stream(comm, launch, proxy_work, record, stream) };
        if launched.is_err() {
            comm.recorder.cancel(record);
        }
        launched
    }
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
