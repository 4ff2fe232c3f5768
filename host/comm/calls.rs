//! The calls of a communicator. They check their arguments, and name the one that is wrong.

use std::cell::OnceCell;
use std::sync::Arc;

use ferroccl_device::abi::{Collective, DataType, ReduceOp};

use super::collective::CollTask;
use super::group::AnyTask;
use super::p2p::P2pTask;
use super::{Communicator, group};
use crate::buffer::{DeviceBuffer, Element, Stream};
use crate::enqueue::CollectiveCall;
use crate::error::{Error, Result};
use crate::operator::Operator;
use crate::profiler::Parents;
use crate::runtime::Memory;

/// Calls return at once; `stream` has the result when it has run the call. All ranks must make the same calls, with the same
/// counts, types, operators and roots, in the same order. If they differ, every rank's stream gets an error that shows both
/// calls. Buffers may be empty. A buffer that a rank does not use (as the receive buffer of a reduce on a rank other than
/// the root) may have any length.
impl Communicator {
    /// Reduces `send` over all ranks, element by element, into every rank's `recv` (`ncclAllReduce`).
    ///
    /// `send` and `recv` must have the same length, and may be the same buffer (in place). See [`ReduceOp`] for the operators.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when lengths differ, when the buffers overlap without being the same, or when `op` lacks its
    /// scalar; [`Error::Aborted`] when the communicator has failed before. Later failures are errors of `stream`.
    pub fn all_reduce<T: Element>(
        &self,
        send: &DeviceBuffer<T>,
        recv: &DeviceBuffer<T>,
        op: impl Into<Operator<T>>,
        stream: &Stream,
    ) -> Result<()> {
        self.check_alike("recv", recv, "send", send)?;
        self.reduction(Collective::AllReduce, send.len(), (send, recv), &op.into(), None, stream)
    }

    /// Concatenates the `send` of all ranks, in the order of the ranks, into every rank's `recv` (`ncclAllGather`).
    ///
    /// `recv` has as many times the elements of `send` as there are ranks. In place, `send` is this rank's block of
    /// `recv`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the lengths do not fit, or the buffers overlap otherwise; else as
    /// [`Communicator::all_reduce`].
    ///
    /// ```
    /// use ferroccl::{Communicator, Device};
    ///
    /// let device = Device::cpu();
    /// let ranks = Communicator::init_all(&device, 3)?;
    /// let streams = ranks.iter().map(|_| device.stream()).collect::<Result<Vec<_>, _>>()?;
    /// let all = ranks.iter().map(|_| device.alloc::<i32>(6)).collect::<Result<Vec<_>, _>>()?;
    /// for ((rank, all), stream) in ranks.iter().zip(&all).zip(&streams) {
    ///     let mine = device.upload(&[rank.rank() as i32; 2])?;
    ///     rank.all_gather(&mine, all, stream)?;
    /// }
    /// assert_eq!(all[1].to_vec(&streams[1])?, [0, 0, 1, 1, 2, 2]);
    /// # for stream in &streams { stream.synchronize()?; }
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    pub fn all_gather<T: Element>(
        &self,
        send: &DeviceBuffer<T>,
        recv: &DeviceBuffer<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.check_blocks("recv", recv, "send", send)?;
        let own = recv.slice(self.block(send.len()));
        if own.address() != send.address() {
            check_apart("recv", recv, "send", send)?;
        }
        let call = self.copying_call(Collective::AllGather, send.len(), T::TYPE, None);
        self.submit(coll_task(call, send, recv), stream)
    }

    /// Reduces `send` over all ranks and gives each its block of the result (`ncclReduceScatter`).
    ///
    /// `send` has as many times the elements of `recv` as there are ranks. In place, `recv` is this rank's block of
    /// `send`.
    ///
    /// # Errors
    /// As [`Communicator::all_gather`] and [`Communicator::all_reduce`].
    pub fn reduce_scatter<T: Element>(
        &self,
        send: &DeviceBuffer<T>,
        recv: &DeviceBuffer<T>,
        op: impl Into<Operator<T>>,
        stream: &Stream,
    ) -> Result<()> {
        self.check_blocks("send", send, "recv", recv)?;
        let own = send.slice(self.block(recv.len()));
        if own.address() != recv.address() {
            check_apart("recv", recv, "send", send)?;
        }
        let call = Collective::ReduceScatter;
        self.reduction(call, recv.len(), (send, recv), &op.into(), None, stream)
    }

