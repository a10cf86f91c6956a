"""SCAFFOLD: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
ICML 2020, arXiv 1910.06378, §4, Algorithm 1 with option II and global step size 1.

With momentum ρ, K steps move the weights as far as K_eff = (K - ρ(1-ρ^K)/(1-ρ))/(1-ρ) steps without.
BatchNorm buffers have no variates: they are averaged as in FedAvg. Models are averaged by |D_i|.

Shapes: P parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedproc_mpi.algorithms.base import Entry, Group, Round, State, Task, Term, Trainer, Update, WeightedSums
from fedproc_mpi.algorithms.fedavg import FedAvg


def effective_steps(steps: int, momentum: float) -> float:
    """K_eff: the sum of 1 + ρ + … + ρ^j over the steps j = 0 … K-1 (momentum 0: K)."""
    velocity = total = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1
        total += velocity
    return total


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """SCAFFOLD: FedAvg with control variates against client drift, kept by server and clients."""

    optimizers = ("sgd",)  # what a client keeps is computed from steps of SGD
    default_lr = 0.01  # with momentum the variates overshoot at 0.03: the embedded digits diverge

    def entries(self, trainer: Trainer) -> dict[str, Entry]:
        """c, the server's control variate, 0 at the start."""
        return {"control": Entry((trainer.model.num_params,))}

    def groups(self, state: State, trainer: Trainer, sizes: Sequence[int]) -> dict[str, Group]:
        P = trainer.model.num_params
        segments = [segment for segment in trainer.model.segments if segment.stop <= P]
        change = Group(size=P, total=len(sizes), segments=segments, reference=state["control"])
        return super().groups(state, trainer, sizes) | {"control": change}

    def correct_gradient(self, grad_P: Tensor, w_P: Tensor, task: Task) -> None:
        """Local steps along g - c_i + c."""
        grad_P.add_(_correction(task))

    def client_update(self, task: Task) -> Update:
        """c_i⁺ = c_i - c + (w_t - w_i)/(K_eff·lr); the client adds c_i⁺ - c_i and keeps c_i⁺."""
        terms, _ = super().client_update(task)
        trainer, P = task.trainer, task.model.num_params
        distance = effective_steps(trainer.steps, trainer.config.momentum) * trainer.lr
        moved_P = task.state["model"][:P] - task.model.vector_S[:P]
        new_c_i_P = moved_P / distance - _correction(task)
        return terms | {"control": Term(new_c_i_P - task.kept.get("control", 0.0), 1)}, {"control": new_c_i_P}

    def server_update(self, state: State, sums: WeightedSums, r: Round) -> None:
        """c ← c + (|S|/m)·mean of the clients' changes."""
        super().server_update(state, sums, r)
        # Two roundings: one fused step could round otherwise on another device than the server's.
        state["control"].add_(sums.mean("control") * (float(sums.weights("control")) / r.num_clients))


def _correction(task: Task) -> Tensor:
    """c - c_i; c_i is 0 in a client's first round."""
    return task.once("correction", lambda: task.state["control"] - task.kept.get("control", 0.0))
