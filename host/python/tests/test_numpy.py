"""Calls on NumPy arrays, and on whatever else has a buffer."""

from __future__ import annotations

import array

import numpy as np
import pytest

import ferroccl

INTEGERS = ["int8", "uint8", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "float32", "float64"]
OPERATORS = {
    "sum": lambda rows: rows.sum(0, dtype=rows.dtype),
    "prod": lambda rows: rows.prod(0, dtype=rows.dtype),
    "min": lambda rows: rows.min(0),
    "max": lambda rows: rows.max(0),
}


def values(rank, n, dtype):
    """What a rank gives: small whole numbers, of which every sum and product is exact."""
    rng = np.random.default_rng(rank + 1)
    if dtype == "bool":
        return rng.integers(0, 2, n).astype(bool)
    if dtype.startswith("complex"):
        return (rng.integers(-3, 4, n) + 1j * rng.integers(-3, 4, n)).astype(dtype)
    return rng.integers(0 if dtype.startswith("u") else -3, 4, n).astype(dtype)


def all_values(size, n, dtype):
    return np.stack([values(rank, n, dtype) for rank in range(size)])


def check_reductions(comm, dtype, op):
    for n in (0, 1, 7, 1000, 70_000):
        rows = all_values(comm.size, n * comm.size, dtype)
        mine = values(comm.rank, n * comm.size, dtype)
        want = OPERATORS[op](rows)
        out = np.empty_like(mine)
        assert comm.all_reduce(mine, out, op) is out
        np.testing.assert_array_equal(out, want)
        block = np.empty(n, dtype)
        assert comm.reduce_scatter(mine, block, op) is block
        np.testing.assert_array_equal(block, want[n * comm.rank : n * (comm.rank + 1)])
        for root in range(comm.size):
            got = comm.reduce(mine, np.empty_like(mine), op, root)
            assert (got is not None) == (comm.rank == root)
            if got is not None:
                np.testing.assert_array_equal(got, want)
        assert comm.all_reduce(mine, op=op) is mine  # in place
        np.testing.assert_array_equal(mine, want)


@pytest.mark.parametrize("op", OPERATORS)
def test_reductions_are_numpys(ranks, op):
    for dtype in INTEGERS + FLOATS:
        ranks.run(check_reductions, dtype, op)


def check_other_operators(comm):
    mine = np.full(5, 10.0 * (comm.rank + 1), np.float64)
    mean = sum(10.0 * (r + 1) for r in range(comm.size)) / comm.size
    np.testing.assert_allclose(comm.all_reduce(mine.copy(), op="avg"), mean)
    factor = comm.rank + 0.5
    want = sum(10.0 * (r + 1) * (r + 0.5) for r in range(comm.size))
    np.testing.assert_allclose(comm.all_reduce(mine.copy(), op="mulsum", factor=factor), want)
    for dtype in ("complex64", "complex128"):
        rows = all_values(comm.size, 100, dtype)
        np.testing.assert_array_equal(comm.all_reduce(values(comm.rank, 100, dtype)), rows.sum(0))
    rows = all_values(comm.size, 100, "bool")
    for op, want in (("sum", rows.any(0)), ("max", rows.any(0)), ("prod", rows.all(0)), ("min", rows.all(0))):
        got = comm.all_reduce(values(comm.rank, 100, "bool"), op=op)
        # Their bytes: any that is not zero would count as true.
        np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


def test_averages_scaled_sums_complex_numbers_and_booleans_are_reduced(ranks):
    ranks.run(check_other_operators)


