"""Collective calls of torch.distributed on CPU tensors: ferroccl beside gloo, in one run.

    python host/python/benches/beside_gloo.py [--ranks 2 4] [--quick]

Each rank is a process. Every size is measured by turns: some calls by gloo, as many by ferroccl, and again, three times; the
median of the three counts. A time is that of one call, of the rank that took longest. Sizes are bytes of the larger buffer.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import ferroccl.torch  # noqa: F401

SIZES = [8, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20, 64 << 20]


def calls(n: int, size: int):
    """What is measured, by name. Elements are floats of 32 bits; at least one for each rank."""
    count = max(size // 4, n)
    count -= count % n
    whole, other, part = torch.ones(count), torch.ones(count), torch.ones(count // n)
    return {
        "all_reduce": lambda g: dist.all_reduce(whole, dist.ReduceOp.MAX, group=g),
        "all_gather": lambda g: dist.all_gather_into_tensor(whole, part, group=g),
        "reduce_scatter": lambda g: dist.reduce_scatter_tensor(part, whole, dist.ReduceOp.MAX, group=g),
        "all_to_all": lambda g: dist.all_to_all_single(other, whole, group=g),
    }


def timed(call, group, seconds: float) -> tuple[float, int]:
    """Seconds of a call, and how many there were."""
    call(group)
    dist.barrier(group)
    start = time.perf_counter()
    call(group)
    once = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    dist.all_reduce(once, dist.ReduceOp.MAX, group=group)
    count = int(min(max(seconds / once.item(), 3), 1000))
    dist.barrier(group)
    start = time.perf_counter()
    for _ in range(count):
        call(group)
    each = torch.tensor([(time.perf_counter() - start) / count], dtype=torch.float64)
    dist.all_reduce(each, dist.ReduceOp.MAX, group=group)
    return each.item(), count


class Transformer(torch.nn.Module):
    """A small one: two layers of width 128, and a vocabulary of 1000."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(1000, 128)
        layer = torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(128, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(x)))


def train(group, steps: int) -> float:
    """Seconds of a step of training, on this rank."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(Transformer(), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    words = torch.randint(0, 1000, (4, 33))
    for step in range(steps + 2):
        if step == 2:
            dist.barrier(group)
            start = time.perf_counter()
        optimizer.zero_grad()
        out = model(words[:, :-1])
        torch.nn.functional.cross_entropy(out.flatten(0, 1), words[:, 1:].flatten()).backward()
        optimizer.step()
    return (time.perf_counter() - start) / steps


def rank(index: int, n: int, path: str, seconds: float, results) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("ferroccl", store=dist.FileStore(path, n), rank=index, world_size=n)
    groups = {"gloo": dist.new_group(backend="gloo"), "ferroccl": dist.group.WORLD}
    for size in SIZES:
        for name, call in calls(n, size).items():
            times = {backend: [] for backend in groups}
            for _ in range(3):
                for backend, group in groups.items():
                    times[backend].append(timed(call, group, seconds)[0])
            if index == 0:
                results.put((name, size, {b: statistics.median(t) for b, t in times.items()}))
    times = {backend: [] for backend in groups}
    for _ in range(3):
        for backend, group in groups.items():
            times[backend].append(train(group, 10))
    if index == 0:
        results.put(("train", 0, {b: statistics.median(t) for b, t in times.items()}))
    dist.destroy_process_group()


def us(seconds: float) -> str:
    value = seconds * 1e6
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--quick", action="store_true", help="a tenth of the time for each size")
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {os.cpu_count()} cores; microseconds of a call")
    for n in arguments.ranks:
        results = mp.get_context("spawn").SimpleQueue()
        path = os.path.join(tempfile.mkdtemp(prefix="ferroccl-bench"), "store")
        mp.spawn(rank, (n, path, 0.03 if arguments.quick else 0.3, results), nprocs=n)
        rows = []
        while not results.empty():
            rows.append(results.get())
        print(f"\n### {n} processes\n")
        for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            print(f"| {name}, bytes | gloo | ferroccl | gloo / ferroccl |\n|---:|---:|---:|---:|")
            for call, size, times in rows:
                if call == name:
                    ratio = times["gloo"] / times["ferroccl"]
                    print(f"| {size} | {us(times['gloo'])} | {us(times['ferroccl'])} | {ratio:.1f} |")
            print()
        times = rows[-1][2]
        print(
            f"A step of a small transformer under DDP: {times['gloo'] * 1e3:.1f} ms by gloo, "
            f"{times['ferroccl'] * 1e3:.1f} ms by ferroccl, {times['gloo'] / times['ferroccl']:.1f} times."
        )


if __name__ == "__main__":
    main()
