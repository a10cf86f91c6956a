"""The shards file: what is written is read back, and every damage is named."""

import dataclasses
import errno
import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import heldout, partitions
from data_prep.__main__ import main as data_prep
from data_prep.sources.digits import Digits
from fedproc_mpi.errors import UserError
from fedproc_mpi.shards import Header, Shards, ToHoldOut, reserve, write_shards
from tests.support.files import make_shards


@pytest.fixture
def copy(shards: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(shards, tmp_path / "copy.h5"))


def test_embedded_digits_are_scikit_learns() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    real = datasets.load_digits()
    source = Digits(out=Path("unused.h5")).load()
    train, test = heldout.stratified_split(real.target, 0.2, 0)
    for split, rows in ((source.train, train), (source.test, test)):
        assert np.array_equal(split.labels, real.target[rows])
        pixels = split.images(np.arange(len(rows)))[..., 0]
        assert np.array_equal(np.rint(pixels / 255 * 16), real.images[rows])
    assert len(train) + len(test) == 1797


def test_what_is_written_is_read_back(shards: Path) -> None:
    source = Digits(out=Path("unused.h5")).load()
    parts = partitions.dirichlet(source.train.labels, 5, 0.5, 0)
    with Shards(shards) as file:
        assert file.num_clients == 5
        assert (file.num_classes, file.header.image_shape, file.header.beta) == (10, (8, 8, 1), 0.5)
        for i, part in enumerate(parts):
            x_NHWC, y_N = file.client(i)
            assert np.array_equal(x_NHWC, source.train.images(part))
            assert np.array_equal(y_N, source.train.labels[part])
            file.client(i)
            # a client's test rows have only classes that it holds, each that the test set has
            held = set(source.train.labels[part].tolist())
            assert {int(source.test.labels[row]) for row in file.test_set.rows(i)} == held
        file.test_set.verify()
        every = np.concatenate([file.client(i)[0] for i in range(5)]).astype(float) / 255
        assert file.header.mean[0] == pytest.approx(every.mean(), rel=1e-9)
        assert file.header.std[0] == pytest.approx(every.std(), rel=1e-9)


def test_same_seed_same_content_other_seed_other(tmp_path: Path, shards: Path) -> None:
    again = make_shards(tmp_path)
    with Shards(shards) as a, Shards(again) as b:
        assert a.fingerprint == b.fingerprint
    other = tmp_path / "other.h5"
    assert data_prep(["digits", "--clients", "5", "--seed", "1", "--out", str(other)]) == 0
    with Shards(other) as c:
        assert c.fingerprint != a.fingerprint


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 12), st.sampled_from([0.1, 0.5, 5.0]))
def test_every_sample_in_exactly_one_client(seed: int, clients: int, beta: float) -> None:
    labels = np.random.default_rng(seed).integers(0, 6, 600)
    parts = partitions.dirichlet(labels, clients, beta, seed, min_samples=5)
    assert sorted(np.concatenate(parts).tolist()) == list(range(600))
    assert min(len(part) for part in parts) >= 5


def test_an_impossible_partition_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = str(tmp_path / "x.h5")
    for flags, words in (
        (["--clients", "300"], "1438 samples cannot give 300 clients 10 each"),
        (["--clients", "140", "--beta", "0.01"], "beta=0.01"),
        (["--clients", "0"], "--clients must be at least 1"),
        (["--beta", "0"], "--beta must be above 0"),
    ):
        assert data_prep(["digits", "--out", out, *flags]) == 2
        said = capsys.readouterr().err
        assert words in said
        assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_missing_foreign_and_truncated_files(tmp_path: Path, copy: Path) -> None:
    with pytest.raises(UserError, match="no such shards file"):
        Shards(tmp_path / "nope.h5")
    text = tmp_path / "text.h5"
    text.write_text("hello")
    with pytest.raises(UserError, match="cannot be read as HDF5"):
        Shards(text)
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        file["x"] = [1]
    with pytest.raises(UserError, match="no shards file of fedproc_mpi"):
        Shards(tmp_path / "foreign.h5")
    whole = copy.read_bytes()
    for size in (len(whole) // 2, len(whole) - 100, 600):
        copy.write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"truncated|make it again|cannot be read"):
            Shards(copy)


