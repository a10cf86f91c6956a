"""Rank → device, threads and precision. Settings that torch must see before the first kernel."""

import os
from contextlib import AbstractContextManager, nullcontext

import torch

from fedproc_mpi.comm import Comm
from fedproc_mpi.config import Config


def set_up(config: Config, comm: Comm) -> torch.device:
    """The device of this rank, with threads, determinism and precision set. Collective.

    GPUs go to client ranks round robin by local rank; threads come from the config alone (law 1).
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(config.threads)
    torch.set_deterministic_debug_mode("error")  # use_deterministic_algorithms imports the compiler: 2 s
    torch.backends.cudnn.benchmark = False
    tf32 = config.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    local_rank = comm.local_rank()
    if not torch.cuda.is_available() or comm.rank not in comm.client_ranks:
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def autocast(config: Config, device: torch.device) -> AbstractContextManager[object]:
    """bf16 where asked; parameters and sums stay float32."""
    if config.precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def idle_cores(config: Config, comm: Comm) -> str:
    """A remark where cores lie idle, or ''. Threads are never derived from the machine (law 1)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    used = len(comm.client_ranks) * config.threads
    if used >= cores or comm.name != "serial":
        return ""
    return f"{cores - used} of {cores} cores lie idle: mpirun -n {cores + 1} gives the same result sooner"
