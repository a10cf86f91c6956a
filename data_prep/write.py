"""A source and a partition → the shards file, one client at a time."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data_prep.partition import Indices, client_test_rows
from data_prep.sources import Source, Split
from fedproc_mpi.errors import UserError
from fedproc_mpi.shards import Header, Images, Labels, write_shards

PIECE = 1024  # images decoded at once


def write(
    source: Source,
    partition: list[Indices],
    out: Path,
    seed: int,
    kind: str,
    beta: float | None,
    made_by: str,
    client_names: tuple[str, ...] = (),
) -> str:
    """Write the shards; returns the fingerprint. UserError when the file cannot be written."""
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
        client_names,
        made_by,
    )
    rows = client_test_rows(source.train.labels, partition, source.test.labels, len(source.class_names), seed)
    clients = ((source.train.images(part), _labels(source.train, part)) for part in partition)
    sizes, num_test = [len(part) for part in partition], len(source.test.labels)
    try:
        return write_shards(out, header, sizes, clients, _pieces(source.test), num_test, rows)
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())[:160]
        raise UserError(f"cannot write {out}: {reason}") from error


def channel_statistics(split: Split) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel of the images scaled to [0, 1]; integer sums, so exact."""
    total, squares, count = 0, 0, 0
    for images, _ in _pieces(split):
        pixels = images.reshape(-1, images.shape[-1]).astype(np.int64)
        total, squares, count = total + pixels.sum(0), squares + (pixels**2).sum(0), count + len(pixels)
    mean = np.asarray(total / count / 255)
    std = np.sqrt(np.maximum(squares / count / 255**2 - mean**2, 1e-12))
    return [float(v) for v in mean], [float(v) for v in std]


def _pieces(split: Split) -> Iterator[tuple[Images, Labels]]:
    for start in range(0, len(split.labels), PIECE):
        rows = np.arange(start, min(start + PIECE, len(split.labels)))
        yield split.images(rows), _labels(split, rows)


def _labels(split: Split, rows: Indices) -> Labels:
    return split.labels[rows].astype(np.uint16)
