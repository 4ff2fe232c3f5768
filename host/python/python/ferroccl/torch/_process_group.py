"""The process group: torch's calls as the library's."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .. import _ferroccl
from ._messages import Messages
from ._operators import Operator
from ._tensors import (
    WIDENED,
    Outputs,
    adjoining,
    check,
    memory,
    one,
    readable,
    same_size,
    same_type,
)
from ._work import Pending, Work, seconds


@contextmanager
def _together():
    """Calls that start together."""
    _ferroccl.group_start()
    try:
        yield
    except BaseException:
        _ferroccl.group_cancel()
        raise
    _ferroccl.group_end()


def _root(opts: Any, default: Any = None) -> int:
    """The root of options, or as torch's tests and older callers give it: by itself."""
    value = opts if isinstance(opts, int) else getattr(opts, "rootRank", default)
    return 0 if value is None else value


def _op(opts: Any) -> Any:
    if opts is None:
        return dist.ReduceOp.SUM
    return getattr(opts, "reduceOp", opts)


class ProcessGroup(dist.ProcessGroup):
    """One group of ranks on the CPU.

    Contiguous tensors are used where they are; of others there are copies. A call starts at once and runs behind the calls that
    this rank has made before; its work's ``wait`` returns when it has ended.
    """

    # Calls of send and receive need no group to run at the same time.
    supports_coalescing = False
    supports_splitting = True

    @classmethod
    def _create(cls, store: dist.Store, rank: int, size: int, timeout: timedelta) -> ProcessGroup:
        """What torch calls to make a group: all ranks come to its store."""
        if rank == 0:
            unique_id = _ferroccl.unique_id()
            if size > 1:
                store.set("ferroccl/id", unique_id.hex())
        else:
            unique_id = bytes.fromhex(store.get("ferroccl/id").decode())
        settings = (seconds(timeout), None, None)
        comm = _ferroccl.Communicator.init_rank(size, unique_id, rank, settings)
        return cls(comm, store, timeout)

    def __init__(self, comm: _ferroccl.Communicator, store: dist.Store, timeout: timedelta) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm = comm
        self._store = store
        self._timeout = timeout
        self._rank, self._size = comm.rank, comm.size
        self._pending = Pending()
        self._messages = Messages(comm, store, timeout)
        self._lock = threading.RLock()
        self._name = self._desc = ""

    # What the group is.

    def getBackendName(self) -> str:
        return "ferroccl"

    def name(self) -> str:
        return "ferroccl"

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def getRank(self) -> int:
        return self._rank

    def getSize(self) -> int:
        return self._size

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc

    def get_group_store(self) -> dist.Store:
        return self._store

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"the backend ferroccl has no tensors of {device}: it takes those of the CPU")
        return self

    get_backend = _get_backend

    def set_timeout(self, timeout: timedelta) -> None:
        """Of sends and receives from now on; that of collective calls is set when the group is made."""
        self._messages.timeout = timeout

    def __repr__(self) -> str:
        return f"<ferroccl.torch.ProcessGroup {self._name!r} rank {self._rank} of {self._size}>"

    # Reductions.

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        first = tensors if isinstance(tensors, torch.Tensor) else tensors[0] if len(tensors) == 1 else None
        if first is not None and first.layout is torch.sparse_coo and first.device.type == "cpu":
            with self._lock:
                return self._reduce_sparse(first, _op(opts))
        tensor = one("tensors", tensors)
        with self._lock:
            return self._reduce_in_place([tensor], _op(opts), "all_reduce", None)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        for tensor in tensors:
            check("tensors", tensor)
        with self._lock:
            return self._reduce_in_place(list(tensors), _op(opts), "all_reduce", None)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Work:
        tensor = one("tensors", tensors)
        root = self._rank_of("root", _root(opts))
        with self._lock:
            op = op if op is not None else (None if isinstance(opts, int) else opts)
            return self._reduce_in_place([tensor], _op(op), "reduce", root)

    def _reduce_in_place(self, tensors: list[torch.Tensor], op: Any, what: str, root: int | None) -> Work:
        self._pending.copied()
        outputs = Outputs()
        calls: list[Any] = []
        result = root is None or root == self._rank

        def start(tensor: torch.Tensor) -> None:
            operator = Operator(op, tensor.dtype)
            if operator.bitwise is not None:
                self._pending.settle()
                rows = torch.empty((self._size, *tensor.shape), dtype=tensor.dtype)
                calls.append(self._comm.all_gather(memory(readable(tensor)), memory(rows)))
                if result:
                    outputs.later(lambda: tensor.detach().copy_(operator.combine(rows)))
                return
            wide = WIDENED.get(tensor.dtype)
            if wide is not None or not tensor.is_contiguous():
                self._pending.settle()
            if wide is not None:
                used = tensor.detach().to(wide).contiguous()
                if result:
                    outputs.later(lambda: tensor.detach().copy_(used))
            elif result:
                used = outputs.writable(tensor, keep=True)
            else:
                used = readable(tensor)
            place = memory(used)
            if root is None:
                calls.append(self._comm.all_reduce(place, place, operator.name, operator.factor))
            else:
                calls.append(self._comm.reduce(place, place, operator.name, operator.factor, root))

        if len(tensors) == 1:
            start(tensors[0])
        else:
            with _together():
                for tensor in tensors:
                    start(tensor)
        return self._work(calls, tensors, outputs, what)

    def _reduce_sparse(self, tensor: torch.Tensor, op: Any) -> Work:
        """The sum of sparse tensors: their elements are gathered, of as many as the rank has that has most."""
        if Operator(op, tensor.dtype).name != "sum":
            raise TypeError(f"op: sparse tensors can be summed, not reduced by {op}")
        self._pending.settle()
        own = tensor.detach().coalesce()
        counts = torch.empty(self._size, dtype=torch.int64)
        count = torch.tensor([own._nnz()])
        self._comm.all_gather(memory(count), memory(counts)).wait()
        most = int(counts.max())
        indices = torch.zeros((most, own.sparse_dim()), dtype=torch.int64)
        values = torch.zeros((most, *own.values().shape[1:]), dtype=own.dtype)
        indices[: own._nnz()], values[: own._nnz()] = own.indices().t(), own.values()
        all_indices = indices.new_empty((self._size, *indices.shape))
        all_values = values.new_empty((self._size, *values.shape))
        with _together():
            calls = [
                self._comm.all_gather(memory(indices), memory(all_indices)),
                self._comm.all_gather(memory(values), memory(all_values)),
            ]

        def add() -> None:
            rows = [slice(0, n) for n in counts.tolist()]
            where = torch.cat([i[row] for i, row in zip(all_indices, rows, strict=True)])
            what = torch.cat([v[row] for v, row in zip(all_values, rows, strict=True)])
            total = torch.sparse_coo_tensor(where.t(), what, own.shape, check_invariants=False).coalesce()
            tensor.copy_(total)  # not by `detach`, which has a size of its own

        outputs = Outputs()
        outputs.later(add)
        return self._work(calls, [tensor], outputs, "all_reduce")

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        check("output", output)
        check("input", input)
        if input.numel() != output.numel() * self._size:
            raise ValueError(
                f"input: it has {input.numel()} elements, and output {output.numel()} for each of {self._size} ranks"
            )
        same_type("input", [input], output, "output")
        with self._lock:
            return self._reduce_scatter([(output, input)], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        for output, input in zip(outputs, inputs, strict=True):
            check("outputs", output)
            check("inputs", input)
            if input.numel() != output.numel() * self._size:
                raise ValueError(
                    f"inputs: one has {input.numel()} elements, and its output {output.numel()} for each of "
                    f"{self._size} ranks"
                )
            same_type("inputs", [input], output, "its output")
        with self._lock:
            return self._reduce_scatter(list(zip(outputs, inputs, strict=True)), opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        output = one("outputs", outputs)
        blocks = self._blocks("inputs", inputs)
        same_type("inputs", blocks, output, "output")
        if all(block.numel() == output.numel() for block in blocks):
            with self._lock:
                self._pending.copied()
                place = adjoining(blocks)
                if place is None:
                    self._pending.settle()
                    joined = torch.cat([block.detach().reshape(-1) for block in blocks])
                else:
                    joined = place
                return self._reduce_scatter([(output, joined)], opts)
        # Blocks of different sizes: a reduction to each rank.
        own = blocks[self._rank]
        if own.numel() != output.numel():
            raise ValueError(f"outputs: it has {output.numel()} elements, and this rank's block has {own.numel()}")
        operator = Operator(_op(opts), output.dtype)
        if operator.bitwise is not None or output.dtype in WIDENED:
            raise TypeError(f"inputs: blocks of different sizes cannot be reduced by {operator.name} as {output.dtype}")
        with self._lock:
            self._pending.settle()
            copies, calls = Outputs(), []
            target = copies.writable(output)
            with _together():
                for root, block in enumerate(blocks):
                    place = memory(target) if root == self._rank else None
                    calls.append(
                        self._comm.reduce(memory(readable(block)), place, operator.name, operator.factor, root)
                    )
            return self._work(calls, [output], copies, "reduce_scatter")

    def _reduce_scatter(self, pairs: list[tuple[torch.Tensor, Any]], opts: Any) -> Work:
        self._pending.copied()
        outputs, calls = Outputs(), []

        def start(output: torch.Tensor, input: Any) -> None:
            operator = Operator(_op(opts), output.dtype)
            wide = WIDENED.get(output.dtype)
            if isinstance(input, tuple) and (operator.bitwise is not None or wide is not None):
                input = torch.cat([block.detach().reshape(-1) for block in input[3]])
            if operator.bitwise is not None:
                # Every rank's block for this one.
                self._pending.settle()
                rows = torch.empty((self._size, *output.shape), dtype=output.dtype)
                calls.append(self._comm.all_to_all(memory(readable(input)), memory(rows)))
                outputs.later(lambda: output.detach().copy_(operator.combine(rows)))
                return
            if wide is not None:
                self._pending.settle()
                used = torch.empty(output.shape, dtype=wide)
                outputs.later(lambda: output.detach().copy_(used))
                place = memory(input.detach().to(wide).contiguous())
            else:
                if not isinstance(input, tuple) and not input.is_contiguous():
                    self._pending.settle()
                used = outputs.writable(output)
                place = input if isinstance(input, tuple) else memory(readable(input))
            calls.append(self._comm.reduce_scatter(place, memory(used), operator.name, operator.factor))

        if len(pairs) == 1:
            start(*pairs[0])
        else:
            with _together():
                for pair in pairs:
                    start(*pair)
        return self._work(calls, [output for output, _ in pairs], outputs, "reduce_scatter")

    # Moves.

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        tensor = one("tensors", tensors)
        root = self._rank_of("root", _root(opts))
        with self._lock:
            self._pending.copied()
            outputs = Outputs()
            if not tensor.is_contiguous():
                self._pending.settle()
            used = readable(tensor) if root == self._rank else outputs.writable(tensor)
            call = self._comm.broadcast(memory(used), root)
            return self._work([call], [tensor], outputs, "broadcast")

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        pairs = list(zip(outputs, inputs, strict=True))
        for output, input in pairs:
            check("output", output)
            check("input", input)
            same_type("output", [output], input, "input")
            if output.numel() != input.numel() * self._size:
                raise ValueError(
                    f"output: it has {output.numel()} elements, and input {input.numel()} for each of {self._size} ranks"
                )
        with self._lock:
            self._pending.copied()
            copies, calls = Outputs(), []

            def start(output: torch.Tensor, input: torch.Tensor) -> None:
                if not input.is_contiguous():
                    self._pending.settle()
                calls.append(self._comm.all_gather(memory(readable(input)), memory(copies.writable(output))))

            if len(pairs) == 1:
                start(*pairs[0])
            else:
                with _together():
                    for pair in pairs:
                        start(*pair)
            return self._work(calls, list(outputs), copies, "all_gather")

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        input = one("inputs", inputs)
        blocks = self._blocks("outputs", outputs)
        same_type("outputs", blocks, input, "input")
        with self._lock:
            self._pending.copied()
            copies, calls = Outputs(), []
            if not input.is_contiguous():
                self._pending.settle()
            self._start_gather(blocks, input, copies, calls)
            return self._work(calls, blocks, copies, "all_gather")

    def _start_gather(
        self, blocks: list[torch.Tensor], input: torch.Tensor, copies: Outputs, calls: list[Any]
    ) -> None:
        own = memory(readable(input))
        if all(block.numel() == input.numel() for block in blocks):
            place = adjoining(blocks)
            if place is None:
                rows = torch.empty((self._size, input.numel()), dtype=input.dtype)
                place = memory(rows)
                for block, row in zip(blocks, rows, strict=True):
                    copies.later(lambda b=block.detach(), r=row: b.copy_(r.view(b.shape)))
            calls.append(self._comm.all_gather(own, place))
            return
        # Blocks of different sizes: a broadcast from each rank.
        if blocks[self._rank].numel() != input.numel():
            raise ValueError(
                f"outputs[{self._rank}]: it has {blocks[self._rank].numel()} elements, and input has {input.numel()}"
            )
        with _together():
            for root, block in enumerate(blocks):
                if root == self._rank:
                    calls.append(self._comm.broadcast(own, root))
                    copies.later(lambda b=block.detach(): b.copy_(input.detach().view(b.shape)))
                else:
                    calls.append(self._comm.broadcast(memory(copies.writable(block)), root))

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        # `outputs[r][i]` is what rank `r` has as `inputs[i]`.
        if len(outputs) != self._size:
            raise ValueError(f"outputs: it has {len(outputs)} lists, and there are {self._size} ranks")
        with self._lock:
            self._pending.settle()
            copies, calls = Outputs(), []
            with _together():
                for i, input in enumerate(inputs):
                    blocks = [check("outputs", row[i]) for row in outputs]
                    same_type("outputs", blocks, check("inputs", input), f"inputs[{i}]")
                    self._start_gather(blocks, input, copies, calls)
            return self._work(calls, [t for row in outputs for t in row], copies, "all_gather")

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        input = one("inputs", inputs)
        root = self._rank_of("root", _root(opts))
        blocks: list[torch.Tensor] = []
        if root == self._rank:
            blocks = self._blocks("outputs", outputs)
            same_type("outputs", blocks, input, "input")
            same_size("outputs", blocks, input, "input")
        elif any(len(row) for row in outputs):
            raise ValueError("outputs: only the root has any")
        with self._lock:
            self._pending.copied()
            if not input.is_contiguous():
                self._pending.settle()
            copies, calls = Outputs(), []
            own = memory(readable(input))
            with _together():
                for peer, block in enumerate(blocks):
                    calls.append(self._comm.recv(memory(copies.writable(block)), peer))
                calls.append(self._comm.send(own, root))
            return self._work(calls, blocks, copies, "gather")

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        root = self._rank_of("root", _root(opts))
        blocks = list(output.chunk(self._size)) if root == self._rank else []
        return self.gather([blocks] if blocks else [], [input], opts)

    gather_into_tensor = gather_single

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        output = one("outputs", outputs)
        root = self._rank_of("root", _root(opts))
        blocks: list[torch.Tensor] = []
        if root == self._rank:
            blocks = self._blocks("inputs", inputs)
            same_type("inputs", blocks, output, "output")
            same_size("inputs", blocks, output, "output")
        elif any(len(row) for row in inputs):
            raise ValueError("inputs: only the root has any")
        with self._lock:
            self._pending.copied()
            if not all(block.is_contiguous() for block in blocks):
                self._pending.settle()
            copies, calls = Outputs(), []
            places = [memory(readable(block)) for block in blocks]
            with _together():
                for peer, place in enumerate(places):
                    calls.append(self._comm.send(place, peer))
                calls.append(self._comm.recv(memory(copies.writable(output)), root))
            return self._work(calls, [output], copies, "scatter")

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
    ) -> Work:
        check("output", output)
        check("input", input)
        same_type("output", [output], input, "input")
        equal = not output_split_sizes and not input_split_sizes
        if equal and output.numel() != input.numel():
            raise ValueError(f"output: it has {output.numel()} elements, and input has {input.numel()}")
        sent = self._counts("input_split_sizes", input_split_sizes, input, "input")
        received = self._counts("output_split_sizes", output_split_sizes, output, "output")
        with self._lock:
            self._pending.copied()
            if not input.is_contiguous():
                self._pending.settle()
            copies = Outputs()
            places = memory(readable(input)), memory(copies.writable(output))
            if equal:
                call = self._comm.all_to_all(*places)
            else:
                call = self._comm.all_to_all_v(*places, sent, received)
            return self._work([call], [output], copies, "all_to_all")

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None) -> Work:
        outputs, inputs = self._blocks("outputs", [outputs]), self._blocks("inputs", [inputs])
        with self._lock:
            self._pending.copied()
            if not all(input.is_contiguous() for input in inputs):
                self._pending.settle()
            copies, calls = Outputs(), []
            sent = [memory(readable(input)) for input in inputs]
            with _together():
                for peer, (output, place) in enumerate(zip(outputs, sent, strict=True)):
                    calls.append(self._comm.send(place, peer))
                    calls.append(self._comm.recv(memory(copies.writable(output)), peer))
            return self._work(calls, list(outputs), copies, "all_to_all")

    def barrier(self, opts: Any = None, timeout: Any = None) -> Work:
        with self._lock:
            return self._work([self._comm.barrier()], [], None, "barrier")

    # Messages.

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Work:
        return self._messages.send(one("tensors", tensors), self._rank_of("dst", dst), tag, self._pending)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Work:
        return self._messages.recv(one("tensors", tensors), self._rank_of("src", src), tag, self._pending)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        return self._messages.recv(one("tensors", tensors), None, tag, self._pending)

    recvAnysource = recv_anysource

    # Groups of calls, as callers mark them. Each call has started already, and messages do not wait for each other.

    def _start_coalescing(self, device: torch.device) -> None:
        self._get_backend(device)

    def _end_coalescing(self, device: torch.device) -> Work:
        with self._lock:
            return Work(self._pending._last, [], None, "calls that were coalesced")

    start_coalescing = _start_coalescing
    end_coalescing = _end_coalescing

    # The group's own.

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> ProcessGroup | None:
        """A group of some of the ranks; all ranks call it, each with the list that it is in."""
        ranks = [self._rank_of("new_ranks", rank) for rank in new_ranks]
        inside = self._rank in ranks
        timeout = timeout or self._timeout
        with self._lock:
            settings = (seconds(timeout), None, None)
            color = min(ranks) if inside else None
            comm = self._comm.split(color, ranks.index(self._rank) if inside else 0, settings)
        if comm is None:
            return None
        name = group_name or f"{self._name}/split/{'-'.join(map(str, ranks))}"
        group = type(self)(comm, dist.PrefixStore(f"{name}/", self._store), timeout)
        group.setGroupName(name)
        group.setGroupDesc(group_desc or "")
        return group

    splitGroup = split_group

    def abort(self) -> None:
        """Ends all calls, on all ranks, with an error."""
        self._comm.abort()
        self._messages.abort()

    def shutdown(self) -> None:
        """Waits for the calls, and lets go of what the group has."""
        try:
            self._messages.close()
            self._comm.close()
        except _ferroccl.Error:
            pass  # whoever has waited for the call has it

    # Parts of the above.

    def _work(self, calls: list[Any], result: list[torch.Tensor], outputs: Outputs | None, what: str) -> Work:
        # Calls of one group end together, and all others in their order.
        work = Work(calls[-1] if calls else None, result, outputs or None, what)
        self._pending.add(work)
        return work

    def _rank_of(self, name: str, rank: int) -> int:
        if not 0 <= rank < self._size:
            raise ValueError(f"{name}: {rank} is none of the {self._size} ranks")
        return rank

    def _blocks(self, name: str, lists: Any) -> list[torch.Tensor]:
        """The list of a list of one, or a list of tensors: one for each rank."""
        blocks = list(lists)
        if blocks and not isinstance(blocks[0], torch.Tensor):
            if len(blocks) != 1:
                raise ValueError(f"{name}: it has {len(blocks)} lists, and a rank has one")
            blocks = list(blocks[0])
        if len(blocks) != self._size:
            raise ValueError(f"{name}: it has {len(blocks)} tensors, and there are {self._size} ranks")
        return [check(f"{name}[{i}]", block) for i, block in enumerate(blocks)]

    def _counts(self, name: str, splits: Sequence[int] | None, tensor: torch.Tensor, of: str) -> list[int]:
        """Elements for each rank, of splits that count along the first dimension."""
        rows = tensor.size(0) if tensor.dim() else 1
        if not splits:
            if rows % self._size:
                raise ValueError(f"{of}: its first dimension is {rows}, no multiple of {self._size} ranks")
            return [tensor.numel() // self._size] * self._size
        if len(splits) != self._size:
            raise ValueError(f"{name}: it has {len(splits)} sizes, and there are {self._size} ranks")
        if sum(splits) != rows or min(splits) < 0:
            raise ValueError(f"{name}: they make {sum(splits)}, and {of}'s first dimension is {rows}")
        each = tensor.numel() // rows if rows else 0
        return [split * each for split in splits]
