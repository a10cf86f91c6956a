"""Both views of a model: on a whole held-out set, and on each client's own rows of it. Only counts travel.

Counts are keyed by how a class is told ("head": the classifier; "prototype": the nearest one), by view
("all", "own") and by client (GLOBAL: the one model of all). Adding the ranks' counts is then all.

Shapes: B batch, D width of z, K classes, N samples of the held-out set, m clients.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedproc_mpi.learn.client import Trainer
from fedproc_mpi.learn.data import Clients
from fedproc_mpi.shards import HeldOut

GLOBAL = -1
Counted = dict[int, list[int]]  # client → right predictions: per class in view "all", one number in "own"
Counts = dict[str, dict[str, Counted]]  # way → view → …
Scores = Callable[[Tensor], Tensor | None]  # z_BD → scores_BK by prototypes, or None without prototypes


@dataclass(frozen=True)
class Sizes:
    """What counts are divided by: samples per class, each client's own rows; and the clients' names."""

    per_class: Sequence[int]
    own: Sequence[int]
    names: Sequence[str]


class Evaluator:
    """Counts right predictions on this rank's blocks of a held-out set: block j is client rank j mod n's.

    block: samples per block. rank: this one; where it is no client rank, it has no block. name: the set's.
    """

    def __init__(
        self, clients: Clients, held_out: HeldOut, block: int, rank: int, client_ranks: range
    ) -> None:
        self._clients, self._held_out, self._block = clients, held_out, block
        self.name = held_out.name
        self._share = (
            slice(client_ranks.index(rank), None, len(client_ranks)) if rank in client_ranks else None
        )
        self._resident: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        shards = clients.shards
        rows = [held_out.rows(k) for k in range(len(clients))]
        self._own_rows = np.concatenate(rows)
        self._owners = np.repeat(np.arange(len(rows), dtype=np.int32), [len(own) for own in rows])
        self._labels_N = held_out.labels()
        names = shards.header.client_names or [str(k) for k in range(len(clients))]
        per_class = np.bincount(self._labels_N, minlength=shards.num_classes).tolist()
        self.sizes = Sizes(per_class, [len(own) for own in rows], names)

    def count(self, trainer: Trainer, scores: Scores) -> Counts:
        """Right predictions of the trainer's present weights on this rank's blocks, one pass.

        Every client's own rows within these blocks are counted from the same pass.
        """
        counts: Counts = {}
        blocks = self._blocks(0, len(self._held_out))[self._share] if self._share else []
        for way, correct_N in self._correct(trainer, scores, blocks).items():
            own_m = np.bincount(self._owners[correct_N[self._own_rows]], minlength=len(self._clients))
            counts[way] = {
                "all": {GLOBAL: self._per_class(correct_N)},
                "own": {int(k): [int(own_m[k])] for k in np.flatnonzero(own_m)},
            }
        return counts

    def count_personal(self, trainer: Trainer, client: int, scores: Scores) -> Counts:
        """The same for one client's model over the whole set and the client's own rows."""
        own_rows = self._held_out.rows(client)
        blocks = self._blocks(0, len(self._held_out))
        return {
            way: {
                "all": {client: self._per_class(correct_N)},
                "own": {client: [int(correct_N[own_rows].sum())]},
            }
            for way, correct_N in self._correct(trainer, scores, blocks).items()
        }

    def count_own(self, trainer: Trainer, client: int, scores: Scores) -> Counts:
        """The same over the client's own rows alone, which must follow one another, as validation rows do."""
        own_rows = self._held_out.rows(client)
        if not len(own_rows):
            return {}
        blocks = self._blocks(int(own_rows[0]), int(own_rows[-1]) + 1)
        return {
            way: {"own": {client: [int(correct_N[own_rows].sum())]}}
            for way, correct_N in self._correct(trainer, scores, blocks).items()
        }

    def _blocks(self, start: int, stop: int) -> list[tuple[int, int]]:
        return [(a, min(a + self._block, stop)) for a in range(start, stop, self._block)]

    def _per_class(self, correct_N: Any) -> list[int]:
        right = self._labels_N[correct_N]
        return list(np.bincount(right, minlength=len(self.sizes.per_class)).tolist())

    @torch.no_grad()
    def _correct(self, trainer: Trainer, scores: Scores, blocks: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """Way → which of the N samples are told right; those outside `blocks` are not."""
        trainer.model.module.eval()
        correct: dict[str, Any] = {}
        for start, stop in blocks:
            x_BCHW, y_B = self._load(start, stop)
            z_BD, logits_BK = trainer.forward(trainer.batches.normalise(x_BCHW))
            by_way = {"head": logits_BK, "prototype": scores(z_BD)}
            for way, scores_BK in by_way.items():
                if scores_BK is not None:
                    correct_N = correct.setdefault(way, np.zeros(len(self._held_out), dtype=bool))
                    told = (scores_BK.argmax(1) == y_B).cpu().numpy()
                    correct_N[start:stop] = told
        return correct

    def _load(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        if (start, stop) not in self._resident:
            x_NHWC, y_N = self._held_out.read(start, stop)
            x_NCHW = self._clients.to_device(x_NHWC)
            labels_N = torch.from_numpy(y_N.astype("int64")).to(x_NCHW.device)
            self._resident[start, stop] = x_NCHW, labels_N
        return self._resident[start, stop]


def add_counts(counts: Iterable[Counts]) -> Counts:
    """The sum of counts."""
    total: Counts = {}
    for one in counts:
        for way, views in one.items():
            for view, by_client in views.items():
                into = total.setdefault(way, {}).setdefault(view, {})
                for client, correct in by_client.items():
                    before = into.get(client, [0] * len(correct))
                    into[client] = [a + b for a, b in zip(before, correct, strict=True)]
    return total


def accuracies(counts: Counts, sizes: Sizes, prefix: str = "") -> dict[str, Any]:
    """What `metrics.jsonl` records, from the sum of all ranks' counts.

    accuracy: of the global model, or the mean (with `accuracy_std`) over the `clients_evaluated` personal
    models that were evaluated, on the whole set; on their own rows, where only these were counted.
    balanced_accuracy: the mean of class_recall, which is per class, None where the set has none of it; of
    personal models the mean. client_accuracy: by client's name, on its own rows; clients without any are left
    out; _mean, _std, _worst_decile over them. prototype_accuracy, client_prototype_accuracy_*: by the nearest
    prototype. prefix: before "accuracy" and the others, as `val_`.
    """
    found: dict[str, Any] = {}
    for way, views in counts.items():
        name, of_all = prefix + ("" if way == "head" else f"{way}_"), views.get("all", {})
        evaluated = range(len(sizes.own)) if GLOBAL in of_all else sorted(views["own"])
        right = {k: sum(views["own"].get(k, [0])) for k in evaluated}
        own = {k: n / sizes.own[k] for k, n in right.items() if sizes.own[k]}
        per_model = [sum(of_all[k]) / sum(sizes.per_class) for k in sorted(of_all)] or list(own.values())
        found[f"{name}accuracy"] = fmean(per_model)
        if GLOBAL not in of_all:
            found[f"{name}accuracy_std"] = pstdev(per_model)
            found[f"{prefix}clients_evaluated"] = len(per_model)
        if way == "head" and of_all:
            recall_K = [
                fmean(right_K[k] for right_K in of_all.values()) / n if n else None
                for k, n in enumerate(sizes.per_class)
            ]
            found[f"{name}balanced_accuracy"] = fmean(r for r in recall_K if r is not None)
            found[f"{name}class_recall"] = recall_K
        if own:
            found |= _over_clients(f"client_{name}accuracy", own, sizes.names if way == "head" else None)
    return found


def _over_clients(key: str, own: Mapping[int, float], names: Sequence[str] | None) -> dict[str, Any]:
    """The spread of the clients' accuracies; and each one's, where names are given."""
    values = list(own.values())
    return {
        f"{key}_mean": fmean(values),
        f"{key}_std": pstdev(values),
        f"{key}_worst_decile": worst_decile(values),
        **({key: {names[k]: value for k, value in own.items()}} if names else {}),
    }


def worst_decile(accuracies: Sequence[float]) -> float:
    """The mean of the lowest tenth (at least one client)."""
    return fmean(sorted(accuracies)[: math.ceil(len(accuracies) / 10)])
