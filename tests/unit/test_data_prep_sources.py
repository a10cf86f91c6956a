"""data_prep's sources: small copies of each official layout, with the rows that must come out."""

import gzip
import hashlib
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data_prep.__main__ import main
from fedproc_mpi.shards import Shards

REPO = Path(__file__).parents[2]
SHARED = REPO.parent / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data is absent")
SYNTHETIC_FINGERPRINT = "4c0b8dc1853b35058f2528267c0380588c0eba71da594136afaec8d537c21a15"
DIGITS_FINGERPRINT = "0be9e2c6fb0e15f054dab85b513aaaa0b952ce2ac59c7fa141333dc3a2bc377a"


def make(tmp_path: Path, *arguments: object) -> Shards:
    """Run data_prep, which must end well and leave nothing but the file."""
    out = tmp_path / "out" / "shards.h5"
    assert main([*map(str, arguments), "--out", str(out)]) == 0
    assert [p.name for p in out.parent.iterdir()] == ["shards.h5"]
    assert main(["verify", str(out)]) == 0
    return Shards(out)


def refused(capsys: pytest.CaptureFixture, *arguments: object) -> str:
    """Run data_prep, which must exit 2 with one line; returns it."""
    capsys.readouterr()
    assert main([*map(str, arguments)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert said.startswith("data_prep: ")
    assert "Traceback" not in said
    return said


def everything(shards: Shards) -> tuple[np.ndarray, np.ndarray]:
    """All training samples, in label order."""
    clients = [shards.client(i) for i in range(shards.num_clients)]
    x, y = np.concatenate([x for x, _ in clients]), np.concatenate([y for _, y in clients])
    order = np.lexsort((x.reshape(len(x), -1)[:, 0], y))
    return x[order], y[order]


# --- digits, and what all sources share ---------------------------------------------------------


def test_digits_content_is_a_function_of_the_seed_alone(tmp_path):
    for place in ("a", "b"):
        with make(tmp_path / place, "digits") as shards:
            assert shards.fingerprint == DIGITS_FINGERPRINT
            assert sum(shards.sizes) == 1438
            assert len(shards.test_set) == 359
    first = (tmp_path / "a/out/shards.h5").read_bytes()
    assert first == (tmp_path / "b/out/shards.h5").read_bytes()
    with make(tmp_path / "c", "digits", "--seed", 1) as shards:
        assert shards.fingerprint != DIGITS_FINGERPRINT


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nosuch"], "no such source"),
        (["digits", "--clients", "ten", "--out", "x.h5"], "--clients"),
        (["digits", "--clients", "0", "--out", "x.h5"], "--clients must be at least 1"),
        (["digits", "--clients", "144", "--out", "x.h5"], "1438 samples cannot give 144 clients 10 each"),
        (["digits", "--beta", "nan", "--out", "x.h5"], "--beta must be above 0"),
        (["digits", "--beta", "0.1", "--partition", "iid", "--out", "x.h5"], "--beta is for"),
        (["digits", "--partition", "natural", "--out", "x.h5"], "no sites"),
        (["digits", "--beta", "0.01", "--clients", "20", "--out", "x.h5"], "beta=0.01 gave each of 20"),
        (["digits"], "--out"),
        (["inspect", "absent.h5"], "no such shards file"),
        (["synthetic", "--classes", "1", "--out", "x.h5"], "--classes must be"),
    ],
)
def test_wrong_flags_end_in_one_line(capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert words in refused(capsys, *arguments)
    assert not any(tmp_path.iterdir())


def test_an_existing_file_is_kept(capsys, tmp_path):
    out = tmp_path / "x.h5"
    out.write_text("mine")
    assert "exists" in refused(capsys, "digits", "--out", out)
    assert out.read_text() == "mine"


def test_a_disk_without_room_is_told_beforehand(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    assert "disk full" in refused(capsys, "digits", "--out", tmp_path / "x.h5")


# --- CIFAR, MNIST ---------------------------------------------------------------------------------


def cifar_folder(root: Path, fine: bool) -> np.ndarray:
    """A CIFAR folder in Python 2's pickle protocol; image i of all is filled with byte i, labels i mod 2."""
    folder = root / ("cifar-100-python" if fine else "cifar-10-batches-py")
    folder.mkdir(parents=True)
    files = ["train", "test"] if fine else [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    for i, name in enumerate(files):
        rows = np.arange(10 * i, 10 * i + 10, dtype=np.uint8)
        data = np.repeat(rows[:, None], 3072, 1)
        data[:, 1024:2048] += 100  # the green plane: channels are stored one after the other
        labels = {"fine_labels" if fine else "labels": [int(r) % 2 for r in rows]}
        (folder / name).write_bytes(pickle.dumps({"data": data, **labels}, protocol=2))
    names = {"fine_label_names" if fine else "label_names": ["even", "odd"]}
    (folder / ("meta" if fine else "batches.meta")).write_bytes(pickle.dumps(names, protocol=2))
    return folder


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_batches(tmp_path, name):
    cifar_folder(tmp_path, name == "cifar100")
    with make(tmp_path, name, "--root", tmp_path, "--unofficial", "--clients", 1) as shards:
        n = 10 if name == "cifar100" else 50
        assert shards.header.dataset == name
        assert shards.header.class_names == ["even", "odd"]
        x, y = shards.client(0)
        assert x.shape == (n, 32, 32, 3)
        assert x[:, 5, 7].tolist() == [[i, i + 100, i] for i in range(n)]
        assert y.tolist() == [i % 2 for i in range(n)]
        x_test, y_test = shards.test_set.read(0, 10)
        assert x_test[:, 0, 0, 0].tolist() == list(range(n, n + 10))
        assert y_test.tolist() == [0, 1] * 5


def test_cifar_checks_md5_and_runs_no_code(capsys, tmp_path):
    folder = cifar_folder(tmp_path, fine=False)
    flags = ["cifar10", "--root", tmp_path, "--out", tmp_path / "x.h5"]
    assert "MD5" in refused(capsys, *flags)
    (folder / "data_batch_1").write_bytes(
        b"cos\nsystem\n(S'touch " + str(tmp_path / "pwned").encode() + b"'\ntR."
    )
    said = refused(capsys, *flags, "--unofficial")
    assert "it asks for os.system" in said
    assert not (tmp_path / "pwned").exists()


def test_cifar_md5_are_torchvisions():
    from torchvision import datasets

    from data_prep.sources.official import CIFAR

    for name, kind in (("cifar10", datasets.CIFAR10), ("cifar100", datasets.CIFAR100)):
        folder, train, test, meta, keys = CIFAR[name]
        assert folder == kind.base_folder
        assert [list(pair) for pair in train] == kind.train_list
        assert [list(pair) for pair in test] == kind.test_list
        assert meta == (kind.meta["filename"], kind.meta["md5"])
        assert keys[1] == kind.meta["key"]


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist", "fashionmnist"])
def test_a_wrong_root_names_the_files_and_the_way_to_bring_them(capsys, tmp_path, name):
    said = refused(capsys, name, "--root", tmp_path, "--out", tmp_path / "x.h5")
    for words in ("looked for", f"python -m data_prep {name} --download", "copy DIR/"):
        assert words in said


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_idx(tmp_path, packed):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for half, n in (("train", 20), ("t10k", 5)):
        pixels = np.arange(n * 28 * 28, dtype=np.uint32).astype(np.uint8)
        contents = {
            f"{half}-images-idx3-ubyte": struct.pack(">4I", 0x803, n, 28, 28) + pixels.tobytes(),
            f"{half}-labels-idx1-ubyte": struct.pack(">2I", 0x801, n) + bytes(i % 10 for i in range(n)),
        }
        for file, content in contents.items():
            if packed:
                (raw / f"{file}.gz").write_bytes(gzip.compress(content))
            else:
                (raw / file).write_bytes(content)
    with make(tmp_path, "mnist", "--root", tmp_path, "--partition", "iid", "--clients", 1) as shards:
        x, y = shards.client(0)
        assert x.shape == (20, 28, 28, 1)
        assert x[1, 0, :3, 0].tolist() == [784 % 256, 785 % 256, 786 % 256]
        assert y[:12].tolist() == [*range(10), 0, 1]
        assert len(shards.test_set) == 5


def test_a_truncated_idx_file(capsys, tmp_path):
    test_mnist_idx(tmp_path, packed=False)
    images = tmp_path / "MNIST/raw/train-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:-1])
    assert "truncated" in refused(capsys, "mnist", "--root", tmp_path, "--out", tmp_path / "x.h5")


# --- .npz and MedMNIST ------------------------------------------------------------------------------


def npz_arrays(n: int = 40, shape: tuple[int, ...] = (6, 4, 3)) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).integers(0, 256, (n + 10, *shape)).astype(np.uint8)
    y = np.arange(n + 10) % 2
    return {"x_train": x[:n], "y_train": y[:n], "x_test": x[n:], "y_test": y[n:]}


@pytest.mark.parametrize("shape", [(6, 4, 3), (6, 4, 1), (6, 4)])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path, shape, save):
    arrays = npz_arrays(shape=shape)
    arrays["x_test"] = np.asfortranarray(arrays["x_test"])
    save(tmp_path / "mine.npz", **arrays, class_names=np.array(["no", "yes"]))
    flags = ["--clients", 2, "--partition", "iid"]
    with make(tmp_path, "npz", "--file", tmp_path / "mine.npz", *flags) as shards:
        assert shards.header.dataset == "mine"
        assert shards.header.class_names == ["no", "yes"]
        assert shards.header.image_shape == (6, 4, shape[2] if len(shape) == 3 else 1)
        x, y = everything(shards)
        wanted = np.concatenate([arrays["x_train"][arrays["y_train"] == k] for k in (0, 1)])
        assert y.tolist() == [0] * 20 + [1] * 20
        assert sorted(map(bytes, x)) == sorted(map(bytes, wanted))
        assert shards.test_set.read(0, 10)[0].tobytes() == np.ascontiguousarray(arrays["x_test"]).tobytes()


NPZ_MISTAKES = {
    "x_train is float32, images must be uint8": {"x_train": np.zeros((40, 6, 4, 3), np.float32)},
    "40 training images, but 39 labels": {"y_train": np.arange(39) % 2},
    "goes from -1 to 0; labels count from 0": {"y_train": np.arange(40) % 2 - 1},
    "goes from 0 to 65536; labels count from 0 to": {"y_train": np.arange(40) % 2 * 65536},
    "goes from 0 to 18446744073709551615": {"y_train": np.arange(40, dtype=np.uint64) % 2 * (2**64 - 1)},
    "labels must be integers: y.astype(int), if they are whole": {"y_train": np.zeros(40)},
    "labels must be integers: y.astype(int)\n": {"y_train": np.zeros(40, bool)},
    "labels must be integers: names, y = numpy.unique": {"y_train": np.array(["a", "b"] * 20)},
    "Python objects, which are never loaded": {"y_train": np.array([{}] * 40, object)},
    "no test images": {"x_test": np.zeros((0, 6, 4, 3), np.uint8), "y_test": np.zeros(0, int)},
    "test images (6, 5, 3)": {"x_test": np.zeros((10, 6, 5, 3), np.uint8)},
    "C = 1 or 3": {"x_train": np.zeros((40, 6, 4, 4), np.uint8)},
    "only one class": {"y_train": np.zeros(40, int), "y_test": np.zeros(10, int)},
    "has 1 names, but labels go to 1": {"class_names": np.array(["alone"])},
    "twice the same name among a, a": {"class_names": np.array(["a", "a"])},
    "class_names is (2, 2)": {"class_names": np.array([["0", "a"], ["1", "b"]])},
    "one row of 0 and 1 per sample; labels are y.argmax(1)": {
        "y_train": np.eye(2, dtype=int)[np.arange(40) % 2]
    },
    "has no array x_train": {"x_train": None},
}


@pytest.mark.parametrize("words", NPZ_MISTAKES)
def test_npz_mistakes(capsys, tmp_path, words):
    arrays = {k: v for k, v in {**npz_arrays(), **NPZ_MISTAKES[words]}.items() if v is not None}
    np.savez(tmp_path / "mine.npz", **arrays)
    assert words in refused(capsys, "npz", "--file", tmp_path / "mine.npz", "--out", tmp_path / "x.h5")
    assert [p.name for p in tmp_path.iterdir()] == ["mine.npz"]


def test_npz_damaged_or_absent(capsys, tmp_path):
    path, flags = tmp_path / "mine.npz", ["--out", tmp_path / "x.h5"]
    assert "no such file" in refused(capsys, "npz", "--file", path, *flags)
    path.write_bytes(b"nonsense")
    assert "not a .npz" in refused(capsys, "npz", "--file", path, *flags)
    np.savez(path, **npz_arrays(400))
    damaged = bytearray(path.read_bytes())
    damaged[1000] ^= 1
    path.write_bytes(damaged)
    assert "x_train is damaged" in refused(capsys, "npz", "--file", path, *flags)


def medmnist_file(path: Path, columns: int = 1, channels: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    rng, arrays = np.random.default_rng(1), {}
    for half, n in (("train", 30), ("val", 10), ("test", 12)):
        arrays[f"{half}_images"] = rng.integers(0, 256, (n, 28, 28, *channels)).astype(np.uint8)
        arrays[f"{half}_labels"] = np.repeat((np.arange(n) % 2)[:, None], columns, 1).astype(np.uint8)
    np.savez_compressed(path, **arrays)
    return arrays


@pytest.mark.parametrize("channels", [(), (3,)])
def test_medmnist_takes_val_into_training(tmp_path, channels):
    arrays = medmnist_file(tmp_path / "some.npz", channels=channels)
    with make(tmp_path, "medmnist", "--file", tmp_path / "some.npz", "--clients", 1) as shards:
        x, y = shards.client(0)
        wanted = np.concatenate([arrays["train_images"], arrays["val_images"]])
        assert x.tobytes() == wanted.tobytes()
        assert y.tolist() == [i % 2 for i in range(30)] + [i % 2 for i in range(10)]
        assert shards.test_set.read(0, 12)[0].tobytes() == arrays["test_images"].tobytes()


def test_medmnist_multi_label_and_3d_are_refused(capsys, tmp_path):
    flags = ["medmnist", "--file", tmp_path / "chest.npz", "--out", tmp_path / "x.h5"]
    medmnist_file(tmp_path / "chest.npz", columns=14)
    assert "multi-label" in refused(capsys, *flags)
    medmnist_file(tmp_path / "chest.npz", channels=(28,))
    assert "images must be" in refused(capsys, *flags)


# --- Tiny-ImageNet ------------------------------------------------------------------------------


def tiny_tree(root: Path) -> None:
    """Three classes, one with a greyscale and a CMYK JPEG; class k's images have red level 40·(k + 1)."""
    for k, wnid in enumerate(["n01", "n02", "n03"]):
        images = root / "train" / wnid / "images"
        images.mkdir(parents=True)
        (images.parent / f"{wnid}_boxes.txt").write_text("")
        for i in range(12):
            image = Image.new("RGB", (64, 64), (40 * (k + 1), 10, 10))
            if (wnid, i) == ("n02", 0):
                image = Image.new("L", (64, 64), 200)
            if (wnid, i) == ("n02", 1):
                image = Image.new("CMYK", (64, 64), (0, 255, 255, 0))
            image.save(images / f"{wnid}_{i}.JPEG", quality=95)
    (root / "val" / "images").mkdir(parents=True)
    lines = []
    for i, k in enumerate([2, 0, 1, 1]):
        Image.new("RGB", (64, 64), (40 * (k + 1), 10, 10)).save(
            root / "val/images" / f"val_{i}.JPEG", quality=95
        )
        lines.append(f"val_{i}.JPEG\tn0{k + 1}\t0\t0\t63\t63\n")
    (root / "val/val_annotations.txt").write_text("".join(lines))
    (root / "wnids.txt").write_text("n03\nn01\nn02\n")  # the official file is not sorted either
    (root / "words.txt").write_text("n01\tgoldfish, Carassius\nn02\tcliff\nn03\tcliff, drop\nn09\tother\n")


def test_tinyimagenet(tmp_path):
    tiny_tree(tmp_path / "tiny")
    flags = ["--root", tmp_path / "tiny", "--clients", 1, "--partition", "iid"]
    with make(tmp_path, "tinyimagenet", *flags) as shards:
        assert shards.header.class_names == ["goldfish", "n02", "n03"]  # 'cliff' would not be unique
        assert (shards.header.mean, shards.header.std) == ([0.5] * 3, [0.5] * 3)
        x, y = shards.client(0)
        assert x.shape == (36, 64, 64, 3)
        assert y.tolist() == [0] * 12 + [1] * 12 + [2] * 12
        for k, level in enumerate((40, 80, 120)):
            assert abs(int(x[12 * k + 5, 3, 3, 0]) - level) <= 2
        assert np.abs(x[12, 3, 3].astype(int) - [200, 200, 200]).max() <= 2  # grey
        red = x[13, 3, 3].astype(int)  # cyan 0, magenta and yellow full: the file order is _0, _1, _10, …
        assert red[0] > 200
        assert red[1:].max() < 60
        assert shards.test_set.read(0, 4)[1].tolist() == [2, 0, 1, 1]
        assert [round(int(v) / 40) - 1 for v in shards.test_set.read(0, 4)[0][:, 0, 0, 0]] == [2, 0, 1, 1]


def test_tinyimagenet_some_classes(tmp_path):
    tiny_tree(tmp_path / "tiny")
    flags = ["--root", tmp_path / "tiny", "--wnids", "n03", "n01", "--clients", 2]
    with make(tmp_path, "tinyimagenet", *flags) as shards:
        assert shards.header.class_names == ["goldfish", "cliff"]
        assert sum(shards.sizes) == 24
        assert shards.test_set.read(0, 2)[1].tolist() == [1, 0]


def test_tinyimagenet_mistakes(capsys, tmp_path):
    tiny_tree(tmp_path / "tiny")
    flags = ["tinyimagenet", "--root", tmp_path / "tiny", "--out", tmp_path / "x.h5", "--clients", 1]
    assert "no Tiny-ImageNet there" in refused(capsys, *flags[:2], tmp_path, *flags[3:])
    assert "no such class" in refused(capsys, *flags, "--wnids", "n77")
    Image.new("RGB", (32, 64)).save(tmp_path / "tiny/train/n01/images/n01_3.JPEG")
    assert "n01_3.JPEG (32×64 px, not 64×64)" in refused(capsys, *flags)
    (tmp_path / "tiny/val/images/val_2.JPEG").unlink()
    assert "val_2.JPEG" in refused(capsys, *flags)


# --- a user's own folders -------------------------------------------------------------------------


def site_folders(root: Path) -> None:
    """Two sites whose names have spaces and Unicode; grey 16-bit, palette and JPEG files."""
    rng = np.random.default_rng(3)
    for site, n in (("Hôpital Nord", 20), ("clinic süd 东", 30)):
        for label in ("no finding", "pneumonia"):
            (root / site / label).mkdir(parents=True)
            for i in range(n):
                pixels = rng.integers(0, 256, (20, 30, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(
                    root / site / label / f"image {i:02}.{'png' if i % 2 else 'jpg'}"
                )
    (root / ".DS_Store").write_text("")
    (root / "Hôpital Nord" / "notes.txt").write_text("not an image")


def test_sites_become_clients(tmp_path):
    site_folders(tmp_path / "own")
    with make(tmp_path, "folders", "--root", tmp_path / "own", "--image-size", 8) as shards:
        assert shards.header.partition == "natural"
        assert shards.header.client_names == ["Hôpital Nord", "clinic süd 东"]
        assert shards.header.class_names == ["no finding", "pneumonia"]
        assert shards.sizes == [32, 48]
        assert len(shards.test_set) == 20
        x_test, y_test = shards.test_set.read(0, 20)
        assert np.bincount(y_test).tolist() == [10, 10]
        own = [shards.test_set.rows(i) for i in (0, 1)]
        assert [len(rows) for rows in own] == [8, 12]  # each site's held-out images are its own
        assert sorted(np.concatenate(own)) == list(range(20))
        assert x_test.shape == (20, 8, 8, 3)


def test_sites_merged_and_partitioned(tmp_path):
    site_folders(tmp_path / "own")
    flags = [
        "--root",
        tmp_path / "own",
        "--partition",
        "iid",
        "--clients",
        4,
        "--channels",
        1,
        "--name",
        "xray",
    ]
    with make(tmp_path, "folders", *flags) as shards:
        assert shards.sizes == [20] * 4
        assert shards.header.image_shape == (64, 64, 1)
        assert shards.header.dataset == "xray"


def test_class_folders_with_a_test_folder(tmp_path):
    for half, n in (("train", 12), ("test", 4)):
        for k, label in enumerate(("a", "b")):
            (tmp_path / half / label).mkdir(parents=True)
            for i in range(n):
                Image.new("L", (9, 9), 100 * k + i).save(tmp_path / half / label / f"{i:02}.png")
    flags = ["--root", tmp_path / "train", "--test-root", tmp_path / "test", "--image-size", 9]
    with make(tmp_path, "folders", *flags, "--clients", 1, "--channels", 1) as shards:
        x, y = shards.client(0)
        assert x[:, 4, 4, 0].tolist() == [*range(12), *range(100, 112)]
        assert y.tolist() == [0] * 12 + [1] * 12
        assert shards.test_set.read(0, 8)[0][:, 0, 0, 0].tolist() == [0, 1, 2, 3, 100, 101, 102, 103]


def test_fit_crops_the_middle_and_keeps_16_bits(tmp_path):
    from data_prep.sources.decode import fit

    wide = np.zeros((4, 12), np.uint8)
    wide[:, 4:8] = 250  # the middle square
    Image.fromarray(wide).save(tmp_path / "wide.png")
    assert (fit(tmp_path / "wide.png", 4, 3) == 250).all()
    deep = np.full((4, 4), 200 << 8, np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    assert (fit(tmp_path / "deep.png", 4, 1) == 200).all()
    turned = Image.fromarray(np.repeat([[0, 255]], 2, 0).astype(np.uint8))
    exif = Image.Exif()
    exif[0x112] = 3  # turned by 180°
    turned.save(tmp_path / "turned.png", exif=exif)
    assert fit(tmp_path / "turned.png", 2, 1)[..., 0].tolist() == [[255, 0], [255, 0]]


def test_folder_mistakes(capsys, tmp_path):
    own = tmp_path / "own"
    flags = ["folders", "--root", own, "--image-size", 8, "--out", tmp_path / "x.h5"]
    assert "no such folder" in refused(capsys, *flags)
    site_folders(own)
    broken = [own / "Hôpital Nord/pneumonia/image 00.jpg", own / "clinic süd 东/no finding/image 01.png"]
    whole = broken[0].read_bytes()
    broken[0].write_bytes(whole[: len(whole) // 2])
    broken[1].write_bytes(b"")
    said = refused(capsys, *flags)
    assert "2 of 100 images cannot be read" in said
    assert all(path.name in said for path in broken)
    (own / "clinic süd 东" / "empty class").mkdir()
    assert "empty class: no images" in refused(capsys, *flags)
    (own / "clinic süd 东" / "empty class").rmdir()
    capsys.readouterr()
    assert main([*map(str, flags), "--skip-broken"]) == 0
    assert "skipped 2 of 100" in capsys.readouterr().out
    with Shards(tmp_path / "x.h5") as shards:
        assert sum(shards.sizes) + len(shards.test_set) == 98


# --- synthetic --------------------------------------------------------------------------------


def test_synthetic_is_made_of_seed_and_index(tmp_path):
    flags = ["--clients", 500, "--samples", 7, "--classes", 4, "--image-size", 5, "--channels", 1]
    with make(tmp_path, "synthetic", *flags) as shards:
        assert shards.sizes == [7] * 500
        assert shards.num_classes == 4
        assert shards.fingerprint == SYNTHETIC_FINGERPRINT
    from data_prep.sources.synthetic import Synthetic

    sizes = {"samples": 7, "classes": 4, "image_size": 5, "channels": 1}
    source = Synthetic(out=tmp_path / "x.h5", clients=500, **sizes).load()
    whole, rows = source.train.images(np.arange(3500)), np.array([3, 99, 3499])
    assert (source.train.images(rows) == whole[rows]).all()
    assert len({hashlib.sha256(bytes(x)).digest() for x in whole}) == 3500


# --- the real data ------------------------------------------------------------------------------


@needs_shared
def test_shared_tiny_imagenet(tmp_path):
    with make(tmp_path, "tinyimagenet", "--root", SHARED / "tiny-imagenet-subset") as shards:
        assert shards.num_classes == 40
        assert shards.header.class_names[0] == "goldfish"
        assert sum(shards.sizes) == 1000
        assert np.bincount(shards.test_set.read(0, 400)[1]).tolist() == [10] * 40


@needs_shared
def test_shared_pneumonia(tmp_path):
    with make(tmp_path, "medmnist", "--file", SHARED / "pneumoniamnist.npz") as shards:
        assert sum(shards.sizes) == 4708 + 524
        assert len(shards.test_set) == 624


@pytest.mark.parametrize(
    ("shift", "told"),
    [
        (1, "no training image of class 0 (0); do the labels start at 1?"),
        (5, "0 (0), 1 (1), 2 (2), 3 (3), 4 (4);"),
    ],
)
def test_labels_with_gaps_are_told_and_kept(tmp_path, capsys, shift, told):
    arrays = npz_arrays()
    arrays["y_train"], arrays["y_test"] = arrays["y_train"] + shift, arrays["y_test"] + shift
    np.savez(tmp_path / "own.npz", **{k: v for k, v in arrays.items() if k != "class_names"})
    with make(tmp_path, "npz", "--file", tmp_path / "own.npz", "--clients", 2) as shards:
        assert set(everything(shards)[1].tolist()) == {shift, shift + 1}
    assert told in capsys.readouterr().out
