"""Collective communication, in Rust down to the kernels.

Each process is a rank. A launcher starts them (``ferroccl run``, ``torchrun``, ``mpirun``, ``srun``), and every rank makes the
same calls::

    import numpy as np
    import ferroccl

    comm = ferroccl.Communicator()              # the ranks that the launcher has started
    x = np.full(4, comm.rank, dtype=np.float32)
    comm.all_reduce(x)                          # in place: every rank has the sum

``ferroccl.torch`` is a backend of ``torch.distributed``. ``docs/python.md`` has both.
"""

from __future__ import annotations

from ._communicator import Communicator, Group, Request, group
from ._ferroccl import Error, __version__, launcher, unique_id

__all__ = ["Communicator", "Error", "Group", "Request", "__version__", "group", "launcher", "unique_id"]
