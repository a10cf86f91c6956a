"""MPI through mpi4py: typed buffers in chunks for tensors, which are never pickled; small messages are."""

import time
from collections.abc import Iterator
from typing import Any, Literal, TypeVar

import mpi4py
import torch
from mpi4py import MPI
from torch import Tensor

from fedproc_mpi.comm import Comm
from fedproc_mpi.comm.staging import Staging

T = TypeVar("T")
CHUNK_BYTES = 32 * 2**20  # keeps counts below 2^31 and host staging of GPU tensors bounded
NAP_MIN, NAP_MAX = 20e-6, 4e-3  # seconds between two looks at a pending request


class MpiComm(Comm):
    """Ranks of an MPI communicator, which is duplicated so that its messages are ours alone.

    GPU tensors pass through pinned host memory, or with `cuda_aware` go to MPI as they are: set it only
    after `cuda_probe` has shown that this MPI can read them. Construction is collective.
    """

    name = "mpi"

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm.Dup()
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.cuda_aware = False
        self._staging: Staging | None = None

    def broadcast(self, buffer: Tensor) -> None:
        self._sleep_until_all_are_here()
        root = self.rank == 0
        for part in self._parts(buffer, read=root, write=not root):
            self._comm.Bcast(part, root=0)

    def reduce(self, buffer: Tensor) -> None:
        assert buffer.dtype == torch.float64
        self._sleep_until_all_are_here()
        root = self.rank == 0
        for part in self._parts(buffer, read=True, write=root):
            self._comm.Reduce(MPI.IN_PLACE if root else part, part if root else None, op=MPI.SUM, root=0)

    def _parts(self, buffer: Tensor, read: bool, write: bool) -> Iterator[Any]:
        """The buffer in chunks that MPI can work on; read, write: what MPI does with them."""
        chunks, way = split(buffer), self._way(buffer.device)
        if way == "host":
            yield from (chunk.numpy() for chunk in chunks)
        elif way == "device":
            if buffer.device.type == "cuda":
                torch.cuda.current_stream(buffer.device).synchronize()  # MPI knows nothing of streams
            yield from chunks
        else:
            self._staging = self._staging or Staging(buffer.device, CHUNK_BYTES)
            yield from (host.numpy() for host in self._staging.through(chunks, read, write))

    def _way(self, device: torch.device) -> Literal["host", "device", "staged"]:
        if device.type == "cpu":
            return "host"
        return "device" if self.cuda_aware else "staged"

    def collect(self, report: T) -> list[T] | None:
        self._sleep_until_all_are_here()
        return self._comm.gather(report, root=0)

    def share(self, value: T | None) -> T:
        self._sleep_until_all_are_here()
        return self._comm.bcast(value, root=0)

    def local_ranks(self) -> list[int]:
        node = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        ranks = node.allgather(self.rank)
        node.Free()
        return sorted(ranks)

    def versions(self) -> dict[str, str]:
        library = MPI.Get_library_version().split("\n")[0].split(",")[0].strip("\0 ")
        return {"mpi4py": mpi4py.__version__, "mpi": library}

    def abort(self, code: int) -> None:
        self._comm.Abort(code)

    def _sleep_until_all_are_here(self) -> None:
        """Blocking collectives spin; this barrier naps, so that a waiting rank leaves its core free."""
        sleep_until_done(self._comm.Ibarrier())


def sleep_until_done(request: MPI.Request) -> None:
    """Wait for a request without burning the core."""
    nap = NAP_MIN
    while not request.Test():
        time.sleep(nap)
        nap = min(2 * nap, NAP_MAX)


def split(buffer: Tensor) -> tuple[Tensor, ...]:
    """Views of at most CHUNK_BYTES that together are the buffer."""
    assert buffer.is_contiguous()
    return buffer.view(-1).split(CHUNK_BYTES // buffer.element_size())
