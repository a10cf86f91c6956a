"""The predict command: the shards' very pixels, names, tables, and what is refused."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data_prep.cli import main as data_prep
from fedproc_mpi import Config, load_model, run
from fedproc_mpi.__main__ import main as fedproc_mpi
from fedproc_mpi.predict import main as predict
from fedproc_mpi.shards import Shards

SITES = ("East", "West")
QUICK = {"rounds": 2, "local_epochs": 1, "model": "small-cnn", "lr": 0.01}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sites with two classes of grey pictures of 19 × 30 px, 12 bits each; ill ones are bright."""
    root = tmp_path_factory.mktemp("predict") / "images"
    random = np.random.default_rng(0)
    for site in SITES:
        for label, brightest in (("healthy", 900), ("ill", 4000)):
            (root / site / label).mkdir(parents=True)
            for i in range(15):
                pixels = random.integers(0, brightest, (19, 30), np.uint16)
                Image.fromarray(pixels).save(root / site / label / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def shards(images: Path) -> Path:
    out = images.parent / "sites.h5"
    words = ["folders", "--root", str(images), "--out", str(out), "--image-size", "12", "--channels", "1"]
    assert data_prep([*words, "--bits", "12"]) == 0
    return out


@pytest.fixture(scope="module")
def runs(shards: Path) -> Path:
    top = shards.parent / "runs"
    for name in ("fedproc", "solo"):
        run(Config.create(algorithm=name, shards=str(shards), run_dir=str(top / name), **QUICK))
    return top


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_files_give_the_pixels_that_the_shards_hold(
    images: Path, shards: Path, runs: Path, tmp_path: Path
) -> None:
    """Every file of a site: the same probabilities as for the site's rows of the shards file."""
    out = tmp_path / "all.csv"
    assert predict([str(runs / "fedproc"), str(images), "--out", str(out)]) == 0
    rows = table(out)
    assert len(rows) == 60
    assert list(rows[0]) == ["image", "class", "prototype_class", "p(healthy)", "p(ill)"]
    model = load_model(runs / "fedproc")
    with Shards(shards) as file:
        x_NHWC = np.concatenate(
            [*(file.client(k)[0] for k in range(2)), file.test_set.read(0, len(file.test_set))[0]]
        )
    by_shards = model.predict(x_NHWC)
    # As sets: the hold-out has shuffled them. Equal pixels give equal digits, others differ.
    assert sorted(row["p(ill)"] for row in rows) == sorted(f"{p:.6f}" for p in by_shards.probabilities[:, 1])
    assert len({row["p(ill)"] for row in rows}) > 50
    assert {row["class"] for row in rows} <= {"healthy", "ill"}
    assert by_shards.prototype_classes is not None
    for row in rows:
        assert row["class"] == ("ill" if float(row["p(ill)"]) > 0.5 else "healthy")


def test_16_bit_images_that_the_shards_would_refuse(
    images: Path, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """12-bit images and a model whose shards were of 8 bits: black without a word, but for --bits 12."""
    run_dir = tmp_path / "run"
    shutil.copytree(runs / "fedproc", run_dir)
    record = json.loads((run_dir / "config.json").read_text())
    record["data"]["bits"] = None
    (run_dir / "config.json").write_text(json.dumps(record))
    ill = images / "East" / "ill"
    assert predict([str(run_dir), str(ill)]) == 2
    assert f"{ill}: its 16-bit images hardly go above" in capsys.readouterr().err
    assert predict([str(run_dir), str(ill), "--bits", "12"]) == 0
    told = capsys.readouterr().out
    assert predict([str(runs / "fedproc"), str(ill)]) == 0
    assert capsys.readouterr().out == told


def test_a_clients_own_model_by_its_name(
    images: Path, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = str(images / "East" / "ill" / "3.png")
    assert predict([str(runs / "solo"), picture, "--client", "West"]) == 0
    named = capsys.readouterr().out
    assert fedproc_mpi(["predict", str(runs / "solo"), picture, "--client", "1"]) == 0
    assert capsys.readouterr().out == named
    assert named.startswith(picture)
    assert "nearest prototype" not in named


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["RUNS/solo", "IMAGES"], "each client has its own model; name a client, 0 to 1 (East, West)"),
        (["RUNS/solo", "IMAGES", "--client", "Wset"], "no such client; did you mean West?"),
        (["RUNS/solo", "IMAGES", "--client", "2"], "name a client, 0 to 1 (East, West)"),
        (["RUNS/fedproc", "IMAGES", "--client", "East"], "all clients share one model"),
        (["RUNS", "IMAGES"], "is no run directory: it has no config.json"),
        (["RUNS/fedproc", "RUNS"], "no image in this folder"),
        (["RUNS/fedproc", "IMAGES/none.png"], "none.png: no such file"),
        (["RUNS/fedproc", "RUNS/fedproc/config.json"], "1 of 1 images cannot be read"),
        (["RUNS/fedproc"], "the following arguments are required: IMAGE"),
        (
            ["RUNS/fedproc", "IMAGES", "--clinet", "1"],
            "--clinet is no flag of predict; did you mean --client?",
        ),
    ],
)
def test_what_predict_refuses(
    words: list[str], told: str, images: Path, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [w.replace("RUNS", str(runs)).replace("IMAGES", str(images)) for w in words]
    assert predict(filled) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.startswith("fedproc_mpi.predict: ")
    assert error.count("\n") == 1


def test_started_by_mpirun_it_is_refused(
    runs: Path, images: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    assert predict([str(runs / "fedproc"), str(images)]) == 2
    assert "one process does this, and 4 were started" in capsys.readouterr().err
