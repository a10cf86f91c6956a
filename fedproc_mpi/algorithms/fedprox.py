"""FedProx: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, arXiv 1812.06127,
§3.2, Eq. 2 and Algorithm 2: the local objective with a proximal term."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedproc_mpi.algorithms.fedavg import FedAvg
from fedproc_mpi.config import setting
from fedproc_mpi.errors import UserError
from fedproc_mpi.learn.client import Batch, LossParts, Round, Trainer
from fedproc_mpi.learn.data import ClientData
from fedproc_mpi.learn.flat import State
from fedproc_mpi.learn.sums import Term
from fedproc_mpi.store.client_state import ClientState


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedProx: FedAvg with (mu/2)·|w - w_t|² in the local loss, over the parameters."""

    mu: float = setting(
        0.01, "weight of the proximal term", "MOON §4.1: CIFAR-10 0.01, CIFAR-100 and Tiny-ImageNet 0.001"
    )

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise UserError(f"--mu must be at least 0, not {self.mu}")

    def loss_names(self, r: Round) -> Sequence[str]:
        return ("ce", "proximal") if self.mu else ("ce",)

    def client_update(
        self, trainer: Trainer, data: ClientData, state: State, r: Round, own: ClientState
    ) -> Mapping[str, Term]:
        """The term's gradient, mu·(w - w_t), is added in one vector operation; its value is reported."""
        if not self.mu:
            return super().client_update(trainer, data, state, r, own)
        model = trainer.model
        start_P = state["model"][: model.num_params]

        def loss(batch: Batch) -> LossParts:
            w_P = model.vector_S[: model.num_params].detach()
            proximal = torch.linalg.vector_norm(w_P - start_P) ** 2
            return {**self.loss(batch, state, r), "proximal": (self.mu / 2, proximal)}

        def add_proximal(grad_P: Tensor, w_P: Tensor) -> None:
            grad_P.add_(w_P, alpha=self.mu).sub_(start_P, alpha=self.mu)

        losses = trainer.train(data, state, r.t, loss, add_proximal)
        return self.model_terms(trainer, data, losses, r)
