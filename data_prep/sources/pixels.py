"""Decoded images on disk, not in memory."""

import math
import tempfile
from pathlib import Path

import numpy as np

from fedproc_mpi.errors import UserError
from fedproc_mpi.shards import reserve


def on_disk(directory: Path, n: int, shape: tuple[int, int, int]) -> np.memmap:
    """An array of n uint8 images in a file without a name: it is gone when the process ends, however that is.

    directory: where the shards file will be (there is room; /tmp is often memory). UserError where there
    is no room.
    """
    size = max(1, n * math.prod(shape))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            reserve(file, size)  # a disk that is full later would kill the process
            return np.memmap(file, np.uint8, "r+", shape=(n, *shape))
    except OSError as error:
        raise UserError(
            f"cannot write {size / 1e6:.2f} MB of pixels to {directory}: {error.strerror}"
        ) from error
