"""Runs torch's own tests of torch.distributed on the backend ferroccl, and prints what came of each.

    python host/python/tests/torchs_own.py [--as-gloo] [--ranks 4] [--only TEXT] [--table FILE]

They are `torch.testing._internal.distributed.distributed_test`, which torch ships, unmodified: each test is a job of its own. Those
that need a GPU are left out. Many are for backends that they know by name: with `--as-gloo` they take ferroccl for gloo. `pip install expecttest` has the one package that they need besides.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import sys
import time
import unittest

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--as-gloo", action="store_true", help="run what is written for gloo, on ferroccl")
parser.add_argument("--backend", default="ferroccl", help="another backend, to see what it does")
parser.add_argument("--ranks", type=int, default=4)
parser.add_argument("--only", default="", help="tests whose names contain this")
parser.add_argument("--table", help="write a table of all tests to this file")
arguments = parser.parse_args()
backend = "gloo" if arguments.as_gloo else arguments.backend
os.environ.update(BACKEND=backend, WORLD_SIZE=str(arguments.ranks), TEMP_DIR="/tmp", OMP_NUM_THREADS="1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.testing._internal.common_distributed as common  # noqa: E402

import ferroccl.torch  # noqa: E402, F401

# What they know of backends by name.
for feature in ("ddp", "subgroup"):
    common.DistTestCases.backend_feature[feature].add("ferroccl")
common.TIMEOUT_DEFAULT = 60

from torch.testing._internal.distributed import distributed_test  # noqa: E402

distributed_test.DistTestCases = common.DistTestCases
distributed_test.default_pg_timeout = 30
BASE = distributed_test.DistributedTest._DistTestBase
GPU = re.compile(r"@(skip_if_no_gpu|skip_if_lt_x_gpu|require_n_gpus|requires_nccl|requires_gpu|skip_if_rocm)|_cuda\b|_gpu\b")


class Own(distributed_test.TestDistBackend, BASE):
    @classmethod
    def _run(cls, *values, **named):
        if arguments.as_gloo:
            init = dist.init_process_group
            dist.init_process_group = lambda *v, **n: init(*v, **{**n, "backend": "ferroccl"})
        super()._run(*values, **named)

    def setUp(self):
        super().setUp()
        # Forked, not spawned: importing torch takes longer than most of the tests.
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


def needs_gpu(name: str) -> bool:
    function = inspect.unwrap(getattr(BASE, name))
    try:
        lines = inspect.getsource(function)
    except OSError:
        return False
    head = lines.split("def ", 1)[0]
    return bool(GPU.search(head)) or name.endswith(("_cuda", "_gpu")) or "_cuda_" in name


class Results(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[str, str, str]] = []

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def note(self, test, what: str, why: str = "") -> None:
        name = test.id().rsplit(".", 1)[-1]
        self.rows.append((name, what, why))
        print(f"{what:8} {name} ({time.monotonic() - self.began:.1f} s) {why}", flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, "passes")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, "skips", reason)

    def why(self, error) -> str:
        text = "".join(str(e) for e in error[1].args)
        lines = [line for line in text.splitlines() if re.match(r"[A-Za-z_.]*(Error|Exception|Failure)\b", line)]
        return (lines[0] if lines else text.strip().splitlines()[-1] if text.strip() else error[0].__name__)[:160]

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.note(test, "fails", self.why(error))

    addError = addFailure


def main() -> int:
    names = [name for name in unittest.TestLoader().getTestCaseNames(Own) if arguments.only in name]
    results = Results()
    for name in names:
        if needs_gpu(name):
            results.rows.append((name, "left out", "needs a GPU"))
        else:
            Own(name).run(results)
    counts = {}
    for _, what, _ in results.rows:
        counts[what] = counts.get(what, 0) + 1
    print(", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    if arguments.table:
        with open(arguments.table, "w") as file:
            print("| test | result | why |\n|---|---|---|", file=file)
            for row in sorted(results.rows, key=lambda row: (row[1] != "fails", row[1], row[0])):
                print("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |", file=file)
    return 1 if counts.get("fails") else 0


if __name__ == "__main__":
    sys.exit(main())