def check_moves(comm, dtype):
    size, rank = comm.size, comm.rank
    for n in (0, 1, 9, 20_000):
        rows = all_values(size, n, dtype)
        mine = values(rank, n, dtype)
        np.testing.assert_array_equal(comm.all_gather(mine), rows)
        flat = np.empty(n * size, dtype)
        assert comm.all_gather(mine, flat) is flat
        np.testing.assert_array_equal(flat, rows.ravel())
        for root in range(size):
            got = comm.broadcast(mine.copy() if rank == root else np.zeros(n, dtype), root)
            np.testing.assert_array_equal(got, rows[root])
            got = comm.gather(mine, root=root)
            assert (got is not None) == (rank == root)
            if got is not None:
                np.testing.assert_array_equal(got, rows)
            send = rows + 0 * rows if rank == root else None
            np.testing.assert_array_equal(comm.scatter(send, np.empty(n, dtype), root), rows[rank])
        # Block j of rank i is n elements of i, shifted by j.
        blocks = np.stack([np.roll(mine, j) for j in range(size)])
        got = comm.all_to_all(blocks)
        np.testing.assert_array_equal(got, np.stack([np.roll(row, rank) for row in rows]))


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, "int16", "complex128"])
def test_moves_are_of_every_type(ranks, dtype):
    ranks.run(check_moves, dtype)


def check_records(comm):
    kind = np.dtype([("name", "S5"), ("at", "i8")])
    mine = np.array([(f"r{comm.rank}".encode(), comm.rank)], kind)
    got = comm.all_gather(mine)
    assert [row[0]["name"] for row in got] == [f"r{r}".encode() for r in range(comm.size)]
    with pytest.raises(TypeError, match="cannot be reduced"):
        comm.all_reduce(mine)


def test_elements_of_any_type_are_moved(ranks):
    ranks.run(check_records)


def check_counts(comm):
    size, rank = comm.size, comm.rank
    # Rank i sends i + j elements to rank j.
    sent = [rank + j for j in range(size)]
    received = [i + rank for i in range(size)]
    send = np.concatenate([np.full(n, 10 * rank + j) for j, n in enumerate(sent)]).astype(np.int64)
    recv = np.empty(sum(received), np.int64)
    assert comm.all_to_all(send, recv, sent, received) is recv
    want = np.concatenate([np.full(n, 10 * i + rank) for i, n in enumerate(received)])
    np.testing.assert_array_equal(recv, want)


def test_all_to_all_takes_counts(ranks):
    ranks.run(check_counts)


def check_messages(comm):
    size, rank = comm.size, comm.rank
    for n in (1, 3, 300_000):
        mine, theirs = np.full(n, rank, np.int32), np.empty(n, np.int32)
        with ferroccl.group():
            comm.send(mine, (rank + 1) % size)
            comm.recv(theirs, (rank - 1) % size)
        np.testing.assert_array_equal(theirs, (rank - 1) % size)
    with ferroccl.group():
        own = np.zeros(3)
        comm.send(np.arange(3.0), rank)
        comm.recv(own, rank)
    np.testing.assert_array_equal(own, np.arange(3.0))
    # In their order, and between two ranks without a group.
    for i in range(5):
        if rank == 0:
            comm.send(np.array([i]), 1)
        elif rank == 1:
            assert comm.recv(np.zeros(1, np.int64), 0)[0] == i
    comm.barrier()


def test_messages_arrive_in_order_and_groups_run_at_once(ranks):
    ranks.run(check_messages)


def check_buffers(comm):
    size = comm.size
    a = array.array("d", [comm.rank + 1.0] * 3)
    comm.all_reduce(a)
    assert list(a) == [sum(range(1, size + 1))] * 3
    b = bytearray([comm.rank + 1] * 4)
    comm.all_reduce(memoryview(b)[1:3])
    total = sum(range(1, size + 1))
    assert list(b) == [comm.rank + 1, total, total, comm.rank + 1]
    got = bytearray(2 * size)
    comm.all_gather(bytes([comm.rank, 7]), got)
    assert bytes(got) == b"".join(bytes([r, 7]) for r in range(size))
    # A part of an array, which is contiguous.
    m = np.arange(12, dtype=np.float32).reshape(4, 3)
    comm.all_reduce(m[1:3], op="max")
    np.testing.assert_array_equal(m, np.arange(12).reshape(4, 3))


def test_whatever_has_a_buffer_is_taken(ranks):
    ranks.run(check_buffers)


