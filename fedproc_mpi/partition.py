"""Which client holds how much of which class: counts and picture of a shards file's partition.

m clients, K classes.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedproc_mpi.figure import shortened
from fedproc_mpi.shards import Shards

MOST_CLIENTS = 200
LONGEST = 28  # characters of a name


def class_counts(shards: Shards) -> npt.NDArray[np.int64]:
    """Samples of each class at each client, (m, K)."""
    labels = map(shards.client_labels, range(shards.num_clients))
    return np.array([np.bincount(y_N, minlength=shards.num_classes) for y_N in labels])


def draw_partition(axes: Any, shards: Shards, counts_mK: npt.NDArray[np.int64]) -> None:
    """Client × class bubbles into matplotlib's axes: area ∝ samples of the class at the client.

    An empty pair has none. counts_mK: as `class_counts` gives them; of many clients the first are drawn.
    """
    counts_mK = counts_mK[:MOST_CLIENTS]
    clients, classes = np.nonzero(counts_mK)
    counts = counts_mK[clients, classes]
    m, num_classes = counts_mK.shape
    # Points between two bubbles, about; a few bubbles do not fill the picture.
    room = min(430 / (m + 0.4), 480 / (num_classes + 0.4), 90)
    axes.scatter(clients, classes, s=np.maximum((0.95 * room) ** 2 * counts / counts.max(), 0.2), alpha=0.7)
    axes.set_xlim(-0.7, m - 0.3)
    axes.set_ylim(-0.7, num_classes - 0.3)
    if room > 20:
        for i, k, count in zip(clients, classes, counts, strict=True):
            axes.text(i, k, str(count), ha="center", va="center", fontsize=8)
    names = shards.header.client_names
    rest = f" (first {m} of {shards.num_clients})" if m < shards.num_clients else ""
    axes.set_xlabel(f"client{rest}")
    if names and m <= 30:
        axes.set_xticks(range(m), shortened(names[:m], LONGEST), rotation=60, ha="right")
    elif m <= 30:
        axes.set_xticks(range(m))
    if num_classes <= 40:
        axes.set_yticks(range(num_classes), shortened(shards.header.class_names, LONGEST))
    else:
        axes.set_ylabel("class")
    axes.set_title(f"samples of a class at a client (largest bubble: {counts.max()})")
