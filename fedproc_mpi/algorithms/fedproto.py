"""FedProto: Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022,
arXiv 2105.00243, Algorithm 1: only class prototypes travel, models stay with their clients.

Shapes: B batch, K classes, D width of z.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedproc_mpi.algorithms.solo import Solo
from fedproc_mpi.config import Config, setting
from fedproc_mpi.errors import UserError
from fedproc_mpi.learn.client import Batch, LossParts, Round, Trainer
from fedproc_mpi.learn.data import ClientData
from fedproc_mpi.learn.flat import Entry, State
from fedproc_mpi.learn.sums import Group, Term, WeightedSums
from fedproc_mpi.store.client_state import ClientState


def loss_proto(z_BD: Tensor, y_B: Tensor, proto_KD: Tensor, seen_K: Tensor) -> Tensor:
    """MSE of z and the prototype of its label, mean over batch and width; classes never seen add 0."""
    distance_BD = (z_BD - proto_KD[y_B]) * seen_K[y_B, None]
    return distance_BD.square().mean()


@dataclass(frozen=True)
class FedProto(Solo):
    """FedProto: personal models, of one kind or several, pulled to global prototypes; only these travel."""

    lam: float = setting(0.1, "weight lambda of the prototype loss", "FedProto: CIFAR-10 0.1, MNIST 1")
    client_models: str = setting(
        "", "models of the clients, a,b,...: client k has number k mod n of them; empty: --model for all"
    )

    def __post_init__(self) -> None:
        if not self.lam >= 0:
            raise UserError(f"--lam must be at least 0, not {self.lam}")
        if self.client_models and not all(self.client_models.split(",")):
            raise UserError(f"--client-models {self.client_models}: an empty name")

    def model_of(self, config: Config, client: int) -> str:
        names = self.client_models.split(",") if self.client_models else [config.model]
        return names[client % len(names)]

    def entries(self, trainer: Trainer) -> dict[str, Entry]:
        """Global prototypes, and which classes have one: none in round 0."""
        shape_KD = (trainer.num_classes, trainer.embedding)
        return {"prototypes": Entry(shape_KD), "seen": Entry(shape_KD[:1], torch.bool)}

    def loss_names(self, r: Round) -> Sequence[str]:
        return ("ce", "prototype")

    def loss(self, batch: Batch, state: State, r: Round) -> LossParts:
        pull = loss_proto(batch.z_BD, batch.y_B, state["prototypes"], state["seen"])
        return {**super().loss(batch, state, r), "prototype": (self.lam, pull)}

    def groups(
        self, state: State, trainer: Trainer, cohort_sizes: Sequence[int], r: Round
    ) -> dict[str, Group]:
        K, D = state["prototypes"].shape
        prototypes = Group(K * D, len(cohort_sizes), (), K, state["prototypes"])
        return super().groups(state, trainer, cohort_sizes, r) | {"prototypes": prototypes}

    def client_update(
        self, trainer: Trainer, data: ClientData, state: State, r: Round, own: ClientState
    ) -> Mapping[str, Term]:
        """Train the client's own model, then its class means."""
        terms = super().client_update(trainer, data, state, r, own)
        means_KD, counts_K = trainer.class_means(data)
        return {**terms, "prototypes": Term(means_KD, (counts_K > 0).long())}

    def server_update(self, state: State, sums: WeightedSums, r: Round) -> None:
        """The mean over the clients that hold a class; one that nobody holds keeps its prototype."""
        held_K = sums.weights("prototypes") > 0
        mean_KD = sums.mean("prototypes").view(state["prototypes"].shape)
        state["prototypes"].copy_(torch.where(held_K[:, None], mean_KD, state["prototypes"]))
        state["seen"].logical_or_(held_K)

    def prototype_scores(self, z_BD: Tensor, state: State) -> Tensor:
        """Minus the Euclidean distance, so that the nearest wins."""
        distance_BK = (z_BD[:, None, :] - state["prototypes"]).norm(dim=2)
        return -distance_BK.masked_fill(~state["seen"], torch.finfo(z_BD.dtype).max)
