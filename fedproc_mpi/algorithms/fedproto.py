"""FedProto: Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022,
arXiv 2105.00243, Algorithm 1: only class prototypes travel, models stay with their clients.

Shapes: B batch, K classes, D width of z.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedproc_mpi.algorithms import prototypes
from fedproc_mpi.algorithms.base import (
    Batch,
    Entry,
    Group,
    LossParts,
    Round,
    State,
    Task,
    Tensors,
    Trainer,
    Update,
    WeightedSums,
)
from fedproc_mpi.algorithms.solo import Solo
from fedproc_mpi.config import Config
from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import setting


def loss_proto(z_BD: Tensor, y_B: Tensor, proto_KD: Tensor, seen_K: Tensor) -> Tensor:
    """MSE of z and the prototype of its label, mean over batch and width; classes never seen add 0."""
    distance_BD = (z_BD - proto_KD[y_B]) * seen_K[y_B, None]
    return distance_BD.square().mean()


@dataclass(frozen=True)
class FedProto(Solo):
    """FedProto: personal models, of one kind or several, pulled to global prototypes; only these travel."""

    lam: float = setting(0.1, "weight lambda of the prototype loss", "FedProto: CIFAR-10 0.1, MNIST 1", low=0)
    client_models: str = setting(
        "", "models of the clients, a,b,...: client k has number k mod n of them; empty: --model for all"
    )
    loss_names = ("ce", "prototype")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.client_models and not all(self.client_models.split(",")):
            raise UserError(f"--client-models {self.client_models}: an empty name")

    def model_of(self, config: Config, client: int) -> str:
        names = self.client_models.split(",") if self.client_models else [config.model]
        return names[client % len(names)]

    def entries(self, trainer: Trainer) -> dict[str, Entry]:
        """Global prototypes, and which classes have one: none in round 0."""
        return prototypes.entries(trainer)

    def loss(self, batch: Batch, task: Task) -> LossParts:
        pull = loss_proto(batch.z_BD, batch.y_B, task.state["prototypes"], task.state["seen"])
        return {**super().loss(batch, task), "prototype": (self.lam, pull)}

    def groups(self, state: State, trainer: Trainer, sizes: Sequence[int]) -> dict[str, Group]:
        return super().groups(state, trainer, sizes) | prototypes.group(trainer, sizes, state["prototypes"])

    def client_update(self, task: Task) -> Update:
        """Train the client's own model, then its class means."""
        terms, kept = super().client_update(task)
        return terms | prototypes.term(*task.class_means()), kept

    def server_update(self, state: State, sums: WeightedSums, r: Round) -> None:
        """The mean over the clients that hold a class; one that nobody holds keeps its prototype."""
        prototypes.update(state, sums)

    def metrics(self, sums: WeightedSums, r: Round) -> dict[str, Any]:
        return super().metrics(sums, r) | prototypes.metrics(sums)

    def prototype_scores(self, z_BD: Tensor, state: Tensors) -> Tensor:
        """Minus the Euclidean distance, so that the nearest wins."""
        distance_BK = (z_BD[:, None, :] - state["prototypes"]).norm(dim=2)
        return -distance_BK.masked_fill(~state["seen"], torch.finfo(z_BD.dtype).max)