def damage(path: Path, name: str) -> None:
    """Change a shards file in one way."""
    with h5py.File(path, "r+") as file:
        offsets = file["train/offsets"]
        if name == "version":
            file.attrs["format_version"] = 99
        elif name == "pixel":
            row = int(offsets[3])
            file["train/images"][row, 0, 0, 0] = 255 - file["train/images"][row, 0, 0, 0]
        elif name == "test pixel":
            file["test/images"][7, 3, 3, 0] = 255 - file["test/images"][7, 3, 3, 0]
        elif name == "empty client":
            offsets[2] = offsets[1]
        elif name == "gone":
            del file["train/labels"]
        elif name == "header":
            file.attrs["header"] = np.bytes_(file.attrs["header"].replace(b"digits", b"other"))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("version", "format version 99, this package reads 1"),
        ("pixel", "client 3: checksum mismatch"),
        ("test pixel", "test set: checksum mismatch"),
        ("empty client", "fingerprint"),
        ("gone", "not a whole shards file"),
        ("header", "do not match the fingerprint"),
    ],
)
def test_damage_is_named(copy: Path, what: str, words: str) -> None:
    damage(copy, what)

    def read_all() -> None:
        with Shards(copy) as file:
            for i in range(file.num_clients):
                file.client(i)
            file.test_set.verify()

    with pytest.raises(UserError, match=words):
        read_all()