    /// Gives every rank the `send` of rank `root` (`ncclBroadcast`).
    ///
    /// `send` is used on the root alone. There the two have one length and may be the same buffer (in place).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is no such root, or on the root lengths differ or the buffers overlap
    /// without being the same; else as [`Communicator::all_reduce`].
    pub fn broadcast<T: Element>(
        &self,
        send: &DeviceBuffer<T>,
        recv: &DeviceBuffer<T>,
        root: u32,
        stream: &Stream,
    ) -> Result<()> {
        self.check_rank("root", root)?;
        let at_root = root == self.rank();
        if at_root {
            self.check_alike("recv", recv, "send", send)?;
        }
        let call = self.copying_call(Collective::Broadcast, recv.len(), T::TYPE, Some(root));
        let send = if at_root { send } else { recv };
        self.submit(coll_task(call, send, recv), stream)
    }

    /// Reduces `send` over all ranks into the `recv` of rank `root` (`ncclReduce`).
    ///
    /// `recv` is used on the root alone. There the two have one length and may be the same buffer (in place).
    ///
    /// # Errors
    /// As [`Communicator::broadcast`] and [`Communicator::all_reduce`].
    pub fn reduce<T: Element>(
        &self,
        send: &DeviceBuffer<T>,
        recv: &DeviceBuffer<T>,
        op: impl Into<Operator<T>>,
        root: u32,
        stream: &Stream,
    ) -> Result<()> {
        self.check_rank("root", root)?;
        if root == self.rank() {
            self.check_alike("recv", recv, "send", send)?;
        }
        let call = Collective::Reduce;
        self.reduction(call, send.len(), (send, recv), &op.into(), Some(root), stream)
    }

    /// Sends `buffer` to rank `peer`, which receives it by [`Communicator::recv`] (`ncclSend`). Messages between two
    /// ranks arrive in order.
    ///
    /// Messages that must run at the same time go into one [`group`](crate::group()): for example two ranks that send to each
    /// other. A message to the own rank needs its receive in the same group.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is no such peer, or when a message to the own rank has no receive;
    /// [`Error::Aborted`] when the communicator has failed before. Later, as an error of `stream`: when the peer receives
    /// another number of bytes.
    pub fn send<T: Element>(
        &self,
        buffer: &DeviceBuffer<T>,
        peer: u32,
        stream: &Stream,
    ) -> Result<()> {
        self.message(buffer, peer, true, stream)
    }

    /// Receives from rank `peer` into `buffer` what it sends by [`Communicator::send`] (`ncclRecv`).
    ///
    /// # Errors
    /// As [`Communicator::send`].
    pub fn recv<T: Element>(
        &self,
        buffer: &DeviceBuffer<T>,
        peer: u32,
        stream: &Stream,
    ) -> Result<()> {
        self.message(buffer, peer, false, stream)
    }

    /// Sends block `i` of `send` to rank `i`, and receives block `i` of `recv` from it, for all ranks
    /// (`ncclAlltoAll`).
    ///
    /// Where `recv` is in a [`Window`](crate::Window), each rank's kernel writes straight into the windows of the others
    /// ([`Algorithm::Direct`](crate::Algorithm::Direct)). Elsewhere each rank sends to all others in one kernel: a few bytes in lines
    /// ([`Algorithm::OneShot`](crate::Algorithm::OneShot)), more through their connections
    /// ([`Algorithm::Linear`](crate::Algorithm::Linear)). Where `NCCL_ALGO` leaves these out, between hosts, and where the tuner finds
    /// it faster, it is a group of sends and receives.
    ///
    /// `send` and `recv` must have the same length, a multiple of the number of ranks, and must not overlap.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when lengths do not fit or the buffers overlap; else as [`Communicator::send`].
    pub fn all_to_all<T: Element>(
        &self,
        send: &DeviceBuffer<T>,
        recv: &DeviceBuffer<T>,
        stream: &Stream,
    ) -> Result<()> {
        check_length("recv", recv.len(), "send", send.len())?;
        check_apart("recv", recv, "send", send)?;
        let n = self.world_size() as usize;
        if !send.len().is_multiple_of(n) {
            let reason = format!("has {} elements, no multiple of {n} ranks", send.len());
            return Err(Error::argument("send", reason));
        }
        let each = send.len() / n;
        let call = self.copying_call(Collective::AllToAll, each, T::TYPE, None);
        let task = coll_task(call, send, recv);
        if task.has_kernel(&self.0) {
            return self.submit(task, stream);
        }
        group(|| {
            for peer in 0..self.world_size() {
                let block = peer as usize * each..(peer as usize + 1) * each;
                self.send(&send.slice(block.clone()), peer, stream)?;
                self.recv(&recv.slice(block), peer, stream)?;
            }
            Ok(())
        })
    }

