"""Class prototypes as they travel: what FedProc and FedProto share.

A prototype is a class's mean z. The server holds one per class, and which classes have ever had one.

Shapes: K classes, D width of z.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedproc_mpi.algorithms.base import Entry, Group, State, Term, Trainer, WeightedSums

# Uniform over the clients that hold the class; 1/m over all clients; by the class's sample count.
Average = Literal["holders", "all", "count"]


def entries(trainer: Trainer) -> dict[str, Entry]:
    """The entries "prototypes" (K, D), and "seen" (K,): the classes that have one."""
    shape_KD = (trainer.num_classes, trainer.embedding)
    return {"prototypes": Entry(shape_KD), "seen": Entry(shape_KD[:1], torch.bool)}


def group(
    trainer: Trainer, sizes: Sequence[int], reference: Tensor | None = None, average: Average = "holders"
) -> dict[str, Group]:
    """The sums of class means with a weight per class. sizes: |D_i| of the participants."""
    K, D = trainer.num_classes, trainer.embedding
    total = sum(sizes) if average == "count" else len(sizes)
    return {"prototypes": Group(size=K * D, total=total, rows=K, reference=reference)}


def term(means_KD: Tensor, counts_K: Tensor, average: Average = "holders") -> dict[str, Term]:
    """A client's class means as a term. counts_K: its samples per class."""
    weights_K = {"holders": (counts_K > 0).long(), "all": torch.ones_like(counts_K), "count": counts_K}
    return {"prototypes": Term(means_KD, weights_K[average])}


def metrics(sums: WeightedSums) -> dict[str, float]:
    """The mean cosine over the pairs of classes that have a mean in this round; {} without a pair."""
    mean_KD = sums.mean("prototypes").view(sums.groups["prototypes"].rows, -1)
    unit_HD = F.normalize(mean_KD[mean_KD.abs().sum(1) > 0].double())
    held = len(unit_HD)
    if held < 2:
        return {}
    total = float((unit_HD @ unit_HD.T).sum() - held)
    return {"prototype_cosine": round(total / (held * (held - 1)), 6)}


def update(state: State, sums: WeightedSums, average: Average = "holders", keep_absent: bool = True) -> None:
    """The new prototypes, in place. A class never held stays unseen.

    keep_absent: a class that no participant holds keeps its prototype; else that becomes 0.
    """
    mean_KD = sums.mean("prototypes").view(state["prototypes"].shape)
    held_K = sums.weights("prototypes") > 0
    if average == "all":  # those that hold nothing have a weight as well
        held_K = mean_KD.abs().sum(1) > 0
    old_KD = state["prototypes"] if keep_absent else torch.zeros_like(mean_KD)
    state["prototypes"].copy_(torch.where(held_K[:, None], mean_KD, old_KD))
    state["seen"].logical_or_(held_K)
