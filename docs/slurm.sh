#!/bin/bash
# A job of 2 hosts with 8 ranks each: sbatch docs/slurm.sh
# Any program of FerroCCL's may stand for `ferroccl perf`: srun's variables say all that its ranks need.
#SBATCH --job-name=ferroccl-perf
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=1
#SBATCH --time=00:10:00
#SBATCH --output=%x-%j.out
# With GPUs, one a rank:
##SBATCH --gpus-per-node=8
set -euo pipefail

# The interface that the hosts reach each other by, where the first one that is up will not do.
# export NCCL_SOCKET_IFNAME=ib0
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}

# A rank that fails ends the others, who would find out by themselves, but might be in the middle of something else.
exec srun --kill-on-bad-exit=1 --label "${FERROCCL:-ferroccl}" perf all_reduce -b 8 -e 64M -f 2
