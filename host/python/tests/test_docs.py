"""What the documents show runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import launcher

ROOT = Path(__file__).parents[3]


def blocks(path):
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), re.S)


@pytest.mark.parametrize("path", ["docs/python.md", "host/python/README.md"])
def test_the_numpy_example_runs(path):
    code = next(block for block in blocks(path) if "ferroccl.Communicator()" in block)
    code += "\nassert x[0] == 4 * 6.0 or x[0] == 6.0, x\ncomm.barrier()"
    command = [launcher(), "run", "-n", "4", "--", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", ["docs/python.md", "docs/first-steps.md", "host/python/README.md"])
def test_every_block_is_python(path):
    for code in blocks(path):
        compile(code, path, "exec")


def test_the_first_example_runs():
    command = [launcher(), "run", "-n", "4", "--", sys.executable, str(ROOT / "examples/all_reduce.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 4: 1 + ... + 4 = 10" for rank in range(4)]


def test_the_mpi4py_example_runs():
    pytest.importorskip("mpi4py")
    import shutil

    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun: apt install openmpi-bin")
    code = "import ferroccl\n" + next(block for block in blocks("docs/python.md") if "mpi4py" in block)
    code += "\nimport numpy as np\nassert comm.all_reduce(np.ones(1))[0] == 2\ncomm.close()"
    env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = ["mpirun", "--oversubscribe", "-n", "2", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert done.returncode == 0, done.stderr