    /// Concatenates the `send` of all ranks, in the order of the ranks, into the `recv` of rank `root` (`ncclGather`): a
    /// group of sends and receives.
    ///
    /// `recv` is used on the root alone, where it has as many times the elements of `send` as there are ranks. In place,
    /// the root's `send` is its block of `recv`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is no such root, or on the root lengths do not fit or the buffers overlap
    /// otherwise; else as [`Communicator::send`].
    pub fn gather<T: Element>(
        &self,
        send: &DeviceBuffer<T>,
        recv: &DeviceBuffer<T>,
        root: u32,
        stream: &Stream,
    ) -> Result<()> {
        self.rooted_blocks(true, send, recv, root, stream)
    }

    /// Gives rank `i` block `i` of the `send` of rank `root`, for all ranks (`ncclScatter`): a group of sends and
    /// receives.
    ///
    /// `send` is used on the root alone, where it has as many times the elements of `recv` as there are ranks. In place,
    /// the root's `recv` is its block of `send`.
    ///
    /// # Errors
    /// As [`Communicator::gather`].
    pub fn scatter<T: Element>(
        &self,
        send: &DeviceBuffer<T>,
        recv: &DeviceBuffer<T>,
        root: u32,
        stream: &Stream,
    ) -> Result<()> {
        self.rooted_blocks(false, recv, send, root, stream)
    }

    /// Has the work behind it in `stream` begin only after the work before it has ended on all ranks.
    ///
    /// # Errors
    /// [`Error::Aborted`] when the communicator has failed before.
    pub fn barrier(&self, stream: &Stream) -> Result<()> {
        let call = self.copying_call(Collective::Barrier, 1, DataType::F32, None);
        let (input, output) = (self.0.barrier_buffer, self.0.barrier_buffer);
        let task = CollTask {
            call,
            input,
            output,
            scalar: (0, false),
            custom: None,
            keep: [None, None, None],
            parents: Parents::default(),
            chosen: OnceCell::new(),
        };
        self.submit(task, stream)
    }

    /// A gather, or a scatter: every rank's `block`, and on the root `all` of them.
    fn rooted_blocks<T: Element>(
        &self,
        gather: bool,
        block: &DeviceBuffer<T>,
        all: &DeviceBuffer<T>,
        root: u32,
        stream: &Stream,
    ) -> Result<()> {
        self.check_rank("root", root)?;
        if root != self.rank() {
            return self.message(block, root, gather, stream);
        }
        let (block_name, all_name) = if gather { ("send", "recv") } else { ("recv", "send") };
        self.check_blocks(all_name, all, block_name, block)?;
        let each = block.len();
        let in_place = all.slice(self.block(each)).address() == block.address();
        if !in_place {
            let (send, recv) = if gather { (block, all) } else { (all, block) };
            check_apart("recv", recv, "send", send)?;
        }
        group(|| {
            for peer in (0..self.world_size()).filter(|peer| *peer != root || !in_place) {
                let part = peer as usize * each..(peer as usize + 1) * each;
                self.message(&all.slice(part), peer, !gather, stream)?;
                if peer == root {
                    self.message(block, root, gather, stream)?;
                }
            }
            Ok(())
        })
    }

    /// A collective that reduces.
    fn reduction<T: Element>(
        &self,
        collective: Collective,
        count: usize,
        buffers: (&DeviceBuffer<T>, &DeviceBuffer<T>),
        op: &Operator<T>,
        root: Option<u32>,
        stream: &Stream,
    ) -> Result<()> {
        let task = self.reduction_task(collective, count, buffers, op, root)?;
        self.submit(task, stream)
    }

    pub(super) fn reduction_task<T: Element>(
        &self,
        collective: Collective,
        count: usize,
        (send, recv): (&DeviceBuffer<T>, &DeviceBuffer<T>),
        op: &Operator<T>,
        root: Option<u32>,
    ) -> Result<CollTask> {
        let scalar = op.scalar(self.world_size())?;
        let call = CollectiveCall { collective, count, data_type: T::TYPE, op: op.op(), root };
        let mut task = coll_task(call, send, recv);
        task.scalar = (scalar.value, scalar.by_address);
        task.keep[2] = scalar.keep;
        Ok(task)
    }

    /// A collective that copies data, without an operator.
    fn copying_call(
        &self,
        collective: Collective,
        count: usize,
        data_type: DataType,
        root: Option<u32>,
    ) -> CollectiveCall {
        CollectiveCall { collective, count, data_type, op: ReduceOp::Sum, root }
    }

