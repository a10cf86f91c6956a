"""The shards file: one HDF5 file with the clients' training samples in client order, and the test set.

    /train/images   (N, H, W, C) uint8   client i = rows offsets[i]:offsets[i+1]
    /train/labels   (N,) uint16
    /train/offsets  (m+1,) int64
    /train/checksums (m, 32) uint8       SHA-256 of a client's image bytes, then label bytes
    /test/images, /test/labels           the global test set
    /test/client_rows, /test/client_offsets   each client's own test rows (its class mix)
    /val/…                               the same for the validation set, where there is one

Datasets are contiguous and uncompressed: a rank reads a client with one sequential read. HDF5's
locking is off (Lustre and NFS often refuse locks): files are opened read-only, and written to a temporary
name that is renamed at the end. This module is the one place that knows the format.
"""

import errno
import hashlib
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import h5py
import numpy as np
import numpy.typing as npt

from fedproc_mpi.errors import UserError

FORMAT, FORMAT_VERSION = "fedproc_mpi shards", 1
Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.uint16]
Rows = npt.NDArray[np.int64]
Piece = tuple[Images, Labels]
NO_FALLOCATE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF)
ZEROS = bytes(2**20)


@dataclass(frozen=True)
class Header:
    """What a shards file says of itself. mean, std: per channel, of the training set scaled to [0, 1]."""

    dataset: str
    class_names: Sequence[str]
    image_shape: tuple[int, int, int]  # H, W, C
    partition: str
    seed: int
    mean: Sequence[float]
    std: Sequence[float]
    beta: float | None = None
    client_names: Sequence[str] = field(default_factory=tuple)
    made_by: str = ""
    bits: int | None = None  # that 16-bit pictures were said to use, of which the upper 8 were kept


@dataclass(frozen=True)
class ToHoldOut:
    """A held-out set to be written: num samples in pieces, and the rows of it that are each client's own."""

    pieces: Iterable[Piece]
    num: int
    client_rows: Sequence[Rows]


def write_shards(
    path: Path,
    header: Header,
    sizes: Sequence[int],
    clients: Iterable[Piece],
    test: ToHoldOut,
    val: ToHoldOut | None = None,
) -> str:
    """Write a shards file; returns its fingerprint.

    clients: in client order, client i with sizes[i] samples, whole or in pieces of its own. These pieces and
    those of the held-out sets may come from generators, so that one piece at a time is in memory; they are
    taken in the order clients, test, val. An interrupted write leaves no file at `path`.
    """
    held_out = {"test": test} | ({"val": val} if val else {})
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    offsets = _offsets(sizes)
    samples = int(offsets[-1]) + sum(part.num for part in held_out.values())
    needed = samples * math.prod(header.image_shape)
    try:
        with temporary.open(
            "w+b"
        ) as room:  # where it fails, it fails here: HDF5 does not survive a full disk
            reserve(room, needed)
        with h5py.File(temporary, "w", libver="v110", locking=False) as file:
            with temporary.open("r+b") as room:
                reserve(room, needed)
            images, labels = _create(file, "train", int(offsets[-1]), header.image_shape)
            checksums, pieces = np.zeros((len(sizes), 32), np.uint8), iter(clients)
            for i, (start, stop) in enumerate(itertools.pairwise(offsets)):
                digest = _write_pieces(images, labels, pieces, int(start), int(stop))
                digest.update(np.ascontiguousarray(labels[start:stop], "<u2").data)
                checksums[i] = np.frombuffer(digest.digest(), np.uint8)
            file["train/offsets"], file["train/checksums"] = offsets, checksums
            for name, part in held_out.items():
                data = _create(file, name, part.num, header.image_shape)
                _write_pieces(*data, iter(part.pieces), 0, part.num)
                file[f"{name}/client_rows"] = np.concatenate([*part.client_rows, []]).astype(np.int64)
                file[f"{name}/client_offsets"] = _offsets([len(rows) for rows in part.client_rows])
            file.attrs["format_version"] = FORMAT_VERSION
            words = {
                "format": FORMAT,
                "header": json.dumps(_header_words(header)),
                **{f"{name}_checksum": _held_out_checksum(file[name]) for name in held_out},
            }
            for name, text in words.items():
                file.attrs[name] = np.bytes_(text.encode())
            fingerprint = _fingerprint(file)
            file.attrs["fingerprint"] = np.bytes_(fingerprint.encode())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return fingerprint


