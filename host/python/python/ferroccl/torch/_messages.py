"""Sends and receives, with tags and receives from any rank.

Messages from one rank to another have a communicator of those two, made when the first is sent, and a thread on either side. So a
message waits for no other one, but those that its rank has sent to the same rank before.

A message is two calls: its tag and size, then its bytes. A receiver takes the first when somebody wants to receive. If nobody
wants its tag, the bytes are kept until somebody does.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import deque
from datetime import timedelta

import torch
import torch.distributed as dist

from .. import _ferroccl
from ._tensors import Outputs, memory, readable
from ._work import Pending, Work, seconds

# How long a thread waits before it looks whether it should end.
_SLICE = 0.2
# The ranks of a channel.
_SENDER, _RECEIVER = 0, 1


class _Stopped(Exception):
    """The process group is closed."""


class Message(Work):
    """A message that is on its way."""

    def __init__(self, tensor: torch.Tensor, tag: int, what: str, timeout: timedelta) -> None:
        super().__init__(None, [tensor], Outputs(), what)
        self.tag = tag
        self.bytes = readable(tensor).view(-1) if what == "send" else tensor
        self.peer: int | None = None
        self._over = threading.Event()
        self._timeout = seconds(timeout)

    def is_completed(self) -> bool:
        if not self._over.is_set():
            return False
        try:
            self._end(None)
        except Exception:
            pass  # `exception` has it
        return True

    def _wait_call(self, timeout: float | None) -> bool:
        # The thread that waits is Python's own: Ctrl-C reaches it.
        if not self._over.wait(self._timeout if timeout is None else timeout):
            if timeout is None:
                raise _ferroccl.Error(f"timeout: {self._what} has not ended within {self._timeout} s")
            return False
        if self._error is not None:
            raise self._error
        return True

    def finish(self, error: BaseException | None = None, source: int = -1) -> None:
        self._error, self._source = error, source
        self._over.set()


class _Channel:
    """Messages from one rank to another: one side of them."""

    def __init__(self, messages: Messages, sender: int, receiver: int) -> None:
        self.messages = messages
        self.key = f"ferroccl/messages/{sender}-{receiver}"
        self.side = _SENDER if messages.rank == sender else _RECEIVER
        self.peer = receiver if messages.rank == sender else sender
        self._comm: _ferroccl.Communicator | None = None
        self._thread = threading.Thread(target=self._main, name=f"ferroccl-{sender}-{receiver}", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        try:
            self.run()
        except _Stopped:
            self.fail(_ferroccl.Error("the process group is closed"))
        except BaseException as error:
            self.fail(error)

    def run(self) -> None:
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        raise NotImplementedError

    def comm(self) -> _ferroccl.Communicator:
        if self._comm is None:
            # Each side comes when it has something to send or to receive, and making a communicator has a limit: so it is
            # made when both have come.
            store = self.messages.store
            if self.side == _SENDER:
                unique_id = _ferroccl.unique_id()
                store.set(f"{self.key}/id", unique_id.hex())
                self._wait_for(f"{self.key}/wanted")
            else:
                store.set(f"{self.key}/wanted", "yes")
                self._wait_for(f"{self.key}/id")
                unique_id = bytes.fromhex(store.get(f"{self.key}/id").decode())
            # A message may be waited for as long as its work says: the call itself has no limit.
            self._comm = _ferroccl.Communicator.init_rank(2, unique_id, self.side, (0.0, 0.0, None))
        return self._comm

    def _wait_for(self, key: str) -> None:
        pause = 0.001
        while not self.messages.store.check([key]):
            self.messages.check_open()
            self.messages.check_there(self.peer)
            time.sleep(pause)
            pause = min(pause * 2, 0.05)

    def end(self, call: _ferroccl.Call) -> None:
        while not call.wait(_SLICE):
            self.messages.check_open()

    def close(self) -> None:
        if self._comm is not None:
            if self._thread.is_alive():
                self._comm.abort()
        self._thread.join(2)
        self._comm = None


class _Sender(_Channel):
    def __init__(self, messages: Messages, peer: int) -> None:
        self._queue: deque[Message] = deque()
        self.wake = threading.Condition()
        self._error: BaseException | None = None
        super().__init__(messages, messages.rank, peer)

    def put(self, message: Message) -> None:
        with self.wake:
            if self._error is not None:
                message.finish(self._error)
                return
            self._queue.append(message)
            self.wake.notify()

    def run(self) -> None:
        while True:
            with self.wake:
                while not self._queue:
                    self.messages.check_open()
                    self.wake.wait(_SLICE)
                message = self._queue[0]
            comm = self.comm()
            header = torch.tensor([message.tag, message.bytes.nbytes], dtype=torch.int64)
            self.end(comm.send(memory(header), _RECEIVER))
            if message.bytes.nbytes:
                self.end(comm.send(memory(message.bytes), _RECEIVER))
            with self.wake:
                self._queue.popleft()
            message.finish()

    def fail(self, error: BaseException) -> None:
        with self.wake:
            self._error = error
            for message in self._queue:
                message.finish(error)
            self._queue.clear()


class _Receiver(_Channel):
    def __init__(self, messages: Messages, source: int) -> None:
        self.source = source
        self.kept: deque[tuple[int, torch.Tensor]] = deque()
        self.error: BaseException | None = None
        super().__init__(messages, source, messages.rank)

    def run(self) -> None:
        messages = self.messages
        while True:
            with messages.wake:
                while not messages.wanted(self.source):
                    messages.check_open()
                    messages.wake.wait(_SLICE)
            header = torch.empty(2, dtype=torch.int64)
            self.end(self.comm().recv(memory(header), _SENDER))
            tag, size = header.tolist()
            # Who wanted it may have got another one meanwhile: it waits here for whoever comes.
            with messages.wake:
                while (message := messages.take(self.source, tag)) is None and not messages.wanted(self.source):
                    messages.check_open()
                    messages.wake.wait(_SLICE)
            if message is None:
                kept = self._receive(torch.empty(size, dtype=torch.uint8))
                with messages.wake:
                    message = messages.take(self.source, tag)
                    if message is None:
                        self.kept.append((tag, kept))
                        continue
                messages.deliver(message, kept, self.source)
                continue
            try:
                if message.bytes.nbytes != size or not message.bytes.is_contiguous():
                    messages.deliver(message, self._receive(torch.empty(size, dtype=torch.uint8)), self.source)
                else:
                    self._receive(message.bytes)
                    message.finish(source=self.source)
            except BaseException as error:
                message.finish(error)
                raise

    def _receive(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.nbytes:
            self.end(self.comm().recv(memory(tensor), _SENDER))
        return tensor

    def fail(self, error: BaseException) -> None:
        with self.messages.wake:
            self.error = error
            self.messages.lost(self.source, error)


class Messages:
    """The messages of a process group."""

    def __init__(self, comm: _ferroccl.Communicator, store: dist.Store, timeout: timedelta) -> None:
        self.comm = comm
        self.store = store
        self.rank, self.size = comm.rank, comm.size
        self.timeout = timeout
        # Guards what follows; receivers wait for something to receive.
        self.wake = threading.Condition(threading.RLock())
        self._senders: dict[int, _Sender] = {}
        self._receivers: dict[int, _Receiver] = {}
        self._posted: deque[Message] = deque()
        self._own: deque[Message] = deque()
        self._closed = False
        _open.add(self)

    def check_open(self) -> None:
        if self._closed:
            raise _Stopped

    def check_there(self, peer: int) -> None:
        """A rank that has died before its first message is known to be gone by the group's communicator."""
        if self.comm.closed:
            return
        try:
            self.comm.check()
        except _ferroccl.Error as error:
            if peer in error.ranks:
                raise

    def send(self, tensor: torch.Tensor, peer: int, tag: int, pending: Pending) -> Message:
        self._usable()
        pending.settle()
        message = Message(tensor, tag, "send", self.timeout)
        if peer == self.rank:
            with self.wake:
                found = self.take(self.rank, tag)
                if found is None:
                    self._own.append(message)
                    return message
            self._to_itself(message, found)
            return message
        with self.wake:
            sender = self._senders.get(peer)
            if sender is None:
                sender = self._senders[peer] = _Sender(self, peer)
        sender.put(message)
        return message

    def recv(self, tensor: torch.Tensor, peer: int | None, tag: int, pending: Pending) -> Message:
        self._usable()
        pending.settle()
        message = Message(tensor, tag, "recv", self.timeout)
        message.peer = peer
        if peer is None:
            sources = [rank for rank in range(self.size) if rank != self.rank]
        else:
            sources = [peer]
        with self.wake:
            if self.rank in sources or peer is None:
                own = next((sent for sent in self._own if sent.tag == tag), None)
                if own is not None:
                    self._own.remove(own)
                    self._to_itself(own, message)
                    return message
            for source in sources:
                if source == self.rank:
                    continue
                receiver = self._receivers.get(source)
                if receiver is None:
                    receiver = self._receivers[source] = _Receiver(self, source)
                kept = next((item for item in receiver.kept if item[0] == tag), None)
                if kept is not None:
                    receiver.kept.remove(kept)
                    self.deliver(message, kept[1], source)
                    return message
                if receiver.error is not None and peer is not None:
                    message.finish(receiver.error)
                    return message
            self._posted.append(message)
            self.wake.notify_all()
        return message

    # For receivers, which hold `wake`.

    def wanted(self, source: int) -> bool:
        return any(message.peer in (None, source) for message in self._posted)

    def take(self, source: int, tag: int) -> Message | None:
        with self.wake:
            for message in self._posted:
                if message.tag == tag and message.peer in (None, source):
                    self._posted.remove(message)
                    return message
        return None

    def lost(self, source: int, error: BaseException) -> None:
        """Nothing comes from a rank any more."""
        gone = [message for message in self._posted if message.peer == source]
        if all(receiver.error is not None for receiver in self._receivers.values()):
            gone = list(self._posted)
        for message in gone:
            self._posted.remove(message)
            message.finish(error)

    def deliver(self, message: Message, sent: torch.Tensor, source: int) -> None:
        """Copies what has been kept to where it is wanted."""
        tensor = message.bytes.detach()
        if tensor.nbytes != sent.nbytes:
            reason = f"rank {source} has sent {sent.nbytes} bytes, and the tensor has {tensor.nbytes}"
            message.finish(ValueError(f"tensors: {reason}"))
            return
        with torch.no_grad():
            if tensor.numel():
                tensor.copy_(sent.view(tensor.dtype).view(tensor.shape))
        message.finish(source=source)

    def _to_itself(self, sent: Message, received: Message) -> None:
        self.deliver(received, sent.bytes.clone().view(torch.uint8), self.rank)
        sent.finish()

    def _usable(self) -> None:
        if self._closed:
            raise _ferroccl.Error("the process group is closed")

    # Ends.

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        self._closed = True
        with self.wake:
            self.wake.notify_all()
            senders = list(self._senders.values())
            channels = [*senders, *self._receivers.values()]
        for sender in senders:
            with sender.wake:
                sender.wake.notify_all()
        for channel in channels:
            channel.close()
        with self.wake:
            for message in [*self._posted, *self._own]:
                message.finish(_ferroccl.Error("the process group is closed"))
            self._posted.clear()
            self._own.clear()


_open: weakref.WeakSet[Messages] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # A thread that is within the library when the interpreter ends could not leave it.
    for messages in list(_open):
        messages.close()
