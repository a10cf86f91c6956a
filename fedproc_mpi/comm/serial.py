"""One process, no MPI: every collective is the identity."""

import os
from typing import TypeVar, cast

from torch import Tensor

from fedproc_mpi.comm import Comm

T = TypeVar("T")


class SerialComm(Comm):
    """Rank 0 of 1."""

    name, rank, size = "serial", 0, 1

    def broadcast(self, buffer: Tensor) -> None:
        pass

    def reduce(self, buffer: Tensor) -> None:
        pass

    def collect(self, report: T) -> list[T]:
        return [report]

    def share(self, value: T | None) -> T:
        return cast(T, value)

    def local_ranks(self) -> list[int]:
        return [0]

    def abort(self, code: int) -> None:
        os._exit(code)
