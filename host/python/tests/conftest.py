"""Jobs of several processes, which tests give functions to run."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Where a shell has started the tests in the background, interrupts are ignored, and processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

SPAWN = multiprocessing.get_context("spawn")
# How long a job may take for one function: machines are slow, and a job that hangs should say so.
LIMIT = 120


def _serve(pipe: Any, setup: Callable[..., Any], rank: int, size: int, arguments: tuple[Any, ...]) -> None:
    try:
        context = setup(rank, size, *arguments)
        pipe.send((True, None))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
        return
    while (task := pipe.recv()) is not None:
        function, values = task
        try:
            pipe.send((True, function(context, *values)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


class Job:
    """Ranks, a process each, that run one function after the other."""

    def __init__(self, size: int, setup: Callable[..., Any], *arguments: Any) -> None:
        self.size = size
        self.setup, self.arguments = setup, arguments
        self.start()

    def start(self) -> None:
        self.pipes, self.processes = [], []
        # Where the ranks meet; another one for each start.
        folder = tempfile.mkdtemp(prefix="ferroccl-test")
        for rank in range(self.size):
            ours, theirs = SPAWN.Pipe()
            arguments = (theirs, self.setup, rank, self.size, (folder, *self.arguments))
            process = SPAWN.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        self.answers(range(self.size))

    def tell(self, rank: int, function: Callable[..., Any], *values: Any) -> None:
        self.pipes[rank].send((function, values))

    def answers(self, ranks: Any, limit: float = LIMIT) -> list[Any]:
        results, failures = [], []
        for rank in ranks:
            try:
                good, value = self.pipes[rank].recv() if self.pipes[rank].poll(limit) else (False, "it hangs")
            except (EOFError, OSError):
                good, value = False, "its process has ended"
            results.append(value)
            if not good:
                failures.append(f"rank {rank}: {value}")
        if failures:
            self.kill()
            pytest.fail("\n".join(failures), pytrace=False)
        return results

    def run(self, function: Callable[..., Any], *values: Any) -> list[Any]:
        """What the function gives on every rank; it gets what the job was set up with, and the values."""
        if not all(process.is_alive() for process in self.processes):
            self.start()  # an earlier test has ended it
        for rank in range(self.size):
            self.tell(rank, function, *values)
        return self.answers(range(self.size))

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    def end(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            try:
                pipe.send(None)
            except OSError:
                pass
            process.join(20)
            if process.is_alive():
                process.kill()


def numpy_job(size: int, **settings: Any) -> Job:
    return Job(size, numpy_setup, settings)


def numpy_setup(rank: int, size: int, folder: str, settings: dict[str, Any]) -> Any:
    import time

    import ferroccl

    path = Path(folder) / "id"
    if rank == 0:
        part = path.with_suffix(".part")
        part.write_bytes(ferroccl.unique_id())
        part.rename(path)
    while not path.exists():
        time.sleep(0.01)
    return ferroccl.Communicator(rank, size, path.read_bytes(), **settings)


def torch_setup(rank: int, size: int, folder: str) -> Any:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    import ferroccl.torch  # noqa: F401

    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group("ferroccl", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    # What results are compared with.
    return dist.new_group(backend="gloo")


def torch_job(size: int) -> Job:
    pytest.importorskip("torch")
    return Job(size, torch_setup)


@pytest.fixture(scope="session")
def ranks() -> Iterator[Job]:
    """Four ranks with a communicator."""
    job = numpy_job(4)
    yield job
    job.end()


@pytest.fixture(scope="session")
def torch_ranks() -> Iterator[Job]:
    """Four ranks with torch's default group on ferroccl, and one on gloo."""
    job = torch_job(4)
    yield job
    job.end()


def launcher() -> str:
    """The command `ferroccl`, where one is found."""
    found = os.environ.get("FERROCCL_BIN") or shutil.which("ferroccl")
    target = os.environ.get("CARGO_TARGET_DIR") or Path(__file__).parents[3] / "target"
    for kind in ("release", "debug"):
        if not found and (Path(target) / kind / "ferroccl").exists():
            found = str(Path(target) / kind / "ferroccl")
    if not found:
        pytest.skip("no command ferroccl: cargo build --release, or FERROCCL_BIN")
    return found