@pytest.mark.parametrize(
    ("sizes", "label", "words"),
    [((4, 0, 2), 1, "client 1 has no samples"), ((4, 1, 1), 9, "client 2: label 9 of 3 classes")],
)
def test_contents_that_cannot_be_trained_on(
    tmp_path: Path, sizes: tuple[int, ...], label: int, words: str
) -> None:
    """A file that is whole, but whose partition or labels are wrong (written by another program)."""
    from fedproc_mpi.shards import Header, ToHoldOut, write_shards

    header = Header("mine", ["a", "b", "c"], (2, 2, 1), "mine", 0, [0.5], [0.5])
    clients = [(np.zeros((n, 2, 2, 1), np.uint8), np.zeros(n, np.uint16)) for n in sizes]
    clients[-1][1][-1] = label
    test = [(np.zeros((1, 2, 2, 1), np.uint8), np.zeros(1, np.uint16))]
    rows = [np.zeros(1, np.int64)] * 3
    write_shards(tmp_path / "x.h5", header, sizes, clients, ToHoldOut(test, 1, rows))

    def read_all() -> None:
        with Shards(tmp_path / "x.h5") as file:
            file.client(2)

    with pytest.raises(UserError, match=words):
        read_all()


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL])
def test_space_is_claimed_where_the_disk_has_no_fallocate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """NFS before 4.2, ext3, FUSE: zeros are written behind what the file holds."""

    def missing(fd: int, offset: int, size: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", missing)
    monkeypatch.setattr("fedproc_mpi.shards.ZEROS", bytes(7))
    with (tmp_path / "file").open("w+b") as file:
        file.write(b"held")
        file.flush()
        reserve(file, 100)
    assert (tmp_path / "file").read_bytes() == b"held" + bytes(96)
    assert data_prep(["digits", "--out", str(tmp_path / "d.h5")]) == 0
    assert data_prep(["verify", str(tmp_path / "d.h5")]) == 0


def test_a_full_disk_is_no_missing_fallocate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with (tmp_path / "file").open("w+b") as file, pytest.raises(OSError, match="No space"):
        reserve(file, 100)
    assert (tmp_path / "file").read_bytes() == b""


def test_every_flip_in_the_metadata_is_one_line_or_changes_nothing(shards: Path, tmp_path: Path) -> None:
    """HDF5 meets a damaged structure with a KeyError, a ValueError, or worse."""
    whole, data = shards.read_bytes(), []
    with h5py.File(shards, locking=False) as file:
        for name in ("train/images", "train/labels", "test/images", "test/labels"):
            start = file[name].id.get_offset()
            data.append(range(start, start + file[name].id.get_storage_size()))
    metadata = [i for i in range(len(whole)) if not any(i in held for held in data)]
    refused, path = list[str](), tmp_path / "flipped.h5"
    with Shards(shards) as right:
        for n, i in enumerate(metadata[::23]):
            changed = bytearray(whole)
            changed[i] ^= 1 << n % 8
            path.write_bytes(changed)
            try:
                with Shards(path) as file:
                    for k in range(right.num_clients):
                        assert all(map(np.array_equal, file.client(k), right.client(k)))
                        assert np.array_equal(file.test_set.rows(k), right.test_set.rows(k))
                    assert all(map(np.array_equal, file.test_set.read(0, 9), right.test_set.read(0, 9)))
            except UserError as error:
                refused.append(str(error))
    assert len(refused) > 50
    assert all(said.startswith(f"{path}: ") and "\n" not in said for said in refused)


def test_ten_thousand_names_fit_into_the_header(tmp_path: Path) -> None:
    names = [f"hospital number {i}" for i in range(10_000)]
    header = Header("own", ["a"], (1, 1, 1), "natural", 0, [0.5], [1.0], client_names=names)
    x_NHWC, y_N = np.zeros((1, 1, 1, 1), np.uint8), np.zeros(1, np.uint16)
    path, ones = tmp_path / "many.h5", [np.zeros(1, np.int64)] * len(names)
    write_shards(
        path, header, [1] * len(names), [(x_NHWC, y_N)] * len(names), ToHoldOut([(x_NHWC, y_N)], 1, ones)
    )
    with Shards(path) as file:
        assert list(file.header.client_names) == names


def test_a_file_that_changes_while_it_is_read(shards: Path, tmp_path: Path) -> None:
    """`cp other.h5 shards.h5` during a run: what is read anew is verified anew."""
    path, other = tmp_path / "shards.h5", make_shards(tmp_path, seed=1)
    shutil.copy(shards, path)
    with Shards(path) as file:
        before = file.test_set.read(0, 9)
        path.touch()
        assert all(map(np.array_equal, file.test_set.read(0, 9), before))  # another time, the same bytes
        path.write_bytes(other.read_bytes())
        with pytest.raises(UserError, match=r"shards.h5: (client 0: checksum mismatch|not a whole)"):
            file.client(0)
        with pytest.raises(UserError, match=r"shards.h5: (test set: checksum mismatch|not a whole)"):
            file.test_set.read(0, 9)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"mean": [0.1, 0.2, 0.3]}, "are not 1 finite numbers each"),
        ({"std": [float("nan")]}, "are not 1 finite numbers each"),
        ({"std": [0.0]}, "std or client names do not fit"),
        ({"client_names": ["a"]}, "std or client names do not fit"),
    ],
)
def test_a_header_that_does_not_fit(tmp_path: Path, change: dict[str, list], told: str) -> None:
    header = Header("own", ["a"], (1, 1, 1), "iid", 0, [0.5], [1.0])
    x_NHWC, y_N, path = np.zeros((1, 1, 1, 1), np.uint8), np.zeros(1, np.uint16), tmp_path / "x.h5"
    pieces, rows = [(x_NHWC, y_N)] * 2, [np.zeros(1, np.int64)] * 2
    write_shards(path, dataclasses.replace(header, **change), [1, 1], pieces, ToHoldOut(pieces[:1], 1, rows))
    with pytest.raises(UserError, match=told):
        Shards(path)


def test_images_of_another_type(copy: Path) -> None:
    """The checksum would be over other bytes than are trained on."""
    with h5py.File(copy, "r+") as file:
        images = file["train/images"][:]
        del file["train/images"]
        file["train/images"] = images.astype(np.uint16) + 256
    with pytest.raises(UserError, match="images are not uint8"):
        Shards(copy)
