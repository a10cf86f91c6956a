"""Sources that are one .npz file: `npz` and MedMNIST 2D.

An array is read whole: memory must hold all images, and those of MedMNIST's training half twice for a
moment. Pickled object arrays are never loaded.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from data_prep.sources.base import Source, check, in_memory
from data_prep.sources.sharding import Sharding
from fedproc_mpi.errors import UserError, reason
from fedproc_mpi.flags import REQUIRED, setting

Array = npt.NDArray[Any]
Pairs = tuple[tuple[str, str], ...]
LAST_LABEL = 2**16 - 1  # shards hold labels as uint16
REMEDIES = {
    "f": "y.astype(int), if they are whole numbers",
    "b": "y.astype(int)",
    "U": "names, y = numpy.unique(y, return_inverse=True), with class_names=names in the file",
    "S": "names, y = numpy.unique(y, return_inverse=True), with class_names=names in the file",
}


@dataclass(frozen=True, kw_only=True)
class Npz(Sharding):
    """A .npz with x_train, y_train, x_test, y_test and, if you like, class_names.

    train, test: the names of the arrays of images and of labels that make up each half, in order.
    """

    train: ClassVar[Pairs] = (("x_train", "y_train"),)
    test: ClassVar[Pairs] = (("x_test", "y_test"),)

    file: Path = setting(REQUIRED, "the .npz file")
    name: str = setting(
        "", "name of the data set (default: the file's); cifar10 and cifar100 choose their augmentation"
    )

    def load(self) -> Source:
        """Images: uint8 (N, H, W, 1|3) or (N, H, W); labels: integers (N,) or (N, 1) from 0."""
        arrays = _read(self.file, [name for pair in self.train + self.test for name in pair])
        (x_NHWC, y_N), (x_test_NHWC, y_test_N) = (
            self._half(arrays, pairs) for pairs in (self.train, self.test)
        )
        shape, test_shape = x_NHWC.shape[1:], x_test_NHWC.shape[1:]
        if shape != test_shape:
            raise UserError(f"{self.file}: training images are {shape} (H, W, C), test images {test_shape}")
        for half, x, y in (("training", x_NHWC, y_N), ("test", x_test_NHWC, y_test_N)):
            if len(x) != len(y):
                raise UserError(f"{self.file}: {len(x)} {half} images, but {len(y)} labels")
        count = max(y_N.max(initial=0), y_test_N.max(initial=0)) + 1
        names = _names(arrays.get("class_names", np.arange(count)), int(count), f"{self.file}: class_names")
        halves = in_memory(x_NHWC, y_N), in_memory(x_test_NHWC, y_test_N)
        return check(Source(self.name or self.file.stem, names, shape, *halves), str(self.file))

    def _half(self, arrays: dict[str, Array], pairs: Pairs) -> tuple[Array, Array]:
        """Images (N, H, W, C) and labels (N,) of several arrays one after the other."""
        images = [_images(arrays[name], f"{self.file}: {name}") for name, _ in pairs]
        labels = [_labels(arrays[name], f"{self.file}: {name}") for _, name in pairs]
        for x_NHWC, (name, _) in zip(images, pairs, strict=True):
            if x_NHWC.shape[1:] != images[0].shape[1:]:
                shapes = f"{name} is {x_NHWC.shape[1:]}, {pairs[0][0]} is {images[0].shape[1:]} (H, W, C)"
                raise UserError(f"{self.file}: {shapes}")
        if len(pairs) == 1:
            return images[0], labels[0]
        return np.concatenate(images), np.concatenate(labels)


class MedMnist(Npz):
    """A MedMNIST 2D .npz as shipped (train + val for training)."""

    train = (("train_images", "train_labels"), ("val_images", "val_labels"))
    test = (("test_images", "test_labels"),)


def _read(path: Path, wanted: Iterable[str]) -> dict[str, Array]:
    """The wanted arrays, and class_names where the file has it. UserError where it cannot be read."""
    try:
        file = np.load(path, allow_pickle=False)
        names = set(file.files)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except Exception as error:  # a foreign file can fail in any way
        raise UserError(f"{path}: not a .npz file of numpy.savez") from error
    arrays: dict[str, Array] = {}
    with file:
        for name in [*wanted, *({"class_names"} & names)]:
            if name not in names:
                raise UserError(f"{path}: has no array {name}; it holds {', '.join(sorted(names))}")
            try:
                arrays[name] = file[name]
            except Exception as error:
                if "allow_pickle" in str(error):
                    raise UserError(f"{path}: {name} holds Python objects, which are never loaded") from error
                damaged = f"{path}: {name} is damaged ({reason(error)})"
                raise UserError(f"{damaged}; fetch the file again") from error
            if not isinstance(arrays[name], np.ndarray):
                raise UserError(f"{path}: {name} is no array")
    return arrays


def _names(names: Array, count: int, where: str) -> list[str]:
    """Class names (K,), each its own, as text."""
    if names.ndim != 1:
        raise UserError(f"{where} is {names.shape}; it must be a list of names, (K,)")
    texts = [name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in names]
    if "" in texts or len(set(texts)) < len(texts):
        raise UserError(f"{where}: empty or twice the same name among {', '.join(texts[:9])}")
    if len(texts) < count:
        raise UserError(f"{where} has {len(texts)} names, but labels go to {count - 1}: {count} classes")
    return texts


def _images(x: Array, where: str) -> npt.NDArray[np.uint8]:
    """Images (N, H, W, C)."""
    if x.dtype != np.uint8:
        remedy = "scale them to 0…255 and save as uint8"
        raise UserError(f"{where} is {x.dtype}, images must be uint8; {remedy}")
    x_NHWC = x[..., None] if x.ndim == 3 else x
    if x_NHWC.ndim != 4 or x_NHWC.shape[3] not in (1, 3) or min(x_NHWC.shape[1:3]) < 1:
        wanted = "images must be (N, H, W) or (N, H, W, C) with C = 1 or 3"
        raise UserError(f"{where} is {x.shape}; {wanted}")
    return x_NHWC


def _labels(y: Array, where: str) -> npt.NDArray[np.int64]:
    """Labels (N,) from (N,) or (N, 1) integers."""
    if y.ndim == 2 and y.shape[1] > 1 and y.dtype.kind in "iuf" and (y.sum(1) == 1).all():
        raise UserError(f"{where} is {y.shape}, one row of 0 and 1 per sample; labels are y.argmax(1)")
    if y.ndim == 2 and y.shape[1] > 1:
        raise UserError(
            f"{where} is {y.shape}: a multi-label set; every algorithm here needs one class per sample"
        )
    if y.ndim not in (1, 2):
        raise UserError(f"{where} is {y.shape}; labels must be (N,) or (N, 1)")
    if y.dtype.kind not in "iu":
        remedy = REMEDIES.get(y.dtype.kind, "convert them")
        raise UserError(f"{where} is {y.dtype}; labels must be integers: {remedy}")
    if y.size and (int(y.min()) < 0 or int(y.max()) > LAST_LABEL):
        raise UserError(
            f"{where} goes from {y.min()} to {y.max()}; labels count from 0 to at most {LAST_LABEL}"
        )
    return y.reshape(-1).astype(np.int64)
