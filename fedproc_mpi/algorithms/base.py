"""What an algorithm is: sums over clients, then a division on the server.

Shapes: S floats of the model's state, N integer buffers, P parameters, K classes, D width of z.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedproc_mpi.config import DEFAULT_LR, Config
from fedproc_mpi.flags import validate
from fedproc_mpi.learn.client import Batch, LossParts, Round, Task, Tensors, Trainer
from fedproc_mpi.learn.flat import Entry, State
from fedproc_mpi.learn.sums import Group, Term, WeightedSums

# All that an algorithm's file needs, from one place.
__all__ = [
    *("Algorithm", "Batch", "Entry", "Group", "LossParts", "Round", "State", "Task", "Term", "Terms"),
    *("Tensors", "Trainer", "Update", "WeightedSums"),
]

Terms = dict[str, Term]
Update = tuple[Terms, Tensors]  # what a client adds to the round's sums, and what it keeps for its next round


@dataclass(frozen=True)
class Algorithm:
    """Local training and weighted model averaging, with the steps that an algorithm may override.

    The defaults are FedAvg: derive, and override what differs. The fields are the algorithm's
    hyperparameters and become flags. personal: there is no global model, each client keeps its own
    ("model", "counters"). loss_names: the parts that `loss` may return. default_lr: of SGD where --lr is not
    given. optimizers: those that it is defined for.
    """

    personal: ClassVar[bool] = False
    loss_names: ClassVar[Sequence[str]] = ("ce",)
    default_lr: ClassVar[float] = DEFAULT_LR
    optimizers: ClassVar[Sequence[str]] = ("sgd", "adamw")

    def __post_init__(self) -> None:
        validate(self)

    def options(self) -> dict[str, Any]:
        """The hyperparameters with their values."""
        return dataclasses.asdict(self)

    def model_of(self, config: Config, client: int) -> str:
        """The name of a client's model; only personal models may differ."""
        return config.model

    # ---- what travels, and how it starts -----------------------------------------------------------------

    def entries(self, trainer: Trainer) -> dict[str, Entry]:
        """What the server sends besides the model, by name; 0 (False) at the start."""
        return {}

    def groups(self, state: State, trainer: Trainer, sizes: Sequence[int]) -> dict[str, Group]:
        """The sums of a round whose participants hold `sizes` samples: model state and losses, by |D_i|."""
        total, model = sum(sizes), trainer.model
        return {
            "model": Group(
                size=model.vector_S.numel(), total=total, segments=model.segments, reference=state["model"]
            ),
            "counters": Group(
                size=model.counters_N.numel(), total=total, segments=model.counter_names, integer=True
            ),
            "losses": self.loss_group(total),
        }

    def start(self, state: State, seed: int) -> None:
        """Fill the entries for round 0. On rank 0; the state already holds the initial model."""

    def start_groups(self, trainer: Trainer, sizes: Sequence[int]) -> dict[str, Group]:
        """The sums of one pass over all clients before round 0; empty: there is no such pass."""
        return {}

    def start_terms(self, task: Task) -> Terms:
        """What one client adds to that pass. The task's round is -1."""
        raise NotImplementedError

    def start_update(self, state: State, sums: WeightedSums) -> None:
        """The entries for round 0, in place, from the sums of that pass. On rank 0."""

    # ---- a client's round --------------------------------------------------------------------------------

    def loss(self, batch: Batch, task: Task) -> LossParts:
        """The parts of the local loss, name → (weight, value). A part that counts nothing may be left out."""
        raise NotImplementedError

    def correct_gradient(self, grad_P: Tensor, w_P: Tensor, task: Task) -> None:
        """Change the loss's gradient in place, before each local step."""

    def client_update(self, task: Task) -> Update:
        """Train one client from the server's state: its terms of the sums, and what it keeps.

        What a client keeps comes back as `task.kept` in its next round, unless it diverged.
        """
        losses = task.train(self.loss, self.correct_gradient)
        terms = {
            "model": Term(task.model.vector_S, task.num_examples),
            "counters": Term(task.model.counters_N, task.num_examples),
            "losses": self.loss_term(task, losses),
        }
        return terms, {}

    def loss_group(self, total: int) -> Group:
        """Sums of the loss and of each part, with a weight each: a part may be missing in some rounds."""
        return Group(size=1 + len(self.loss_names), total=total, rows=1 + len(self.loss_names))

    def loss_term(self, task: Task, losses: Mapping[str, float]) -> Term:
        """A client's losses, as `Task.train` gives them, weighted by |D_i|."""
        names = ("total", *self.loss_names)
        new = task.model.vector_S.new_tensor
        weights = [task.num_examples * (name in losses) for name in names]
        return Term(new([losses.get(name, 0.0) for name in names]), new(weights))

    # ---- the server --------------------------------------------------------------------------------------

    def server_update(self, state: State, sums: WeightedSums, r: Round) -> None:
        """The next round's state, in place, from the reduced sums. On rank 0."""
        state["model"].copy_(sums.mean("model"))
        state["counters"].copy_(sums.mean("counters"))

    def metrics(self, sums: WeightedSums, r: Round) -> dict[str, Any]:
        """What `metrics.jsonl` records of a round, from the reduced sums. On rank 0."""
        names = ("loss", *(f"loss_{name}" for name in self.loss_names))
        means, weights = sums.mean("losses").tolist(), sums.weights("losses").tolist()
        return {name: mean for name, mean, n in zip(names, means, weights, strict=True) if n}

    def prototype_scores(self, z_BD: Tensor, state: Tensors) -> Tensor | None:
        """Scores (B, K) of the classes by their prototypes, the highest wins; None: there are none."""
        return None