def check_requests(comm):
    import gc
    import threading
    import time

    x, y = np.full(100_000, 1.0), np.full(3, float(comm.rank))
    first = comm.all_reduce(x, wait=False)
    second = comm.all_gather(y, wait=False)
    assert second.wait().shape == (comm.size, 3)
    assert first.wait() is x and first.test() and x[0] == comm.size
    # Rank 0 comes late: the others' requests are not over, and their threads go on.
    if comm.rank == 0:
        time.sleep(0.6)
        comm.barrier()
    else:
        late = comm.barrier(wait=False)
        with pytest.raises(TimeoutError):
            late.wait(0.05)
        counted = 0
        done = threading.Event()

        def count():
            nonlocal counted
            while not done.is_set():
                counted += 1
                time.sleep(0.001)

        thread = threading.Thread(target=count)
        thread.start()
        late.wait()
        done.set()
        thread.join()
        assert counted > 20, "the GIL was held"
    # Memory that nobody else has is kept until the call has ended.
    requests = [comm.all_reduce(np.full(200_000, float(i)), wait=False) for i in range(4)]
    gc.collect()
    assert [request.wait()[-1] for request in requests] == [i * comm.size for i in range(4)]
    # And a buffer keeps its size.
    if comm.rank == 0:
        time.sleep(0.3)
        comm.barrier()
    else:
        late = comm.barrier(wait=False)
        buffer = bytearray(8)
        call = comm.all_reduce(buffer, wait=False)
        with pytest.raises(BufferError):
            buffer.extend(b"more")
        late.wait()
        call.wait()
    if comm.rank == 0:
        comm.all_reduce(bytearray(8))


def test_calls_run_while_the_program_goes_on(ranks):
    ranks.run(check_requests)


def check_groups(comm):
    rank, size = comm.rank, comm.size
    # What nobody waits for inside is there after it; a group within a group starts with the outer one.
    x, y = np.ones(3), np.ones(4)
    with ferroccl.group():
        request = comm.all_reduce(x)
        with pytest.raises(ValueError, match="group"):
            request.wait()
        with ferroccl.group():
            comm.all_reduce(y)
    assert x[0] == y[0] == size
    # A group that raises starts nothing.
    with pytest.raises(ZeroDivisionError):
        with ferroccl.group():
            comm.all_reduce(x)
            1 / 0  # noqa: B018
    assert x[0] == size
    with ferroccl.group(wait=False) as calls:
        comm.all_reduce(x, op="max")
    calls.wait()
    assert x[0] == size
    # Communicators whose calls come in another order on each rank.
    other = comm.split(0)
    a, b = np.ones(1), np.ones(1)
    with ferroccl.group():
        for c, v in [(comm, a), (other, b)][:: 1 if rank % 2 else -1]:
            c.all_reduce(v)
    assert a[0] == b[0] == size
    other.close()


def test_groups_start_their_calls_together(ranks):
    ranks.run(check_groups)


