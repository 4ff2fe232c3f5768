"""Jobs of torch's as a whole: torchrun, Ctrl-C, a rank that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

import ferroccl  # noqa: E402
from conftest import torch_job  # noqa: E402

TRAIN = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import ferroccl.torch

dist.init_process_group("ferroccl")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.ReLU(), torch.nn.Linear(10, 5)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(3):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(torch.randn(20, 10)), torch.randn(20, 5)).backward()
    optimizer.step()
total = sum(p.sum() for p in model.parameters()).detach()
rows = [torch.empty(()) for _ in range(dist.get_world_size())]
dist.all_gather(rows, total)
assert all(row == total for row in rows)
print("rank", dist.get_rank(), "of", dist.get_world_size(), dist.get_backend(), flush=True)
dist.destroy_process_group()
"""


def test_torchrun_trains(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    found = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    assert found == [f"rank {r} of 4 ferroccl" for r in range(4)]


WAITING = """
import sys, torch, torch.distributed as dist, ferroccl.torch
rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("ferroccl", store=dist.FileStore(path, 2), rank=rank, world_size=2)
print("waits", flush=True)
try:
    if rank == 1:
        {wait}
    else:
        sys.stdin.read()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(7)
"""
WAITS = {
    "a call": "dist.all_reduce(torch.ones(3))",
    "a message": "dist.recv(torch.ones(3), 0)",
    "a work": "dist.barrier(async_op=True).wait()",
}


@pytest.mark.parametrize("where", WAITS)
def test_ctrl_c_interrupts(where, tmp_path):
    code = WAITING.format(wait=WAITS[where])
    start = lambda rank: subprocess.Popen(  # noqa: E731
        [sys.executable, "-c", code, str(rank), str(tmp_path / "store")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ranks = [start(0), start(1)]
    for process in ranks:
        assert process.stdout.readline() == "waits\n", process.stderr.read()
    time.sleep(0.5)
    ranks[1].send_signal(signal.SIGINT)
    out, err = ranks[1].communicate(timeout=30)
    assert (out, ranks[1].returncode) == ("interrupted\n", 7), err
    _, err = ranks[0].communicate("", timeout=30)
    assert ranks[0].returncode == 0, err


def own_pid(gloo):
    return os.getpid()


def until_it_fails(gloo, what):
    from torch.nn.parallel import DistributedDataParallel

    try:
        if what == "ddp":
            model = DistributedDataParallel(torch.nn.Linear(50, 50))
            for _ in range(100_000):
                model(torch.ones(4, 50)).sum().backward()
        elif what == "message":
            if dist.get_rank() == 1:
                time.sleep(100)
            dist.recv(torch.empty(3), 1)
        elif what == "future":
            if dist.get_rank() == 1:
                time.sleep(100)
            future = dist.all_reduce(torch.ones(10), async_op=True).get_future()
            assert not future.done()
            future.wait()
            return "no exception", "", None
        else:
            for _ in range(100_000):
                dist.all_reduce(torch.ones(10))
    except BaseException as error:
        return type(error).__name__, str(error), getattr(error, "ranks", None)
    return None


@pytest.mark.parametrize("what", ["call", "ddp", "future", "message"])
def test_a_killed_rank_is_an_exception_on_the_others(what):
    job = torch_job(3)
    pids = job.run(own_pid)
    for rank in range(3):
        job.tell(rank, until_it_fails, what)
    time.sleep(1.5)
    os.kill(pids[1], signal.SIGKILL)
    for kind, text, ranks in job.answers([0, 2], limit=60):
        assert "lost" in text or "rank 1" in text, (kind, text)
        if what == "call":
            assert kind == "Error" and ranks == [1]
    job.kill()


def abort_and_go_on(gloo):
    group = dist.new_group()
    if dist.get_rank() == 0:
        work = dist.barrier(group, async_op=True)
        assert not work.is_completed()
        group.abort()
        try:
            work.wait()
        except ferroccl.Error as error:
            assert not work.is_success() and work.exception() is error
            text = str(error)
    else:
        try:
            time.sleep(0.5)
            dist.barrier(group)
        except ferroccl.Error as error:
            text = str(error)
    # The world is as it was.
    t = torch.ones(1)
    dist.all_reduce(t)
    return text, t.item()


def test_an_aborted_group_fails_and_others_go_on():
    job = torch_job(2)
    for text, total in job.run(abort_and_go_on):
        assert "abort" in text and total == 2.0
    job.end()


def wait_for_a_second(gloo):
    from datetime import timedelta

    if dist.get_rank() == 0:
        time.sleep(2.5)
        dist.barrier()
        return ""
    work = dist.barrier(async_op=True)
    with pytest.raises(ferroccl.Error, match="timeout: barrier has not ended within 1.0 s") as raised:
        work.wait(timedelta(seconds=1))
    work.wait()
    return str(raised.value)


def test_a_wait_has_a_limit_and_the_call_goes_on():
    job = torch_job(2)
    job.run(wait_for_a_second)
    job.end()