class Shards:
    """A shards file, opened for reading. `with Shards(path) as shards:` or `close()`.

    Raises UserError, naming the file and what is wrong, when it is missing, no HDF5, truncated, of
    another format version, or not consistent in itself. What is read is verified as it is read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise UserError(f"{path}: no such shards file")
        try:
            self._file = h5py.File(self.path, "r", locking=False)
        except OSError as error:
            if "truncated" in str(error):
                raise UserError(f"{path}: the file is truncated; make it again with data_prep") from error
            raise UserError(f"{path}: cannot be read as HDF5 ({_brief(error)})") from error
        try:
            with _readable(self.path):
                self._read_structure()
        except UserError:
            self.close()
            raise

    def _read_structure(self) -> None:
        if "format" not in self._file.attrs or _text(self._file, "format") != FORMAT:
            raise UserError(f"{self.path}: an HDF5 file, but no shards file of fedproc_mpi")
        if (version := int(self._file.attrs["format_version"])) != FORMAT_VERSION:
            raise UserError(
                f"{self.path}: format version {version}, this package reads {FORMAT_VERSION}; make it again"
            )
        header: dict[str, Any] = json.loads(_text(self._file, "header"))
        self.header = Header(**{**header, "image_shape": tuple(header["image_shape"])})
        self._images, self._labels = self._file["train/images"], self._file["train/labels"]
        self.offsets: Rows = self._file["train/offsets"][:]
        self.fingerprint = _text(self._file, "fingerprint")
        self.test_set = HeldOut(self, "test")
        self.val_set = HeldOut(self, "val") if "val" in self._file else None
        datasets = [self._images, *(held_out.images for held_out in self.held_out())]
        if any(dataset.dtype != np.uint8 for dataset in datasets):
            raise UserError(f"{self.path}: images are not uint8; make it again")
        channels, names = self.header.image_shape[2], self.header.client_names
        numbers = [*self.header.mean, *self.header.std]
        if (
            len(self.header.mean) != channels
            or len(self.header.std) != channels
            or not all(map(math.isfinite, numbers))
        ):
            raise UserError(f"{self.path}: mean and std of the header are not {channels} finite numbers each")
        if min(self.header.std) <= 0 or len(names) not in (0, len(self.offsets) - 1):
            raise UserError(f"{self.path}: the header's std or client names do not fit; make it again")
        shapes = {dataset.shape[1:] for dataset in datasets}
        if shapes != {self.header.image_shape}:
            raise UserError(f"{self.path}: images are {shapes}, the header says {self.header.image_shape}")
        if self.fingerprint != _fingerprint(self._file):
            raise UserError(f"{self.path}: header, offsets or checksums do not match the fingerprint")
        if self.offsets[0] != 0 or self.offsets[-1] != len(self._images) or self.num_clients < 1:
            raise UserError(f"{self.path}: train/offsets do not span the {len(self._images)} samples")
        empty = np.flatnonzero(np.diff(self.offsets) <= 0)
        if len(empty):
            raise UserError(f"{self.path}: {self.client_label(empty[0])} has no samples; partition again")
        if not all(map(len, datasets)):
            raise UserError(f"{self.path}: the test or validation set is empty")

    def client_label(self, i: int) -> str:
        """`client_label` of this file's client i."""
        return client_label(i, self.header.client_names)

    @property
    def num_clients(self) -> int:
        """m."""
        return len(self.offsets) - 1

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.header.class_names)

    @property
    def sizes(self) -> list[int]:
        """|D_i| of each client."""
        return [int(n) for n in np.diff(self.offsets)]

    def client(self, i: int) -> Piece:
        """A client's samples: images (n, H, W, C) uint8, labels (n,) uint16.

        Raises UserError, naming the client, when its bytes changed or a label is not a class.
        """
        with _readable(self.path):
            rows = slice(int(self.offsets[i]), int(self.offsets[i + 1]))
            x_NHWC, y_N = self._images[rows], self._labels[rows]
            who = f"{self.path}: {self.client_label(i)}"
            if _checksum(x_NHWC, y_N) != self._file["train/checksums"][i].tobytes():
                raise UserError(f"{who}: checksum mismatch, its data changed; make it again")
            if int(y_N.max()) >= self.num_classes:
                raise UserError(f"{who}: label {y_N.max()} of {self.num_classes} classes")
            return x_NHWC, y_N

    def client_labels(self, i: int) -> Labels:
        """A client's labels alone, (n,) uint16; they are not verified."""
        with _readable(self.path):
            return self._labels[int(self.offsets[i]) : int(self.offsets[i + 1])]

    def held_out(self) -> "list[HeldOut]":
        """The test set, and the validation set where there is one."""
        return [self.test_set, *([self.val_set] if self.val_set else [])]

    def group(self, name: str) -> Any:
        """A group of the open file."""
        return self._file[name]

    def text(self, name: str) -> str:
        """A text attribute of the open file."""
        return _text(self._file, name)

    def stamp(self) -> tuple[int, int]:
        """Size and time of change of the open file: it may be written over while a run reads it."""
        status = os.fstat(self._file.id.get_vfd_handle())
        return status.st_size, status.st_mtime_ns

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> "Shards":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class HeldOut:
    """The test set, or the validation set, of an open shards file. `len()` is its number of samples."""

    def __init__(self, shards: Shards, name: str) -> None:
        """name: test or val."""
        self.name, self._shards, self._group = name, shards, shards.group(name)
        self.images, self._labels = self._group["images"], self._group["labels"]
        self._verified: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.images)

    def read(self, start: int, stop: int) -> Piece:
        """Samples start:stop. Raises UserError as `verify` does, where the file has changed."""
        with _readable(self._shards.path):
            self._verify_if_changed()
            return self.images[start:stop], self._labels[start:stop]

    def labels(self) -> Labels:
        """All labels, (N,) uint16."""
        with _readable(self._shards.path):
            self._verify_if_changed()
            return self._labels[:]

    def rows(self, client: int) -> Rows:
        """The rows that are the client's own: in the test set they follow its class mix."""
        with _readable(self._shards.path):
            self._verify_if_changed()
            start, stop = self._group["client_offsets"][client : client + 2]
            return self._group["client_rows"][start:stop]

    def verify(self) -> None:
        """Raise UserError when the bytes of the set changed, or a label or row is out of range."""
        shards, where = self._shards, f"{self._shards.path}: {self.name} set"
        with _readable(shards.path):
            stamp = shards.stamp()
            if _held_out_checksum(self._group) != shards.text(f"{self.name}_checksum"):
                raise UserError(f"{where}: checksum mismatch, its data changed; make it again")
            if int(self._labels[:].max()) >= shards.num_classes:
                raise UserError(f"{where}: a label outside the {shards.num_classes} classes")
            rows = self._group["client_rows"][:]
            if len(self._group["client_offsets"]) != shards.num_clients + 1 or (
                len(rows) and not 0 <= rows.min() <= rows.max() < len(self)
            ):
                raise UserError(f"{where}: client_rows do not fit it")
            self._verified = stamp

    def _verify_if_changed(self) -> None:
        if self._shards.stamp() != self._verified:
            self.verify()


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What HDF5 and NumPy raise over a damaged file, as a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # a damaged file can fail in any way
        raise UserError(f"{path}: not a whole shards file ({_brief(error)}); make it again") from error


