"""How ranks talk. MPI calls live in this package alone, and importing it starts nothing.

Rank 0 is the server; the others are client ranks. Alone, rank 0 is both. Which GPU or transport a rank
takes is decided in `placement`; here a tensor says where it lies.
"""

import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from fedproc_mpi.errors import FedprocError, UserError, from_system

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class Comm(ABC):
    """The few operations a run needs. All are collective but `abort`."""

    name: str
    rank: int
    size: int

    @property
    def client_ranks(self) -> range:
        """The ranks that train: 1..size-1, or rank 0 where it is alone."""
        return range(1, self.size) if self.size > 1 else range(1)

    @abstractmethod
    def broadcast(self, buffer: "Tensor") -> None:
        """Rank 0's `buffer` into everyone's, in place. Any dtype, contiguous, same size on each rank."""

    @abstractmethod
    def reduce(self, buffer: "Tensor") -> None:
        """The sum of everyone's float64 `buffer` into rank 0's, in place; others' content is undefined."""

    @abstractmethod
    def collect(self, report: T) -> list[T] | None:
        """A small value from each rank, on rank 0 in rank order; None elsewhere. Pickled: never a tensor.

        Ranks that wait here sleep (law 4), so each model-sized collective follows one of these.
        """

    @abstractmethod
    def share(self, value: T | None) -> T:
        """Rank 0's small value on every rank; what the others hand in is ignored. Pickled: never a tensor."""

    def exchange(self, report: T) -> list[T]:
        """A small value from each rank, on every rank in rank order."""
        return self.share(self.collect(report))

    @abstractmethod
    def local_ranks(self) -> list[int]:
        """The ranks that share this one's memory (its host), ascending, itself included.

        From MPI and not from launcher variables: mpirun inside Slurm sets two families of them.
        """

    def versions(self) -> dict[str, str]:
        """Of what carries the messages, by name. Not collective."""
        return {}

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """End what must be ended in order, before the interpreter goes. Collective."""

    @abstractmethod
    def abort(self, code: int) -> None:
        """End the job on all ranks at once with this exit code. Not collective."""

    def agree(self, error: FedprocError | None) -> None:
        """Every rank hands in its error, or None; all raise the lowest rank's, or none does.

        The error is raised as `agreed`: all ranks then leave together, and rank 0 prints it.
        """
        reports = self.exchange(
            None if error is None else (error.exit_code, str(error), socket.gethostname())
        )
        for rank, report in enumerate(reports):
            if report is not None:
                code, message, host = report
                where = f" (rank {rank} on {host})" if rank and None in reports else ""
                kinds = {kind.exit_code: kind for kind in FedprocError.__subclasses__()}
                raise kinds.get(code, UserError)(message + where, agreed=True)

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """A local step that may fail: where a rank raises a FedprocError in it, all raise the same one.

        An OSError counts as the user's: a name that is too long, a disk that cannot be read.
        """
        error: FedprocError | None = None
        try:
            yield
        except FedprocError as caught:
            error = caught
        except OSError as caught:
            error = from_system(caught)
        self.agree(error)
