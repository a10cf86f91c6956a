"""What a run's models say of a shards file's test set, computed as the run computed it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedproc_mpi import algorithms
from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import nearest
from fedproc_mpi.partition import class_counts
from fedproc_mpi.predictor import load_model
from fedproc_mpi.report.scores import Told
from fedproc_mpi.shards import Images, Shards, digest
from fedproc_mpi.store.model import read_config

ALL = -1
Labels = npt.NDArray[np.int64]
Reader = Callable[[int, int], tuple[Images, npt.NDArray[Any]]]  # (start, stop) → images and labels


@dataclass(frozen=True)
class Pictures:
    """Images to evaluate on that are in no shards file.

    y_N: their classes, by place among the run's. sites: each site's rows by its name, where there are sites.
    """

    x_NHWC: Images
    y_N: Labels
    sites: dict[str, Labels]


@dataclass(frozen=True)
class OnTest:
    """The images evaluated on, and what the models say of them.

    told: how a class is told ("classifier", "prototypes") → client → what is told of all N samples; the one
    model of all is client ALL. rows: each client's own test rows. mixes_mK: shares of the classes among each
    client's training samples, NaN where there are none. natural: a client is a site, and its rows are its own
    images. same_data: whether it is the very data of the run. trained_on: how many of the images the run has
    trained on, where it is not; None: not known. rounds: after how many the models are.
    """

    class_names: list[str]
    client_names: list[str]
    y_N: Labels
    told: dict[str, dict[int, Told]]
    rows: list[Labels]
    mixes_mK: np.ndarray[Any, np.dtype[np.float64]]
    natural: bool
    same_data: bool
    trained_on: int | None
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
        remedy = "" if other_shards else "; if they are elsewhere now, --shards FILE names them"
        raise UserError(f"{path}: no such shards file{remedy}")
    with Shards(path) as shards:
        same = shards.fingerprint == record["data"]["fingerprint"]
        if not same and not other_shards:
            raise UserError(f"{path} has changed since the run; --shards {path} evaluates on it as it is now")
        _check(shards, record["data"], path)
        m, header, test = shards.num_clients, shards.header, shards.test_set
        personal, y_N = algorithms.find(config.algorithm).personal, test.labels().astype(np.int64)
        owners = len(record["data"].get("client_names") or ()) or m
        if personal and (not same and (owners != m or header.partition != "natural")):
            raise UserError(
                f"{path}: clients have models of their own here, and the file's clients are not the run's"
            )
        told, rounds = _tell_all(run_dir, list(range(m)) if personal else [ALL], best, test.read, y_N)
        counts_mK = class_counts(shards)
        rows = [test.rows(i) for i in range(m)]
        return OnTest(
            class_names=list(header.class_names),
            client_names=list(header.client_names) or [f"client {i}" for i in range(m)],
            y_N=y_N,
            told=told,
            rows=rows,
            mixes_mK=counts_mK / counts_mK.sum(1, keepdims=True),
            natural=header.partition == "natural" and _own(rows),
            same_data=same,
            trained_on=0 if same else _trained_on(config.shards, record["data"], test.read(0, len(test))[0]),
            rounds=rounds,
        )


def predict_pictures(run_dir: Path, pictures: Pictures, best: bool) -> OnTest:
    """A run's predictions on pictures in no shards file. best: as for `predict_test`.

    Raises UserError where clients have models of their own.
    """
    config, record = read_config(run_dir)
    if algorithms.find(config.algorithm).personal:
        raise UserError(f"{run_dir}: clients have models of their own, and these images are of none of them")

    def read(start: int, stop: int) -> tuple[Images, Labels]:
        return pictures.x_NHWC[start:stop], pictures.y_N[start:stop]

    told, rounds = _tell_all(run_dir, [ALL], best, read, pictures.y_N)
    names = list(record["data"]["class_names"])
    return OnTest(
        class_names=names,
        client_names=list(pictures.sites),
        y_N=pictures.y_N,
        told=told,
        rows=list(pictures.sites.values()),
        mixes_mK=np.full((len(pictures.sites), len(names)), np.nan),
        natural=True,
        same_data=False,
        trained_on=_trained_on(config.shards, record["data"], pictures.x_NHWC),
        rounds=rounds,
    )


def _own(rows: Sequence[Labels]) -> bool:
    """Whether each client's rows are its own: no image is in two clients' rows."""
    every = np.concatenate([*rows, np.zeros(0, np.int64)])
    return len(np.unique(every)) == len(every)


def _trained_on(path: str, data: Mapping[str, Any], x_NHWC: Images) -> int | None:
    """How many of the images the run has trained on; None where its shards are not there any more."""
    with suppress(UserError), Shards(path) as shards:
        if shards.fingerprint == data["fingerprint"]:
            seen = {digest(x_HWC) for i in range(shards.num_clients) for x_HWC in shards.client(i)[0]}
            return sum(digest(x_HWC) in seen for x_HWC in x_NHWC)
    return None


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


@torch.no_grad()
def _tell_all(
    run_dir: Path, clients: Sequence[int], best: bool, read: Reader, y_N: Labels
) -> tuple[dict[str, dict[int, Told]], int]:
    """Way → client → what is told of all images; and after how many rounds the models are.

    clients: whose models; ALL is the one model of all. They are computed in the blocks in which the run
    evaluated, which gives the same last bits.
    """
    found: dict[str, dict[int, Told]] = {}
    rounds = 0
    for client in clients:
        model = load_model(run_dir, None if client == ALL else client, best=best)
        rounds, pieces = model.rounds, dict[str, list[torch.Tensor]]()
        for start in range(0, len(y_N), model.block):
            z_BD, logits_BK = model.both(read(start, min(start + model.block, len(y_N)))[0])
            pieces.setdefault("classifier", []).append(logits_BK.softmax(1))
            if (scores_BK := model.prototype_scores(z_BD)) is not None:
                pieces.setdefault("prototypes", []).append(scores_BK)
        for way, scores in pieces.items():
            found.setdefault(way, {})[client] = Told(y_N, torch.cat(scores).cpu().numpy())
    return found, rounds
