"""SCAFFOLD: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
ICML 2020, arXiv 1910.06378, §4, Algorithm 1 with option II and global step size 1.

With momentum ρ, K steps move the weights as far as K_eff = (K - ρ(1-ρ^K)/(1-ρ))/(1-ρ) steps without.
BatchNorm buffers have no variates: they are averaged as in FedAvg. Models are averaged by |D_i|.

Shapes: P parameters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedproc_mpi.algorithms.fedavg import FedAvg
from fedproc_mpi.learn.client import Round, Trainer
from fedproc_mpi.learn.data import ClientData
from fedproc_mpi.learn.flat import Entry, State
from fedproc_mpi.learn.sums import Group, Term, WeightedSums
from fedproc_mpi.store.client_state import ClientState


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

    def entries(self, trainer: Trainer) -> dict[str, Entry]:
        """c, the server's control variate, 0 at the start."""
        return {"control": Entry((trainer.model.num_params,))}

    def groups(
        self, state: State, trainer: Trainer, cohort_sizes: Sequence[int], r: Round
    ) -> dict[str, Group]:
        model = trainer.model
        segments = [s for s in model.segments if s.stop <= model.num_params]
        change = Group(model.num_params, len(cohort_sizes), segments, reference=state["control"])
        return super().groups(state, trainer, cohort_sizes, r) | {"control": change}

    def client_update(
        self, trainer: Trainer, data: ClientData, state: State, r: Round, own: ClientState
    ) -> Mapping[str, Term]:
        """Local steps along g - c_i + c, then c_i⁺ = c_i - c + (w_t - w_i)/(K_eff·lr)."""
        c_P = state["control"]
        c_i_P = own.get("control", torch.zeros_like(c_P))
        correction_P = c_P - c_i_P

        def correct(grad_P: Tensor, w_P: Tensor) -> None:
            grad_P.add_(correction_P)

        losses = trainer.train(data, state, r.t, lambda batch: self.loss(batch, state, r), correct)
        terms = self.model_terms(trainer, data, losses, r)
        P = trainer.model.num_params
        distance = effective_steps(trainer.steps, trainer.config.momentum) * trainer.config.lr
        moved_P = state["model"][:P] - trainer.model.vector_S[:P]
        own["control"] = moved_P / distance - correction_P
        return terms | {"control": Term(own["control"] - c_i_P, 1)}

    def server_update(self, state: State, sums: WeightedSums, r: Round) -> None:
        """c ← c + (|S|/m)·mean of the clients' changes."""
        super().server_update(state, sums, r)
        participants = float(sums.weights("control"))
        # Two roundings: one fused step could round otherwise on another device than the server's.
        state["control"].add_(sums.mean("control") * (participants / r.num_clients))
