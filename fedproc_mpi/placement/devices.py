"""Rank → device, threads and precision. Settings that torch must see before the first kernel."""

import os
import platform
import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fedproc_mpi.comm import Comm
from fedproc_mpi.comm.launch import own_cores
from fedproc_mpi.config import Config
from fedproc_mpi.errors import UserError, reason


@dataclass(frozen=True)
class Placement:
    """Where a rank runs. gpu: its index among those visible to the rank, None on the CPU.

    gpu_pci: the card's place on the bus, '' where torch does not tell; slices (MIG) of a card share it.
    """

    rank: int
    host: str
    threads: int
    cores: int
    gpu: int | None = None
    gpu_name: str = ""
    gpu_uuid: str = ""
    gpu_pci: str = ""
    cpu: str = ""

    @property
    def device(self) -> torch.device:
        """What torch calls it."""
        return torch.device("cpu") if self.gpu is None else torch.device("cuda", self.gpu)

    def line(self) -> str:
        """One line for the start of a run."""
        where = "CPU" if self.gpu is None else f"GPU {self.gpu} ({self.gpu_name}, {self.gpu_uuid})"
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        return f"rank {self.rank} on {self.host}: {where}, {threads}, {self.cores} cores allowed"


def set_up(config: Config, comm: Comm) -> Placement:
    """Place this rank, with threads, determinism and precision set. Collective.

    Raises UserError, agreed, where --device asks for GPUs that are not there, or where some client ranks
    see one and others do not: the result would depend on who trains whom.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(config.threads)
    # use_deterministic_algorithms imports the compiler: 2 s
    torch.set_deterministic_debug_mode("error" if config.deterministic else "default")
    torch.backends.cudnn.benchmark = not config.deterministic
    tf32 = config.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    return place(config, comm)


@contextmanager
def restored_settings() -> Iterator[None]:
    """Give torch's settings and the environment back as they were: a run may be a small part of a program."""
    matmul, cudnn, variable = torch.backends.cuda.matmul, torch.backends.cudnn, "CUBLAS_WORKSPACE_CONFIG"
    threads, mode, workspace = (
        torch.get_num_threads(),
        torch.get_deterministic_debug_mode(),
        os.environ.get(variable),
    )
    flags = cudnn.benchmark, matmul.allow_tf32, cudnn.allow_tf32
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(mode)
        cudnn.benchmark, matmul.allow_tf32, cudnn.allow_tf32 = flags
        if workspace is None:
            os.environ.pop(variable, None)


def place(config: Config, comm: Comm) -> Placement:
    """Choose this rank's GPU, or none, and make it the current one before anything else touches CUDA.

    So no rank leaves a context on GPU 0. Collective; raises UserError, agreed.
    """
    host, cores = socket.gethostname(), len(own_cores())
    visible = torch.cuda.device_count() if config.device != "cpu" and torch.cuda.is_available() else 0
    local_clients = [r for r in comm.local_ranks() if r in comm.client_ranks]
    views = comm.exchange((host, visible))
    with comm.agreed():
        _check(config.device, [views[r] for r in comm.client_ranks])
    gpu = pick_gpu(comm.rank, local_clients, visible, config.server_gpu)
    placement = Placement(comm.rank, host, config.threads, cores, cpu=cpu_name())
    with comm.agreed():
        if gpu is not None:
            try:
                name, uuid, pci = _take(gpu)
            except Exception as error:  # torch's own kinds: AcceleratorError, DeferredCudaCallError
                raise UserError(
                    f"rank {comm.rank} cannot use GPU {gpu} of {visible} on {host} ({reason(error)}); name "
                    "the GPUs or MIG slices that work in CUDA_VISIBLE_DEVICES, or --device cpu"
                ) from error
            placement = replace(placement, gpu=gpu, gpu_name=name, gpu_uuid=uuid, gpu_pci=pci)
    return placement


def _take(gpu: int) -> tuple[str, str, str]:
    """Make it the current GPU: (name, UUID, place on the bus)."""
    torch.cuda.set_device(gpu)
    found = torch.cuda.get_device_properties(gpu)
    bus = [getattr(found, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    pci = "" if None in bus else ":".join(f"{number:02x}" for number in bus)
    return found.name, str(found.uuid), pci


def pick_gpu(rank: int, local_clients: Sequence[int], visible: int, server_gpu: bool) -> int | None:
    """The GPU of a rank: client ranks of a host take the visible ones in turn.

    local_clients: the client ranks on this rank's host, ascending. The server stays on the CPU, where it
    divides what arrived over MPI, unless asked: then it takes the first GPU that no client rank has, or
    shares. What CUDA_VISIBLE_DEVICES says, in whichever form, is CUDA's to read.
    """
    if not visible:
        return None
    if rank in local_clients:
        return local_clients.index(rank) % visible
    return len(local_clients) % visible if server_gpu else None


def _check(device: str, views: Sequence[tuple[str, int]]) -> None:
    """Raise UserError where the client ranks' (host, visible GPUs) do not do."""
    without = sorted({host for host, visible in views if not visible})
    having = sorted({host for host, visible in views if visible})
    if device == "cuda" and without:
        raise UserError(
            f"--device cuda, but torch sees no GPU on {', '.join(without)}; ask the scheduler for some "
            "(python -m fedproc_mpi.doctor shows what is seen), or --device cpu"
        )
    if having and without:
        raise UserError(
            f"torch sees GPUs on {', '.join(having)}, none on {', '.join(without)}: the result would depend "
            "on which rank trains which client; give every host GPUs, or --device cpu"
        )


def autocast(config: Config, device: torch.device) -> AbstractContextManager[object]:
    """bf16 where asked; parameters and sums stay float32."""
    if config.precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def cpu_name() -> str:
    """The CPU's name; other CPUs take other kernels, which round otherwise."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def remarks(placements: Sequence[Placement], clients: range) -> list[str]:
    """What a user should know of where the ranks run: idle cores, GPUs of several kinds.

    Threads are never derived from the machine (law 1), so cores that lie idle are told.
    """
    told = []
    first = placements[0]
    if len(placements) == 1 and first.gpu is None and first.threads < first.cores:
        told.append(
            f"{first.cores - first.threads} of {first.cores} cores lie idle: "
            f"mpirun -n {first.cores + 1} gives the same result sooner"
        )
    crowded = next((p for p in placements if p.threads > p.cores), None)
    if crowded is not None:
        told.append(
            f"--threads {crowded.threads} on {crowded.cores} core(s) of {crowded.host}: fewer are faster"
        )
    cpus = sorted({placements[r].cpu for r in clients if placements[r].gpu is None})
    if len(cpus) > 1:
        told.append(f"CPUs of several kinds ({', '.join(cpus)}): another assignment may round otherwise")
    kinds = sorted({placements[r].gpu_name for r in clients})
    if len(kinds) > 1:
        told.append(f"GPUs of several kinds ({', '.join(kinds)}): another assignment may round otherwise")
    return told
