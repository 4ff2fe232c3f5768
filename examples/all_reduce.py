"""The sum of a vector over all ranks: ferroccl run -n 4 -- python examples/all_reduce.py"""

import numpy as np
import ferroccl

comm = ferroccl.Communicator()
x = np.full(1 << 20, comm.rank + 1, dtype=np.float32)
comm.all_reduce(x)
print(f"rank {comm.rank} of {comm.size}: 1 + ... + {comm.size} = {x[0]:g}")
