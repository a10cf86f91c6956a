"""Sources that are one .npz file: `npz` (x_train, y_train, x_test, y_test) and MedMNIST 2D.

Arrays are streamed out of the zip into a PixelFile, so a set larger than memory passes; pickled object
arrays are never loaded.
"""

import zipfile
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from data_prep.pixels import PixelFile
from data_prep.sources import Source, Split, check
from fedproc_mpi.errors import UserError

STREAM = 1 << 24  # bytes at once
Labels = npt.NDArray[np.int64]


def npz(path: Path, name: str, scratch: Path) -> Source:
    """A .npz of your own: x_* uint8 (N, H, W, 1|3) or (N, H, W), y_* integers from 0, maybe class_names."""
    with _Npz(path) as file:
        y_train, y_test = file.labels("y_train"), file.labels("y_test")
        x_train, shape = file.images(["x_train"], scratch)
        x_test, test_shape = file.images(["x_test"], scratch)
        names = [str(n) for n in file.array("class_names")] if "class_names" in file.names else None
    return _source(path, name, names, shape, test_shape, (x_train, y_train), (x_test, y_test))


def medmnist(path: Path, name: str, scratch: Path) -> Source:
    """A MedMNIST 2D file as shipped: train + val for training, test for test."""
    with _Npz(path) as file:
        labels = {half: file.labels(f"{half}_labels", multi=True) for half in ("train", "val", "test")}
        y_train = np.concatenate([labels["train"], labels["val"]])
        x_train, shape = file.images(["train_images", "val_images"], scratch)
        x_test, test_shape = file.images(["test_images"], scratch)
    return _source(path, name, None, shape, test_shape, (x_train, y_train), (x_test, labels["test"]))


def _source(
    path: Path,
    name: str,
    names: list[str] | None,
    shape: tuple[int, ...],
    test_shape: tuple[int, ...],
    train: tuple[PixelFile, Labels],
    test: tuple[PixelFile, Labels],
) -> Source:
    if shape[1:] != test_shape[1:]:
        raise UserError(f"{path}: training images are {shape[1:]} (H, W, C), test images {test_shape[1:]}")
    for half, n, y_N in (("training", shape[0], train[1]), ("test", test_shape[0], test[1])):
        if n != len(y_N):
            raise UserError(f"{path}: {n} {half} images, but {len(y_N)} labels")
    if names is None:
        high = max([int(y_N.max()) for _, y_N in (train, test) if len(y_N)], default=0)
        names = [str(k) for k in range(high + 1)]
    image_shape = (shape[1], shape[2], shape[3])
    source = Source(name, names, image_shape, Split(train[1], train[0]), Split(test[1], test[0]))
    return check(source, str(path))


class _Npz:
    """A .npz read array by array, without pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except FileNotFoundError:
            raise UserError(f"{path}: no such file") from None
        except (OSError, zipfile.BadZipFile) as error:
            raise UserError(f"{path}: not a .npz file ({error})") from error
        self.names = {n.removesuffix(".npy") for n in self._zip.namelist()}

    def __enter__(self) -> "_Npz":
        return self

    def __exit__(self, *exception: object) -> None:
        self._zip.close()

    def _open(self, name: str) -> tuple[IO[bytes], tuple[int, ...], bool, np.dtype]:
        """A member's stream behind its header: (stream, shape, whether Fortran order, dtype)."""
        if name not in self.names:
            raise UserError(f"{self.path}: has no array {name}; it holds {', '.join(sorted(self.names))}")
        try:
            stream = self._zip.open(f"{name}.npy")
            version = np.lib.format.read_magic(stream)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            return stream, *read(stream)
        except (ValueError, OSError, zipfile.BadZipFile, KeyError) as error:
            raise UserError(f"{self.path}: {name} is no array ({error})") from error

    def array(self, name: str) -> npt.NDArray:
        """A small array, whole."""
        *_, dtype = self._open(name)
        if dtype.hasobject:
            raise UserError(f"{self.path}: {name} holds Python objects, which are never loaded")
        with self._zip.open(f"{name}.npy") as stream:
            try:
                return np.lib.format.read_array(stream, allow_pickle=False)
            except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
                raise UserError(f"{self.path}: {name} cannot be read ({error})") from error

    def labels(self, name: str, multi: bool = False) -> Labels:
        """Labels (N,) from (N,) or (N, 1) integers."""
        y = self.array(name)
        if y.ndim == 2 and y.shape[1] > 1:
            why = (
                "a multi-label set, and every algorithm here needs one class a sample"
                if multi
                else "no labels"
            )
            raise UserError(f"{self.path}: {name} is {y.shape}: {why}")
        if y.dtype.kind not in "iu" or y.ndim not in (1, 2):
            raise UserError(
                f"{self.path}: {name} is {y.dtype} {y.shape}; labels must be integers (N,) or (N, 1)"
            )
        return y.reshape(-1).astype(np.int64)

    def images(self, names: list[str], scratch: Path) -> tuple[PixelFile, tuple[int, int, int, int]]:
        """The images of several arrays one after the other, and their shape (N, H, W, C)."""
        total, shape, pixels = 0, None, None
        for name in names:
            stream, found, fortran, dtype = self._open(name)
            if dtype != np.uint8:
                remedy = "scale them to 0…255 and save as uint8"
                raise UserError(f"{self.path}: {name} is {dtype}, images must be uint8; {remedy}")
            full = (*found, 1) if len(found) == 3 else found
            if len(full) != 4 or full[3] not in (1, 3) or min(full[1:3]) < 1:
                wanted = "images must be (N, H, W) or (N, H, W, C) with C = 1 or 3"
                raise UserError(f"{self.path}: {name} is {found}; {wanted}")
            if shape not in (None, full[1:]):
                raise UserError(f"{self.path}: {name} is {full[1:]}, {names[0]} is {shape} (H, W, C)")
            shape, total = full[1:], total + full[0]
            pixels = pixels or PixelFile(scratch, shape)
            if fortran:
                pixels.append(self.array(name).reshape(full))
            else:
                self._stream(name, stream, int(np.prod(full)), pixels)
        assert pixels is not None
        assert shape is not None
        return pixels, (total, shape[0], shape[1], shape[2])

    def _stream(self, name: str, stream: IO[bytes], size: int, pixels: PixelFile) -> None:
        try:
            while size:
                data = stream.read(min(size, STREAM))
                if not data:
                    raise EOFError("it ends early")
                pixels.append_bytes(memoryview(data))
                size -= len(data)
        except (zipfile.BadZipFile, EOFError) as error:
            raise UserError(f"{self.path}: {name} is damaged ({error}); fetch the file again") from error
