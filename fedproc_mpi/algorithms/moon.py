"""MOON: Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021, arXiv 2103.16257, §3.3, Eq. 3
and 4.

Shapes: B batch, D width of z.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedproc_mpi.algorithms.fedavg import FedAvg
from fedproc_mpi.config import setting
from fedproc_mpi.errors import UserError
from fedproc_mpi.learn.client import Batch, LossParts, Round, Trainer
from fedproc_mpi.learn.data import ClientData
from fedproc_mpi.learn.flat import State
from fedproc_mpi.learn.sums import Term
from fedproc_mpi.store.client_state import ClientState


def loss_con(z_BD: Tensor, global_BD: Tensor, previous_BD: Tensor, temperature: float) -> Tensor:
    """Model-contrastive loss, Eq. 3: -log(e^(s_glob/τ) / (e^(s_glob/τ) + e^(s_prev/τ))), s: cosine with z."""
    positive_B = F.cosine_similarity(z_BD, global_BD) / temperature
    negative_B = F.cosine_similarity(z_BD, previous_BD) / temperature
    return F.softplus(negative_B - positive_B).mean()


@dataclass(frozen=True)
class Moon(FedAvg):
    """MOON: contrasts z with the global model's (near) and the client's previous model's (far)."""

    mu: float = setting(5.0, "weight of the contrastive loss", "MOON §4.1: CIFAR-10 5, the others 1")
    temperature: float = setting(0.5, "temperature of the contrastive loss", "MOON §4.1")

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise UserError(f"--mu must be at least 0, not {self.mu}")
        if not self.temperature > 0:
            raise UserError(f"--temperature must be above 0, not {self.temperature}")

    def loss_names(self, r: Round) -> Sequence[str]:
        return ("ce", "contrastive") if self.mu else ("ce",)

    def client_update(
        self, trainer: Trainer, data: ClientData, state: State, r: Round, own: ClientState
    ) -> Mapping[str, Term]:
        """Both contrasted models are in eval mode; in a client's first round the term is 0."""
        if not self.mu:
            return super().client_update(trainer, data, state, r, own)
        first = "model" not in own
        if not first:
            z_global = trainer.frozen("global", state["model"], state["counters"])
            z_previous = trainer.frozen("previous", own["model"], own["counters"])

        def loss(batch: Batch) -> LossParts:
            if first:
                contrastive = torch.zeros((), device=trainer.device)
            else:
                x_BCHW = batch.x_BCHW
                contrastive = loss_con(batch.z_BD, z_global(x_BCHW), z_previous(x_BCHW), self.temperature)
            return {**self.loss(batch, state, r), "contrastive": (self.mu, contrastive)}

        losses = trainer.train(data, state, r.t, loss)
        own["model"], own["counters"] = trainer.model.vector_S, trainer.model.counters_N
        return self.model_terms(trainer, data, losses, r)
