"""What a run's models say of a shards file's test set, computed as the run computed it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedproc_mpi import algorithms
from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import nearest
from fedproc_mpi.partition import class_counts
from fedproc_mpi.predictor import Predictor, load_model
from fedproc_mpi.report.scores import Told
from fedproc_mpi.shards import HeldOut, Shards
from fedproc_mpi.store.model import read_config

ALL = -1


@dataclass(frozen=True)
class OnTest:
    """The test set, and what the models say of it.

    told: how a class is told ("classifier", "prototypes") → client → what is told of all N samples; the one
    model of all is client ALL. rows: each client's own test rows. mixes_mK: shares of the classes among each
    client's training samples. natural: clients are sites, with pictures of their own in the test set where
    it has any. same_data: whether it is the very data of the run. rounds: after how many the models are.
    """

    class_names: list[str]
    client_names: list[str]
    y_N: np.ndarray[Any, np.dtype[np.int64]]
    told: dict[str, dict[int, Told]]
    rows: list[np.ndarray[Any, np.dtype[np.int64]]]
    mixes_mK: np.ndarray[Any, np.dtype[np.float64]]
    natural: bool
    same_data: bool
    rounds: int

    @property
    def personal(self) -> bool:
        """Whether each client has a model of its own."""
        return ALL not in self.told["classifier"]


def predict_test(run_dir: Path, other_shards: str, best: bool) -> OnTest:
    """A run's predictions on its own test set, or on that of other shards of the same classes.

    best: of the model of the best round by validation. Raises UserError where the shards are not there, have
    changed, or do not fit the model.
    """
    config, record = read_config(run_dir)
    path = Path(other_shards or config.shards)
    if not path.is_file():
        raise UserError(f"{path}: no such shards file; name the run's with --shards FILE")
    with Shards(path) as shards:
        same = shards.fingerprint == record["data"]["fingerprint"]
        if not same and not other_shards:
            raise UserError(f"{path} has changed since the run; --shards {path} evaluates on it as it is now")
        _check(shards, record["data"], path)
        m, header = shards.num_clients, shards.header
        personal = algorithms.find(config.algorithm).personal
        owners = len(record["data"].get("client_names") or ()) or m
        if personal and (not same and (owners != m or header.partition != "natural")):
            raise UserError(
                f"{path}: clients have models of their own here, and the file's clients are not the run's"
            )
        told: dict[str, dict[int, Told]] = {}
        rounds = config.rounds
        for client, model in _models(run_dir, personal, m, best):
            for way, one in _tell(model, shards.test_set).items():
                told.setdefault(way, {})[client] = one
            rounds = model.rounds
        counts_mK = class_counts(shards)
        return OnTest(
            class_names=list(header.class_names),
            client_names=list(header.client_names) or [f"client {i}" for i in range(m)],
            y_N=shards.test_set.labels().astype(np.int64),
            told=told,
            rows=[shards.test_set.rows(i) for i in range(m)],
            mixes_mK=counts_mK / counts_mK.sum(1, keepdims=True),
            natural=header.partition == "natural",
            same_data=same,
            rounds=rounds,
        )


def _check(shards: Shards, data: dict[str, Any], path: Path) -> None:
    """Raise UserError where the shards are not of the run's classes and image size."""
    names, known = list(shards.header.class_names), list(data["class_names"])
    if names != known:
        other = next((n for n in names if n not in known), None)
        what = (
            f"class {other} is not one of the run's; {nearest(other, known)}"
            if other
            else "has other classes"
        )
        raise UserError(f"{path}: {what} (the run has {', '.join(known)})")
    if list(shards.header.image_shape) != list(data["image_shape"]):
        raise UserError(
            f"{path}: images are {shards.header.image_shape} (H, W, C), the run's were "
            f"{tuple(data['image_shape'])}"
        )


def _models(run_dir: Path, personal: bool, num_clients: int, best: bool) -> Iterator[tuple[int, Predictor]]:
    """The run's one model, as client ALL; or each client's own."""
    for client in range(num_clients) if personal else [ALL]:
        yield client, load_model(run_dir, client if personal else None, best=best)


@torch.no_grad()
def _tell(model: Predictor, test: HeldOut) -> dict[str, Told]:
    """By classifier and by prototypes, in the blocks in which the run evaluated: the same last bits."""
    found: dict[str, list[torch.Tensor]] = {}
    for start in range(0, len(test), model.block):
        images, _ = test.read(start, start + model.block)
        z_BD, logits_BK = model.both(images)
        found.setdefault("classifier", []).append(logits_BK.softmax(1))
        if (scores_BK := model.prototype_scores(z_BD)) is not None:
            found.setdefault("prototypes", []).append(scores_BK)
    labels = test.labels().astype(np.int64)
    return {way: Told(labels, torch.cat(scores).cpu().numpy()) for way, scores in found.items()}
