"""Partitions: every sample where it belongs, the same on every machine; inspect and verify."""

import shutil

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import partitions as partition
from data_prep.__main__ import main
from data_prep.cli import require
from data_prep.heldout import client_test_rows, stratified_split
from fedproc_mpi.errors import UserError
from fedproc_mpi.shards import Shards

labels_of = st.integers(2, 8).flatmap(lambda K: st.integers(100, 600).map(lambda n: np.arange(n) % K))
seeds = st.integers(0, 2**32)


def each_once(parts, n):
    return np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))


@settings(max_examples=40, deadline=None)
@given(labels_of, st.integers(1, 8), st.sampled_from([0.3, 0.5, 5.0, 100.0]), seeds)
def test_dirichlet_gives_every_sample_once(labels, clients, beta, seed):
    parts = partition.dirichlet(labels, clients, beta, seed, min_samples=2)
    assert each_once(parts, len(labels))
    assert min(map(len, parts)) >= 2
    again = partition.dirichlet(labels, clients, beta, seed, min_samples=2)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_dirichlet_is_the_published_procedure():
    """The published procedure, written out again from the same draws: shares, the N/m rule, truncation."""
    labels, clients = np.arange(997) % 7, 5
    rng = partition.generator(11, "dirichlet")
    while True:
        parts = [[] for _ in range(clients)]
        for k in range(7):
            members = rng.permutation(np.flatnonzero(labels == k))
            p = rng.dirichlet([0.5] * clients)
            p = np.array([v if len(part) < 997 / clients else 0.0 for v, part in zip(p, parts, strict=False)])
            ends = [*[int(c * len(members)) for c in np.cumsum(p / p.sum())][:-1], len(members)]
            start = 0
            for part, end in zip(parts, ends, strict=False):
                part.extend(members[start:end])
                start = end
        if min(map(len, parts)) >= 10:
            break
    for mine, wanted in zip(partition.dirichlet(labels, clients, 0.5, 11), parts, strict=False):
        assert mine.tolist() == sorted(wanted)


def test_dirichlet_leaves_as_many_empty_pairs_as_published():
    """Known of this split: CIFAR-100 m=100 β=0.5: 20–28 % of the (client, class) pairs are empty."""
    labels = np.arange(50000) % 100
    parts = partition.dirichlet(labels, 100, 0.5, 0)
    empty = np.mean([(np.bincount(labels[p], minlength=100) == 0).mean() for p in parts])
    assert 0.2 < empty < 0.285


def test_dirichlet_gives_up_with_beta_m_and_the_minimum(monkeypatch):
    monkeypatch.setattr(partition, "MAX_TRIES", 50)
    with pytest.raises(UserError, match=r"beta=0\.01 gave each of 60 clients 10 samples in 50 tries"):
        partition.dirichlet(np.arange(700) % 3, 60, 0.01, 0)
    with pytest.raises(UserError, match="700 samples cannot give 71 clients 10 each"):
        partition.dirichlet(np.arange(700) % 3, 71, 0.5, 0)


@settings(max_examples=40, deadline=None)
@given(labels_of, st.integers(1, 10), seeds)
def test_iid(labels, clients, seed):
    parts = partition.iid(labels, clients, seed)
    assert each_once(parts, len(labels))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@settings(max_examples=60, deadline=None)
@given(labels_of, st.integers(1, 6), st.integers(1, 4), st.integers(0, 2), st.integers(0, 4), seeds)
def test_classes_per_client(labels, clients, ways, std, shots, seed):
    classes = len(np.unique(labels))
    ways = min(ways, classes)
    parts = partition.classes_per_client(labels, clients, ways, std, shots, seed)
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)  # nobody shares a sample
    for part in parts:
        held, counts = np.unique(labels[part], return_counts=True)
        assert max(1, ways - std) <= len(held) <= min(classes, ways + std)
        if shots:
            assert (counts == shots).all()
    if not shots:  # a class with a holder is given away whole
        given_away = np.isin(labels, np.unique(labels[together]))
        assert len(together) == given_away.sum()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((5, 9, 0, 0), "--ways must be between 1 and the 4"),
        ((5, 3, 0, 50), "cannot give 5 clients 50 of each of 3"),
        ((10, 3, 0, 12), "lower --shots"),
    ],
)
def test_classes_per_client_that_cannot_be(flags, words):
    with pytest.raises(UserError, match=words):
        partition.classes_per_client(np.minimum(np.arange(400) % 25, 3), *flags, seed=0)


@settings(max_examples=30, deadline=None)
@given(labels_of, st.integers(1, 6), seeds)
def test_client_test_rows_have_the_clients_mix(labels, clients, seed):
    parts = partition.iid(labels, clients, seed)
    test_labels = np.arange(200) % len(np.unique(labels))
    for part, rows in zip(parts, client_test_rows(labels, parts, test_labels, 8, seed), strict=False):
        held = np.bincount(labels[part], minlength=8)
        mine = np.bincount(test_labels[rows], minlength=8)
        assert ((mine > 0) == (held > 0)).all()
        assert len(np.unique(rows)) == len(rows)
        assert np.abs(mine / mine.sum() - held / held.sum()).max() < 0.12


