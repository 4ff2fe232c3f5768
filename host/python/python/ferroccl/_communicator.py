"""Communicators of NumPy arrays, and of whatever else has a buffer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from . import _ferroccl

__all__ = ["Communicator", "Group", "Request", "group"]


@runtime_checkable
class Buffer(Protocol):
    """An object with a buffer (PEP 3118): a NumPy array, an ``array.array``, a ``bytearray``, a ``memoryview``."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


_B = TypeVar("_B", bound=Any)
Op = Literal["sum", "prod", "min", "max", "avg", "mulsum"]

_open = threading.local()
# The first communicator that was made of what the launcher says.
_world: _ferroccl.Communicator | None = None
_world_lock = threading.Lock()


class Request:
    """A call that is under way. The arrays of the call must be left alone until it has ended."""

    __slots__ = ("_call", "_result")

    def __init__(self, call: _ferroccl.Call, result: Any) -> None:
        self._call = call
        self._result = result

    def wait(self, timeout: float | None = None) -> Any:
        """Waits until the call has ended, and gives what the call gives.

        :param timeout: seconds; then ``TimeoutError`` is raised, and the call goes on.
        :raises Error: the call has failed.
        """
        if not self._call.wait(timeout):
            raise TimeoutError(f"the call has not ended within {timeout} s")
        return self._result

    def test(self) -> bool:
        """Whether the call has ended. Never waits.

        :raises Error: the call has failed.
        """
        if not self._call.is_over():
            return False
        self._call.check()
        return True


class Group:
    """Calls that start together: see :func:`group`."""

    __slots__ = ("_requests", "_wait")

    def __init__(self, wait: bool = True) -> None:
        self._requests: list[Request] = []
        self._wait = wait

    def __enter__(self) -> Group:
        _ferroccl.group_start()
        stack = getattr(_open, "groups", None)
        if stack is None:
            stack = _open.groups = []
        stack.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _open.groups.pop()
        if kind is not None:
            _ferroccl.group_cancel()
            return
        _ferroccl.group_end()
        if _open.groups:
            # Its calls start with the outer group.
            _open.groups[-1]._requests.extend(self._requests)
        elif self._wait:
            self.wait()

    def wait(self, timeout: float | None = None) -> None:
        """Waits for all calls of the group; the first error is raised after all have ended.

        :param timeout: seconds for each call; then ``TimeoutError`` is raised, and the calls go on.
        """
        first: Exception | None = None
        for request in self._requests:
            try:
                request.wait(timeout)
            except TimeoutError:
                raise
            except Exception as error:
                first = first or error
        if first is not None:
            raise first


def group(wait: bool = True) -> Group:
    """Makes the calls of a ``with`` block start together, at its end.

    What must be under way at the same time goes into a group: two ranks that send to each other, calls of several
    communicators whose order differs between ranks. Within it calls return at once; after it they have ended.

    :param wait: ``False`` leaves the block while the calls run: :meth:`Group.wait` waits for them.

    ::

        with ferroccl.group():
            comm.send(mine, peer)
            comm.recv(theirs, peer)
    """
    return Group(wait)