def check_split(comm):
    half = comm.split(comm.rank % 2, key=-comm.rank)
    assert (half.size, half.rank) == (2, 1 - comm.rank // 2)
    assert half.all_reduce(np.array([comm.rank]))[0] == (2 if comm.rank % 2 == 0 else 4)
    part = comm.split(None if comm.rank == 3 else 0)
    assert (part is None) == (comm.rank == 3)
    if part is not None:
        assert part.size == 3
        with part:
            part.barrier()
        assert repr(part).endswith("closed>")
    half.close()


def test_split_gives_communicators_of_some_ranks(ranks):
    ranks.run(check_split)


def raises(kind, text, call, *values, **named):
    with pytest.raises(kind, match=text):
        call(*values, **named)


def check_arguments(comm):
    a, n = np.zeros(4), comm.size
    raises(ValueError, "send.*C-contiguous", comm.all_reduce, np.zeros((4, 4))[:, 1])
    raises(ValueError, "send.*C-contiguous", comm.all_reduce, np.asfortranarray(np.zeros((2, 2))))
    frozen = np.zeros(4)
    frozen.flags.writeable = False
    raises(ValueError, "recv.*writable", comm.all_reduce, a, frozen)
    raises(ValueError, "recv.*writable", comm.all_reduce, bytes(4))
    raises(TypeError, "send.*list", comm.all_reduce, [1, 2])
    raises(TypeError, "send.*Python objects", comm.all_reduce, np.zeros(2, object))
    raises(TypeError, "float64.*float32", comm.all_reduce, a, np.zeros(4, np.float32))
    raises(TypeError, "send.*order", comm.all_reduce, np.zeros(2, ">f8"))
    raises(ValueError, "recv.*has 3 elements, send has 4", comm.all_reduce, a, np.zeros(3))
    b = np.zeros(6)
    raises(ValueError, "overlaps", comm.all_reduce, b[:4], b[2:])
    raises(ValueError, "op.*median", comm.all_reduce, a, op="median")
    raises(ValueError, "factor", comm.all_reduce, a, op="mulsum")
    raises(ValueError, "factor", comm.all_reduce, a, factor=2.0)
    raises(TypeError, "op.*complex", comm.all_reduce, np.zeros(2, complex), op="max")
    raises(TypeError, "op.*boolean", comm.all_reduce, np.zeros(2, bool), op="avg")
    raises(TypeError, "op.*cannot be reduced", comm.all_reduce, np.zeros(2, np.int16))
    raises(ValueError, "root: 4 is none of the 4 ranks", comm.broadcast, a, 4)
    raises(ValueError, "root: -1", comm.reduce, a, root=-1)
    raises(ValueError, "peer: 9", comm.send, a, 9)
    raises(ValueError, "recv.*for each of 4 ranks", comm.all_gather, a, np.zeros(9))
    raises(ValueError, "send.*for each of 4 ranks", comm.reduce_scatter, np.zeros(9), a)
    raises(ValueError, "send.*no multiple", comm.all_to_all, np.zeros(n + 1))
    raises(ValueError, "recv_counts", comm.all_to_all, a, a, [1] * n)
    raises(ValueError, "send_counts.*has 1 counts", comm.all_to_all, a, np.zeros(4), [1], [1])
    raises(ValueError, "send_counts.*more elements", comm.all_to_all, a, np.zeros(4), [2] * n, [1] * n)
    raises(ValueError, "color: -1", comm.split, -1)
    if comm.rank == 0:
        raises(ValueError, "send.*root needs it", comm.scatter, None, a)
    unaligned = np.frombuffer(bytearray(33), np.uint8)[1:].view(np.float64)
    raises(ValueError, "send.*multiple of 8", comm.all_reduce, unaligned)
    # None of them has done any harm.
    assert comm.all_reduce(np.ones(1))[0] == n


def test_a_wrong_argument_is_named_and_does_no_harm(ranks):
    ranks.run(check_arguments)


def test_one_rank_is_a_group_too():
    with ferroccl.Communicator(0, 1, ferroccl.unique_id()) as comm:
        x = np.arange(5.0)
        np.testing.assert_array_equal(comm.all_reduce(x), np.arange(5))
        np.testing.assert_array_equal(comm.all_gather(x), [np.arange(5)])
        comm.barrier()
    comm.close()  # a second time
    with pytest.raises(ValueError, match="closed"):
        comm.barrier()


def test_a_group_has_ranks_and_an_id():
    for arguments, text in [
        ((0, 0, b""), "nranks: 0"),
        ((2, 2, b""), "rank: 2"),
        ((0, 2, None), "unique_id: it is missing"),
        ((None, 2, b""), "rank: it is missing"),
        ((0, 2, b"x"), "unique_id: it has 1 bytes"),
        ((0, 2, bytes(128)), "unique_id"),
    ]:
        with pytest.raises(ValueError, match=text):
            ferroccl.Communicator(*arguments)
    with pytest.raises(ValueError, match="timeout: -1"):
        ferroccl.Communicator(0, 1, ferroccl.unique_id(), timeout=-1)
