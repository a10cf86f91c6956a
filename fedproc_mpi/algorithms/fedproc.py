"""FedProc: Mu et al., "FedProc: Prototypical contrastive federated learning on non-IID data",
arXiv 2109.12273, Algorithm 1. What the paper leaves open is an option with the alternatives; [A] is the
first author's public code.

Shapes: B batch, K classes, D width of z.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedproc_mpi.algorithms.base import Algorithm
from fedproc_mpi.comm import Comm
from fedproc_mpi.config import setting
from fedproc_mpi.errors import UserError
from fedproc_mpi.learn.client import Batch, LossParts, Round, Trainer
from fedproc_mpi.learn.data import ClientData, Clients
from fedproc_mpi.learn.flat import Entry, State
from fedproc_mpi.learn.seeds import torch_generator
from fedproc_mpi.learn.sums import Group, Term, WeightedSums
from fedproc_mpi.store.client_state import ClientState

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

    temperature: float = setting(1.0, "temperature of the cosine logits; 1 is none")
    prototype_source: Literal["global", "local"] = setting(
        "global", "prototypes in the loss; local: the client's own class means at the start of the round"
    )
    prototype_init: Literal["means", "zeros", "random"] = setting(
        "means", "prototypes of round 0; means: class means of the initial model", "author's code"
    )
    first_round: Literal["paper", "cross_entropy"] = setting(
        "paper", "round 0 as printed, or cross-entropy alone", "author's code: cross_entropy"
    )
    alpha_schedule: Literal["linear", "over100", "constant", "reverse"] = setting(
        "linear", "weight of the prototype loss: 1 - t/T; 1 - t/100; --alpha; t/T", "Alg. 1; Tab. 4"
    )
    alpha: float = setting(0.5, "the weight under --alpha-schedule constant, 0 to 1")
    prototype_average: Literal["holders", "all", "count"] = setting(
        "holders", "uniform over the clients that hold the class; 1/m over all; by class count"
    )
    absent_class: Literal["keep", "zeros"] = setting(
        "keep", "prototype of a class that no participant holds", "author's code: zeros"
    )
    denominator: Literal["once", "twice"] = setting(
        "once", "how often the positive stands in the denominator", "FedProc §3.3; Alg. 1 l.18: twice"
    )
    class_means: Literal["eval", "train"] = setting(
        "eval", "mode of the class means; train: augmented, drop-last", "Eq. 5; author's code: train"
    )

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise UserError(f"--temperature must be above 0, not {self.temperature}")
        if not 0 <= self.alpha <= 1:
            raise UserError(f"--alpha must be in [0, 1], not {self.alpha}")

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
        shape_KD = (trainer.num_classes, trainer.embedding)
        return {"prototypes": Entry(shape_KD), "seen": Entry(shape_KD[:1], torch.bool)}

    def init(self, state: State, trainer: Trainer, clients: Clients, mine: Sequence[int], comm: Comm) -> None:
        """c⁰ (Alg. 1 l.3): class means of w⁰ over the clients' data, or what --prototype-init says."""
        if self.prototype_init == "random":
            generator = torch_generator(trainer.config.seed, "prototypes")
            drawn_KD = torch.randn(state["prototypes"].shape, generator=generator)
            state["prototypes"].copy_(F.normalize(drawn_KD))
            state["seen"].fill_(True)
        if self.prototype_init != "means":
            return
        sums = WeightedSums(
            {"prototypes": self._prototype_group(trainer, clients.sizes, None)}, trainer.device
        )
        trainer.model.load(state["model"], state["counters"])
        for k in mine:
            sums.add(k, {"prototypes": self._prototype_term(trainer, clients[k], t=-1)})
        comm.agree(None)
        comm.reduce(sums.buffer)
        if comm.rank == 0:
            self._average_prototypes(state, sums)
        comm.broadcast(state["prototypes"])
        comm.broadcast(state["seen"])

    def loss(self, batch: Batch, state: State, r: Round) -> LossParts:
        return self._loss(batch, r, state["prototypes"], state["seen"])

    def _loss(self, batch: Batch, r: Round, proto_KD: Tensor, seen_K: Tensor) -> LossParts:
        """α·gpc + (1-α)·ce; a part without weight is not computed."""
        alpha, parts = self.alpha_at(r), {}
        if alpha > 0:
            gpc = loss_gpc(
                batch.z_BD, batch.y_B, proto_KD, seen_K, self.temperature, self.denominator == "twice"
            )
            parts["gpc"] = (alpha, gpc)
        if alpha < 1:
            parts["ce"] = (1 - alpha, F.cross_entropy(batch.logits_BK, batch.y_B))
        return parts

    def loss_names(self, r: Round) -> Sequence[str]:
        alpha = self.alpha_at(r)
        return [name for name, used in (("gpc", alpha > 0), ("ce", alpha < 1)) if used]

    def groups(
        self, state: State, trainer: Trainer, cohort_sizes: Sequence[int], r: Round
    ) -> dict[str, Group]:
        groups = super().groups(state, trainer, cohort_sizes, r)
        reference = state["prototypes"]
        return groups | {"prototypes": self._prototype_group(trainer, cohort_sizes, reference)}

    def client_update(
        self, trainer: Trainer, data: ClientData, state: State, r: Round, own: ClientState
    ) -> Mapping[str, Term]:
        """Alg. 1 l.12-23: local training, then the client's class means (Eq. 5)."""
        proto_KD, seen_K = state["prototypes"], state["seen"]
        if self.prototype_source == "local":
            trainer.model.load(state["model"], state["counters"])
            proto_KD, counts_K = trainer.class_means(data)
            seen_K = counts_K > 0
        losses = trainer.train(data, state, r.t, lambda batch: self._loss(batch, r, proto_KD, seen_K))
        terms = self.model_terms(trainer, data, losses, r)
        return terms | {"prototypes": self._prototype_term(trainer, data, r.t)}

    def server_update(self, state: State, sums: WeightedSums, r: Round) -> None:
        """w and c of the next round (Alg. 1 l.9-10)."""
        super().server_update(state, sums, r)
        self._average_prototypes(state, sums)

    def prototype_scores(self, z_BD: Tensor, state: State) -> Tensor:
        return cosine_logits(z_BD, state["prototypes"], state["seen"], 1.0)

    def metrics(self, sums: WeightedSums, r: Round) -> dict[str, Any]:
        return super().metrics(sums, r) | {"alpha": self.alpha_at(r)}

    def _prototype_group(self, trainer: Trainer, sizes: Sequence[int], reference: Tensor | None) -> Group:
        total = sum(sizes) if self.prototype_average == "count" else len(sizes)
        return Group(trainer.num_classes * trainer.embedding, total, (), trainer.num_classes, reference)

    def _prototype_term(self, trainer: Trainer, data: ClientData, t: int) -> Term:
        means_KD, counts_K = trainer.class_means(data, self.class_means, t + 1)
        weights_K = {"holders": (counts_K > 0).long(), "all": torch.ones_like(counts_K), "count": counts_K}
        return Term(means_KD, weights_K[self.prototype_average])

    def _average_prototypes(self, state: State, sums: WeightedSums) -> None:
        """A class that nobody holds keeps its prototype, or becomes 0; one never seen stays masked."""
        held_K = sums.weights("prototypes") > 0
        if self.prototype_average == "all":
            held_K = sums.mean("prototypes").view(len(held_K), -1).abs().sum(1) > 0
        mean_KD = sums.mean("prototypes").view(len(held_K), -1)
        old_KD = state["prototypes"] if self.absent_class == "keep" else torch.zeros_like(mean_KD)
        state["prototypes"].copy_(torch.where(held_K[:, None], mean_KD, old_KD))
        state["seen"].logical_or_(held_K)
