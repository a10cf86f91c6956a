"""SOLO: each client trains alone, the lower baseline of MOON (arXiv 2103.16257, §4.1).

The clients' models are drawn one by one; E epochs a round over T rounds are T·E epochs (MOON: 300)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedproc_mpi.algorithms.base import Group, Round, State, Task, Trainer, Update, WeightedSums
from fedproc_mpi.algorithms.fedavg import FedAvg
from fedproc_mpi.learn.sums import require_finite


@dataclass(frozen=True)
class Solo(FedAvg):
    """SOLO: every client trains a model of its own, nothing is shared; mean and std over clients."""

    personal: ClassVar[bool] = True

    def groups(self, state: State, trainer: Trainer, sizes: Sequence[int]) -> dict[str, Group]:
        """The losses alone."""
        return {"losses": self.loss_group(sum(sizes))}

    def client_update(self, task: Task) -> Update:
        """Go on with the client's own model; keep it."""
        losses = task.train(self.loss, self.correct_gradient, start=task.kept)
        require_finite(task.data.client, task.model.segments, task.model.vector_S)
        kept = {"model": task.model.vector_S, "counters": task.model.counters_N}
        return {"losses": self.loss_term(task, losses)}, kept

    def server_update(self, state: State, sums: WeightedSums, r: Round) -> None:
        """Nothing to divide."""
