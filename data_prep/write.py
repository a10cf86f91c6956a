"""A source and a partition → the shards file, a piece of one client at a time."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from data_prep.heldout import client_test_rows, site_test_rows
from data_prep.partitions import Indices
from data_prep.ranges import Ranges
from data_prep.sources.base import Source, Split
from fedproc_mpi.errors import UserError, reason
from fedproc_mpi.shards import Header, Images, Labels, ToHoldOut, digest, write_shards
from fedproc_mpi.terminal import say

PIECE = 1024  # images in memory at once


def write(
    source: Source,
    parts: list[Indices],
    val_parts: list[Indices],
    out: Path,
    seed: int,
    kind: str,
    beta: float | None,
    names: tuple[str, ...],
    made_by: str,
) -> str:
    """Write the shards; returns the fingerprint. UserError when the file cannot be written.

    val_parts: each client's rows of the training half that go into the validation set; empty: there is none.
    names: the clients', where they have some.
    """
    natural = kind == "natural"
    channels = source.image_shape[2]
    if source.normalise:
        mean, std = ([value] * channels for value in source.normalise)
    else:
        mean, std = channel_statistics(source.train)
    header = Header(
        source.name,
        source.class_names,
        source.image_shape,
        kind,
        seed,
        mean,
        std,
        beta,
        names,
        made_by,
        source.bits,
    )
    few_shots = kind.startswith("classes-per-client")  # little to train on is no reason to test little
    labels = source.train.labels, parts, source.test.labels
    rows = client_test_rows(*labels, len(source.class_names), seed, all_there_are=few_shots)
    if natural and source.test.sites is not None:
        rows = site_test_rows(rows, source.test.sites)
        if without := [name for name, own in zip(names, rows, strict=False) if not len(own)]:
            more = f" and {len(without) - 5} more" if len(without) > 5 else ""
            say(f"data_prep: no test image of {', '.join(without[:5])}{more}: no accuracy of its own")
    watched, every_test = _Watched(len(parts)), np.arange(len(source.test.labels))
    test = ToHoldOut(watched.held_out(source.test, every_test), len(every_test), rows)
    val = None
    if val_parts:
        ends = np.cumsum([len(part) for part in val_parts])
        own = [np.arange(end - len(part), end) for part, end in zip(val_parts, ends, strict=True)]
        every_val = np.concatenate(val_parts)
        val = ToHoldOut(watched.held_out(source.train, every_val), len(every_val), own)
    sizes = [len(part) for part in parts]
    num_held_out = test.num + (val.num if val else 0)
    try:
        _check_room(out, (sum(sizes) + num_held_out) * (int(np.prod(source.image_shape)) + 2))
        fingerprint = write_shards(out, header, sizes, watched.clients(source.train, parts), test, val)
    except OSError as error:
        raise UserError(f"cannot write {out}: {reason(error)}; nothing was left there") from error
    if twice := watched.twice:
        held_out = "test and validation" if val else "test"
        say(
            f"data_prep: {twice} of {num_held_out} {held_out} images are training images: "
            "accuracy will look too good"
        )
    if wrong := watched.ranges.suspicious(names):
        say(f"data_prep: {out}: SUSPICIOUS pixels: {wrong}")
    return fingerprint


class _Watched:
    """Looks at images on their way into the file: their range, and which are held out and trained on."""

    def __init__(self, num_clients: int) -> None:
        self.ranges, self.twice = Ranges(num_clients), 0
        self._seen: set[bytes] = set()

    def clients(self, split: Split, parts: Sequence[Indices]) -> Iterator[tuple[Images, Labels]]:
        """The clients' pieces in order."""
        for i, part in enumerate(parts):
            for x_NHWC, y_N in _pieces(split, part):
                self.ranges.client(i, x_NHWC)
                self._seen.update(map(digest, x_NHWC))
                yield x_NHWC, y_N

    def held_out(self, split: Split, rows: Indices) -> Iterator[tuple[Images, Labels]]:
        """The pieces of a held-out set, after those of all clients."""
        for x_NHWC, y_N in _pieces(split, rows):
            self.ranges.test(x_NHWC)
            self.twice += sum(digest(x_HWC) in self._seen for x_HWC in x_NHWC)
            yield x_NHWC, y_N


def _check_room(out: Path, needed: int) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(out.parent).free
    if free < needed:
        raise UserError(
            f"cannot write {out}: disk full: it needs {needed / 1e6:.2f} MB, {free / 1e6:.2f} MB are free"
        )


def channel_statistics(split: Split) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel of the images scaled to [0, 1]; integer sums, so exact.

    A channel that never changes counts as one grey level of std, so that nothing is divided by zero.
    """
    total, squares, count = 0, 0, 0
    for images, _ in _pieces(split, np.arange(len(split.labels))):
        pixels = images.reshape(-1, images.shape[-1]).astype(np.int64)
        total, squares, count = total + pixels.sum(0), squares + (pixels**2).sum(0), count + len(pixels)
    mean = np.asarray(total / count / 255)
    std = np.sqrt(np.maximum(squares / count / 255**2 - mean**2, 1 / 255**2))
    return [float(v) for v in mean], [float(v) for v in std]


def _pieces(split: Split, rows: Indices) -> Iterator[tuple[Images, Labels]]:
    for start in range(0, len(rows), PIECE):
        piece = rows[start : start + PIECE]
        yield split.images(piece), split.labels[piece].astype(np.uint16)
