"""Both views of a model: on the global test set, and on each client's own test rows. Only counts travel.

Counts are keyed by how a class is told ("head": the classifier; "prototype": the nearest one), by set
("test", "own") and by client (GLOBAL: the one model of all). Adding the ranks' counts is then all.

Shapes: B batch, D width of z, N test samples.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedproc_mpi.learn.client import Trainer
from fedproc_mpi.learn.data import Clients

GLOBAL = -1
Counts = dict[str, dict[str, dict[int, int]]]  # way → set → client → correct
Scores = Callable[[Tensor], Tensor | None]  # z_BD → scores_BK by prototypes, or None without prototypes


class Evaluator:
    """Counts right predictions on this rank's blocks of the test set: block j is client rank j mod n's.

    block: samples per block. rank: this one; where it is no client rank, it has no block. own_sizes: how many
    test rows each client has of its own.
    """

    def __init__(self, clients: Clients, block: int, rank: int, client_ranks: range) -> None:
        self._clients, self._shards, self._block = clients, clients.shards, block
        self._all_blocks = range(-(-clients.shards.num_test // block))
        share = client_ranks.index(rank) if rank in client_ranks else None
        self._blocks = range(0) if share is None else self._all_blocks[share :: len(client_ranks)]
        self._resident: dict[int, tuple[Tensor, Tensor]] = {}
        rows = [clients.shards.client_test_rows(k) for k in range(len(clients))]
        self.own_sizes = [len(own) for own in rows]
        self._own_rows = np.concatenate(rows)
        self._owners = np.repeat(np.arange(len(rows), dtype=np.int32), self.own_sizes)

    def count(self, trainer: Trainer, scores: Scores) -> Counts:
        """Right predictions of the trainer's present weights on this rank's blocks, one pass.

        Every client's own rows within these blocks are counted from the same pass.
        """
        counts: Counts = {}
        for way, correct_N in self._correct(trainer, scores, self._blocks).items():
            own_m = np.bincount(self._owners[correct_N[self._own_rows]], minlength=len(self._clients))
            counts[way] = {
                "test": {GLOBAL: int(correct_N.sum())},
                "own": {int(k): int(own_m[k]) for k in np.flatnonzero(own_m)},
            }
        return counts

    def count_personal(self, trainer: Trainer, client: int, scores: Scores) -> Counts:
        """The same for one client's model over the whole test set and the client's own rows."""
        own_rows = self._shards.client_test_rows(client)
        return {
            way: {"test": {client: int(correct_N.sum())}, "own": {client: int(correct_N[own_rows].sum())}}
            for way, correct_N in self._correct(trainer, scores, self._all_blocks).items()
        }

    @torch.no_grad()
    def _correct(self, trainer: Trainer, scores: Scores, blocks: Sequence[int]) -> dict[str, Any]:
        """Way → which of the N test samples are told right; those outside `blocks` are not."""
        trainer.model.module.eval()
        correct: dict[str, Any] = {}
        for block in blocks:
            x_BCHW, y_B = self._load(block)
            z_BD, logits_BK = trainer.forward(trainer.batches.normalise(x_BCHW))
            by_way = {"head": logits_BK, "prototype": scores(z_BD)}
            for way, scores_BK in by_way.items():
                if scores_BK is not None:
                    correct_N = correct.setdefault(way, np.zeros(self._shards.num_test, dtype=bool))
                    told = (scores_BK.argmax(1) == y_B).cpu().numpy()
                    start = block * self._block
                    correct_N[start : start + len(y_B)] = told
        return correct

    def _load(self, block: int) -> tuple[Tensor, Tensor]:
        if block not in self._resident:
            x_NHWC, y_N = self._shards.test(block * self._block, (block + 1) * self._block)
            x_NCHW = self._clients.to_device(x_NHWC)
            self._resident[block] = x_NCHW, torch.from_numpy(y_N.astype("int64")).to(x_NCHW.device)
        return self._resident[block]


def add_counts(counts: Iterable[Counts]) -> Counts:
    """The sum of counts."""
    total: Counts = {}
    for one in counts:
        for way, sets in one.items():
            for name, by_client in sets.items():
                into = total.setdefault(way, {}).setdefault(name, {})
                for client, correct in by_client.items():
                    into[client] = into.get(client, 0) + correct
    return total


def accuracies(counts: Counts, num_test: int, own_sizes: Sequence[int]) -> dict[str, float]:
    """What `metrics.jsonl` records, from the sum of all ranks' counts.

    accuracy: of the global model, or the mean (with `accuracy_std`) over the `clients_evaluated` personal
    models that were evaluated, on the global test set; client_accuracy_*: mean, std and worst decile over
    the clients, each on its own test rows; prototype_accuracy, client_prototype_accuracy_*: by the nearest
    prototype.
    own_sizes: number of each client's own test rows; clients without any are left out of their view.
    """
    found: dict[str, float] = {}
    for way, sets in counts.items():
        prefix = "" if way == "head" else f"{way}_"
        on_test = [correct / num_test for _, correct in sorted(sets["test"].items())]
        found[f"{prefix}accuracy"] = fmean(on_test)
        personal = GLOBAL not in sets["test"]
        if personal:
            found[f"{prefix}accuracy_std"] = pstdev(on_test)
            found["clients_evaluated"] = len(on_test)
        clients = [k for k in (sets["test"] if personal else range(len(own_sizes))) if own_sizes[k]]
        if clients:
            own = sorted(sets["own"].get(k, 0) / own_sizes[k] for k in clients)
            found[f"client_{prefix}accuracy_mean"] = fmean(own)
            found[f"client_{prefix}accuracy_std"] = pstdev(own)
            found[f"client_{prefix}accuracy_worst_decile"] = worst_decile(own)
    return found


def worst_decile(accuracies: Sequence[float]) -> float:
    """The mean of the lowest tenth (at least one client)."""
    return fmean(sorted(accuracies)[: math.ceil(len(accuracies) / 10)])
