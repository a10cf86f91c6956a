"""A source's data, read lazily: labels first, images by index when they are written."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from data_prep.partitions import Indices
from fedproc_mpi.errors import UserError
from fedproc_mpi.terminal import say

Pixels = Callable[[Indices], npt.NDArray[np.uint8]]  # indices → images (n, H, W, C) uint8


@dataclass(frozen=True)
class Split:
    """One half of a data set: labels (N,), and images by index.

    sites: for data that is distributed by nature, the client of each sample (N,). groups: of each sample, for
    samples that must not be torn apart (a patient's); empty: there are none.
    """

    labels: npt.NDArray[np.int64]
    images: Pixels
    sites: Indices | None = None
    groups: Sequence[str] = ()


@dataclass(frozen=True)
class Source:
    """A data set: name, classes in order, image shape (H, W, C), training and test split.

    site_names: the clients of the natural partition, in order. normalise: the mean and std to scale
    images with, where the data set has a usual one; else those of the training images. passed_over: what was
    found and not used, by kind. bits: as the shards' header has it.
    """

    name: str
    class_names: Sequence[str]
    image_shape: tuple[int, int, int]
    train: Split
    test: Split
    site_names: Sequence[str] = ()
    normalise: tuple[float, float] | None = None
    passed_over: Counter[str] = field(default_factory=Counter)
    bits: int | None = None


def in_memory(x_NHWC: npt.NDArray[np.uint8], labels: npt.NDArray[np.integer]) -> Split:
    """A split whose images are an array."""
    return Split(labels.astype(np.int64), lambda rows: x_NHWC[rows])


def check(source: Source, where: str) -> Source:
    """The source, if it can be trained on; else UserError that names what is missing in `where`."""
    for half, split in (("training", source.train), ("test", source.test)):
        if not len(split.labels):
            raise UserError(f"{where}: no {half} images; a shards file needs both halves")
        low, high = int(split.labels.min()), int(split.labels.max())
        if low < 0 or high >= len(source.class_names):
            raise UserError(
                f"{where}: {half} labels go from {low} to {high}, but there are {len(source.class_names)} "
                "classes; labels must count from 0"
            )
    held = set(source.train.labels.tolist())
    if unheld := [f"{k} ({name})" for k, name in enumerate(source.class_names) if k not in held]:
        more = f" and {len(unheld) - 5} more" if len(unheld) > 5 else ""
        start = "; do the labels start at 1?" if 0 not in held else ""
        say(f"data_prep: {where}: no training image of class {', '.join(unheld[:5])}{more}{start}")
    if len(source.class_names) < 2:
        raise UserError(f"{where}: only one class ({source.class_names[0]}); nothing to classify")
    return source
