"""FedProc: Mu et al., "FedProc: Prototypical contrastive federated learning on non-IID data",
arXiv 2109.12273, Algorithm 1. What the paper leaves open is an option with the alternatives; [A] is the
first author's public code.

Shapes: B batch, K classes, D width of z.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedproc_mpi.algorithms import prototypes
from fedproc_mpi.algorithms.base import (
    Algorithm,
    Batch,
    Entry,
    Group,
    LossParts,
    Round,
    State,
    Task,
    Tensors,
    Terms,
    Trainer,
    Update,
    WeightedSums,
)
from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import setting
from fedproc_mpi.learn.seeds import torch_generator

IGNORE = -100  # cross_entropy's mark for a sample that adds nothing


def loss_gpc(
    z_BD: Tensor, y_B: Tensor, proto_KD: Tensor, seen_K: Tensor, temperature: float, twice: bool = False
) -> Tensor:
    """Global prototypical contrastive loss (FedProc §3.3): cross-entropy on cosine logits.

    seen_K (bool): classes that have a prototype; the others are masked out of the softmax, and a sample
    of such a class adds 0 to the mean over the batch. twice: the positive stands in the denominator a
    second time (Alg. 1 l.18 read literally). No gradient flows into the prototypes.
    """
    cosine_BK = cosine_logits(z_BD, proto_KD.detach(), seen_K, temperature)
    if not seen_K.all():
        y_B = torch.where(seen_K[y_B], y_B, IGNORE)
    if not twice:
        return F.cross_entropy(cosine_BK, y_B, ignore_index=IGNORE, reduction="sum") / len(y_B)
    known_B = y_B != IGNORE
    positive_b = cosine_BK[known_B].gather(1, y_B[known_B, None])[:, 0]
    return (cosine_BK[known_B].logsumexp(1).logaddexp(positive_b) - positive_b).sum() / len(y_B)


def cosine_logits(z_BD: Tensor, proto_KD: Tensor, seen_K: Tensor, temperature: float) -> Tensor:
    """Cosine of z and each prototype over the temperature, (B, K); classes never seen get the minimum."""
    cosine_BK = F.normalize(z_BD) @ F.normalize(proto_KD).T / temperature
    return cosine_BK if seen_K.all() else cosine_BK.masked_fill(~seen_K, torch.finfo(cosine_BK.dtype).min)


@dataclass(frozen=True)
class FedProc(Algorithm):
    """FedProc: local training contrasts z with global class prototypes, then with the classifier."""

    temperature: float = setting(1.0, "temperature of the cosine logits; 1 is none", above=0)
    prototype_source: Literal["global", "local"] = setting(
        "global", "prototypes in the loss; local: the client's own class means at the start of the round"
    )
    prototype_init: Literal["means", "zeros", "random"] = setting(
        "means", "prototypes of round 0; means: class means of the initial model", "author's code: zeros"
    )
    first_round: Literal["paper", "cross_entropy"] = setting(
        "paper", "round 0 as printed, or cross-entropy alone", "author's code: cross_entropy"
    )
    alpha_schedule: Literal["linear", "over100", "constant", "reverse"] = setting(
        "linear", "weight of the prototype loss: 1 - t/T; 1 - t/100; --alpha; t/T", "Alg. 1; Tab. 4"
    )
    alpha: float = setting(0.5, "the weight under --alpha-schedule constant, 0 to 1", low=0, high=1)
    prototype_average: Literal["holders", "all", "count"] = setting(
        "holders", "uniform over the clients that hold the class; 1/m over all; by class count"
    )
    absent_class: Literal["keep", "zeros"] = setting(
        "keep", "prototype of a class that no participant holds", "author's code: keep"
    )
    unseen_class: Literal["masked", "zero"] = setting(
        "masked",
        "a class that has had no prototype yet: left out of the softmax; or a zero vector in it",
        "author's code: zero",
    )
    denominator: Literal["once", "twice"] = setting(
        "once", "how often the positive stands in the denominator", "FedProc §3.3; Alg. 1 l.18: twice"
    )
    class_means: Literal["eval", "train", "train_bn"] = setting(
        "eval",
        "mode of the class means; train: augmented, drop-last; train_bn: moves BatchNorm's statistics too",
        "Eq. 5; author's code: train_bn",
    )
    means_of: Literal["z", "unit"] = setting(
        "z", "class means of z, or of z scaled to length 1", "Eq. 5; author's code: unit"
    )

    loss_names = ("gpc", "ce")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha != FedProc.alpha and self.alpha_schedule != "constant":
            raise UserError(
                f"--alpha {self.alpha} is for --alpha-schedule constant, and this is {self.alpha_schedule}"
            )

    def alpha_at(self, r: Round) -> float:
        """α: the weight of the prototype loss in round t."""
        if r.t == 0 and self.first_round == "cross_entropy":
            return 0.0
        if self.alpha_schedule == "constant":
            return self.alpha
        if self.alpha_schedule == "reverse":
            return r.t / r.total
        return max(0.0, 1 - r.t / (100 if self.alpha_schedule == "over100" else r.total))

    def entries(self, trainer: Trainer) -> dict[str, Entry]:
        return prototypes.entries(trainer)

    def groups(self, state: State, trainer: Trainer, sizes: Sequence[int]) -> dict[str, Group]:
        shared = prototypes.group(trainer, sizes, state["prototypes"], self.prototype_average)
        return super().groups(state, trainer, sizes) | shared

    def start(self, state: State, seed: int) -> None:
        """c⁰ where --prototype-init is random: unit vectors."""
        if self.prototype_init == "random":
            drawn_KD = torch.randn(state["prototypes"].shape, generator=torch_generator(seed, "prototypes"))
            state["prototypes"].copy_(F.normalize(drawn_KD))
            state["seen"].fill_(True)

    def start_groups(self, trainer: Trainer, sizes: Sequence[int]) -> dict[str, Group]:
        """c⁰ where it is class means of w⁰ over all clients' data (Alg. 1 l.3)."""
        if self.prototype_init != "means":
            return {}
        return prototypes.group(trainer, sizes, average=self.prototype_average)

    def start_terms(self, task: Task) -> Terms:
        means = task.class_means(self.class_means, self.means_of == "unit", of=task.state)
        return dict(prototypes.term(*means, self.prototype_average))

    def start_update(self, state: State, sums: WeightedSums) -> None:
        self._average(state, sums)

    def loss(self, batch: Batch, task: Task) -> LossParts:
        """α·gpc + (1-α)·ce (Alg. 1 l.16-19); a part without weight is not computed."""
        alpha, parts = self.alpha_at(task.round), {}
        if alpha > 0:
            proto_KD, seen_K = task.state["prototypes"], task.state["seen"]
            if self.unseen_class == "zero":
                seen_K = torch.ones_like(seen_K)
            twice = self.denominator == "twice"
            gpc = loss_gpc(batch.z_BD, batch.y_B, proto_KD, seen_K, self.temperature, twice)
            parts["gpc"] = (alpha, gpc)
        if alpha < 1:
            parts["ce"] = (1 - alpha, task.cross_entropy(batch))
        return parts

    def client_update(self, task: Task) -> Update:
        """Alg. 1 l.12-23: local training, then the client's class means (Eq. 5)."""
        if self.prototype_source == "local":
            means_KD, counts_K = task.class_means(unit=self.means_of == "unit", of=task.state)
            task = task.with_state(prototypes=means_KD, seen=counts_K > 0)
        terms, kept = super().client_update(task)
        # The model's term is the model itself: what this pass does to BatchNorm's statistics is averaged too.
        means = task.class_means(self.class_means, self.means_of == "unit")
        return terms | prototypes.term(*means, self.prototype_average), kept

    def server_update(self, state: State, sums: WeightedSums, r: Round) -> None:
        """w and c of the next round (Alg. 1 l.9-10)."""
        super().server_update(state, sums, r)
        self._average(state, sums)

    def _average(self, state: State, sums: WeightedSums) -> None:
        prototypes.update(state, sums, self.prototype_average, self.absent_class == "keep")

    def prototype_scores(self, z_BD: Tensor, state: Tensors) -> Tensor:
        return cosine_logits(z_BD, state["prototypes"], state["seen"], 1.0)

    def metrics(self, sums: WeightedSums, r: Round) -> dict[str, Any]:
        return super().metrics(sums, r) | prototypes.metrics(sums) | {"alpha": self.alpha_at(r)}
