"""MOON: Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021, arXiv 2103.16257, §3.3, Eq. 3
and 4.

Shapes: B batch, D width of z.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedproc_mpi.algorithms.base import Batch, LossParts, Task, Update
from fedproc_mpi.algorithms.fedavg import FedAvg
from fedproc_mpi.flags import setting


def loss_con(z_BD: Tensor, global_BD: Tensor, previous_BD: Tensor, temperature: float) -> Tensor:
    """Model-contrastive loss, Eq. 3: -log(e^(s_glob/τ) / (e^(s_glob/τ) + e^(s_prev/τ))), s: cosine with z."""
    positive_B = F.cosine_similarity(z_BD, global_BD) / temperature
    negative_B = F.cosine_similarity(z_BD, previous_BD) / temperature
    return F.softplus(negative_B - positive_B).mean()


@dataclass(frozen=True)
class Moon(FedAvg):
    """MOON: contrasts z with the global model's (near) and the client's previous model's (far)."""

    mu: float = setting(5.0, "weight of the contrastive loss", "MOON §4.1: CIFAR-10 5, the others 1", low=0)
    temperature: float = setting(0.5, "temperature of the contrastive loss", "MOON §4.1", above=0)
    loss_names = ("ce", "contrastive")

    def loss(self, batch: Batch, task: Task) -> LossParts:
        """Eq. 4. Both contrasted models are in eval mode; in a client's first round the term is 0."""
        parts = super().loss(batch, task)
        if not self.mu:
            return parts
        contrastive = torch.zeros((), device=batch.z_BD.device)
        if task.kept:
            global_BD = task.embed("global", task.state, batch.x_BCHW)
            previous_BD = task.embed("previous", task.kept, batch.x_BCHW)
            contrastive = loss_con(batch.z_BD, global_BD, previous_BD, self.temperature)
        return {**parts, "contrastive": (self.mu, contrastive)}

    def client_update(self, task: Task) -> Update:
        """The client keeps its trained model, the next round's negative."""
        terms, _ = super().client_update(task)
        kept = {"model": task.model.vector_S, "counters": task.model.counters_N}
        return terms, kept if self.mu else {}