@settings(max_examples=30, deadline=None)
@given(labels_of, st.sampled_from([0.1, 0.2, 0.5]), seeds, st.booleans())
def test_stratified_split(labels, share, seed, with_sites):
    sites = np.random.default_rng(seed).integers(0, 3, len(labels)) if with_sites else None
    train, test = stratified_split(labels, share, seed, sites)
    assert each_once([train, test], len(labels))
    for k in np.unique(labels):
        members = np.flatnonzero(labels == k)
        count = round(share * len(members))
        assert np.isin(members, test).sum() == count
        for site in range(3) if with_sites else ():
            here = members[sites[members] == site]
            assert abs(np.isin(here, test).sum() - len(here) * count / len(members)) < 1.01


def test_draws_are_pinned():
    """A NumPy whose streams differ would make other files from the same seed: it must be noticed here."""
    labels = np.arange(500) % 5
    assert [len(p) for p in partition.dirichlet(labels, 4, 0.5, 0)] == PINNED["dirichlet"]
    assert partition.iid(labels, 50, 0)[0].tolist() == PINNED["iid"]
    assert partition.classes_per_client(labels, 4, 2, 1, 1, 0)[0].tolist() == PINNED["classes"]


PINNED = {
    "dirichlet": [124, 150, 132, 94],
    "iid": [38, 43, 106, 122, 211, 220, 276, 387, 402, 441],
    "classes": [115, 446],
}


# --- inspect, verify, and the message for a missing file ------------------------------------------


@pytest.fixture(scope="module")
def digits_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("shards") / "digits.h5"
    assert main(["digits", "--out", str(path)]) == 0
    return path


def test_inspect_with_a_picture(digits_file, tmp_path, capsys):
    assert main(["inspect", str(digits_file), "--plot", str(tmp_path / "sub" / "p.png")]) == 0
    said = capsys.readouterr().out
    for words in ("min 60, median 149, max 218", "24 of 100", "8×8 px", "pixels             0…255\n"):
        assert words in said
    from PIL import Image

    with Image.open(tmp_path / "sub" / "p.png") as picture:
        assert picture.size[0] > 1000


def test_inspect_tells_a_wrong_image_at_a_glance(tmp_path, capsys):
    x, y = np.zeros((100, 6, 12), np.uint8), np.arange(100) % 2
    x[::2] = 1  # an image in [0, 1] cast to bytes
    np.savez(tmp_path / "odd.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    flags = ["--file", str(tmp_path / "odd.npz"), "--out", str(tmp_path / "odd.h5"), "--clients", "2"]
    assert main(["npz", *flags]) == 0
    assert main(["inspect", str(tmp_path / "odd.h5")]) == 0
    said = capsys.readouterr().out
    assert "NOT SQUARE" in said
    assert "SUSPICIOUS" in said


def damage(file: h5py.File, what: str) -> None:
    if what == "pixel":
        file["train/images"][file["train/offsets"][3], 0, 0, 0] ^= 1
    elif what == "label":
        file["train/labels"][0] = 10
    elif what == "test pixel":
        file["test/images"][5, 2, 2, 0] ^= 1
    elif what == "offset":
        file["train/offsets"][2] = 5000
    elif what == "client rows":
        file["test/client_rows"][0] = 100_000
    elif what == "header":
        file.attrs["header"] = np.bytes_(file.attrs["header"].replace(b'"seed": 0', b'"seed": 1'))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("pixel", "client 3: checksum"),
        ("label", "client 0: checksum"),
        ("test pixel", "test set: checksum"),
        ("offset", "offsets"),
        ("client rows", "test set: checksum"),
        ("header", "header"),
    ],
)
def test_verify_names_what_is_wrong(digits_file, tmp_path, capsys, what, words):
    path = tmp_path / "damaged.h5"
    shutil.copy(digits_file, path)
    with h5py.File(path, "r+") as file:
        damage(file, what)
    assert main(["verify", str(path)]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_pieces_and_whole_clients_make_the_same_file(tmp_path):
    from fedproc_mpi.shards import Header, ToHoldOut, write_shards

    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (30, 4, 4, 1)).astype(np.uint8), (np.arange(30) % 2).astype(np.uint16)
    header = Header("own", ["a", "b"], (4, 4, 1), "iid", 0, [0.5], [0.5])
    rows = [np.arange(3), np.arange(2)]
    whole = [(x[:20], y[:20]), (x[20:], y[20:])]
    pieces = [(x[a:b], y[a:b]) for a, b in ((0, 7), (7, 20), (20, 21), (21, 30))]
    prints = [
        write_shards(tmp_path / f"{i}.h5", header, [20, 10], clients, ToHoldOut([(x[:5], y[:5])], 5, rows))
        for i, clients in enumerate((whole, pieces))
    ]
    assert prints[0] == prints[1]
    with Shards(tmp_path / "1.h5") as shards:
        shards.client(0)
        shards.client(1)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("cifar100_m100.h5", "cifar100 --clients 100 --beta 0.5 --seed 0"),
        ("cifar10_m10_b0.1_s3.h5", "cifar10 --clients 10 --beta 0.1 --seed 3"),
        ("tinyimagenet_m10.h5", "tinyimagenet --clients 10 --beta 0.5 --seed 0"),
    ],
)
def test_a_missing_file_prints_the_command_that_makes_it(tmp_path, name, command):
    with pytest.raises(UserError) as told:
        require(tmp_path / name)
    assert f"`python -m data_prep {command} --out {tmp_path / name}`" in str(told.value)
    with pytest.raises(UserError, match="data_prep --help"):
        require(tmp_path / "mine.h5")
