"""A backend of ``torch.distributed`` for CPU tensors.

Importing this module registers it::

    import torch.distributed as dist
    import ferroccl.torch

    dist.init_process_group("ferroccl")         # started by torchrun, or with a store of one's own

From then on everything that is built on process groups runs on it: ``DistributedDataParallel``, FSDP2, ``DTensor``, functional
collectives, object collectives, ``new_group``.
"""

from __future__ import annotations

import torch.distributed as _dist

from ._process_group import ProcessGroup
from ._work import Work

__all__ = ["ProcessGroup", "Work"]

if "FERROCCL" not in _dist.Backend._plugins:
    _dist.Backend.register_backend("ferroccl", ProcessGroup._create, devices=["cpu"])
