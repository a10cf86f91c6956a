"""FedProx: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, arXiv 1812.06127,
§3.2, Eq. 2 and Algorithm 2: the local objective with a proximal term.

Shapes: P parameters.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedproc_mpi.algorithms.base import Batch, LossParts, Task
from fedproc_mpi.algorithms.fedavg import FedAvg
from fedproc_mpi.flags import setting


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedProx: FedAvg with (mu/2)·|w - w_t|² in the local loss, over the parameters."""

    mu: float = setting(
        0.01, "weight of the proximal term", "MOON §4.1: CIFAR-10 0.01, the others 0.001", low=0
    )
    loss_names = ("ce", "proximal")

    def loss(self, batch: Batch, task: Task) -> LossParts:
        """The proximal term's value is reported here; its gradient is `correct_gradient`'s."""
        parts = super().loss(batch, task)
        if not self.mu:
            return parts
        P = task.model.num_params
        distance = torch.linalg.vector_norm(task.model.vector_S[:P].detach() - task.state["model"][:P])
        return {**parts, "proximal": (self.mu / 2, distance**2)}

    def correct_gradient(self, grad_P: Tensor, w_P: Tensor, task: Task) -> None:
        """Add mu·(w - w_t): one vector operation in place of a graph over all parameters."""
        if self.mu:
            grad_P.add_(w_P, alpha=self.mu).sub_(task.state["model"][: len(w_P)], alpha=self.mu)
