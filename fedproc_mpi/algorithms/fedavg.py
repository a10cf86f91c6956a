"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, arXiv 1602.05629, Algorithm 1."""

from dataclasses import dataclass

from fedproc_mpi.algorithms.base import Algorithm, Batch, LossParts, Task


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """FedAvg: local SGD on the cross-entropy, models averaged by sample count."""

    def loss(self, batch: Batch, task: Task) -> LossParts:
        return {"ce": (1.0, task.cross_entropy(batch))}