def digest(x_HWC: Images) -> bytes:
    """By which equal images are found."""
    return hashlib.blake2b(x_HWC.tobytes(), digest_size=12).digest()


def client_label(i: int, names: Sequence[str]) -> str:
    """`client 3`, or `client 3 (St. Mary)` where clients have names: sites, hospitals."""
    return f"client {i} ({names[i]})" if names else f"client {i}"


def reserve(file: IO[bytes], size: int) -> None:
    """Claim `size` bytes of disk for a file that is open for reading and writing; what it holds stays.

    Writes into them cannot fail later. OSError where there is no room. Where the file system has no
    fallocate (NFS before 4.2, ext3, FUSE), the rest of the file is filled with zeros.
    """
    try:
        os.posix_fallocate(file.fileno(), 0, max(1, size))
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in NO_FALLOCATE:
            raise
        for start in range(file.seek(0, os.SEEK_END), size, len(ZEROS)):
            file.write(ZEROS[: size - start])
        file.flush()
        os.fsync(file.fileno())  # some file systems tell only now that the disk is full


def _header_words(header: Header) -> dict[str, Any]:
    """The header without what is younger than format 1 and not used: equal data gives equal files."""
    return {k: v for k, v in asdict(header).items() if k != "bits" or v is not None}


def _create(file: h5py.File, group: str, n: int, shape: tuple[int, int, int]) -> tuple[Any, Any]:
    images = file.create_dataset(f"{group}/images", (n, *shape), np.uint8)
    return images, file.create_dataset(f"{group}/labels", (n,), np.dtype("<u2"))


