"""An algorithm file of a user's own: SCAFFOLD, in which chosen clients diverge in one tensor in round 1."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedproc_mpi.algorithms.scaffold import Scaffold
from fedproc_mpi.config import setting
from fedproc_mpi.learn.client import Round, Trainer
from fedproc_mpi.learn.data import ClientData
from fedproc_mpi.learn.sums import Term


@dataclass(frozen=True)
class Poison(Scaffold):
    """Poisoned SCAFFOLD."""

    poisoned: str = setting("", "the clients that diverge, separated by commas")

    def model_terms(
        self, trainer: Trainer, data: ClientData, losses: Mapping[str, float], r: Round
    ) -> dict[str, Term]:
        if r.t == 1 and str(data.client) in self.poisoned.split(","):
            segment = next(s for s in trainer.model.segments if s.label == "classifier.bias")
            trainer.model.vector_S[segment.start] = float("nan")
        return super().model_terms(trainer, data, losses, r)
