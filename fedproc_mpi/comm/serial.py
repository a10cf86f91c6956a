"""One process, no MPI: every collective is the identity."""

import os
from typing import Any

from torch import Tensor

from fedproc_mpi.comm import Comm


class SerialComm(Comm):
    """Rank 0 of 1."""

    name, rank, size = "serial", 0, 1

    def broadcast(self, buffer: Tensor) -> None:
        pass

    def reduce(self, buffer: Tensor) -> None:
        pass

    def collect(self, report: Any) -> list[Any]:
        return [report]

    def share(self, value: Any) -> Any:
        return value

    def local_ranks(self) -> list[int]:
        return [0]

    def abort(self, code: int) -> None:
        os._exit(code)