    /// Launches a collective, or keeps it for the end of the group.
    pub(super) fn submit(&self, task: CollTask, stream: &Stream) -> Result<()> {
        self.check_stream(stream)?;
        for (name, memory) in ["send", "recv", "op"].into_iter().zip(&task.keep) {
            self.check_memory(name, memory.as_ref())?;
        }
        group::submit(&self.0, AnyTask::Coll(task), stream)
    }

    /// Launches a send or a receive, or keeps it for the end of the group.
    fn message<T: Element>(
        &self,
        buffer: &DeviceBuffer<T>,
        peer: u32,
        sending: bool,
        stream: &Stream,
    ) -> Result<()> {
        self.check_rank("peer", peer)?;
        self.check_stream(stream)?;
        self.check_memory("buffer", Some(buffer.memory()))?;
        let task = P2pTask {
            sending,
            peer,
            address: buffer.address(),
            bytes: buffer.len() * size_of::<T>(),
            data_type: T::TYPE,
            keep: Arc::clone(buffer.memory()),
            parents: Parents::default(),
        };
        group::submit(&self.0, AnyTask::P2p(task), stream)
    }

    /// The elements of this rank's block, in a buffer with a block of `each` elements for every rank.
    fn block(&self, each: usize) -> std::ops::Range<usize> {
        let start = self.rank() as usize * each;
        start..start + each
    }

    /// Checks that a stream is of the communicator's device: the addresses of another one mean something else there.
    fn check_stream(&self, stream: &Stream) -> Result<()> {
        if stream.ops().address_space() == self.device().runtime().address_space() {
            return Ok(());
        }
        Err(Error::argument("stream", "it is of another device than the communicator"))
    }

    /// The same of memory.
    pub(super) fn check_memory(
        &self,
        name: &'static str,
        memory: Option<&Arc<dyn Memory>>,
    ) -> Result<()> {
        let space = self.device().runtime().address_space();
        if memory.is_none_or(|memory| memory.address_space() == space) {
            return Ok(());
        }
        Err(Error::argument(name, "its memory is of another device than the communicator"))
    }

    pub(super) fn check_rank(&self, argument: &'static str, rank: u32) -> Result<()> {
        if rank < self.world_size() {
            return Ok(());
        }
        let reason = format!("{rank} is none of the {} ranks", self.world_size());
        Err(Error::argument(argument, reason))
    }

    /// Checks that two buffers have the same length, and are the same or do not overlap.
    fn check_alike<T: Element>(
        &self,
        name: &'static str,
        buffer: &DeviceBuffer<T>,
        other_name: &str,
        other: &DeviceBuffer<T>,
    ) -> Result<()> {
        check_length(name, buffer.len(), other_name, other.len())?;
        if buffer.address() != other.address() {
            check_apart(name, buffer, other_name, other)?;
        }
        Ok(())
    }

    /// Checks that `buffer` has a `block` for each rank.
    fn check_blocks<T: Element>(
        &self,
        name: &'static str,
        buffer: &DeviceBuffer<T>,
        block_name: &str,
        block: &DeviceBuffer<T>,
    ) -> Result<()> {
        let n = self.world_size();
        if block.len().checked_mul(n as usize) == Some(buffer.len()) {
            return Ok(());
        }
        let (len, each) = (buffer.len(), block.len());
        let reason = format!("has {len} elements, {block_name} has {each} for each of {n} ranks");
        Err(Error::argument(name, reason))
    }
}

fn coll_task<T: Element>(
    call: CollectiveCall,
    send: &DeviceBuffer<T>,
    recv: &DeviceBuffer<T>,
) -> CollTask {
    CollTask {
        call,
        input: send.address(),
        output: recv.address(),
        scalar: (0, false),
        custom: None,
        keep: [Some(Arc::clone(send.memory())), Some(Arc::clone(recv.memory())), None],
        parents: Parents::default(),
        chosen: OnceCell::new(),
    }
}

fn check_length(name: &'static str, len: usize, other_name: &str, other: usize) -> Result<()> {
    if len == other {
        return Ok(());
    }
    Err(Error::argument(name, format!("has {len} elements, {other_name} has {other}")))
}

fn check_apart<T: Element>(
    name: &'static str,
    buffer: &DeviceBuffer<T>,
    other_name: &str,
    other: &DeviceBuffer<T>,
) -> Result<()> {
    let end = |b: &DeviceBuffer<T>| b.address() + (b.len() * size_of::<T>()) as u64;
    if buffer.address() < end(other) && other.address() < end(buffer) {
        let reason = format!("overlaps {other_name} without being the same");
        return Err(Error::argument(name, reason));
    }
    Ok(())
}
