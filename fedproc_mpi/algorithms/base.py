"""What an algorithm is: sums over clients, then a division on the server.

Shapes: S floats of the model's state, N integer buffers, P parameters, K classes, D width of z.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedproc_mpi.comm import Comm
from fedproc_mpi.config import Config
from fedproc_mpi.learn.client import Batch, LossParts, Round, Trainer
from fedproc_mpi.learn.data import ClientData, Clients
from fedproc_mpi.learn.flat import Entry, State
from fedproc_mpi.learn.sums import Group, Term, WeightedSums
from fedproc_mpi.store.client_state import ClientState


@dataclass(frozen=True)
class Algorithm:
    """Local training and weighted model averaging, with the steps that an algorithm may override.

    The defaults are FedAvg: derive, and override what differs. personal: there is no global model, each
    client keeps its own in its state ("model", "counters").
    """

    personal: ClassVar[bool] = False

    def options(self) -> dict[str, Any]:
        """The hyperparameters with their values."""
        return dataclasses.asdict(self)

    def model_of(self, config: Config, client: int) -> str:
        """The name of a client's model; only personal models may differ."""
        return config.model

    def entries(self, trainer: Trainer) -> dict[str, Entry]:
        """What the server sends besides the model, by name."""
        return {}

    def init(self, state: State, trainer: Trainer, clients: Clients, mine: Sequence[int], comm: Comm) -> None:
        """Fill the entries for round 0, the same on every rank. Collective.

        mine: this rank's share of all clients. The state already holds the initial model.
        """

    def loss(self, batch: Batch, state: State, r: Round) -> LossParts:
        """The parts of the local loss, name → (weight, value)."""
        raise NotImplementedError

    def loss_names(self, r: Round) -> Sequence[str]:
        """The parts that `loss` returns in round r, the same on every rank."""
        return ("ce",)

    def groups(
        self, state: State, trainer: Trainer, cohort_sizes: Sequence[int], r: Round
    ) -> dict[str, Group]:
        """The sums of a round: the whole model state, weighted by |D_i|, and the losses."""
        total, model = sum(cohort_sizes), trainer.model
        return {
            "model": Group(model.vector_S.numel(), total, model.segments, reference=state["model"]),
            "counters": Group(model.counters_N.numel(), total, model.counter_names, integer=True),
            "losses": Group(1 + len(self.loss_names(r)), total),
        }

    def client_update(
        self, trainer: Trainer, data: ClientData, state: State, r: Round, own: ClientState
    ) -> Mapping[str, Term]:
        """Train one client from the round's state; its terms of the sums.

        own: what the client kept of its last round, by name; what is put in by the end is kept for its
        next one, unless the client diverged. Replace tensors, do not change them in place.
        """
        losses = trainer.train(data, state, r.t, lambda batch: self.loss(batch, state, r))
        return self.model_terms(trainer, data, losses, r)

    def model_terms(
        self, trainer: Trainer, data: ClientData, losses: Mapping[str, float], r: Round
    ) -> dict[str, Term]:
        """The trained model and the losses as terms."""
        names = ("total", *self.loss_names(r))
        values = trainer.model.vector_S.new_tensor([losses[name] for name in names])
        return {
            "model": Term(trainer.model.vector_S, data.num_examples),
            "counters": Term(trainer.model.counters_N, data.num_examples),
            "losses": Term(values, data.num_examples),
        }

    def server_update(self, state: State, sums: WeightedSums, r: Round) -> None:
        """The next round's state in place, from the reduced sums. On rank 0."""
        state["model"].copy_(sums.mean("model"))
        state["counters"].copy_(sums.mean("counters"))

    def prototype_scores(self, z_BD: Tensor, state: State) -> Tensor | None:
        """Scores (B, K) of the classes by their prototypes, the highest wins; None: there are none."""
        return None

    def metrics(self, sums: WeightedSums, r: Round) -> dict[str, Any]:
        """What `metrics.jsonl` records of a round, from the reduced sums. On rank 0."""
        means = sums.mean("losses").tolist()
        return {
            "loss": means[0],
            **{f"loss_{n}": v for n, v in zip(self.loss_names(r), means[1:], strict=True)},
        }
