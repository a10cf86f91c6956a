"""Where two clients' models and the global one put the test images (as in FedProc's Fig. 2), in the plane.

Shapes: N test images, D width of z, K classes.
"""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from fedproc_mpi.comm.serial import SerialComm
from fedproc_mpi.errors import UserError
from fedproc_mpi.figure import new_figure, plain, save_figure, shortened
from fedproc_mpi.learn.client import Round, Task
from fedproc_mpi.learn.sums import Diverged
from fedproc_mpi.placement.devices import restored_settings
from fedproc_mpi.rank import Rank, set_up
from fedproc_mpi.report.curves import COLOURS, MARKERS
from fedproc_mpi.report.tables import Section
from fedproc_mpi.store import checkpoint
from fedproc_mpi.store.clients import NONE, read_client, verify_clients
from fedproc_mpi.store.model import find_client, read_config

MOST_IMAGES = 1000  # evenly spaced over the test set: more dots hide each other
MOST_CLASSES = 10  # with a colour and a mark of their own
PERPLEXITY = 30  # of t-SNE: van der Maaten & Hinton 2008, §3.1, name 5 to 50
Method = Literal["pca", "tsne"]
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Features:
    """What one model makes of the test images, and the prototypes that go with it; all of length 1.

    before_KD: the server's prototypes that it was trained with. after_KD: the mean z of the client's own
    classes, after. A row of NaN, or None: there is none.
    """

    name: str
    z_ND: Array
    before_KD: Array | None
    after_KD: Array | None


def section(run_dir: Path, clients: Sequence[str], method: Method, folder: Path) -> Section:
    """The picture of a run's features, as a section. clients: two, by name or number.

    The clients train one round from the run's last checkpoint. Raises UserError where the run has no
    checkpoint, its models are personal, its shards are gone, or a client is unknown or diverges.
    """
    found, y_N, classes = features(run_dir, clients)
    out = folder / "features.png"
    _draw(_placed(found, method), found, y_N, classes, out)
    how = "t-SNE" if method == "tsne" else "principal components"
    said = [
        f"{run_dir.name}: z of {len(y_N)} test images, of length 1; {how} of all three models together.",
        "Each client has trained one more round from the global model, on its own data.",
        "Stars: the prototypes that the server sent. Crosses: means of the client's own classes afterwards.",
    ]
    return Section("Features", sentences=said, picture=out.name)


def features(run_dir: Path, clients: Sequence[str]) -> tuple[list[Features], Array, list[str]]:
    """(features of the global model and of the clients', labels y_N, names of the classes). See `section`."""
    if len(clients) != 2:
        raise UserError(f"--feature-clients {' '.join(clients)}: name two clients")
    config, record = read_config(run_dir)
    numbers = [find_client(record["data"], text) for text in clients]
    saved = checkpoint.load(run_dir, lambda versions: verify_clients(run_dir, versions))
    if saved is None:
        raise UserError(f"{run_dir}: no checkpoint, and the features need one")
    with restored_settings():
        rank = set_up(dataclasses.replace(config, tensorboard=False), SerialComm())
        with closing(rank.shards):
            if rank.algorithm.personal:
                raise UserError(f"{run_dir}: each client has its own model there, and there is no global one")
            for name, tensor in saved["state"].items():
                rank.state[name].copy_(tensor)
            test = rank.shards.test_set
            rows = np.linspace(0, len(test) - 1, min(len(test), MOST_IMAGES)).astype(int)
            found = [_of_global(rank, rows)]
            for text, k in zip(clients, numbers, strict=True):
                if k is None or not 0 <= k < len(rank.clients):
                    raise UserError(f"--feature-clients {text}: the clients are 0 to {len(rank.clients) - 1}")
                found.append(_of_client(rank, run_dir, k, saved, rows))
            return found, test.labels()[rows], list(record["data"]["class_names"])


def _of_global(rank: Rank, rows: Array) -> Features:
    rank.trainer.model.load(rank.state["model"], rank.state["counters"])
    return Features("global model", _embedded(rank, rows), _prototypes(rank), None)


def _of_client(rank: Rank, run_dir: Path, k: int, saved: dict[str, Any], rows: Array) -> Features:
    version = saved["client_versions"][k]
    kept = {} if version == NONE else read_client(run_dir, k, version)
    r = Round(min(saved["next_round"], rank.config.rounds - 1), rank.config.rounds, len(rank.clients))
    task = Task(rank.clients[k], rank.state.tensors(), kept, r, rank.trainer_of(k))
    who = rank.shards.client_label(k)
    try:
        rank.algorithm.client_update(task)
    except Diverged as error:
        raise UserError(f"{who} diverges from the last checkpoint: {error}") from error
    means_KD, counts_K = task.class_means(unit=True)
    after_KD = np.where(counts_K.numpy()[:, None] > 0, _unit(means_KD), np.nan)
    return Features(f"{who}'s model", _embedded(rank, rows), _prototypes(rank), after_KD)


