"""The backend of torch.distributed: every call compared with gloo's, and what is built on them."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
TYPES = [*INTEGERS, *FLOATS, torch.bool, torch.complex64, torch.complex128]
SMALL = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.uint16, torch.uint32]
R = dist.ReduceOp


def values(rank, shape, dtype):
    """What a rank gives: small whole numbers, of which every sum and product is exact."""
    g = torch.Generator().manual_seed(rank + 1)
    low = 0 if dtype in (torch.uint8, torch.bool, torch.uint16, torch.uint32) else -2
    v = torch.randint(low, 2 if dtype == torch.bool else 3, shape, generator=g)
    if dtype.is_complex:
        return torch.complex(v.to(torch.float64), v.flip(0).to(torch.float64)).to(dtype)
    return v.to(dtype)


def me():
    return dist.get_rank(), dist.get_world_size()


def same(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape, (a.dtype, b.dtype, a.shape, b.shape)
    assert torch.equal(a.view(torch.uint8) if a.dtype in SMALL[:4] else a, b.view(torch.uint8) if b.dtype in SMALL[:4] else b), (a, b)


def layouts(t):
    """A tensor as others have it: contiguous, transposed, every second element, a part of a larger one."""
    yield t.clone()
    yield t.t().contiguous().t()
    wide = torch.empty((t.shape[0], 2 * t.shape[1]), dtype=t.dtype)
    wide[:, ::2] = t
    yield wide[:, ::2]
    tall = torch.empty((t.shape[0] + 2, t.shape[1]), dtype=t.dtype)
    tall[1:-1] = t
    yield tall[1:-1]


def reference(op, rows):
    """What the ranks' tensors are reduced to."""
    wide = [r.to(torch.int64) if not (r.dtype.is_floating_point or r.dtype.is_complex) else r for r in rows]
    if op == R.SUM:
        total = sum(wide[1:], wide[0])
    elif op == R.PRODUCT:
        total = wide[0]
        for w in wide[1:]:
            total = total * w
    elif op in (R.MIN, R.MAX):
        total = wide[0]
        for w in wide[1:]:
            total = torch.minimum(total, w) if op == R.MIN else torch.maximum(total, w)
    else:
        f = {R.BAND: torch.bitwise_and, R.BOR: torch.bitwise_or, R.BXOR: torch.bitwise_xor}[op]
        total = wide[0]
        for w in wide[1:]:
            total = f(total, w)
    if rows[0].dtype == torch.bool:
        return total.to(torch.bool)
    return total.to(rows[0].dtype)


def check_reductions(gloo, dtype):
    rank, n = me()
    ops = [R.SUM, R.PRODUCT, R.MIN, R.MAX]
    if dtype.is_complex:
        ops = [R.SUM]
    elif not dtype.is_floating_point:
        ops += [R.BAND, R.BOR, R.BXOR]
    for op in ops:
        rows = [values(r, (4 * n, 6), dtype) for r in range(n)]
        want = reference(op, rows)
        for mine in layouts(rows[rank]):
            t = mine
            dist.all_reduce(t, op)
            same(t, want)
        for root in range(n):
            t = rows[rank].clone()
            dist.reduce(t, root, op)
            same(t, want if rank == root else rows[rank])
        if not dtype.is_complex:
            for out in layouts(torch.empty((4, 6), dtype=dtype)):
                dist.reduce_scatter_tensor(out, rows[rank].clone(), op)
                same(out, want[4 * rank : 4 * rank + 4])
                dist.reduce_scatter(out, list(rows[rank].clone().chunk(n)), op)
                same(out, want[4 * rank : 4 * rank + 4])
                dist.reduce_scatter(out, [b.clone() for b in rows[rank].chunk(n)], op)
                same(out, want[4 * rank : 4 * rank + 4])
        if dtype not in (torch.bool, torch.int16) and op in (R.SUM, R.MAX, R.MIN):
            t = rows[rank].clone()
            dist.all_reduce(t, op, group=gloo)
            same(t, want)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_reductions_are_glooss(torch_ranks, dtype):
    torch_ranks.run(check_reductions, dtype)


