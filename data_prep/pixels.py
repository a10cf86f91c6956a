"""Decoded images on disk, not in memory: an unnamed temporary file that a killed run leaves nothing of."""

import math
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedproc_mpi.errors import UserError

Rows = npt.NDArray[np.int64]


class PixelFile:
    """uint8 images of one shape, appended in order and read back by index: the `Pixels` of a Split.

    It lies beside the shards file that is being made (there is room there; /tmp is often memory).
    """

    def __init__(self, directory: Path, shape: tuple[int, int, int]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._shape, self._row_bytes = shape, math.prod(shape)
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115

    def append(self, x_NHWC: npt.NDArray[np.uint8]) -> None:
        """Add images at the end."""
        assert x_NHWC.shape[1:] == self._shape
        assert x_NHWC.dtype == np.uint8
        self.append_bytes(np.ascontiguousarray(x_NHWC).data.cast("B"))

    def append_bytes(self, data: memoryview) -> None:
        """Add raw bytes in (N, H, W, C) order."""
        try:
            while len(data):
                data = data[self._file.write(data) :]
        except OSError as error:
            raise UserError(f"cannot write pixels to {self._directory}: {error.strerror}") from error

    def __call__(self, rows: Rows) -> npt.NDArray[np.uint8]:
        """The images of these rows; runs of neighbours are read at once."""
        out_NHWC = np.empty((len(rows), *self._shape), np.uint8)
        starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
        for start, stop in zip(starts, [*starts[1:], len(rows)], strict=True):
            self._file.seek(int(rows[start]) * self._row_bytes)
            target = out_NHWC[start:stop].data.cast("B")
            while len(target):
                got = self._file.readinto(target)
                assert got, "rows beyond the end of the pixel file"
                target = target[got:]
        return out_NHWC