def _prototypes(rank: Rank) -> Array | None:
    """The server's prototypes; NaN for classes without. None: the algorithm has none."""
    entries = rank.state.tensors()
    if "prototypes" not in entries:
        return None
    return np.where(entries["seen"].cpu().numpy()[:, None], _unit(entries["prototypes"]), np.nan)


def _unit(z_ND: Tensor) -> Array:
    found: Array = F.normalize(z_ND.detach().cpu().double()).numpy()
    return found


@torch.no_grad()
def _embedded(rank: Rank, rows: Array) -> Array:
    """z of these rows of the test set under the present weights, (N, D), of length 1."""
    trainer, test = rank.trainer, rank.shards.test_set
    trainer.model.module.eval()
    found = []
    for start in range(0, len(rows), trainer.block):
        taken = rows[start : start + trainer.block]
        x_NHWC, _ = test.read(int(taken[0]), int(taken[-1]) + 1)
        x_BCHW = rank.clients.to_device(x_NHWC[taken - taken[0]])
        found.append(_unit(trainer.forward(trainer.batches.normalise(x_BCHW))[0]))
    return np.concatenate(found)


def _placed(found: Sequence[Features], method: Method) -> Callable[[int], tuple[Array, Array, Array]]:
    """i → where the images, the prototypes before and those after of the i-th model lie, each (·, 2)."""
    empty = np.empty((0, found[0].z_ND.shape[1]))
    parts = [[one.z_ND, _known(one.before_KD, empty), _known(one.after_KD, empty)] for one in found]
    stacked = np.concatenate([part for of_one in parts for part in of_one])
    if method == "tsne":
        from sklearn.manifold import TSNE

        near = min(PERPLEXITY, (len(stacked) - 1) / 3)
        xy = TSNE(perplexity=near, init="pca", random_state=0, n_jobs=1).fit_transform(stacked)
    else:
        centred = stacked - stacked.mean(0)
        xy = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
    cuts = np.cumsum([len(part) for of_one in parts for part in of_one])[:-1]
    split = np.split(xy, cuts)
    return lambda i: (split[3 * i], split[3 * i + 1], split[3 * i + 2])


def _known(rows_KD: Array | None, empty: Array) -> Array:
    return empty if rows_KD is None else rows_KD[~np.isnan(rows_KD).any(1)]


def _draw(
    placed: Callable[[int], tuple[Array, Array, Array]],
    found: Sequence[Features],
    y_N: Array,
    classes: Sequence[str],
    out: Path,
) -> None:
    figure = new_figure(figsize=(4 * len(found), 4.6), layout="constrained")
    names = shortened(classes, 16)
    shown = range(min(len(classes), MOST_CLASSES))
    for i, (one, axes) in enumerate(
        zip(found, figure.subplots(1, len(found), sharex=True, sharey=True), strict=True)
    ):
        images, before, after = placed(i)
        axes.scatter(*images[y_N >= len(shown)].T, s=6, c="0.8", linewidths=0)
        for k in shown:
            axes.scatter(*images[y_N == k].T, s=12, alpha=0.55, linewidths=0, label=names[k], **_style(k))
        for known, points, mark, size in ((one.before_KD, before, "*", 210), (one.after_KD, after, "X", 90)):
            if known is None:
                continue
            for k, point in zip(np.flatnonzero(~np.isnan(known).any(1)).tolist(), points, strict=True):
                colour = _style(k)["c"] if k < len(shown) else "0.8"
                axes.scatter(*point, s=size, c=colour, marker=mark, edgecolors="black", linewidths=0.8)
                if len(shown) == len(classes):  # colours come again, and a star has no class's mark
                    axes.annotate(names[k], point, (6, 5), textcoords="offset points", fontsize=8)
        axes.set_title(plain(one.name), fontsize=10)
        axes.set_xticks([])
        axes.set_yticks([])
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 10), fontsize=8)
    save_figure(figure, out)


def _style(k: int) -> dict[str, str]:
    return {"c": COLOURS[k % len(COLOURS)], "marker": MARKERS[k % len(MARKERS)]}
