"""CIFAR-10/100, MNIST and Fashion-MNIST from the files that torchvision keeps under a root folder.

The CIFAR batches are Python pickles. They are read only when their MD5 is the official one, and even
then by an unpickler that knows NumPy arrays and nothing else: a pickle can run code. torchvision itself
(and with it torch) is imported for --download alone.
"""

import gzip
import hashlib
import pickle
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from data_prep.sources.base import Source, check, in_memory
from data_prep.sources.sharding import Sharding
from fedproc_mpi.errors import UserError, reason
from fedproc_mpi.flags import setting

CIFAR = {  # folder; (file, MD5) of the training half, the test half, the names; keys of labels and names
    "cifar10": (
        "cifar-10-batches-py",
        [
            ("data_batch_1", "c99cafc152244af753f735de768cd75f"),
            ("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
            ("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
            ("data_batch_4", "634d18415352ddfa80567beed471001a"),
            ("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
        ],
        [("test_batch", "40351d587109b95175f43aff81a1287e")],
        ("batches.meta", "5ff9c542aee3614f3951f8cda6e48888"),
        ("labels", "label_names"),
    ),
    "cifar100": (
        "cifar-100-python",
        [("train", "16019d7e3df5f24257cddd939b257f8d")],
        [("test", "f0ef6b0ae62326f3e7ffdfab6717acfc")],
        ("meta", "7973b15100ade9c7d40fb424638fde48"),
        ("fine_labels", "fine_label_names"),
    ),
}
CLOTHES = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"]
CLOTHES += ["Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
IDX = {  # folder, class names
    "mnist": ("MNIST/raw", [str(k) for k in range(10)]),
    "fashionmnist": ("FashionMNIST/raw", CLOTHES),
}
TORCHVISION = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "mnist": "MNIST", "fashionmnist": "FashionMNIST"}


@dataclass(frozen=True, kw_only=True)
class Official(Sharding):
    """A data set that torchvision knows."""

    data_set: ClassVar[str]
    root: Path = setting(Path("data"), "the folder of the data set's folder, as torchvision lays it out")
    download: bool = setting(False, "fetch it into --root when it is not there")
    unofficial: bool = setting(False, "CIFAR: take batches whose MD5 is not the published one")

    def load(self) -> Source:
        """The published halves. Raises UserError that names the files that are missing or damaged."""
        if self.download:
            download(self.data_set, self.root)
        if self.data_set in CIFAR:
            return cifar(self.data_set, self.root, self.unofficial)
        return idx(self.data_set, self.root)


class Cifar10(Official):
    """CIFAR-10: 50,000 + 10,000 colour images, 32×32, 10 classes."""

    data_set = "cifar10"


class Cifar100(Official):
    """CIFAR-100 with its 100 fine classes."""

    data_set = "cifar100"


class Mnist(Official):
    """MNIST: 60,000 + 10,000 grey images, 28×28."""

    data_set = "mnist"


class FashionMnist(Official):
    """Fashion-MNIST, 28×28."""

    data_set = "fashionmnist"


def cifar(name: str, root: Path, unofficial: bool) -> Source:
    """CIFAR-10 or CIFAR-100 (fine labels); `unofficial`: also files that are not the published ones."""
    folder, train, test, meta, (label_key, names_key) = CIFAR[name]
    _require(name, root, [f"{folder}/{file}" for file, _ in (*train, *test, meta)])

    def load(file: str, md5: str) -> dict[str, Any]:
        return _unpickle(root / folder / file, md5, unofficial)

    def half(files: list[tuple[str, str]]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        images, labels = [], []
        for file, md5 in files:
            entry = load(file, md5)
            try:
                images.append(np.asarray(entry["data"]).reshape(-1, 3, 32, 32))
                labels.append(np.asarray(entry[label_key], np.int64))
            except (KeyError, ValueError, TypeError) as error:
                raise UserError(f"{root / folder / file}: not a {name} batch ({error})") from error
            if images[-1].dtype != np.uint8 or len(images[-1]) != len(labels[-1]):
                raise UserError(
                    f"{root / folder / file}: not a {name} batch of uint8 images and their labels"
                )
        return np.concatenate(images).transpose(0, 2, 3, 1), np.concatenate(labels)

    names = [str(n) for n in load(*meta).get(names_key, [])]
    return check(
        Source(name, names, (32, 32, 3), in_memory(*half(train)), in_memory(*half(test))), str(root / folder)
    )


def idx(name: str, root: Path) -> Source:
    """MNIST or Fashion-MNIST: IDX files, gzipped or not."""
    folder, names = IDX[name]
    files = [f"{half}-{what}-ubyte" for half in ("train", "t10k") for what in ("images-idx3", "labels-idx1")]
    _require(name, root, [f"{folder}/{file}" for file in files])
    x_train, y_train, x_test, y_test = (_read_idx(root / folder / file) for file in files)
    for x_NHW, y_N in ((x_train, y_train), (x_test, y_test)):
        if x_NHW.ndim != 3 or y_N.shape != x_NHW.shape[:1]:
            raise UserError(
                f"{root / folder}: images {x_NHW.shape} and labels {y_N.shape} do not belong together"
            )
    shape = (x_train.shape[1], x_train.shape[2], 1)
    halves = in_memory(x_train[..., None], y_train), in_memory(x_test[..., None], y_test)
    return check(Source(name, names, shape, *halves), str(root / folder))


def download(name: str, root: Path) -> None:
    """Let torchvision fetch (and check) the files."""
    try:
        from torchvision import datasets

        getattr(datasets, TORCHVISION[name])(root, download=True)
    except (OSError, RuntimeError) as error:
        raise UserError(f"--download: cannot fetch {name} into {root}: {reason(error)}") from error


def _require(name: str, root: Path, files: list[str]) -> None:
    missing = [f for f in files if not (root / f).is_file() and not (root / f"{f}.gz").is_file()]
    if missing:
        packed = sorted(p.name for p in root.glob("*.tar.gz")) if root.is_dir() else []
        unpack = f" ({packed[0]} lies there: unpack it first)" if packed else ""
        raise UserError(
            f"--root {root}: looked for {', '.join(files)}; {len(missing)} of them are missing{unpack}. "
            f"Add --download, or, for a machine without network, run `python -m data_prep {name} --download "
            f"--root DIR …` elsewhere and copy DIR/{files[0].rsplit('/', 1)[0]} to {root}"
        )


class _ArraysOnly(pickle.Unpickler):
    """Builds dicts, lists, strings, numbers and NumPy arrays; refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np.zeros(0).__reduce__()[0]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if module == "_codecs" and name == "encode":  # how Python 3 writes bytes into an old protocol
            return lambda text, encoding: text.encode("latin1")
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _unpickle(path: Path, md5: str, unofficial: bool) -> dict[str, Any]:
    if not unofficial:
        with path.open("rb") as file:
            found = hashlib.md5(file.read(), usedforsecurity=False).hexdigest()
        if found != md5:
            raise UserError(
                f"{path}: MD5 {found}, the published file has {md5}: damaged or altered; fetch it again, or "
                "add --unofficial"
            )
    try:
        with path.open("rb") as file:
            content = _ArraysOnly(file, encoding="latin1").load()
    except Exception as error:  # a foreign pickle can fail in any way
        raise UserError(f"{path}: not a CIFAR batch ({type(error).__name__}: {error})") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a CIFAR batch (it holds a {type(content).__name__})")
    return content


def _read_idx(path: Path) -> npt.NDArray[np.uint8]:
    try:
        if path.is_file():
            data = path.read_bytes()
        else:
            data = gzip.decompress(path.with_name(f"{path.name}.gz").read_bytes())
    except (OSError, EOFError) as error:
        raise UserError(f"{path}: cannot be read ({error}); fetch it again") from error
    if len(data) < 4 or data[:3] != b"\0\0\x08" or not 1 <= data[3] <= 3:
        raise UserError(f"{path}: not an IDX file of bytes; fetch it again")
    sizes = struct.unpack(f">{data[3]}I", data[4 : 4 + 4 * data[3]])
    body = np.frombuffer(data, np.uint8, offset=4 + 4 * data[3])
    if len(body) != np.prod(sizes):
        raise UserError(f"{path}: {len(body)} bytes where {sizes} are announced: truncated; fetch it again")
    return body.reshape(sizes)
