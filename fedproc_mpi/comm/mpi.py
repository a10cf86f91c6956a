"""MPI through mpi4py: typed buffers in chunks for tensors, JSON for small messages, no pickles."""

import json
import time
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor

from fedproc_mpi.comm import Comm

CHUNK_BYTES = 32 * 2**20  # keeps counts below 2^31 and host staging of GPU tensors bounded
NAP_MIN, NAP_MAX = 20e-6, 4e-3  # seconds between two looks at a pending request


class MpiComm(Comm):
    """Ranks of an MPI communicator, which is duplicated so that its messages are ours alone.

    Construction is collective.
    """

    name = "mpi"

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm.Dup()
        self._local_rank: int | None = None
        self.rank, self.size = comm.Get_rank(), comm.Get_size()

    def broadcast(self, buffer: Tensor) -> None:
        self._sleep_until_all_are_here()
        for chunk in _chunks(buffer):
            host = chunk if chunk.device.type == "cpu" else chunk.cpu()
            self._comm.Bcast(host.numpy(), root=0)
            if host is not chunk and self.rank != 0:
                chunk.copy_(host)

    def reduce(self, buffer: Tensor) -> None:
        assert buffer.dtype == torch.float64
        self._sleep_until_all_are_here()
        for chunk in _chunks(buffer):
            host = chunk if chunk.device.type == "cpu" else chunk.cpu()
            if self.rank == 0:
                self._comm.Reduce(MPI.IN_PLACE, host.numpy(), op=MPI.SUM, root=0)
                if host is not chunk:
                    chunk.copy_(host)
            else:
                self._comm.Reduce(host.numpy(), None, op=MPI.SUM, root=0)

    def collect(self, report: Any) -> list[Any] | None:
        message = np.frombuffer(json.dumps(report).encode(), dtype=np.uint8)
        self._sleep_until_all_are_here()
        lengths = np.zeros(self.size, dtype=np.int64)
        self._comm.Gather(np.array([message.size], dtype=np.int64), lengths, root=0)
        if self.rank != 0:
            self._comm.Gatherv(message, None, root=0)
            return None
        text = np.empty(int(lengths.sum()), dtype=np.uint8)
        self._comm.Gatherv(message, [text, (lengths, np.cumsum(lengths) - lengths)], root=0)
        parts = np.split(text, np.cumsum(lengths)[:-1])
        return [json.loads(part.tobytes()) for part in parts]

    def share(self, value: Any) -> Any:
        message = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8).copy()
        self._sleep_until_all_are_here()
        length = np.array([message.size], dtype=np.int64)
        self._comm.Bcast(length, root=0)
        if self.rank != 0:
            message = np.empty(int(length[0]), dtype=np.uint8)
        self._comm.Bcast(message, root=0)
        return json.loads(message.tobytes())

    def local_rank(self) -> int:
        if self._local_rank is None:
            node = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
            self._local_rank = node.Get_rank()
            node.Free()
        return self._local_rank

    def abort(self, code: int) -> None:
        self._comm.Abort(code)

    def _sleep_until_all_are_here(self) -> None:
        """Blocking collectives spin; this barrier naps, so that a waiting rank leaves its core free."""
        request = self._comm.Ibarrier()
        nap = NAP_MIN
        while not request.Test():
            time.sleep(nap)
            nap = min(2 * nap, NAP_MAX)


def _chunks(buffer: Tensor) -> tuple[Tensor, ...]:
    assert buffer.is_contiguous()
    return buffer.view(-1).split(CHUNK_BYTES // buffer.element_size())
