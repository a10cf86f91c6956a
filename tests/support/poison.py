"""An algorithm file of a user's own: SCAFFOLD, in which chosen clients diverge in one tensor in round 1."""

from dataclasses import dataclass

from fedproc_mpi.algorithms.base import Task, Update
from fedproc_mpi.algorithms.scaffold import Scaffold
from fedproc_mpi.flags import setting


@dataclass(frozen=True)
class Poison(Scaffold):
    """Poisoned SCAFFOLD."""

    poisoned: str = setting("", "the clients that diverge, separated by commas")

    def client_update(self, task: Task) -> Update:
        terms, kept = super().client_update(task)
        if task.round.t == 1 and str(task.data.client) in self.poisoned.split(","):
            segment = next(s for s in task.model.segments if s.label == "classifier.bias")
            terms["model"].values[segment.start] = float("nan")
        return terms, kept