def check_other_reductions(gloo):
    rank, n = me()
    for dtype in FLOATS:
        t = torch.full((5,), float(rank + 1), dtype=dtype)
        dist.all_reduce(t, R.AVG)
        same(t, torch.full((5,), sum(range(1, n + 1)) / n, dtype=dtype))
    t = torch.full((5,), rank + 1)
    dist.all_reduce(t, R.AVG)
    same(t, torch.full((5,), sum(range(1, n + 1)) // n))
    t = torch.full((5,), float(rank + 1))
    dist.all_reduce(t, dist._make_nccl_premul_sum(0.5 if rank else 2.0))
    same(t, torch.full((5,), 2.0 + sum(0.5 * r for r in range(2, n + 1))))
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        t = torch.full((40,), float(rank + 1)).to(dtype)
        dist.all_reduce(t)
        same(t, torch.full((40,), float(sum(range(1, n + 1)))).to(dtype))
    for dtype in (torch.uint16, torch.uint32, torch.uint64):
        t = torch.full((4,), rank + 1, dtype=torch.int64).to(dtype)
        dist.all_reduce(t)
        same(t, torch.full((4,), sum(range(1, n + 1)), dtype=torch.int64).to(dtype))
    # Several at once.
    ts = [torch.full((3,), float(rank)), torch.full((2, 2), rank, dtype=torch.int64).t(), torch.full((2,), rank).short()]
    work = dist.group.WORLD.allreduce_coalesced(ts)
    work.wait()
    for t in ts:
        assert (t == sum(range(n))).all()
    with dist._coalescing_manager():
        a, b = torch.full((3,), float(rank)), torch.full((4,), float(rank))
        dist.all_reduce(a)
        dist.all_reduce(b)
    assert (a == sum(range(n))).all() and (b == sum(range(n))).all()
    # Blocks of different sizes.
    out = torch.empty(rank + 1)
    dist.reduce_scatter(out, [torch.full((r + 1,), float(rank)) for r in range(n)])
    same(out, torch.full((rank + 1,), float(sum(range(n)))))


def test_averages_scaled_sums_and_small_types_are_reduced(torch_ranks):
    torch_ranks.run(check_other_reductions)


def check_moves(gloo, dtype):
    rank, n = me()
    rows = [values(r, (4, 6), torch.int64).abs().to(dtype) if dtype in SMALL else values(r, (4, 6), dtype) for r in range(n)]

    def empty(*shape):
        return torch.zeros(shape, dtype=torch.uint8).to(dtype)

    for mine in [rows[rank], rows[rank].t().contiguous().t()]:
        out = [empty(4, 6) for _ in range(n)]
        dist.all_gather(out, mine)
        for a, b in zip(out, rows, strict=True):
            same(a, b)
        whole = empty(4 * n, 6)
        dist.all_gather(list(whole.chunk(n)), mine)
        same(whole, torch.cat(rows))
        # In one storage, the other way round.
        dist.all_gather(list(whole.chunk(n))[::-1], mine)
        same(whole, torch.cat(rows[::-1]))
        whole = empty(4 * n, 6)
        dist.all_gather_into_tensor(whole, mine)
        same(whole, torch.cat(rows))
        stacked = empty(n, 4, 6)
        dist.all_gather_into_tensor(stacked, mine)
        same(stacked, torch.stack(rows))
        for root in range(n):
            t = mine if rank == root else empty(6, 4).t()
            dist.broadcast(t, root)
            same(t, rows[root])
            out = [empty(4, 6) for _ in range(n)] if rank == root else None
            dist.gather(mine, out, root)
            for a, b in zip(out or [], rows, strict=False):
                same(a, b)
            t = empty(4, 6)
            dist.scatter(t, [r.clone() for r in rows] if rank == root else None, root)
            same(t, rows[rank])
        out = [empty(4, 6) for _ in range(n)]
        dist.all_to_all(out, [rows[rank].clone() for _ in range(n)])
        for a, b in zip(out, rows, strict=True):
            same(a, b)
        out = empty(4, 6)
        dist.all_to_all_single(out, mine)
        same(out, torch.cat([r[rank : rank + 1] for r in rows]))
        # Rank i sends i + j + 1 rows to rank j.
        sent, received = [rank + j + 1 for j in range(n)], [i + rank + 1 for i in range(n)]
        out = empty(sum(received), 6)
        dist.all_to_all_single(out, mine[:1].expand(sum(sent), 6), received, sent)
        same(out, torch.cat([rows[i][:1].expand(k, 6) for i, k in enumerate(received)]))


@pytest.mark.parametrize("dtype", [*TYPES, *SMALL], ids=str)
def test_moves_are_of_every_type(torch_ranks, dtype):
    torch_ranks.run(check_moves, dtype)


def check_other_moves(gloo):
    rank, n = me()
    # Tensors of different sizes, none at all, one element.
    out = [torch.empty(r) for r in range(n)]
    dist.all_gather(out, torch.full((rank,), float(rank)))
    for r, t in enumerate(out):
        same(t, torch.full((r,), float(r)))
    t = torch.tensor(float(rank))
    dist.all_reduce(t)
    assert t.item() == sum(range(n)) and t.dim() == 0
    empty = torch.empty(0, 3)
    dist.all_reduce(empty)
    dist.broadcast(empty, 0)
    dist.all_gather([torch.empty(0, 3) for _ in range(n)], empty)
    # Several at once.
    outs = [torch.empty(2 * n), torch.empty(3 * n, dtype=torch.int32)]
    ins = [torch.full((2,), float(rank)), torch.full((3,), rank, dtype=torch.int32)]
    dist.group.WORLD.all_gather_single_coalesced(outs, ins).wait()
    same(outs[1], torch.arange(n, dtype=torch.int32).repeat_interleave(3))
    outs = [torch.empty(2), torch.empty(3)]
    ins = [torch.full((2 * n,), float(rank)), torch.full((3 * n,), float(rank))]
    dist.group.WORLD.reduce_scatter_single_coalesced(outs, ins).wait()
    assert all((t == sum(range(n))).all() for t in outs)
    out = [[torch.empty(2), torch.empty(3)] for _ in range(n)]
    dist.group.WORLD.allgather_coalesced(out, [torch.full((2,), float(rank)), torch.full((3,), float(rank))]).wait()
    for r in range(n):
        same(out[r][0], torch.full((2,), float(r)))
        same(out[r][1], torch.full((3,), float(r)))
    # Objects.
    got = [None] * n
    dist.all_gather_object(got, {"rank": rank, "more": "x" * rank})
    assert [g["rank"] for g in got] == list(range(n))
    objects = ["a", {"b": 1}] if rank == 1 else [None, None]
    dist.broadcast_object_list(objects, 1)
    assert objects == ["a", {"b": 1}]
    got = [None]
    dist.scatter_object_list(got, [f"to {r}" for r in range(n)] if rank == 0 else None, 0)
    assert got == [f"to {rank}"]
    dist.barrier()


def test_sizes_may_differ_and_objects_travel(torch_ranks):
    torch_ranks.run(check_other_moves)


def check_messages(gloo):
    rank, n = me()
    right, left = (rank + 1) % n, (rank - 1) % n
    # All send first, and what they send is large.
    for size in (1, 5, 500_000):
        sent = dist.isend(torch.full((size,), float(rank)), right)
        t = torch.empty(size)
        assert dist.recv(t, left) == left
        assert (t == left).all()
        sent.wait()
    # By tag, the other way round.
    if rank == 0:
        for tag in (1, 2, 3):
            dist.send(torch.tensor([float(tag)]), 1, tag=tag)
    elif rank == 1:
        for tag in (3, 1, 2):
            t = torch.empty(1)
            dist.recv(t, 0, tag=tag)
            assert t.item() == tag
    # From whoever.
    if rank == 0:
        found = set()
        for _ in range(2 * (n - 1)):
            t = torch.empty(2, dtype=torch.int64)
            source = dist.recv(t, tag=4)
            assert t[0].item() == source
            found.add((source, t[1].item()))
        assert found == {(r, i) for r in range(1, n) for i in range(2)}
    else:
        for i in range(2):
            dist.send(torch.tensor([rank, i]), 0, tag=4)
    # Rows that do not lie together, a batch, and itself.
    t, u = torch.zeros(4, 4), torch.arange(16.0).view(4, 4)
    ops = [dist.P2POp(dist.isend, u[:, 1] + rank, right), dist.P2POp(dist.irecv, t[:, 2], left)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(t[:, 2], u[:, 1] + left)
    a = dist.isend(torch.ones(3), rank)
    t = torch.zeros(3)
    b = dist.irecv(t, rank)
    a.wait(), b.wait()
    assert t.sum() == 3
    # Of a wrong size.
    if rank == 0:
        dist.send(torch.ones(3), 1, tag=9)
        dist.send(torch.ones(4), 1, tag=9)
    elif rank == 1:
        with pytest.raises(ValueError, match="12 bytes.*16"):
            dist.recv(torch.empty(4), 0, tag=9)
        dist.recv(t := torch.empty(4), 0, tag=9)
        assert t.sum() == 4
    dist.barrier()


def test_messages_have_tags_and_come_from_anywhere(torch_ranks):
    torch_ranks.run(check_messages)


def check_works(gloo):
    rank, n = me()
    x = torch.full((300_000,), 1.0)
    works = [dist.all_reduce(x, async_op=True) for _ in range(3)]
    for work in works:
        assert work.wait()
    assert (x == n**3).all()
    assert all(w.is_completed() and w.is_success() and w.exception() is None for w in works)
    # Those that copy come in order, too.
    y = torch.full((3, 4), 1.0).t()
    first = dist.all_reduce(y, async_op=True)
    second = dist.all_reduce(y, async_op=True)
    second.wait(), first.wait()
    assert (y == n**2).all()
    z = torch.full((5,), 1.0)
    dist.all_reduce(z, async_op=True)
    out = [torch.empty(5) for _ in range(n)]
    dist.all_gather(out, z)
    assert all((t == n).all() for t in out)
    # So do those that read a tensor in a way of their own.
    if rank == 0:
        time.sleep(0.3)
    m = torch.ones(40, 50)
    dist.all_reduce(m, async_op=True)
    out = [torch.empty(50, 40) for _ in range(n)]
    dist.all_gather(out, m.t())
    assert all((t == n).all() for t in out)
    # Futures.
    work = dist.all_reduce(torch.ones(4), async_op=True)
    future = work.get_future()
    assert (future.wait()[0] == n).all()
    assert (dist.all_reduce(t := torch.ones(4).repeat(2)[::2], async_op=True).get_future().then(lambda f: f.value()[0] * 2).wait() == 2 * n).all()
    # Contiguous tensors are used where they are.
    a = torch.ones(1000)
    at = a.data_ptr()
    dist.all_reduce(a)
    assert a.data_ptr() == at


def test_works_end_in_order_and_have_futures(torch_ranks):
    torch_ranks.run(check_works)


def raises(kind, text, call, *values, **named):
    with pytest.raises(kind, match=text):
        call(*values, **named)


def check_arguments(gloo):
    rank, n = me()
    pg = dist.group.WORLD
    t = torch.ones(4)
    raises(TypeError, "sparse", dist.broadcast, torch.eye(3).to_sparse(), 0)
    raises(TypeError, "op.*sparse", dist.all_reduce, torch.eye(3).to_sparse(), R.MAX)
    raises(ValueError, "meta.*CPU", pg.allreduce, [torch.empty(3, device="meta")])
    raises(ValueError, "tensors: it has 2 tensors", pg.broadcast, [t, t])
    raises(TypeError, "op.*BAND.*float32", dist.all_reduce, t, R.BAND)
    raises(TypeError, "op.*AVG of booleans", dist.all_reduce, torch.ones(3, dtype=torch.bool), R.AVG)
    raises(TypeError, "op.*PRODUCT of complex", pg.allreduce, [torch.ones(3, dtype=torch.complex64)], R.PRODUCT)
    raises(TypeError, "op.*fnuz.*moved, not reduced", dist.all_reduce, t.to(torch.float8_e4m3fnuz))
    raises(ValueError, "output: it has 4 elements", dist.all_gather_into_tensor, t.clone(), t)
    raises(ValueError, "input: it has 4 elements", dist.reduce_scatter_tensor, t.clone(), t)
    raises(ValueError, "outputs: it has 1 tensors", pg.allgather, [[t]], [t])
    raises(ValueError, "output: it has 8", dist.all_to_all_single, torch.empty(8), t)
    raises(ValueError, "input: its first dimension", dist.all_to_all_single, torch.empty(n + 1), torch.empty(n + 1))
    raises(ValueError, "input_split_sizes", dist.all_to_all_single, torch.empty(n), torch.empty(n), [1] * n, [2] * n)
    raises(ValueError, "root: 17", pg.broadcast, [t], 17)
    raises(RuntimeError, "cuda", pg._get_backend, torch.device("cuda"))
    assert dist.get_backend() == "ferroccl" and pg.name() == "ferroccl"
    dist.all_reduce(t)
    assert (t == n).all()


def test_what_cannot_be_had_is_said(torch_ranks):
    torch_ranks.run(check_arguments)


def check_groups(gloo):
    rank, n = me()
    half = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    t = torch.tensor([float(rank)])
    dist.all_reduce(t, group=half)
    assert t.item() == (2 if rank % 2 == 0 else 4)
    # Ranks are global ones.
    dist.broadcast(t, 2 + rank % 2, group=half)
    if rank < 2:
        dist.send(torch.tensor([7.0 + rank]), rank + 2, group=half)
    else:
        dist.recv(t, rank - 2, group=half)
        assert t.item() == 5.0 + rank
    with pytest.warns(UserWarning) if rank == 3 else __import__("contextlib").nullcontext():
        part = dist.new_group([0, 1, 2])
        if rank < 3:
            dist.barrier(part)
            dist.destroy_process_group(part)
        else:
            dist.all_reduce(t, group=part)
    split = dist.group.WORLD.split_group([0, 1] if rank < 2 else [3, 2], group_name=f"halves {rank // 2}")
    t = torch.tensor([float(split.rank())])
    split.broadcast([t], 1).wait()
    assert t.item() == 1.0 and split.size() == 2 and split.rank() == (rank if rank < 2 else 3 - rank)
    assert split.group_name == f"halves {rank // 2}"
    split.shutdown()
    dist.destroy_process_group(half)


def test_groups_of_some_ranks_are_made(torch_ranks):
    torch_ranks.run(check_groups)


def check_functional(gloo):
    import torch.distributed._functional_collectives as fc

    rank, n = me()
    got = fc.all_reduce(torch.full((3,), float(rank)), "sum", dist.group.WORLD)
    assert (got == sum(range(n))).all()
    got = fc.all_gather_tensor(torch.full((2,), float(rank)), 0, dist.group.WORLD)
    same(fc.wait_tensor(got), torch.arange(float(n)).repeat_interleave(2))
    got = fc.reduce_scatter_tensor(torch.full((2 * n,), float(rank)), "sum", 0, dist.group.WORLD)
    assert (got == sum(range(n))).all()
    got = fc.all_to_all_single(torch.arange(float(n)) + 10 * rank, None, None, dist.group.WORLD)
    same(fc.wait_tensor(got), torch.tensor([10.0 * r + rank for r in range(n)]))
    got = fc.broadcast(torch.full((2,), float(rank)), 1, dist.group.WORLD)
    assert (got == 1).all()


def test_functional_collectives_run(torch_ranks):
    torch_ranks.run(check_functional)


def check_sparse(gloo):
    rank, n = me()
    dense = [torch.zeros(6, 3).index_fill_(0, torch.arange(r), r + 1.0) for r in range(n)]  # rank 0 has no elements
    t = dense[rank].to_sparse()
    dist.all_reduce(t)
    same(t.to_dense(), sum(dense))
    t = dense[rank].to_sparse(1)  # rows
    work = dist.all_reduce(t, async_op=True)
    same(work.get_future().wait()[0].to_dense(), sum(dense))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Embedding(6, 3, sparse=True))
    model(torch.arange(rank + 1)).sum().backward()
    got = model.module.weight.grad.to_dense()
    same(got, torch.tensor([[(n - i) / n] * 3 if i < n else [0.0] * 3 for i in range(6)]))


def test_sparse_tensors_are_summed(torch_ranks):
    torch_ranks.run(check_sparse)


class Toy(torch.nn.Module):
    """Two linear layers."""

    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(10, 20)
        self.two = torch.nn.Linear(20, 5)

    def forward(self, x):
        return self.two(torch.relu(self.one(x)))


def toy(seed=0):
    torch.manual_seed(seed)
    return Toy()


def batch(rank):
    g = torch.Generator().manual_seed(100 + rank)
    return torch.randint(-4, 5, (8, 10), generator=g).float(), torch.randint(-4, 5, (8, 5), generator=g).float()


def check_ddp(gloo):
    from torch.nn.parallel import DistributedDataParallel

    rank, n = me()
    model = DistributedDataParallel(toy(seed=rank))  # ranks begin with different weights: DDP makes them alike
    single = toy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = torch.optim.SGD(single.parameters(), lr=0.01)
    for _ in range(3):
        x, y = batch(rank)
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        # Of one process: the mean of the ranks' gradients, summed in their order.
        parts = []
        for r in range(n):
            x, y = batch(r)
            single.zero_grad()
            torch.nn.functional.mse_loss(single(x), y).backward()
            parts.append([p.grad.clone() for p in single.parameters()])
        for i, p in enumerate(single.parameters()):
            total = parts[0][i] / n
            for part in parts[1:]:
                total = total + part[i] / n
            p.grad = total
        for a, b in zip(model.parameters(), single.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad) if DETERMINISTIC else torch.allclose(a.grad, b.grad, atol=1e-6)
        optimizer.step()
        steps.step()
    return [p.detach().double().sum().item() for p in model.parameters()]


DETERMINISTIC = __import__("os").environ.get("FERROCCL_DETERMINISTIC") == "1"


def test_ddp_trains_as_one_process_bit_by_bit(monkeypatch):
    from conftest import torch_job

    monkeypatch.setenv("FERROCCL_DETERMINISTIC", "1")
    job = torch_job(4)
    sums = job.run(check_ddp)
    assert all(row == sums[0] for row in sums)
    job.end()


def check_fsdp(gloo):
    from torch.distributed.fsdp import fully_shard

    rank, n = me()
    model, single = toy(), toy()
    for layer in (model.one, model.two):
        fully_shard(layer, mesh=dist.init_device_mesh("cpu", (n,)))
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (n,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = torch.optim.SGD(single.parameters(), lr=0.01)
    for _ in range(3):
        x, y = batch(rank)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        steps.zero_grad()
        for r in range(n):
            x, y = batch(r)
            (torch.nn.functional.mse_loss(single(x), y) / n).backward()
        steps.step()
    for a, b in zip(model.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(a.full_tensor(), b)


def test_fsdp2_trains_as_one_process(torch_ranks):
    torch_ranks.run(check_fsdp)


def check_tensor_parallel(gloo):
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    rank, n = me()
    mesh = dist.init_device_mesh("cpu", (n,))
    model, single = toy(), toy()
    parallelize_module(model, mesh, {"one": ColwiseParallel(), "two": RowwiseParallel()})
    x, y = batch(0)
    torch.nn.functional.mse_loss(model(x), y).backward()
    torch.nn.functional.mse_loss(single(x), y).backward()
    for a, b in zip(model.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(a.grad.full_tensor() if isinstance(a.grad, DTensor) else a.grad, b.grad)
    whole = torch.arange(7.0 * 6).view(7, 6)
    d = distribute_tensor(whole, mesh, [Shard(0)])
    same(d.full_tensor(), whole)
    same(d.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    same(d.redistribute(mesh, [Replicate()]).to_local(), whole)


def test_tensor_parallel_layers_compute_as_one_process(torch_ranks):
    torch_ranks.run(check_tensor_parallel)
