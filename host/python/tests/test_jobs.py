"""Jobs as a whole: how they are launched, how they are interrupted, and what the others see of a rank that dies."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import ferroccl
from conftest import Job, launcher, numpy_job

HELLO = """
import numpy as np, ferroccl
comm = ferroccl.Communicator()
x = comm.all_reduce(np.array([comm.rank + 1]))
again = ferroccl.Communicator()
print(f"rank {again.rank} of {again.size}: {x[0]} by {ferroccl.launcher()[0]}", flush=True)
again.close()
comm.close()
"""


def lines(command, **env):
    done = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))


def test_ferroccl_run_starts_ranks():
    found = lines([launcher(), "run", "-n", "3", "--", sys.executable, "-c", HELLO])
    assert found == [f"rank {r} of 3: 6 by ferroccl run" for r in range(3)]


def test_mpirun_starts_ranks():
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("no mpirun: apt install openmpi-bin")
    command = [mpirun, "--oversubscribe", "-n", "2", sys.executable, "-c", HELLO]
    found = lines(command, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    assert [line.split(" by ")[0] for line in found] == ["rank 0 of 2: 3", "rank 1 of 2: 3"]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_torchruns_variables_are_known():
    port = str(free_port())
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", HELLO],
            env={**os.environ, **common, "RANK": str(r), "LOCAL_RANK": str(r)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for r in range(2)
    ]
    found = [process.communicate(timeout=120)[0].strip() for process in ranks]
    assert found == [f"rank {r} of 2: 3 by torchrun" for r in range(2)]


def test_without_a_launcher_there_is_one_rank():
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    code = "import ferroccl; c = ferroccl.Communicator(); print(c, ferroccl.launcher())"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == "<ferroccl.Communicator rank 0 of 1> None\n", done.stderr


# Ctrl-C.

WAITS = {
    "a call": "comm = ferroccl.Communicator(int(sys.argv[1]), 2, bytes.fromhex(sys.argv[2])); tell(); comm.barrier()",
    "the meeting": "tell(); ferroccl.Communicator(int(sys.argv[1]), 2, bytes.fromhex(sys.argv[2]))",
    "a split": "comm = ferroccl.Communicator(int(sys.argv[1]), 2, bytes.fromhex(sys.argv[2])); tell(); comm.split(0)",
}
WAITING = """
import sys, time, ferroccl
def tell(): print("waits", flush=True)
try:
    {wait}
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(7)
"""


@pytest.mark.parametrize("where", WAITS)
def test_ctrl_c_interrupts(where):
    unique_id = ferroccl.unique_id()
    code = WAITING.format(wait=WAITS[where])
    process = subprocess.Popen(
        [sys.executable, "-c", code, "1", unique_id.hex()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    if where == "the meeting":
        comm = None
    else:
        comm = ferroccl.Communicator(0, 2, unique_id)
    assert process.stdout.readline() == "waits\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (out, process.returncode) == ("interrupted\n", 7), err
    if comm is not None:
        # The other rank sees that it is gone, at the latest in the call after the one that the interrupted rank had begun.
        with pytest.raises(ferroccl.Error):
            for _ in range(2):
                comm.barrier()


GHOST = """
import sys, time, ferroccl
try:
    print("waits", flush=True)
    ferroccl.Communicator(1, 2, bytes.fromhex(sys.argv[1]))
except KeyboardInterrupt:
    print("interrupted", flush=True)
    time.sleep(60)
"""


def test_an_interrupted_meeting_is_over(monkeypatch):
    unique_id = ferroccl.unique_id()
    process = subprocess.Popen([sys.executable, "-c", GHOST, unique_id.hex()], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "waits\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    time.sleep(0.2)
    monkeypatch.setenv("FERROCCL_BOOTSTRAP_TIMEOUT", "2")
    with pytest.raises(ferroccl.Error):
        ferroccl.Communicator(0, 2, unique_id)
    process.kill()
    process.wait()


# Failures.


def wait_for_all(comm):
    try:
        for _ in range(100_000):
            comm.all_reduce(np.ones(1000))
    except ferroccl.Error as error:
        return str(error), error.ranks
    return None


def own_pid(comm):
    return os.getpid()


def go_on_without(comm, lost):
    smaller = comm.shrink([lost])
    return smaller.rank, smaller.size, smaller.all_reduce(np.array([1.0]))[0]


def test_a_killed_rank_is_named_and_the_others_go_on():
    job: Job = numpy_job(3)
    pids = job.run(own_pid)
    for rank in range(3):
        job.tell(rank, wait_for_all)
    time.sleep(0.5)
    os.kill(pids[1], signal.SIGKILL)
    for text, ranks in job.answers([0, 2]):
        assert ranks == [1], text
        assert re.search(r"rank 1|lost", text)
    for rank in (0, 2):
        job.tell(rank, go_on_without, 1)
    assert job.answers([0, 2]) == [(0, 2, 2.0), (1, 2, 2.0)]
    job.end()


def calls_differ(comm):
    try:
        comm.all_reduce(np.ones(8 if comm.rank else 9))
    except ferroccl.Error as error:
        return str(error)
    return "nothing"


def test_calls_that_differ_are_an_error_on_every_rank():
    job = numpy_job(2)
    for text in job.run(calls_differ):
        assert "differs between ranks" in text and "8" in text and "9" in text, text
    job.end()


def one_waits(comm):
    import threading

    if comm.rank == 1:
        time.sleep(1.5)
        return "came late"
    threading.Timer(0.3, comm.abort).start()
    started = time.monotonic()
    try:
        comm.barrier()
    except ferroccl.Error as error:
        assert time.monotonic() - started < 1.2
        try:
            comm.check()
        except ferroccl.Error:
            return str(error)
    return "nothing"


def test_a_thread_aborts_what_another_waits_for():
    job = numpy_job(2)
    text, _ = job.run(one_waits)
    assert "abort" in text, text
    job.end()


def too_late(comm):
    if comm.rank == 0:
        time.sleep(3)
        return "came late", []
    try:
        comm.barrier()
    except ferroccl.Error as error:
        return str(error), error.ranks
    return "nothing", []


def test_a_call_waits_no_longer_than_its_timeout():
    job = numpy_job(2, timeout=1.0)
    _, (text, ranks) = job.run(too_late)
    assert ranks == [0] and "timeout" in text, text
    job.end()


def same_bits(comm):
    rng = np.random.default_rng(comm.rank)
    x = rng.standard_normal(10_007).astype(np.float32)
    want = sum((np.random.default_rng(r).standard_normal(10_007).astype(np.float32) for r in range(1, comm.size)),
               np.random.default_rng(0).standard_normal(10_007).astype(np.float32))
    return bool((comm.all_reduce(x) == want).all())


def test_deterministic_sums_are_in_the_order_of_the_ranks():
    job = numpy_job(4, deterministic=True)
    assert job.run(same_bits) == [True] * 4
    job.end()
