//! Sends and receives: messages become transfers of one kernel.
//!
//! A message is cut into parts, one a channel, as many as it is worth; both ends cut alike. Parts over one connection are
//! in order, all others are under way together. What a rank sends to itself is copied, in as many parts.

use std::collections::HashMap;
use std::sync::Arc;

use ferroccl_device::abi::{
    Algorithm, ChannelWork, Collective, DataType, MAX_CHANNELS, ProtocolId, ReduceOp, Signature,
    Transfer, TransferKind, TransferState, Work,
};
use ferroccl_device::kernels::Kernel;
use tracing::debug;

use super::Inner;
use crate::buffer::Stream;
use crate::enqueue::{self, Call};
use crate::log;
use crate::runtime::{Launch, Memory};
use crate::{Error, Result};

/// A send or a receive.
pub(super) struct Message {
    pub sending: bool,
    pub peer: u32,
    pub address: u64,
    pub bytes: usize,
    /// The memory of the address.
    pub keep: Arc<dyn Memory>,
}

/// The most blocks of a launch: a block goes through its transfers in turns.
const MAX_BLOCKS: usize = 16;

/// Messages that are ready to be launched.
pub(super) struct Transfers {
    table: Table,
    parts: [ChannelWork; MAX_CHANNELS],
    blocks: u32,
    bytes: u64,
    keep: Vec<Arc<dyn Memory>>,
}

/// Transfers, and where kernels have them.
struct Table {
    memory: Arc<dyn Memory>,
    transfers: Box<[Transfer]>,
}

impl Inner {
    /// Launches one message.
    pub(super) fn message(self: &Arc<Self>, message: Message, stream: &Stream) -> Result<()> {
        let transfers = self.transfers(vec![message])?;
        let mut order = self.lock_order()?;
        order.go_on_with(stream);
        self.launch_transfers(transfers, order.seq, stream)
    }

    /// Makes messages ready, which are under way together.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when messages to the own rank do not match.
    pub(super) fn transfers(&self, messages: Vec<Message>) -> Result<Transfers> {
        // By connection, in order.
        let mut lanes: Vec<Vec<Transfer>> = Vec::new();
        let mut lane_of: HashMap<u64, usize> = HashMap::new();
        let (mut own_sends, mut own_recvs) = (Vec::new(), Vec::new());
        let (mut bytes, mut keep) = (0, Vec::new());
        for message in messages {
            bytes += message.bytes as u64;
            keep.push(Arc::clone(&message.keep));
            if message.peer == self.rank {
                let own = if message.sending { &mut own_sends } else { &mut own_recvs };
                own.push(message);
                continue;
            }
            for (conn, transfer) in self.cut(&message)? {
                let lane = *lane_of.entry(conn).or_insert_with(|| {
                    lanes.push(Vec::new());
                    lanes.len() - 1
                });
                lanes[lane].push(transfer);
            }
        }
        lanes.extend(self.copies(&own_sends, &own_recvs)?.into_iter().map(|copy| vec![copy]));
        self.table(lanes, bytes, keep)
    }

    /// The parts of a message, each with the address of its connection.
    fn cut(&self, message: &Message) -> Result<Vec<(u64, Transfer)>> {
        let (protocol, signature, parts) = self.parts(message)?;
        let kind = if message.sending { TransferKind::Send } else { TransferKind::Recv };
        let cut = parts.map(|(channel, part)| {
            let conn = self.control.p2p_conn(channel, message.peer, message.sending);
            let address = message.address + part.offset;
            (conn, transfer(kind, protocol, conn, address, part.count, signature))
        });
        Ok(cut.collect())
    }

    /// How a message is cut: a part for each channel that it is worth, the first one even of nothing.
    fn parts(
        &self,
        message: &Message,
    ) -> Result<(ProtocolId, Signature, impl Iterator<Item = (u32, ChannelWork)>)> {
        let call = Call {
            collective: Collective::SendRecv,
            count: message.bytes,
            data_type: DataType::U8,
            op: ReduceOp::Sum,
            root: Some(if message.sending { self.rank } else { message.peer }),
        };
        let way = enqueue::choose(&call, &self.shape)?;
        let signature = call.signature(0, Algorithm::Ring, way.protocol, way.channels);
        let parts = enqueue::split(message.bytes, way.channels, 128);
        let parts = (0..way.channels).zip(parts).filter(|(i, part)| *i == 0 || part.count > 0);
        Ok((way.protocol, signature, parts))
    }