class Communicator:
    """This process's rank in a group of ranks.

    Without arguments it is made of what the launcher says: ``ferroccl run``, ``torchrun``, ``mpirun`` (Open MPI, MPICH, Intel
    MPI), ``srun``. Without a launcher it has one rank. A second one of this kind is a split of the first, which must be there. With ``rank``, ``nranks`` and ``unique_id`` it is made of those: one
    process calls :func:`unique_id` and gives the bytes to the others, by mpi4py, a store or a file. It waits until all ranks
    have come.

    Arrays are used where they are. They must be C-contiguous, and writable where a call writes to them. Their elements are
    integers of 8, 32 and 64 bits, floats of 16, 32 and 64, complex numbers (sums and averages of them) and truth values (the
    sum is "or", the product "and"). Any other type can be moved, not reduced.

    All ranks must make the same calls in the same order. A call has ended when it returns; with ``wait=False`` it returns a
    :class:`Request` at once. While a call waits other threads run, and Ctrl-C interrupts it: the call itself then goes on until
    :meth:`abort` or the end of the process.

    :param rank: this process's rank, from 0.
    :param nranks: the number of ranks.
    :param unique_id: what :func:`unique_id` has given, the same for all ranks.
    :param timeout: seconds that a call may wait for other ranks before it fails, and names them; 0 is for ever. 600 unless
        ``FERROCCL_TIMEOUT`` says otherwise.
    :param warn_after: seconds until a warning in the log says for whom a call waits.
    :param deterministic: whether values are combined in the order of the ranks, so that results have the same bits every time.
    :raises Error: the ranks do not find each other, or disagree.

    All settings of the environment hold as for every program of FerroCCL (``NCCL_ALGO``, ``NCCL_DEBUG``, ...).
    """

    __slots__ = ("_comm", "_settings", "__weakref__")

    def __init__(
        self,
        rank: int | None = None,
        nranks: int | None = None,
        unique_id: bytes | None = None,
        *,
        timeout: float | None = None,
        warn_after: float | None = None,
        deterministic: bool | None = None,
    ) -> None:
        self._settings = (timeout, warn_after, deterministic)
        explicit = {"rank": rank, "nranks": nranks, "unique_id": unique_id}
        if all(value is None for value in explicit.values()):
            self._comm = self._of_the_launcher(self._settings)
            return
        for name, value in explicit.items():
            if value is None:
                raise ValueError(f"{name}: it is missing; rank, nranks and unique_id come together")
        if nranks < 1:  # type: ignore[operator]
            raise ValueError(f"nranks: {nranks} is not 1 at least")
        if not 0 <= rank < nranks:  # type: ignore[operator]
            raise ValueError(f"rank: {rank} is none of the {nranks} ranks")
        self._comm = _ferroccl.Communicator.init_rank(nranks, unique_id, rank, self._settings)  # type: ignore[arg-type]

    @staticmethod
    def _of_the_launcher(settings: tuple[Any, ...]) -> _ferroccl.Communicator:
        """The launcher's id is good for one group: the next ones are made of that."""
        global _world
        with _world_lock:
            if _world is None:
                _world = _ferroccl.Communicator.from_env(settings)
                return _world
            if _world.closed:
                raise _ferroccl.Error(
                    "the communicator of the launcher's ranks has been closed: keep it, and split it for others"
                )
            made = _world.split(0, 0, settings)
            assert made is not None
            return made

    @classmethod
    def _of(cls, comm: _ferroccl.Communicator, settings: tuple[Any, ...]) -> Communicator:
        self = cls.__new__(cls)
        self._comm, self._settings = comm, settings  # type: ignore[assignment]
        return self

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        return self._comm.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._comm.size

    def __repr__(self) -> str:
        closed = ", closed" if self._comm.closed else ""
        return f"<ferroccl.Communicator rank {self.rank} of {self.size}{closed}>"

    def _end(self, call: _ferroccl.Call, result: Any, wait: bool) -> Any:
        groups = getattr(_open, "groups", None)
        if groups:
            request = Request(call, result)
            groups[-1]._requests.append(request)
            return request
        if not wait:
            return Request(call, result)
        call.wait()
        return result

    def _rank_of(self, name: str, rank: int) -> int:
        if not 0 <= rank < self._comm.size:
            raise ValueError(f"{name}: {rank} is none of the {self._comm.size} ranks")
        return rank

    # Reductions.

    def all_reduce(
        self, send: _B, recv: _B | None = None, op: Op = "sum", *, factor: float | None = None, wait: bool = True
    ) -> Any:
        """Reduces ``send`` over all ranks, element by element, into every rank's ``recv``.

        :param send: what this rank gives.
        :param recv: an array of as many elements for the result. Without one the result is in ``send``.
        :param op: ``"sum"``, ``"prod"``, ``"min"``, ``"max"``, ``"avg"``, or ``"mulsum"``: the sum of what each rank multiplies
            by its ``factor`` first.
        :param factor: the factor of ``"mulsum"``.
        :returns: the array with the result.
        """
        recv = send if recv is None else recv
        return self._end(self._comm.all_reduce(send, recv, op, factor), recv, wait)

    def reduce(
        self,
        send: _B,
        recv: _B | None = None,
        op: Op = "sum",
        root: int = 0,
        *,
        factor: float | None = None,
        wait: bool = True,
    ) -> Any:
        """Reduces ``send`` over all ranks into ``recv`` of rank ``root``; without ``recv``, into the root's ``send``.

        :returns: the array with the result on the root, ``None`` elsewhere.
        """
        root = self._rank_of("root", root)
        at_root = root == self.rank
        recv = (send if recv is None else recv) if at_root else None
        return self._end(self._comm.reduce(send, recv, op, factor, root), recv, wait)

    def reduce_scatter(
        self, send: Any, recv: _B, op: Op = "sum", *, factor: float | None = None, wait: bool = True
    ) -> Any:
        """Reduces ``send`` over all ranks, and gives each rank its block of the result.

        :param send: a block for each rank, in their order.
        :param recv: the block of this rank.
        :returns: ``recv``.
        """
        return self._end(self._comm.reduce_scatter(send, recv, op, factor), recv, wait)

    # Moves.

    def all_gather(self, send: Any, recv: _B | None = None, *, wait: bool = True) -> Any:
        """Gives every rank the ``send`` of all ranks, in their order.

        :param recv: an array of as many times the elements of ``send`` as there are ranks. Without one it is a new NumPy array of
            shape ``(size, *send.shape)``.
        :returns: the array with the result.
        """
        recv = self._new(send) if recv is None else recv
        return self._end(self._comm.all_gather(send, recv), recv, wait)

    def all_to_all(
        self,
        send: Any,
        recv: _B | None = None,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        *,
        wait: bool = True,
    ) -> Any:
        """Sends block ``i`` of ``send`` to rank ``i``, and receives block ``i`` of ``recv`` from it.

        :param recv: an array of as many elements. Without one it is a new NumPy array like ``send``.
        :param send_counts: elements for each rank, where the blocks are not alike; ``recv_counts`` then come with them.
        :returns: the array with the result.
        """
        if (send_counts is None) != (recv_counts is None):
            missing = "send_counts" if send_counts is None else "recv_counts"
            raise ValueError(f"{missing}: they are missing; send_counts and recv_counts come together")
        if send_counts is None or recv_counts is None:
            recv = self._new(send, like=True) if recv is None else recv
            return self._end(self._comm.all_to_all(send, recv), recv, wait)
        if recv is None:
            raise TypeError("recv: it is missing, and comes with recv_counts")
        counts = ([int(n) for n in send_counts], [int(n) for n in recv_counts])
        return self._end(self._comm.all_to_all_v(send, recv, *counts), recv, wait)

    def broadcast(self, buffer: _B, root: int = 0, *, wait: bool = True) -> Any:
        """Gives every rank's ``buffer`` what the root's has.

        :returns: ``buffer``.
        """
        return self._end(self._comm.broadcast(buffer, self._rank_of("root", root)), buffer, wait)

    def gather(self, send: Any, recv: _B | None = None, root: int = 0, *, wait: bool = True) -> Any:
        """Gives rank ``root`` the ``send`` of all ranks, in their order.

        :param recv: on the root, an array of as many times the elements of ``send`` as there are ranks. Without one it is a new
            NumPy array of shape ``(size, *send.shape)``.
        :returns: the array with the result on the root, ``None`` elsewhere.
        """
        root = self._rank_of("root", root)
        if root != self.rank:
            recv = None
        elif recv is None:
            recv = self._new(send)
        return self._end(self._comm.gather(send, recv, root), recv, wait)

    def scatter(self, send: Any | None, recv: _B, root: int = 0, *, wait: bool = True) -> Any:
        """Gives every rank its block of what the root has.

        :param send: on the root a block for each rank, in their order; elsewhere nothing is read of it.
        :returns: ``recv``.
        """
        return self._end(self._comm.scatter(send, recv, self._rank_of("root", root)), recv, wait)

    def send(self, buffer: Any, peer: int, *, wait: bool = True) -> Any:
        """Sends ``buffer`` to rank ``peer``, which receives it by :meth:`recv`, as many bytes. Messages arrive in order.

        Two ranks that send to each other do so in a :func:`group`. So does a rank that sends to itself, with its receive.
        """
        return self._end(self._comm.send(buffer, self._rank_of("peer", peer)), None, wait)

    def recv(self, buffer: _B, peer: int, *, wait: bool = True) -> Any:
        """Receives into ``buffer`` what rank ``peer`` sends.

        :returns: ``buffer``.
        """
        return self._end(self._comm.recv(buffer, self._rank_of("peer", peer)), buffer, wait)

    def barrier(self, *, wait: bool = True) -> Any:
        """Waits until all ranks have called it."""
        return self._end(self._comm.barrier(), None, wait)

    # The communicator itself.

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Divides the communicator: ranks that give the same ``color`` get one of their own.

        All ranks call it. A rank's place in the new one is that of its ``key``, for equal keys that of its rank.

        :param color: ``None`` for a rank that gets none.
        """
        if color is not None and color < 0:
            raise ValueError(f"color: {color} is not 0 at least; None is for a rank that gets no communicator")
        made = self._comm.split(color, key, self._settings)
        return None if made is None else self._of(made, self._settings)

    def shrink(self, exclude: Sequence[int], *, abort: bool = True) -> Communicator:
        """A communicator of the ranks that are left without ``exclude``, which may be gone: all that are left call it.

        :param exclude: ranks, as :attr:`Error.ranks` has them.
        :param abort: whether this communicator's calls are ended first. ``False`` is for one that has not failed.
        """
        ranks = [self._rank_of("exclude", rank) for rank in exclude]
        return self._of(self._comm.shrink(ranks, abort, self._settings), self._settings)

    def abort(self) -> None:
        """Ends the calls of all ranks with an error; no more can be made. From any thread."""
        self._comm.abort()

    def check(self) -> None:
        """:raises Error: the communicator has failed, with the first failure."""
        self._comm.check()

    def close(self) -> None:
        """Waits until this rank's calls have ended, and lets go of what the communicator has."""
        self._comm.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            # The other ranks wait for calls that nobody makes any more.
            self.abort()
        self.close()

    def _new(self, send: Any, like: bool = False) -> Any:
        import numpy as np

        array = np.asarray(send)
        shape = array.shape if like else (self.size, *array.shape)
        return np.empty(shape, dtype=array.dtype)
