"""Collectives of torch.distributed's backend gloo, timed: what FerroCCL is compared with. It takes a Python that has torch.

    python benches/peers/gloo.py RANKS     requests come as lines of stdin: COLLECTIVE BYTES SECONDS

The figures are those of mpi_collectives.c. Between requests all ranks sleep. A collective that gloo has not is answered with the
reason. Inputs are small integers, and results are compared exactly, before the timed operations and after them.
"""

import itertools
import json
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WARM_UP, MAX_SAMPLES, MAX_LENGTH = 3, 1000, 20000


def element(rank, first, n):
    return (rank + 1) * (torch.arange(first, first + n) % 5 + 1).float()


def prepare(name, count):
    """The call, the tensor that it fills, and what must be in it."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    block, total = count // ranks, ranks * (ranks + 1) // 2
    data, out = element(rank, 0, count), torch.empty(count)
    if name == "all_reduce":
        # In place, as torch has it: the sum of sums would overflow, so each call begins with the input.
        def call():
            out.copy_(data)
            dist.all_reduce(out)

        return call, out, total * element(0, 0, count)
    if name == "reduce":
        # In place as well; only the root's result is one.
        def call():
            out.copy_(data)
            dist.reduce(out, 0)

        return call, out, total * element(0, 0, count) if rank == 0 else None
    if name == "all_gather":
        want = torch.cat([element(r, 0, block) for r in range(ranks)])
        return lambda: dist.all_gather_into_tensor(out, data[:block]), out, want
    if name == "reduce_scatter":
        out = out[:block]
        return lambda: dist.reduce_scatter_tensor(out, data), out, total * element(0, rank * block, block)
    if name == "broadcast":
        out = data if rank == 0 else out
        return lambda: dist.broadcast(out, 0), out, element(0, 0, count)
    if name == "all_to_all":
        want = torch.cat([element(r, rank * block, block) for r in range(ranks)])
        return lambda: dist.all_to_all_single(out, data), out, want
    raise ValueError(f"there is no {name}")


def slowest(seconds):
    mine = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return mine.item()


def batch(call, n):
    dist.barrier()
    start = time.perf_counter()
    for _ in range(n):
        call()
    return slowest(time.perf_counter() - start)


def median(seconds, length, call):
    spans, spent = [], 0.0
    while len(spans) < 3 or (spent < seconds and len(spans) < MAX_SAMPLES):
        spans.append(batch(call, length))
        spent += spans[-1]
    return sorted(spans)[len(spans) // 2] / length * 1e6


def wrong(call, out, want, keeps):
    """Elements of all ranks that are wrong after a call. A root's own data stay as they are."""
    if not keeps:
        out.fill_(float("nan"))
    call()
    count = torch.tensor([0.0 if want is None else float((out != want).sum())])
    dist.all_reduce(count)
    return int(count.item())


def measure(line):
    name, size, seconds = line.split()
    seconds, ranks = float(seconds), dist.get_world_size()
    count = int(size) // 4
    if name in ("all_gather", "reduce_scatter", "all_to_all"):
        count = count // ranks * ranks
    try:
        call, out, want = prepare(name, count)
        keeps = name == "broadcast" and dist.get_rank() == 0
        bad = wrong(call, out, want, keeps)
    except (RuntimeError, ValueError) as error:
        return {"error": str(error).splitlines()[0], "batch_us": 0, "each_us": 0, "wrong": 0}
    batch(call, WARM_UP)
    one = max(batch(call, WARM_UP) / WARM_UP, 1e-7)
    length = min(max(int(seconds / 20 / one), 1), MAX_LENGTH)
    batch_us, each_us = median(seconds, length, call), median(seconds, 1, call)
    return {"batch_us": batch_us, "each_us": each_us, "wrong": bad + wrong(call, out, want, keeps)}


def main(rank, ranks, store, requests):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    while True:
        line = requests[rank].get()
        if not line:
            break
        answer = measure(line)
        if rank == 0:
            print(json.dumps(answer), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks = int(sys.argv[1])
    context = mp.get_context("spawn")
    requests = [context.Queue() for _ in range(ranks)]
    with tempfile.TemporaryDirectory() as directory:
        store = os.path.join(directory, "store")
        processes = mp.spawn(main, (ranks, store, requests), nprocs=ranks, join=False)
        for line in itertools.chain(iter(sys.stdin.readline, ""), [""]):
            for queue in requests:
                queue.put(line)
        processes.join()