    /// The messages of a rank to itself, matched in order.
    fn copies(&self, sends: &[Message], recvs: &[Message]) -> Result<Vec<Transfer>> {
        let rank = self.rank;
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
            let (protocol, signature, parts) = self.parts(send)?;
            copies.extend(parts.map(|(_, part)| {
                let to = recv.address + part.offset;
                let kind = TransferKind::Copy;
                let copy = transfer(kind, protocol, 0, to, part.count, signature);
                Transfer { from: send.address + part.offset, ..copy }
            }));
        }
        Ok(copies)
    }

    /// Deals lanes out to blocks.
    fn table(
        &self,
        lanes: Vec<Vec<Transfer>>,
        bytes: u64,
        keep: Vec<Arc<dyn Memory>>,
    ) -> Result<Transfers> {
        let most = MAX_BLOCKS.min(self.message_blocks as usize);
        let blocks = lanes.len().clamp(1, most);
        let mut dealt: Vec<Vec<Vec<Transfer>>> = vec![Vec::new(); blocks];
        for (i, lane) in lanes.into_iter().enumerate() {
            dealt[i % blocks].push(lane);
        }
        let mut parts = [ChannelWork::default(); MAX_CHANNELS];
        let (mut all, mut before): (Vec<Transfer>, Vec<Option<usize>>) = (Vec::new(), Vec::new());
        for (part, lanes) in parts.iter_mut().zip(dealt) {
            part.offset = all.len() as u64;
            for lane in lanes {
                for (i, transfer) in lane.into_iter().enumerate() {
                    before.push((i > 0).then(|| all.len() - 1));
                    all.push(transfer);
                }
            }
            part.count = all.len() as u64 - part.offset;
        }
        let mut transfers: Box<[Transfer]> = all.into();
        let runtime = &**self.device.runtime();
        let memory = runtime.allocate(size_of_val(&*transfers))?;
        let first = memory.address();
        for (transfer, before) in transfers.iter_mut().zip(before) {
            transfer.after = before.map_or(0, |i| first + (i * size_of::<Transfer>()) as u64);
        }
        runtime.write(&memory, 0, bytemuck::cast_slice(&transfers))?;
        let table = Table { memory, transfers };
        Ok(Transfers { table, parts, blocks: blocks as u32, bytes, keep })
    }

    /// The kernel of messages.
    fn messages_kernel() -> Result<Kernel> {
        enqueue::send_recv_kernel().ok_or_else(|| Error::Unavailable {
            what: "send and receive".to_owned(),
            reason: "this build is without the cargo feature `send-recv`".to_owned(),
        })
    }

    /// As [`Inner::prepare`], for messages.
    pub(super) fn prepare_messages(&self) -> Result<()> {
        let runtime = self.device.runtime();
        if !runtime.loads_kernels() {
            return Ok(());
        }
        let kernel = Self::messages_kernel()?;
        runtime.prepare(&kernel, kernel.threads)
    }

    /// Launches transfers; `seq` is the number of the last collective.
    pub(super) fn launch_transfers(
        self: &Arc<Self>,
        transfers: Transfers,
        seq: u64,
        stream: &Stream,
    ) -> Result<()> {
        let Transfers { table, parts, blocks, bytes, keep } = transfers;
        let kernel = Self::messages_kernel()?;
        debug!(target: log::COLL, rank = self.rank, transfers = table.transfers.len(), bytes, blocks, "SendRecv");
        let work = Work {
            comm: self.control.comm_address(0),
            input: 0,
            output: 0,
            scalar: 0,
            count: bytes,
            root: 0,
            scalar_by_address: 0,
            extra: table.memory.address(),
            pad: 0,
            signature: Signature { seq, ..Signature::default() },
            channels: parts,
        };
        let cargo = self.cargo_of(&table.transfers, seq);
        let done = Arc::clone(self);
        let launch = Launch {
            kernel,
            blocks,
            threads: kernel.threads,
            sharing: self.sharing,
            work: Box::new(work),
            keep: Vec::new(),
            bytes,
            done: Box::new(move |failure| {
                drop((table.memory, keep));
                done.ended(failure)
            }),
        };
        // SAFETY: the table's transfers are of connections of this communicator, and of buffers that hold them; all of
        // it is kept until the launch has ended.
        unsafe { self.start(launch, cargo, stream) }
    }
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
        protocol: protocol as u32,
        pad: 0,
        after: 0,
    }
}