def _write_pieces(
    images: Any, labels: Any, pieces: Iterator[Piece], start: int, stop: int
) -> "hashlib._Hash":
    """Write pieces into the rows start:stop of two datasets; a digest of the images' bytes."""
    digest = hashlib.sha256()
    while start < stop:
        x_NHWC, y_N = next(pieces)
        end = start + len(y_N)
        images[start:end], labels[start:end] = x_NHWC, y_N
        digest.update(np.ascontiguousarray(x_NHWC, np.uint8).data)
        start = end
    assert start == stop, "a piece goes beyond its client's samples, or the test set"
    return digest


def _offsets(sizes: Sequence[int]) -> Rows:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _checksum(x_NHWC: Images, y_N: Labels) -> bytes:
    digest = hashlib.sha256(np.ascontiguousarray(x_NHWC, np.uint8).data)
    digest.update(np.ascontiguousarray(y_N, "<u2").data)
    return digest.digest()


def _held_out_checksum(group: Any, block: int = 4096) -> str:
    digest = hashlib.sha256()
    # A block of large images would be gigabytes, so it is read in steps.
    images, labels = group["images"], group["labels"]
    step = max(1, 2**24 // math.prod(images.shape[1:]))
    for start in range(0, len(images), block):
        stop, one = min(start + block, len(images)), hashlib.sha256()
        for a in range(start, stop, step):
            one.update(np.ascontiguousarray(images[a : min(a + step, stop)], np.uint8).data)
        one.update(np.ascontiguousarray(labels[start:stop], "<u2").data)
        digest.update(one.digest())
    for name in ("client_rows", "client_offsets"):
        digest.update(np.ascontiguousarray(group[name][:], "<i8").data)
    return digest.hexdigest()


def _text(file: h5py.File, name: str) -> str:
    """A text attribute. It is written with its length fixed: HDF5's heap of free ones has no checksums.

    Files from before that have such attributes.
    """
    value = file.attrs[name]
    return value.decode() if isinstance(value, bytes) else str(value)


def _fingerprint(file: h5py.File) -> str:
    digest = hashlib.sha256(_text(file, "header").encode())
    digest.update(np.ascontiguousarray(file["train/offsets"][:], "<i8").data)
    digest.update(file["train/checksums"][:].tobytes())
    for name in ("test", *(["val"] if "val" in file else [])):
        digest.update(_text(file, f"{name}_checksum").encode())
    return digest.hexdigest()


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
