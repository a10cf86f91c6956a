"""SOLO: each client trains alone, the lower baseline of MOON (arXiv 2103.16257, §4.1).

The clients' models are drawn one by one; E epochs a round over T rounds are T·E epochs (MOON: 300)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedproc_mpi.algorithms.fedavg import FedAvg
from fedproc_mpi.learn.client import Round, Trainer
from fedproc_mpi.learn.data import ClientData
from fedproc_mpi.learn.flat import State
from fedproc_mpi.learn.sums import Group, Term, WeightedSums, require_finite
from fedproc_mpi.store.client_state import ClientState


@dataclass(frozen=True)
class Solo(FedAvg):
    """SOLO: every client trains a model of its own, nothing is shared; mean and std over clients."""

    personal: ClassVar[bool] = True

    def groups(
        self, state: State, trainer: Trainer, cohort_sizes: Sequence[int], r: Round
    ) -> dict[str, Group]:
        """The losses alone."""
        return {"losses": Group(1 + len(self.loss_names(r)), sum(cohort_sizes))}

    def client_update(
        self, trainer: Trainer, data: ClientData, state: State, r: Round, own: ClientState
    ) -> Mapping[str, Term]:
        """Go on with the client's own model; keep it."""
        losses = trainer.train(data, own, r.t, lambda batch: self.loss(batch, state, r))
        model = trainer.model
        require_finite(data.client, model.segments, model.vector_S)
        own["model"], own["counters"] = model.vector_S, model.counters_N
        return {"losses": self.model_terms(trainer, data, losses, r)["losses"]}

    def server_update(self, state: State, sums: WeightedSums, r: Round) -> None:
        """Nothing to divide."""
