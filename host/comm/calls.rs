//! What a communicator can be asked to do: arguments are checked here, by name.

use std::sync::Arc;

use ferroccl_device::abi::{Collective, DataType, ProtocolId, ReduceOp};
use ferroccl_device::kernels::Kernel;

use super::group::Entry;
use super::launch::Request;
use super::p2p::Message;
use super::{Communicator, group};
use crate::buffer::{DeviceBuffer, Element, Stream};
use crate::enqueue::Call;
use crate::operator::Operator;
use crate::{Error, Result};

/// All collectives return at once; the result is there when `stream` gets to it. All ranks make the same calls, with the
/// same counts, types, operators and roots, in the same order: if not, every rank's stream gets an error that shows
/// both calls. Buffers may be empty. A buffer that is not used on a rank (the root's side of a call on another rank)
/// may have any length.
impl Communicator {
    /// Reduces `send` over all ranks, element by element, into every rank's `recv` (`ncclAllReduce`).
    ///
    /// `send` and `recv` have one length and may be the same buffer (in place). Semantics of `op`: [`ReduceOp`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when lengths differ or the buffers overlap without being the same, or for an `op`
    /// without its scalar; [`Error::Aborted`] when the communicator has failed before. What happens later is an error
    /// of `stream`.
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

    /// [`Communicator::all_reduce`] by a kernel of your own, over this communicator's connections: how a
    /// protocol is tried before it is in the table. `protocol` says which buffers of the connections it uses.
    ///
    /// # Safety
    /// `kernel` keeps the contract of [`AllReduceRing`](ferroccl_device::collectives::AllReduceRing): it
    /// is an instance for `T`, or does as it does.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub unsafe fn all_reduce_with<T: Element>(
        &self,
        kernel: Kernel,
        protocol: ProtocolId,
        send: &DeviceBuffer<T>,
        recv: &DeviceBuffer<T>,
        op: impl Into<Operator<T>>,
        stream: &Stream,
    ) -> Result<()> {
        self.check_alike("recv", recv, "send", send)?;
        let (call, buffers) = (Collective::AllReduce, (send, recv));
        let mut request = self.reduction_request(call, send.len(), buffers, &op.into(), None)?;
        request.own = Some((kernel, protocol));
        self.submit(request, stream)
    }

    /// Gives every rank the `send` of all ranks, one behind the other in their order (`ncclAllGather`).
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
        let call = self.moving(Collective::AllGather, send.len(), T::TYPE, None);
        self.submit(request(call, send, recv), stream)
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
        let call = self.moving(Collective::Broadcast, recv.len(), T::TYPE, Some(root));
        let send = if at_root { send } else { recv };
        self.submit(request(call, send, recv), stream)
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
    /// What has to be under way together, as two ranks that send to each other, is called in one
    /// [`group`](crate::group()). A message to the own rank needs its receive in the same group.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is no such peer, or a message to the own rank has no counterpart;
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
    /// (`ncclAlltoAll`): a group of sends and receives.
    ///
    /// The two have one length, which is a multiple of the number of ranks, and do not overlap.
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
        group(|| {
            for peer in 0..self.world_size() {
                let block = peer as usize * each..(peer as usize + 1) * each;
                self.send(&send.slice(block.clone()), peer, stream)?;
                self.recv(&recv.slice(block), peer, stream)?;
            }
            Ok(())
        })
    }

    /// Gives rank `root` the `send` of all ranks, one behind the other in their order (`ncclGather`): a group of sends
    /// and receives.
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
        self.check_rank("root", root)?;
        let each = send.len();
        if root != self.rank() {
            return self.send(send, root, stream);
        }
        self.check_blocks("recv", recv, "send", send)?;
        let in_place = recv.slice(self.block(each)).address() == send.address();
        if !in_place {
            check_apart("recv", recv, "send", send)?;
        }
        group(|| {
            for peer in (0..self.world_size()).filter(|peer| *peer != root || !in_place) {
                if peer == root {
                    self.send(send, root, stream)?;
                }
                let block = peer as usize * each..(peer as usize + 1) * each;
                self.recv(&recv.slice(block), peer, stream)?;
            }
            Ok(())
        })
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
        self.check_rank("root", root)?;
        let each = recv.len();
        if root != self.rank() {
            return self.recv(recv, root, stream);
        }
        self.check_blocks("send", send, "recv", recv)?;
        let in_place = send.slice(self.block(each)).address() == recv.address();
        if !in_place {
            check_apart("recv", recv, "send", send)?;
        }
        group(|| {
            for peer in (0..self.world_size()).filter(|peer| *peer != root || !in_place) {
                let block = peer as usize * each..(peer as usize + 1) * each;
                self.send(&send.slice(block), peer, stream)?;
                if peer == root {
                    self.recv(recv, root, stream)?;
                }
            }
            Ok(())
        })
    }

    /// What is in `stream` behind it begins after what is before it has ended on all ranks.
    ///
    /// # Errors
    /// [`Error::Aborted`] when the communicator has failed before.
    pub fn barrier(&self, stream: &Stream) -> Result<()> {
        let call = self.moving(Collective::Barrier, 1, DataType::F32, None);
        let (input, output) = (self.0.barrier, self.0.barrier);
        let request = Request {
            call,
            input,
            output,
            scalar: (0, false),
            own: None,
            keep: [None, None, None],
        };
        self.submit(request, stream)
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
        let request = self.reduction_request(collective, count, buffers, op, root)?;
        self.submit(request, stream)
    }

    fn reduction_request<T: Element>(
        &self,
        collective: Collective,
        count: usize,
        (send, recv): (&DeviceBuffer<T>, &DeviceBuffer<T>),
        op: &Operator<T>,
        root: Option<u32>,
    ) -> Result<Request> {
        let scalar = op.scalar(self.world_size())?;
        let call = Call { collective, count, data_type: T::TYPE, op: op.op(), root };
        let mut request = request(call, send, recv);
        request.scalar = (scalar.value, scalar.by_address);
        request.keep[2] = scalar.keep;
        Ok(request)
    }

    /// A collective that moves data.
    fn moving(
        &self,
        collective: Collective,
        count: usize,
        data_type: DataType,
        root: Option<u32>,
    ) -> Call {
        Call { collective, count, data_type, op: ReduceOp::Sum, root }
    }

    /// Launches a collective, or keeps it for the end of the group.
    fn submit(&self, request: Request, stream: &Stream) -> Result<()> {
        match group::keep(&self.0, Entry::Collective(request), stream) {
            Some(Entry::Collective(request)) => self.0.call(request, stream),
            Some(Entry::Message(_)) | None => Ok(()),
        }
    }

    fn message<T: Element>(
        &self,
        buffer: &DeviceBuffer<T>,
        peer: u32,
        sending: bool,
        stream: &Stream,
    ) -> Result<()> {
        self.check_rank("peer", peer)?;
        let message = Message {
            sending,
            peer,
            address: buffer.address(),
            bytes: buffer.len() * size_of::<T>(),
            keep: Arc::clone(buffer.memory()),
        };
        match group::keep(&self.0, Entry::Message(message), stream) {
            Some(Entry::Message(message)) => self.0.message(message, stream),
            Some(Entry::Collective(_)) | None => Ok(()),
        }
    }

    /// The elements of this rank's block.
    fn block(&self, each: usize) -> std::ops::Range<usize> {
        let start = self.rank() as usize * each;
        start..start + each
    }

    fn check_rank(&self, argument: &'static str, rank: u32) -> Result<()> {
        if rank < self.world_size() {
            return Ok(());
        }
        let reason = format!("{rank} is none of the {} ranks", self.world_size());
        Err(Error::argument(argument, reason))
    }

    /// One length, and the same buffer or apart.
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

    /// A block for each rank.
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

fn request<T: Element>(call: Call, send: &DeviceBuffer<T>, recv: &DeviceBuffer<T>) -> Request {
    Request {
        call,
        input: send.address(),
        output: recv.address(),
        scalar: (0, false),
        own: None,
        keep: [Some(Arc::clone(send.memory())), Some(Arc::clone(recv.memory())), None],
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
